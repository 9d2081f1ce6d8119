//! What containerd calls as runc for a task of ours: it makes the container's stage, and becomes `runc create`.
//!
//! It is told nothing but the path that it is called by, in a directory of this one container's, beside which a link leads to
//! the task's:
//! ```text
//! ROOT/ID.task             to the task's directory: made first and removed last, so that whoever is killed in between leaves
//!                          nothing of which nobody knows whose it is
//! ROOT/ID/wharfline-runc   first to the client's program, which is this one; then to runc itself
//! ```
//! They stay until containerd has forgotten the container, for it calls runc by that path until then; its removal removes
//! them (`sys::real::containerd`), and the next start those that containerd was never told of. The volumes and the output it
//! takes from the client ([`super::through`]) whose number and time of birth the shim has recorded; if that one does not live
//! any more, the start is over and nothing is made.
use crate::sys::ffi::{self, Standard};
use crate::sys::process::ContainerSpec;
use crate::sys::shim::launch::strings;
use crate::sys::shim::record::{self, COOKIE, Order, Read, SPEC, STATE};
use crate::sys::shim::stage::{self, STAGE};
use crate::sys::shim::{ordinary, through};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use serde::de::DeserializeOwned;
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What containerd calls as runc.
pub(crate) const LINK: &str = "wharfline-runc";
/// What the name of the way to the task ends with, behind the container's.
const TASK: &str = ".task";
/// What is said when nobody wants the container any more.
const OVER: &str = "the start of this container was given up";

/// Makes what containerd calls as runc for a container; its path.
pub(super) fn place(container: &ContainerSpec, directory: &Path) -> Result<PathBuf, String> {
    let own = container.root.join(&container.id);
    let made = || {
        let private = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
        private(&container.root)?;
        symlink(directory, way(&own))?;
        private(&own)?;
        // Ourselves: the stand-in puts runc there before it does anything else.
        symlink(program(), own.join(LINK))
    };
    made().map_err(|error| format!("{}: {error}", own.display()))?;
    Ok(called_by(container))
}

/// What containerd calls as runc for a container.
pub(crate) fn called_by(container: &ContainerSpec) -> PathBuf {
    container.root.join(&container.id).join(LINK)
}

/// The way to the task of the container that is called by something in this directory.
fn way(own: &Path) -> PathBuf {
    let name = own.file_name().unwrap_or_default().to_string_lossy();
    own.with_file_name(format!("{name}{TASK}"))
}

/// Removes the directory in which a container is called by something, and the way to its task.
pub(crate) fn remove(own: &Path) {
    if crate::sys::remove::tree(own).is_ok() {
        std::fs::remove_file(way(own)).ok();
    }
}

/// The containers that are called by something in here: where each is called, and the directory of its task.
fn all(root: &Path) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.strip_suffix(TASK)?.to_owned();
        Some((entry.path().with_file_name(id), std::fs::read_link(entry.path()).ok()?))
    })
}

/// The directories of the tasks whose containers are called by something in here.
pub(crate) fn called_for_tasks(root: &Path) -> Vec<PathBuf> {
    all(root).map(|(_, task)| task).collect()
}

/// Removes what the containers of a task were called by, of which containerd has none any more; their names.
pub(crate) fn clear(root: &Path, directory: &Path) -> Vec<String> {
    let its = all(root).filter(|(_, task)| task == directory);
    let cleared = its.map(|(own, _)| {
        remove(&own);
        own.file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    cleared.collect()
}

/// Where this program is. A path of the machine, if it still leads here: a number under /proc is another's once we are gone,
/// and that other's program would be called in our place. Of a program that was replaced meanwhile only the number leads here.
fn program() -> PathBuf {
    let own = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let same = |path: &PathBuf| {
        let (there, here) = (std::fs::metadata(path).ok(), std::fs::metadata(&own).ok());
        there.zip(here).is_some_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino()))
    };
    std::fs::read_link(&own).ok().filter(same).unwrap_or(own)
}

/// Has whatever comes next be for runc itself, which needs none of us.
fn make_way(link: &Path, runc: &Path) -> Result<(), String> {
    let aside = link.with_file_name("runc");
    let made = symlink(runc, &aside).and_then(|()| std::fs::rename(&aside, link));
    made.map_err(|error| format!("{}: {error}", link.display()))
}

/// The path by which this program is called as runc, if it is.
pub(super) fn called_for(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    let stands_in = path.is_absolute() && path.file_name() == Some(OsStr::new(LINK));
    stands_in.then(|| path.to_owned())
}

/// Does what runc is asked to do; returns only if that fails.
pub(super) fn run(link: &Path, arguments: &[OsString]) -> ExitCode {
    let arguments: Vec<String> =
        arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let reason = become_runc(link, &arguments);
    // There containerd looks for runc's own words.
    if let Some(log) = after(&arguments, "--log") {
        let line = serde_json::json!({ "level": "error", "msg": reason });
        let file = std::fs::OpenOptions::new().append(true).create(true).open(log);
        file.and_then(|mut file| writeln!(file, "{line}")).ok();
    }
    ExitCode::FAILURE
}

fn become_runc(link: &Path, arguments: &[String]) -> String {
    match prepared(link, arguments) {
        Ok((argv, env)) => {
            let runc = argv.first().cloned().unwrap_or_default();
            let (Ok(argv), Ok(env)) = (strings(argv), strings(env)) else {
                return "an argument or a variable holds a zero byte".to_owned();
            };
            format!("run {runc}: {}", ffi::execveat(CWD, &argv[0], &argv, &env))
        }
        Err(reason) => reason,
    }
}

