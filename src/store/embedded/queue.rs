//! The writer's thread and the bounded queue before it.
//!
//! The thread takes what is waiting, commits it as one batch, answers, and forgets compacted history while
//! nobody waits. When nothing was asked for a while it moves a long log into the file.
//! It ends when the store is dropped, which joins it.
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::commit::{Answer, BATCH, Request, Writer};
use super::disk::OpenError;
use super::fault::Fault;

/// Writes that may wait at once; more callers than that wait to be let in.
const WAITING: usize = 1024;
/// A disk that takes longer than this for a batch is as good as gone.
const DEADLINE: Duration = Duration::from_secs(30);
/// Nothing asked for so long is a pause.
const PAUSE: Duration = Duration::from_millis(250);

struct Waiting {
    request: Request,
    answer: oneshot::Sender<Answer>,
}

pub(super) struct Queue {
    /// `None` only while dropping.
    entrance: Option<mpsc::Sender<Waiting>>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    pub(super) fn start(writer: Writer) -> Result<Self, OpenError> {
        let (entrance, exit) = mpsc::channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || run(writer, exit))
            .map_err(|error| OpenError::Io {
                place: "the writer's thread".into(),
                source: Arc::new(error),
            })?;
        Ok(Queue { entrance: Some(entrance), thread: Some(thread) })
    }

    pub(super) async fn write(&self, request: Request) -> Answer {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        let entrance = self.entrance.as_ref().ok_or(Fault::Closed)?;
        let place = tokio::time::timeout_at(deadline, entrance.reserve()).await;
        let place = place.map_err(|_| Fault::Silent)?.map_err(|_| Fault::Closed)?;
        let (answer, answered) = oneshot::channel();
        place.send(Waiting { request, answer });
        match tokio::time::timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::Closed.in_doubt()),
            Err(_) => Err(Fault::Silent.in_doubt()),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.entrance.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

fn run(mut writer: Writer, mut exit: mpsc::Receiver<Waiting>) {
    loop {
        let first = if writer.trim() {
            match exit.try_recv() {
                Ok(first) => first,
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => return,
            }
        } else {
            match next(&mut exit, writer.checkpoint_due().then_some(PAUSE)) {
                Next::Asked(first) => first,
                Next::Pause => {
                    writer.checkpoint();
                    continue;
                }
                Next::Closed => return,
            }
        };
        let (mut requests, mut answers) = (vec![first.request], vec![first.answer]);
        while requests.len() < BATCH
            && let Ok(next) = exit.try_recv()
        {
            requests.push(next.request);
            answers.push(next.answer);
        }
        let (count, start) = (requests.len(), Instant::now());
        let done = writer.commit(requests);
        tracing::trace!(target: "life", requests = count, took = ?start.elapsed(), "commit");
        for (to, answer) in answers.into_iter().zip(done) {
            // Whoever asked may have gone; the write stands all the same.
            drop(to.send(answer));
        }
    }
}

enum Next<T> {
    Asked(T),
    Pause,
    Closed,
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until somebody asks, for at most so long. (tokio's own blocking receive knows no deadline.)
fn next<T>(exit: &mut mpsc::Receiver<T>, most: Option<Duration>) -> Next<T> {
    let Some(most) = most else {
        return exit.blocking_recv().map_or(Next::Closed, Next::Asked);
    };
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let end = Instant::now() + most;
    loop {
        match exit.poll_recv(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(asked)) => return Next::Asked(asked),
            Poll::Ready(None) => return Next::Closed,
            Poll::Pending => {}
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Next::Pause;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use super::super::Durability;
    use super::super::core::Core;
    use super::super::disk::Disk;
    use super::super::memory::MemoryDisk;
    use super::super::wal::CAPACITY;
    use super::*;
    use crate::store::Expect;

    #[test]
    fn who_waits_is_woken_by_what_comes_first() {
        let (entrance, mut exit) = mpsc::channel(1);
        assert!(matches!(next(&mut exit, Some(Duration::from_millis(1))), Next::Pause));
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while let Next::Asked(asked) = next(&mut exit, Some(DEADLINE)) {
                    tell.send(asked).unwrap();
                }
            });
            // So often that it sleeps before some of them.
            for n in 0..1000 {
                entrance.blocking_send(n).unwrap();
                assert_eq!(told.recv_timeout(DEADLINE / 2), Ok(n));
            }
            drop(entrance);
            assert!(told.recv_timeout(DEADLINE / 2).is_err_and(|e| e == RecvTimeoutError::Disconnected));
        });
    }

    #[tokio::test]
    async fn a_long_log_is_moved_into_the_file_in_a_pause() {
        let disk = MemoryDisk::default();
        let core = Arc::new(Core::open(Disk::Memory(disk.clone()), 1 << 20).unwrap());
        let queue = Queue::start(Writer::new(core.clone(), Durability::Synced)).unwrap();
        let value = bytes::Bytes::from(vec![7; CAPACITY / 3]);
        let put = Request::Put { key: bytes::Bytes::from_static(b"/a"), value, expect: Expect::Any };
        queue.write(put).await.unwrap();
        let moved = async {
            while core.wal().as_ref().unwrap().next_generation() == 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, moved).await.unwrap();
    }
}
