//! The store that `wharfline down` makes for itself in the directory of a node that is no member any more.
//!
//! It is nobody's afterwards, however that ended: such a machine may come back to a cluster, and is no server. What was made stands in
//! a file from before it is made, so that whoever comes next takes away what one that was killed has left.
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::sys::remove;

/// Names what was made, one name to a line.
const NAMES: &str = "down.made";
/// What a server keeps in its data directory, its lock last.
const OF_A_SERVER: [&str; 6] =
    ["pki", "audit.log", "store.redb.wal", "store.redb.new", "store.redb", "store.redb.lock"];

/// What is there for as long as everything is taken down.
#[derive(Debug)]
pub(super) struct Borrowed {
    data_dir: PathBuf,
    names: Vec<&'static str>,
    /// Held as long as somebody works here.
    _held: File,
}

impl Borrowed {
    /// From now on what a server makes here that is not there yet goes again.
    ///
    /// # Errors
    /// When that cannot be written down, or another one works here.
    pub(super) fn begin(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(NAMES);
        let open = || File::options().create(true).append(true).open(&path);
        let mut file = held(&path, open)?.ok_or(io::ErrorKind::NotFound)?;
        let new = OF_A_SERVER.into_iter().filter(|name| !data_dir.join(name).exists());
        let names: Vec<_> = new.collect();
        file.write_all(names.join("\n").as_bytes())?;
        Ok(Self { data_dir: data_dir.to_owned(), names, _held: file })
    }

    /// Takes it away, if the store there was `ours`: else somebody else has come to it meanwhile.
    ///
    /// # Errors
    /// Those of the removal: then the next one does it.
    pub(super) fn end(self, ours: bool) -> io::Result<()> {
        take_away(&self.data_dir, if ours { &self.names } else { &[] })
    }
}

/// Takes away what one has left that was killed.
///
/// # Errors
/// Those of the removal; and while one works here, that.
pub(super) fn clear(data_dir: &Path) -> io::Result<()> {
    let path = data_dir.join(NAMES);
    let Some(mut file) = held(&path, || File::open(&path))? else { return Ok(()) };
    let mut names = String::new();
    file.read_to_string(&mut names)?;
    // Nobody comes to the store before all of it is gone.
    let lock = data_dir.join("store.redb.lock");
    let store = held(&lock, || File::open(&lock));
    let names = names.lines().filter(|name| store.is_ok() && OF_A_SERVER.contains(name));
    take_away(data_dir, &names.collect::<Vec<_>>())
}

/// The file of this path, which nobody else has from now on; none where there is none. Whoever had it before may have removed it.
///
/// # Errors
/// Those of opening it; and while somebody has it, that.
fn held(path: &Path, open: impl Fn() -> io::Result<File>) -> io::Result<Option<File>> {
    loop {
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            io::Error::new(io::ErrorKind::ResourceBusy, "`wharfline down` works here; wait for its end")
        })?;
        let there = std::fs::metadata(path).ok();
        if there.is_some_and(|there| file.metadata().is_ok_and(|own| own.ino() == there.ino())) {
            return Ok(Some(file));
        }
    }
}

fn take_away(data_dir: &Path, names: &[&str]) -> io::Result<()> {
    for name in names.iter().chain([&NAMES]) {
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
            std::fs::write(at("store.redb.lock"), "").unwrap();
            // Nobody else works here meanwhile.
            for refused in [clear(place.path()), Borrowed::begin(place.path()).map(drop)] {
                assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            }
            assert!(at("store.redb").exists());
            if killed {
                drop(borrowed);
                clear(place.path()).unwrap();
            } else {
                borrowed.end(true).unwrap();
            }
            assert_eq!(names(place.path()), ["audit.log", "journal"]);
        }
        // Nor is a store taken away that somebody else has opened.
        let borrowed = Borrowed::begin(place.path()).unwrap();
        for name in ["store.redb", "store.redb.lock"] {
            std::fs::write(at(name), "").unwrap();
        }
        borrowed.end(false).unwrap();
        assert_eq!(names(place.path()), ["audit.log", "journal", "store.redb", "store.redb.lock"]);
        std::fs::remove_file(at("store.redb.lock")).unwrap();
        // A store without that file is somebody's.
        std::fs::write(at("store.redb"), "").unwrap();
        clear(place.path()).unwrap();
        assert!(at("store.redb").exists());
    }
}
