//! [`RealContainers`]: runc, images and devices of this machine.
use crate::sys::containers::{Astray, Containers, DeviceNode, Equipment, Image, Lack, Layout, NoDevice};
use crate::sys::image::{Digest, ImageError, Images};
use crate::sys::kernel::DeviceId;
use crate::sys::process::PATH;
use crate::sys::real::pool::Pool;
use async_trait::async_trait;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Images that are unpacked at once.
const THREADS: usize = 2;
/// Images of which it is remembered what is wrong with them, at most.
const BAD: usize = 256;
/// Whatever takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long a look at a path may take.
const LOOK: Duration = Duration::from_secs(20);
const RUNC: &str = "runc";

/// What containers need of this machine. The directory of the images is opened when the first one is asked for.
#[derive(Debug)]
pub struct RealContainers {
    /// Images are unpacked here, which may take long.
    pool: Pool,
    /// All else is asked here.
    looks: Pool,
    opened: Arc<Opened>,
    known: Mutex<HashMap<Named, Arc<Known>>>,
}

/// Where an image lies, and its name there.
type Named = (PathBuf, Option<String>);

/// What was read of one image the last time. Who reads it holds the lock: others wait without taking a thread.
type Known = tokio::sync::Mutex<Option<Last>>;

/// What came of reading an image as it was then.
#[derive(Debug)]
enum Last {
    Image(Stamp, Weak<Image>),
    /// What is wrong with it, and of which state of all its files that holds.
    Bad(Stamp, Vec<Stamp>, Arc<ImageError>),
}

/// What tells one state of some files from another.
type Stamp = Vec<(u64, u64, u64, (i64, i64), (i64, i64))>;

#[derive(Debug)]
struct Opened {
    root: PathBuf,
    images: Mutex<Option<Arc<Images>>>,
}

impl Opened {
    fn images(&self) -> Result<Arc<Images>, ImageError> {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(images) = &*images {
            return Ok(Arc::clone(images));
        }
        let opened = Arc::new(Images::open(&self.root)?);
        *images = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

impl RealContainers {
    /// Layers are kept in `images` of this directory.
    pub fn new(data_dir: &Path) -> Self {
        Self {
            pool: Pool::new(THREADS, LONGEST),
            looks: Pool::new(THREADS, LOOK),
            opened: Arc::new(Opened { root: data_dir.join("images"), images: Mutex::default() }),
            known: Mutex::default(),
        }
    }

    fn known(&self, archive: &Path, reference: Option<&str>) -> Arc<Known> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, known| Arc::strong_count(known) > 1 || is_held(known));
        if all.len() > BAD {
            // They are read once more.
            all.retain(|_, known| Arc::strong_count(known) > 1 || !is_bad(known));
        }
        Arc::clone(all.entry((archive.to_owned(), reference.map(str::to_owned))).or_default())
    }

    /// Asks about an image; not begun when nobody waits for the answer any more.
    async fn ask<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, ImageError> {
        let waits = Arc::new(());
        let waiting = Arc::downgrade(&waits);
        let given_up = ImageError::NoAnswer { image: path.to_owned() };
        let work = move || if waiting.strong_count() == 0 { Err(given_up) } else { work() };
        let answer = self.pool.run(path, work).await;
        drop(waits);
        answer.unwrap_or_else(|_| Err(ImageError::NoAnswer { image: path.to_owned() }))
    }
}

fn is_held(known: &Known) -> bool {
    let last = known.try_lock();
    last.is_ok_and(|last| match &*last {
        Some(Last::Image(_, image)) => image.strong_count() > 0,
        Some(Last::Bad(..)) => true,
        None => false,
    })
}

fn is_bad(known: &Known) -> bool {
    known.try_lock().is_ok_and(|last| matches!(&*last, Some(Last::Bad(..))))
}

#[async_trait]
impl Containers for RealContainers {
    async fn check(&self) -> Result<Equipment, Lack> {
        let look = || equipment(std::env::var_os("PATH").unwrap_or_default().as_ref());
        let pool = &self.looks;
        pool.run(Path::new("/proc"), look).await.unwrap_or(Err(Lack::NoAnswer))
    }

