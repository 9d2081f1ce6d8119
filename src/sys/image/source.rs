//! An image as it lies there: a directory, or a tar whose members are read in place.
use super::archive::{Archive, Input, Kind, Member};
use super::error::{At, Fault, ImageError};
use crate::sys::real::open::openat2;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most members of an image in a tar: three for each layer, and some more.
const MEMBERS: usize = 10_000;
/// The longest name of a member and of what it links to, together.
const LONGEST: usize = 8192;
/// Without waiting for the other end of a pipe that lies there instead.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// An image as it lies there.
pub(crate) struct Source {
    /// As it was given.
    pub(crate) path: PathBuf,
    form: Form,
}

enum Form {
    Directory(File),
    Tar { file: Arc<File>, members: BTreeMap<Vec<u8>, Spot> },
}

/// Where a member's content lies.
enum Spot {
    Here { start: u64, size: u64 },
    Link(Vec<u8>),
    Nothing,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self, ImageError> {
        let io = |source| ImageError::Io { action: "open", path: path.to_owned(), source };
        let file = match rustix::fs::open(path, READ, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(ImageError::NotFound { image: path.to_owned() }),
            Err(errno) => return Err(io(errno.into())),
        };
        let form = match FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(|e| io(e.into()))?.st_mode)
        {
            FileType::Directory => Form::Directory(file),
            FileType::RegularFile => Self::index(path, file)?,
            _ => return Err(not_an_image(path, "is neither a directory nor a file")),
        };
        Ok(Self { path: path.to_owned(), form })
    }

    fn index(path: &Path, file: File) -> Result<Form, ImageError> {
        let io = |source| ImageError::Io { action: "read", path: path.to_owned(), source };
        let size = file.metadata().map_err(io)?.len();
        let file = Arc::new(file);
        let mut start = [0; 8];
        let count = section(&file, 0, size).read(&mut start).map_err(io)?;
        if let Some(format) = compression(&start[..count]) {
            return Err(ImageError::Compressed { image: path.to_owned(), format });
        }
        let mut archive = Archive::new(section(&file, 0, size));
        let mut members = BTreeMap::new();
        let fault = |member: &str, source| {
            let at = At { image: path.to_owned(), blob: "the archive".to_owned() };
            ImageError::Archive { at, entry: member.to_owned(), source }
        };
        loop {
            let member = match archive.next() {
                Ok(Some(member)) => member,
                Ok(None) => break,
                Err(Fault::Checksum) if members.is_empty() => {
                    return Err(not_an_image(path, "is neither a directory nor a tar"));
                }
                Err(source) => return Err(fault("", source)),
            };
            let name = String::from_utf8_lossy(&member.path).into_owned();
            let start = archive.position();
            if start.checked_add(member.size).is_none_or(|end| end > size) {
                return Err(fault(&name, Fault::Truncated));
            }
            if member.path.len() + member.link.len() > LONGEST {
                return Err(fault("", Fault::TooDeep));
            }
            if members.len() == MEMBERS {
                return Err(fault(&name, Fault::Limit("members")));
            }
            members.insert(plain(&member.path), spot(member, start));
        }
        Ok(Form::Tar { file, members })
    }

    /// What lies at the top, for messages.
    pub(crate) fn names(&self) -> Vec<String> {
        let names: Vec<String> = match &self.form {
            Form::Directory(_) => std::fs::read_dir(&self.path)
                .into_iter()
                .flatten()
                .flatten()
                .take(MEMBERS)
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect(),
            Form::Tar { members, .. } => {
                members.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
            }
        };
        let mut names: Vec<_> =
            names.iter().filter_map(|name| name.split('/').next()).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }

    /// A file of the image and its size, if it is there. `name` is relative and has no `..`.
    pub(crate) fn file(&self, name: &str) -> Result<Option<(Section, u64)>, ImageError> {
        match &self.form {
            Form::Directory(directory) => {
                let path = self.path.join(name);
                let io = |source| ImageError::Io { action: "open", path: path.clone(), source };
                let file = match openat2(directory, Path::new(name), READ, Mode::empty()) {
                    Ok(file) => File::from(file),
                    Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                    Err(Errno::LOOP | Errno::XDEV) => {
                        let value = "a link or a path that leads elsewhere".to_owned();
                        let wanted = "a file of the image";
                        return Err(ImageError::BadField { at: self.at(name), field: "it", value, wanted });
                    }
                    Err(errno) => return Err(io(errno.into())),
                };
                let found = file.metadata().map_err(io)?;
                let size = found.len();
                let section = section(&Arc::new(file), 0, size);
                Ok(found.is_file().then_some((section, size)))
            }
            Form::Tar { file, members } => {
                let mut name = plain(name.as_bytes());
                // A link of a link is more than `docker save` ever wrote.
                for _ in 0..3 {
                    match members.get(&name) {
                        Some(Spot::Here { start, size }) => {
                            return Ok(Some((section(file, *start, *size), *size)));
                        }
                        Some(Spot::Link(target)) => name.clone_from(target),
                        Some(Spot::Nothing) | None => break,
                    }
                }
                Ok(None)
            }
        }
    }

    /// The whole of a small file, if it is there.
    pub(crate) fn document(&self, name: &str) -> Result<Option<Vec<u8>>, ImageError> {
        /// The longest one.
        const MOST: u64 = 4 << 20;
        let Some((mut section, size)) = self.file(name)? else { return Ok(None) };
        if size > MOST {
            let (at, value) = (self.at(name), format!("{size} bytes long"));
            return Err(ImageError::BadField { at, field: "it", value, wanted: "4 MiB at most" });
        }
        let mut content = Vec::new();
        let read = section.read_to_end(&mut content);
        read.map_err(|source| ImageError::Io { action: "read", path: self.path.join(name), source })?;
        Ok(Some(content))
    }

    /// Something of this image, for messages.
    pub(crate) fn at(&self, blob: &str) -> At {
        At { image: self.path.clone(), blob: blob.to_owned() }
    }
}

