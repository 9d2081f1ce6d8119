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
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Events that wait for one that watches; of more it is told that some were lost.
const PENDING: usize = 4096;

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
        let adding = Adding::begin(instance);
        let path = directory.to_owned();
        // Whoever gives up here leaves it to the thread to end what it has begun.
        let added = self.pool.run(directory, move || {
            let number = add(&adding.0.fd, &path);
            number.map(|number| Adding::join(&adding, number))
        });
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
    /// Calls under way that may answer any number: none is given back meanwhile.
    adding: usize,
    /// Numbers that nobody watches any more.
    idle: HashSet<i32>,
    /// Numbers that the kernel took back while calls were under way, which may answer them still.
    ended: HashSet<i32>,
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
        if given_back && self.adding > 0 {
            self.ended.insert(number);
        }
        match event {
            // That is of all of them.
            DirEvent::Overflow => {
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

    /// Gives back the numbers that nobody watches, unless one of them may just be answered to somebody.
    fn give_back(&mut self, fd: &OwnedFd) {
        if self.adding > 0 {
            return;
        }
        self.ended.clear();
        for number in self.idle.drain() {
            // With its directory it may have gone by itself.
            let _gone = rustix::fs::inotify::remove_watch(fd, number);
        }
    }
}

/// A call that adds a watch.
struct Adding(Arc<Instance>);

impl Adding {
    fn begin(instance: Arc<Instance>) -> Self {
        instance.lock().adding += 1;
        Self(instance)
    }

    /// Has what happens in the directory of this number from now on told; none if it went away already.
    fn join(&self, number: i32) -> Option<Events> {
        let mut state = self.0.lock();
        // What happened before is told to those that were there before.
        self.0.read_all(&mut state);
        if state.failed || state.ended.contains(&number) {
            state.idle.insert(number);
            return None;
        }
        state.idle.remove(&number);
        let (pending, own) = (Pending::default(), state.next);
        state.next += 1;
        let news = Arc::clone(&pending.news);
        state.watching.entry(number).or_default().insert(own, pending);
        drop(state);
        Some(Events { instance: Arc::clone(&self.0), number, own, news, over: false })
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.adding -= 1;
        state.give_back(self.0.fd.get_ref());
    }
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
            state.idle.insert(self.number);
            state.give_back(self.instance.fd.get_ref());
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
