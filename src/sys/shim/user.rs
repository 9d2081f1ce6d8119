//! Who a task's process is: user, groups, capabilities.
//!
//! Names are those of `/etc/passwd` and `/etc/group` of the machine, read as files: users that only a name service
//! (LDAP, sssd) knows have to be given by number, with the group. Runs in the task's process between fork and exec;
//! that process has one thread, so what the kernel keeps for each thread is the process's.
use crate::sys::process::Identity;
use rustix::fd::OwnedFd;
use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// The names of capabilities by number, without `CAP_`.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// In place of a name: all of them.
const ALL: &str = "ALL";

/// Why a task cannot be who it should be: one sentence for a person.
type Fault = String;

/// An identity in the kernel's numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Who {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    capabilities: CapabilitySet,
}

/// What is said of a user that no file knows and that has no group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stranger {
    /// That the group is missing: the number would have all that root's group has.
    Refused,
    /// Nothing: it has group 0, as with every engine of containers.
    OfRootsGroup,
}

/// The longest file of names that a container may bring.
const LONGEST: u64 = 1 << 20;

/// Who a container's process is, by number, from the files of its own root.
pub(crate) fn look_up_in(root: &OwnedFd, wanted: &Identity) -> Result<(u32, u32, Vec<u32>), Fault> {
    // Who is known by numbers alone needs no file, whatever lies in its place.
    let (user, group) = wanted.user.split_once(':').unwrap_or((&wanted.user, "0"));
    let mut names = [user, group].into_iter().chain(wanted.groups.iter().map(String::as_str));
    let by_number = names.all(|name| name.is_empty() || number(name).is_some());
    let read = |file: &str| match read_in(root, file) {
        Err(_) if by_number => Ok(String::new()),
        other => other.map_err(|error| format!("read {file} of the container: {error}")),
    };
    numbers(wanted, &read(PASSWD)?, &read(GROUP)?, Stranger::OfRootsGroup)
}

/// A file of a root that somebody else made; empty when there is none.
fn read_in(root: &OwnedFd, file: &str) -> io::Result<String> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // Not to wait for the other end of a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = match rustix::fs::openat2(root, file, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(String::new()),
        other => File::from(other?),
    };
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    match opened.take(LONGEST + 1).read_to_end(&mut bytes)? {
        length if length as u64 > LONGEST => Err(io::Error::other("it is longer than 1 MiB")),
        _ => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Looks up who a task shall be, on this machine and with what this process may.
pub(crate) fn look_up(wanted: &Identity) -> Result<Who, Fault> {
    let (mut passwd, mut group) = (String::new(), String::new());
    for (file, text) in [(PASSWD, &mut passwd), (GROUP, &mut group)] {
        let bytes = std::fs::read(file);
        // A machine without the file has no names.
        let bytes = bytes.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(vec![]) } else { Err(e) });
        *text = String::from_utf8_lossy(&bytes.map_err(|e| format!("read {file}: {e}"))?).into_owned();
    }
    let (uid, gid, groups) = numbers(wanted, &passwd, &group, Stranger::Refused)?;
    let ours = ours().map_err(|errno| format!("look at capabilities: {}", io::Error::from(errno)))?;
    Ok(Who { uid, gid, groups, capabilities: capabilities(wanted, uid, ours)? })
}

/// What this process has and can hand on.
fn ours() -> Result<CapabilitySet, Errno> {
    Ok(thread::capabilities(None)?.permitted & bounding()?)
}

fn each(set: CapabilitySet) -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)).filter(move |one| set.contains(*one))
}

fn bounding() -> Result<CapabilitySet, Errno> {
    let mut found = CapabilitySet::empty();
    for one in each(CapabilitySet::from_bits_retain(u64::MAX)) {
        match thread::capability_is_in_bounding_set(one) {
            Ok(true) => found |= one,
            Ok(false) => {}
            Err(Errno::INVAL) => break, // beyond the last one that this kernel knows
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

/// User, group and further groups by number.
fn numbers(
    wanted: &Identity,
    passwd: &str,
    group: &str,
    stranger: Stranger,
) -> Result<(u32, u32, Vec<u32>), Fault> {
    let (user, own_group) = match wanted.user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (wanted.user.as_str(), None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let known = match number(user) {
        Some(number) => people(passwd).find(|person| person.uid == number),
        None => Some(
            people(passwd)
                .find(|person| person.name == user)
                .ok_or_else(|| format!("user {user} is not in {PASSWD}"))?,
        ),
    };
    let uid = known.map(|person| person.uid).or(number(user)).unwrap_or(0);
    let mut further = BTreeSet::new();
    let gid = match (own_group, known) {
        (Some(name), _) => group_number(name, group)?,
        (None, Some(person)) => {
            let of = |members: &str| members.split(',').any(|member| member == person.name);
            further.extend(groups(group).filter(|(_, _, members)| of(members)).map(|(_, gid, _)| gid));
            person.gid
        }
        (None, None) if uid == 0 || stranger == Stranger::OfRootsGroup => 0,
        (None, None) => {
            return Err(format!("user {uid} is not in {PASSWD}: say its group too, as {uid}:GROUP"));
        }
    };
    for name in &wanted.groups {
        further.insert(group_number(name, group)?);
    }
    further.remove(&gid);
    Ok((uid, gid, further.into_iter().collect()))
}

#[derive(Clone, Copy)]
struct Person<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

/// `NAME:PASSWORD:UID:GID:…`; other lines are none.
fn people(passwd: &str) -> impl Iterator<Item = Person<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some(Person { name, uid: number(uid)?, gid: number(gid)? })
    })
}

/// `NAME:PASSWORD:GID:MEMBER,MEMBER`; other lines are none.
fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, gid, members) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some((name, number(gid)?, members))
    })
}

