//! The kernel's capabilities, by the names that manifests use.
use std::fmt;

/// The names in the kernel's order: the place of each is its number in `linux/capability.h`.
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

/// The word for all capabilities in `add` and `drop`.
pub const ALL: &str = "ALL";

/// One capability of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Capability(u8);

impl Capability {
    /// By its name without `CAP_`, such as `NET_ADMIN`.
    pub fn named(name: &str) -> Option<Self> {
        (0..).zip(NAMES).find(|(_, known)| *known == name).map(|(number, _)| Self(number))
    }

    /// By the kernel's number; none for one that is newer than this table.
    pub fn numbered(number: u8) -> Option<Self> {
        (usize::from(number) < NAMES.len()).then_some(Self(number))
    }

    /// The kernel's number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The name without `CAP_`.
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }

    /// All of them, by number.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).zip(NAMES).map(|(number, _)| Self(number))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_the_kernels() {
        for (name, number) in [
            ("CHOWN", 0),
            ("SETPCAP", 8),
            ("NET_ADMIN", 12),
            ("SYS_CHROOT", 18),
            ("SYS_ADMIN", 21),
            ("MKNOD", 27),
            ("SETFCAP", 31),
            ("SYSLOG", 34),
            ("BPF", 39),
            ("CHECKPOINT_RESTORE", 40),
        ] {
            assert_eq!(Capability::named(name).map(Capability::number), Some(number), "{name}");
            assert_eq!(Capability::numbered(number).map(Capability::name), Some(name), "{number}");
        }
        for none in ["", "ALL", "CAP_CHOWN", "chown", "SYS"] {
            assert_eq!(Capability::named(none), None, "{none}");
        }
        assert_eq!(Capability::numbered(41), None);
        assert!(Capability::all().all(|one| Capability::named(one.name()) == Some(one)));
    }
}
