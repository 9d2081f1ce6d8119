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
//!   config.json     the document, with the numbers of the user and the cookie
//! ```
//! Runs between fork and exec in a process with one thread.
use crate::sys::ffi::{self, MountAttributes, mount_setattr};
use crate::sys::process::{ContainerSpec, TaskSpec};
use crate::sys::real::mounts;
use crate::sys::shim::record::COOKIE;
use crate::sys::shim::root::{Fault, attach_volume, fault, handle, make_file, openat, tmpfs};
use crate::sys::shim::user;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags};
use serde_json::{Value, json};
use std::ffi::{CString, OsStr};
use std::path::Path;

/// The stage, in a task's directory.
pub(crate) const STAGE: &str = "stage";
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
    let shares = container.shares.iter().map(|path| copy(path).map_err(fault("share", path)));
    let shares = shares.collect::<Result<Vec<_>, _>>()?;
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
    for (index, (path, share)) in container.shares.iter().zip(&shares).enumerate() {
        let place = make(&shared, &index.to_string()).map_err(&step)?;
        mounts::attach(share, place).map_err(fault("share", path))?;
    }
    document(directory, spec, &rootfs, cookie)
}

/// A copy of a directory of the host with all that is mounted in it, which stays connected with the host's.
fn copy(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    rustix::mount::open_tree(CWD, path, flags)
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
    if let Some(topmost) = container.layers.last() {
        look_like(&writes.join(UPPER), topmost).map_err(&step)?;
    }
    let lower: Vec<String> = (0..container.layers.len()).map(|index| index.to_string()).collect();
    let options = format!("lowerdir={},upperdir={UPPER},workdir={WORK}", lower.join(":"));
    let options = CString::new(options).map_err(|_| "a layer's name holds a zero byte".to_owned())?;
    rustix::process::fchdir(&links).map_err(&step)?;
    let flags = MountFlags::empty();
    rustix::mount::mount("overlay", "../rootfs", "overlay", flags, options.as_c_str()).map_err(&step)?;
    rustix::process::chdir("/").map_err(step)
}

/// The root of what is written covers that of the layers: closed to others there, it would be closed to every user.
fn look_like(upper: &Path, layer: &Path) -> Result<(), Errno> {
    let seen = rustix::fs::statat(CWD, layer, AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chown(upper, Some(Uid::from_raw(seen.st_uid)), Some(Gid::from_raw(seen.st_gid)))?;
    rustix::fs::chmod(upper, Mode::from_raw_mode(seen.st_mode & 0o7777))
}

/// Writes the document with what only this machine and the container's own files can say.
fn document(directory: &Path, spec: &TaskSpec, rootfs: &OwnedFd, cookie: &str) -> Result<(), Fault> {
    let path = directory.join(DOCUMENT);
    let bad = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read(&path).map_err(|error| bad(&error))?;
    let document = serde_json::from_slice(&text).map_err(|error| bad(&error))?;
    let identity = spec.identity.clone().unwrap_or_default();
    let who = user::look_up_in(rootfs, &identity)?;
    let document = filled(document, who, cookie).ok_or_else(|| bad(&"it has no process"))?;
    let text = serde_json::to_vec(&document).map_err(|error| bad(&error))?;
    let config = directory.join(STAGE).join(CONFIG);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(&config, flags, Mode::RUSR | Mode::WUSR).map_err(fault("make", &config))?;
    let written = std::io::Write::write_all(&mut std::fs::File::from(file), &text);
    written.map_err(|error| format!("write {}: {error}", config.display()))
}

fn filled(mut document: Value, who: (u32, u32, Vec<u32>), cookie: &str) -> Option<Value> {
    let process = document.get_mut("process")?;
    let user = process.as_object_mut()?.entry("user").or_insert_with(|| json!({})).as_object_mut()?;
    user.insert("uid".to_owned(), who.0.into());
    user.insert("gid".to_owned(), who.1.into());
    user.insert("additionalGids".to_owned(), who.2.into());
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
        let before = json!({
            "process": { "user": { "umask": 18 }, "env": ["A=1", "WHARFLINE_TASK=somebody"], "args": ["x"] },
            "root": { "path": "/r" },
        });
        let after = filled(before, (1000, 100, vec![6]), "word").unwrap();
        assert_eq!(
            after,
            json!({
                "process": {
                    "user": { "umask": 18, "uid": 1000, "gid": 100, "additionalGids": [6] },
                    "env": ["A=1", "WHARFLINE_TASK=word"],
                    "args": ["x"],
                },
                "root": { "path": "/r" },
            })
        );
        for bad in [json!({}), json!({ "process": {} }), json!([]), json!({ "process": { "env": 1 } })] {
            assert_eq!(filled(bad.clone(), (0, 0, vec![]), "word"), None, "{bad}");
        }
    }
}