    async fn image(&self, archive: &Path, reference: Option<&str>) -> Result<Arc<Image>, ImageError> {
        let known = self.known(archive, reference);
        let mut last = known.lock().await;
        let path = archive.to_owned();
        let (now, blobs) = self.ask(archive, move || Ok((stamp(&path)?, blobs(&path)))).await?;
        match &*last {
            Some(Last::Image(stamp, image)) if *stamp == now => {
                if let Some(image) = image.upgrade() {
                    return Ok(image);
                }
            }
            Some(Last::Bad(stamp, of, error)) if (stamp, of) == (&now, &blobs) => {
                return Err(ImageError::Known(Arc::clone(error)));
            }
            Some(Last::Image(..) | Last::Bad(..)) | None => {}
        }
        let (opened, path) = (Arc::clone(&self.opened), archive.to_owned());
        let reference = reference.map(str::to_owned);
        let made = self.ask(archive, move || {
            let images = opened.images()?;
            let image = images.add(&path, reference.as_deref())?;
            Ok(unpacked(&images, image))
        });
        // As it was before it was read: what changed since is read anew.
        match made.await {
            Ok(image) => {
                *last = Some(Last::Image(now, Arc::downgrade(&image)));
                Ok(image)
            }
            Err(error) if error.is_of_content() => {
                let error = Arc::new(error);
                *last = Some(Last::Bad(now, blobs, Arc::clone(&error)));
                Err(ImageError::Known(error))
            }
            Err(error) => Err(error),
        }
    }

    async fn kept(&self, id: &Digest) -> Option<Arc<Image>> {
        let (opened, id) = (Arc::clone(&self.opened), id.clone());
        let kept = move || {
            let images = opened.images()?;
            Ok(images.kept(&id).map(|image| unpacked(&images, image)))
        };
        self.ask(&self.opened.root, kept).await.ok().flatten()
    }

    async fn remove_unused(&self, used: BTreeSet<PathBuf>) -> Result<usize, ImageError> {
        let opened = Arc::clone(&self.opened);
        self.ask(&self.opened.root.clone(), move || {
            if !opened.root.join("layers").exists() {
                return Ok(0);
            }
            let digest = |layer: &PathBuf| Digest::from_hex(layer.file_name()?.to_str()?);
            let used = used.iter().filter_map(digest).collect();
            Ok(opened.images()?.remove_unused(&used)?.len())
        })
        .await
    }

    async fn resolve(&self, path: &Path, allowed: &[PathBuf]) -> Result<PathBuf, Astray> {
        let (owned, allowed) = (path.to_owned(), allowed.to_vec());
        let pool = &self.looks;
        let answer = pool.run(path, move || resolve(&owned, &allowed)).await;
        let hung = |_| Err(Astray::Refused { path: path.to_owned(), source: io::ErrorKind::TimedOut.into() });
        answer.unwrap_or_else(hung)
    }

    async fn device(&self, path: &Path) -> Result<DeviceNode, NoDevice> {
        let owned = path.to_owned();
        let pool = &self.looks;
        let answer = pool.run(path, move || device(&owned)).await;
        let hung =
            |_| Err(NoDevice::Refused { path: path.to_owned(), source: io::ErrorKind::TimedOut.into() });
        answer.unwrap_or_else(hung)
    }
}

fn unpacked(images: &Images, image: crate::sys::image::Image) -> Arc<Image> {
    let layers = image.layers.iter().map(|layer| images.layer(layer)).collect();
    Arc::new(Image::new(image.id.clone(), image.config.clone(), layers, image))
}

/// Of a layout it is its index that changes: blobs are named by their content.
fn stamp(archive: &Path) -> Result<Stamp, ImageError> {
    let look = |path: &Path| match std::fs::metadata(path) {
        Ok(found) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ImageError::NotFound { image: archive.to_owned() })
        }
        Err(source) => Err(ImageError::Io { action: "look at", path: path.to_owned(), source }),
    };
    let found = look(archive)?;
    let mut stamp = vec![one(&found)];
    if found.is_dir()
        && let Ok(index) = std::fs::metadata(archive.join("index.json"))
    {
        stamp.push(one(&index));
    }
    Ok(stamp)
}

