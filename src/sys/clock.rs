//! The wall clock. Durations are measured with `tokio::time`, which tests can pause; never with this.

/// Says what time it is for people and records. It may jump; nothing waits by it.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The time now.
    fn now(&self) -> jiff::Timestamp;
}

/// The clock of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
}
