//! Layers on this machine: what of an entry is kept, what overlayfs shows of them, and what hostile ones come to.
use super::made::{self, Entry, Files, Picture, archive, gzip, record};
use super::{Shed, assert_says, names};
use crate::support::{Host, table};
use rustix::fs::{FileType, Stat};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use wharfline::sys::image::{Image, ImageError, Limits};

/// An image of one layer, given as its blocks.
fn add_blocks(shed: &Shed, layer: Vec<u8>) -> Result<PathBuf, ImageError> {
    let picture = Picture { layers: vec![layer], ..Picture::new([]) };
    let image = shed.add(&Files::layout(&[(&picture, "")]), None)?;
    Ok(shed.images.layer(&image.layers[0]))
}

fn add(shed: &Shed, entries: &[Entry]) -> Result<PathBuf, ImageError> {
    add_blocks(shed, archive(entries))
}

fn stat(path: &Path) -> Stat {
    rustix::fs::lstat(path).unwrap()
}

fn kind(path: &Path) -> FileType {
    FileType::from_raw_mode(stat(path).st_mode)
}

fn is_whiteout(path: &Path) -> bool {
    kind(path) == FileType::CharacterDevice && stat(path).st_rdev == 0
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(length);
    Some(value)
}

fn is_opaque(path: &Path) -> bool {
    attribute(path, "trusted.overlay.opaque").is_some_and(|value| value == b"y")
}

/// A capability set as `setcap` writes it, with a newline in it.
const CAPABILITY: &[u8] = b"\x01\x00\x00\x02\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";

#[test]
fn all_of_an_entry_is_kept() {
    const THEN: i64 = 1_000_000_000;
    let shed = Shed::new();
    let long = format!("{}/file", ["a-long-name-of-a-directory"; 12].join("/"));
    let mut early = Entry::file("early", "").extended("mtime", "-1.25");
    early.mtime = 5;
    let layer = add(
        &shed,
        &[
            Entry::directory("./").mode(0o711).owner(7, 8),
            Entry::directory("bin/").mode(0o1777).owner(1, 2).xattr("user.place", "here"),
            Entry::program("bin/su", "program").mode(0o106_755).owner(3, 4),
            Entry::program("bin/ping", "ping")
                .owner(0, 9)
                .xattr("security.capability", CAPABILITY)
                .xattr("user.a", ""),
            Entry::symlink("link", "../../anywhere/at/all").owner(5, 6),
            Entry::hard_link("bin/same", "./bin/su"),
            Entry::other(b'6', "pipe").owner(70_000, 70_001).mode(0o620),
            Entry::file(&long, "long"),
            Entry::symlink("far", &"x/".repeat(200)),
            Entry::file("large", vec![b'l'; 200_000]).extended("uid", "4000000000").extended("mtime", "1.5"),
            early,
            Entry::directory("bin").mode(0o755).owner(1, 2),
            Entry { kind: b'g', ..Entry::file("ignored", record(b"path", b"elsewhere")) },
        ],
    )
    .unwrap();
    let facts = |name: &str| {
        let stat = stat(&layer.join(name));
        (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid, stat.st_mtime)
    };
    assert_eq!(facts(""), (0o711, 7, 8, THEN));
    assert_eq!(facts("bin"), (0o755, 1, 2, THEN), "its time is not that of what was made in it");
    assert_eq!(facts("bin/su"), (0o6755, 3, 4, THEN));
    assert_eq!(facts("link"), (0o777, 5, 6, THEN));
    assert_eq!((facts("pipe"), kind(&layer.join("pipe"))), ((0o620, 70_000, 70_001, THEN), FileType::Fifo));
    assert_eq!(std::fs::read_link(layer.join("link")).unwrap(), Path::new("../../anywhere/at/all"));
    assert_eq!(std::fs::read_link(layer.join("far")).unwrap().as_os_str().len(), 400);
    assert_eq!(attribute(&layer.join("bin/ping"), "security.capability").unwrap(), CAPABILITY);
    assert_eq!(attribute(&layer.join("bin/ping"), "user.a").unwrap(), b"");
    assert_eq!(attribute(&layer.join("bin"), "user.place").unwrap(), b"here");
    assert_eq!(stat(&layer.join("bin/same")).st_ino, stat(&layer.join("bin/su")).st_ino);
    assert_eq!(std::fs::read(layer.join(&long)).unwrap(), b"long");
    assert_eq!(std::fs::read(layer.join("large")).unwrap(), vec![b'l'; 200_000]);
    assert_eq!((facts("large").1, facts("large").3), (4_000_000_000, 1));
    let early = layer.join("early").metadata().unwrap();
    assert_eq!((early.mtime(), early.mtime_nsec()), (-2, 750_000_000));
    // A directory on the way that has no entry of its own.
    assert_eq!(stat(&layer.join("a-long-name-of-a-directory")).st_mode & 0o7777, 0o755);
    let wanted = ["a-long-name-of-a-directory", "bin", "early", "far", "large", "link", "pipe"];
    assert_eq!(names(&layer), wanted);
}

