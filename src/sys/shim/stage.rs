//! What a container's root is made of, mounted where the host never sees it.
//!
//! In a mount namespace of the process that becomes `runc create`, and with it these mounts end, whoever is killed
//! when. What runc has put into the container by then stays with the container:
//! ```text
//! stage/            a tmpfs
//!   rootfs/         the layers and, on top, what the container writes (rw/upper of the task's directory)
//!   l/N  l/upper  l/work   links to the layers and to that, so that overlayfs is told short names
//!   v/N             the volumes
//!   s/N             what is shared with the host: of the same peer group, so mounts in it go both ways
//!   config.json     the document, with the numbers of the user, the limit of open files and the cookie
//! ```
//! Runs between fork and exec in a process with one thread.
use crate::sys::ffi::{self, MountAttributes, mount_setattr};
use crate::sys::image::unpack::tells_root;
use crate::sys::open_files;
use crate::sys::process::{ContainerShare, ContainerSpec, TaskMount, TaskSpec};
use crate::sys::real::mounts;
use crate::sys::shim::places::{self, Inner};
use crate::sys::shim::record::COOKIE;
use crate::sys::shim::root::{Fault, attach_volume, fault, handle, make_file, openat, tmpfs};
use crate::sys::shim::user;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, StatxFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags};
use rustix::process::Rlimit;
use serde_json::{Value, json};
use std::ffi::{CString, OsStr};
use std::path::{Component, Path, PathBuf};

/// The stage, in a task's directory.
pub(crate) const STAGE: &str = "stage";
/// What runc writes beside its own memory.
pub(crate) const RUNC: &str = "runc";
/// What the container itself wrote.
pub(crate) const WRITES: &str = "rw";
/// In it, the files.
pub(crate) const UPPER: &str = "upper";
/// In it, what overlayfs needs.
pub(crate) const WORK: &str = "work";
/// The document as the daemon made it.
pub(crate) const DOCUMENT: &str = "container.json";
/// The document as runc reads it.
const CONFIG: &str = "config.json";

/// Makes the stage of a task's container. `clones[i]` becomes volume `i`.
pub(crate) fn prepare(
    directory: &Path,
    spec: &TaskSpec,
    container: &ContainerSpec,
    (cookie, clones): (&str, Vec<OwnedFd>),
) -> Result<(), Fault> {
    ffi::unshare_mounts().map_err(|error| format!("unshare the mounts: {error}"))?;
    // Before all else turns away from the host.
    let shares = container.shares.iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    let host = Path::new("/");
    let slave = MountAttributes { propagation: libc::MS_SLAVE, ..MountAttributes::default() };
    let top = handle(host).map_err(fault("open", host))?;
    mount_setattr(&top, true, slave).map_err(|error| format!("make the mounts private: {error}"))?;

    let path = directory.join(STAGE);
    let step = fault("make the stage", &path);
    let stage = tmpfs("16m", "700").map_err(&step)?;
    handle(&path).and_then(|at| mounts::attach(&stage, at)).map_err(&step)?;
    for name in ["rootfs", "l", "v", "s"] {
        rustix::fs::mkdirat(&stage, name, Mode::RWXU).map_err(&step)?;
    }
    root(directory, container, &stage)?;
    let rootfs = openat(&stage, OsStr::new("rootfs")).map_err(&step)?;

    let volumes = openat(&stage, OsStr::new("v")).map_err(&step)?;
    for (index, (mount, clone)) in spec.mounts.iter().zip(&clones).enumerate() {
        let name = index.to_string();
        let place = if mount.block { make_file(&volumes, OsStr::new(&name)) } else { make(&volumes, &name) };
        attach_volume(mount, clone, &place.map_err(&step)?)?;
    }
    let shared = openat(&stage, OsStr::new("s")).map_err(&step)?;
    for (index, (share, tree)) in container.shares.iter().zip(&shares).enumerate() {
        let (name, seen) = (index.to_string(), rustix::fs::fstat(tree).map_err(&step)?);
        let place = match FileType::from_raw_mode(seen.st_mode) {
            FileType::Directory => make(&shared, &name),
            _ => make_file(&shared, OsStr::new(&name)),
        };
        mounts::attach(tree, place.map_err(&step)?).map_err(fault("share", &share.path))?;
    }
    let inner = |index: usize| match rustix::fs::fstat(&shares[index]) {
        Ok(seen) if FileType::from_raw_mode(seen.st_mode) == FileType::Directory => Inner::Directory,
        Ok(_) | Err(_) => Inner::File,
    };
    let volumes: Vec<_> = spec.mounts.iter().zip(&clones).collect();
    let asked = AskedFor { path: &path, volumes: &volumes, share: &inner };
    document(directory, spec, (&rootfs, &asked), cookie)
}

