//! The writer's thread and the bounded queue before it.
//!
//! The thread takes what is waiting, commits it as one batch, answers, and forgets compacted history while
//! nobody waits. It ends when the store is dropped, which joins it.
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::commit::{Answer, BATCH, Request, Writer};
use super::disk::OpenError;
use super::fault::Fault;

/// Writes that may wait at once; more callers than that wait to be let in.
const WAITING: usize = 1024;
/// A disk that takes longer than this for a batch is as good as gone.
const DEADLINE: Duration = Duration::from_secs(30);

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
            match exit.blocking_recv() {
                Some(first) => first,
                None => return,
            }
        };
        let (mut requests, mut answers) = (vec![first.request], vec![first.answer]);
        while requests.len() < BATCH
            && let Ok(next) = exit.try_recv()
        {
            requests.push(next.request);
            answers.push(next.answer);
        }
        let (count, start) = (requests.len(), std::time::Instant::now());
        let done = writer.commit(requests);
        tracing::trace!(target: "life", requests = count, took = ?start.elapsed(), "commit");
        for (to, answer) in answers.into_iter().zip(done) {
            // Whoever asked may have gone; the write stands all the same.
            drop(to.send(answer));
        }
    }
}
