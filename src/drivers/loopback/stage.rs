//! Staging: the image of a volume is put behind a loop device of this node, and its file system is mounted.
//!
//! ```text
//! attached -> recorded -> formatted (a blank image only) -> behind a device -> mounted at the staging path
//! ```
//! A block volume stays at the device. Each step can be found by the next call, whoever was killed after it: the record
//! beside the node, the signature in the image, the label of the device, the mount at the path.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::attachment::Attachment;
use super::format::Formatting;
use super::image::{self, Content, FsType};
use super::volumes::Locked;
use super::{Core, device, grow};
use crate::drivers::publish::{Ledger, published_elsewhere};
use crate::drivers::record::{self, FORMAT, Publications};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{Capability, TargetPath, VolumeId};
use crate::drivers::spot::{Seen, Sought, Spot};
use crate::sys::kernel::{Access, DeviceId};
use crate::sys::real::boot_id;
use crate::sys::real::loops::{self, LoopDevice, Until};
use crate::sys::real::mounts;
use crate::sys::real::occupants::occupants;

/// What is remembered of a volume on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stage {
    format: u32,
    pub(super) staging: TargetPath,
    /// Of the attachment that it was staged under.
    pub(super) token: String,
    pub(super) capability: Capability,
    /// The device of a block volume, by which its targets are known even if it is taken away by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<DeviceId>,
    /// The boot in which it had that number. In the next one it may be another volume's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    boot: String,
    #[serde(flatten)]
    pub(super) publications: Publications,
}

/// That record in the directory of the node.
#[derive(Debug)]
pub(super) struct StageFile {
    home: OwnedFd,
    path: PathBuf,
    name: String,
    pub(super) stage: Stage,
}

impl StageFile {
    fn new(core: &Core, volume: &VolumeId, stage: Stage) -> Result<Self, Refusal> {
        let node = &core.node_id;
        let home = core.nodes.home(node)?.ok_or_else(|| Refusal::NoNode { node: node.clone() })?;
        Ok(Self { home, path: core.nodes.path(node), name: file_name(volume), stage })
    }

    pub(super) fn read(core: &Core, volume: &VolumeId) -> Result<Option<Self>, Refusal> {
        let node = &core.node_id;
        let Some(home) = core.nodes.home(node)? else { return Ok(None) };
        let (path, name) = (core.nodes.path(node), file_name(volume));
        let stage = record::read(&home, &name, || path.clone())?;
        Ok(stage.map(|stage| Self { home, path, name, stage }))
    }

    fn remove(&self) -> Result<(), Refusal> {
        match rustix::fs::unlinkat(&self.home, &self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Refusal::failed("remove", &self.path.join(&self.name))(error)),
        }
    }

    /// The devices that may show at its targets: those that are there, and the one that was.
    pub(super) fn device_ids(&self, devices: &[LoopDevice]) -> Vec<DeviceId> {
        let boot = boot_id().unwrap_or_default();
        devices.iter().map(|device| device.device).chain(self.stage.remembered(&boot)).collect()
    }
}

impl Stage {
    /// The device that it had, if that was in this boot.
    fn remembered(&self, boot: &str) -> Option<DeviceId> {
        self.device.filter(|_| !boot.is_empty() && self.boot == boot)
    }
}

fn file_name(volume: &VolumeId) -> String {
    format!("{}.json", volume.as_str())
}

impl Ledger for StageFile {
    fn publications(&self) -> &Publications {
        &self.stage.publications
    }

    fn publications_mut(&mut self) -> &mut Publications {
        &mut self.stage.publications
    }

    fn save(&self) -> Result<(), Refusal> {
        record::write(&self.home, &self.name, &self.stage, || self.path.clone())
    }
}

/// What a NodeStageVolume asks for.
pub(super) struct Asked {
    pub(super) context: BTreeMap<String, String>,
    pub(super) staging: TargetPath,
    pub(super) capability: Capability,
}

/// What is to be done about a stage that is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// It is there as asked.
    Converged,
    /// It is there, but the record does not say so.
    Remember,
    /// The device or the mount is missing.
    Make,
}

/// What was found of a volume on this node.
struct View<'a> {
    /// At the staging path. A block volume that has its device counts as seen there.
    seen: Seen,
    known: Option<&'a Stage>,
    /// The known stage is at another path and still there.
    elsewhere: bool,
}

