//! Copies of images: what a snapshot keeps, and what a volume is made from.
//!
//! Where the file system below can share blocks, the copy is there at once. Where it cannot, the image is copied, without its
//! holes. Meanwhile a file system that is mounted is frozen, and who writes to it waits. A device cannot be: of a block volume
//! that is staged to be written a shared copy is what a machine would find that lost its power at that moment, less what the
//! kernel still held back, which is written first; and one of its own blocks would be of no moment, so it is refused.
//!
//! A file system stays frozen when its driver is killed. So there is a mark beside the image first, and whoever gets the
//! volume next, or starts, thaws it before anything else.
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::device;
use super::image;
use super::volumes::Locked;
use crate::drivers::refusal::Refusal;
use crate::sys::real::copies::{self, Way};
use crate::sys::real::filesystems::{freeze, thaw};
use crate::sys::real::loops::LoopDevice;

/// The mark that a file system may be frozen.
const MARK: &str = "frozen";

/// Puts a copy of the image of `volume` into the directory `home`, with `capacity` bytes. `may_copy` is asked whether there
/// is room for blocks of its own.
pub(super) fn copy(
    volume: &Locked,
    home: &OwnedFd,
    capacity: u64,
    may_copy: impl FnOnce() -> Result<(), Refusal>,
) -> Result<Way, Refusal> {
    let source = volume.image(true)?;
    image::settle_size(&volume.home, &volume.path, volume.record.capacity)?;
    let devices = device::all(&volume.record.id)?;
    let writable: Vec<_> = devices.iter().filter(|device| !device.read_only).collect();
    for device in &writable {
        flush(device).map_err(Refusal::failed("flush", &device.path))?;
    }
    let failed = || Refusal::failed("copy the image in", &volume.path);
    image::make_from(home, capacity, |copy| {
        effect!("csi copy");
        // Also where blocks are shared: a file system that stood still needs no repair. An xfs wants to write its log even then,
        // which is done before it is staged to be read alone.
        let frozen = Frozen::all(volume, &writable)?;
        effect!("csi copy: frozen");
        let copied = match copies::share(&source, copy) {
            Ok(true) => Ok(Way::Shared),
            Ok(false) => frozen.check().and_then(|()| may_copy()).and_then(|()| {
                let copied = copies::copy(&source, copy, volume.record.capacity);
                copied.map(|()| Way::Copied).map_err(failed())
            }),
            Err(errno) => Err(failed()(errno.into())),
        };
        frozen.thaw()?;
        effect!("csi copy: copied");
        copied
    })
}

/// Puts a copy of the image of a snapshot into the directory `home`, with `capacity` bytes.
pub(super) fn restore(
    image: &OwnedFd,
    (path, has): (&std::path::Path, u64),
    home: &OwnedFd,
    capacity: u64,
) -> Result<Way, Refusal> {
    image::make_from(home, capacity, |copy| {
        effect!("csi copy");
        copies::file(image, copy, has).map_err(Refusal::failed("copy the image in", path))
    })
}

/// Writes what programs, the file system and the device still hold back.
fn flush(device: &LoopDevice) -> io::Result<()> {
    if let Some(root) = device::root(device.device)? {
        rustix::fs::syncfs(root)?;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::open(&device.path, flags, Mode::empty()) {
        Ok(device) => Ok(rustix::fs::fsync(device)?),
        Err(Errno::NXIO | Errno::NOENT) => Ok(()), // it went away meanwhile
        Err(errno) => Err(errno.into()),
    }
}

/// File systems on which everybody who writes waits.
struct Frozen<'a> {
    volume: &'a Locked,
    roots: Vec<OwnedFd>,
    /// A device that may be written all the same.
    live: Option<PathBuf>,
}

impl<'a> Frozen<'a> {
    fn all(volume: &'a Locked, devices: &[&LoopDevice]) -> Result<Self, Refusal> {
        let mut frozen = Self { volume, roots: Vec::new(), live: None };
        let failed = || Refusal::failed("freeze the file system of", &volume.path);
        for device in devices {
            let Some(root) = device::root(device.device).map_err(failed())? else {
                frozen.live = Some(device.path.clone());
                continue;
            };
            if frozen.roots.is_empty() {
                mark(volume).map_err(failed())?;
            }
            match freeze(&root) {
                Ok(()) => frozen.roots.push(root),
                // Somebody else did it, and ends it.
                Err(error) if is(&error, Errno::BUSY) => {}
                Err(error) => return Err(failed()(error)),
            }
        }
        Ok(frozen)
    }

    /// Refuses where somebody may write, and so a copy would not be of one moment.
    fn check(&self) -> Result<(), Refusal> {
        let Some(device) = &self.live else { return Ok(()) };
        let problem = format!(
            "is in use as {}: where the data directory is on a file system that shares no blocks, such as ext4, it can \
             be copied only while nobody may write to it",
            device.display()
        );
        Err(Refusal::Unfit { volume: self.volume.record.id.as_str().to_owned(), problem })
    }

    fn thaw(mut self) -> Result<(), Refusal> {
        self.end().map_err(Refusal::failed("thaw the file system of", &self.volume.path))
    }

    fn end(&mut self) -> io::Result<()> {
        for root in self.roots.drain(..) {
            thawed(&root)?;
        }
        unmark(self.volume)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            let volume = self.volume.record.id.as_str();
            tracing::error!(volume, %error, "its file system may be frozen; fsfreeze -u ends that");
        }
    }
}

fn mark(volume: &Locked) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&volume.home, MARK, flags, Mode::RUSR | Mode::WUSR).map(drop)?)
}

fn unmark(volume: &Locked) -> io::Result<()> {
    match rustix::fs::unlinkat(&volume.home, MARK, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Ends what a driver that was killed left frozen. The caller alone has the volume, so nobody is copying it now.
pub(super) fn settle(volume: &Locked) -> Result<(), Refusal> {
    match rustix::fs::accessat(&volume.home, MARK, rustix::fs::Access::EXISTS, AtFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(Refusal::failed("look at", &volume.path))?,
    }
    for device in device::all(&volume.record.id)? {
        let failed = || Refusal::failed("thaw the file system on", &device.path);
        if let Some(root) = device::root(device.device).map_err(failed())? {
            thawed(&root).map_err(failed())?;
        }
    }
    unmark(volume).map_err(Refusal::failed("clear the mark of", &volume.path))?;
    tracing::warn!(volume = volume.record.id.as_str(), "thawed what a copy that was cut short left frozen");
    Ok(())
}

/// Nobody waits any more, or did.
fn thawed(root: &OwnedFd) -> io::Result<()> {
    match thaw(root) {
        Err(error) if is(&error, Errno::INVAL) => Ok(()),
        other => other,
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}