/// A file in GNU's form with holes: pieces of content, each at its offset.
fn sparse(name: &str, size: u64, pieces: &[(u64, &[u8])]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_size(pieces.iter().map(|(_, content)| content.len() as u64).sum());
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_real_size(size);
    gnu.set_is_extended(pieces.len() > 4);
    for (slot, (offset, content)) in gnu.sparse.iter_mut().zip(pieces) {
        slot.set_offset(*offset);
        slot.set_length(content.len() as u64);
    }
    header.set_cksum();
    let mut blocks = header.as_bytes().to_vec();
    let rest = pieces.get(4..).unwrap_or_default();
    for (number, part) in rest.chunks(21).enumerate() {
        let mut more = tar::GnuExtSparseHeader::new();
        more.isextended[0] = u8::from((number + 1) * 21 < rest.len());
        for (slot, (offset, content)) in more.sparse_mut().iter_mut().zip(part) {
            slot.set_offset(*offset);
            slot.set_length(content.len() as u64);
        }
        blocks.extend_from_slice(more.as_bytes());
    }
    blocks.extend(pieces.iter().flat_map(|(_, content)| content.iter()));
    blocks.resize(blocks.len().next_multiple_of(512), 0);
    blocks
}

/// GNU's form of a name that does not fit.
fn long_name(kind: u8, name: &str) -> Vec<u8> {
    Entry { kind, ..Entry::file("././@LongLink", format!("{name}\0")) }.blocks()
}

#[test]
fn what_gnu_tar_writes_is_read() {
    let shed = Shed::new();
    let (name, target) = ("n".repeat(150), "t".repeat(150));
    let content = [7; 512];
    let many: Vec<(u64, &[u8])> = (0..40).map(|at| (at * 8192, &content[..])).collect();
    let layer = [
        long_name(b'L', &name),
        long_name(b'K', &target),
        Entry::symlink("short", "short").blocks(),
        sparse("holes", 1 << 30, &[(0, b"start"), (1 << 29, b"middle")]),
        sparse("many", 400_000, &many),
        Entry::other(0, "old/").blocks(),
        Entry::file("after", "after").blocks(),
    ];
    // Two zero blocks at the end are usual, not needed.
    let layer = add_blocks(&shed, layer.concat()).unwrap();
    assert_eq!(std::fs::read_link(layer.join(&name)).unwrap(), Path::new(&target));
    let holes = layer.join("holes").metadata().unwrap();
    assert!(holes.len() == 1 << 30 && holes.blocks() < 100, "holes take no space");
    let mut wanted = vec![0; 400_000];
    for (at, _) in &many {
        wanted[usize::try_from(*at).unwrap()..][..512].fill(7);
    }
    assert_eq!(std::fs::read(layer.join("many")).unwrap(), wanted);
    assert_eq!(kind(&layer.join("old")), FileType::Directory);
    assert_eq!(std::fs::read(layer.join("after")).unwrap(), b"after");
}

