//! The account of every finished call, for statuses, logs and measures. Holds no secret and no request.
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tonic::Code;

use super::failure::{Failure, code_name};
use super::rpc::Rpc;

/// One finished call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// The call.
    pub rpc: Rpc,
    /// Handle of the volume, or the name sent to `CreateVolume`. Of a snapshot that exists, or a group of them, its id or
    /// name. None for calls about nothing of the kind.
    pub volume: Option<String>,
    /// How it ended.
    pub result: Result<(), Failure>,
    /// When it was sent, by the wall clock.
    pub started: SystemTime,
    /// From sending to the end, by the monotonic clock.
    pub duration: Duration,
    /// How long it had waited before, for another call about the same volume.
    pub waited: Duration,
    /// Which attempt it was, by the caller's count, from 1.
    pub attempt: u32,
}

impl CallRecord {
    /// The code in capitals.
    pub fn code_name(&self) -> &'static str {
        code_name(self.result.as_ref().map_or_else(|failure| failure.code, |()| Code::Ok))
    }

    /// The failure's message, or nothing.
    pub fn message(&self) -> &str {
        self.result.as_ref().map_or_else(|failure| failure.message.as_str(), |()| "")
    }
}

/// Told of each call when it ends, dropped ones included, before the next call about the same volume starts.
pub trait Observer: Send + Sync + 'static {
    /// `record` just ended. Must not block.
    fn finished(&self, record: &CallRecord);
}

impl<F: Fn(&CallRecord) + Send + Sync + 'static> Observer for F {
    fn finished(&self, record: &CallRecord) {
        self(record);
    }
}

/// A call in flight; reports it once, also when it is dropped.
pub(crate) struct InFlight {
    observer: Option<Arc<dyn Observer>>,
    rpc: Rpc,
    volume: Option<String>,
    attempt: u32,
    waited: Duration,
    started: SystemTime,
    since: Instant,
}

impl InFlight {
    /// A call that is sent now, after it had waited since `asked`.
    pub(crate) fn new(
        observer: Option<Arc<dyn Observer>>,
        rpc: Rpc,
        volume: Option<String>,
        attempt: u32,
        asked: Instant,
    ) -> Self {
        let since = Instant::now();
        Self { observer, rpc, volume, attempt, waited: since - asked, started: SystemTime::now(), since }
    }

    /// It ended. Only the first word counts.
    pub(crate) fn end(&mut self, result: Result<(), &Failure>) {
        self.report(result.map_err(Failure::clone));
    }

    fn report(&mut self, result: Result<(), Failure>) {
        if let Some(observer) = self.observer.take() {
            observer.finished(&CallRecord {
                rpc: self.rpc,
                volume: self.volume.take(),
                result,
                started: self.started,
                duration: self.since.elapsed(),
                waited: self.waited,
                attempt: self.attempt,
            });
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.report(Err(Failure::abandoned(self.rpc)));
    }
}