fn group_number(name: &str, group: &str) -> Result<u32, Fault> {
    let named = || groups(group).find(|(known, _, _)| *known == name).map(|(_, gid, _)| gid);
    number(name).or_else(named).ok_or_else(|| format!("group {name} is not in {GROUP}"))
}

/// The largest one means none to the kernel.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&number| digits && number != u32::MAX)
}

/// Root begins with all that there is, others with none; then `drop`, then `add`.
fn capabilities(wanted: &Identity, uid: u32, ours: CapabilitySet) -> Result<CapabilitySet, Fault> {
    let mut set = if uid == 0 { ours } else { CapabilitySet::empty() };
    for name in &wanted.drop {
        set.remove(named(name, ours)?);
    }
    for name in &wanted.add {
        let added = named(name, ours)?;
        if !ours.contains(added) {
            return Err(format!("capability {name} is asked for, and this machine does not give it"));
        }
        set |= added;
    }
    Ok(set)
}

fn named(name: &str, all: CapabilitySet) -> Result<CapabilitySet, Fault> {
    if name == ALL {
        return Ok(all);
    }
    let number = NAMES.iter().position(|known| *known == name);
    let number = number.ok_or_else(|| format!("{name} is no capability; they are named without CAP_"))?;
    Ok(CapabilitySet::from_bits_retain(1 << number))
}

/// Makes this process be that. Of what it had nothing is left, so it is done last.
///
/// Groups and the bounding set first, while it may; the user in between, with its capabilities kept; those that
/// remain last. Another user than root hands its own on to what it runs, as ambient ones: else they were lost.
pub(crate) fn take_on(who: &Who) -> Result<(), Fault> {
    let step = |action: &'static str| move |errno: Errno| format!("{action}: {}", io::Error::from(errno));
    let (uid, gid) = (Uid::from_raw(who.uid), Gid::from_raw(who.gid));
    let groups: Vec<Gid> = who.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    thread::set_thread_groups(&groups).map_err(step("set the groups"))?;
    thread::set_thread_res_gid(gid, gid, gid).map_err(step("set the group"))?;
    let refused = step("bound the capabilities");
    for one in each(bounding().map_err(&refused)? - who.capabilities) {
        thread::remove_capability_from_bounding_set(one).map_err(&refused)?;
    }
    thread::set_keep_capabilities(true).map_err(step("keep the capabilities"))?;
    thread::set_thread_res_uid(uid, uid, uid).map_err(step("set the user"))?;
    let handed_on = if uid.is_root() { CapabilitySet::empty() } else { who.capabilities };
    let sets =
        CapabilitySets { effective: who.capabilities, permitted: who.capabilities, inheritable: handed_on };
    thread::set_capabilities(None, sets).map_err(step("set the capabilities"))?;
    let refused = step("hand the capabilities on");
    thread::clear_ambient_capability_set().map_err(&refused)?;
    each(handed_on)
        .try_for_each(|one| thread::configure_capability_in_ambient_set(one, true))
        .map_err(refused)
}