/// Stages a volume as asked. The same request again is success.
pub(super) fn stage(core: &Core, volume: &VolumeId, asked: &Asked) -> Result<(), Refusal> {
    let missing = || Refusal::NoVolume { volume: volume.as_str().to_owned() };
    let locked = core.volumes.lock(volume)?.ok_or_else(missing)?;
    let attachment = locked.record.state.called(volume, &core.node_id, &asked.context)?;
    fits(volume, attachment, &asked.capability)?;
    let devices = device::all(volume)?;
    if let Some(stranger) = device::stranger(volume, &locked.record.state, &devices) {
        let by = format!("{} shows it under another attachment", stranger.path.display());
        return Err(Refusal::InUse { volume: volume.as_str().to_owned(), by });
    }
    let label = device::label(volume, attachment);
    let own = devices.iter().find(|device| device.label == label);
    let wanted = Stage {
        format: FORMAT,
        staging: asked.staging.clone(),
        token: attachment.token.clone(),
        capability: asked.capability.clone(),
        device: None,
        boot: String::new(),
        publications: Publications::default(),
    };
    let spot = Spot::open(&asked.staging)?.ok_or_else(|| no_directory(&asked.staging))?;
    let known = StageFile::read(core, volume)?;
    let known_stage = known.as_ref().map(|file| &file.stage);
    let view = View {
        seen: seen(volume, &spot, asked, own)?,
        known: known_stage,
        elsewhere: is_elsewhere(volume, known_stage, &wanted, own)?,
    };
    let next = next(volume, &view, &wanted)?;
    if next == Next::Converged {
        return Ok(());
    }
    let mut file = StageFile::new(core, volume, wanted)?;
    if let Some(known) = known {
        // What was published is taken down by its own call, whatever became of the stage.
        file.stage.publications = known.stage.publications;
        file.stage.device = known.stage.device;
        file.stage.boot = known.stage.boot;
    }
    effect!("csi stage");
    file.save()?;
    if next == Next::Remember {
        return Ok(());
    }
    // Where the call that let it grow was cut short.
    image::settle_size(&locked.home, &locked.path, locked.record.capacity)?;
    let at = Here { core, volume, locked: &locked, attachment, label: &label };
    if asked.capability.block {
        let device = at.device(own, Until::Detached)?.0;
        effect!("csi stage: device");
        file.stage.device = Some(device.device);
        file.stage.boot = boot_id().unwrap_or_default();
        file.save()?;
        tracing::info!(volume = volume.as_str(), device = %device.path.display(), "staged");
        return Ok(());
    }
    at.mount(own, asked, &spot)
}

/// A volume that is staged as it is attached, or for less.
fn fits(volume: &VolumeId, attachment: &Attachment, asked: &Capability) -> Result<(), Refusal> {
    let attached = &attachment.capability;
    let differs = |what| {
        let problem = format!("is attached with another {what} than it is to be staged with");
        Err(Refusal::Unfit { volume: volume.as_str().to_owned(), problem })
    };
    if attached.mode != asked.mode {
        differs("access_mode")
    } else if attached.block != asked.block {
        differs("access_type")
    } else if attached.fs_type != asked.fs_type {
        differs("fs_type")
    } else {
        Ok(())
    }
}

fn no_directory(staging: &TargetPath) -> Refusal {
    Refusal::BadTarget { target: staging.as_path().to_owned(), problem: "it is no directory" }
}

/// The volume as it shows at staging paths and targets, by any of these devices.
fn seen(
    volume: &VolumeId,
    spot: &Spot<'_>,
    asked: &Asked,
    own: Option<&LoopDevice>,
) -> Result<Seen, Refusal> {
    let ids: Vec<_> = own.iter().map(|device| device.device).collect();
    let is_here = |root: &_| device::shows(&ids, root);
    let is_its = |row: &_| device::is_its(&ids, row);
    let seen = spot.look(&Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its })?;
    // Nothing is mounted there for a block volume.
    Ok(match (seen, own) {
        (Seen::Directory, Some(_)) if asked.capability.block => Seen::Volume(Access::ReadWrite),
        (seen, _) => seen,
    })
}

fn is_elsewhere(
    volume: &VolumeId,
    known: Option<&Stage>,
    wanted: &Stage,
    own: Option<&LoopDevice>,
) -> Result<bool, Refusal> {
    let (Some(known), Some(own)) = (known, own) else { return Ok(false) };
    if known.staging == wanted.staging {
        return Ok(false);
    }
    if known.capability.block {
        return Ok(true);
    }
    let is_here = |root: &_| device::shows(&[own.device], root);
    let is_its = |row: &_| device::is_its(&[own.device], row);
    let sought = Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its };
    let seen = Spot::open(&known.staging)?.map(|spot| spot.look(&sought)).transpose()?;
    Ok(matches!(seen, Some(Seen::Volume(_))))
}

