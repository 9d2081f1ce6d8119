//! What every container has, as tables.

/// The version of the specification that the document is written in.
pub(super) const VERSION: &str = "1.0.2";

/// Where programs are looked for, unless the image or the task says it.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Others may read what is made, and only its owner may write it.
pub(super) const UMASK: u32 = 0o022;

/// The signal that asks a container to end whose image names none: SIGTERM.
pub(super) const STOP_SIGNAL: i32 = 15;

/// Microseconds of the period that a limit of CPU is a part of.
pub(super) const CPU_PERIOD: u64 = 100_000;

/// What root has in a container; the same as everywhere else.
pub(super) const CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// What a plugin with a node service has beyond that: it mounts.
pub(super) const NODE_PLUGIN: &str = "SYS_ADMIN";

/// A mount that every container has: destination, file system, source, options.
pub(super) struct Fixed(
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) &'static [&'static str],
);

/// The kernel's view of processes.
pub(super) const PROC: Fixed = Fixed("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]);

/// Devices of its own.
pub(super) const SMALL_DEV: &[Fixed] = &[
    Fixed("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
    Fixed(
        "/dev/pts",
        "devpts",
        "devpts",
        &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
    ),
    Fixed("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    Fixed("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
];

/// The node's devices: a slave, so that those that come are seen, and nothing that is mounted there reaches the node.
pub(super) const HOST_DEV: &[Fixed] = &[Fixed("/dev", "bind", "/dev", &["rbind", "rslave"])];

/// The kernel's view of hardware.
pub(super) const SYS: Fixed = Fixed("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev"]);

/// Where programs look for their limits.
pub(super) const CGROUP: Fixed =
    Fixed("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]);

/// How a file of the node is lent for reading.
pub(super) const LENT: &[&str] = &["bind", "rprivate", "nosuid", "nodev", "ro"];

/// Where the node says whom it asks for names.
pub(super) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Names that the node knows by itself.
pub(super) const HOSTS: &str = "/etc/hosts";

/// What is hidden: it tells of other containers, or of secrets of the machine.
pub(super) const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// What cannot be written: it is the machine's.
pub(super) const READ_ONLY: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
