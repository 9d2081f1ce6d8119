//! [`RealFiles`]: durable files of this machine.
use crate::sys::files::{AppendFile, FileError, FileLock, Files, Tail};
use crate::sys::real::pool::{Pool, Unanswered};
use async_trait::async_trait;
use rustix::fs::{FlockOperation, OFlags};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Durable files below the data directory.
#[derive(Debug, Clone)]
pub struct RealFiles {
    pool: Pool,
}

impl RealFiles {
    /// Calls run on this pool; give it a deadline that a slow disk's flush may reach.
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }
}

/// Runs `work`, naming what was tried.
async fn ask<T: Send + 'static>(
    pool: &Pool,
    action: &'static str,
    path: &Path,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, FileError> {
    let owned = path.to_owned();
    match pool.run(path, move || work(&owned)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(FileError::Io { action, path: path.to_owned(), source }),
        Err(Unanswered::Hung | Unanswered::Overloaded) => Err(FileError::Hung { path: path.to_owned() }),
    }
}

#[async_trait]
impl Files for RealFiles {
    async fn open_append(&self, path: &Path) -> Result<Box<dyn AppendFile>, FileError> {
        let file = ask(&self.pool, "open", path, |path| {
            make_parent(path)?;
            let file = open_whole(path)?;
            let end = content_end(&file)?;
            sync_parent(path).map(|()| (file, end))
        });
        let (file, end) = file.await?;
        let file = Arc::new(file);
        Ok(Box::new(RealAppendFile { path: path.to_owned(), file, end, pool: self.pool.clone() }))
    }

    async fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, FileError> {
        ask(&self.pool, "read", path, |path| match std::fs::read(path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    async fn tail(&self, path: &Path, since_ms: i64, bytes: u64) -> Result<Tail, FileError> {
        ask(&self.pool, "read", path, move |path| tail(path, since_ms, bytes)).await
    }

    async fn replace(&self, path: &Path, content: Vec<u8>) -> Result<(), FileError> {
        ask(&self.pool, "replace", path, move |path| {
            make_parent(path)?;
            replace(path, &content)
        })
        .await
    }

    async fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>, FileError> {
        let locked = ask(&self.pool, "lock", path, |path| {
            make_parent(path)?;
            let file = open_whole(path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(file)),
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        });
        match locked.await? {
            Some(file) => Ok(Box::new(RealLock { _file: file })),
            None => Err(FileError::Locked { path: path.to_owned() }),
        }
    }
}

fn tail(path: &Path, since_ms: i64, bytes: u64) -> io::Result<Tail> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Tail::default()),
        other => other?,
    };
    let seen = file.metadata()?;
    let written_ns = i128::from(seen.mtime()) * 1_000_000_000 + i128::from(seen.mtime_nsec());
    if written_ns.div_euclid(1_000_000) < i128::from(since_ms) {
        return Ok(Tail::default());
    }
    let mut end = vec![0; usize::try_from(seen.len().min(bytes)).unwrap_or(0)];
    let at = seen.len() - end.len() as u64;
    match file.read_exact_at(&mut end, at) {
        // It was cut off meanwhile, as no log of ours ever is.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Tail::default()),
        other => other.map(|()| Tail { bytes: end, written_ns }),
    }
}

#[derive(Debug)]
struct RealLock {
    /// The lock is the open file's; it ends when the last descriptor of it is closed.
    _file: File,
}

impl FileLock for RealLock {}

#[derive(Debug)]
struct RealAppendFile {
    path: PathBuf,
    file: Arc<File>,
    /// Where the content ends; zeros may follow it.
    end: u64,
    pool: Pool,
}

#[async_trait]
impl AppendFile for RealAppendFile {
    async fn append(&mut self, bytes: Vec<u8>) -> Result<(), FileError> {
        let (file, end) = (Arc::clone(&self.file), self.end);
        effect!("journal append");
        let write = move |_: &Path| write_at_end(&file, end, bytes);
        self.end = ask(&self.pool, "append to", &self.path, write).await?;
        effect!("journal append: done");
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), FileError> {
        let file = Arc::clone(&self.file);
        let flushed = ask(&self.pool, "flush", &self.path, move |_| file.sync_data()).await;
        effect!("journal flush: done");
        flushed
    }

    /// In one call of the pool: each costs two switches of threads.
    async fn append_durably(&mut self, bytes: Vec<u8>) -> Result<(), FileError> {
        let (file, end) = (Arc::clone(&self.file), self.end);
        let write = move |_: &Path| {
            effect!("journal append");
            let end = write_at_end(&file, end, bytes)?;
            effect!("journal append: done");
            file.sync_data().map(|()| end)
        };
        self.end = ask(&self.pool, "append to", &self.path, write).await?;
        effect!("journal flush: done");
        Ok(())
    }

    async fn read_all(&mut self) -> Result<Vec<u8>, FileError> {
        let (file, end) = (Arc::clone(&self.file), self.end);
        ask(&self.pool, "read", &self.path, move |_| {
            let mut content = vec![0; usize::try_from(end).map_err(io::Error::other)?];
            file.read_exact_at(&mut content, 0)?;
            Ok(content)
        })
        .await
    }

    async fn replace_atomically(&mut self, content: Vec<u8>) -> Result<(), FileError> {
        let end = content.len() as u64;
        let reopened = ask(&self.pool, "replace", &self.path, move |path| {
            replace(path, &content)?;
            open_whole(path)
        });
        (self.file, self.end) = (Arc::new(reopened.await?), end);
        Ok(())
    }
}

fn open_whole(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// What a file grows by: writing over zeros is durable sooner than making a file longer.
const GROWTH: usize = 64 * 1024;

/// Writes at the end of the content, and says where it ends now.
fn write_at_end(file: &File, end: u64, mut bytes: Vec<u8>) -> io::Result<u64> {
    debug_assert!(bytes.last() != Some(&0), "a zero at its end would not be found again");
    let new_end = end + bytes.len() as u64;
    if new_end > file.metadata()?.len() {
        bytes.resize(bytes.len() + GROWTH, 0);
    }
    file.write_all_at(&bytes, end)?;
    Ok(new_end)
}

/// Where the zeros at the end of a file begin.
fn content_end(file: &File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut piece = vec![0; GROWTH];
    while end > 0 {
        let len = GROWTH.min(usize::try_from(end).unwrap_or(GROWTH));
        let start = end - len as u64;
        file.read_exact_at(&mut piece[..len], start)?;
        if let Some(last) = piece[..len].iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn make_parent(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(parent(path))
}

/// Makes the entry of the file itself durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let temporary = PathBuf::from(name);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    // Before the rename: else a crash could leave the new name with nothing in it.
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_parent(path)
}
