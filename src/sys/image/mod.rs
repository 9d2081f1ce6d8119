//! Images of containers: read where they lie, checked, and unpacked one directory for each layer.
//!
//! An image is a directory in the OCI image layout, a tar of one, or what `docker save` writes; nothing is fetched.
//! A layer is unpacked once, into a directory named by the digest of its uncompressed content (its diff id), in the form
//! that overlayfs takes as a lower directory. It takes that name only when it is complete, checked and on disk:
//! ```text
//! tmp/N --unpacked, digests right, flushed--> layers/DIGEST --nobody uses it--> tmp/N --> gone
//! ```
//! The configuration of an image lies beside its layers, in `images`, as long as they do: with it the image is whole, though
//! what it was read from may be gone. What a crash leaves in `tmp` is removed when the directory is opened again. All calls block: run them on a pool.
//! A layer is as hostile as whoever made it: what it may cost is bounded, and nothing of it lies outside its directory,
//! which root alone can enter (a layer may well bring a setuid program).
mod archive;
mod config;
mod digest;
mod error;
mod layout;
mod source;
pub(crate) mod unpack;

pub use config::{Config, Platform, User};
pub use digest::{BadDigest, Digest};
pub use error::{At, Fault, ImageError};

use archive::{Archive, Input, OverLimit};
use digest::Hashing;
use flate2::read::MultiGzDecoder;
use layout::Layer;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use source::{GZIP, Source, compression};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the layers of one image may cost, together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the uncompressed layers.
    pub bytes: u64,
    /// Files, directories and whatever else.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 1_000_000 }
    }
}

/// The layers of images in a directory of this process alone.
#[derive(Debug)]
pub struct Images {
    root: PathBuf,
    limits: Limits,
    platform: Platform,
    next: AtomicU64,
    held: Arc<Mutex<Held>>,
    /// The lock is the open file's; it ends when the last descriptor of it is closed.
    _lock: OwnedFd,
}

/// Layers of images that someone has in hand, how many times, with the turn of unpacking each.
type Held = BTreeMap<Digest, (usize, Arc<Mutex<()>>)>;

/// An image whose layers are there. They stay at least as long as this lives.
#[derive(Debug)]
pub struct Image {
    /// The digest of its configuration.
    pub id: Digest,
    /// What it says of how it wants to be run.
    pub config: Config,
    /// The layers for overlayfs, lowest first: none twice, and none of which nothing would show.
    pub layers: Vec<Digest>,
    _holds: Vec<Hold>,
}

