//! Sizes as Kubernetes writes them: `1Gi`, `500M`, `1024`.

/// Why a size could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a number with a known suffix.
    #[error("\"{0}\" is not a size; write a number with a unit such as 500Mi or 10Gi")]
    Malformed(String),
    /// Larger than 2^63-1 bytes.
    #[error("\"{0}\" is more than a CSI capacity can say (2^63-1 bytes)")]
    TooLarge(String),
}

/// Bytes of a quantity. Fractions are allowed and rounded up, as Kubernetes does.
pub fn bytes(text: &str) -> Result<i64, QuantityError> {
    let malformed = || QuantityError::Malformed(text.to_owned());
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let unit: u128 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return Err(malformed()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 20 || fraction.len() > 9 {
        return Err(malformed());
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| malformed())? };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| malformed())?);
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| malformed())? };
    let total = whole * unit + (part * unit).div_ceil(scale);
    i64::try_from(total).map_err(|_| QuantityError::TooLarge(text.to_owned()))
}

/// The shortest exact writing with a binary unit, such as `1Gi` for 1073741824.
pub fn display(bytes: i64) -> String {
    for (shift, unit) in [(50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if bytes >= 1 << shift && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Milliseconds of a Go-style duration such as `30s`, `1m30s` or `500ms`.
pub fn duration(text: &str) -> Option<std::time::Duration> {
    let mut rest = text;
    let mut total = std::time::Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let count: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let millis = match &rest[..end] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(std::time::Duration::from_millis(count.checked_mul(millis)?))?;
        rest = &rest[end..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, wanted) in [
            ("1Gi", 1 << 30),
            ("500M", 500_000_000),
            ("1024", 1024),
            ("1.5Ki", 1536),
            ("0.1", 1),
            ("2k", 2000),
        ] {
            assert_eq!(bytes(text), Ok(wanted), "{text}");
        }
        for text in ["", "Gi", "-1", "1 Gi", "1gi", "1e3", "..", "9223372036854775808"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(display(1 << 30), "1Gi");
        assert_eq!(display(1536), "1536");
        assert_eq!(display(96 << 20), "96Mi");
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(duration("1m30s").map(|d| d.as_secs()), Some(90));
        assert_eq!(duration("500ms").map(|d| d.as_millis()), Some(500));
        for text in ["", "30", "s", "1x", "-1s", "1.5s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
