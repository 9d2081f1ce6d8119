//! The store that `wharfline down` makes for itself in the directory of a node that is no member any more.
//!
//! It is nobody's afterwards, however that ended: such a machine may come back to a cluster, and is no server. What was made stands in
//! a file from before it is made, so that whoever comes next takes away what one that was killed has left.
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::remove;

/// Names what was made, one name to a line.
const NAMES: &str = "down.made";
/// What a server keeps in its data directory.
const OF_A_SERVER: [&str; 5] = ["store.redb", "store.redb.wal", "store.redb.lock", "pki", "audit.log"];

/// What is there for as long as everything is taken down.
#[derive(Debug)]
pub(super) struct Borrowed {
    data_dir: PathBuf,
    names: Vec<&'static str>,
}

impl Borrowed {
    /// From now on what a server makes here that is not there yet goes again.
    ///
    /// # Errors
    /// When that cannot be written down.
    pub(super) fn begin(data_dir: &Path) -> io::Result<Self> {
        let new = OF_A_SERVER.into_iter().filter(|name| !data_dir.join(name).exists());
        let names: Vec<_> = new.collect();
        std::fs::write(data_dir.join(NAMES), names.join("\n"))?;
        Ok(Self { data_dir: data_dir.to_owned(), names })
    }

    /// Whether one works here: what one that was killed has left is cleared before.
    pub(super) fn is_there(data_dir: &Path) -> bool {
        data_dir.join(NAMES).exists()
    }

    /// Takes it away.
    ///
    /// # Errors
    /// Those of the removal: then the next one does it.
    pub(super) fn end(self) -> io::Result<()> {
        take_away(&self.data_dir, self.names.into_iter())
    }
}

/// Takes away what one has left that was killed; nothing while it runs.
///
/// # Errors
/// Those of the removal.
pub(super) fn clear(data_dir: &Path) -> io::Result<()> {
    let lock = data_dir.join("store.redb.lock");
    if !data_dir.join(NAMES).exists() || lock.exists() && !is_free(&lock) {
        return Ok(());
    }
    let names = std::fs::read_to_string(data_dir.join(NAMES))?;
    take_away(data_dir, names.lines().filter(|name| OF_A_SERVER.contains(name)))
}

fn take_away<'a>(data_dir: &Path, names: impl Iterator<Item = &'a str>) -> io::Result<()> {
    for name in names.chain([NAMES]) {
        remove::tree(&data_dir.join(name))?;
    }
    Ok(())
}

/// Whether nobody has the store of this lock open.
pub(super) fn is_free(lock: &Path) -> bool {
    let file = std::fs::File::open(lock);
    file.is_ok_and(|file| {
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let names = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_made_goes_and_what_was_there_stays() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("journal")).unwrap();
        std::fs::write(at("audit.log"), "old").unwrap();
        for killed in [false, true] {
            let borrowed = Borrowed::begin(place.path()).unwrap();
            std::fs::create_dir(at("pki")).unwrap();
            std::fs::write(at("pki/ca.key"), "").unwrap();
            std::fs::write(at("store.redb"), "").unwrap();
            if killed {
                // Another one runs here.
                std::fs::write(at("store.redb.lock"), "").unwrap();
                let lock = std::fs::File::open(at("store.redb.lock")).unwrap();
                rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
                clear(place.path()).unwrap();
                assert!(at("store.redb").exists());
                drop(lock);
                clear(place.path()).unwrap();
            } else {
                borrowed.end().unwrap();
            }
            assert_eq!(names(place.path()), ["audit.log", "journal"]);
        }
        // A store without that file is somebody's.
        std::fs::write(at("store.redb"), "").unwrap();
        clear(place.path()).unwrap();
        assert!(at("store.redb").exists());
    }
}
