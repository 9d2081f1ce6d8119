//! Who has a device that should be free: to tell a person whom to end.
use std::collections::HashMap;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::table::parse;
use crate::sys::kernel::{DeviceId, MountRow};
use crate::sys::proc;

/// Who has a device in a mount namespace other than ours, or has it open, as far as that can be looked at; each as words that
/// follow "in". It reads all of `/proc`.
pub(crate) fn occupants(device: DeviceId, path: &Path) -> Vec<String> {
    let inode = |pid| proc::find_mount_namespace(pid).ok().flatten().map(|namespace| namespace.inode);
    let (ours, first) = (inode(std::process::id().cast_signed()), inode(1));
    let mut known: HashMap<u64, bool> = ours.into_iter().map(|ours| (ours, false)).collect();
    let mut found = Vec::new();
    for pid in proc::all().unwrap_or_default().iter().filter(|stat| !stat.zombie).map(|stat| stat.id.pid) {
        let namespace = inode(pid);
        let mounted = namespace.is_some_and(|namespace| {
            *known.entry(namespace).or_insert_with(|| is_mounted_for(pid, device, path))
        });
        // Whoever is in the machine's own namespace shares its mounts: no process is to be ended for them.
        if mounted && namespace == first {
            let machine = "a mount of the machine itself".to_owned();
            if !found.contains(&machine) {
                found.push(machine);
            }
        } else if mounted || has_open(pid, device) {
            found.push(format!("process {pid} ({})", name_of(pid)));
        }
    }
    found
}

fn name_of(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().replace(char::is_control, "?")
}

/// Whether its mount table has the device: by its number, or as the source of a file system that has a number of its own.
fn is_mounted_for(pid: i32, device: DeviceId, path: &Path) -> bool {
    let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let rows = parse(&table).unwrap_or_default();
    let of_it = |row: &MountRow| row.device == device || row.source.as_deref().map(Path::new) == Some(path);
    rows.iter().any(of_it)
}

/// By whatever node of it. Nobody is asked but this kernel: a file of a server that is gone would hold us up.
fn has_open(pid: i32, device: DeviceId) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.map(|entry| entry.path()).any(|descriptor| {
        let seen = rustix::fs::statx(CWD, &descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        seen.is_ok_and(|seen| {
            let is_block = rustix::fs::FileType::from_raw_mode(seen.stx_mode.into()).is_block_device();
            is_block && (seen.stx_rdev_major, seen.stx_rdev_minor) == (device.major, device.minor)
        })
    })
}