fn next(volume: &VolumeId, view: &View<'_>, wanted: &Stage) -> Result<Next, Refusal> {
    let staging = || wanted.staging.as_path().to_owned();
    let bad = |problem| Err(Refusal::BadTarget { target: staging(), problem });
    if let Some(known) = view.known
        && view.elsewhere
    {
        let by = format!("staged at {}", known.staging.as_path().display());
        return Err(Refusal::InUse { volume: volume.as_str().to_owned(), by });
    }
    match view.seen {
        Seen::Volume(_) => match view.known {
            Some(known) if known.capability != wanted.capability => {
                Err(Refusal::StagedOtherwise { staging: staging(), what: "volume_capability" })
            }
            Some(known) if known.token == wanted.token && known.staging == wanted.staging => {
                Ok(Next::Converged)
            }
            Some(_) | None => Ok(Next::Remember),
        },
        Seen::Directory => Ok(Next::Make),
        Seen::Nothing | Seen::File | Seen::Odd => bad("it is no directory"),
        Seen::Foreign => bad("something else is mounted there; unmount that"),
        Seen::Dead => bad("its file system does not answer any more; it has to be unstaged first"),
    }
}

/// One volume on this node, attached and locked.
struct Here<'a> {
    core: &'a Core,
    volume: &'a VolumeId,
    locked: &'a Locked,
    attachment: &'a Attachment,
    label: &'a str,
}

