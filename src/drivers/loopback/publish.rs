//! What publishing means here: a bind of the staged file system, or of the device node, at the target.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::stage::StageFile;
use super::{Core, device};
use crate::drivers::publish::{self, Expected, Source, take_off};
use crate::drivers::record::Publication;
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{TargetPath, VolumeId};
use crate::drivers::spot::{Leaf, Seen, Sought, Spot};
use crate::sys::kernel::Access;
use crate::sys::real::loops::{self, LoopDevice};

/// What a NodePublishVolume asks for.
pub(super) struct Asked {
    pub(super) context: BTreeMap<String, String>,
    pub(super) staging: TargetPath,
    pub(super) publication: Publication,
}

/// Publishes a volume that is staged. The same request again is success.
pub(super) fn publish(core: &Core, volume: &VolumeId, asked: &Asked) -> Result<(), Refusal> {
    let missing = || Refusal::NoVolume { volume: volume.as_str().to_owned() };
    let locked = core.volumes.lock(volume)?.ok_or_else(missing)?;
    let attachment = locked.record.state.called(volume, &core.node_id, &asked.context)?;
    let not_staged = || Refusal::NotStaged {
        volume: volume.as_str().to_owned(),
        staging: asked.staging.as_path().to_owned(),
    };
    let mut file = StageFile::read(core, volume)?.ok_or_else(not_staged)?;
    let device = device::of_attachment(volume, attachment)?.ok_or_else(not_staged)?;
    let capability = &asked.publication.capability;
    let differs = |what| {
        let problem = format!("is staged with another {what}");
        Err(Refusal::Unfit { volume: volume.as_str().to_owned(), problem })
    };
    if file.stage.staging != asked.staging || file.stage.token != attachment.token {
        return Err(not_staged());
    }
    if file.stage.capability.block != capability.block {
        return differs("access_type");
    }
    if file.stage.capability.mode != capability.mode {
        return differs("access_mode");
    }
    if attachment.is_read_only() && !asked.publication.is_read_only() {
        let problem = "is attached read-only: readonly must be set".to_owned();
        return Err(Refusal::Unfit { volume: volume.as_str().to_owned(), problem });
    }
    let ids = file.device_ids(std::slice::from_ref(&device));
    let is_here = |root: &_| device::shows(&ids, root);
    let is_its = |row: &_| device::is_its(&ids, row);
    let sought = Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its };
    let what = if capability.block {
        device_node(&device)?
    } else {
        staged(&asked.staging, &sought)?.ok_or_else(not_staged)?
    };
    // A mount that is read-only keeps nobody from writing to the device behind a device node. Nothing here keeps a reader
    // from it beside a writer: the device is one, and who runs the reader gives it the node for reading.
    let writable = |access| {
        let failed = Refusal::failed("change", &device.path);
        loops::set_writable(&device, access == Access::ReadWrite).map_err(failed)
    };
    let settled = |_| Ok(());
    let source = if capability.block && !device.read_only {
        Source { sought, what: &what, leaf: Leaf::File, prepare: &writable }
    } else {
        let leaf = if capability.block { Leaf::File } else { Leaf::Directory };
        Source { sought, what: &what, leaf, prepare: &settled }
    };
    publish::publish(&mut file, &source, &asked.publication)
}

fn device_node(device: &LoopDevice) -> Result<OwnedFd, Refusal> {
    rustix::fs::open(&device.path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(Refusal::failed("open", &device.path))
}

/// The root of the staged file system, if it is there.
fn staged(staging: &TargetPath, sought: &Sought<'_>) -> Result<Option<OwnedFd>, Refusal> {
    let Some(spot) = Spot::open(staging)? else { return Ok(None) };
    match spot.look(sought)? {
        Seen::Volume(_) => spot.open_leaf().map(Some).map_err(Refusal::failed("open", staging.as_path())),
        Seen::Nothing | Seen::Directory | Seen::File | Seen::Dead | Seen::Foreign | Seen::Odd => Ok(None),
    }
}

/// Takes the volume away from `target`. Nothing there is success, whatever is known of the volume.
pub(super) fn unpublish(core: &Core, volume: &VolumeId, target: &TargetPath) -> Result<(), Refusal> {
    // Teardown must work without the records too: the kernel knows whose device is whose.
    let _locked = match core.volumes.lock(volume) {
        Err(Refusal::Gone { .. } | Refusal::Damaged { .. }) => None,
        other => other?,
    };
    let file = match StageFile::read(core, volume) {
        Err(Refusal::Damaged { .. }) => None,
        other => other?,
    };
    let devices = device::of_node(volume, &core.node_id)?;
    let ids = match &file {
        Some(file) => file.device_ids(&devices),
        None => devices.iter().map(|device| device.device).collect(),
    };
    let is_here = |root: &_| device::shows(&ids, root);
    let is_its = |row: &_| device::is_its(&ids, row);
    let sought = Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its };
    let leaf = |block: bool| if block { Leaf::File } else { Leaf::Directory };
    let expected = match &file {
        Some(file) => {
            Expected::Recorded(file.stage.publications.at(target).map(|known| leaf(known.capability.block)))
        }
        None => Expected::Unknown,
    };
    if let Some(spot) = Spot::open(target)? {
        take_off(&spot, &sought, expected, target)?;
    }
    if let Some(file) = &file {
        settle(file, &devices, &sought, target)?;
    }
    if let Some(mut file) = file
        && file.stage.publications.forget(target)
    {
        return publish::Ledger::save(&file);
    }
    Ok(())
}

/// Where only readers of a device stay behind the one that leaves, nobody writes to it from now on.
fn settle(
    file: &StageFile,
    devices: &[LoopDevice],
    sought: &Sought<'_>,
    leaving: &TargetPath,
) -> Result<(), Refusal> {
    let publications = &file.stage.publications;
    if !file.stage.capability.block || publish::left(publications, leaving, sought)? != Some(Access::ReadOnly)
    {
        return Ok(());
    }
    for device in devices.iter().filter(|device| !device.read_only) {
        loops::set_writable(device, false).map_err(Refusal::failed("change", &device.path))?;
    }
    Ok(())
}
