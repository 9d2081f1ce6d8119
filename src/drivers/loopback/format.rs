//! What is done to a file system by a program, while nobody uses it: made, or, of ext4 where the kernel will not do it, grown.
//!
//! It is done in a second file, which then takes the name of the image. Whatever stops it in between, the image is as it was
//! or whole.
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::image::{self, Content, FsType, IMAGE, blank, probe};
use crate::drivers::refusal::Refusal;
use crate::sys::real::copies;
use crate::sys::real::program::{self, Ended};

/// What is being made.
const DRAFT: &str = "image.new";
/// Longer than any image takes, shorter than callers wait.
const DEADLINE: Duration = Duration::from_secs(100);

/// The directory of a volume whose blank image gets a file system.
pub(super) struct Formatting<'a> {
    pub(super) volume: &'a str,
    pub(super) home: &'a OwnedFd,
    pub(super) path: &'a Path,
    pub(super) capacity: u64,
    /// Where programs are looked for.
    pub(super) programs: &'a OsStr,
}

impl Formatting<'_> {
    /// Puts an image with an empty file system in the place of the blank one, behind which no device may be.
    pub(super) fn format(&self, fs: FsType) -> Result<(), Refusal> {
        if self.capacity < fs.least() {
            let problem = format!("has {} bytes; {} needs {} at least", self.capacity, fs.name(), fs.least());
            return Err(Refusal::Unfit { volume: self.volume.to_owned(), problem });
        }
        self.remove_draft().map_err(self.failed("remove"))?;
        let draft = blank(self.home, DRAFT, self.capacity).map_err(self.failed("make"))?;
        let arguments = fs.arguments(&self.path.join(DRAFT));
        let made = self.run(fs.program(), &arguments, &[0]).and_then(|()| self.take_over(&draft, fs));
        self.unless_made(made)
    }

    /// Puts an image whose ext4 has all of it in the place of one whose ext4 is smaller. No device may be behind it. Where there
    /// is no room for a second image it stays as it is, which is no reason not to use it; that it is damaged is one.
    pub(super) fn grow_ext4(&self) -> Result<(), Refusal> {
        self.remove_draft().map_err(self.failed("remove"))?;
        let image = image::open(self.home, self.path, true)?;
        let draft = match self.copied(&image) {
            Ok(draft) => draft,
            Err(error) => {
                let _kept = self.remove_draft();
                let error: &dyn std::error::Error = &error;
                tracing::warn!(
                    error,
                    volume = self.volume,
                    "its ext4 stays as small as it is: no copy to grow"
                );
                return Ok(());
            }
        };
        let path = self.path.join(DRAFT).into_os_string();
        // 1: there was something to be mended, and it was.
        let made = self
            .run("e2fsck", &["-f".into(), "-p".into(), path.clone()], &[0, 1])
            .and_then(|()| self.run("resize2fs", &[path], &[0]))
            .and_then(|()| self.take_over(&draft, FsType::Ext4));
        self.unless_made(made)
    }

    /// A copy of the image, of the size of the volume.
    fn copied(&self, image: &OwnedFd) -> Result<File, Refusal> {
        let draft = blank(self.home, DRAFT, 0).map_err(self.failed("make"))?;
        copies::file(image, &draft, self.capacity)
            .and_then(|_| draft.set_len(self.capacity))
            .map_err(self.failed("copy the image to"))?;
        Ok(draft)
    }

    fn unless_made(&self, made: Result<(), Refusal>) -> Result<(), Refusal> {
        if made.is_err() {
            // It would be removed before the next attempt too.
            let _kept = self.remove_draft();
        }
        made
    }

    fn failed<E: Into<io::Error>>(&self, step: &'static str) -> impl FnOnce(E) -> Refusal {
        move |error| Refusal::failed(step, &self.path.join(DRAFT))(error)
    }

    fn remove_draft(&self) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(self.home, DRAFT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn run(&self, name: &'static str, arguments: &[OsString], fine: &[i32]) -> Result<(), Refusal> {
        let refused = |problem| Err(Refusal::Program { program: name, problem });
        let Some(program): Option<PathBuf> = program::find(name, self.programs) else {
            let searched = self.programs.display();
            return refused(format!(
                "it is in none of the directories {searched}; is its package installed?"
            ));
        };
        let started = std::time::Instant::now();
        effect!("csi format");
        let ended = program::run(&program, arguments, DEADLINE);
        effect!("csi format: made");
        match ended {
            Ok(Ended::Exited { status, .. }) if status.code().is_some_and(|code| fine.contains(&code)) => {
                let millis = started.elapsed().as_millis();
                tracing::info!(volume = self.volume, program = name, millis, "formatted");
                Ok(())
            }
            Ok(Ended::Exited { status, words }) => refused(format!("{status}: {words}")),
            Ok(Ended::Killed) => refused(format!("killed after {} s", DEADLINE.as_secs())),
            Err(error) => Err(Refusal::failed("run", &program)(error)),
        }
    }

    fn take_over(&self, draft: &File, fs: FsType) -> Result<(), Refusal> {
        let copy = draft.try_clone().map_err(self.failed("open"))?;
        let whole = draft.metadata().map_err(self.failed("look at"))?.len() == self.capacity
            && probe(&copy.into()).map_err(self.failed("read"))? == Content::Filesystem(fs);
        if !whole {
            let problem = format!("it left no {} of the size of the volume", fs.name());
            return Err(Refusal::Program { program: fs.program(), problem });
        }
        draft.sync_all().map_err(self.failed("sync"))?;
        rustix::fs::renameat(self.home, DRAFT, self.home, IMAGE).map_err(self.failed("rename"))?;
        effect!("csi format: in place");
        rustix::fs::fsync(self.home).map_err(self.failed("sync"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// There is no file as large as this volume: what happens on a full disk, too.
    #[test]
    fn an_image_that_cannot_be_copied_is_used_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let image = File::create_new(home.path().join(IMAGE)).unwrap();
        image.write_all_at(b"an ext4", 0).unwrap();
        let open = OwnedFd::from(File::open(home.path()).unwrap());
        let of = |capacity| Formatting {
            volume: "v",
            home: &open,
            path: home.path(),
            capacity,
            programs: OsStr::new("/nowhere"),
        };
        of(u64::MAX).grow_ext4().unwrap();
        assert!(!home.path().join(DRAFT).exists());
        assert_eq!(std::fs::read(home.path().join(IMAGE)).unwrap(), b"an ext4");
        // Whether it is whole has to be known before anybody uses it.
        let refused = of(1 << 20).grow_ext4().unwrap_err();
        assert!(matches!(refused, Refusal::Program { program: "e2fsck", .. }), "{refused:?}");
        assert!(!home.path().join(DRAFT).exists());
    }
}