impl Here<'_> {
    /// The device of this attachment, made if there is none. As long as the descriptor is there, so is the device.
    fn device(&self, own: Option<&LoopDevice>, until: Until) -> Result<(LoopDevice, OwnedFd), Refusal> {
        let path = &self.locked.path;
        let failed = || Refusal::failed("attach a loop device to the image in", path);
        if let Some(own) = own
            && let Some(held) = loops::reopen(own).map_err(failed())?
        {
            return Ok((own.clone(), held));
        }
        let read_only = self.attachment.is_read_only();
        let image = self.locked.image(read_only)?;
        effect!("csi stage: attach");
        loops::attach(&image, self.label, read_only, until).map_err(failed())
    }

    fn mount(&self, own: Option<&LoopDevice>, asked: &Asked, spot: &Spot<'_>) -> Result<(), Refusal> {
        let fs = match own {
            // Somebody formatted it before it was attached.
            Some(_) => self.filesystem(asked)?.ok_or_else(|| self.unfit("lost its file system".into()))?,
            None => self.formatted(asked)?,
        };
        let flags = &asked.capability.mount_flags;
        let reads = self.attachment.is_read_only() || flags.iter().any(|flag| flag == "ro");
        let access = if reads { Access::ReadOnly } else { Access::ReadWrite };
        if own.is_none() && access == Access::ReadWrite && !grow::is_online(fs) && self.is_small(fs)? {
            self.formatting().grow_ext4()?;
        }
        // As long as the descriptor is there, so is the device.
        let mut behind = self.device(own, Until::Unused)?;
        effect!("csi stage: device");
        let mut own_options: Vec<_> = flags.iter().map(String::as_str).filter(|flag| is_own(flag)).collect();
        if fs == FsType::Xfs {
            // A clone has the id of what it was made from, and both may be mounted here.
            own_options.push("nouuid");
        }
        let mut mounted = mounts::filesystem(fs.name(), &behind.0.path, &own_options, access);
        if own.is_none() && mounted.as_ref().is_err_and(|refused| refused.errno == Errno::ROFS) {
            drop(behind);
            self.recover(fs, &own_options)?;
            behind = self.device(None, Until::Unused)?;
            mounted = mounts::filesystem(fs.name(), &behind.0.path, &own_options, access);
        }
        let (device, _held) = behind;
        let mount = mounted.map_err(|refused| self.not_mounted(refused))?;
        if access == Access::ReadWrite {
            self.grow(fs, &mount)?;
        }
        spot.put(&mount)?;
        effect!("csi stage: mounted");
        match seen(self.volume, spot, asked, Some(&device))? {
            Seen::Volume(_) => {}
            _ => {
                let target = asked.staging.as_path().to_owned();
                return Err(Refusal::BadTarget { target, problem: "the mount is not what was asked for" });
            }
        }
        let (volume, device) = (self.volume.as_str(), device.path.display());
        tracing::info!(volume, %device, fs_type = fs.name(), staging = %asked.staging.as_path().display(), "staged");
        Ok(())
    }

    /// Lets the file system finish what its journal says was begun, which it cannot do on a device that is not to be written: so
    /// it is where a writer's machine went down, and in each snapshot of XFS that was in use.
    fn recover(&self, fs: FsType, options: &[&str]) -> Result<(), Refusal> {
        let failed = Refusal::failed("attach a loop device to the image in", &self.locked.path);
        let image = self.locked.image(false)?;
        effect!("csi stage: recover");
        let (device, _held) = loops::attach(&image, self.label, false, Until::Unused).map_err(failed)?;
        // Mounted nowhere, and gone with its descriptor.
        let mounted = mounts::filesystem(fs.name(), &device.path, options, Access::ReadWrite);
        drop(mounted.map_err(|refused| self.not_mounted(refused))?);
        effect!("csi stage: recovered");
        tracing::info!(volume = self.volume.as_str(), fs_type = fs.name(), "its journal was replayed");
        Ok(())
    }

    fn not_mounted(&self, refused: mounts::NotMounted) -> Refusal {
        let error = std::io::Error::from(refused.errno);
        let told = if refused.words.is_empty() { String::new() } else { format!(": {}", refused.words) };
        let source = std::io::Error::new(error.kind(), format!("{error}{told}"));
        Refusal::Failed { step: "mount the file system of", path: self.locked.path.clone(), source }
    }

    /// Whether the file system may have been made smaller: in what this is a copy of, or before the volume grew.
    fn is_small(&self, fs: FsType) -> Result<bool, Refusal> {
        let has = image::filesystem_bytes(&self.locked.image(true)?, fs);
        let has = has.map_err(Refusal::failed("read the image in", &self.locked.path))?;
        Ok(grow::is_small(has, self.locked.record.capacity))
    }

    /// Lets the file system have all of the volume.
    fn grow(&self, fs: FsType, mount: &OwnedFd) -> Result<(), Refusal> {
        if grow::is_online(fs) && self.is_small(fs)? {
            let bytes = self.locked.record.capacity;
            let grown = grow::root(mount).and_then(|root| grow::filesystem(fs, root, bytes));
            grown.map_err(Refusal::failed("grow the file system of", &self.locked.path))?;
            effect!("csi stage: grown");
            tracing::info!(volume = self.volume.as_str(), bytes, "grown");
        }
        Ok(())
    }

    fn formatting(&self) -> Formatting<'_> {
        Formatting {
            volume: self.volume.as_str(),
            home: &self.locked.home,
            path: &self.locked.path,
            capacity: self.locked.record.capacity,
            programs: &self.core.programs,
        }
    }

    fn unfit(&self, problem: String) -> Refusal {
        Refusal::Unfit { volume: self.volume.as_str().to_owned(), problem }
    }

    /// The file system in the image, if it is not blank.
    fn filesystem(&self, asked: &Asked) -> Result<Option<FsType>, Refusal> {
        let image = self.locked.image(true)?;
        let content =
            image::probe(&image).map_err(Refusal::failed("read the image in", &self.locked.path))?;
        let named = &asked.capability.fs_type;
        match content {
            Content::Blank => Ok(None),
            Content::Filesystem(found) if named.is_empty() || found.name() == named => Ok(Some(found)),
            Content::Filesystem(found) => Err(self.unfit(format!("holds {}, not {named}", found.name()))),
            Content::Other(what) => Err(self.unfit(format!("holds {what}; it is not formatted"))),
            Content::Unknown => Err(self.unfit("holds data of an unknown kind; it is not formatted".into())),
        }
    }

    /// The file system in the image, made if that is blank. No device shows the image.
    fn formatted(&self, asked: &Asked) -> Result<FsType, Refusal> {
        if let Some(found) = self.filesystem(asked)? {
            return Ok(found);
        }
        if self.attachment.is_read_only() {
            return Err(self.unfit(
                "is blank, and attached read-only: it cannot be formatted; somebody has to write to it first, or it is filled from a snapshot or a claim"
                    .into(),
            ));
        }
        let name = &asked.capability.fs_type;
        let fs = FsType::parse(name).ok_or_else(|| self.unfit(format!("cannot be formatted as {name:?}")))?;
        self.formatting().format(fs)?;
        Ok(fs)
    }
}

/// Options that belong to the file system and not to one place where it is mounted.
fn is_own(option: &str) -> bool {
    matches!(option, "discard" | "sync" | "dirsync" | "lazytime")
}