/// The command line of runc and its environment, when all is prepared for it.
fn prepared(link: &Path, arguments: &[String]) -> Result<(Vec<String>, Vec<String>), String> {
    let task = way(link.parent().ok_or("it is called by no path")?);
    let directory = std::fs::read_link(&task).map_err(|error| format!("{}: {error}", task.display()))?;
    let directory = directory.as_path();
    let order: Order = read(directory, SPEC)?;
    let container = order.task.container.as_ref().ok_or("it is no container")?;
    let runc = container.runc.display().to_string();
    let mut argv: Vec<String> = [runc].into_iter().chain(arguments.iter().cloned()).collect();
    let mut env: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| {
            Some(format!("{}={}", name.into_string().ok()?, value.into_string().ok()?))
        })
        .collect();
    if !arguments.iter().any(|argument| argument == through::CREATE) {
        return Ok((argv, env));
    }
    make_way(link, &container.runc)?;
    let (client, clones) = handed(directory, &order)?;
    stage::prepare(directory, &order.task, container, (&order.cookie, clones))?;
    // From here on the cookie tells whose this is; before, how it is called (`sys::real::leftovers`).
    if !through::lives(&client) {
        return Err(OVER.to_owned());
    }
    // Whatever containerd itself was given: the container begins as runc is.
    ordinary::become_ordinary();
    let bundle = argv.iter().position(|argument| argument == "--bundle").map(|at| at + 1);
    let bundle = bundle.and_then(|at| argv.get_mut(at)).ok_or("it was called without a bundle")?;
    *bundle = directory.join(STAGE).display().to_string();
    env.push(format!("{COOKIE}={}", order.cookie));
    Ok((argv, env))
}

/// The client, and the volumes from it; its output becomes ours.
fn handed(directory: &Path, order: &Order) -> Result<(OwnedFd, Vec<OwnedFd>), String> {
    let state: crate::sys::process::TaskState = read(directory, STATE)?;
    let client = through::client(state.task).map_err(|error| format!("look for its client: {error}"))?;
    let client = client.filter(|_| state.cookie == order.cookie).ok_or(OVER)?;
    let open = |fd: i32, flags| {
        let path = format!("/proc/{}/fd/{fd}", state.task.pid);
        let opened = rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|errno| format!("{path}: {}", std::io::Error::from(errno)))
    };
    let clones = order.task.mounts.iter().map(|mount| open(mount.fd, OFlags::PATH));
    let clones = clones.collect::<Result<Vec<_>, _>>()?;
    let (output, errors) = (open(1, OFlags::WRONLY)?, open(2, OFlags::WRONLY)?);
    // It lived all the while, so these were its own.
    if !through::lives(&client) {
        return Err(OVER.to_owned());
    }
    for (end, standard) in [(&output, Standard::Output), (&errors, Standard::Error)] {
        ffi::redirect(end, standard).map_err(|error| format!("take the output: {error}"))?;
    }
    Ok((client, clones))
}

fn read<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<T, String> {
    let path = directory.join(name);
    match record::read(&path) {
        Ok(Read::Found(record)) => Ok(record),
        Ok(Read::Absent) => Err(format!("{}: it is not there", path.display())),
        Ok(Read::Bad(error)) => Err(format!("{}: {error}", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn after<'a>(arguments: &'a [String], name: &str) -> Option<&'a String> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_in_where_it_is_called_by_its_own_path() {
        for (name, is) in [
            ("/run/wharfline/0f/runc/a.b.main-0f/wharfline-runc", true),
            ("wharfline-runc", false),
            ("./wharfline-runc", false),
            ("/usr/bin/wharfline", false),
            ("", false),
        ] {
            assert_eq!(called_for(OsStr::new(name)), is.then(|| PathBuf::from(name)), "{name}");
        }
    }

    /// Whose it is stands before there is anything, and until there is nothing any more.
    #[test]
    fn whoever_is_killed_in_between_what_is_left_is_the_tasks() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("runc");
        let (task, other) = (directory.path().join("a.main"), directory.path().join("b.main"));
        let container = |id: &str| ContainerSpec {
            runc: "/usr/sbin/runc".into(),
            root: root.clone(),
            id: id.to_owned(),
            layers: Vec::new(),
            shares: Vec::new(),
            stop_signal: libc::SIGTERM,
            through: None,
            document: String::new(),
        };
        let left = || {
            let mut all: Vec<_> = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
            all.sort();
            all
        };
        place(&container("x.b.main-03"), &other).unwrap();
        // What runc remembers of one that containerd has no part in.
        std::fs::create_dir(root.join("x.c.main-04")).unwrap();
        let others = ["x.b.main-03", "x.b.main-03.task", "x.c.main-04"];
        let own = root.join("x.a.main-01");
        let stopped: [&dyn Fn(); 4] = [
            // Nothing can be made at its place.
            &|| {
                std::fs::write(&own, "").unwrap();
                place(&container("x.a.main-01"), &task).unwrap_err();
            },
            &|| {
                std::fs::create_dir_all(own.join(LINK)).unwrap();
                place(&container("x.a.main-01"), &task).unwrap_err();
            },
            &|| drop(place(&container("x.a.main-01"), &task).unwrap()),
            // Its removal was broken off.
            &|| {
                place(&container("x.a.main-01"), &task).unwrap();
                std::fs::remove_file(own.join(LINK)).unwrap();
                std::fs::remove_dir(&own).unwrap();
            },
        ];
        for (step, stop) in stopped.iter().enumerate() {
            stop();
            assert!(called_for_tasks(&root).contains(&task), "{step}");
            assert_eq!(clear(&root, &task), ["x.a.main-01"], "{step}");
            assert_eq!(left(), others, "{step}");
        }
        assert_eq!(called_for_tasks(&root), [other]);
        assert_eq!(std::fs::read_link(called_by(&container("x.b.main-03"))).unwrap(), program());
    }
}
