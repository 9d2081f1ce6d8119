//! Ports of loopback that are one test's alone, also while nothing listens on them: between the choice and the start of
//! a server, and between its end and its next start.
use std::fs::File;
use std::net::TcpListener;

/// Below what Linux gives to connections (`ip_local_port_range` begins at 32768), above the well-known ones.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A port, held until this value goes, for all tests of this machine.
pub(crate) struct Port {
    number: u16,
    /// Locked. What is left of it in the directory for temporary files is empty and used again.
    _lock: File,
}

impl Port {
    /// Takes one that no other test has and nobody listens on.
    pub(crate) fn take() -> Self {
        let directory =
            std::env::temp_dir().join(format!("wharfline-ports.{}", rustix::process::geteuid().as_raw()));
        std::fs::create_dir_all(&directory).expect("the directory for temporary files can be written to");
        let count = RANGE.end - RANGE.start;
        // Tests that start together begin their search at different places.
        let first = u16::try_from(std::process::id() % u32::from(count)).expect("less than the count");
        for offset in 0..count {
            let number = RANGE.start + (first + offset) % count;
            let lock = File::create(directory.join(number.to_string())).expect("a lock can be made");
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no port from {} to {} is free", RANGE.start, RANGE.end);
    }

    /// Its number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}