impl Images {
    /// Opens the directory, making it if it is not there, and removes what a crash left in it.
    pub fn open(root: &Path) -> Result<Self, ImageError> {
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed("make", root))?;
        std::fs::set_permissions(root, Permissions::from_mode(0o700))
            .map_err(failed("close to others", root))?;
        let lock = root.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&lock, flags, Mode::RUSR | Mode::WUSR).map_err(refused("open", &lock))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ImageError::Locked { root: root.to_owned() }),
            Err(errno) => return Err(refused("lock", root)(errno)),
        }
        let tmp = root.join("tmp");
        match std::fs::remove_dir_all(&tmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &tmp)(error));
            }
            _ => {}
        }
        for directory in [tmp, root.join("layers"), root.join("images")] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)
                .map_err(failed("make", &directory))?;
        }
        Ok(Self {
            root: root.to_owned(),
            limits: Limits::default(),
            platform: Platform::here(),
            next: AtomicU64::new(0),
            held: Arc::default(),
            _lock: lock,
        })
    }

    /// With other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// For another machine than this one.
    #[must_use]
    pub fn with_platform(self, platform: Platform) -> Self {
        Self { platform, ..self }
    }

    /// Reads the image of this name (or the only one) at `path`, and unpacks the layers that are not there yet.
    pub fn add(&self, path: &Path, reference: Option<&str>) -> Result<Image, ImageError> {
        let source = Source::open(path)?;
        let found = layout::find(&source, reference, &self.platform)?;
        // Before looking: else a layer that is there could go.
        let holds: Vec<_> = found.config.diff_ids.iter().map(|layer| Hold::new(&self.held, layer)).collect();
        let mut budget = self.limits;
        let mut layers = Vec::new();
        // From the top: the same layer further below shows nothing, nor does what lies below one that hides all.
        for layer in found.layers.iter().rev() {
            if layers.contains(&layer.diff_id) {
                continue;
            }
            layers.push(layer.diff_id.clone());
            if self.unpacked(&source, layer, &mut budget)? == Below::Hidden {
                break;
            }
        }
        layers.reverse();
        self.keep(&found.id, &found.document)?;
        Ok(Image { id: found.id, config: found.config, layers, _holds: holds })
    }

    /// The image of this configuration, if it was added before and all of its layers are there still.
    pub fn kept(&self, id: &Digest) -> Option<Image> {
        let document =
            std::fs::read(self.document(id)).ok().filter(|document| Digest::of(document) == *id)?;
        let at = At { image: self.root.clone(), blob: id.to_string() };
        let config = Config::parse(&at, &document).ok()?;
        // Before looking: else a layer that is there could go.
        let holds: Vec<_> = config.diff_ids.iter().map(|layer| Hold::new(&self.held, layer)).collect();
        let mut layers = Vec::new();
        for layer in config.diff_ids.iter().rev() {
            if layers.contains(layer) {
                continue;
            }
            layers.push(layer.clone());
            if self.below(layer).ok()? == Below::Hidden {
                break;
            }
        }
        layers.reverse();
        Some(Image { id: id.clone(), config, layers, _holds: holds })
    }

    /// Not flushed: what a crash leaves of it has another digest.
    fn keep(&self, id: &Digest, document: &[u8]) -> Result<(), ImageError> {
        let path = self.document(id);
        if std::fs::read(&path).is_ok_and(|kept| kept == document) {
            return Ok(());
        }
        let tmp = self.temporary();
        std::fs::write(&tmp, document).map_err(failed("write", &tmp))?;
        std::fs::rename(&tmp, &path).map_err(failed("rename", &tmp))
    }

    fn document(&self, id: &Digest) -> PathBuf {
        self.root.join("images").join(id.hex())
    }

    /// Where a layer lies, or would lie.
    pub fn layer(&self, layer: &Digest) -> PathBuf {
        self.root.join("layers").join(layer.hex())
    }

    /// Removes the layers that are neither in `used` nor of an [`Image`] that lives, and says which those were.
    pub fn remove_unused(&self, used: &BTreeSet<Digest>) -> Result<Vec<Digest>, ImageError> {
        let layers = self.root.join("layers");
        let mut removed = Vec::new();
        for entry in std::fs::read_dir(&layers).map_err(failed("read", &layers))? {
            let entry = entry.map_err(failed("read", &layers))?;
            let Some(layer) = entry.file_name().to_str().and_then(Digest::from_hex) else { continue };
            let tmp = self.temporary();
            {
                // Whoever takes hold of it from now on finds it gone.
                let held = locked(&self.held);
                if used.contains(&layer) || held.contains_key(&layer) {
                    continue;
                }
                std::fs::rename(entry.path(), &tmp).map_err(failed("remove", &entry.path()))?;
            }
            std::fs::remove_dir_all(&tmp).map_err(failed("remove", &tmp))?;
            removed.push(layer);
        }
        self.forget_images()?;
        removed.sort();
        Ok(removed)
    }

    /// Removes the configurations of images that are not whole any more.
    fn forget_images(&self) -> Result<(), ImageError> {
        let images = self.root.join("images");
        for entry in std::fs::read_dir(&images).map_err(failed("read", &images))? {
            let path = entry.map_err(failed("read", &images))?.path();
            let id = path.file_name().and_then(|name| name.to_str()).and_then(Digest::from_hex);
            if id.and_then(|id| self.kept(&id)).is_none() {
                std::fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    fn temporary(&self) -> PathBuf {
        self.root.join("tmp").join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Unpacks a layer unless it is there. Two that want the same one take turns.
    fn unpacked(&self, source: &Source, layer: &Layer, budget: &mut Limits) -> Result<Below, ImageError> {
        let turn = locked(&self.held).get(&layer.diff_id).map(|(_, turn)| Arc::clone(turn));
        let _turn = turn.as_ref().map(|turn| locked(turn));
        let path = self.layer(&layer.diff_id);
        if !path.exists() {
            let tmp = self.temporary();
            let made = self.make(source, layer, &tmp, budget);
            if let Err(error) = made {
                // What cannot be removed now is removed when the directory is opened again.
                std::fs::remove_dir_all(&tmp).ok();
                return Err(error);
            }
        }
        self.below(&layer.diff_id)
    }

    /// What a layer that is there shows of those below.
    fn below(&self, layer: &Digest) -> Result<Below, ImageError> {
        let path = self.layer(layer);
        let root = open_directory(&path)?;
        let hides_all = unpack::hides_all(&root).map_err(refused("look at", &path))?;
        Ok(if hides_all { Below::Hidden } else { Below::Shows })
    }

    fn make(
        &self,
        source: &Source,
        layer: &Layer,
        tmp: &Path,
        budget: &mut Limits,
    ) -> Result<(), ImageError> {
        DirBuilder::new().mode(0o755).create(tmp).map_err(failed("make", tmp))?;
        let root = open_directory(tmp)?;
        fill(source, layer, &root, budget)?;
        // All at once: a flush of each file would take minutes.
        rustix::fs::syncfs(&root).map_err(refused("flush", tmp))?;
        let path = self.layer(&layer.diff_id);
        std::fs::rename(tmp, &path).map_err(failed("rename", tmp))?;
        let layers = self.root.join("layers");
        File::open(&layers).and_then(|layers| layers.sync_all()).map_err(failed("flush", &layers))
    }
}

/// Whether anything of the layers below shows.
#[derive(PartialEq, Eq)]
enum Below {
    Shows,
    Hidden,
}

/// Keeps a layer from being removed.
#[derive(Debug)]
struct Hold {
    held: Arc<Mutex<Held>>,
    layer: Digest,
}

impl Hold {
    fn new(held: &Arc<Mutex<Held>>, layer: &Digest) -> Self {
        locked(held).entry(layer.clone()).or_default().0 += 1;
        Self { held: Arc::clone(held), layer: layer.clone() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = locked(&self.held);
        if let Some((count, _)) = held.get_mut(&self.layer) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.layer);
            }
        }
    }
}

/// What is behind it is right between any two lines, so a panic elsewhere leaves it right.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unpacks a layer into an empty directory. It is as it should be only when this says so.
fn fill(source: &Source, layer: &Layer, root: &OwnedFd, budget: &mut Limits) -> Result<(), ImageError> {
    let at = || source.at(&layer.name);
    let bad = |entry, source| ImageError::Archive { at: at(), entry, source };
    let missing = || ImageError::MissingBlob { at: at(), by: "the manifest".to_owned() };
    let (file, size) = source.file(&layer.name)?.ok_or_else(missing)?;
    if let Some((_, wanted)) = layer.blob.as_ref().filter(|(_, wanted)| *wanted != size) {
        return Err(ImageError::WrongSize { at: at(), wanted: *wanted, found: size });
    }
    let mut file = Hashing::new(file);
    let unpacked = match Content::new(&mut file) {
        Ok(Err(format)) => return Err(ImageError::Compression { at: at(), format }),
        Ok(Ok(content)) => {
            let room = unpack::Room { entries: &mut budget.entries, longest: budget.bytes };
            let mut content = Hashing::new(Bounded { inner: content, left: &mut budget.bytes });
            let mut archive = Archive::new(&mut content);
            let unpacked = unpack::unpack(&mut archive, root, room);
            let unpacked = unpacked.map_err(|unpack::Bad { entry, fault }| bad(entry, fault));
            unpacked.and_then(|()| {
                content.finish().map_err(|error| bad(String::new(), archive::read_fault(error)))
            })
        }
        Err(error) => Err(bad(String::new(), archive::read_fault(error))),
    };
    // A file that is not what it should be explains all else that is wrong.
    let found = file.finish().map_err(|error| bad(String::new(), Fault::Read(error)))?;
    if let Some((wanted, _)) = layer.blob.as_ref().filter(|(wanted, _)| *wanted != found) {
        return Err(ImageError::WrongDigest { at: at(), wanted: wanted.clone(), found });
    }
    match unpacked? {
        found if found == layer.diff_id => Ok(()),
        found => {
            let at = source.at(&format!("{}, uncompressed", layer.name));
            Err(ImageError::WrongDigest { at, wanted: layer.diff_id.clone(), found })
        }
    }
}

/// A layer's content, uncompressed.
enum Content<R> {
    Plain(BufReader<R>),
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
}

impl<R: Read> Content<R> {
    /// By how it begins: what a manifest says of it is often not so. The error names a format that is not read.
    fn new(inner: R) -> io::Result<Result<Self, &'static str>> {
        let mut inner = BufReader::with_capacity(64 * 1024, inner);
        let start = inner.fill_buf()?;
        Ok(match compression(start) {
            None => Ok(Self::Plain(inner)),
            // Several in a row are one: made so by those who compress with many threads.
            Some(GZIP) => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(inner)))),
            Some(other) => Err(other),
        })
    }
}

impl<R: Read> Read for Content<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(inner) => inner.read(into),
            Self::Gzip(inner) => inner.read(into),
        }
    }
}

/// Passes bytes on until there are too many.
struct Bounded<'a, R> {
    inner: R,
    left: &'a mut u64,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => *self.left = left,
            None => return Err(io::Error::other(OverLimit)),
        }
        Ok(count)
    }
}

impl<R: Read> Input for &mut Hashing<R> {}

fn open_directory(path: &Path) -> Result<OwnedFd, ImageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty()).map_err(refused("open", path))
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Io { action, path: path.clone(), source }
}

fn refused(action: &'static str, path: &Path) -> impl Fn(Errno) -> ImageError {
    let path = path.to_owned();
    move |errno| ImageError::Io { action, path: path.clone(), source: errno.into() }
}
