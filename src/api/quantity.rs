//! Sizes as Kubernetes writes them: `1Gi`, `500M`, `1024`.

/// Why a size could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a number with a known suffix.
    #[error("\"{0}\" is not a size; write a number with a unit such as 500Mi or 10Gi")]
    Malformed(String),
    /// Larger than 2^63-1 bytes.
    #[error("\"{0}\" is too much; at most 2^63-1 bytes can be said")]
    TooLarge(String),
}

/// Bytes of a quantity. Fractions are allowed and rounded up, as Kubernetes does.
pub fn bytes(text: &str) -> Result<i64, QuantityError> {
    let malformed = || QuantityError::Malformed(text.to_owned());
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let split = unsigned.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(split);
    let (unit, parts) = scale_of(suffix).ok_or_else(malformed)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 20 || fraction.len() > 9 {
        return Err(malformed());
    }
    let digits =
        |text: &str| if text.is_empty() { Ok(0_u128) } else { text.parse().map_err(|_| malformed()) };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| malformed())?);
    // At most 29 digits before the unit and 19 of it: what overflows is too large anyway.
    let total = (digits(whole)? * scale + digits(fraction)?).checked_mul(unit);
    let total = total.map(|total| total.div_ceil(scale * parts)).and_then(|bytes| i64::try_from(bytes).ok());
    total.ok_or_else(|| QuantityError::TooLarge(text.to_owned()))
}

/// What a suffix multiplies and divides by.
fn scale_of(suffix: &str) -> Option<(u128, u128)> {
    let decimal = |exponent: u32| Some((10_u128.pow(exponent), 1));
    match suffix {
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => Some((1 << 10, 1)),
        "Mi" => Some((1 << 20, 1)),
        "Gi" => Some((1 << 30, 1)),
        "Ti" => Some((1 << 40, 1)),
        "Pi" => Some((1 << 50, 1)),
        "Ei" => Some((1 << 60, 1)),
        "m" => Some((1, 1_000)),
        "u" => Some((1, 1_000_000)),
        "n" => Some((1, 1_000_000_000)),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_u128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.abs() <= 18)?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
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

/// The most digits before the point of an amount of CPU: what a cgroup's quota can say has no more.
const CPU_DIGITS: usize = 6;

/// Thousandths of a CPU in an amount such as `500m`, `2` or `0.5`; a part of a thousandth counts as a whole one.
pub fn cpu_millis(text: &str) -> Option<u64> {
    let digits = |text: &str, most| {
        let fits = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| text.parse::<u64>().ok()).flatten()
    };
    if let Some(millis) = text.strip_suffix('m') {
        return digits(millis, CPU_DIGITS + 3);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let scale = 10_u64.pow(u32::try_from(fraction.len()).ok().filter(|places| *places <= 9)?);
    let part = (digits(fraction, 9)? * 1000).div_ceil(scale);
    Some(digits(whole, CPU_DIGITS)? * 1000 + part)
}

/// Milliseconds of a Go-style duration such as `30s`, `1m30s` or `500ms`, and of days: `30d`.
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
            "d" => 86_400_000,
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
            ("1e9", 1_000_000_000),
            ("1.5E3", 1500),
            ("25e-1", 3),
            ("1Ei", 1 << 60),
            ("7E", 7_000_000_000_000_000_000),
            ("1500m", 2),
            ("1u", 1),
            ("+5", 5),
            ("0.000000001E", 1_000_000_000),
        ] {
            assert_eq!(bytes(text), Ok(wanted), "{text}");
        }
        for text in [
            "",
            "Gi",
            "-1",
            "1 Gi",
            "1gi",
            "1e",
            "1e19",
            "1e-19",
            "1e+x",
            "++1",
            "..",
            "9223372036854775808",
            "8Ei",
            "99999999999999999999E",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(display(1 << 30), "1Gi");
        assert_eq!(display(1536), "1536");
        assert_eq!(display(96 << 20), "96Mi");
    }

    #[test]
    fn amounts_of_cpu_are_read() {
        for (text, wanted) in [
            ("500m", 500),
            ("2", 2000),
            ("0.5", 500),
            ("1.25", 1250),
            ("0.0001", 1),
            ("0", 0),
            ("999999", 999_999_000),
            ("999999999m", 999_999_999),
        ] {
            assert_eq!(cpu_millis(text), Some(wanted), "{text}");
        }
        for text in [
            "",
            "m",
            "-1",
            "+1",
            ".5",
            "5.",
            "1.5m",
            "1e3",
            "2k",
            " 1",
            "1000000",
            "1.0000000001",
            "one",
            "1.1.1",
        ] {
            assert_eq!(cpu_millis(text), None, "{text}");
        }
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