#[test]
fn no_entry_leaves_the_layer() {
    let shed = Shed::new();
    let outside = shed.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "kept").unwrap();
    let out = outside.to_str().unwrap();
    let way = Entry::symlink("way", out);
    let up = Entry::symlink("up", "..");
    let around = "its path leads out of the image";
    let link = "its path leads through a symbolic link";
    let none = "no file of the same layer";
    for (entries, entry, wanted) in [
        (vec![Entry::file("../x", "")], "../x", around),
        (vec![Entry::file("a/../../x", "")], "a/../../x", around),
        (vec![Entry::directory("..")], "..", around),
        (vec![Entry::directory("a/..")], "a/..", around),
        (vec![Entry::file("", "")], "", around),
        (vec![Entry::other(b'6', "/")], "", around),
        (vec![Entry::file("x", "").extended("path", "a\0/b")], "a", around),
        (vec![way.clone(), Entry::file("way/x", "")], "way/x", link),
        (vec![way.clone(), Entry::directory("way/x/y")], "way/x/y", link),
        (vec![way.clone(), Entry::file("way/.wh.kept", "")], "way/.wh.kept", link),
        (vec![way.clone(), Entry::file("way/.wh..wh..opq", "")], "way/.wh..wh..opq", link),
        (vec![way.clone(), Entry::hard_link("x", "way/kept")], "x", link),
        (vec![up.clone(), Entry::file("up/x", "")], "up/x", link),
        (
            vec![Entry::directory("d"), Entry::symlink("d/up", "../.."), Entry::file("d/up/x", "")],
            "d/up/x",
            link,
        ),
        (vec![Entry::hard_link("x", "../../../outside/kept")], "x", around),
        (vec![Entry::hard_link("x", &format!("{out}/kept"))], "x", none),
        (vec![Entry::hard_link("x", "x")], "x", none),
        (vec![Entry::file("x", ""), Entry::hard_link("./x", "x")], "./x", none),
        (vec![Entry::directory("d"), Entry::hard_link("x", "d")], "x", none),
        (vec![Entry::file(".wh.y", ""), Entry::hard_link("x", "y")], "x", none),
        (vec![Entry::hard_link("x", ".")], "x", none),
        (vec![Entry::symlink("x", "")], "x", none),
        (vec![Entry::file(".wh.", "")], ".wh.", "a whiteout that names nothing"),
        (vec![Entry::file("d/.wh..", "")], "d/.wh..", "a whiteout that names nothing"),
        (vec![Entry::file("d/.wh...", "")], "d/.wh...", "a whiteout that names nothing"),
        (vec![Entry::file(".wh.d/x", "")], ".wh.d/x", "a whiteout that names nothing"),
        (vec![Entry::file("x", ""), Entry::file("x/y", "")], "x/y", "no directory"),
        (vec![Entry::file("x", ""), Entry::hard_link("y", "x/z")], "y", "no directory"),
        (vec![Entry::file("x", "").extended("path", vec![b'n'; 256])], "nnn", "too long or too deep"),
        (vec![Entry::file(&"d/".repeat(129), "")], "d/d/", "too long or too deep"),
        (vec![Entry::file(&format!("{}x", "./".repeat(2048)), "")], "./.", "too long or too deep"),
    ] {
        let result = add(&shed, &entries);
        let entry = if entry.is_empty() { String::new() } else { format!("entry `{entry}") };
        assert_says(result, &["image: blobs/sha256/", &entry, wanted, "make it anew"]);
        assert!(shed.there().is_empty());
        assert_eq!(names(&outside), ["kept"]);
        assert_eq!(std::fs::read(outside.join("kept")).unwrap(), b"kept");
    }
}

#[test]
fn what_only_looks_as_if_it_led_outside_lies_inside() {
    let (shed, outside) = (Shed::new(), tempfile::tempdir().unwrap());
    let inside =
        add(&shed, &[Entry::file("/etc/x", ""), Entry::file(".//./y", ""), Entry::file("...", "")]).unwrap();
    assert_eq!(
        (names(&inside), names(&inside.join("etc"))),
        (vec!["...".into(), "etc".into(), "y".into()], vec!["x".into()])
    );
    // A link in the way of a file is replaced, not followed.
    for last in [
        Entry::file("way", "new"),
        Entry::directory("way"),
        Entry::symlink("way", "x"),
        Entry::other(b'6', "way"),
    ] {
        let layer = add(
            &shed,
            &[Entry::symlink("way", outside.path().to_str().unwrap()), last.clone().mode(0o700).owner(1, 1)],
        )
        .unwrap();
        assert_eq!(names(outside.path()), [""; 0]);
        assert_eq!(outside.path().metadata().unwrap().uid(), 0);
        assert_eq!(stat(&layer.join("way")).st_uid, 1);
    }
}

