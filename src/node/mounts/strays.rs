//! Mounts that came from a staging path and stand elsewhere: what they show would be taken from under them.
use std::path::{Path, PathBuf};

use super::super::context::Node;
use super::Trouble;
use crate::sys::kernel::{MountFacts, MountRow};
use crate::sys::path::{Place, TreePath};

/// Refuses to unstage what somebody mounted from there in a place that is not ours, such as by `mount --bind` (CO-NODE-36): who
/// did may be using it, and the device may be gone next. Only the ids of newer kernels (Linux 6.8) tell which of two mounts came
/// from the other; on older ones a driver's own mount, of which it makes the one that is staged, would hold it up for ever.
pub(super) async fn none_left(node: &Node, staging: &TreePath) -> Result<(), Trouble> {
    let kernel = &node.machine.kernel;
    let place = Place::Tree(staging.clone());
    let facts = kernel.mount_facts(&place).await?;
    // A file system without a device of its own, such as NFS, may be mounted twice by two who know nothing of each other.
    let Some(mount) = facts.mount().filter(|mount| mount.device.major != 0) else { return Ok(()) };
    let Some(rows) = kernel.mounts_since(mount.id).await? else { return Ok(()) };
    // The tree, two names above what is staged in it.
    let path = kernel.absolute(&place);
    let ours = path.ancestors().nth(2).unwrap_or(&path);
    match stray(&rows, mount, ours) {
        None => Ok(()),
        Some(at) => Err(Trouble::Kernel(
            "MountedElsewhere",
            format!(
                "somebody mounted what is staged at \"{0}\", too: it stays staged until that is unmounted (umount {0})",
                at.display()
            ),
        )),
    }
}

/// The first mount outside of our directory that is younger than this one and shows what it shows, or a part of it. One that
/// the kernel made beside it, because our directory is visible elsewhere too, goes with it and is none.
fn stray(rows: &[MountRow], mount: &MountFacts, ours: &Path) -> Option<PathBuf> {
    let of = |id| rows.iter().find(|row| row.id == id);
    let staged = of(mount.id)?;
    let group = of(staged.parent).map_or(0, |parent| parent.peer_group);
    let copied = |row: &&MountRow| {
        let follows = |parent: &MountRow| parent.peer_group == group || parent.master == group;
        group != 0 && row.parent != staged.parent && of(row.parent).is_some_and(follows)
    };
    let shows = |row: &&MountRow| row.device == mount.device && row.root.starts_with(&staged.root);
    let younger = rows.iter().filter(shows).filter(|row| row.id > mount.id);
    let elsewhere = younger.filter(|row| !row.mount_point.starts_with(ours) && !copied(row));
    elsewhere.map(|row| row.mount_point.clone()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::kernel::{DeviceId, MountId};

    /// Obligation CO-NODE-36.
    #[test]
    fn younger_mounts_of_the_same_thing_that_are_not_ours_are_found() {
        let row = |id: u64, minor: u32, root: &str, at: &str| MountRow {
            id: MountId(id),
            parent: MountId(1),
            device: DeviceId { major: 7, minor },
            root: root.into(),
            mount_point: at.into(),
            fs_type: "ext4".into(),
            source: None,
            read_only: false,
            peer_group: 0,
            master: 0,
        };
        let mount = MountFacts {
            id: MountId(5),
            device: DeviceId { major: 7, minor: 0 },
            magic: 0xef53,
            fs_type: None,
            root: None,
            read_only: false,
        };
        let staged = || row(5, 0, "/v", "/data/staging/a");
        for (others, wanted) in [
            (vec![], None),
            (vec![row(6, 0, "/v", "/data/publish/b")], None),
            (vec![row(6, 0, "/v", "/mnt")], Some("/mnt")),
            (vec![row(6, 0, "/v/sub", "/mnt")], Some("/mnt")),
            // What it was made of is older.
            (vec![row(4, 0, "/v", "/driver/mounts/v")], None),
            // Another part of the file system, the whole of it, and another device.
            (vec![row(6, 0, "/w", "/mnt"), row(7, 0, "/", "/x"), row(8, 1, "/v", "/srv")], None),
            (vec![row(6, 0, "/v", "/z"), row(7, 0, "/v", "/m"), row(8, 0, "/v", "/data2")], Some("/data2")),
        ] {
            let rows: Vec<_> = others.iter().cloned().chain([staged()]).collect();
            assert_eq!(stray(&rows, &mount, Path::new("/data")), wanted.map(PathBuf::from), "{others:?}");
        }
        // The tree is mounted on a shared mount that is visible at /peer too, and follows it at /slave.
        let parent =
            |id: u64, at: &str, peer_group, master| MountRow { peer_group, master, ..row(id, 9, "/", at) };
        let parents = [
            parent(1, "/", 3, 0),
            parent(2, "/peer", 3, 0),
            parent(3, "/slave", 0, 3),
            parent(4, "/other", 8, 0),
        ];
        for (on, found) in [(1, true), (2, false), (3, false), (4, true)] {
            let other = MountRow { parent: MountId(on), ..row(6, 0, "/v", "/there") };
            let rows: Vec<_> = parents.iter().cloned().chain([staged(), other]).collect();
            assert_eq!(stray(&rows, &mount, Path::new("/data")).is_some(), found, "on {on}");
        }
        assert_eq!(
            stray(&[row(6, 0, "/v", "/mnt")], &mount, Path::new("/data")),
            None,
            "it is not there any more"
        );
    }
}
