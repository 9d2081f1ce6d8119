//! What publishing a directory means: its bind mount is the volume, and the kernel knows whose directory is mounted.
use std::os::fd::OwnedFd;

use super::mounts;
use super::volumes::open_data;
use crate::drivers::homes::Homes;
use crate::drivers::publish::{self, Expected, Source, take_off};
use crate::drivers::record::{Publication, Publications};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{TargetPath, VolumeId};
use crate::drivers::spot::{Leaf, Seen, Sought, Spot};

/// Publishes `volume`, which the caller knows by `handle`, as asked. The same request again is success.
pub(super) fn publish(
    homes: &Homes<Publications>,
    (volume, handle): (&VolumeId, &str),
    asked: &Publication,
) -> Result<(), Refusal> {
    let missing = || Refusal::NoVolume { volume: handle.to_owned() };
    let mut locked = homes.lock(volume)?.ok_or_else(missing)?;
    let data = open_data(&locked.home, &locked.path)?;
    let is_here = |here: &_| mounts::is_here(volume, Some(&data), here);
    let sought = Sought { volume: handle, is_here: &is_here, is_its: &|row| mounts::is_its(volume, row) };
    let source = Source { sought, what: &data, leaf: Leaf::Directory, prepare: &|_| Ok(()) };
    publish::publish(&mut locked, &source, asked)
}

/// Takes the volume away from `target`. Nothing there is success, whatever is known of the volume.
pub(super) fn unpublish(
    homes: &Homes<Publications>,
    volume: &VolumeId,
    target: &TargetPath,
) -> Result<(), Refusal> {
    // Teardown must work without the records too: the kernel knows whose directory is mounted.
    let mut locked = match homes.lock(volume) {
        Err(Refusal::Gone { .. } | Refusal::Damaged { .. }) => None,
        other => other?,
    };
    if let Some(spot) = Spot::open(target)? {
        let data = locked.as_ref().and_then(|locked| open_data(&locked.home, &locked.path).ok());
        let is_here = |here: &_| mounts::is_here(volume, data.as_ref(), here);
        let expected = match locked {
            Some(_) => Expected::Recorded(Some(Leaf::Directory)),
            None => Expected::Unknown,
        };
        let is_its = |row: &_| mounts::is_its(volume, row);
        let sought = Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its };
        take_off(&spot, &sought, expected, target)?;
    }
    if let Some(locked) = &mut locked
        && locked.record.state.forget(target)
    {
        return locked.save();
    }
    Ok(())
}

/// Whether the volume, whose directory is `data`, is to be seen at `path`.
pub(super) fn is_at(volume: &VolumeId, data: &OwnedFd, path: &TargetPath) -> Result<bool, Refusal> {
    let Some(spot) = Spot::open(path)? else { return Ok(false) };
    let is_here = |here: &_| mounts::is_here(volume, Some(data), here);
    let is_its = |row: &_| mounts::is_its(volume, row);
    let seen = spot.look(&Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its })?;
    Ok(matches!(seen, Seen::Volume(_)))
}