fn one(of: &Metadata) -> (u64, u64, u64, (i64, i64), (i64, i64)) {
    (of.dev(), of.ino(), of.size(), (of.mtime(), of.mtime_nsec()), (of.ctime(), of.ctime_nsec()))
}

/// Of a layout that is wrong whatever of it may be put right, such as a blob of a copy that was not complete.
fn blobs(archive: &Path) -> Vec<Stamp> {
    let files = |directory: PathBuf| {
        let mut all: Vec<_> = std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| std::fs::metadata(entry.path()).ok())
            .map(|found| one(&found))
            .collect();
        all.sort_unstable();
        all
    };
    vec![files(archive.to_owned()), files(archive.join("blobs/sha256"))]
}

fn equipment(path: &OsStr) -> Result<Equipment, Lack> {
    let mut looked: Vec<PathBuf> =
        // Whatever the daemon's own says.
        std::env::split_paths(path).chain(std::env::split_paths(PATH)).collect();
    looked.retain(|directory| directory.is_absolute());
    let mut seen = BTreeSet::new();
    looked.retain(|directory| seen.insert(directory.clone()));
    let runs = |program: &PathBuf| {
        let found = std::fs::metadata(program);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let runc = looked.iter().map(|directory| directory.join(RUNC)).find(runs);
    let runc = runc.ok_or(Lack::Runc { looked })?;
    let uname = rustix::system::uname();
    if !has_overlay(&uname.release().to_string_lossy()) {
        return Err(Lack::Overlay);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Ok(Equipment {
        runc,
        capabilities: capabilities(&status),
        hostname: uname.nodename().to_string_lossy().into_owned(),
        cgroups: layout(Path::new("/sys/fs/cgroup")),
        resolv_conf: Path::new("/etc/resolv.conf").is_file(),
        hosts: Path::new("/etc/hosts").is_file(),
    })
}

/// One that is a module is loaded by the first mount.
fn has_overlay(release: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().next_back() == Some("overlay"))
        || Path::new("/lib/modules").join(release).is_dir()
}

/// What this process may give to a program that it starts.
fn capabilities(status: &str) -> BTreeSet<u8> {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
    };
    let both = set("CapPrm:") & set("CapBnd:");
    (0..64).filter(|number| both & (1 << number) != 0).collect()
}

fn layout(mounted: &Path) -> Layout {
    let v2 = |at: &Path| at.join("cgroup.controllers").exists();
    match (v2(mounted), v2(&mounted.join("unified"))) {
        (true, _) => Layout::V2,
        (false, true) => Layout::Hybrid,
        (false, false) => Layout::V1,
    }
}

fn resolve(path: &Path, allowed: &[PathBuf]) -> Result<PathBuf, Astray> {
    let outside = || Astray::Outside { path: path.to_owned(), allowed: allowed.to_vec() };
    let roots: Vec<_> = allowed.iter().filter_map(|root| std::fs::canonicalize(root).ok()).collect();
    let beneath = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    match std::fs::canonicalize(path) {
        Ok(real) if beneath(&real) => Ok(real),
        // Where nobody may look it is not told what is there, be the way there a link.
        Err(source) if roots.iter().chain(allowed).any(|root| stays_beneath(root, path)) => {
            Err(Astray::Refused { path: path.to_owned(), source })
        }
        Ok(_) | Err(_) => Err(outside()),
    }
}

/// Whether the way to a path that is not there does not leave a directory.
fn stays_beneath(root: &Path, path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(root) else { return false };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = match rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty()) {
        Ok(root) => root,
        // The directory itself is yet to be made.
        Err(Errno::NOENT) => return inside.components().all(|part| matches!(part, Component::Normal(_))),
        Err(_) => return false,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(&root, inside, flags, Mode::empty(), resolve);
    !matches!(found, Err(Errno::XDEV | Errno::LOOP))
}