impl Who {
    /// The owner that its output needs, so that it can be opened once more by its name in `/dev`.
    pub(crate) fn uid(&self) -> Uid {
        Uid::from_raw(self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEOPLE: &str = "# people\nroot:x:0:0:root:/root:/bin/sh\n+::::::\napp:x:1000:100::/:/bin/sh\nshort:x:7\nbig:x:4294967295:1:::\n";
    const GROUPS: &str = "root:x:0:\nusers:x:100:app\ndisk:x:6:app,root\nkvm:x:78:other,app2\n";

    fn identity(user: &str, groups: &[&str]) -> Identity {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        Identity { user: user.to_owned(), groups, ..Identity::default() }
    }

    #[test]
    fn names_and_numbers_become_numbers() {
        for (user, further, uid, gid, groups) in [
            ("", &[][..], 0, 0, &[6][..]),
            ("root", &[], 0, 0, &[6]),
            ("root:root", &["kvm", "78"], 0, 0, &[78]),
            ("app", &[], 1000, 100, &[6]),
            ("1000", &["kvm", "9"], 1000, 100, &[6, 9, 78]),
            ("app:disk", &[], 1000, 6, &[]),
            ("4711:12", &["disk"], 4711, 12, &[6]),
        ] {
            let found = numbers(&identity(user, further), PEOPLE, GROUPS, Stranger::Refused);
            assert_eq!(found, Ok((uid, gid, groups.to_vec())), "{user}");
        }
        assert_eq!(
            numbers(&identity("", &[]), "", "", Stranger::Refused),
            Ok((0, 0, vec![])),
            "root needs no file"
        );
    }

    #[test]
    fn who_is_not_known_is_said() {
        for (user, groups, expected) in [
            ("nobody", &[][..], "user nobody is not in /etc/passwd"),
            ("4711", &[], "user 4711 is not in /etc/passwd: say its group too, as 4711:GROUP"),
            ("app:none", &[], "group none is not in /etc/group"),
            ("app", &["none"], "group none is not in /etc/group"),
            ("4294967295:1", &[], "user 4294967295 is not in /etc/passwd"),
            ("app:-1", &[], "group -1 is not in /etc/group"),
            ("short", &[], "user short is not in /etc/passwd"),
        ] {
            let found = numbers(&identity(user, groups), PEOPLE, GROUPS, Stranger::Refused);
            assert_eq!(found, Err(expected.to_owned()), "{user}");
        }
        let stranger = numbers(&identity("4711", &["disk"]), PEOPLE, GROUPS, Stranger::OfRootsGroup);
        assert_eq!(stranger, Ok((4711, 0, vec![6])), "of a container");
    }

    #[test]
    fn the_files_of_a_container_are_read_within_its_root() {
        let directory = tempfile::tempdir().unwrap();
        let root = rustix::fs::open(directory.path(), OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(look_up_in(&root, &identity("7", &[])), Ok((7, 0, vec![])), "no files");
        let etc = directory.path().join("etc");
        std::fs::create_dir(&etc).unwrap();
        std::fs::write(etc.join("names"), PEOPLE).unwrap();
        std::os::unix::fs::symlink("/etc/names", etc.join("passwd")).unwrap();
        assert_eq!(look_up_in(&root, &identity("app", &[])), Ok((1000, 100, vec![])));
        let fault = || look_up_in(&root, &identity("app", &[])).unwrap_err();
        std::fs::write(etc.join("names"), vec![b'a'; (1 << 20) + 1]).unwrap();
        assert!(fault().contains("longer"), "{}", fault());
        std::fs::remove_file(etc.join("names")).unwrap();
        std::fs::create_dir(etc.join("names")).unwrap();
        assert!(fault().contains("no file"), "{}", fault());
    }

    #[test]
    fn root_begins_with_all_others_with_none_and_add_comes_after_drop() {
        let ours = CapabilitySet::CHOWN | CapabilitySet::NET_BIND_SERVICE | CapabilitySet::KILL;
        let none = CapabilitySet::empty();
        for (uid, add, drop, expected) in [
            (0, &[][..], &[][..], ours),
            (7, &[], &[], none),
            (0, &[], &["KILL", "SYS_BOOT"], CapabilitySet::CHOWN | CapabilitySet::NET_BIND_SERVICE),
            (0, &["KILL"], &["ALL"], CapabilitySet::KILL),
            (7, &["NET_BIND_SERVICE"], &["ALL"], CapabilitySet::NET_BIND_SERVICE),
            (7, &["ALL"], &[], ours),
        ] {
            let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            let wanted = Identity { add: list(add), drop: list(drop), ..Identity::default() };
            assert_eq!(capabilities(&wanted, uid, ours), Ok(expected), "{uid} {add:?} {drop:?}");
        }
        for (add, expected) in [("SYS_BOOT", "this machine does not give it"), ("CAP_KILL", "no capability")]
        {
            let wanted = Identity { add: vec![add.to_owned()], ..Identity::default() };
            let fault = capabilities(&wanted, 0, ours).unwrap_err();
            assert!(fault.contains(add) && fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn the_names_are_the_kernels() {
        for (name, expected) in [
            ("CHOWN", CapabilitySet::CHOWN),
            ("SYS_ADMIN", CapabilitySet::SYS_ADMIN),
            ("MKNOD", CapabilitySet::MKNOD),
            ("SETFCAP", CapabilitySet::SETFCAP),
            ("SYSLOG", CapabilitySet::SYSLOG),
            ("CHECKPOINT_RESTORE", CapabilitySet::CHECKPOINT_RESTORE),
        ] {
            assert_eq!(named(name, CapabilitySet::empty()), Ok(expected), "{name}");
        }
    }
}
