//! One log in its files, the older ones first, read as one text and followed over its rotation.
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How often one look may find that the files were renamed meanwhile.
const LOOKS: usize = 100;

/// A place in a log.
pub(crate) struct Tail {
    path: PathBuf,
    file: File,
    /// What was read had a successor that is gone.
    lost: bool,
}

impl Tail {
    /// At the last so many lines of what is kept, or at its beginning.
    pub(crate) fn open(path: PathBuf, last_lines: Option<usize>) -> io::Result<Self> {
        let mut lines = last_lines.unwrap_or(usize::MAX);
        let mut newest_first = kept(&path)?.into_iter();
        let mut file = newest_first.next().ok_or(io::ErrorKind::NotFound)?;
        loop {
            let from = last_lines.map_or(Ok(Begin::Before(lines)), |_| last_lines_begin(&mut file, lines))?;
            match (from, newest_first.next()) {
                (Begin::At(from), _) => {
                    file.seek(SeekFrom::Start(from))?;
                    break;
                }
                (Begin::Before(missing), Some(older)) => (lines, file) = (missing, older),
                (Begin::Before(_), None) => {
                    file.seek(SeekFrom::Start(0))?;
                    break;
                }
            }
        }
        Ok(Self { path, file, lost: false })
    }

    /// Where the newest of its files is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether nothing was ever written to it, of what is kept.
    pub(crate) fn is_empty(&self) -> bool {
        let empty = |file: &File| file.metadata().is_ok_and(|found| found.len() == 0);
        kept(&self.path).is_ok_and(|files| files.iter().all(empty))
    }

    /// Whether anything was dropped since this was asked last, because more was written than is kept.
    pub(crate) fn has_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Copies what was written up to now.
    pub(crate) fn copy_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
        loop {
            if self.file.metadata()?.len() < self.file.stream_position()? {
                // Rotated by cutting it down.
                self.file.seek(SeekFrom::Start(0))?;
            }
            io::copy(&mut self.file, out)?;
            let Some((next, lost)) = self.next()? else { return Ok(()) };
            // What was written between the copy and the rotation is still in the old file.
            io::copy(&mut self.file, out)?;
            self.file = next;
            self.lost |= lost;
        }
    }

    /// The file that follows, and whether others did that are gone; none while nothing follows.
    fn next(&self) -> io::Result<Option<(File, bool)>> {
        let ours = identity(&self.file.metadata()?);
        if std::fs::metadata(&self.path).is_ok_and(|newest| identity(&newest) == ours) {
            return Ok(None);
        }
        for _ in 0..LOOKS {
            let files = kept(&self.path)?;
            let names = identities(&files)?;
            // Opened one by one while they were renamed, one is there twice, or another one not at all.
            if names != identities(&kept(&self.path)?)? {
                continue;
            }
            let mut oldest_first = files.into_iter().rev();
            return Ok(match names.iter().rev().position(|name| *name == ours) {
                Some(at) => oldest_first.nth(at + 1).map(|next| (next, false)),
                None => oldest_first.next().map(|next| (next, true)),
            });
        }
        Ok(None)
    }
}

