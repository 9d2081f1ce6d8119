//! How long ago something was, in as few letters as a table needs; the same steps as kubectl's.
use jiff::Timestamp;

/// `42s`, `3m20s`, `5h`, `2d4h`, `312d`; `<unknown>` without a time and `0s` for what the clocks place in the future.
pub fn since(then: Option<Timestamp>, now: Timestamp) -> String {
    match then {
        Some(then) => seconds(now.duration_since(then).as_secs().max(0)),
        None => "<unknown>".to_owned(),
    }
}

/// A number of seconds in the same short form.
pub fn seconds(total: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let (large, unit, small, rest) = match total {
        ..120 => return format!("{total}s"),
        120..600 => (total / MINUTE, 'm', total % MINUTE, 's'),
        600..10_800 => return format!("{}m", total / MINUTE),
        10_800..28_800 => (total / HOUR, 'h', total % HOUR / MINUTE, 'm'),
        28_800..172_800 => return format!("{}h", total / HOUR),
        172_800..691_200 => (total / DAY, 'd', total % DAY / HOUR, 'h'),
        691_200..63_072_000 => return format!("{}d", total / DAY),
        63_072_000..252_288_000 => (total / YEAR, 'y', total % YEAR / DAY, 'd'),
        _ => return format!("{}y", total / YEAR),
    };
    if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{rest}") }
}

/// A number of milliseconds as a person says it: `3ms`, `1.01s`, `30.0s`.
pub(crate) fn millis(total: u64) -> String {
    match total {
        0..1000 => format!("{total}ms"),
        1000..10_000 => format!("{}.{:02}s", total / 1000, total % 1000 / 10),
        _ => format!("{}.{}s", total / 1000, total % 1000 / 100),
    }
}

/// The time in a field, if it is one.
pub(crate) fn time_of(value: &serde_json::Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (total, wanted) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (3000, "50m"),
            (11_000, "3h3m"),
            (100_000, "27h"),
            (200_000, "2d7h"),
            (10_000_000, "115d"),
            (70_000_000, "2y80d"),
            (300_000_000, "9y"),
        ] {
            assert_eq!(seconds(total), wanted, "{total}");
        }
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(since("2025-12-31T23:59:00Z".parse().ok(), now), "60s");
        assert_eq!(since("2026-01-01T00:01:00Z".parse().ok(), now), "0s");
        assert_eq!(since(None, now), "<unknown>");
        assert_eq!([millis(3), millis(1010), millis(30_000)], ["3ms", "1.01s", "30.0s"]);
    }
}
