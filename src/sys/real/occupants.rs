//! Who has a device that should be free: to tell a person whom to end.
use std::collections::HashMap;
use std::path::Path;

use super::table::parse;
use crate::sys::kernel::{DeviceId, MountRow};
use crate::sys::proc;

/// The processes that have a device mounted in a mount namespace other than ours, or have it open, with their names; as far
/// as they can be looked at. It reads all of `/proc`.
pub(crate) fn occupants(device: DeviceId, path: &Path) -> Vec<(i32, String)> {
    let ours = proc::mount_namespace(std::process::id().cast_signed()).ok();
    let mut known: HashMap<u64, bool> = ours.into_iter().map(|ours| (ours.inode, false)).collect();
    let mut found = Vec::new();
    for pid in proc::all().unwrap_or_default().iter().filter(|stat| !stat.zombie).map(|stat| stat.id.pid) {
        let namespace = proc::find_mount_namespace(pid).ok().flatten();
        let mounted = namespace.is_some_and(|namespace| {
            *known.entry(namespace.inode).or_insert_with(|| is_mounted_for(pid, device, path))
        });
        if mounted || has_open(pid, path) {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push((pid, name.trim_end().to_owned()));
        }
    }
    found
}

/// Whether its mount table has the device: by its number, or as the source of a file system that has a number of its own.
fn is_mounted_for(pid: i32, device: DeviceId, path: &Path) -> bool {
    let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let rows = parse(&table).unwrap_or_default();
    let of_it = |row: &MountRow| row.device == device || row.source.as_deref().map(Path::new) == Some(path);
    rows.iter().any(of_it)
}

fn has_open(pid: i32, path: &Path) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|open| open == path)
}
