//! A volume that is being made, or a snapshot: in the trash, until it is whole.
//!
//! A draft is begun while nobody else can begin one, and may then be filled for as long as that takes: its directory is
//! locked, so that the same request again is told to wait, and its record is there, so that what is promised to it is
//! promised to nobody else. What a draft of a process that died leaves is not locked, and goes with the next call or start.
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};

use super::{All, Held, Homes, State, open_beneath};
use crate::drivers::record::{self, Record};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::VolumeId;

/// What the name of its directory has behind the id.
pub(super) const SUFFIX: &str = ".new";

/// What is being made. Dropped before it is in its place, it is removed.
#[derive(Debug)]
pub(in crate::drivers) struct Draft<'a, S: State> {
    homes: &'a Homes<S>,
    pub(in crate::drivers) record: Record<S>,
    /// Its directory; the lock is on this descriptor.
    pub(in crate::drivers) home: Held,
    trash: OwnedFd,
    entry: String,
    placed: bool,
}

impl<'a, S: State> All<'a, S> {
    /// Begins what `record` tells of. [`Refusal::Pending`] while another call is making it.
    pub(in crate::drivers) fn begin(&self, record: Record<S>) -> Result<Draft<'a, S>, Refusal> {
        let homes = self.homes;
        let trash = homes.trash()?;
        let path = homes.home_path(&record.id);
        let failed = |step| Refusal::failed(step, &path);
        let entry = format!("{}{SUFFIX}", record.id.as_str());
        // What an attempt that was cut short left behind.
        homes.remove_entry(&trash, &record.id, &entry)?;
        rustix::fs::mkdirat(&trash, &entry, Mode::RWXU).map_err(failed("make"))?;
        let home = open_beneath(&trash, &entry).map_err(failed("open"))?;
        let home = homes.held(home, &record.id, &path, FlockOperation::NonBlockingLockExclusive)?;
        let draft = Draft { homes, record, home, trash, entry, placed: false };
        draft.save()?;
        effect!("csi make {}: begun", homes.layout.kind);
        Ok(draft)
    }
}

impl<S: State> Draft<'_, S> {
    /// Where it will be, for messages.
    pub(in crate::drivers) fn path(&self) -> PathBuf {
        self.homes.home_path(&self.record.id)
    }

    fn save(&self) -> Result<(), Refusal> {
        record::write(&self.home, self.homes.layout.record, &self.record, || self.path())
    }

    /// Puts it, complete, in its place, where it exists from then on.
    pub(in crate::drivers) fn place(self) -> Result<Record<S>, Refusal> {
        self.save()?;
        rustix::fs::fsync(&self.home).map_err(Refusal::failed("sync", &self.path()))?;
        // Nobody who has just looked for the name, and not found it, begins it again.
        let all = self.homes.directory()?;
        rustix::fs::flock(&all, FlockOperation::LockExclusive)
            .map_err(Refusal::failed("lock", &self.homes.root))?;
        self.put(&Held(all))
    }

    /// The same for who has not let go of [`All`] since it was begun.
    pub(in crate::drivers) fn place_in(self, all: &All<'_, S>) -> Result<Record<S>, Refusal> {
        self.save()?;
        rustix::fs::fsync(&self.home).map_err(Refusal::failed("sync", &self.path()))?;
        self.put(&all.volumes)
    }

    fn put(mut self, homes: &OwnedFd) -> Result<Record<S>, Refusal> {
        let path = self.path();
        let kind = self.homes.layout.kind;
        effect!("csi make {kind}: whole");
        rustix::fs::renameat(&self.trash, &self.entry, homes, self.record.id.as_str())
            .map_err(Refusal::failed("place", &path))?;
        self.placed = true;
        effect!("csi make {kind}: placed");
        rustix::fs::fsync(homes).map_err(Refusal::failed("sync", &path))?;
        let record = &self.record;
        tracing::info!(
            kind,
            id = record.id.as_str(),
            name = record.name,
            capacity = record.capacity,
            "created"
        );
        Ok(record.clone())
    }
}