#[test]
fn the_later_of_two_entries_of_one_path_is_the_one() {
    let shed = Shed::new();
    let file = |name: &str| Entry::file(name, name);
    let layer = add(
        &shed,
        &[
            file("one"),
            Entry::file("one", "new"),
            Entry::directory("two"),
            file("two/gone"),
            file("two"),
            file("three"),
            Entry::directory("three"),
            file("three/in"),
            Entry::directory("four"),
            file("four/stays"),
            Entry::directory("four").mode(0o700),
            file("five"),
            Entry::hard_link("six", "five"),
            Entry::file("five", "new"),
        ],
    )
    .unwrap();
    let read = |name: &str| std::fs::read_to_string(layer.join(name)).unwrap();
    assert_eq!(
        ["one", "two", "three/in", "four/stays", "five", "six"].map(read),
        ["new", "two", "three/in", "four/stays", "new", "five"]
    );
    assert_eq!((stat(&layer.join("four")).st_mode & 0o7777, names(&layer).len()), (0o700, 6));
}

#[test]
fn whiteouts_take_the_form_of_overlayfs_and_hide_nothing_of_their_own_layer() {
    let shed = Shed::new();
    let layer = add(
        &shed,
        &[
            Entry::file("d/.wh.gone", ""),
            Entry::file("all/.wh..wh..opq", ""),
            Entry::file("all/new", ""),
            // In either order, what the layer itself has stays; a directory shows nothing of those below.
            Entry::file(".wh.file", ""),
            Entry::file("file", ""),
            Entry::file("other", ""),
            Entry::file(".wh.other", ""),
            Entry::file(".wh.before", ""),
            Entry::directory("before"),
            Entry::file("after/in", ""),
            Entry::file(".wh.after", ""),
            Entry::file(".wh.implied", ""),
            Entry::file("implied/in", ""),
            // What aufs kept for itself.
            Entry::file(".wh..wh.plnk/1.2", ""),
            Entry::file(".wh..wh.aufs", ""),
        ],
    )
    .unwrap();
    assert!(is_whiteout(&layer.join("d/gone")));
    assert_eq!((is_opaque(&layer.join("all")), is_opaque(&layer.join("d"))), (true, false));
    assert_eq!(["file", "other"].map(|name| kind(&layer.join(name))), [FileType::RegularFile; 2]);
    assert_eq!(["before", "after", "implied"].map(|name| is_opaque(&layer.join(name))), [true; 3]);
    assert_eq!(names(&layer), ["after", "all", "before", "d", "file", "implied", "other"]);
}

/// The image's files as a container would see them.
fn merged(host: &Host, shed: &Shed, image: &Image) -> PathBuf {
    let layers: Vec<_> =
        image.layers.iter().rev().map(|l| shed.images.layer(l).to_str().unwrap().to_owned()).collect();
    let at = host.data.join("merged");
    std::fs::create_dir_all(&at).unwrap();
    // overlayfs wants two at least.
    let empty = host.data.join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let options = format!("lowerdir={}:{}", layers.join(":"), empty.display());
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount("overlay", &at, "overlay", rustix::mount::MountFlags::RDONLY, options.as_c_str())
        .unwrap();
    at
}

