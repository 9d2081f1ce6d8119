//! What of a task's output is told with its end: little enough to stand in a status, and harmless on a terminal.

/// How many lines.
pub const LINES: usize = 10;
/// How many of them are of the output that was not written to last, if there are more than enough of the other.
pub const FEW: usize = 3;
/// How many bytes of a line, and of all of them eight times as many.
pub const LINE: usize = 256;
/// How much of the end of a log has to be looked at.
pub const TAIL: u64 = 16 * 1024;

/// The last lines of these outputs, one after the other; the last one is the one that was written to last, and of the one
/// before it there are a few. None of a line that was cut off at its start, unless it is the only one.
pub fn last_words(outputs: [&[u8]; 2]) -> String {
    let [mut before, mut last] = outputs.map(lines);
    // Once says it all.
    before.dedup();
    last.dedup();
    let few = before.len().min(FEW.max(LINES.saturating_sub(last.len())));
    let newest = last.into_iter().rev().take(LINES - few);
    let mut left = 8 * LINE;
    let mut kept = Vec::new();
    // What was written last goes first for the room there is.
    for line in newest.chain(before.into_iter().rev().take(few)) {
        let Some(rest) = left.checked_sub(line.len() + 1) else { break };
        left = rest;
        kept.push(line);
    }
    kept.reverse();
    kept.join("\n")
}

fn lines(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    let whole = text.lines().skip(usize::from(output.len() as u64 >= TAIL && text.lines().count() > 1));
    whole.map(plain).filter(|line| !line.is_empty()).collect()
}

/// Without what moves a cursor or colours a terminal; a long line without its end.
fn plain(line: &str) -> String {
    let mut plain = String::new();
    let mut letters = line.trim_end().chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            // A sequence that a terminal obeys ends with a letter.
            '\u{1b}' if letters.next_if_eq(&'[').is_some() => {
                while letters.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
                letters.next();
            }
            '\t' => plain.push(' '),
            // Nor what turns the direction of text, or cannot be seen.
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' => {}
            control if control.is_control() => {}
            letter if plain.len() + letter.len_utf8() > LINE - 3 => {
                plain.push('…');
                return plain;
            }
            letter => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_what_there_is() {
        let numbered: String = (0..30).map(|number| format!("line {number}\n")).collect();
        let last: Vec<String> = (20..30).map(|number| format!("line {number}")).collect();
        for (outputs, expected) in [
            ([b"".as_slice(), b"\n\n"], String::new()),
            ([b"out\n", b"err\n"], "out\nerr".to_owned()),
            ([b"out\n", b""], "out".to_owned()),
            ([b"", numbered.as_bytes()], last.join("\n")),
            ([numbered.as_bytes(), b""], last.join("\n")),
            ([b"out\n", numbered.as_bytes()], format!("out\n{}", last[1..].join("\n"))),
            ([numbered.as_bytes(), b"err\n"], format!("{}\nerr", last[1..].join("\n"))),
            (
                [numbered.as_bytes(), numbered.as_bytes()],
                format!("{}\n{}", last[7..].join("\n"), last[3..].join("\n")),
            ),
            ([b"", b"no end"], "no end".to_owned()),
            ([b"", b"a\x1b[31mred\x1b[0m\tb\r\nc\x07\n"], "ared b\nc".to_owned()),
            ([b"", "a\u{202e}b".as_bytes()], "ab".to_owned()),
            ([b"same\n", b"same\nsame\nother\nsame\n"], "same\nsame\nother\nsame".to_owned()),
            ([b"", b"bad \xff byte"], "bad \u{fffd} byte".to_owned()),
        ] {
            assert_eq!(last_words(outputs), expected, "{outputs:?}");
        }
    }

    #[test]
    fn it_is_bounded_whatever_was_written() {
        let long = "é".repeat(10_000);
        let cut = last_words([b"", long.as_bytes()]);
        assert!(cut.len() <= LINE && cut.ends_with("é…"), "{} {cut}", cut.len());
        let many: String = (0..20).map(|number| format!("{number}{long}\n")).collect();
        let all = last_words([b"before", many.as_bytes()]);
        assert!(
            all.len() <= 8 * LINE && all.lines().count() >= 7 && !all.contains("before"),
            "{}",
            all.len()
        );
        let tail = format!("{}\nwhole\n", "x".repeat(usize::try_from(TAIL).unwrap()));
        assert_eq!(last_words([b"", tail.as_bytes()]), "whole", "the first line may lack its start");
    }
}
