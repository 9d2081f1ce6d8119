//! How many files this process may have open.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
