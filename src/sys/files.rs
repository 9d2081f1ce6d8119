//! Files that must survive a crash: the journal, and small files replaced whole.
//!
//! Never reads or writes what a workload can reach: the paths are the daemon's own.
use async_trait::async_trait;
use std::fmt;
use std::path::{Path, PathBuf};

/// Opens durable files and locks below the data directory.
#[async_trait]
pub trait Files: Send + Sync + fmt::Debug {
    /// Opens (or makes, 0600) a file to append to. Directories are made (0700) as far as they are missing, and
    /// the file's own entry is durable on return.
    async fn open_append(&self, path: &Path) -> Result<Box<dyn AppendFile>, FileError>;

    /// The whole content; `None` when there is no such file.
    async fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, FileError>;

    /// At most so many of the last bytes of a log that was written to since then, in milliseconds since 1970; none when it
    /// was not, or is not there. What keeps no logs has none.
    async fn tail(&self, path: &Path, since_ms: i64, bytes: u64) -> Result<Tail, FileError> {
        let _no_logs = (path, since_ms, bytes);
        Ok(Tail::default())
    }

    /// Writes a file (0600) so that after a crash either the old or the new content is there. Durable on return.
    async fn replace(&self, path: &Path, content: Vec<u8>) -> Result<(), FileError>;

    /// Takes the advisory lock of a file (made if missing) for as long as the result lives, or says
    /// [`FileError::Locked`] at once. The lock ends with the process, however it ends.
    async fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>, FileError>;
}

/// The end of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    /// Its last bytes.
    pub bytes: Vec<u8>,
    /// When it was written to last, in nanoseconds since 1970.
    pub written_ns: i128,
}

/// One open append-only file. Calls are made one after another. Its content never ends with a zero byte: zeros at the end
/// are room for more, and a torn one may leave some.
#[async_trait]
pub trait AppendFile: Send + fmt::Debug {
    /// Adds bytes at the end. Durable only after [`AppendFile::sync`]; after an error any prefix of the bytes
    /// may be there.
    async fn append(&mut self, bytes: Vec<u8>) -> Result<(), FileError>;

    /// Makes everything appended so far durable (`fdatasync`). After an error nothing may be assumed of what
    /// was appended since the last success: open the file anew.
    async fn sync(&mut self) -> Result<(), FileError>;

    /// Adds bytes at the end and makes them durable, with the errors of both.
    async fn append_durably(&mut self, bytes: Vec<u8>) -> Result<(), FileError> {
        self.append(bytes).await?;
        self.sync().await
    }

    /// The whole content.
    async fn read_all(&mut self) -> Result<Vec<u8>, FileError>;

    /// Replaces the whole content so that after a crash either the old or the new one is there; later appends
    /// go behind the new one. Durable on return.
    async fn replace_atomically(&mut self, content: Vec<u8>) -> Result<(), FileError>;
}

/// A lock that is held until this is dropped.
pub trait FileLock: Send + Sync + fmt::Debug {}

/// Why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Another process has the lock.
    #[error("{}: locked by another process", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The deadline passed; whether it took effect is unknown.
    #[error("{}: the file system does not answer", path.display())]
    Hung {
        /// The file.
        path: PathBuf,
    },
    /// The kernel said no: no space, no right, an I/O error.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}
