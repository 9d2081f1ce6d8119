//! The audit log's file: lines written by a thread of its own, in files of limited size.
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use anyhow::Context as _;

use crate::server::AuditSink;

/// How long a file may grow.
const LARGEST: u64 = 32 << 20;
/// How many older files are kept beside it: `audit.log.1`, the newest, to `.4`.
const KEPT: u32 = 4;
/// How many lines may wait for the disk; more are counted and lost.
const WAITING: usize = 8192;

enum Line {
    Text(String),
    End,
}

/// A log that is being written. Dropping it writes what has come so far.
pub(super) struct Audit {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
    writer: Option<JoinHandle<()>>,
}

impl Audit {
    /// Opens `audit.log` in a data directory.
    pub(super) fn open(data_dir: &Path) -> anyhow::Result<Self> {
        Self::open_sized(data_dir, LARGEST)
    }

    fn open_sized(data_dir: &Path, largest: u64) -> anyhow::Result<Self> {
        let path = data_dir.join("audit.log");
        let log = Log::open(path.clone(), largest)
            .with_context(|| format!("cannot open the audit log {}", path.display()))?;
        let (lines, waiting) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lost);
        let writer = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write_all(log, &waiting, &counter))
            .context("cannot start the audit log's thread")?;
        Ok(Self { lines, lost, writer: Some(writer) })
    }

    /// Where the server puts its lines.
    pub(super) fn sink(&self) -> AuditSink {
        let (lines, lost) = (self.lines.clone(), Arc::clone(&self.lost));
        Arc::new(move |line| {
            if let Err(TrySendError::Full(_)) = lines.try_send(Line::Text(line)) {
                lost.fetch_add(1, Ordering::Relaxed);
            }
        })
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        // Sinks may be held still: the end is said, not waited for.
        if self.lines.send(Line::End).is_ok()
            && let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the audit log's thread had failed");
        }
    }
}

fn write_all(mut log: Log, waiting: &Receiver<Line>, lost: &AtomicU64) {
    let (mut failing, mut ends) = (false, false);
    while !ends && let Ok(first) = waiting.recv() {
        let mut batch = String::new();
        for line in std::iter::once(first).chain(waiting.try_iter()) {
            match line {
                Line::Text(text) => {
                    batch.push_str(&text);
                    batch.push('\n');
                }
                Line::End => ends = true,
            }
        }
        let missing = lost.swap(0, Ordering::Relaxed);
        if missing > 0 {
            tracing::warn!(lines = missing, "the audit log fell behind and lost lines");
        }
        match log.write(batch.as_bytes()) {
            Ok(()) => failing = false,
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "the audit log cannot be written; the server goes on without it");
                }
                failing = true;
            }
        }
    }
}

/// One file and those before it.
struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    largest: u64,
}

impl Log {
    fn open(path: PathBuf, largest: u64) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { path, file, size, largest })
    }

    fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + batch.len() as u64 > self.largest {
            self.turn()?;
        }
        self.file.write_all(batch)?;
        self.size += batch.len() as u64;
        Ok(())
    }

    /// Begins a new file; the oldest goes.
    fn turn(&mut self) -> io::Result<()> {
        let older = |n: u32| PathBuf::from(format!("{}.{n}", self.path.display()));
        // If the new one could not be opened the last time, the old ones are where they belong.
        if self.path.exists() {
            for n in (1..KEPT).rev() {
                match std::fs::rename(older(n), older(n + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            std::fs::rename(&self.path, older(1))?;
        }
        *self = Self::open(self.path.clone(), self.largest)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_in_files_of_limited_size() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..12 {
            // Each opening writes one batch, and goes on where the last one ended.
            let audit = Audit::open_sized(dir.path(), 60).unwrap();
            audit.sink()(format!("{round:02} {}", "x".repeat(26)));
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let rounds = |name: &str| read(name).lines().map(|line| line[..2].to_owned()).collect::<Vec<_>>();
        assert_eq!(rounds("audit.log"), ["10", "11"]);
        assert_eq!(rounds("audit.log.1"), ["08", "09"]);
        assert_eq!(rounds("audit.log.4"), ["02", "03"]);
        assert!(!dir.path().join("audit.log.5").exists());
        let mode = std::os::unix::fs::MetadataExt::mode(&dir.path().join("audit.log").metadata().unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }
}