#[test]
fn overlayfs_shows_what_the_layers_say() {
    let (host, shed) = (Host::new(), Shed::new());
    let base = vec![
        Entry::file("etc/kept", "1"),
        Entry::file("etc/gone", "1"),
        Entry::file("etc/changed", "1"),
        Entry::file("tree/deep/old", "1"),
        Entry::file("cache/old", "1"),
    ];
    let change = vec![
        Entry::file("etc/.wh.gone", ""),
        Entry::file("etc/changed", "2"),
        Entry::file(".wh.tree", ""),
        Entry::file("cache/.wh..wh..opq", ""),
        Entry::file("cache/new", "2"),
    ];
    let files = |picture: &Picture| Files::layout(&[(picture, "")]);
    let see = |image: &Image, look: &dyn Fn(&Path)| {
        let at = merged(&host, &shed, image);
        look(&at);
        rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
    };
    let image = shed.add(&files(&Picture::new([base.clone(), change.clone()])), None).unwrap();
    see(&image, &|at| {
        assert_eq!(
            (names(at), names(&at.join("etc"))),
            (vec!["cache".into(), "etc".into()], vec!["changed".into(), "kept".into()])
        );
        assert_eq!(names(&at.join("cache")), ["new"]);
        assert_eq!(std::fs::read(at.join("etc/changed")).unwrap(), b"2");
    });
    // The same layer again on top shows its files again; below, it shows nothing and would be refused.
    let image = shed.add(&files(&Picture::new([base.clone(), change.clone(), base.clone()])), None).unwrap();
    assert_eq!(image.layers.len(), 2);
    see(&image, &|at| {
        assert_eq!(
            (names(&at.join("etc")).len(), names(&at.join("cache"))),
            (3, vec!["new".into(), "old".into()])
        );
    });
    // A layer of which the root hides all: overlayfs would not look there, so the ones below are left out.
    let clean = vec![Entry::file(".wh..wh..opq", ""), Entry::file("only", "3")];
    let image = shed.add(&files(&Picture::new([base, change, clean])), None).unwrap();
    see(&image, &|at| assert_eq!(names(at), ["only"]));
    host.assert_clean();
    assert!(table().iter().all(|row| !row.contains("merged")));
}

#[test]
fn devices_and_the_attributes_of_the_machine_are_left_out() {
    let shed = Shed::new();
    let hostile = [
        "system.posix_acl_default",
        "trusted.overlay.redirect",
        "trusted.overlay.opaque",
        "user.overlay.opaque",
        "security.selinux",
        "a",
    ];
    let marked = hostile.iter().fold(Entry::directory("d"), |entry, name| entry.xattr(name, "y"));
    let layer = add(
        &shed,
        &[
            Entry::other(b'3', "null"),
            Entry::other(b'4', "disk"),
            Entry::file("disk2", ""),
            marked.xattr("user.fine", "y"),
        ],
    )
    .unwrap();
    assert_eq!(names(&layer), ["d", "disk2"]);
    for name in hostile {
        assert_eq!(attribute(&layer.join("d"), name), None, "{name}");
    }
    assert_eq!(attribute(&layer.join("d"), "user.fine").unwrap(), b"y");
}

#[test]
fn what_a_layer_may_cost_is_bounded() {
    let limited = |bytes, entries| Shed::limited(Limits { bytes, entries });
    let five: Vec<_> = (0..5).map(|n| Entry::file(&n.to_string(), "")).collect();
    assert_eq!(names(&add(&limited(100_000, 5), &five).unwrap()).len(), 5);
    assert_says(add(&limited(100_000, 4), &five), &["entry `4`", "more than the limit of entries"]);
    // What is made on the way counts too.
    assert_says(
        add(&limited(100_000, 4), &[Entry::file("a/b/c/d/e", "")]),
        &["more than the limit of entries"],
    );
    // The layers of an image have one limit.
    let picture = Picture::new([five.clone(), vec![Entry::file("x", "")]]);
    assert_says(
        limited(100_000, 5).add(&Files::layout(&[(&picture, "")]), None),
        &["more than the limit of entries"],
    );
    let picture = Picture::new([five, vec![Entry::file("x", vec![0; 4000])]]);
    assert_says(
        limited(6_000, 9).add(&Files::layout(&[(&picture, "")]), None),
        &["more than the limit of bytes"],
    );
    assert!(limited(10_000, 9).add(&Files::layout(&[(&picture, "")]), None).is_ok());

    // What is kept in memory of directories.
    let long = vec!["d".repeat(250); 15].join("/");
    let deep: Vec<_> = (0..9_000).map(|n| Entry::directory(&format!("{long}/{n}"))).collect();
    assert_says(add(&Shed::new(), &deep), &["more than the limit of directories"]);

    // A small file that would be a large one: in a member, behind the end, and with a hole.
    let bomb = Entry::file("zeros", vec![0; 10_000_000]).blocks();
    let mut behind = archive(&[]);
    behind.resize(10_000_000, 0);
    for (layer, squeeze) in
        [(bomb, true), (behind, true), (sparse("hole", 1 << 40, &[(1 << 39, b"x")]), false)]
    {
        let shed = limited(1_000_000, 10);
        let mut picture = Picture::new([]);
        picture.layers.push(layer.clone());
        picture.compressed = squeeze;
        assert!(!squeeze || gzip(&layer).len() < 200_000);
        assert_says(shed.add(&Files::layout(&[(&picture, "")]), None), &["more than the limit of bytes"]);
        assert!(shed.there().is_empty());
    }
}

