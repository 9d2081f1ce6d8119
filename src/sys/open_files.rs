//! How many files this process may have open.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many a program can count on that waits with `select`.
const USUAL: u64 = 1024;

/// How many files this process may have open.
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Lets this process have as many open as it may allow itself, and says how many that are.
///
/// Only for a process that starts no other programs: those that wait with `select` cannot count beyond 1,024, so the
/// usual limit is what a task or a plugin must find.
pub fn raise_limit() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused is no harm: it stays what it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    limit()
}

/// Lets this process have as many open as usual, whatever it was given itself. What it becomes may raise that again.
pub(crate) fn lower_limit() {
    // It does not go beyond what it may be, so nobody refuses it.
    let _ = setrlimit(Resource::Nofile, usual());
}

/// The limit that a program counts on, and what it may raise that to here.
pub(crate) fn usual() -> Rlimit {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Rlimit { current: Some(maximum.map_or(USUAL, |maximum| maximum.min(USUAL))), maximum }
}
