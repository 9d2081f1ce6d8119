//! Loop devices: block devices with a file behind them.
//!
//! Each is made with a label that only the kernel keeps; whoever lost his memory finds what is his by it. Everything
//! that changes a device is done on one descriptor on which the label was read before: a number that another process
//! took meanwhile is left alone.
use crate::sys::ffi::filesystems::loop_set_capacity;
use crate::sys::ffi::{
    LoopStatus, loop_clear, loop_configure, loop_get_free, loop_status, set_block_read_only,
};
use crate::sys::kernel::DeviceId;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
/// With the NUL that ends it, a label has 64 bytes.
const LONGEST_LABEL: usize = 63;
/// Others may take the free number first, but not for ever.
const TRIES: usize = 64;

/// A loop device with a file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoopDevice {
    /// `/dev/loopN`
    pub(crate) path: PathBuf,
    /// Its own number.
    pub(crate) device: DeviceId,
    /// Device and inode of the file behind it.
    pub(crate) file: (u64, u64),
    /// What it was called when it was made.
    pub(crate) label: String,
    /// The file is never written through it.
    pub(crate) read_only: bool,
}

/// Until when a file stays behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// [`detach`].
    Detached,
    /// Nobody has it open or mounted any more, this process included.
    Unused,
}

/// Every loop device whose file has, or had, a path that ends so. Others are not even opened: that alone keeps a
/// device from going away.
pub(crate) fn find(path_ends: &Path) -> io::Result<Vec<LoopDevice>> {
    find_in(Path::new("/sys/block"), Path::new("/dev"), path_ends)
}

fn find_in(blocks: &Path, nodes: &Path, path_ends: &Path) -> io::Result<Vec<LoopDevice>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(blocks)? {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str()
            && name.starts_with("loop")
            && shows(&entry.path(), path_ends)
        {
            let path = nodes.join(name);
            match look(&path)? {
                Some(device) => found.push(device),
                // To a driver in a container whose /dev is an old copy: what it cannot see is there all the same.
                None if !path.exists() && shows(&entry.path(), path_ends) => {
                    let message = format!(
                        "{} is missing, though the kernel has that device: give the driver the machine's /dev",
                        path.display()
                    );
                    return Err(io::Error::new(io::ErrorKind::NotFound, message));
                }
                None => {}
            }
        }
    }
    Ok(found)
}

/// Whether the kernel tells of a file behind the device whose path ends so.
fn shows(block: &Path, path_ends: &Path) -> bool {
    let Ok(mut backing) = std::fs::read(block.join("loop/backing_file")) else { return false };
    while backing.ends_with(b"\n") {
        backing.pop();
    }
    let backing = backing.strip_suffix(b" (deleted)").unwrap_or(&backing);
    Path::new(OsStr::from_bytes(backing)).ends_with(path_ends)
}

/// What is behind a device node; none when nothing is any more.
fn look(path: &Path) -> io::Result<Option<LoopDevice>> {
    let Some(device) = open(path)? else { return Ok(None) };
    let Some(status) = loop_status(&device)? else { return Ok(None) };
    described(path.to_owned(), &device, &status).map(Some)
}

fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
        Ok(device) => Ok(Some(device)),
        Err(rustix::io::Errno::NXIO | rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn described(path: PathBuf, device: &OwnedFd, status: &LoopStatus) -> io::Result<LoopDevice> {
    let number = rustix::fs::fstat(device)?.st_rdev;
    let label = status.label.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(LoopDevice {
        path,
        device: DeviceId { major: rustix::fs::major(number), minor: rustix::fs::minor(number) },
        file: (status.device, status.inode),
        label: String::from_utf8_lossy(label).into_owned(),
        read_only: status.flags & READ_ONLY != 0,
    })
}

/// Puts `file` behind a free loop device, read-only when `file` is. The descriptor keeps the device.
pub(crate) fn attach(
    file: impl AsFd,
    label: &str,
    read_only: bool,
    until: Until,
) -> io::Result<(LoopDevice, OwnedFd)> {
    if label.len() > LONGEST_LABEL {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the label of a loop device is too long"));
    }
    let mut bytes = [0; LONGEST_LABEL + 1];
    bytes[..label.len()].copy_from_slice(label.as_bytes());
    let autoclear = match until {
        Until::Detached => 0,
        Until::Unused => AUTOCLEAR,
    };
    let flags = autoclear | if read_only { READ_ONLY } else { 0 };
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let control = rustix::fs::open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..TRIES {
        let path = PathBuf::from(format!("/dev/loop{}", loop_get_free(&control)?));
        let device = rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty())?;
        match loop_configure(&device, &file, LoopStatus::new(bytes, flags)) {
            Ok(()) => {
                // What a user before made read-only stays so in the kernel, whatever file is behind it now.
                if !read_only {
                    set_block_read_only(&device, false)?;
                }
                let status = loop_status(&device)?.ok_or(io::ErrorKind::NotFound)?;
                return Ok((described(path, &device, &status)?, device));
            }
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "each free loop device was taken by somebody else first"))
}

/// Opens the device if what is behind it is still what was seen.
pub(crate) fn reopen(seen: &LoopDevice) -> io::Result<Option<OwnedFd>> {
    let Some(device) = open(&seen.path)? else { return Ok(None) };
    let Some(status) = loop_status(&device)? else { return Ok(None) };
    Ok((described(seen.path.clone(), &device, &status)? == *seen).then_some(device))
}

/// Takes the file away from the device, if it is still the one that was seen. Whoever has it open keeps it: look again. That nobody
/// may write outlives the file in the kernel, and whoever gets the device next would have it: once nobody has it, it goes.
pub(crate) fn detach(seen: &LoopDevice) -> io::Result<()> {
    if let Some(device) = reopen(seen)? {
        loop_clear(&device)?;
    }
    // The kernel lets go of the file with the last who has the device open. Or it was taken away before, and nobody came as far as this.
    if let Some(device) = open(&seen.path)?
        && loop_status(&device)?.is_none()
    {
        set_block_read_only(&device, false)?;
    }
    Ok(())
}

/// Lets the device be written, or not, by whoever opens it from now on.
pub(crate) fn set_writable(seen: &LoopDevice, writable: bool) -> io::Result<()> {
    let device = reopen(seen)?.ok_or(io::ErrorKind::NotFound)?;
    set_block_read_only(device, !writable)
}

/// Has the device look at the size of its file again, and tells how many bytes it has then.
pub(crate) fn reread_capacity(seen: &LoopDevice) -> io::Result<u64> {
    let device = reopen(seen)?.ok_or(io::ErrorKind::NotFound)?;
    loop_set_capacity(&device)?;
    Ok(rustix::fs::seek(&device, rustix::fs::SeekFrom::End(0))?)
}

/// Bytes of the device.
pub(crate) fn capacity(seen: &LoopDevice) -> io::Result<u64> {
    let device = reopen(seen)?.ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::fs::seek(&device, rustix::fs::SeekFrom::End(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_its_node_is_not_taken_for_none() {
        let (blocks, nodes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let block = blocks.path().join("loop7/loop");
        std::fs::create_dir_all(&block).unwrap();
        std::fs::write(block.join("backing_file"), "/data/volumes/v/image (deleted)\n").unwrap();
        let look = |ends: &str| find_in(blocks.path(), nodes.path(), Path::new(ends));
        assert_eq!(look("w/image").unwrap(), [], "of another volume");
        let error = look("v/image").unwrap_err().to_string();
        assert!(error.contains("loop7 is missing") && error.contains("/dev"), "{error}");
    }
}
