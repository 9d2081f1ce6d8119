//! Who was killed for want of memory, where no cgroup counts it: the kernel's log says.
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

/// The kernel's log, a record for each read.
const LOG: &str = "/dev/kmsg";
/// The longest record that the kernel gives.
const RECORD: usize = 8192;

/// Whether the log says that this process was killed for want of memory. A log that cannot be read says nothing of it.
pub(super) fn was_killed(pid: i32) -> bool {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(LOG);
    let Ok(mut log) = opened else { return false };
    let mut record = vec![0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(0) => return false,
            Ok(length) => {
                if tells_of(&String::from_utf8_lossy(record.get(..length).unwrap_or_default()), pid) {
                    return true;
                }
            }
            // Records were overwritten before they were read: the next one is there.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
    }
}

/// Whether a record tells of the end of this process.
fn tells_of(record: &str, pid: i32) -> bool {
    record.contains(&format!("ut of memory: Killed process {pid} ("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_who_was_killed() {
        let of = |text: &str| tells_of(text, 123);
        for (record, expected) in [
            ("3,1,5,-;Out of memory: Killed process 123 (dd) total-vm:1kB, anon-rss:1kB", true),
            ("3,1,5,-;Memory cgroup out of memory: Killed process 123 (dd) total-vm:1kB", true),
            ("3,1,5,-;Memory cgroup out of memory: Killed process 1234 (dd) total-vm:1kB", false),
            ("3,1,5,-;Tasks state (memory values in pages): 123 (dd)", false),
            ("", false),
        ] {
            assert_eq!(of(record), expected, "{record}");
        }
    }
}
