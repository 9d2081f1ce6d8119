//! Publishing a volume at a target path and taking it away again.
//!
//! The record says what was intended, the kernel what is there; the kernel wins. The intent is written before the mount
//! and forgotten after it is gone, so a driver that was killed in between finds its way.
use std::os::fd::OwnedFd;

use super::record::{Publication, Publications};
use super::refusal::Refusal;
use super::request::TargetPath;
use super::spot::{Leaf, Seen, Sought, Spot};
use crate::sys::kernel::Access;

/// Where the publications of one volume are remembered; no other call has it meanwhile.
pub(super) trait Ledger {
    fn publications(&self) -> &Publications;
    fn publications_mut(&mut self) -> &mut Publications;
    /// Makes changes last.
    fn save(&self) -> Result<(), Refusal>;
}

/// The volume as it is to be seen at a target.
pub(super) struct Source<'a> {
    pub(super) sought: Sought<'a>,
    /// The directory or device node that is put there.
    pub(super) what: &'a OwnedFd,
    pub(super) leaf: Leaf,
    /// Done before the mount, with what all who have the volume then may do between them.
    pub(super) prepare: &'a dyn Fn(Access) -> Result<(), Refusal>,
}

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

/// Publishes a volume as asked. The same request again is success.
pub(super) fn publish(
    ledger: &mut impl Ledger,
    source: &Source<'_>,
    asked: &Publication,
) -> Result<(), Refusal> {
    let bad = |problem| Refusal::BadTarget { target: asked.target.as_path().to_owned(), problem };
    let spot = Spot::open(&asked.target)?.ok_or_else(|| bad("its parent directory does not exist"))?;
    let seen = match spot.look(&source.sought)? {
        // Nobody can use it: it makes way for what is asked for.
        Seen::Dead => spot.unmount(&source.sought)?,
        seen => seen,
    };
    let elsewhere = published_elsewhere(ledger.publications(), &asked.target, &source.sought)?;
    let access = if asked.is_read_only() { Access::ReadOnly } else { Access::ReadWrite };
    let view = View { volume: source.sought.volume, leaf: source.leaf, seen, elsewhere: &elsewhere };
    match next(&view, ledger.publications(), asked, access)? {
        Next::Converged => return Ok(()),
        Next::Remember => {
            ledger.publications_mut().set(asked.clone());
            return ledger.save();
        }
        Next::Mount => {}
    }
    ledger.publications_mut().set(asked.clone());
    ledger.save()?;
    effect!("csi publish");
    let mounted = (source.prepare)(between(access, &elsewhere))
        .and_then(|()| spot.mount(source.what, source.leaf, &asked.capability, access))
        .and_then(|()| match spot.look(&source.sought)? {
            // What the kernel shows decides, not that every call said yes.
            Seen::Volume(found) if found == access => Ok(()),
            _ => Err(bad("the mount is not what was asked for")),
        });
    effect!("csi publish: mounted");
    if let Err(error) = mounted {
        undo(ledger, &spot, source, &asked.target);
        return Err(error);
    }
    let target = asked.target.as_path().display();
    tracing::info!(volume = source.sought.volume, %target, read_only = asked.is_read_only(), "published");
    Ok(())
}

/// After a failed mount: nothing is there and nothing is owed. If that fails too, the record keeps the debt.
fn undo(ledger: &mut impl Ledger, spot: &Spot<'_>, source: &Source<'_>, target: &TargetPath) {
    if let Err(error) = take_back(ledger, spot, source, target) {
        let volume = source.sought.volume;
        tracing::warn!(volume, ?error, "a failed publication was not undone in full");
    }
}

fn take_back(
    ledger: &mut impl Ledger,
    spot: &Spot<'_>,
    source: &Source<'_>,
    target: &TargetPath,
) -> Result<(), Refusal> {
    match (spot.unmount(&source.sought)?, source.leaf) {
        (Seen::Directory, Leaf::Directory) | (Seen::File, Leaf::File) => spot.remove(source.leaf)?,
        (
            Seen::Nothing
            | Seen::Directory
            | Seen::File
            | Seen::Odd
            | Seen::Foreign
            | Seen::Volume(_)
            | Seen::Dead,
            Leaf::Directory | Leaf::File,
        ) => {}
    }
    ledger.publications_mut().forget(target);
    ledger.save()
}

/// The other publications of the volume that the kernel confirms.
pub(super) fn published_elsewhere(
    publications: &Publications,
    target: &TargetPath,
    sought: &Sought<'_>,
) -> Result<Vec<Publication>, Refusal> {
    let mut live = Vec::new();
    for other in publications.iter().filter(|other| other.target != *target) {
        if let Some(spot) = Spot::open(&other.target)?
            && matches!(spot.look(sought)?, Seen::Volume(_))
        {
            live.push(other.clone());
        }
    }
    Ok(live)
}

