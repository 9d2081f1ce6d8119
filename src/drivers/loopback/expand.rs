//! What is asked of a volume where it is staged or published: how full it is, and to take the room that it was given.
use std::os::fd::OwnedFd;

use super::image::{self, Content};
use super::stage::StageFile;
use super::{Core, device, grow};
use crate::csi::proto;
use crate::drivers::listing::wire;
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{self, TargetPath, VolumeId};
use crate::drivers::spot::{Seen, Sought, Spot};
use crate::drivers::stats;
use crate::sys::real::loops::{self, LoopDevice};

/// A volume where the caller says it is.
enum Place {
    /// The root of its file system there.
    Filesystem(OwnedFd),
    /// Its device.
    Device(LoopDevice),
}

impl Core {
    /// Looks without waiting for a call on the volume, and keeps none waiting.
    pub(super) fn stats(
        &self,
        asked: &proto::NodeGetVolumeStatsRequest,
    ) -> Result<proto::NodeGetVolumeStatsResponse, Refusal> {
        let (id, path) = stats::asked(asked)?;
        let missing = || Refusal::NoVolume { volume: id.as_str().to_owned() };
        self.volumes.homes.find(&id)?.ok_or_else(missing)?;
        let failed = || Refusal::failed("look at", path.as_path());
        match self.place(&id, &path)? {
            Place::Filesystem(root) => {
                let (bytes, entries) = (stats::bytes(&root), stats::entries(&root));
                Ok(stats::answer(bytes.map_err(failed())?, entries.map_err(failed())?))
            }
            Place::Device(device) => {
                let bytes = loops::capacity(&device).map_err(Refusal::failed("look at", &device.path))?;
                Ok(stats::of_device(bytes))
            }
        }
    }

    /// Lets device and file system have what the volume has by now. All of it already is success.
    pub(super) fn expand_here(
        &self,
        asked: &proto::NodeExpandVolumeRequest,
    ) -> Result<proto::NodeExpandVolumeResponse, Refusal> {
        let id = request::volume_id(&asked.volume_id)?;
        let path = request::path("volume_path", &asked.volume_path)?;
        let size = request::size(asked.capacity_range.as_ref())?;
        request::any_capability(asked.volume_capability.as_ref(), self)?;
        let missing = || Refusal::NoVolume { volume: asked.volume_id.clone() };
        let id = id.ok_or_else(missing)?;
        let locked = self.volumes.lock(&id)?.ok_or_else(missing)?;
        let place = self.place(&id, &path)?;
        let capacity = locked.record.capacity;
        if let Some(wanted) = request::grown(&id, size, capacity)? {
            let asked = format!("{wanted} are asked for: ControllerExpandVolume has to come first");
            return Err(Refusal::OutOfReach { volume: id.as_str().to_owned(), capacity, asked });
        }
        image::settle_size(&locked.home, &locked.path, capacity)?;
        effect!("csi node expand");
        let device = match &place {
            Place::Device(device) => device.clone(),
            Place::Filesystem(_) => {
                let devices = device::of_node(&id, &self.node_id)?;
                devices.into_iter().next().ok_or_else(|| not_there(&id, &path))?
            }
        };
        let failed = || Refusal::failed("grow the file system of", &locked.path);
        let bytes = loops::reread_capacity(&device).map_err(Refusal::failed("grow", &device.path))?;
        effect!("csi node expand: device");
        if let Place::Filesystem(_) = place {
            let unfit =
                |problem: &str| Refusal::Unfit { volume: id.as_str().to_owned(), problem: problem.into() };
            let image = locked.image(true)?;
            let Content::Filesystem(fs) = image::probe(&image).map_err(failed())? else {
                return Err(unfit("holds no file system that grows"));
            };
            // Not at the path that was named: it may be read-only there.
            let root = device::root(device.device).map_err(failed())?.ok_or_else(|| not_there(&id, &path))?;
            if device.read_only || is_read_only(&root).map_err(failed())? {
                return Err(unfit("is staged to be read alone: it grows when it is staged to be written"));
            }
            let has = image::filesystem_bytes(&image, fs).map_err(failed())?;
            if !grow::is_online(fs) && grow::is_small(has, bytes) {
                return Err(unfit(
                    "grows when it is staged the next time: the kernel lets an ext4 that is mounted grow only for \
                     who has CAP_SYS_RESOURCE, and this driver has not",
                ));
            }
            if grow::is_online(fs) {
                grow::filesystem(fs, root, bytes).map_err(failed())?;
            }
        }
        effect!("csi node expand: done");
        tracing::info!(volume = id.as_str(), bytes, "grown");
        Ok(proto::NodeExpandVolumeResponse { capacity_bytes: wire(bytes) })
    }

    fn place(&self, volume: &VolumeId, path: &TargetPath) -> Result<Place, Refusal> {
        let file = StageFile::read(self, volume)?.ok_or_else(|| not_there(volume, path))?;
        let devices = device::of_node(volume, &self.node_id)?;
        let device = devices.first().ok_or_else(|| not_there(volume, path))?;
        let ids = file.device_ids(&devices);
        let is_here = |root: &_| device::shows(&ids, root);
        let is_its = |row: &_| device::is_its(&ids, row);
        let sought = Sought { volume: volume.as_str(), is_here: &is_here, is_its: &is_its };
        let spot = Spot::open(path)?.ok_or_else(|| not_there(volume, path))?;
        let block = file.stage.capability.block;
        match spot.look(&sought)? {
            Seen::Volume(_) if block => Ok(Place::Device(device.clone())),
            Seen::Volume(_) => {
                spot.open_leaf().map(Place::Filesystem).map_err(Refusal::failed("open", path.as_path()))
            }
            // Nothing is mounted where a block volume is staged.
            Seen::Directory if block && file.stage.staging == *path => Ok(Place::Device(device.clone())),
            Seen::Nothing | Seen::Directory | Seen::File | Seen::Dead | Seen::Foreign | Seen::Odd => {
                Err(not_there(volume, path))
            }
        }
    }
}

fn not_there(volume: &VolumeId, path: &TargetPath) -> Refusal {
    Refusal::NotThere { volume: volume.as_str().to_owned(), path: path.as_path().to_owned() }
}

fn is_read_only(root: &OwnedFd) -> std::io::Result<bool> {
    let flags = rustix::fs::fstatvfs(root)?.f_flag;
    Ok(flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}
