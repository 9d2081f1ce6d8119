//! Faults that the simulation must find: each of its checks is shown to turn red by one of them.
//!
//! `planted!("name")` stands where the product would go wrong, and is `false` without the feature `planted`, which no release
//! has. With it, [`arm`] makes the one of that name true for the rest of the process. The names, the invariants that they break
//! and what must be said of them are listed in `tests/sim/planted.rs`.
use std::sync::OnceLock;

/// Whether the fault of this name is planted; see [`crate::planted`].
macro_rules! planted {
    ($name:literal) => {
        cfg!(feature = "planted") && $crate::planted::is($name)
    };
}

/// `debug_assert!` that also holds where faults are planted: the simulation is built without those of the standard library.
macro_rules! insist {
    ($($said:tt)*) => {
        if cfg!(any(debug_assertions, feature = "planted")) {
            assert!($($said)*);
        }
    };
}

static ARMED: OnceLock<String> = OnceLock::new();

/// Plants one fault in this process.
pub fn arm(name: &str) {
    ARMED.get_or_init(|| name.to_owned());
}

/// What [`planted!`] asks when it is compiled.
pub(crate) fn is(name: &str) -> bool {
    ARMED.get().is_some_and(|armed| armed == name)
}
