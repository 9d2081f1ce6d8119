//! Why an image could not be used: the file, what is wrong with it, and what to do.
use super::config::Platform;
use super::digest::Digest;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A blob, member or document of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    /// The image as it was given.
    pub image: PathBuf,
    /// What of it.
    pub blob: String,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.image.display(), self.blob)
    }
}

/// Why an image could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Nothing is there.
    #[error("{}: there is no such file or directory: put the image there, or correct the path", image.display())]
    NotFound {
        /// The image as it was given.
        image: PathBuf,
    },
    /// None of the three forms.
    #[error(
        "{}: not an image: it should be an OCI image layout (a directory or tar with oci-layout and index.json) \
         or what `docker save` writes (a tar with manifest.json), but it {found}", image.display()
    )]
    NotAnImage {
        /// The image as it was given.
        image: PathBuf,
        /// What it is instead.
        found: String,
    },
    /// A tar as a whole compressed.
    #[error("{}: compressed with {format}: decompress it first, layers are read where they lie", image.display())]
    Compressed {
        /// The image as it was given.
        image: PathBuf,
        /// With what.
        format: &'static str,
    },
    /// No image of that name.
    #[error("{}: has no image `{wanted}`: it has {}", image.display(), listed(there))]
    NoSuchReference {
        /// The image as it was given.
        image: PathBuf,
        /// What was asked for.
        wanted: String,
        /// The names in it.
        there: Vec<String>,
    },
    /// Several images, and none was asked for.
    #[error("{}: has several images: say which of {}", image.display(), listed(there))]
    Ambiguous {
        /// The image as it was given.
        image: PathBuf,
        /// Their names, or digests where they have none.
        there: Vec<String>,
    },
    /// Nothing for this machine.
    #[error(
        "{}: is for {}, and this machine is {wanted}: get the image for {wanted}", image.display(), listed(there)
    )]
    OtherPlatform {
        /// The image as it was given.
        image: PathBuf,
        /// This machine.
        wanted: Platform,
        /// What it is for.
        there: Vec<String>,
    },
    /// A blob that a document names is not there.
    #[error("{at}: is not there, though {by} names it: the copy is not complete, make the image anew")]
    MissingBlob {
        /// The blob.
        at: At,
        /// The document.
        by: String,
    },
    /// Other bytes than promised.
    #[error("{at}: has the digest {found} and should have {wanted}: damaged or changed, make the image anew")]
    WrongDigest {
        /// The blob.
        at: At,
        /// What was promised.
        wanted: Digest,
        /// What it has.
        found: Digest,
    },
    /// Another length than promised.
    #[error("{at}: has {found} bytes and should have {wanted}: cut off or changed, make the image anew")]
    WrongSize {
        /// The blob.
        at: At,
        /// What was promised.
        wanted: u64,
        /// What it has.
        found: u64,
    },
    /// A document that cannot be read as what it should be.
    #[error("{at}: not the JSON that it should be: make the image anew")]
    BadDocument {
        /// The document.
        at: At,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A value that cannot be.
    #[error("{at}: {field} is {value}, and should be {wanted}: make the image anew")]
    BadField {
        /// The document.
        at: At,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        wanted: &'static str,
    },
    /// Something other than a container image, such as a chart or an attestation, or an encrypted layer.
    #[error("{at}: has the media type `{media_type}`, which is no {wanted} that can be run")]
    MediaType {
        /// The blob.
        at: At,
        /// What it says it is.
        media_type: String,
        /// What was expected.
        wanted: &'static str,
    },
    /// A layer compressed in a way that is not read here.
    #[error("{at}: compressed with {format}: make the image with gzip or uncompressed layers")]
    Compression {
        /// The layer.
        at: At,
        /// With what.
        format: &'static str,
    },
    /// An archive that cannot be read or must not be unpacked.
    #[error("{at}{}: the image cannot be used, make it anew", of_entry(entry))]
    Archive {
        /// The archive.
        at: At,
        /// The entry in it; empty where the fault is the archive's.
        entry: String,
        /// What is wrong.
        source: Fault,
    },
    /// Another process uses the images of this directory.
    #[error("{}: in use by another process", root.display())]
    Locked {
        /// The directory.
        root: PathBuf,
    },
    /// It was not read in time.
    #[error("{}: reading it hangs, or takes too long", image.display())]
    NoAnswer {
        /// The image as it was given.
        image: PathBuf,
    },
    /// The kernel said no: no space, no right, an I/O error.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What it was when it was read the last time; it has not changed since.
    #[error(transparent)]
    Known(Arc<ImageError>),
}

