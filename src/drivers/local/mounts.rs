//! What the mount table says of the directories of volumes.
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Statx};

use crate::drivers::request::VolumeId;
use crate::drivers::spot::{FIELDS, identity, table};
use crate::sys::kernel::{MountId, MountRow};

/// Whether `here` is the data directory of `volume`, which is `data` where it can be opened.
pub(super) fn is_here(volume: &VolumeId, data: Option<&OwnedFd>, here: &Statx) -> io::Result<bool> {
    match data {
        Some(data) => {
            let data = rustix::fs::statx(data, c"", AtFlags::EMPTY_PATH, FIELDS)?;
            Ok(identity(here) == identity(&data))
        }
        // The directory is gone but its mount is not: the kernel still knows where it came from.
        None => Ok(root_of_mount(here.stx_mnt_id)?.is_some_and(|root| is_data_of(volume, &root))),
    }
}

/// Whether a mount is of the data directory of `volume`, wherever that was; of nothing in it, for that may be somebody's.
pub(super) fn is_its(volume: &VolumeId, mount: &MountRow) -> bool {
    let root = mount.root.to_string_lossy();
    let root = root.strip_suffix("//deleted").unwrap_or(&root);
    is_data_of(volume, &mount.root) && root.ends_with("/data")
}

fn root_of_mount(id: u64) -> io::Result<Option<PathBuf>> {
    Ok(table()?.into_iter().find(|mount| mount.id == MountId(id)).map(|mount| mount.root))
}

/// Whether the root of a mount is the data directory of `volume` or lies inside it, even if it is deleted.
fn is_data_of(volume: &VolumeId, root: &Path) -> bool {
    let parts = root.iter().collect::<Vec<_>>();
    parts.windows(2).any(|pair| pair[0] == volume.as_str() && pair[1] == "data")
}

/// Where the data of `volume` is mounted in this mount namespace, and what is mounted inside its directory `home`.
pub(super) fn uses(volume: &VolumeId, home: impl AsFd) -> io::Result<Vec<PathBuf>> {
    let home = std::fs::read_link(format!("/proc/self/fd/{}", home.as_fd().as_raw_fd()))?;
    let used = |mount: &MountRow| is_data_of(volume, &mount.root) || mount.mount_point.starts_with(&home);
    Ok(table()?.into_iter().filter(used).map(|mount| mount.mount_point).collect())
}

/// The type of the file system that `dir` is on.
pub(in crate::drivers) fn fs_type(dir: impl AsFd) -> io::Result<String> {
    let here = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, FIELDS)?;
    let mount = table()?.into_iter().find(|mount| mount.id == MountId(here.stx_mnt_id));
    Ok(mount.map(|mount| mount.fs_type).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> MountRow {
        table().unwrap().remove(0)
    }

    #[test]
    fn a_mount_of_the_data_is_known_by_its_root() {
        let id = VolumeId::parse("0123456789abcdef0123").unwrap();
        for ours in ["/d/volumes/0123456789abcdef0123/data", "/0123456789abcdef0123/data//deleted"] {
            assert!(is_data_of(&id, Path::new(ours)), "{ours}");
        }
        assert!(is_data_of(&id, Path::new("/d/volumes/0123456789abcdef0123/data/sub/path")));
        let row = |root: &str| MountRow { root: root.into(), ..row() };
        assert!(is_its(&id, &row("/d/volumes/0123456789abcdef0123/data")));
        assert!(is_its(&id, &row("/0123456789abcdef0123/data//deleted")));
        for other in ["/0123456789abcdef0123/data/sub", "/0123456789abcdef0124/data", "/data"] {
            assert!(!is_its(&id, &row(other)), "{other}");
        }
        for other in ["/", "/0123456789abcdef0123/database", "/0123456789abcdef0124/data"] {
            assert!(!is_data_of(&id, Path::new(other)), "{other}");
        }
    }
}