/// What is mounted in a container beside what every container has.
struct AskedFor<'a> {
    /// The stage, which all of it is made in.
    path: &'a Path,
    volumes: &'a [(&'a TaskMount, &'a OwnedFd)],
    /// What the i-th share is.
    share: &'a dyn Fn(usize) -> Inner,
}

impl AskedFor<'_> {
    /// The volume, or else the share, that a source in the document is.
    fn of(&self, source: &str) -> Option<Result<usize, usize>> {
        let of =
            |kind: &str| Path::new(source).strip_prefix(self.path.join(kind)).ok()?.to_str()?.parse().ok();
        of("v").map(Ok).or_else(|| of("s").map(Err))
    }

    /// Puts what lies in another after it, by where it is in the image, makes in volumes what lies in them needs, and refuses
    /// two things at one place.
    fn arrange(&self, rootfs: &OwnedFd, all: &mut [Value]) -> Result<(), Fault> {
        let ours = |mount: &Value| self.of(mount["source"].as_str().unwrap_or_default());
        let slots: Vec<usize> = (0..all.len()).filter(|slot| ours(&all[*slot]).is_some()).collect();
        let mounts: Vec<Value> = slots.iter().map(|slot| all[*slot].clone()).collect();
        let path = |mount: &Value| PathBuf::from(mount["destination"].as_str().unwrap_or_default());
        let paths: Vec<PathBuf> = mounts.iter().map(path).collect();
        let targets = places::targets(rootfs, &paths.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
        for (index, target) in targets.iter().enumerate() {
            let whole = target.whole();
            let outer = places::outer(&whole, &targets).map(|outer| (outer, ours(&mounts[outer])));
            // In what is of the node it is as runc has it.
            let Some((outer, Some(Ok(volume)))) = outer else { continue };
            let inner = match ours(&mounts[index]) {
                Some(Ok(own)) if !self.volumes[own].0.block => Inner::Directory,
                Some(Ok(_)) | None => Inner::File,
                Some(Err(share)) => (self.share)(share),
            };
            let beneath = targets[outer].whole();
            let rest = whole.strip_prefix(&beneath).unwrap_or(&whole);
            places::make_in(self.volumes[volume], rest, (&paths[index], inner))?;
        }
        let mut order: Vec<usize> = (0..mounts.len()).collect();
        order.sort_by_key(|index| targets[*index].whole().components().count());
        for (slot, index) in slots.into_iter().zip(order) {
            all[slot] = mounts[index].clone();
        }
        Ok(())
    }
}