/// Takes the volume away from the staging path and from its device. Nothing there is success, whatever is known of the
/// volume and of its attachment.
pub(super) fn unstage(core: &Core, volume: &VolumeId, staging: &TargetPath) -> Result<(), Refusal> {
    // Teardown must work without the records too: the kernel knows whose device is whose.
    let _locked = match core.volumes.lock(volume) {
        Err(Refusal::Gone { .. } | Refusal::Damaged { .. }) => None,
        other => other?,
    };
    let file = match StageFile::read(core, volume) {
        Err(Refusal::Damaged { path, .. }) => {
            tracing::warn!(path = %path.display(), "unstaging without the record, which is damaged");
            None
        }
        other => other?,
    };
    let devices = device::of_node(volume, &core.node_id)?;
    let ids = file.as_ref().map_or_else(
        || devices.iter().map(|device| device.device).collect(),
        |file| file.device_ids(&devices),
    );
    let is_here = |root: &_| device::shows(&ids, root);
    let is_its = |row: &_| device::is_its(&ids, row);
    let sought = Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its };
    let in_use = |by| Err(Refusal::InUse { volume: volume.as_str().to_owned(), by });
    if let Some(file) = &file
        && let Some(other) = published_elsewhere(&file.stage.publications, staging, &sought)?.first()
    {
        return in_use(format!("published at {}", other.target.as_path().display()));
    }
    // Nothing is mounted for a block volume: only the record tells where it is staged.
    if let Some(file) = &file
        && file.stage.capability.block
        && file.stage.staging != *staging
        && !devices.is_empty()
    {
        return in_use(format!("staged at {}", file.stage.staging.as_path().display()));
    }
    if let Some(spot) = Spot::open(staging)?
        && spot.unmount(&sought)? == Seen::Foreign
        && !devices.is_empty()
    {
        return in_use(format!("what is mounted at {} is not it", staging.as_path().display()));
    }
    effect!("csi unstage: unmounted");
    for device in device::of_node(volume, &core.node_id)? {
        let failed = || Refusal::failed("detach", &device.path);
        if let Some(place) = device::mounts(device.device).map_err(failed())?.first() {
            return in_use(format!("mounted at {}", place.display()));
        }
        loops::detach(&device).map_err(failed())?;
        effect!("csi unstage: detached");
    }
    if let Some(device) = left(core, volume)? {
        let place = users_of(&device);
        return Err(Refusal::Busy { volume: volume.as_str().to_owned(), device: device.path, place });
    }
    if let Some(file) = file {
        file.remove()?;
        tracing::info!(volume = volume.as_str(), "unstaged");
    }
    Ok(())
}

/// How many of those who use a device are named.
const NAMED: usize = 3;

/// Who uses a device: in a mount namespace of their own, or by a descriptor.
fn users_of(device: &LoopDevice) -> String {
    let users = occupants(device.device, &device.path);
    if users.is_empty() {
        return "somewhere that this driver does not see".to_owned();
    }
    let named: Vec<&str> = users.iter().take(NAMED).map(String::as_str).collect();
    let more = users.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("in {}{rest}; that has to go first", named.join(", "))
}

/// How long whoever let go of a device last may take for it: a process that ends, whose copy of the mount went a moment after ours,
/// is putting the file system away still. The kernel says nothing when that is done.
const LAST_HAND: Duration = Duration::from_millis(500);

/// A device of the volume on this node that stays though it was detached.
fn left(core: &Core, volume: &VolumeId) -> Result<Option<LoopDevice>, Refusal> {
    let (end, mut pause) = (Instant::now() + LAST_HAND, Duration::from_millis(1));
    loop {
        let left = device::of_node(volume, &core.node_id)?.into_iter().next();
        if left.is_none() || Instant::now() >= end {
            return Ok(left);
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::request::AccessMode;

    #[test]
    fn a_number_of_before_the_last_boot_is_nobodys() {
        let mode = AccessMode::Writer;
        let capability = Capability { mode, block: true, fs_type: String::new(), mount_flags: vec![] };
        let mut stage = Stage {
            format: FORMAT,
            staging: crate::drivers::request::path("staging_target_path", "/staging").unwrap(),
            token: "t".into(),
            capability,
            device: Some(DeviceId { major: 7, minor: 3 }),
            boot: "this".into(),
            publications: Publications::default(),
        };
        assert_eq!(stage.remembered("this"), stage.device);
        for (told, boot) in [("this", "next"), ("", "next"), ("", "")] {
            told.clone_into(&mut stage.boot);
            assert_eq!(stage.remembered(boot), None, "{told} {boot}");
        }
    }
}
