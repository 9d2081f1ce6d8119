//! A tar archive, member by member. The crate `tar` reads the headers; what belongs to one member is put together here,
//! because the crate reads extended headers of any length into memory and takes those with a newline in a value
//! (capabilities have such) for the end.
use super::error::Fault;
use std::io::{self, Read};
use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

const BLOCK: u64 = 512;
/// The longest extended header or long name.
const EXTENSION: u64 = 1 << 20;
/// The most pieces of a sparse file.
const PIECES: usize = 1 << 16;

/// What an archive is read from.
pub(crate) trait Input: Read + Sized {
    /// Goes on behind this many bytes.
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.by_ref().take(count), &mut io::sink())?;
        if skipped == count { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    SymbolicLink,
    Device,
    Directory,
    Fifo,
}

/// One member; its content is read from the archive.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) path: Vec<u8>,
    /// Where a link leads.
    pub(crate) link: Vec<u8>,
    /// Of the file; a sparse one has less in the archive.
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Offset and length of what a file has; all of it but for a sparse one.
    pub(crate) pieces: Vec<(u64, u64)>,
}

/// What extended headers say of the member that follows.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An archive that is being read.
pub(crate) struct Archive<R> {
    input: R,
    /// Bytes of the input before here.
    position: u64,
    /// Content of the current member that nobody read.
    left: u64,
    padding: u64,
}

impl<R: Input> Archive<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, position: 0, left: 0, padding: 0 }
    }

    /// Where the content of the current member begins.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next member; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, Fault> {
        let mut extended = Extended::default();
        let mut extensions = 0;
        while let Some(header) = self.header()? {
            match header.entry_type().as_byte() {
                // It speaks of the archive: git leaves a comment there.
                b'g' => {
                    self.extension(&header)?;
                    continue;
                }
                b'L' => extended.path = Some(terminated(self.extension(&header)?)),
                b'K' => extended.link = Some(terminated(self.extension(&header)?)),
                b'x' => extended.read(&self.extension(&header)?)?,
                _ => return self.member(&header, extended).map(Some),
            }
            extensions += 1;
            // A few belong to one member; what they say is kept until it comes.
            if extensions > 8 {
                return Err(Fault::Extension);
            }
        }
        if extensions == 0 { Ok(None) } else { Err(Fault::Truncated) }
    }

    fn header(&mut self) -> Result<Option<Header>, Fault> {
        let rest = self.left + self.padding;
        self.input.skip(rest).map_err(read_fault)?;
        self.position += rest;
        (self.left, self.padding) = (0, 0);
        let mut header = Header::new_old();
        if !self.block(header.as_mut_bytes())? {
            return Ok(None);
        }
        let bytes = header.as_bytes();
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum = |range: &[u8]| range.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        // The checksum's own field counts as eight spaces.
        let wanted = sum(&bytes[..148]) + 8 * 32 + sum(&bytes[156..]);
        if header.cksum().ok() == Some(wanted) { Ok(Some(header)) } else { Err(Fault::Checksum) }
    }

    /// Reads a block; false at the end of the input.
    fn block(&mut self, into: &mut [u8]) -> Result<bool, Fault> {
        let mut count = 0;
        while count < into.len() {
            match self.input.read(&mut into[count..]) {
                Ok(0) if count == 0 => return Ok(false),
                Ok(0) => return Err(Fault::Truncated),
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_fault(error)),
            }
        }
        self.position += BLOCK;
        Ok(true)
    }

    fn extension(&mut self, header: &Header) -> Result<Vec<u8>, Fault> {
        let size = header.entry_size().map_err(|_| Fault::Number("size"))?;
        if size > EXTENSION {
            return Err(Fault::Extension);
        }
        self.begin(size)?;
        let mut content = Vec::new();
        self.read_to_end(&mut content).map_err(read_fault)?;
        if self.left > 0 { Err(Fault::Truncated) } else { Ok(content) }
    }

    /// From here on this much content follows.
    fn begin(&mut self, size: u64) -> Result<(), Fault> {
        let end = size.checked_next_multiple_of(BLOCK).ok_or(Fault::Number("size"))?;
        (self.left, self.padding) = (size, end - size);
        Ok(())
    }

    fn member(&mut self, header: &Header, extended: Extended) -> Result<Member, Fault> {
        let path = extended.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = match header.entry_type().as_byte() {
            // Before POSIX, a directory was a file whose name ends so.
            0 | b'0' | b'7' if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::SymbolicLink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => return Err(Fault::Kind(other)),
        };
        let inside = extended.size.map_or_else(|| header.entry_size(), Ok);
        let inside = inside.map_err(|_| Fault::Number("size"))?;
        // Some writers give links and directories a size, and no content.
        let mut size = if kind == Kind::File { inside } else { 0 };
        let mut pieces = vec![(0, size)];
        if header.entry_type().as_byte() == b'S' {
            (size, pieces) = self.sparse(header, inside)?;
        }
        self.begin(if kind == Kind::File { inside } else { 0 })?;
        let link = extended.link.or_else(|| header.link_name_bytes().map(Into::into));
        Ok(Member {
            kind,
            path,
            link: link.unwrap_or_default(),
            size,
            mode: header.mode().map_err(|_| Fault::Number("mode"))? & 0o7777,
            uid: id(extended.uid, header.uid(), "owner")?,
            gid: id(extended.gid, header.gid(), "group")?,
            mtime: extended.mtime.unwrap_or_else(|| (header.mtime().unwrap_or(0).cast_signed().max(0), 0)),
            xattrs: extended.xattrs,
            pieces,
        })
    }

    /// The length of a sparse file and what it has; the rest of the map is read.
    fn sparse(&mut self, header: &Header, inside: u64) -> Result<(u64, Vec<(u64, u64)>), Fault> {
        let gnu = header.as_gnu().ok_or(Fault::Sparse)?;
        let mut pieces = Vec::new();
        add_pieces(&mut pieces, &gnu.sparse)?;
        let mut more = gnu.is_extended();
        while more {
            let mut next = GnuExtSparseHeader::new();
            if !self.block(next.as_mut_bytes())? {
                return Err(Fault::Truncated);
            }
            add_pieces(&mut pieces, next.sparse())?;
            more = next.is_extended();
        }
        let size = gnu.real_size().map_err(|_| Fault::Sparse)?;
        let (mut end, mut sum) = (0u64, 0u64);
        for &(offset, length) in &pieces {
            if offset < end {
                return Err(Fault::Sparse);
            }
            end = offset.checked_add(length).ok_or(Fault::Sparse)?;
            sum += length;
        }
        if end > size || sum != inside { Err(Fault::Sparse) } else { Ok((size, pieces)) }
    }
}

