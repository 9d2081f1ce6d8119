//! Calls that fail now and then, for tests of who calls; with the feature `kill-points` alone.
//!
//! `WHARFLINE_CSI_FAULTS=PERCENT` has so many of a driver's calls end with another code than theirs: half of them before
//! anything was done, with any code that says nothing of the volume, and half after it, with one that leaves it open.
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::OnceLock;

use tonic::{Code, Status};

const BEFORE: [Code; 8] = [
    Code::Cancelled,
    Code::Unknown,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
    Code::Aborted,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
];
const AFTER: [Code; 4] = [Code::Cancelled, Code::DeadlineExceeded, Code::Aborted, Code::Unavailable];

/// What becomes of one call.
#[derive(Debug)]
pub(super) struct Fate {
    /// It ends with this and nothing is done.
    pub(super) before: Option<Status>,
    /// It ends with this once all is done.
    pub(super) after: Option<Status>,
}

/// Throws the dice for a call.
pub(super) fn fate() -> Fate {
    static PERCENT: OnceLock<u64> = OnceLock::new();
    let mut fate = Fate { before: None, after: None };
    if !cfg!(feature = "kill-points") {
        return fate;
    }
    let asked = || std::env::var("WHARFLINE_CSI_FAULTS").ok().and_then(|text| text.parse().ok());
    let percent = *PERCENT.get_or_init(|| asked().unwrap_or(0));
    // Each state is keyed anew.
    let dice = RandomState::new().build_hasher().finish();
    if dice % 100 < percent {
        let code = |codes: &[Code]| {
            let at = usize::try_from(dice >> 32).unwrap_or(0) % codes.len();
            Some(Status::new(codes[at], "a fault that a test asked for"))
        };
        if dice >> 16 & 1 == 0 {
            fate.before = code(&BEFORE);
        } else {
            fate.after = code(&AFTER);
        }
    }
    fate
}
