//! What a service manager gives the daemon for its own sake, and no task has from it.
//!
//! Only for a process that becomes a task's program. It makes system calls and nothing else: no allocation, no lock.
use crate::sys::open_files;
use rustix::fs::{CWD, Mode, OFlags, openat};

/// Makes this process as likely as any other to be killed for want of memory, with the usual number of open files. What
/// cannot be changed stays as it is: the task runs all the same.
pub(super) fn become_ordinary() {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(likelihood) = openat(CWD, c"/proc/self/oom_score_adj", flags, Mode::empty()) {
        rustix::io::write(&likelihood, b"0").ok();
    }
    open_files::lower_limit();
}
