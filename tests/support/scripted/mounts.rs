//! What the scripted plugin does to the machine when it is told to: bind mounts of plain directories.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use wharfline::csi::proto::NodePublishVolumeRequest;

use super::config::Effects;

/// Where a volume's files are. Handles are opaque and may hold slashes.
fn home(root: &Path, volume: &str) -> PathBuf {
    root.join(volume.replace('/', "-"))
}

fn root(effects: &Effects) -> Option<&Path> {
    match effects {
        Effects::Ledger | Effects::Simulated(_) => None,
        Effects::Mounts(root) => Some(root),
    }
}

/// A new volume.
pub(super) fn make(effects: &Effects, volume: &str) -> io::Result<()> {
    root(effects).map_or(Ok(()), |root| fs::create_dir_all(home(root, volume)))
}

/// The end of a volume.
pub(super) fn destroy(effects: &Effects, volume: &str) -> io::Result<()> {
    root(effects).map_or(Ok(()), |root| fs::remove_dir_all(home(root, volume)))
}

/// The volume at its staging path, a directory that the caller made.
pub(super) fn stage(effects: &Effects, volume: &str, path: &str) -> io::Result<()> {
    if let Effects::Simulated(hands) = effects {
        return hands.mount(volume, path, false);
    }
    let Some(root) = root(effects) else { return Ok(()) };
    let home = home(root, volume);
    fs::create_dir_all(&home)?;
    Ok(mount_bind(&home, path)?)
}

/// The volume at its target; the directory is the plugin's to make. `bare`: nothing is at the staging path.
pub(super) fn publish(effects: &Effects, request: &NodePublishVolumeRequest, bare: bool) -> io::Result<()> {
    if let Effects::Simulated(hands) = effects {
        hands.make_dir(&request.target_path)?;
        return hands.mount(&request.volume_id, &request.target_path, request.readonly);
    }
    let Some(root) = root(effects) else { return Ok(()) };
    let source = if request.staging_target_path.is_empty() || bare {
        let home = home(root, &request.volume_id);
        fs::create_dir_all(&home)?;
        home
    } else {
        PathBuf::from(&request.staging_target_path)
    };
    match fs::create_dir(&request.target_path) {
        // What was mounted there was taken away behind the plugin's back.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    mount_bind(&source, &request.target_path)?;
    if request.readonly {
        mount_remount(&request.target_path, MountFlags::BIND | MountFlags::RDONLY, c"")?;
    }
    Ok(())
}

/// Takes a mount away.
pub(super) fn undo(effects: &Effects, path: &str) -> io::Result<()> {
    if let Effects::Simulated(hands) = effects {
        return hands.unmount(path);
    }
    if root(effects).is_none() {
        return Ok(());
    }
    match unmount(path, UnmountFlags::empty()) {
        // Not a mount point, or nothing there: somebody was faster.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes the target away that [`publish`] made.
pub(super) fn remove_target(effects: &Effects, path: &str) -> io::Result<()> {
    if let Effects::Simulated(hands) = effects {
        return hands.remove_dir(path);
    }
    if root(effects).is_none() {
        return Ok(());
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// After a simulated restart of the node no mount is left; here it has to be taken away.
pub(super) fn forget(effects: &Effects, path: &str) {
    if root(effects).is_some() {
        // A path that is gone, or that somebody took away, is as good as unmounted.
        let _not_mounted = unmount(path, UnmountFlags::DETACH);
    }
}

/// The mounts beneath `root`, from the kernel.
pub fn beneath(root: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("Linux has a mount table");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(root)).collect()
}