/// The content of the current member.
impl<R: Input> Read for Archive<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.input.by_ref().take(self.left).read(into)?;
        self.left -= count as u64;
        self.position += count as u64;
        Ok(count)
    }
}

fn add_pieces(pieces: &mut Vec<(u64, u64)>, more: &[GnuSparseHeader]) -> Result<(), Fault> {
    for piece in more.iter().filter(|piece| !piece.is_empty()) {
        let number = |read: io::Result<u64>| read.map_err(|_| Fault::Sparse);
        pieces.push((number(piece.offset())?, number(piece.length())?));
    }
    if pieces.len() > PIECES { Err(Fault::Sparse) } else { Ok(()) }
}

impl Extended {
    /// Reads records of the form `LENGTH KEY=VALUE\n`, where the length counts all of the record.
    fn read(&mut self, mut records: &[u8]) -> Result<(), Fault> {
        while !records.is_empty() {
            let space = records.iter().take(20).position(|byte| *byte == b' ').ok_or(Fault::Extension)?;
            let length: usize = number(&records[..space]).ok_or(Fault::Extension)?;
            if length <= space || length > records.len() {
                return Err(Fault::Extension);
            }
            let (record, rest) = records.split_at(length);
            let record = record[space + 1..].strip_suffix(b"\n").ok_or(Fault::Extension)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(Fault::Extension)?;
            self.set(&record[..equals], &record[equals + 1..])?;
            records = rest;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.xattrs.push((name.to_owned(), value.to_owned()));
            return Ok(());
        }
        match key {
            // An empty value takes back what was said before.
            b"path" => self.path = Some(value.to_owned()).filter(|path| !path.is_empty()),
            b"linkpath" => self.link = Some(value.to_owned()).filter(|link| !link.is_empty()),
            b"size" => self.size = Some(number(value).ok_or(Fault::Number("size"))?),
            b"uid" => self.uid = Some(number(value).ok_or(Fault::Number("owner"))?),
            b"gid" => self.gid = Some(number(value).ok_or(Fault::Number("group"))?),
            b"mtime" => self.mtime = Some(time(value).ok_or(Fault::Number("time"))?),
            _ if key.starts_with(b"GNU.sparse.") => return Err(Fault::PosixSparse),
            _ => {}
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// `[-]seconds[.fraction]`
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let nanoseconds: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let (whole, part): (i64, u32) = (seconds.parse().ok()?, nanoseconds.parse().ok()?);
    if seconds.starts_with('-') && part > 0 {
        return Some((whole.checked_sub(1)?, 1_000_000_000 - part));
    }
    Some((whole, part))
}

/// The highest number is how the kernel is told to leave the owner alone.
fn id(extended: Option<u64>, header: io::Result<u64>, field: &'static str) -> Result<u32, Fault> {
    let id = extended.map_or(header, Ok).ok().and_then(|id| u32::try_from(id).ok());
    id.filter(|id| *id != u32::MAX).ok_or(Fault::Number(field))
}

fn terminated(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    name
}

/// That more would be read than the limit allows.
#[derive(Debug, thiserror::Error)]
#[error("more bytes than the limit")]
pub(crate) struct OverLimit;

/// What an error of the input says of the archive.
pub(crate) fn read_fault(error: io::Error) -> Fault {
    if error.get_ref().and_then(|inner| inner.downcast_ref::<OverLimit>()).is_some() {
        return Fault::Limit("bytes");
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::Truncated,
        _ => Fault::Read(error),
    }
}
