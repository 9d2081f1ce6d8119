//! The store that `wharfline down` makes for itself on a machine that has none and is no member any more.
//!
//! It has a directory of its own, and is nobody's afterwards, however that ended: such a machine may come back to a cluster, and is no
//! server. As long as it is there the lock of the machine's own store is held, so that nobody makes one meanwhile; whoever comes after
//! one that was killed takes its directory away.
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::store::embedded::OpenError;
use crate::sys::remove;

/// What is in it goes with it.
const DIRECTORY: &str = "down.store";
/// The machine's own store, and the lock of whoever works with it.
const STORE: &str = "store.redb";
const LOCK: &str = "store.redb.lock";

/// What is there for as long as everything is taken down.
#[derive(Debug)]
pub(super) struct Borrowed {
    directory: PathBuf,
    /// That of the machine's own store.
    _lock: File,
}

impl Borrowed {
    /// An empty directory for a store; none where the machine has a store of its own by now.
    ///
    /// # Errors
    /// Those of making it; [`OpenError::InUse`] while somebody works with the store of this machine.
    pub(super) fn begin(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let lock = match locked(data_dir) {
            Ok(lock) => lock,
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse { path: data_dir.join(STORE) }.into());
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        };
        if data_dir.join(STORE).exists() {
            return Ok(None);
        }
        let directory = data_dir.join(DIRECTORY);
        remove::tree(&directory)?;
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Some(Self { directory, _lock: lock }))
    }

    /// Where it is.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes it away.
    ///
    /// # Errors
    /// Those of the removal: then the next one does it.
    pub(super) fn end(self) -> io::Result<()> {
        Ok(remove::tree(&self.directory)?)
    }
}

/// Takes away what one has left that was killed.
///
/// # Errors
/// Those of the removal; and while one works here, that.
pub(super) fn clear(data_dir: &Path) -> io::Result<()> {
    let directory = data_dir.join(DIRECTORY);
    if !directory.try_exists()? {
        return Ok(());
    }
    let _lock = locked(data_dir).map_err(|error| match error {
        TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::ResourceBusy, "`wharfline down` works here; wait for its end")
        }
        TryLockError::Error(error) => error,
    })?;
    Ok(remove::tree(&directory)?)
}

/// Holds the lock of the machine's own store. Its file stays: without it two could each have one.
fn locked(data_dir: &Path) -> Result<File, TryLockError> {
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(data_dir.join(LOCK)).map_err(TryLockError::Error)?;
    file.try_lock()?;
    Ok(file)
}

/// Whether nobody has the store of this directory open.
pub(super) fn is_free(data_dir: &Path) -> bool {
    locked(data_dir).is_ok()
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

    fn in_use(error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(OpenError::InUse { .. }))
    }

    #[test]
    fn what_was_made_goes_and_what_was_there_stays() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("journal")).unwrap();
        std::fs::write(at("audit.log"), "old").unwrap();
        for killed in [false, true] {
            let borrowed = Borrowed::begin(place.path()).unwrap().unwrap();
            assert_eq!(names(borrowed.directory()), [""; 0], "it begins anew");
            std::fs::create_dir(borrowed.directory().join("pki")).unwrap();
            std::fs::write(borrowed.directory().join("store.redb"), "").unwrap();
            // Nobody else works here meanwhile.
            assert!(in_use(&Borrowed::begin(place.path()).unwrap_err()));
            assert_eq!(clear(place.path()).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            assert!(!is_free(place.path()));
            assert!(at("down.store/store.redb").exists());
            if killed {
                drop(borrowed);
                assert!(at("down.store").exists());
                clear(place.path()).unwrap();
            } else {
                borrowed.end().unwrap();
            }
            assert_eq!(names(place.path()), ["audit.log", "journal", "store.redb.lock"]);
        }
        // One that was killed, and somebody who puts the machine's own store back.
        drop(Borrowed::begin(place.path()).unwrap().unwrap());
        std::fs::write(at("store.redb"), "the own one").unwrap();
        clear(place.path()).unwrap();
        assert!(Borrowed::begin(place.path()).unwrap().is_none());
        assert_eq!(names(place.path()), ["audit.log", "journal", "store.redb", "store.redb.lock"]);
        assert!(is_free(place.path()));
    }
}
