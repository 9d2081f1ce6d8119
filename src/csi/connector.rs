//! How a plugin is reached: a unix socket in life, something else in a simulation.
//!
//! Never retries and never unlinks a socket; a connector makes one connection each time it is asked.
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// The most bytes of path that the kernel takes for a socket, without the terminating zero (`unix(7)`).
pub const MAX_SOCKET_PATH: usize = 107;

/// A connection to a plugin.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Makes connections to one plugin.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// One new connection, or why there is none. The caller limits the time that it takes.
    async fn connect(&self) -> io::Result<Box<dyn Connection>>;
}

/// Why a path cannot be the socket of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketPathError {
    /// The kernel would refuse it, and the refusal would look like a plugin that is down.
    #[error("socket path {path:?} has {length} bytes; the kernel takes at most {MAX_SOCKET_PATH}")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// CSI endpoints are absolute.
    #[error("socket path {path:?} is not absolute")]
    NotAbsolute {
        /// The path.
        path: PathBuf,
    },
    /// A zero byte ends the path early.
    #[error("socket path {path:?} contains a zero byte")]
    ZeroByte {
        /// The path.
        path: PathBuf,
    },
}

/// Connects to a unix socket.
#[derive(Clone, Debug)]
pub struct UnixConnector {
    path: PathBuf,
}

impl UnixConnector {
    /// A connector for the socket at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, SocketPathError> {
        let path = path.into();
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() > MAX_SOCKET_PATH {
            return Err(SocketPathError::TooLong { length: bytes.len(), path });
        }
        if bytes.contains(&0) {
            return Err(SocketPathError::ZeroByte { path });
        }
        if !path.is_absolute() {
            return Err(SocketPathError::NotAbsolute { path });
        }
        Ok(Self { path })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[async_trait]
impl Connector for UnixConnector {
    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(UnixStream::connect(&self.path).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_is_judged_before_it_is_dialled() {
        let of_length = |length: usize| format!("/{}", "x".repeat(length - 1));
        assert_eq!(UnixConnector::new(of_length(107)).unwrap().path().as_os_str().len(), 107);
        let error = UnixConnector::new(of_length(108)).unwrap_err();
        assert!(matches!(error, SocketPathError::TooLong { length: 108, .. }));
        assert!(error.to_string().ends_with("has 108 bytes; the kernel takes at most 107"), "{error}");
        assert!(matches!(UnixConnector::new("csi.sock"), Err(SocketPathError::NotAbsolute { .. })));
        assert!(matches!(UnixConnector::new("/a\0b"), Err(SocketPathError::ZeroByte { .. })));
    }
}
