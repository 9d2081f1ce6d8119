//! What a mounted file system can be told.
pub(crate) use crate::sys::ffi::filesystems::{freeze, thaw, xfs_geometry, xfs_grow};
