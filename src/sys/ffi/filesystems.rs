//! What mounted file systems and the devices below them are told: grow, stand still, go on.
use super::check;
use rustix::fd::{AsFd, AsRawFd};
use std::io;

const LOOP_SET_CAPACITY: u64 = 0x4c07;
/// `_IOR('X', 100, struct xfs_fsop_geom_v1)`
const XFS_IOC_FSGEOMETRY_V1: u64 = 0x8070_5864;
/// `_IOW('X', 110, struct xfs_growfs_data)`
const XFS_IOC_FSGROWFSDATA: u64 = 0x4010_586e;
/// `_IOWR('X', 119, int)`
const FIFREEZE: u64 = 0xc004_5877;
/// `_IOWR('X', 120, int)`
const FITHAW: u64 = 0xc004_5878;

/// Has a loop device look at the size of its file again.
pub(crate) fn loop_set_capacity(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_SET_CAPACITY as _) };
    check(result.into()).map(drop)
}

/// `struct xfs_fsop_geom_v1`, as far as anybody here reads it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct XfsGeometry {
    /// Bytes.
    pub(crate) block_size: u32,
    unused: [u32; 6],
    /// The part of the space that inodes may take, in percent.
    pub(crate) most_inodes: u32,
    /// Blocks of the data section.
    pub(crate) blocks: u64,
    rest: [u64; 9],
}

/// The sizes of the XFS that a file is in.
pub(crate) fn xfs_geometry(file: impl AsFd) -> io::Result<XfsGeometry> {
    let mut geometry = XfsGeometry { block_size: 0, unused: [0; 6], most_inodes: 0, blocks: 0, rest: [0; 9] };
    // SAFETY: the kernel writes 112 bytes through the pointer, which is how long the struct is.
    let result =
        unsafe { libc::ioctl(file.as_fd().as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as _, &raw mut geometry) };
    check(result.into()).map(|_| geometry)
}

/// Grows the XFS that a file is in to so many blocks; as many as it has is success.
pub(crate) fn xfs_grow(file: impl AsFd, blocks: u64, most_inodes: u32) -> io::Result<()> {
    // struct xfs_growfs_data: newblocks, imaxpct, padding.
    let mut bytes = [0_u8; 16];
    bytes[..8].copy_from_slice(&blocks.to_ne_bytes());
    bytes[8..12].copy_from_slice(&most_inodes.to_ne_bytes());
    // SAFETY: the kernel reads 16 bytes through the pointer, which is how long the array is.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), XFS_IOC_FSGROWFSDATA as _, bytes.as_ptr()) };
    check(result.into()).map(drop)
}

/// Has everybody who writes to the file system of a file wait until [`thaw`]. EBUSY when they do already. It outlives
/// this process.
pub(crate) fn freeze(file: impl AsFd) -> io::Result<()> {
    let unused: libc::c_int = 0;
    // SAFETY: the kernel does not look at the argument; it is a valid pointer to an int all the same.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FIFREEZE as _, &raw const unused) };
    check(result.into()).map(drop)
}

/// Ends [`freeze`]. EINVAL when nobody waits.
pub(crate) fn thaw(file: impl AsFd) -> io::Result<()> {
    let unused: libc::c_int = 0;
    // SAFETY: as for `freeze`.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FITHAW as _, &raw const unused) };
    check(result.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometry_is_as_long_as_the_kernel_writes() {
        assert_eq!(size_of::<XfsGeometry>(), 112);
    }
}