/// A copy of a path of the host with all that is mounted in it, which stays connected with the host's.
fn copy(share: &ContainerShare) -> Result<OwnedFd, Fault> {
    let step = fault("share", &share.path);
    let resolve = if share.resolved {
        // Who can write above it might have put a link there since it was allowed.
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
    } else {
        ResolveFlags::NO_MAGICLINKS
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(CWD, &share.path, flags, Mode::empty(), resolve).map_err(&step)?;
    if share.both_ways && !is_shared(&found).map_err(|error| format!("{}: {error}", share.path.display()))? {
        return Err(format!(
            "{0} is not in a shared mount, so that nothing mounted there in the container would be seen outside: run \
             `mount --make-shared` on its mount, or ask for HostToContainer",
            share.path.display()
        ));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(&found, c"", flags).map_err(step)
}

/// Whether what is mounted beneath it shows elsewhere, and the other way.
fn is_shared(found: &OwnedFd) -> std::io::Result<bool> {
    let seen = rustix::fs::statx(found, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    let id = seen.stx_mnt_id.to_string();
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut fields = table
        .split(|&byte| byte == b'\n')
        .map(|line| line.split(|&byte| byte == b' '))
        .find_map(|mut fields| (fields.next()? == id.as_bytes()).then_some(fields))
        .ok_or(std::io::ErrorKind::NotFound)?;
    Ok(fields.by_ref().skip(5).take_while(|field| *field != b"-").any(|field| field.starts_with(b"shared:")))
}

fn make(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(directory, name, Mode::RWXU)?;
    openat(directory, OsStr::new(name))
}

/// Mounts the layers, with what the container writes on top.
fn root(directory: &Path, container: &ContainerSpec, stage: &OwnedFd) -> Result<(), Fault> {
    let step = fault("mount the root of", directory);
    let links = openat(stage, OsStr::new("l")).map_err(&step)?;
    let link = |target: &Path, name: &str| rustix::fs::symlinkat(target, &links, name).map_err(&step);
    // overlayfs wants the topmost one first.
    for (index, layer) in container.layers.iter().rev().enumerate() {
        link(layer, &index.to_string())?;
    }
    let writes = directory.join(WRITES);
    link(&writes.join(UPPER), UPPER)?;
    link(&writes.join(WORK), WORK)?;
    if let Some(layer) = says_root(&container.layers).map_err(&step)? {
        look_like(&writes.join(UPPER), layer).map_err(&step)?;
    }
    let lower: Vec<String> = (0..container.layers.len()).map(|index| index.to_string()).collect();
    let options = format!("lowerdir={},upperdir={UPPER},workdir={WORK}", lower.join(":"));
    let options = CString::new(options).map_err(|_| "a layer's name holds a zero byte".to_owned())?;
    rustix::process::fchdir(&links).map_err(&step)?;
    let flags = MountFlags::empty();
    let mounted = rustix::mount::mount("overlay", "../rootfs", "overlay", flags, options.as_c_str());
    mounted.map_err(|errno| match errno {
        Errno::INVAL | Errno::OPNOTSUPP => format!(
            "{}: its file system, or that of the layers, does not take part in overlayfs; use a data directory on \
             ext4, xfs or btrfs",
            step(errno)
        ),
        errno => step(errno),
    })?;
    rustix::process::chdir("/").map_err(step)
}

/// The topmost layer that says what the root is like, or else the topmost one.
fn says_root(layers: &[PathBuf]) -> Result<Option<&PathBuf>, Errno> {
    for layer in layers.iter().rev() {
        if tells_root(layer)? {
            return Ok(Some(layer));
        }
    }
    Ok(layers.last())
}

/// The root of what is written covers that of the layers: closed to others there, it would be closed to every user.
fn look_like(upper: &Path, layer: &Path) -> Result<(), Errno> {
    let seen = rustix::fs::statat(CWD, layer, AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chown(upper, Some(Uid::from_raw(seen.st_uid)), Some(Gid::from_raw(seen.st_gid)))?;
    rustix::fs::chmod(upper, Mode::from_raw_mode(seen.st_mode & 0o7777))
}

/// Writes the document with what only this machine and the container's own files can say.
fn document(
    directory: &Path,
    spec: &TaskSpec,
    (rootfs, asked): (&OwnedFd, &AskedFor<'_>),
    cookie: &str,
) -> Result<(), Fault> {
    let path = directory.join(DOCUMENT);
    let bad = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read(&path).map_err(|error| bad(&error))?;
    // It holds the environment, and nobody needs it here any more.
    std::fs::remove_file(&path).map_err(|error| bad(&error))?;
    let mut document: Value = serde_json::from_slice(&text).map_err(|error| bad(&error))?;
    if let Some(mounts) = document["mounts"].as_array_mut() {
        asked.arrange(rootfs, mounts)?;
    }
    let identity = spec.identity.clone().unwrap_or_default();
    let who = user::look_up_in(rootfs, &identity)?;
    if let Some(cwd) = document["process"]["cwd"].as_str() {
        check_cwd(rootfs, Path::new(cwd))?;
    }
    let document =
        filled(document, who, (open_files::usual(), cookie)).ok_or_else(|| bad(&"it has no process"))?;
    let text = serde_json::to_vec(&document).map_err(|error| bad(&error))?;
    let config = directory.join(STAGE).join(CONFIG);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(&config, flags, Mode::RUSR | Mode::WUSR).map_err(fault("make", &config))?;
    let written = std::io::Write::write_all(&mut std::fs::File::from(file), &text);
    written.map_err(|error| format!("write {}: {error}", config.display()))
}

/// The image must not choose a directory of the host that runc happens to hold open (CVE-2024-21626).
fn check_cwd(rootfs: &OwnedFd, cwd: &Path) -> Result<(), Fault> {
    let open = |resolve| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(rootfs, cwd, flags, Mode::empty(), ResolveFlags::IN_ROOT | resolve)
    };
    let of_kernel = ["/proc", "/dev/fd"].iter().any(|kernel| cwd.starts_with(kernel))
        || cwd.components().any(|part| part == Component::ParentDir);
    // A link that leads to nothing in the image may lead to something once all is mounted.
    let astray = open(ResolveFlags::NO_MAGICLINKS).is_err()
        && matches!(open(ResolveFlags::NO_SYMLINKS), Err(Errno::LOOP | Errno::NOTDIR));
    if of_kernel || astray {
        return Err(format!("the working directory {} leads out of the image", cwd.display()));
    }
    Ok(())
}

fn filled(mut document: Value, who: (u32, u32, Vec<u32>), (files, cookie): (Rlimit, &str)) -> Option<Value> {
    let process = document.get_mut("process")?;
    let user = process.as_object_mut()?.entry("user").or_insert_with(|| json!({})).as_object_mut()?;
    user.insert("uid".to_owned(), who.0.into());
    user.insert("gid".to_owned(), who.1.into());
    user.insert("additionalGids".to_owned(), who.2.into());
    // runc raises its own limit, and what is not said here its container has from it.
    let [soft, hard] = [files.current, files.maximum].map(|limit| limit.unwrap_or(u64::MAX));
    let limits = json!([{ "type": "RLIMIT_NOFILE", "soft": soft, "hard": hard }]);
    process.as_object_mut()?.insert("rlimits".to_owned(), limits);
    let env = process.get_mut("env")?.as_array_mut()?;
    let named = format!("{COOKIE}=");
    env.retain(|one| !one.as_str().is_some_and(|one| one.starts_with(&named)));
    env.push(format!("{named}{cookie}").into());
    Some(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_told_who_it_is_and_whose() {
        let files = || Rlimit { current: Some(1024), maximum: None };
        let before = json!({
            "process": { "user": { "umask": 18 }, "env": ["A=1", "WHARFLINE_TASK=somebody"], "args": ["x"] },
            "root": { "path": "/r" },
        });
        let after = filled(before, (1000, 100, vec![6]), (files(), "word")).unwrap();
        assert_eq!(
            after,
            json!({
                "process": {
                    "user": { "umask": 18, "uid": 1000, "gid": 100, "additionalGids": [6] },
                    "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 1024, "hard": u64::MAX }],
                    "env": ["A=1", "WHARFLINE_TASK=word"],
                    "args": ["x"],
                },
                "root": { "path": "/r" },
            })
        );
        for bad in [json!({}), json!({ "process": {} }), json!([]), json!({ "process": { "env": 1 } })] {
            assert_eq!(filled(bad.clone(), (0, 0, vec![]), (files(), "word")), None, "{bad}");
        }
    }
}
