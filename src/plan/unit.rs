//! What the unit of a task is called: the same in every life of the daemon, and no other task's on the machine.
use std::fmt::Write as _;

/// The slice of all tasks, which a person may limit as a whole.
pub const SLICE: &str = "wharfline.slice";
/// What a `systemctl stop` leaves a shim beyond the task's own grace, in milliseconds: to kill, to be told, to write it down.
const BEYOND_GRACE: u64 = 10_000;

/// The name of a task's unit. `node` is a word that tells this node from others on the machine.
pub fn name(node: &str, allocation: &str, task: &str) -> String {
    let mut name = "wharfline".to_owned();
    for part in [node, allocation, task] {
        name.push('-');
        for byte in part.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b':' | b'-' => name.push(byte.into()),
                // As systemd itself writes what a name cannot have.
                other => _ = write!(name, "\\x{other:02x}"),
            }
        }
    }
    name + ".scope"
}

/// What people are shown of it; `allocation` is `NAMESPACE/NAME`.
pub fn description(node: &str, allocation: &str, task: &str) -> String {
    let line = format!("Wharfline task {task} of allocation {allocation} on node {node}");
    line.chars().filter(|letter| !letter.is_control()).collect()
}

/// From a `systemctl stop` to the SIGKILL of systemd's, in milliseconds: never before the shim's own.
pub fn stop_after_ms(grace_ms: u64) -> u64 {
    grace_ms.saturating_add(BEYOND_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_systemd_takes_and_each_tasks_own() {
        for (node, uid, task, wanted) in [
            ("0a1b2c3d", "9f1c-4e", "main", "wharfline-0a1b2c3d-9f1c-4e-main.scope"),
            (".tmpAb9", "u", "t", "wharfline-.tmpAb9-u-t.scope"),
            ("a b/c@d", "é", "", "wharfline-a\\x20b\\x2fc\\x40d-\\xc3\\xa9-.scope"),
        ] {
            assert_eq!(name(node, uid, task), wanted);
        }
    }

    #[test]
    fn a_description_is_one_line() {
        let told = description("n0", "shop/db", "main\n");
        assert_eq!(told, "Wharfline task main of allocation shop/db on node n0");
    }

    #[test]
    fn systemd_waits_longer_than_the_shim() {
        for grace in [0, 1, 30_000, u64::MAX - 1, u64::MAX] {
            assert!(stop_after_ms(grace) > grace || grace >= u64::MAX - 1);
        }
    }
}
