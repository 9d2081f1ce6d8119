//! Names that are made, not given: short, legal, and the same each time.
use std::fmt::Write;

use ring::digest::{SHA256, digest};

/// The first `digits` hexadecimal digits of SHA-256 over the parts; a zero byte stands between two of them.
pub(crate) fn hex(parts: &[&str], digits: usize) -> String {
    let hash = digest(&SHA256, parts.join("\0").as_bytes());
    let mut text = String::new();
    for byte in hash.as_ref().iter().take(digits.div_ceil(2)) {
        // Writing into a String cannot fail.
        write!(text, "{byte:02x}").ok();
    }
    text.truncate(digits);
    text
}

/// A legal name from the parts: they themselves, joined, where that is one; otherwise cut and told apart by a hash.
pub(crate) fn joined(parts: &[&str], longest: usize) -> String {
    let plain = parts.join("-");
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let dots = plain.split('.').all(|part| edge(part.chars().next()) && edge(part.chars().last()));
    if plain.len() <= longest && plain.chars().all(legal) && dots {
        return plain;
    }
    let kept: String =
        plain.to_lowercase().chars().filter(char::is_ascii_alphanumeric).take(longest - 10).collect();
    format!("{kept}-{}", hex(parts, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_legal_short_and_told_apart() {
        assert_eq!(joined(&["default", "app", "driver"], 60), "default-app-driver");
        assert_eq!(joined(&["a.b", "c"], 60), "a.b-c");
        for odd in ["Driver", "a_b", "x-", "a..b", ".a"] {
            let name = joined(&["d", odd], 60);
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
            assert!(name.ends_with(|c: char| c != '-'));
        }
        let long = "x".repeat(300);
        assert!(joined(&["a", &long], 200).len() <= 200);
        assert_ne!(joined(&["a", &long], 200), joined(&["b", &long], 200));
        assert_ne!(hex(&["ab", "c"], 16), hex(&["a", "bc"], 16));
        assert_eq!(hex(&["a"], 16).len(), 16);
    }
}