/// The files that there are, the newest first. The newest may be missing for the moment of a rotation.
fn kept(path: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    for older in 0.. {
        match File::open(name(path, older)) {
            Ok(file) => files.push(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && older == 0 => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

fn name(path: &Path, older: u32) -> PathBuf {
    if older == 0 {
        return path.to_owned();
    }
    let mut name = OsString::from(path);
    name.push(format!(".{older}"));
    name.into()
}

fn identities(files: &[File]) -> io::Result<Vec<Identity>> {
    files.iter().map(|file| Ok(identity(&file.metadata()?))).collect()
}

#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(not(unix))]
type Identity = Option<std::time::SystemTime>;

#[cfg(unix)]
fn identity(file: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (file.dev(), file.ino())
}

#[cfg(not(unix))]
fn identity(file: &Metadata) -> Identity {
    file.created().ok()
}

/// Where the lines that are asked for begin.
#[derive(Debug, PartialEq, Eq)]
enum Begin {
    /// At this offset.
    At(u64),
    /// In an older file: so many lines are missing.
    Before(usize),
}

/// Where the last so many lines begin, found from the end so that a long file is not read whole.
fn last_lines_begin(file: &mut (impl Read + Seek), lines: usize) -> io::Result<Begin> {
    const BLOCK: u64 = 64 << 10;
    let end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(Begin::At(end));
    }
    let mut wanted = lines;
    let mut at = end;
    let mut block = Vec::new();
    while at > 0 {
        let size = at.min(BLOCK);
        at -= size;
        file.seek(SeekFrom::Start(at))?;
        block.clear();
        file.by_ref().take(size).read_to_end(&mut block)?;
        for (offset, _) in block.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = at + offset as u64 + 1;
            // The newline at the very end closes the last line and begins none.
            if after == end {
                continue;
            }
            wanted -= 1;
            if wanted == 0 {
                return Ok(Begin::At(after));
            }
        }
    }
    // Its first line has no newline before it.
    let missing = wanted - usize::from(end > 0);
    Ok(if missing == 0 { Begin::At(0) } else { Begin::Before(missing) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_found_from_the_end() {
        let long = "x".repeat(100_000);
        let big = format!("{long}\n{long}\nlast\n");
        for (text, lines, wanted) in [
            ("a\nb\nc\n", 1, Begin::At(4)),
            ("a\nb\nc\n", 2, Begin::At(2)),
            ("a\nb\nc\n", 3, Begin::At(0)),
            ("a\nb\nc", 1, Begin::At(4)),
            ("a\nb\nc\n", 9, Begin::Before(6)),
            ("a\n\n\n", 2, Begin::At(2)),
            ("a\nb\n", 0, Begin::At(4)),
            ("", 3, Begin::Before(3)),
            (big.as_str(), 1, Begin::At(200_002)),
            (big.as_str(), 2, Begin::At(100_001)),
        ] {
            let mut file = io::Cursor::new(text);
            assert_eq!(
                last_lines_begin(&mut file, lines).unwrap(),
                wanted,
                "{lines} of {} bytes",
                text.len()
            );
        }
    }

    /// A log whose files are these, the newest first; the bound on them is kept as rotation does it.
    struct Log(tempfile::TempDir);

    impl Log {
        fn new(newest_first: &[&str]) -> Self {
            let log = Self(tempfile::tempdir().unwrap());
            for (older, text) in newest_first.iter().enumerate() {
                std::fs::write(name(&log.path(), u32::try_from(older).unwrap()), text).unwrap();
            }
            log
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("stdout.log")
        }

        fn rotate(&self, next: &str) {
            for older in (1..3).rev() {
                std::fs::rename(name(&self.path(), older - 1), name(&self.path(), older)).ok();
            }
            std::fs::write(self.path(), next).unwrap();
        }

        fn append(&self, text: &str) {
            File::options().append(true).open(self.path()).unwrap().write_all(text.as_bytes()).unwrap();
        }
    }

    fn read(tail: &mut Tail) -> String {
        let mut out = Vec::new();
        tail.copy_to(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_older_files_come_first_and_count_among_the_last_lines() {
        let log = Log::new(&["5\n6\n", "3\n4\n", "1\n2\n"]);
        for (lines, wanted) in [
            (None, "1\n2\n3\n4\n5\n6\n"),
            (Some(0), ""),
            (Some(1), "6\n"),
            (Some(2), "5\n6\n"),
            (Some(3), "4\n5\n6\n"),
            (Some(5), "2\n3\n4\n5\n6\n"),
            (Some(9), "1\n2\n3\n4\n5\n6\n"),
        ] {
            assert_eq!(read(&mut Tail::open(log.path(), lines).unwrap()), wanted, "{lines:?}");
        }
        let error = Tail::open(log.path().with_file_name("none"), None).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nothing_is_passed_over_however_often_it_was_rotated_between_two_looks() {
        let log = Log::new(&["one\n"]);
        let mut tail = Tail::open(log.path(), None).unwrap();
        assert_eq!(read(&mut tail), "one\n");
        log.append("two\n");
        log.rotate("three\n");
        assert_eq!(read(&mut tail), "two\nthree\n");
        log.append("four\n");
        log.rotate("five\n");
        log.rotate("six\n");
        assert_eq!((read(&mut tail).as_str(), tail.has_lost()), ("four\nfive\nsix\n", false));
        // The newest is made anew in this moment.
        std::fs::rename(log.path(), name(&log.path(), 1)).unwrap();
        assert_eq!(read(&mut tail), "");
        std::fs::write(log.path(), "seven\n").unwrap();
        assert_eq!((read(&mut tail).as_str(), tail.has_lost()), ("seven\n", false));
        // More than is kept: its own end is still there, what followed is not.
        log.append("eight\n");
        for next in ["nine\n", "ten\n", "eleven\n", "twelve\n"] {
            log.rotate(next);
        }
        assert_eq!((read(&mut tail).as_str(), tail.has_lost()), ("eight\nten\neleven\ntwelve\n", true));
        assert!(!tail.has_lost(), "it is told once");
    }
}
