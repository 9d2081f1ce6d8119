use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use super::*;

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

/// Two directories beside each other, on a file system that keeps all there is to be kept.
fn pair() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let root = tempfile::tempdir_in("/var/tmp").unwrap();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    (root, from, to)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    directory(&open(from), &open(to))
}

/// What there is to be kept of one entry beside its content: numbers, and extended attributes.
fn facts(path: &Path) -> ([i64; 7], BTreeMap<Vec<u8>, Vec<u8>>) {
    let meta = fs::symlink_metadata(path).unwrap();
    let mut list = vec![0; 4096];
    let count = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let attribute = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        (name.to_vec(), value[..length].to_vec())
    };
    let links = if meta.is_dir() { 0 } else { meta.nlink().cast_signed() };
    let (owner, group, device) = (meta.uid().into(), meta.gid().into(), meta.rdev().cast_signed());
    let numbers = [meta.mode().into(), owner, group, device, meta.mtime(), meta.mtime_nsec(), links];
    (numbers, names(&list[..count]).map(attribute).collect())
}

#[test]
fn all_that_a_tree_is_made_of() {
    let (root, from, to) = pair();
    let outside = root.path().join("outside");
    fs::write(&outside, "not to be copied").unwrap();
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::write(from.join("file"), "content").unwrap();
    fs::write(from.join("deep/suid"), "#!").unwrap();
    symlink(&outside, from.join("out")).unwrap();
    symlink("nowhere", from.join("deep/dangling")).unwrap();
    fs::hard_link(from.join("file"), from.join("deep/er/second")).unwrap();
    let sparse = fs::File::create(from.join("sparse")).unwrap();
    sparse.set_len(100 << 20).unwrap();
    sparse.write_at(b"end", (100 << 20) - 3).unwrap();
    let top = open(&from);
    rustix::fs::mknodat(&top, "fifo", FileType::Fifo, Mode::from_raw_mode(0o622), 0).unwrap();
    let number = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(&top, "null", FileType::CharacterDevice, Mode::from_raw_mode(0o666), number).unwrap();
    drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
    std::os::unix::fs::lchown(from.join("out"), Some(7), Some(8)).unwrap();
    std::os::unix::fs::chown(from.join("deep/suid"), Some(1001), Some(1002)).unwrap();
    fs::set_permissions(from.join("deep/suid"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(from.join("deep"), fs::Permissions::from_mode(0o1070)).unwrap();
    for (path, name, value) in [
        ("file", "user.note", &b"a note"[..]),
        ("deep", "user.empty", b""),
        ("deep/suid", "security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("out", "trusted.link", b"of a link"),
        ("fifo", "trusted.fifo", b"of a fifo"),
    ] {
        rustix::fs::lsetxattr(from.join(path), name, value, XattrFlags::empty()).unwrap();
    }
    fs::set_permissions(&from, fs::Permissions::from_mode(0o2750)).unwrap();
    std::os::unix::fs::chown(&from, Some(5), Some(6)).unwrap();
    let past = Timespec { tv_sec: 1_000_000_000, tv_nsec: 123 };
    let past = Timestamps { last_access: past, last_modification: past };
    for path in ["", "file", "out", "deep/er", "deep", "fifo"] {
        let at = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, from.join(path), &past, at).unwrap();
    }

    copy(&from, &to).unwrap();
    for path in [
        "",
        "file",
        "deep",
        "deep/er",
        "deep/suid",
        "deep/dangling",
        "deep/er/second",
        "out",
        "sparse",
        "fifo",
        "null",
        "socket",
    ] {
        assert_eq!(facts(&to.join(path)), facts(&from.join(path)), "{path}");
    }
    assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "content");
    assert_eq!(fs::read_link(to.join("out")).unwrap(), outside);
    let inode = |path: &str| fs::symlink_metadata(to.join(path)).unwrap().ino();
    assert_eq!(inode("file"), inode("deep/er/second"), "two files of one");
    assert_ne!(inode("file"), fs::metadata(from.join("file")).unwrap().ino(), "a link out of the copy");
    let sparse = fs::metadata(to.join("sparse")).unwrap();
    assert!(sparse.len() == 100 << 20 && sparse.blocks() < 1000, "{sparse:?}");
    assert!(fs::read(to.join("sparse")).unwrap().ends_with(b"\0end"));
    fs::write(to.join("file"), "changed").unwrap();
    assert_eq!(fs::read_to_string(from.join("file")).unwrap(), "content");
    let entries = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!((entries(&to), entries(&to.join("deep"))), (7, 3));
}

#[test]
fn depth_costs_no_descriptors() {
    let (_root, from, to) = pair();
    let mut deep = open(&from);
    let name = "d".repeat(100);
    for _ in 0..200 {
        rustix::fs::mkdirat(&deep, &*name, Mode::RWXU).unwrap();
        deep = beneath(&deep, &CString::new(&*name).unwrap(), OFlags::DIRECTORY).unwrap();
    }
    rustix::fs::openat(&deep, "bottom", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
    copy(&from, &to).unwrap();
    let mut deep = open(&to);
    for _ in 0..200 {
        deep = beneath(&deep, &CString::new(&*name).unwrap(), OFlags::DIRECTORY).unwrap();
    }
    rustix::fs::statat(&deep, "bottom", AtFlags::empty()).unwrap();
}

#[test]
fn another_mount_is_not_entered() {
    let (_root, from, to) = pair();
    fs::create_dir(from.join("mounted")).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", from.join("mounted"), "tmpfs", flags, None).unwrap();
    let copied = copy(&from, &to);
    rustix::mount::unmount(from.join("mounted"), rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(copied, Err(Errno::XDEV));
}
