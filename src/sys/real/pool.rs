//! Threads for calls that may hang: a bounded number, each call with a deadline.
//!
//! A call that hangs keeps its thread until the kernel lets go; its path is remembered, and further calls on that
//! path are answered at once, so that one dead file system takes one thread for each of its paths and no more. Another
//! thread takes its place, so that the dead do not keep the living waiting.
//! The threads are not joined: one may sit in a call that never returns, and must not hold the process back.
use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long an idle thread waits for more.
const IDLE: Duration = Duration::from_secs(10);
/// Calls that wait for a thread, at most.
const QUEUE: usize = 4096;
/// Threads beside the usual ones, at most, for as many calls that hang.
const SPARE: usize = 120;
/// System calls and short paths need little.
const STACK: usize = 256 * 1024;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// It was begun and did not return in time, or a former one on the same path still has not.
    Hung,
    /// It was not begun: all threads are taken.
    Overloaded,
}

/// A bounded pool of threads for blocking calls. Clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    deadline: Duration,
}

struct Shared {
    state: Mutex<State>,
    more: Condvar,
    threads: usize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    next: u64,
    /// Begun and not ended.
    running: HashSet<u64>,
    /// Those of them that passed their deadline.
    stuck: HashSet<u64>,
    /// Paths of calls that passed their deadline and have not ended.
    hung: HashSet<PathBuf>,
    threads: usize,
    idle: usize,
}

struct Job {
    number: u64,
    path: PathBuf,
    work: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Pool {
    /// At most this many threads beside those that hang; each call is given up after `deadline`, waiting for a thread included.
    pub fn new(threads: usize, deadline: Duration) -> Self {
        let shared = Shared { state: Mutex::default(), more: Condvar::new(), threads };
        Self { shared: Arc::new(shared), deadline }
    }

    /// The same threads with another deadline.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), deadline }
    }

    /// Runs `work`, which asks about `path`, on a thread of the pool. A panic in it is a panic here.
    pub async fn run<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let (answer, answered) = oneshot::channel();
        let work = Box::new(move || {
            // The asker may have given up; then nobody wants the answer.
            drop(answer.send(catch_unwind(AssertUnwindSafe(work))));
        });
        let number = self.shared.submit(path, work)?;
        match tokio::time::timeout(self.deadline, answered).await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(panic))) => resume_unwind(panic),
            Ok(Err(_)) => Err(Unanswered::Overloaded),
            Err(_) => Err(self.shared.give_up(number, path)),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No call runs under the lock, so what it guards is whole even after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Self>, path: &Path, work: Box<dyn FnOnce() + Send>) -> Result<u64, Unanswered> {
        let mut state = self.lock();
        if state.hung.contains(path) {
            return Err(Unanswered::Hung);
        }
        if state.queue.len() >= QUEUE {
            return Err(Unanswered::Overloaded);
        }
        state.next += 1;
        let number = state.next;
        state.queue.push_back(Job { number, path: path.to_owned(), work });
        if state.idle >= state.queue.len() {
            self.more.notify_one();
        } else if !self.grow(&mut state) && state.threads == 0 {
            state.queue.pop_back();
            return Err(Unanswered::Overloaded);
        }
        Ok(number)
    }

    /// One more thread, if there may be one; whether there is.
    fn grow(self: &Arc<Self>, state: &mut State) -> bool {
        if state.threads >= self.threads + state.stuck.len().min(SPARE) {
            return false;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("path".to_owned()).stack_size(STACK);
        let begun = thread.spawn(move || shared.work()).is_ok();
        state.threads += usize::from(begun);
        begun
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.running.insert(job.number);
                drop(state);
                (job.work)();
                state = self.lock();
                state.running.remove(&job.number);
                state.stuck.remove(&job.number);
                state.hung.remove(&job.path);
                continue;
            }
            state.idle += 1;
            let (guard, waited) = self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn give_up(self: &Arc<Self>, number: u64, path: &Path) -> Unanswered {
        let mut state = self.lock();
        if state.running.contains(&number) {
            state.hung.insert(path.to_owned());
            state.stuck.insert(number);
            if state.queue.len() > state.idle {
                self.grow(&mut state);
            }
            return Unanswered::Hung;
        }
        let queued = state.queue.iter().position(|job| job.number == number);
        if let Some(index) = queued {
            state.queue.remove(index);
            return Unanswered::Overloaded;
        }
        // It ended in this very moment; its effect is there and its answer is lost.
        Unanswered::Hung
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_hung_path_is_answered_at_once_and_delays_no_other() {
        let pool = Pool::new(4, SHORT);
        let (release, held) = mpsc::channel::<()>();
        let hung = pool.run(Path::new("/dead"), move || held.recv().is_ok()).await;
        assert_eq!(hung, Err(Unanswered::Hung));
        let patient = pool.with_deadline(LONG);
        assert_eq!(patient.run(Path::new("/dead"), || 1).await, Err(Unanswered::Hung), "remembered");
        assert_eq!(patient.run(Path::new("/alive"), || 2).await, Ok(2));
        release.send(()).unwrap();
        while patient.run(Path::new("/dead"), || 3).await != Ok(3) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn without_a_free_thread_a_call_is_not_begun() {
        let pool = Pool::new(1, SHORT);
        let patient = pool.with_deadline(LONG);
        let (release, held) = mpsc::channel::<()>();
        let (running, runs) = oneshot::channel();
        let busy = {
            let patient = patient.clone();
            tokio::spawn(async move {
                let work = move || running.send(()).is_ok() && held.recv().is_ok();
                patient.run(Path::new("/slow"), work).await
            })
        };
        runs.await.unwrap();
        let (told, begun) = mpsc::channel();
        let answer = pool.run(Path::new("/alive"), move || told.send(()).is_ok()).await;
        assert_eq!(answer, Err(Unanswered::Overloaded));
        release.send(()).unwrap();
        assert_eq!(busy.await.unwrap(), Ok(true));
        assert_eq!(patient.run(Path::new("/alive"), || 4).await, Ok(4));
        assert!(begun.try_recv().is_err(), "an abandoned call never runs");
    }

    #[tokio::test]
    async fn more_hung_paths_than_threads_delay_no_other() {
        let pool = Pool::new(2, SHORT);
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let dead: Vec<_> = (0..9).map(|n| PathBuf::from(format!("/dead/{n}"))).collect();
        let hung = dead.iter().map(|path| {
            let held = Arc::clone(&held);
            pool.run(path, move || held.lock().unwrap().recv().is_ok())
        });
        let answers = futures::future::join_all(hung).await;
        assert!(answers.iter().all(Result::is_err), "{answers:?}");
        assert_eq!(pool.with_deadline(LONG).run(Path::new("/alive"), || 2).await, Ok(2));
        drop(release);
    }

    #[tokio::test]
    async fn a_panic_reaches_the_asker_and_leaves_the_pool_whole() {
        let pool = Pool::new(1, LONG);
        let asker = pool.clone();
        let panicked =
            tokio::spawn(async move { asker.run::<()>(Path::new("/x"), || panic!("as asked")).await });
        assert!(panicked.await.is_err_and(|error| error.is_panic()));
        assert_eq!(pool.run(Path::new("/x"), || 5).await, Ok(5));
    }
}