fn device(path: &Path) -> Result<DeviceNode, NoDevice> {
    let refused = |source| NoDevice::Refused { path: path.to_owned(), source };
    let found = rustix::fs::stat(path).map_err(|errno| refused(errno.into()))?;
    let block = match FileType::from_raw_mode(found.st_mode) {
        FileType::BlockDevice => true,
        FileType::CharacterDevice => false,
        _ => return Err(NoDevice::Other { path: path.to_owned() }),
    };
    let id = DeviceId { major: rustix::fs::major(found.st_rdev), minor: rustix::fs::minor(found.st_rdev) };
    Ok(DeviceNode { block, id, mode: found.st_mode & 0o7777, owner: (found.st_uid, found.st_gid) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_counts_by_where_it_leads_and_elsewhere_nothing_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in ["allowed/sub", "other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("allowed/sub/image"), "").unwrap();
        std::fs::write(root.join("other/secret"), "").unwrap();
        let link = |target: &str, at: &str| {
            std::os::unix::fs::symlink(root.join(target), root.join(at)).unwrap();
        };
        link("other/secret", "allowed/out");
        link("allowed", "alias");
        link("allowed/sub/image", "other/in");
        let found = |path: &str, allowed: &str| match resolve(&root.join(path), &[root.join(allowed)]) {
            Ok(real) => real.strip_prefix(&root).unwrap().to_string_lossy().into_owned(),
            Err(Astray::Outside { .. }) => "outside".to_owned(),
            Err(Astray::Refused { source, .. }) => source.kind().to_string(),
        };
        for (path, allowed, expected) in [
            ("allowed/sub/image", "allowed", "allowed/sub/image"),
            ("alias/sub/image", "allowed", "allowed/sub/image"),
            ("allowed/sub/image", "alias", "allowed/sub/image"),
            ("other/in", "allowed", "allowed/sub/image"),
            ("allowed", "allowed", "allowed"),
            ("allowed/out", "allowed", "outside"),
            ("other/secret", "allowed", "outside"),
            ("other/missing", "allowed", "outside"),
            ("allowed/missing", "allowed", "entity not found"),
            ("allowed/out/missing", "allowed", "outside"),
            ("allowed/sub/missing", "alias", "entity not found"),
            ("allowed/sub/image", "missing", "outside"),
            ("missing/sub/image", "missing", "entity not found"),
            ("missing/../other/secret", "missing", "outside"),
            ("allowed/sub/../../other/secret", "allowed", "outside"),
        ] {
            assert_eq!(found(path, allowed), expected, "{path} beneath {allowed}");
        }
        assert!(resolve(&root.join("other"), &[]).unwrap_err().to_string().contains("none is allowed"));
    }

    #[test]
    fn only_what_is_permitted_and_bounded_is_given_away() {
        let status = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000013\nCapBnd:\t000001ffffffff02\n";
        assert_eq!(capabilities(status), BTreeSet::from([1]));
        assert_eq!(capabilities(""), BTreeSet::new());
    }

    #[test]
    fn runc_is_found_where_the_path_says() {
        let directory = tempfile::tempdir().unwrap();
        let runc = directory.path().join(RUNC);
        std::fs::write(&runc, "").unwrap();
        let found = |path: &OsStr| equipment(path).map(|equipment| equipment.runc);
        let elsewhere = found(directory.path().as_os_str());
        assert_ne!(elsewhere.as_ref(), Ok(&runc), "it cannot be run");
        std::fs::set_permissions(&runc, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found(directory.path().as_os_str()), Ok(runc));
        if let Err(lack) = elsewhere {
            assert!(lack.to_string().contains(directory.path().to_str().unwrap()), "{lack}");
        }
    }

    #[test]
    fn cgroups_are_told_by_where_the_second_version_is() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(layout(root), Layout::V1);
        std::fs::create_dir(root.join("unified")).unwrap();
        std::fs::write(root.join("unified/cgroup.controllers"), "").unwrap();
        assert_eq!(layout(root), Layout::Hybrid);
        std::fs::write(root.join("cgroup.controllers"), "cpu").unwrap();
        assert_eq!(layout(root), Layout::V2);
    }

    #[test]
    fn devices_are_told_from_what_is_none() {
        let null = device(Path::new("/dev/null")).unwrap();
        assert_eq!((null.block, null.id), (false, DeviceId { major: 1, minor: 3 }));
        assert!(matches!(device(Path::new("/etc")), Err(NoDevice::Other { .. })));
        assert!(matches!(device(Path::new("/dev/none")), Err(NoDevice::Refused { .. })));
    }
}