/// What the kernel shows of a volume.
struct View<'a> {
    volume: &'a str,
    leaf: Leaf,
    seen: Seen,
    elsewhere: &'a [Publication],
}

fn next(view: &View<'_>, known: &Publications, asked: &Publication, access: Access) -> Result<Next, Refusal> {
    let target = || asked.target.as_path().to_owned();
    let bad = |problem| Err(Refusal::BadTarget { target: target(), problem });
    let otherwise = |what| Err(Refusal::PublishedOtherwise { target: target(), what });
    match (view.seen, view.leaf) {
        (Seen::Volume(found), _) => match known.at(&asked.target) {
            Some(known) if known.capability != asked.capability => otherwise("volume_capability"),
            Some(known) if known.read_only != asked.read_only => otherwise("readonly"),
            _ if found != access => otherwise("readonly"),
            Some(_) => Ok(Next::Converged),
            None => Ok(Next::Remember),
        },
        (Seen::Foreign, _) => bad("something else is mounted there; unmount that"),
        (Seen::Dead, _) => bad("what is mounted there does not answer, and is mounted again and again"),
        (Seen::File | Seen::Odd, Leaf::Directory) => bad("it is no directory"),
        (Seen::Directory | Seen::Odd, Leaf::File) => bad("it is no regular file"),
        (Seen::Nothing, _) | (Seen::Directory, Leaf::Directory) | (Seen::File, Leaf::File) => {
            match view.elsewhere.iter().find(|other| !may_share(other, asked)) {
                None => Ok(Next::Mount),
                Some(other) => {
                    let by = format!("published at {}", other.target.as_path().display());
                    Err(Refusal::InUse { volume: view.volume.to_owned(), by })
                }
            }
        }
    }
}

/// Only the modes made for it allow a second target.
fn may_share(one: &Publication, other: &Publication) -> bool {
    one.capability.mode == other.capability.mode && one.capability.mode.is_for_targets()
}

/// What one that has `access` and all the others may do between them: one writes as soon as any of them does.
fn between(access: Access, others: &[Publication]) -> Access {
    match access {
        Access::ReadOnly if others.iter().all(Publication::is_read_only) => Access::ReadOnly,
        Access::ReadOnly | Access::ReadWrite => Access::ReadWrite,
    }
}

/// What those that stay when `target` goes may do between them; absent when nobody stays.
pub(super) fn left(
    publications: &Publications,
    target: &TargetPath,
    sought: &Sought<'_>,
) -> Result<Option<Access>, Refusal> {
    let stay = published_elsewhere(publications, target, sought)?;
    Ok((!stay.is_empty()).then(|| between(Access::ReadOnly, &stay)))
}

/// Takes whatever of the volume is at `target` off; nothing there is success. Where the caller has no
/// record of the volume, only what was seen to be the volume's is removed, and a stranger's mount is another volume's.
pub(super) fn take_off(
    spot: &Spot<'_>,
    sought: &Sought<'_>,
    expected: Expected,
    target: &TargetPath,
) -> Result<(), Refusal> {
    let before = spot.look(sought)?;
    let was_there = matches!(before, Seen::Volume(_) | Seen::Dead);
    let bad = |problem| Refusal::BadTarget { target: target.as_path().to_owned(), problem };
    let made = |leaf| was_there || expected == Expected::Recorded(Some(leaf));
    match spot.unmount(sought)? {
        Seen::Directory if made(Leaf::Directory) => spot.remove(Leaf::Directory)?,
        Seen::File if made(Leaf::File) => spot.remove(Leaf::File)?,
        Seen::Nothing | Seen::Directory | Seen::File | Seen::Odd => {}
        Seen::Foreign if expected == Expected::Unknown => {
            return Err(Refusal::NoVolume { volume: sought.volume.to_owned() });
        }
        Seen::Foreign => return Err(bad("something else is mounted there; unmount that")),
        Seen::Volume(_) | Seen::Dead => return Err(bad("it is mounted again and again")),
    }
    if was_there {
        tracing::info!(volume = sought.volume, target = %target.as_path().display(), "unpublished");
    }
    Ok(())
}

/// Whether there is a record of a volume that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// There is, and this is what may have been made at the target.
    Recorded(Option<Leaf>),
    /// There is none.
    Unknown,
}

/// For an id that is none of this driver's: nothing at the target is success, a mount is another volume's.
pub(super) fn take_off_unknown(volume: &str, target: &TargetPath) -> Result<(), Refusal> {
    let mounted = Spot::open(target)?.map_or(Ok(false), |spot| spot.is_mount_point())?;
    if mounted { Err(Refusal::NoVolume { volume: volume.to_owned() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