impl<S: State> Drop for Draft<'_, S> {
    fn drop(&mut self) {
        if self.placed {
            return;
        }
        if let Err(error) = self.homes.remove(&self.trash, &self.home, &self.entry) {
            tracing::warn!(id = self.record.id.as_str(), %error, "what was begun is left to the next call");
        }
    }
}

impl<S: State> Homes<S> {
    /// What other calls are making now. Only while [`All`] is held: this looks at locks by taking them.
    pub(super) fn drafts(&self) -> Result<Vec<Record<S>>, Refusal> {
        let trash = self.trash()?;
        let path = self.root.join(self.layout.trash);
        let failed = || Refusal::failed("read", &path);
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&trash).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let text = entry.file_name().to_string_lossy();
            let Some(id) = text.strip_suffix(SUFFIX).and_then(VolumeId::parse) else { continue };
            // One that cannot be opened or read any more is just being placed or removed.
            let Ok(home) = open_beneath(&trash, &text) else { continue };
            if self.is_free(home, &id, &path) {
                continue;
            }
            let Ok(home) = open_beneath(&trash, &text) else { continue };
            found.extend(record::read(home, self.layout.record, || path.clone()).unwrap_or_default());
        }
        Ok(found)
    }

    fn is_free(&self, home: OwnedFd, id: &VolumeId, path: &Path) -> bool {
        self.held(home, id, path, FlockOperation::NonBlockingLockShared).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::VOLUMES;
    use super::*;

    type Plain = std::collections::BTreeMap<String, String>;

    fn homes(root: &Path) -> Homes<Plain> {
        Homes::open(root, &VOLUMES, None).unwrap()
    }

    fn record(homes: &Homes<Plain>, name: &str) -> Record<Plain> {
        Record::new(VolumeId::of("", &homes.root, name), name, 7, [].into())
    }

    #[test]
    fn what_is_being_made_is_known_to_who_makes_more() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (homes(root.path()), homes(root.path()));
        let draft = one.lock_all().unwrap().begin(record(&one, "a")).unwrap();
        let all = other.lock_all().unwrap();
        assert_eq!(all.records, []);
        assert_eq!(all.drafts, [record(&other, "a")], "its bytes are promised");
        let again = all.begin(record(&other, "a"));
        assert!(matches!(again, Err(Refusal::Pending { kind: "volume", .. })), "{again:?}");
        let second = all.begin(record(&other, "b")).unwrap();
        second.place_in(&all).unwrap();
        drop(all);
        // A start meanwhile leaves it alone.
        homes(root.path());
        draft.place().unwrap();
        let all = other.lock_all().unwrap();
        assert_eq!((all.records.len(), all.drafts.len()), (2, 0));
    }

    #[test]
    fn what_was_begun_and_left_goes() {
        let root = tempfile::tempdir().unwrap();
        let homes = homes(root.path());
        let trash = || std::fs::read_dir(root.path().join("trash")).unwrap().count();
        drop(homes.lock_all().unwrap().begin(record(&homes, "a")).unwrap());
        assert_eq!(trash(), 0, "one that failed");
        // As a process that was killed leaves it.
        let left = || {
            let mut draft = homes.lock_all().unwrap().begin(record(&homes, "a")).unwrap();
            draft.placed = true;
            assert_eq!(trash(), 1);
        };
        left();
        assert_eq!(homes.lock_all().unwrap().drafts, [], "nobody makes it");
        drop(homes.lock_all().unwrap().begin(record(&homes, "a")).unwrap());
        assert_eq!(trash(), 0);
        left();
        super::super::Homes::<Plain>::open(root.path(), &VOLUMES, None).unwrap();
        assert_eq!(trash(), 0, "the next start removes it");
    }
}
