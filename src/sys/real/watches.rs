//! [`RealWatches`]: directories watched with inotify.
use crate::sys::ffi;
use crate::sys::real::pool::{Pool, Unanswered};
use crate::sys::watch::{DirEvent, WatchError, Watches};
use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Watches directories of this machine.
#[derive(Debug, Clone)]
pub struct RealWatches {
    pool: Pool,
}

impl RealWatches {
    /// Path calls run on this pool.
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Begins to watch, then looks whether `name` is there: what comes between the two is not missed.
    async fn begin(&self, directory: &Path, name: Option<&str>) -> Result<(Events, bool), WatchError> {
        let (path, file) = (directory.to_owned(), name.map(|name| directory.join(name)));
        let begun = self.pool.run(directory, move || {
            let there = |file: PathBuf| std::fs::symlink_metadata(file).is_ok();
            watch(&path).map(|fd| (fd, file.is_some_and(there)))
        });
        let refused = |source| WatchError::Refused { path: directory.to_owned(), source };
        match begun.await {
            Ok(Ok((fd, there))) => {
                let fd = ffi::readable(fd).map_err(refused)?;
                Ok((Events { fd, pending: VecDeque::new(), over: false }, there))
            }
            Ok(Err(Errno::NOENT | Errno::NOTDIR)) => Err(WatchError::Gone { path: directory.to_owned() }),
            Ok(Err(errno)) => Err(refused(errno.into())),
            Err(Unanswered::Hung | Unanswered::Overloaded) => Err(refused(io::ErrorKind::TimedOut.into())),
        }
    }
}

#[async_trait]
impl Watches for RealWatches {
    async fn appeared(&self, directory: &Path, name: &str) -> Result<(), WatchError> {
        loop {
            let (mut events, there) = self.begin(directory, Some(name)).await?;
            if there {
                return Ok(());
            }
            loop {
                match events.next().await {
                    Some(DirEvent::Appeared(appeared)) if appeared == name => return Ok(()),
                    Some(DirEvent::Appeared(_) | DirEvent::Vanished(_) | DirEvent::Written(_)) => {}
                    Some(DirEvent::Overflow) => break,
                    Some(DirEvent::Gone) | None => {
                        return Err(WatchError::Gone { path: directory.to_owned() });
                    }
                }
            }
        }
    }

    async fn changes(&self, directory: &Path) -> Result<BoxStream<'static, DirEvent>, WatchError> {
        let (events, _) = self.begin(directory, None).await?;
        let next = |mut events: Events| async move { events.next().await.map(|event| (event, events)) };
        Ok(futures::stream::unfold(events, next).boxed())
    }
}

fn watch(directory: &Path) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let wanted = WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    rustix::fs::inotify::add_watch(&fd, directory, wanted)?;
    Ok(fd)
}

/// The events of one watch, in order.
struct Events {
    fd: AsyncFd<OwnedFd>,
    pending: VecDeque<DirEvent>,
    over: bool,
}

impl Events {
    async fn next(&mut self) -> Option<DirEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                // The kernel tells it more than once, and nothing comes after it.
                if event == DirEvent::Gone {
                    self.over = true;
                    self.pending.clear();
                }
                return Some(event);
            }
            if self.over {
                return None;
            }
            let ready = self.fd.readable().await;
            let read = match ready {
                Ok(mut guard) => guard.try_io(|fd| read(fd.get_ref())),
                Err(error) => Ok(Err(error)),
            };
            match read {
                Ok(Ok(events)) => self.pending.extend(events),
                Ok(Err(_)) => self.pending.push_back(DirEvent::Gone),
                Err(_would_block) => {}
            }
        }
    }
}

fn read(fd: &OwnedFd) -> io::Result<Vec<DirEvent>> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(fd, &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = || event.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let bits = event.events();
                if bits.contains(ReadFlags::QUEUE_OVERFLOW) {
                    events.push(DirEvent::Overflow);
                } else if bits.intersects(
                    ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
                ) {
                    events.push(DirEvent::Gone);
                } else if bits.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                    events.push(DirEvent::Appeared(name()));
                } else if bits.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                    events.push(DirEvent::Vanished(name()));
                } else if bits.contains(ReadFlags::CLOSE_WRITE) {
                    events.push(DirEvent::Written(name()));
                }
            }
            Err(Errno::AGAIN) if events.is_empty() => return Err(io::ErrorKind::WouldBlock.into()),
            Err(Errno::AGAIN) => return Ok(events),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if reader.is_buffer_empty() && !events.is_empty() {
            return Ok(events);
        }
    }
}
