//! Waiting for files, such as a plugin's socket, without asking again and again.
use async_trait::async_trait;
use futures::stream::BoxStream;
use std::fmt;
use std::path::{Path, PathBuf};

/// Watches directories.
#[async_trait]
pub trait Watches: Send + Sync + fmt::Debug {
    /// Returns when a file of this name is in the directory; at once when it is there already. The directory
    /// must exist; when it goes away, [`WatchError::Gone`]. Give it a deadline of your own.
    async fn appeared(&self, directory: &Path, name: &str) -> Result<(), WatchError>;

    /// What happens in the directory from now on. Ends after [`DirEvent::Gone`].
    async fn changes(&self, directory: &Path) -> Result<BoxStream<'static, DirEvent>, WatchError>;
}

/// Something happened in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirEvent {
    /// A name came to be, by creation or by being moved in.
    Appeared(String),
    /// A name went away.
    Vanished(String),
    /// A file that was open for writing was closed.
    Written(String),
    /// Events were lost: look at the whole directory.
    Overflow,
    /// The directory itself went away, or the watch failed. The kernel tells it only when nothing holds the
    /// directory any more; a socket in it that is still open holds it.
    Gone,
}

/// Why a directory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The directory is not there, or went away.
    #[error("{}: no such directory", path.display())]
    Gone {
        /// The directory.
        path: PathBuf,
    },
    /// The kernel refused, for example because too many watches exist.
    #[error("watch {}", path.display())]
    Refused {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}
