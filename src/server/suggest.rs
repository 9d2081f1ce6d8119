//! The nearest known name to one that is unknown, for messages such as `did you mean "plugin"?`.

/// The known name nearest to `unknown`, if one is near enough to be a likely slip.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let reach = match unknown.chars().count() {
        0..=2 => 1,
        3..=5 => 2,
        6.. => 3,
    };
    known
        .map(|name| (distance(&unknown.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(away, _)| *away <= reach)
        .min()
        .map(|(_, name)| name)
}

/// Edits needed to turn one word into the other; two neighbours that changed places count as one.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(64).collect();
    let right: Vec<char> = right.chars().take(64).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(a != b);
            let mut best = replaced.min(last[column + 1] + 1).min(line[column] + 1);
            if row > 0 && column > 0 && *a == right[column - 1] && left[row - 1] == *b {
                best = best.min(before[column - 1] + 1);
            }
            line.push(best);
        }
        before = std::mem::replace(&mut last, line);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_find_their_name_and_strangers_find_none() {
        let known = ["plugin", "parameters", "reclaimPolicy", "size"];
        for (unknown, expected) in [
            ("plguin", Some("plugin")),
            ("Plugin", Some("plugin")),
            ("paramters", Some("parameters")),
            ("reclaimpolicy", Some("reclaimPolicy")),
            ("szie", Some("size")),
            ("replicas", None),
            ("x", None),
        ] {
            assert_eq!(nearest(unknown, known.into_iter()), expected, "{unknown}");
        }
    }
}
