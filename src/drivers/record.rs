//! What must outlive a driver: small JSON files, one for each volume beside its data.
//!
//! Each is synced and then replaced by rename, so that a crash leaves the old one or the new one.
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use super::request::{Capability, Source, TargetPath, VolumeId};

/// Raised when an older driver could no longer read what a newer one writes.
pub(super) const FORMAT: u32 = 1;

/// What is remembered of one volume; `state` is what a driver adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record<S> {
    pub(super) format: u32,
    pub(super) id: VolumeId,
    /// The name in the request that made it.
    pub(super) name: String,
    /// Bytes that were promised; 0 when none were.
    pub(super) capacity: u64,
    /// The parameters of the request that made it.
    #[serde(default)]
    pub(super) parameters: BTreeMap<String, String>,
    /// What it was made from, if that was anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<Source>,
    #[serde(flatten)]
    pub(super) state: S,
}

/// Where a volume is published, or where that was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Publications {
    #[serde(default)]
    publications: Vec<Publication>,
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
            || self.capability.mode.is_read_only()
            || self.capability.mount_flags.iter().any(|flag| flag == "ro")
    }
}

impl<S: Default> Record<S> {
    pub(super) fn new(id: VolumeId, name: &str, capacity: u64, parameters: BTreeMap<String, String>) -> Self {
        Self {
            format: FORMAT,
            id,
            name: name.to_owned(),
            capacity,
            parameters,
            source: None,
            state: S::default(),
        }
    }
}

impl Publications {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Publication> {
        self.publications.iter()
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

/// Reads the file `name` in the directory `home`; `None` when there is none. `path` is that of `home`, for messages.
pub(super) fn read<T: DeserializeOwned>(
    home: impl AsFd,
    name: &str,
    path: impl FnOnce() -> PathBuf,
) -> Result<Option<T>, Refusal> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(home, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(Refusal::failed("open", &path().join(name))(error)),
    };
    let mut text = Vec::new();
    if let Err(error) = File::from(file).read_to_end(&mut text) {
        return Err(Refusal::failed("read", &path().join(name))(error));
    }
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|source| Refusal::Damaged { path: path().join(name), source })
}

/// Writes the file `name` in the directory `home`. The caller syncs `home` where the change itself must survive a power
/// cut; a publication need not, because its mount does not either.
pub(super) fn write(
    home: impl AsFd,
    name: &str,
    value: &impl Serialize,
    path: impl FnOnce() -> PathBuf,
) -> Result<(), Refusal> {
    replace(home.as_fd(), name, value).map_err(|error| Refusal::failed("write", &path().join(name))(error))
}

fn replace(home: impl AsFd, name: &str, value: &impl Serialize) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let next = format!("{name}.next");
    let file: OwnedFd = rustix::fs::openat(&home, &next, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(file);
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    Ok(rustix::fs::renameat(&home, &next, &home, name)?)
}
