//! The record of a volume: everything that must outlive the driver, as one small JSON file beside the data.
//!
//! It is synced and then replaced by rename, so that a crash leaves the old one or the new one.
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use super::request::{AccessMode, Capability, TargetPath, VolumeId};

const FILE: &str = "volume.json";
const NEXT_FILE: &str = "volume.json.next";
/// Raised when an older driver could no longer read what a newer one writes.
const FORMAT: u32 = 1;

/// What is remembered of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) format: u32,
    pub(super) id: VolumeId,
    /// The name in the request that made it.
    pub(super) name: String,
    /// Bytes that were promised; 0 when none were.
    pub(super) capacity: u64,
    /// The parameters of the request that made it.
    #[serde(default)]
    pub(super) parameters: BTreeMap<String, String>,
    /// Where it is published, or where that was tried.
    #[serde(default)]
    pub(super) publications: Vec<Publication>,
}

/// One target and the arguments under which the volume was published there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Publication {
    pub(super) target: TargetPath,
    pub(super) capability: Capability,
    pub(super) read_only: bool,
}

impl Publication {
    /// The request, the mode and the options may each forbid writing.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
            || self.capability.mode == AccessMode::ReaderOnly
            || self.capability.mount_flags.iter().any(|flag| flag == "ro")
    }
}

impl Record {
    pub(super) fn new(id: VolumeId, name: &str, capacity: u64, parameters: BTreeMap<String, String>) -> Self {
        Self { format: FORMAT, id, name: name.to_owned(), capacity, parameters, publications: Vec::new() }
    }

    /// Reads the record in the directory `home`; `None` when there is none. `path` is for messages.
    pub(super) fn read(home: impl AsFd, path: impl FnOnce() -> PathBuf) -> Result<Option<Self>, Refusal> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(home, FILE, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Refusal::failed("open", &path().join(FILE))(error)),
        };
        let mut text = Vec::new();
        if let Err(error) = File::from(file).read_to_end(&mut text) {
            return Err(Refusal::failed("read", &path().join(FILE))(error));
        }
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| Refusal::Damaged { path: path().join(FILE), source })
    }

    /// Writes the record into the directory `home`. The caller syncs `home` where the change itself must survive a power
    /// cut; a publication need not, because its mount does not either.
    pub(super) fn write(&self, home: impl AsFd, path: impl FnOnce() -> PathBuf) -> Result<(), Refusal> {
        self.replace(home.as_fd()).map_err(|error| Refusal::failed("write", &path().join(FILE))(error))
    }

    fn replace(&self, home: impl AsFd) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file: OwnedFd = rustix::fs::openat(&home, NEXT_FILE, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        Ok(rustix::fs::renameat(&home, NEXT_FILE, &home, FILE)?)
    }

    /// The publication at `target`.
    pub(super) fn at(&self, target: &TargetPath) -> Option<&Publication> {
        self.publications.iter().find(|publication| publication.target == *target)
    }

    /// Puts `publication` in the place of an older one at the same target.
    pub(super) fn set(&mut self, publication: Publication) {
        self.forget(&publication.target);
        self.publications.push(publication);
    }

    /// Drops the publication at `target`; tells whether there was one.
    pub(super) fn forget(&mut self, target: &TargetPath) -> bool {
        let before = self.publications.len();
        self.publications.retain(|publication| publication.target != *target);
        self.publications.len() < before
    }
}
