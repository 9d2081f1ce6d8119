//! A container that systemd boots: this very test, run again inside of it as a service.
//!
//! Its root is an overlay of the machine's own with what `tools/fetch-systemd` brought on top, and its writes are in memory.
//! It has the machine's network and devices, and cgroups that may be written. When the service ends, so does the container.
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tells a test that it is inside.
const INSIDE: &str = "WHARFLINE_TEST_INSIDE";
/// The first process: mounts, then nspawn; all of it goes with this script's mount namespace.
const BOOT: &str = include_str!("systemd.sh");

/// Whether this is the run inside.
pub(crate) fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs one test of this binary again, inside; panics with all it said when it does not succeed there.
pub(crate) fn again_inside(test: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tree = source.join("target/tools/systemd");
    assert!(tree.is_dir(), "there is no systemd to test with: tools/fetch-systemd brings it");
    let base = tempfile::Builder::new().prefix("wflboot").tempdir_in("/var/tmp").unwrap();
    let program = std::env::current_exe().unwrap();
    let built = PathBuf::from(env!("CARGO_BIN_EXE_wharfline")).parent().unwrap().to_owned();
    let script: [&OsStr; 4] = ["-c".as_ref(), BOOT.as_ref(), "boot".as_ref(), base.path().as_os_str()];
    let mut boot = Command::new("unshare");
    boot.args(["--mount", "--propagation", "private", "/bin/sh"]).args(script);
    boot.args([tree.as_os_str(), source.as_os_str(), built.as_os_str(), program.as_os_str()]);
    // While this end is open: whatever ends this test ends the container.
    let (input, lives) = std::io::pipe().unwrap();
    let settings = || std::fs::read_to_string("/proc/sys/fs/protected_regular").unwrap();
    let before = settings();
    let booted = boot.args([test, INSIDE]).stdin(input).output().unwrap();
    drop(lives);
    assert_eq!(settings(), before, "it changed what is the machine's");
    let read = |name: &str| std::fs::read_to_string(base.path().join(name)).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = read("said");
    // Once for each run inside: a container that did not get so far is told apart.
    assert!(
        said.contains("test result: "),
        "systemd did not boot here, or did not get to the test:\n{}\n{}\n{said}",
        text(&booted.stdout),
        text(&booted.stderr)
    );
    assert!(
        booted.status.success() && said.contains("test result: ok. 1 passed"),
        "inside: {}\n{said}",
        booted.status
    );
}