pub(crate) fn not_an_image(path: &Path, found: &str) -> ImageError {
    ImageError::NotAnImage { image: path.to_owned(), found: found.to_owned() }
}

/// What compressed bytes that begin so, if it is known.
pub(crate) fn compression(start: &[u8]) -> Option<&'static str> {
    const KNOWN: &[(&[u8], &str)] =
        &[(b"\x1f\x8b", GZIP), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2")];
    KNOWN.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, name)| *name)
}

/// What layers are mostly compressed with.
pub(crate) const GZIP: &str = "gzip";

fn spot(member: Member, start: u64) -> Spot {
    match member.kind {
        Kind::File if member.pieces == [(0, member.size)] => Spot::Here { start, size: member.size },
        Kind::HardLink => Spot::Link(plain(&member.link)),
        // Old versions of `docker save` link equal layers, from their own directory.
        Kind::SymbolicLink => {
            let mut target = member.path.clone();
            target.extend_from_slice(b"/../");
            target.extend_from_slice(&member.link);
            Spot::Link(plain(&target))
        }
        Kind::File | Kind::Device | Kind::Directory | Kind::Fifo => Spot::Nothing,
    }
}

/// A member's name without what says nothing. It is only looked up, so nothing is lost where it leads outside.
fn plain(name: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

/// A part of a file.
pub(crate) struct Section {
    file: Arc<File>,
    at: u64,
    left: u64,
}

fn section(file: &Arc<File>, at: u64, left: u64) -> Section {
    Section { file: Arc::clone(file), at, left }
}

impl Read for Section {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let count = self.file.read_at(&mut into[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

impl Input for Section {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        if count > self.left {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count;
        self.left -= count;
        Ok(())
    }
}
