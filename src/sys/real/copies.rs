//! Copies of files: by sharing their blocks where the file system can, else of what is no hole.
use rustix::fd::AsFd;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io;

/// Bytes that the kernel is asked to copy at a time.
const AT_ONCE: u64 = 64 << 20;
/// Bytes that are copied through this process at a time, where the kernel does not do it.
const THROUGH: usize = 1 << 20;

/// How a file was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Both share their blocks until one is written to.
    Shared,
    /// The copy has blocks of its own.
    Copied,
}

/// Makes the empty file `to` what `from` is in its first `length` bytes. Of one that is written to meanwhile a shared copy
/// is as it was at one moment; one of its own blocks is not.
pub(crate) fn file(from: impl AsFd, to: impl AsFd, length: u64) -> io::Result<Way> {
    match share(&from, &to) {
        Ok(true) => return Ok(Way::Shared),
        Ok(false) => {}
        Err(errno) => return Err(errno.into()),
    }
    copy(from, to, length)?;
    Ok(Way::Copied)
}

/// Whether the file system shared all blocks of `from` with the empty file `to`.
pub(crate) fn share(from: impl AsFd, to: impl AsFd) -> Result<bool, Errno> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        // Different file systems say this in different words; of one that can do it, some of its files.
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
            Ok(false)
        }
        Err(errno) => Err(errno),
    }
}

/// Copies what is no hole in the first `length` bytes of `from` into the empty file `to`.
pub(crate) fn copy(from: impl AsFd, to: impl AsFd, length: u64) -> io::Result<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    rustix::fs::ftruncate(to, length)?;
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()), // holes to the end
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(length);
        if start >= length {
            return Ok(());
        }
        range(from, to, start, end)?;
        at = end;
    }
    Ok(())
}

fn range(
    from: rustix::fd::BorrowedFd<'_>,
    to: rustix::fd::BorrowedFd<'_>,
    start: u64,
    end: u64,
) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let (mut read, mut written) = (at, at);
        let count = usize::try_from((end - at).min(AT_ONCE)).unwrap_or(THROUGH);
        match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), count) {
            Ok(0) => return Ok(()), // it was cut short meanwhile
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return through(from, to, at, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn through(
    from: rustix::fd::BorrowedFd<'_>,
    to: rustix::fd::BorrowedFd<'_>,
    start: u64,
    end: u64,
) -> io::Result<()> {
    let mut bytes = vec![0; THROUGH];
    let mut at = start;
    while at < end {
        let count = usize::try_from(end - at).unwrap_or(THROUGH).min(THROUGH);
        let read = match rustix::io::pread(from, &mut bytes[..count], at) {
            Ok(0) => return Ok(()),
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let mut done = 0;
        while done < read {
            match rustix::io::pwrite(to, &bytes[done..read], at + done as u64) {
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        at += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn a_copy_is_the_same_and_as_sparse() {
        let make = || tempfile::tempfile_in("/var/tmp").unwrap();
        let from = make();
        from.set_len(64 << 20).unwrap();
        from.write_at(b"first", 0).unwrap();
        from.write_at(&vec![7; 100_000], 20 << 20).unwrap();
        from.write_at(b"last", (64 << 20) - 4).unwrap();
        let content = |file: &std::fs::File| {
            let mut bytes = vec![0; 64 << 20];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let to = make();
        to.set_len(64 << 20).unwrap();
        through(from.as_fd(), to.as_fd(), 0, 1 << 20).unwrap();
        through(from.as_fd(), to.as_fd(), 20 << 20, 64 << 20).unwrap();
        assert!(content(&to) == content(&from), "it differs");
        let to = make();
        copy(&from, &to, 64 << 20).unwrap();
        assert!(content(&to) == content(&from), "it differs");
        assert!(to.metadata().unwrap().blocks() <= from.metadata().unwrap().blocks(), "holes are gone");
        let short = make();
        copy(&from, &short, 3).unwrap();
        assert_eq!(short.metadata().unwrap().len(), 3);
        let none = make();
        copy(make(), &none, 4096).unwrap();
        assert_eq!((none.metadata().unwrap().len(), none.metadata().unwrap().blocks()), (4096, 0));
    }
}