impl ImageError {
    /// Whether it is about what was read alone: as long as that does not change, it is so the next time, too.
    pub fn is_of_content(&self) -> bool {
        match self {
            Self::NotAnImage { .. }
            | Self::Compressed { .. }
            | Self::NoSuchReference { .. }
            | Self::Ambiguous { .. }
            | Self::OtherPlatform { .. }
            | Self::MissingBlob { .. }
            | Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::BadDocument { .. }
            | Self::BadField { .. }
            | Self::MediaType { .. }
            | Self::Compression { .. } => true,
            Self::Archive { source, .. } => source.is_of_content(),
            Self::Known(error) => error.is_of_content(),
            Self::NotFound { .. } | Self::Locked { .. } | Self::NoAnswer { .. } | Self::Io { .. } => false,
        }
    }
}

/// What is wrong with an archive or an entry of it.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It ends too early.
    #[error("ends in the middle")]
    Truncated,
    /// Not a tar, or damaged.
    #[error("a header has a wrong checksum: damaged, or not a tar archive")]
    Checksum,
    /// A number that cannot be.
    #[error("its {0} is no number that can be")]
    Number(&'static str),
    /// Attributes that cannot be read, or are too many.
    #[error("its extended header cannot be read or is longer than 1 MiB")]
    Extension,
    /// The map of a sparse file is not one.
    #[error("its map of holes contradicts itself or is too long")]
    Sparse,
    /// Sparse files of the POSIX form, which layers do not have.
    #[error("a sparse file in the POSIX form: make the layer without sparse files")]
    PosixSparse,
    /// A kind of entry that layers do not have.
    #[error("an entry of the unknown kind `{}`", .0.escape_ascii())]
    Kind(u8),
    /// `..`, or nothing where a name should be.
    #[error("its path leads out of the image or names nothing")]
    Path,
    /// Longer than a path may be, or with too many components.
    #[error("its path is too long or too deep")]
    TooDeep,
    /// The way leads through a symbolic link.
    #[error("its path leads through a symbolic link of the same layer")]
    ThroughLink,
    /// The way leads through something else than a directory.
    #[error("its path leads through something that is no directory")]
    NotADirectory,
    /// A link to what is no file of this layer, or to nothing.
    #[error("a link to `{0}`, which is no file of the same layer")]
    LinkTarget(String),
    /// A whiteout of nothing.
    #[error("a whiteout that names nothing")]
    Whiteout,
    /// More than is unpacked here.
    #[error("more than the limit of {0}")]
    Limit(&'static str),
    /// The archive could not be read.
    #[error("cannot be read")]
    Read(#[source] io::Error),
    /// The entry could not be made.
    #[error("cannot be made")]
    Write(#[source] io::Error),
}

impl Fault {
    fn is_of_content(&self) -> bool {
        match self {
            // What the kernel says has a number; what a decompressor says has none.
            Self::Read(error) => error.raw_os_error().is_none(),
            Self::Write(_) => false,
            Self::Truncated
            | Self::Checksum
            | Self::Number(_)
            | Self::Extension
            | Self::Sparse
            | Self::PosixSparse
            | Self::Kind(_)
            | Self::Path
            | Self::TooDeep
            | Self::ThroughLink
            | Self::NotADirectory
            | Self::LinkTarget(_)
            | Self::Whiteout
            | Self::Limit(_) => true,
        }
    }
}

impl From<rustix::io::Errno> for Fault {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Write(errno.into())
    }
}

fn listed(names: &[String]) -> String {
    /// Enough to choose from.
    const SHOWN: usize = 20;
    let more = names.len().saturating_sub(SHOWN);
    let shown: Vec<_> = names.iter().take(SHOWN).map(String::as_str).collect();
    match (shown.is_empty(), more) {
        (true, _) => "none with a name".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

fn of_entry(entry: &str) -> String {
    if entry.is_empty() { String::new() } else { format!(": entry `{entry}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_said_is_not_about_the_image() {
        let image = || PathBuf::from("/i");
        let archive = |source| ImageError::Archive {
            at: At { image: image(), blob: "layer".to_owned() },
            entry: String::new(),
            source,
        };
        let errno = |errno: rustix::io::Errno| io::Error::from(errno);
        for (error, wanted) in [
            (ImageError::NotAnImage { image: image(), found: String::new() }, true),
            (archive(Fault::Checksum), true),
            (archive(Fault::Read(io::ErrorKind::InvalidInput.into())), true),
            (archive(Fault::Read(io::ErrorKind::UnexpectedEof.into())), true),
            (archive(Fault::Read(errno(rustix::io::Errno::IO))), false),
            (archive(Fault::Write(errno(rustix::io::Errno::NOSPC))), false),
            (ImageError::Io { action: "read", path: image(), source: errno(rustix::io::Errno::IO) }, false),
            (ImageError::NotFound { image: image() }, false),
            (ImageError::NoAnswer { image: image() }, false),
            (ImageError::Locked { root: image() }, false),
        ] {
            assert_eq!(error.is_of_content(), wanted, "{error}");
            assert_eq!(ImageError::Known(Arc::new(error)).is_of_content(), wanted);
        }
    }
}
