//! Publishing a volume at a target path and taking it away again.
//!
//! The record says what was intended, the kernel what is there; the kernel wins. The intent is written before the mount
//! and forgotten after it is gone, so a driver that was killed in between finds its way.
use std::os::fd::OwnedFd;

use super::mounts::{Seen, Spot};
use super::record::{Publication, Record};
use super::refusal::Refusal;
use super::request::{AccessMode, TargetPath, VolumeId};
use super::volumes::{Locked, Volumes};
use crate::sys::kernel::Access;

/// What is to be done about a publication that is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// It is there as asked.
    Converged,
    /// It is there, but the record does not say so.
    Remember,
    /// It has to be mounted.
    Mount,
}

/// Publishes `volume` as asked. The same request again is success.
pub(super) fn publish(volumes: &Volumes, volume: &VolumeId, asked: Publication) -> Result<(), Refusal> {
    let missing = || Refusal::NoVolume { volume: volume.as_str().to_owned() };
    let mut locked = volumes.lock(volume)?.ok_or_else(missing)?;
    let data = locked.data()?;
    let target = asked.target.clone();
    let bad = |problem| Refusal::BadTarget { target: target.as_path().to_owned(), problem };
    let spot = Spot::open(&asked.target)?.ok_or_else(|| bad("its parent directory does not exist"))?;
    let seen = spot.look(volume, Some(&data))?;
    let elsewhere = published_elsewhere(&locked.record, &asked.target, &data)?;
    let access = if asked.is_read_only() { Access::ReadOnly } else { Access::ReadWrite };
    match next(seen, access, &locked.record, &asked, &elsewhere)? {
        Next::Converged => return Ok(()),
        Next::Remember => {
            locked.record.set(asked);
            return locked.save();
        }
        Next::Mount => {}
    }
    locked.record.set(asked.clone());
    locked.save()?;
    let mounted = spot.mount(&data, &asked.capability, access).and_then(|()| {
        // What the kernel shows decides, not that every call said yes.
        match spot.look(volume, Some(&data))? {
            Seen::Volume(found) if found == access => Ok(()),
            _ => Err(bad("the mount is not what was asked for")),
        }
    });
    if let Err(error) = mounted {
        undo(&mut locked, &spot, &data, &asked.target);
        return Err(error);
    }
    let target = asked.target.as_path().display();
    tracing::info!(volume = volume.as_str(), %target, read_only = asked.is_read_only(), "published");
    Ok(())
}

/// After a failed mount: nothing is there and nothing is owed. If that fails too, the record keeps the debt.
fn undo(locked: &mut Locked, spot: &Spot<'_>, data: &OwnedFd, target: &TargetPath) {
    if let Err(error) = take_back(locked, spot, data, target) {
        let volume = locked.record.id.as_str();
        tracing::warn!(volume, ?error, "a failed publication was not undone in full");
    }
}

fn take_back(
    locked: &mut Locked,
    spot: &Spot<'_>,
    data: &OwnedFd,
    target: &TargetPath,
) -> Result<(), Refusal> {
    match spot.unmount(&locked.record.id, Some(data))? {
        Seen::Directory => spot.remove()?,
        Seen::Nothing | Seen::NoDirectory | Seen::Foreign | Seen::Volume(_) => {}
    }
    locked.record.forget(target);
    locked.save()
}

/// The other publications of the volume that the kernel confirms.
fn published_elsewhere<'a>(
    record: &'a Record,
    target: &TargetPath,
    data: &OwnedFd,
) -> Result<Vec<&'a Publication>, Refusal> {
    let mut live = Vec::new();
    for other in record.publications.iter().filter(|other| other.target != *target) {
        if let Some(spot) = Spot::open(&other.target)?
            && matches!(spot.look(&record.id, Some(data))?, Seen::Volume(_))
        {
            live.push(other);
        }
    }
    Ok(live)
}

fn next(
    seen: Seen,
    access: Access,
    record: &Record,
    asked: &Publication,
    elsewhere: &[&Publication],
) -> Result<Next, Refusal> {
    let target = asked.target.as_path().to_owned();
    let known = record.at(&asked.target);
    match seen {
        Seen::Volume(found) => match known {
            Some(known) if known.capability != asked.capability => {
                Err(Refusal::PublishedOtherwise { target, what: "volume_capability" })
            }
            Some(known) if known.read_only != asked.read_only => {
                Err(Refusal::PublishedOtherwise { target, what: "readonly" })
            }
            _ if found != access => Err(Refusal::PublishedOtherwise { target, what: "readonly" }),
            Some(_) => Ok(Next::Converged),
            None => Ok(Next::Remember),
        },
        Seen::Foreign => Err(Refusal::BadTarget { target, problem: "something else is mounted there" }),
        Seen::NoDirectory => Err(Refusal::BadTarget { target, problem: "it is no directory" }),
        Seen::Nothing | Seen::Directory => match elsewhere.iter().find(|other| !may_share(other, asked)) {
            None => Ok(Next::Mount),
            Some(other) => {
                let by = format!("published at {}", other.target.as_path().display());
                Err(Refusal::InUse { volume: record.id.as_str().to_owned(), by })
            }
        },
    }
}

/// Only the mode made for it allows a second target.
fn may_share(one: &Publication, other: &Publication) -> bool {
    [one, other].iter().all(|publication| publication.capability.mode == AccessMode::MultiWriter)
}

/// Takes the volume away from `target`. Nothing there is success, whatever is known of the volume.
pub(super) fn unpublish(volumes: &Volumes, id: &str, target: &TargetPath) -> Result<(), Refusal> {
    let unknown = || Refusal::NoVolume { volume: id.to_owned() };
    let spot = Spot::open(target)?;
    let Some(volume) = VolumeId::parse(id) else {
        let mounted = spot.map_or(Ok(false), |spot| spot.is_mount_point())?;
        return if mounted { Err(unknown()) } else { Ok(()) };
    };
    // Teardown must work without the records too: the kernel knows whose directory is mounted.
    let locked = match volumes.lock(&volume) {
        Err(Refusal::Gone { .. } | Refusal::Damaged { .. }) => None,
        other => other?,
    };
    if let Some(spot) = spot {
        take_off(&spot, &volume, locked.as_ref(), target)?;
    }
    match locked {
        Some(mut locked) => {
            if locked.record.forget(target) {
                locked.save()
            } else {
                Ok(())
            }
        }
        None => Ok(()),
    }
}

fn take_off(
    spot: &Spot<'_>,
    volume: &VolumeId,
    locked: Option<&Locked>,
    target: &TargetPath,
) -> Result<(), Refusal> {
    let data = locked.and_then(|locked| locked.data().ok());
    let before = spot.look(volume, data.as_ref())?;
    let was_there = matches!(before, Seen::Volume(_));
    let bad = |problem| Refusal::BadTarget { target: target.as_path().to_owned(), problem };
    match spot.unmount(volume, data.as_ref())? {
        Seen::Directory if was_there || locked.is_some() => spot.remove()?,
        Seen::Nothing | Seen::Directory | Seen::NoDirectory => {}
        Seen::Foreign if locked.is_none() => {
            return Err(Refusal::NoVolume { volume: volume.as_str().to_owned() });
        }
        Seen::Foreign => return Err(bad("something else is mounted there")),
        Seen::Volume(_) => return Err(bad("it is mounted again and again")),
    }
    if was_there {
        tracing::info!(volume = volume.as_str(), target = %target.as_path().display(), "unpublished");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
