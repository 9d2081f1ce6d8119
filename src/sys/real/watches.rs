//! [`RealWatches`]: directories watched with inotify.
//!
//! All watches are of one instance of inotify: of these one user may have 128, whatever programs they are in. A directory
//! has one number there, however many watch it. Whoever waits reads for all: there is no task that would have to be ended.
use crate::sys::ffi;
use crate::sys::real::pool::{Pool, Unanswered};
use crate::sys::watch::{DirEvent, WatchError, Watches};
use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Events that wait for one that watches; of more it is told that some were lost.
const PENDING: usize = 4096;
/// Numbers that ended last and are remembered, for calls that were under way.
const ENDED: usize = 1024;
/// How often a call is made whose number ended before its answer was here.
const TRIES: usize = 16;

/// Watches directories of this machine. Clones share the instance of inotify.
#[derive(Debug, Clone)]
pub struct RealWatches {
    pool: Pool,
    instance: Arc<Mutex<Option<Arc<Instance>>>>,
}

impl RealWatches {
    /// Path calls run on this pool.
    pub fn new(pool: Pool) -> Self {
        Self { pool, instance: Arc::default() }
    }

    /// The instance: made for the first watch, and anew when it failed.
    fn instance(&self) -> io::Result<Arc<Instance>> {
        let mut known = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(instance) = known.as_ref().filter(|instance| !instance.lock().failed) {
            return Ok(Arc::clone(instance));
        }
        let instance = Arc::new(Instance::new()?);
        *known = Some(Arc::clone(&instance));
        Ok(instance)
    }

