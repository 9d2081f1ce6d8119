//! Which etcd can be trusted.
use std::fmt;

/// A version of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Reads `3.5.22`, whatever follows.
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().ok());
        Some(Self::new(parts.next()??, parts.next()??, parts.next()??))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The first release of each line in which a watch neither loses, repeats nor misorders events and a revision never goes
/// down (`CHANGELOG-3.4.md` to `-3.6.md` of etcd; the last of those mends are of 2025). The 3.4 line has ended: its
/// last releases carry the mends, but no others will come.
const TRUSTED: [Version; 2] = [Version::new(3, 5, 22), Version::new(3, 6, 2)];

/// What to think of an etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nothing is known against it.
    Trusted,
    /// It has faults that were mended later. What we check holds them off, at the price of listing anew.
    Old,
    /// Its version cannot be read.
    Unknown,
}

/// Judges the version that a member tells.
pub fn trust(told: &str) -> Trust {
    let Some(version) = Version::read(told) else { return Trust::Unknown };
    let line = TRUSTED.iter().find(|first| (first.major, first.minor) == (version.major, version.minor));
    let good = line.map_or(version > TRUSTED[TRUSTED.len() - 1], |first| version >= *first);
    if good { Trust::Trusted } else { Trust::Old }
}

/// The versions to use instead, for a person.
pub fn trusted() -> String {
    let lines = TRUSTED.map(|first| format!("{first} or later of {}.{}", first.major, first.minor));
    lines.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_judged_by_their_line() {
        for (told, wanted) in [
            ("3.4.23", Trust::Old),
            ("3.4.45", Trust::Old),
            ("3.5.0", Trust::Old),
            ("3.5.21", Trust::Old),
            ("3.5.22", Trust::Trusted),
            ("3.6.0", Trust::Old),
            ("3.6.0-rc.1", Trust::Old),
            ("3.6.4", Trust::Trusted),
            ("3.7.0-alpha.0", Trust::Trusted),
            ("4.0.0", Trust::Trusted),
            ("", Trust::Unknown),
            ("three", Trust::Unknown),
        ] {
            assert_eq!(trust(told), wanted, "{told}");
        }
        assert_eq!(trusted(), "3.5.22 or later of 3.5, 3.6.2 or later of 3.6");
    }
}
