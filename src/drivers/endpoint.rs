//! The unix socket that a driver serves on.
//!
//! The socket has mode 0600 from its first moment. One that nobody listens on any more is replaced; one with a live
//! listener, or a file that is no socket, is left alone. Its directory is never created: whoever named it made it.
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The longest path that fits the kernel's `sockaddr_un` with its closing NUL.
const LONGEST_PATH: usize = 107;
const BACKLOG: i32 = 128;

/// Why there is no socket. Each is for the operator: nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Not `unix:///` and an absolute path.
    #[error("endpoint {0:?} is not of the form unix:///path/to.sock")]
    Form(String),
    /// Longer than the kernel takes.
    #[error("socket path {path} has {length} bytes; at most {LONGEST_PATH} are possible", length = .path.as_os_str().len())]
    TooLong {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The directory of the socket does not exist.
    #[error("the directory of socket {path} does not exist")]
    NoParent {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// Another process listens there, or the file is no socket.
    #[error("{path} is in use: {by}")]
    InUse {
        /// The path that was asked for.
        path: PathBuf,
        /// What is there.
        by: &'static str,
    },
    /// The kernel refused.
    #[error("cannot listen on {path}")]
    Listen {
        /// The path that was asked for.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The path in `unix:///path` or `unix:/path`.
///
/// # Errors
/// [`EndpointError::Form`] for anything else, [`EndpointError::TooLong`] past 107 bytes.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, EndpointError> {
    let rest = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"));
    let path = rest.map(PathBuf::from).filter(|path| path.is_absolute() && path.file_name().is_some());
    let path = path.ok_or_else(|| EndpointError::Form(endpoint.to_owned()))?;
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(EndpointError::TooLong { path });
    }
    Ok(path)
}

/// A listening socket that removes its file when it is dropped, if the file is still its own.
#[derive(Debug)]
pub struct Endpoint {
    listener: UnixListener,
    path: PathBuf,
    file: (u64, u64),
}

impl Endpoint {
    /// Listens on `path`, after removing what a dead process left there. Non-blocking.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn bind(path: &Path) -> Result<Self, EndpointError> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() {
            return Err(EndpointError::NoParent { path: path.to_owned() });
        }
        let refused = |source| EndpointError::Listen { path: path.to_owned(), source };
        clear_stale(path)?;
        let listener = UnixListener::from(listen(path).map_err(refused)?);
        let meta = std::fs::symlink_metadata(path).map_err(refused)?;
        Ok(Self { listener, path: path.to_owned(), file: (meta.dev(), meta.ino()) })
    }

    /// A second handle of the listening socket, for the runtime; the file is still removed with `self`.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Where clients connect.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A successor may have bound the path by now; its socket is not ours to remove.
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.file);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "socket not removed");
        }
    }
}

pub(super) fn clear_stale(path: &Path) -> Result<(), EndpointError> {
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(EndpointError::Listen { path: path.to_owned(), source }),
    };
    let in_use = |by| EndpointError::InUse { path: path.to_owned(), by };
    if !meta.file_type().is_socket() {
        return Err(in_use("it is not a socket"));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(in_use("another process listens there"));
    }
    std::fs::remove_file(path).map_err(|source| EndpointError::Listen { path: path.to_owned(), source })
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the file that `bind` makes the mode of the socket itself, so nobody else can connect at any moment.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_endpoint_is_unix_and_absolute() {
        for good in ["unix:///run/a.sock", "unix:/run/a.sock"] {
            assert_eq!(socket_path(good).unwrap(), Path::new("/run/a.sock"), "{good}");
        }
        for bad in ["", "/run/a.sock", "unix://a.sock", "unix:", "unix:///", "tcp://127.0.0.1:1", "unix://@a"]
        {
            assert!(matches!(socket_path(bad), Err(EndpointError::Form(_))), "{bad}");
        }
        let long = format!("unix:///{}", "x".repeat(106));
        assert!(socket_path(&long).is_ok());
        assert!(matches!(socket_path(&format!("{long}x")), Err(EndpointError::TooLong { .. })));
    }

    #[test]
    fn the_socket_is_private_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let endpoint = Endpoint::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let second = Endpoint::bind(&path);
        assert!(matches!(second, Err(EndpointError::InUse { by: "another process listens there", .. })));
        drop(endpoint);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_successor_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the file behind");
        let first = Endpoint::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = Endpoint::bind(&path).unwrap();
        drop(first);
        assert!(path.exists(), "the first one removed the file of the second");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_else_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Endpoint::bind(&path), Err(EndpointError::InUse { by: "it is not a socket", .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let nowhere = dir.path().join("no/a.sock");
        assert!(matches!(Endpoint::bind(&nowhere), Err(EndpointError::NoParent { .. })));
    }
}