#[test]
fn a_broken_archive_is_refused() {
    let shed = Shed::new();
    let file = Entry::file("name", vec![1; 600]);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut blocks = file.blocks();
        change(&mut blocks);
        blocks
    };
    let extended = |key: &str, value: &str| file.clone().extended(key, value).blocks();
    let raw =
        |content: &[u8]| [Entry { kind: b'x', ..Entry::file("e", content) }.blocks(), file.blocks()].concat();
    let holes = |size, pieces: &[(u64, &[u8])]| sparse("holes", size, pieces);
    for (layer, wanted) in [
        (with(&|blocks| blocks.truncate(700)), "ends in the middle"),
        (with(&|blocks| blocks.truncate(300)), "ends in the middle"),
        (with(&|blocks| blocks[0] ^= 1), "wrong checksum"),
        (Entry::other(b'V', "volume").blocks(), "unknown kind `V`"),
        (Entry { owner: (u64::from(u32::MAX), 0), ..file.clone() }.blocks(), "its owner is no number"),
        (extended("gid", "4294967296"), "its group is no number"),
        (extended("uid", "x"), "its owner is no number"),
        (extended("size", "-1"), "its size is no number"),
        (extended("size", "18446744073709551615"), "its size is no number"),
        (extended("size", "100000"), "ends in the middle"),
        (extended("mtime", "soon"), "its time is no number"),
        (extended("GNU.sparse.major", "1"), "a sparse file in the POSIX form"),
        (raw(b"99 path=x\n"), "extended header cannot be read"),
        (raw(b"9 path=x\n7 x\n"), "extended header cannot be read"),
        (raw(b"10 path=xy"), "extended header cannot be read"),
        (raw(b"0 path=x\n"), "extended header cannot be read"),
        (raw(&[b'1'; 600]), "extended header cannot be read"),
        (raw(&vec![0; (1 << 20) + 1]), "longer than 1 MiB"),
        (long_name(b'L', "dangling"), "ends in the middle"),
        (long_name(b'L', "again").repeat(9), "extended header cannot be read"),
        (holes(10, &[(0, b"12345"), (3, b"12345")]), "map of holes"),
        (holes(10, &[(8, b"12345")]), "map of holes"),
        (holes(10, &[(u64::MAX - 1, b"12345")]), "map of holes"),
    ] {
        assert_says(add_blocks(&shed, layer), &["blobs/sha256/", wanted, "the image cannot be used"]);
        assert!(shed.there().is_empty());
    }
    let lying = [made::archive(&[]), file.blocks()].concat();
    assert_eq!(names(&add_blocks(&shed, lying).unwrap()), [""; 0], "nothing is read behind the end");
}

/// Layers of a build mostly hold what they add alone. A daemon makes its files for itself alone.
#[test]
fn a_layer_that_says_nothing_of_the_root_leaves_it_open_to_all() {
    const UNSAID: &str = "trusted.wharfline.root-unsaid";
    let shed = Shed::new();
    let said = add(&shed, &[Entry::directory("./").mode(0o711).owner(7, 8), Entry::file("a", "")]).unwrap();
    assert_eq!((stat(&said).st_mode & 0o7777, attribute(&said, UNSAID)), (0o711, None));
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let unsaid = add(&shed, &[Entry::directory("app/").mode(0o755), Entry::file("app/x", "")]);
    rustix::process::umask(before);
    let unsaid = unsaid.unwrap();
    assert_eq!((stat(&unsaid).st_mode & 0o7777, attribute(&unsaid, UNSAID)), (0o755, Some(b"y".to_vec())));
}