    /// Begins to watch.
    async fn begin(&self, directory: &Path) -> Result<Events, WatchError> {
        let refused = |source| WatchError::Refused { path: directory.to_owned(), source };
        let gone = || WatchError::Gone { path: directory.to_owned() };
        let instance = self.instance().map_err(refused)?;
        let path = directory.to_owned();
        // Whoever gives up here leaves it to the thread to end what it has begun.
        let added = self.pool.run(directory, move || join(&instance, &path));
        match added.await {
            Ok(Ok(Some(events))) => Ok(events),
            // It went away meanwhile.
            Ok(Ok(None) | Err(Errno::NOENT | Errno::NOTDIR)) => Err(gone()),
            Ok(Err(errno)) => Err(refused(errno.into())),
            Err(Unanswered::Hung | Unanswered::Overloaded) => Err(refused(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Whether there is a file of this name.
    async fn is_there(&self, directory: &Path, name: &str) -> Result<bool, WatchError> {
        let file = directory.join(name);
        let there = self.pool.run(directory, move || std::fs::symlink_metadata(file).is_ok()).await;
        let refused = |source| WatchError::Refused { path: directory.to_owned(), source };
        there.map_err(|_: Unanswered| refused(io::ErrorKind::TimedOut.into()))
    }
}

#[async_trait]
impl Watches for RealWatches {
    async fn appeared(&self, directory: &Path, name: &str) -> Result<(), WatchError> {
        loop {
            // First the watch, then the look: what comes between the two is not missed.
            let mut events = self.begin(directory).await?;
            if self.is_there(directory, name).await? {
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
        let events = self.begin(directory).await?;
        let next = |mut events: Events| async move { events.next().await.map(|event| (event, events)) };
        Ok(futures::stream::unfold(events, next).boxed())
    }
}

fn add(fd: &AsyncFd<OwnedFd>, directory: &Path) -> Result<i32, Errno> {
    let wanted = WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    rustix::fs::inotify::add_watch(fd.get_ref(), directory, wanted)
}

/// One instance of inotify, and who watches what with it.
#[derive(Debug)]
struct Instance {
    fd: AsyncFd<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the directory's number: those that watch it, each with a number of its own.
    watching: HashMap<i32, HashMap<u64, Pending>>,
    next: u64,
    /// How many numbers the kernel has taken back, and the last of them: a call that was under way may answer one still.
    ends: u64,
    ended: VecDeque<i32>,
    /// Nothing can be read any more.
    failed: bool,
}

/// What one that watches has not taken yet.
#[derive(Debug, Default)]
struct Pending {
    events: VecDeque<DirEvent>,
    news: Arc<Notify>,
}

impl Pending {
    fn push(&mut self, event: DirEvent) {
        // Nothing comes after this one.
        let over = self.events.back() == Some(&DirEvent::Gone);
        if !over && self.events.len() >= PENDING && event != DirEvent::Gone {
            self.events.clear();
            self.events.push_back(DirEvent::Overflow);
        } else if !over {
            self.events.push_back(event);
        }
        self.news.notify_one();
    }
}

impl Instance {
    fn new() -> io::Result<Self> {
        let fd = rustix::fs::inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { fd: ffi::readable(fd)?, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands on all that has happened up to now.
    fn read_all(&self, state: &mut State) {
        loop {
            match read(self.fd.get_ref()) {
                Ok(events) => events.into_iter().for_each(|told| state.tell(told)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return state.fail(),
            }
        }
    }
}

impl State {
    fn tell(&mut self, Told { number, event, given_back }: Told) {
        if given_back {
            self.ends += 1;
            self.ended.truncate(ENDED - 1);
            self.ended.push_front(number);
        }
        match event {
            // That is of all of them, and any number may have ended.
            DirEvent::Overflow => {
                self.ends += 1;
                self.ended.clear();
                let all = self.watching.values_mut().flat_map(HashMap::values_mut);
                all.for_each(|one| one.push(DirEvent::Overflow));
            }
            DirEvent::Appeared(_) | DirEvent::Vanished(_) | DirEvent::Written(_) | DirEvent::Gone => {
                let of_it = self.watching.get_mut(&number);
                of_it.into_iter().flat_map(HashMap::values_mut).for_each(|one| one.push(event.clone()));
            }
        }
    }

    fn fail(&mut self) {
        self.failed = true;
        let all = self.watching.values_mut().flat_map(HashMap::values_mut);
        all.for_each(|one| one.push(DirEvent::Gone));
    }

    /// Whether a number that was answered to a call has not ended since so many had; of too many ends nobody knows. None is
    /// given out twice before all others were.
    fn stands(&self, number: i32, ends: u64) -> bool {
        let since = usize::try_from(self.ends - ends).unwrap_or(usize::MAX);
        since <= self.ended.len() && !self.ended.iter().take(since).any(|ended| *ended == number)
    }

    /// Gives back a number that nobody watches. To a call that was just answered it, it has ended then.
    fn give_back(&self, fd: &OwnedFd, number: i32) {
        if !self.watching.contains_key(&number) {
            // With its directory it may have gone by itself.
            let _gone = rustix::fs::inotify::remove_watch(fd, number);
        }
    }
}

/// Has what happens in a directory from now on told; none if it went away already. The path may hang, and keeps nobody else
/// from anything.
fn join(instance: &Arc<Instance>, directory: &Path) -> Result<Option<Events>, Errno> {
    for _ in 0..TRIES {
        let ends = {
            let mut state = instance.lock();
            instance.read_all(&mut state);
            state.ends
        };
        let number = add(&instance.fd, directory)?;
        let mut state = instance.lock();
        // What happened before is told to those that were there before.
        instance.read_all(&mut state);
        if state.failed || !state.stands(number, ends) {
            state.give_back(instance.fd.get_ref(), number);
            if state.failed {
                return Ok(None);
            }
            continue;
        }
        let (pending, own) = (Pending::default(), state.next);
        state.next += 1;
        let news = Arc::clone(&pending.news);
        state.watching.entry(number).or_default().insert(own, pending);
        drop(state);
        return Ok(Some(Events { instance: Arc::clone(instance), number, own, news, over: false }));
    }
    Ok(None)
}

/// The events of one that watches, in order.
struct Events {
    instance: Arc<Instance>,
    number: i32,
    own: u64,
    news: Arc<Notify>,
    over: bool,
}

impl Events {
    async fn next(&mut self) -> Option<DirEvent> {
        loop {
            if self.over {
                return None;
            }
            if let Some(event) = self.take() {
                self.over = event == DirEvent::Gone;
                return Some(event);
            }
            tokio::select! {
                () = self.news.notified() => {}
                ready = self.instance.fd.readable() => match ready {
                    Ok(mut ready) => {
                        let mut state = self.instance.lock();
                        // Only an answer that there is nothing more makes it wait for the next time.
                        let _told = ready.try_io(|_| {
                            self.instance.read_all(&mut state);
                            Err::<(), _>(io::ErrorKind::WouldBlock.into())
                        });
                    }
                    Err(_) => self.instance.lock().fail(),
                },
            }
        }
    }

    fn take(&self) -> Option<DirEvent> {
        let mut state = self.instance.lock();
        // The kernel is asked, not the runtime, which hears of it later.
        self.instance.read_all(&mut state);
        state.watching.get_mut(&self.number)?.get_mut(&self.own)?.events.pop_front()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut state = self.instance.lock();
        let Some(all) = state.watching.get_mut(&self.number) else { return };
        all.remove(&self.own);
        if all.is_empty() {
            state.watching.remove(&self.number);
            state.give_back(self.instance.fd.get_ref(), self.number);
        }
    }
}

/// What the kernel tells.
struct Told {
    number: i32,
    event: DirEvent,
    /// The number is nobody's any more. A directory that was moved keeps its own.
    given_back: bool,
}

fn read(fd: &OwnedFd) -> io::Result<Vec<Told>> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(fd, &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = || event.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let bits = event.events();
                let told = if bits.contains(ReadFlags::QUEUE_OVERFLOW) {
                    Some(DirEvent::Overflow)
                } else if bits.intersects(
                    ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
                ) {
                    Some(DirEvent::Gone)
                } else if bits.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                    Some(DirEvent::Appeared(name()))
                } else if bits.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                    Some(DirEvent::Vanished(name()))
                } else if bits.contains(ReadFlags::CLOSE_WRITE) {
                    Some(DirEvent::Written(name()))
                } else {
                    None
                };
                let given_back = bits.contains(ReadFlags::IGNORED);
                events.extend(told.map(|told| Told { number: event.wd(), event: told, given_back }));
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
