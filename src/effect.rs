//! The places where the whole program can be killed, for tests of the real binary.
//!
//! Each effect on the world has one before and one after it: `effect!("{rpc}")`, `effect!("{rpc}: answered")`. Without the feature
//! `kill-points` nothing of them is compiled. With it, [`arm`] reads two variables of the environment:
//! `WHARFLINE_EFFECTS=FILE` has every effect written to a file, one a line, and `WHARFLINE_KILL_AT=EFFECT#N` has the
//! process SIGKILLed when it comes to an effect for the Nth time. The simulation has the same at its own seams; the
//! list of names is whatever a run without a fault records, so that new code adds to it by itself.
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names an effect that is about to happen or has just happened; see [`crate::effect`].
macro_rules! effect {
    ($($name:tt)*) => {
        if cfg!(feature = "kill-points") {
            $crate::effect::come_to(format_args!($($name)*));
        }
    };
}

struct Armed {
    record: Option<File>,
    kill_at: Option<(String, AtomicU32)>,
}

static ARMED: OnceLock<Armed> = OnceLock::new();

/// Takes the two variables, for the process that is to die. What it starts knows nothing of them.
///
/// # Errors
/// The file cannot be made, or the variable is not `EFFECT#N`.
pub fn arm() -> std::io::Result<()> {
    if !cfg!(feature = "kill-points") {
        return Ok(());
    }
    let record = match std::env::var_os("WHARFLINE_EFFECTS") {
        Some(path) => Some(OpenOptions::new().create(true).append(true).open(path)?),
        None => None,
    };
    let kill_at = match std::env::var("WHARFLINE_KILL_AT") {
        Ok(wanted) => {
            let (effect, nth) = wanted.rsplit_once('#').ok_or_else(|| std::io::Error::other("no #N"))?;
            Some((effect.to_owned(), AtomicU32::new(nth.parse().map_err(std::io::Error::other)?)))
        }
        Err(_) => None,
    };
    ARMED.get_or_init(|| Armed { record, kill_at });
    Ok(())
}

/// What [`effect!`] does when it is compiled.
pub(crate) fn come_to(name: fmt::Arguments<'_>) {
    let Some(armed) = ARMED.get() else { return };
    let name = name.to_string();
    if let Some(mut record) = armed.record.as_ref() {
        // One write of one line: threads do not mix them.
        let _recorded = record.write_all(format!("{name}\n").as_bytes());
    }
    if let Some((effect, left)) = &armed.kill_at
        && *effect == name
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        let _never_returns =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
