//! Entries of lists, single volumes, free space, and the way through a list's pages.
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::super::capabilities::ControllerCapabilities;
use super::super::proto::list_volumes_response::Entry;
use super::super::proto::{ControllerGetVolumeResponse, GetCapacityResponse, Volume, VolumeCondition};
use super::snapshots::same_volume;
use super::{Fault, cut};

/// How a volume is, by its plugin. Alpha, and for people: nothing is done because of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Something is wrong with it.
    pub abnormal: bool,
    /// What, in the plugin's words, cut if they are long.
    pub message: String,
}

impl Condition {
    pub(super) fn of(condition: Option<&VolumeCondition>) -> Option<Self> {
        condition.map(|told| Self { abnormal: told.abnormal, message: cut(&told.message) })
    }

    /// What an entry of `ListVolumes` says.
    pub fn listed(entry: &Entry) -> Option<Self> {
        Self::of(entry.status.as_ref()?.volume_condition.as_ref())
    }

    /// What `ControllerGetVolume` says.
    pub fn got(answer: &ControllerGetVolumeResponse) -> Option<Self> {
        Self::of(answer.status.as_ref()?.volume_condition.as_ref())
    }
}

/// Where the controller and a node tell different things of a volume, the worse one counts. Of two that are equally bad it
/// is the first.
pub fn worse(one: Option<Condition>, other: Option<Condition>) -> Option<Condition> {
    match (one, other) {
        (Some(one), Some(other)) if other.abnormal && !one.abnormal => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

/// The volume of an entry of `ListVolumes`.
pub fn listed(entry: &Entry) -> Result<&Volume, Fault> {
    let volume = super::volume(entry.volume.as_ref())?;
    if volume.capacity_bytes < 0 {
        return Err(Fault::NegativeCapacity { bytes: volume.capacity_bytes });
    }
    Ok(volume)
}

/// The volume that `ControllerGetVolume` was asked about.
pub fn got_volume<'a>(asked: &str, answer: &'a ControllerGetVolumeResponse) -> Result<&'a Volume, Fault> {
    let volume = super::volume(answer.volume.as_ref())?;
    same_volume(asked, &volume.volume_id)?;
    if volume.capacity_bytes < 0 {
        return Err(Fault::NegativeCapacity { bytes: volume.capacity_bytes });
    }
    Ok(volume)
}

/// The nodes that a volume is attached to, as `ListVolumes` and `ControllerGetVolume` tell it: none where nothing may be
/// read out of the answer. There may be ids of nodes that nobody here knows. Nothing follows of it but another look.
pub fn published_nodes<'a>(can: &ControllerCapabilities, told: Option<&'a [String]>) -> Option<&'a [String]> {
    // Who does not attach volumes has nothing to say of it, whatever it reports.
    let says = can.list_volumes_published_nodes && can.publish_unpublish_volume;
    says.then(|| told.unwrap_or_default())
}

/// What `GetCapacity` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The space that is left, in bytes. It may be old news.
    pub available: i64,
    /// The largest volume that may be asked for.
    pub largest: Option<i64>,
    /// The smallest limit that may be set. Alpha.
    pub smallest: Option<i64>,
}

/// The answer of `GetCapacity`.
pub fn room(answer: &GetCapacityResponse) -> Result<Room, Fault> {
    let (largest, smallest) = (answer.maximum_volume_size, answer.minimum_volume_size);
    let told = [
        ("available_capacity", Some(answer.available_capacity)),
        ("maximum_volume_size", largest),
        ("minimum_volume_size", smallest),
    ];
    for (field, bytes) in told {
        if let Some(bytes) = bytes.filter(|bytes| *bytes < 0) {
            return Err(Fault::NegativeRoom { field, bytes });
        }
    }
    Ok(Room { available: answer.available_capacity, largest, smallest })
}

/// The way through the pages of a list.
///
/// A list is no view of one moment: an entry may come twice, or not at all, and what did not come in one pass is not gone.
#[derive(Clone, Debug)]
pub struct Pages {
    token: String,
    /// Hashes of the tokens of this pass. A token may be of any length.
    seen: HashSet<u64>,
    restarts: usize,
}

impl Pages {
    /// The most pages that one pass may have.
    pub const MOST: usize = 100_000;
    /// How often a list is begun anew because the plugin does not know its own token any more.
    pub const RESTARTS: usize = 3;

    /// Before the first page.
    #[allow(clippy::new_without_default)] // one begins a pass, and nothing else
    pub fn new() -> Self {
        Self { token: String::new(), seen: HashSet::new(), restarts: 0 }
    }

    /// Before the page that begins there.
    pub fn from(token: &str) -> Self {
        Self { token: token.to_owned(), ..Self::new() }
    }

    /// The `starting_token` of the next page.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// A page has come, with so many entries of at most `most`, 0 for any number. Whether another one follows.
    pub fn took(&mut self, next_token: &str, entries: usize, most: i32) -> Result<bool, Fault> {
        if most > 0 && usize::try_from(most).is_ok_and(|most| entries > most) {
            return Err(Fault::TooManyEntries { count: entries, most });
        }
        next_token.clone_into(&mut self.token);
        if next_token.is_empty() {
            return Ok(false);
        }
        let mut hasher = DefaultHasher::new();
        next_token.hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return Err(Fault::EndlessList { why: "a token has come twice" });
        }
        if self.seen.len() >= Self::MOST {
            return Err(Fault::EndlessList { why: "it has too many pages" });
        }
        Ok(true)
    }

    /// The plugin answered ABORTED: it does not know the token. Begins anew, unless that has been so too often.
    pub fn restart(&mut self) -> Result<(), Fault> {
        // The empty token cannot be a wrong one: something else is aborted.
        if self.token.is_empty() || self.restarts == Self::RESTARTS {
            return Err(Fault::EndlessList { why: "the plugin does not take its own tokens" });
        }
        self.restarts += 1;
        self.token.clear();
        self.seen.clear();
        Ok(())
    }
}
