//! A task's output in files that never outgrow their bound.
use crate::sys::process::LogSpec;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A bound that no spec may undercut, so that rotation cannot take all the time.
const SMALLEST: u64 = 4096;

/// One output file with its older ones.
#[derive(Debug)]
pub(crate) struct RotatedLog {
    path: PathBuf,
    max_bytes: u64,
    files: u32,
    file: File,
    size: u64,
    /// What was added since it was opened.
    wrote: u64,
}

impl RotatedLog {
    /// Opens the file to append to.
    pub(crate) fn open(path: &Path, spec: &LogSpec) -> io::Result<Self> {
        let file = open(path)?;
        let size = file.metadata()?.len();
        let (max_bytes, files) = (spec.max_bytes.max(SMALLEST), spec.files.max(1));
        Ok(Self { path: path.to_owned(), max_bytes, files, file, size, wrote: 0 })
    }

    /// How many bytes were added since it was opened.
    pub(crate) fn wrote(&self) -> u64 {
        self.wrote
    }

    /// Adds output. Lines are kept whole where they fit into one file. What cannot be written, for want of space
    /// for example, is dropped: a task must not hang because its log does.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(self.max_bytes.saturating_sub(self.size)).unwrap_or(usize::MAX);
            let fits = if bytes.len() <= room {
                bytes.len()
            } else {
                match bytes[..room].iter().rposition(|&byte| byte == b'\n') {
                    Some(end) => end + 1,
                    None if self.size == 0 => room,
                    None => 0,
                }
            };
            let (now, later) = bytes.split_at(fits);
            let before = self.size;
            self.size = match self.file.write_all(now) {
                Ok(()) => self.size + fits as u64,
                Err(_) => self.file.metadata().map_or(self.size, |metadata| metadata.len()),
            };
            self.wrote += self.size.saturating_sub(before);
            if !later.is_empty() && self.rotate().is_err() {
                // Without a new file the bound would be broken; the old one begins anew.
                if self.file.set_len(0).is_err() {
                    return;
                }
                self.size = 0;
            }
            bytes = later;
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.files == 1 {
            self.file.set_len(0)?;
        } else {
            for older in (1..self.files).rev() {
                let from = rotated(&self.path, older - 1);
                match std::fs::rename(from, rotated(&self.path, older)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
            self.file = open(&self.path)?;
        }
        self.size = 0;
        Ok(())
    }
}

/// The name of a log's older file; 0 is the current one.
pub(crate) fn rotated(path: &Path, older: u32) -> PathBuf {
    if older == 0 {
        return path.to_owned();
    }
    let mut name = OsString::from(path);
    name.push(format!(".{older}"));
    name.into()
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: &Path, files: u32) -> LogSpec {
        LogSpec { stdout: path.to_owned(), stderr: path.to_owned(), max_bytes: SMALLEST, files }
    }

    fn sizes(directory: &Path) -> Vec<(String, u64)> {
        let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
        let mut sizes: Vec<_> =
            entries.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len())).collect();
        sizes.sort();
        sizes
    }

    /// Obligation CO-PLUG-14.
    #[test]
    fn the_newest_lines_are_kept_whole_and_the_bound_holds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.log");
        let mut log = RotatedLog::open(&path, &spec(&path, 3)).unwrap();
        let line = |n: u32| format!("line {n:06} {}\n", "x".repeat(50));
        for n in 0..1000 {
            log.append(line(n).as_bytes());
        }
        let sizes = sizes(directory.path());
        assert_eq!(
            sizes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["out.log", "out.log.1", "out.log.2"]
        );
        assert!(sizes.iter().all(|(_, size)| *size <= SMALLEST), "{sizes:?}");
        let text: String =
            (0..3).rev().map(|n| std::fs::read_to_string(rotated(&path, n)).unwrap()).collect();
        let kept = u32::try_from(text.lines().count()).unwrap();
        let expected: String = (1000 - kept..1000).map(line).collect();
        assert_eq!(text, expected);
        assert!(kept > 130, "{kept}");
    }

    #[test]
    fn a_line_longer_than_a_file_is_cut_and_one_file_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.log");
        let mut log = RotatedLog::open(&path, &spec(&path, 1)).unwrap();
        log.append(&[b'a'; 10_000]);
        log.append(b"b\n");
        assert_eq!(sizes(directory.path()), [("out.log".to_owned(), 10_000 - 2 * SMALLEST + 2)]);
    }

    #[test]
    fn an_existing_file_is_continued() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.log");
        RotatedLog::open(&path, &spec(&path, 2)).unwrap().append(&[b'a'; 4000]);
        let mut log = RotatedLog::open(&path, &spec(&path, 2)).unwrap();
        log.append(&[b'b'; 200]);
        assert_eq!(log.wrote(), 200, "of its own, in whatever file that is by now");
        let mut log = RotatedLog::open(&path, &spec(&path, 2)).unwrap();
        log.append(b"c");
        assert_eq!(log.wrote(), 1, "nothing of what was there");
        assert_eq!(sizes(directory.path()), [("out.log".to_owned(), 201), ("out.log.1".to_owned(), 4000)]);
    }
}
