//! Secrets of a request in the answer to it: drivers repeat what they sent on, as it is or as they have written it down.
use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Shorter secrets are not searched for in messages: removing every `1` would leave no message.
const MIN_SEARCHED_SECRET: usize = 4;

/// How many bytes of a message are searched for secrets; of what a driver says much less is kept.
const MOST_SEARCHED: usize = 16 * 1024;

/// In the place of a message that has a secret in it which cannot be taken out.
const NOT_SHOWN: &str = "(not shown: it has a secret of the request in it, written in another way, or is too long to be looked through; the \
     driver's own log may have more)";

/// How many times a message may have been written down in one another: what a server said, in a driver's words, in a log line.
const NESTED: usize = 4;

/// How many texts one message may be taken for.
const MOST_READINGS: usize = 64;

/// The texts to search for: each secret, and each line of one with several, the longest first.
pub(crate) fn searched<'a>(secrets: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut texts = secrets
        .into_iter()
        .flat_map(|secret| std::iter::once(secret.as_str()).chain(secret.lines()))
        .map(str::trim)
        .filter(|text| text.len() >= MIN_SEARCHED_SECRET)
        .map(str::to_owned)
        .collect::<Vec<_>>();
    texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    texts.dedup();
    texts
}

/// The text without these secrets (CO-GEN-22). One that stands in it as it is, in whatever case, is left out; one that is written in another
/// way, or may be in what is too much to be searched, leaves nothing of the text.
pub(crate) fn hidden<'t>(text: &'t str, secrets: &[String]) -> Cow<'t, str> {
    if text.len() > MOST_SEARCHED && !secrets.is_empty() {
        return Cow::Borrowed(NOT_SHOWN);
    }
    let mut text = Cow::Borrowed(text);
    for secret in secrets {
        // Letters that differ in case alone are as long.
        let (whole, wanted) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
        let mut kept = String::new();
        let mut end = 0;
        for (at, _) in whole.match_indices(&wanted) {
            kept.push_str(text.get(end..at).unwrap_or_default());
            kept.push_str("<redacted>");
            end = at + wanted.len();
        }
        if end > 0 {
            kept.push_str(text.get(end..).unwrap_or_default());
            text = Cow::Owned(kept);
        }
    }
    if repeats(&text, secrets) { Cow::Borrowed(NOT_SHOWN) } else { text }
}

/// Whether a text has one of the secrets in it escaped as in JSON or by `%q`, for an address or for XML, as base64 or as
/// hexadecimal digits.
fn repeats(text: &str, secrets: &[String]) -> bool {
    if secrets.is_empty() {
        return false;
    }
    let Some(forms) = readings(text) else { return true };
    let lower: Vec<_> = forms.iter().map(|form| form.to_ascii_lowercase()).collect();
    // Base64 may be broken into lines.
    let unbroken = forms.iter().map(|form| form.chars().filter(|c| !c.is_whitespace()).collect::<String>());
    let unbroken: Vec<_> = unbroken.collect();
    let plain = |secret: &String| {
        let digits: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        // What is not ASCII may be escaped byte by byte.
        let bytes: String = secret.bytes().map(char::from).collect();
        let all = [secret.to_ascii_lowercase(), bytes.to_ascii_lowercase(), digits];
        lower.iter().any(|form| all.iter().any(|one| form.contains(one)))
    };
    let coded = |secret: &String| {
        let in_any = |code: &String| unbroken.iter().any(|form| form.contains(code.as_str()));
        written(secret).iter().flat_map(|one| base64s(one)).any(|code| in_any(&code))
    };
    secrets.iter().any(|secret| plain(secret) || coded(secret))
}

/// The text, and what it is once it is read as one that was written down in one of these ways, in another, and so on. None if there is no
/// end of these.
fn readings(text: &str) -> Option<Vec<String>> {
    let mut all = vec![text.to_owned()];
    let mut from = 0;
    for _ in 0..NESTED {
        let last = all.len();
        for at in from..last {
            let form = all[at].clone();
            let percent = |form: &str| percent_decode_str(form).decode_utf8_lossy().into_owned();
            let read =
                [unescape(&form), percent(&form), percent(&form.replace('+', " ")), without_entities(&form)];
            for next in read {
                if !all.contains(&next) {
                    all.push(next);
                }
            }
            if all.len() > MOST_READINGS {
                return None;
            }
        }
        from = last;
    }
    Some(all)
}

/// A text as it is, and as it may be written down before that is encoded: as JSON, by Go too, for an address, or encoded once already.
fn written(text: &str) -> Vec<String> {
    let json = serde_json::to_string(text).unwrap_or_default();
    let json = json.get(1..json.len().saturating_sub(1)).unwrap_or_default().to_owned();
    let go = json.replace('&', r"\u0026").replace('<', r"\u003c").replace('>', r"\u003e");
    let percent = |kept| utf8_percent_encode(text, kept).to_string();
    let query = percent(UNRESERVED).replace("%20", "+");
    let mut all = vec![text.to_owned(), json, go, percent(NON_ALPHANUMERIC), percent(UNRESERVED), query];
    all.extend(base64s(text));
    all
}

/// What is escaped for an address: all but letters, digits and these.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What base64 has of a text wherever that begins in what is encoded: all of the letters that it alone decides.
fn base64s(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for before in 0..3_usize {
        let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(text.bytes()).collect();
        // A letter is six bits: the first one that has none of what stands before, and the last one that is full.
        let (first, end) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        for code in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            all.extend(code.get(first..end).map(str::to_owned));
        }
    }
    all
}

/// A text without the entities of XML that stand for what it has words for, and for numbers of letters.
fn without_entities(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let named = after.split_once(';').and_then(|(name, left)| Some((entity(name)?, left)));
        match named {
            Some((letter, left)) => {
                plain.push(letter);
                rest = left;
            }
            None => {
                plain.push('&');
                rest = after;
            }
        }
    }
    plain + rest
}

/// The letter that an entity stands for.
fn entity(name: &str) -> Option<char> {
    let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => match name.strip_prefix('#')?.strip_prefix(['x', 'X']) {
            Some(digits) => number(digits, 16),
            None => number(name.strip_prefix('#')?, 10),
        },
    }
}

/// A text without one layer of the escapes of JSON, Go, Rust or C.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let (letter, length) = escaped(after);
        plain.extend(letter);
        rest = after.get(length..).unwrap_or_default();
    }
    plain + rest
}

/// The letter of an escape, and how long it is behind its backslash.
fn escaped(text: &str) -> (Option<char>, usize) {
    let number = |from: usize, to: usize, radix| {
        let digits = text.get(from..to).filter(|digits| digits.chars().all(|c| c.is_digit(radix)));
        digits.and_then(|digits| u32::from_str_radix(digits, radix).ok())
    };
    let Some(first) = text.chars().next() else { return (Some('\\'), 0) };
    let of = |number: Option<u32>, length| match number {
        Some(number) => (char::from_u32(number), length),
        None => (Some(first), first.len_utf8()),
    };
    match first {
        'n' => (Some('\n'), 1),
        'r' => (Some('\r'), 1),
        't' => (Some('\t'), 1),
        'x' => of(number(1, 3, 16), 3),
        'u' if text.starts_with("u{") => {
            let end = text.bytes().take("u{10ffff}".len()).position(|byte| byte == b'}').unwrap_or(0);
            of(number(2, end.max(2), 16).filter(|_| end > 2), end + 1)
        }
        'u' => match (number(1, 5, 16), number(7, 11, 16)) {
            // Two halves of one letter.
            (Some(high @ 0xd800..0xdc00), Some(low @ 0xdc00..0xe000)) if text.get(5..7) == Some("\\u") => {
                (char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00)), 11)
            }
            (number, _) => of(number, 5),
        },
        '0'..='7' => of(number(0, 3, 8), 3),
        _ => (Some(first), first.len_utf8()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"type":"key","private":"LEAKED-1"}"#;

    fn hide(text: &str, secrets: &[&str]) -> String {
        let secrets: Vec<String> = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        hidden(text, &searched(&secrets)).into_owned()
    }

    #[test]
    fn a_secret_is_left_out_however_it_is_written() {
        let nested = serde_json::to_string(&serde_json::json!({ "key": JSON })).unwrap();
        let twice = serde_json::to_string(&nested).unwrap();
        for (secret, text) in [
            (JSON, nested.as_str()),
            (JSON, &twice),
            (JSON, &format!("{JSON:?}")),
            ("pass\tword", r"pass\tword"),
            ("pass\tword", "pass%09word"),
            ("dom\\user9", r"dom\\user9"),
            ("dom\\user9", r"dom\x5cuser9"),
            ("dom\\user9", r"dom\134user9"),
            ("passwörd", r"pass\u0077\u00F6rd"),
            ("passwörd", r"passw\u{f6}rd"),
            ("passwörd", "passw%c3%B6rd"),
            ("key \u{1f511} of it", r"key \ud83d\udd11 of it"),
            ("a b c d", "?key=a+b+c+d"),
            ("a b c d", "?key=a%20b%20c%20d"),
            ("passwörd", r"passw\xc3\xb6rd"),
            ("passwörd", r"passw\303\266rd"),
            ("a&b<\"c\">", "a&amp;b&lt;&quot;c&#34;&#x3e;"),
            ("aaaa??bbbb>>cc", "YWFhYT8%2FYmJiYj4%2BY2M%3D"),
            ("line one of it", "bGluZSBv\n  bmUgb2YgaXQ="),
            ("pass\"word", "%22pass%5C%22word%22"),
            ("pass\"word", "pass&amp;quot;word"),
            ("pass\"word", "pass%2522word"),
            ("pass\"word", &STANDARD_NO_PAD.encode(r#"{"key":"pass\"word"}"#)),
            ("pass\"word", &STANDARD_NO_PAD.encode("key=pass%22word")),
            ("a&b c-d", &STANDARD_NO_PAD.encode(r#"{"key":"a\u0026b c-d"}"#)),
            ("a&b c-d", &STANDARD_NO_PAD.encode("key=a%26b+c-d")),
            ("a key of it", &STANDARD_NO_PAD.encode(STANDARD_NO_PAD.encode("user:a key of it"))),
            ("a key of it", &STANDARD_NO_PAD.encode(STANDARD_NO_PAD.encode("a key of it"))),
            ("s3cr3t", "733363723374"),
            ("Key9", "4B657939"),
        ] {
            let said = hide(&format!("401 to <{text}> of you"), &[secret]);
            assert_eq!(said, NOT_SHOWN, "{secret:?} {text:?}");
        }
        // Wherever it stands in what is encoded, such as behind the name of a user.
        for before in ["", "u:", "user:", "a"] {
            for after in ["", "x", "yz"] {
                let whole = format!("{before}n0t?for~you>{after}");
                for code in [STANDARD_NO_PAD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
                    let said = hide(&format!("Authorization: Basic {code}== refused"), &["n0t?for~you>"]);
                    assert_eq!(said, NOT_SHOWN, "{whole} {code}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_secret_stays_as_it_is() {
        for text in [
            "",
            "no such pool: 100%",
            r"C:\temp\new, \u12 and \x, \u{110000}, \u{}, \u{, \",
            "dXNlcjpwYXNzd29yZA== is not yours, 68756e",
            r#"{"path":"/a\/b","text":"ö \ud83d"}"#,
            "a & b; &amp; &#x110000; &#; &nothing;",
        ] {
            assert_eq!(hide(text, &["hunter22", JSON]), text);
        }
        assert_eq!(hide("pass=hunter22,ab", &["hunter22", "ab"]), "pass=<redacted>,ab");
        assert_eq!(hide("HUNTER22 of ö Hunter22", &["hunter22"]), "<redacted> of ö <redacted>");
        assert_eq!(hide(&"\\u{".repeat(100_000), &["hunter22"]), NOT_SHOWN);
        assert_eq!(hide(&"x".repeat(100_000), &[]).len(), 100_000);
        let secrets = searched(&["hunter22".to_owned(), "ab".to_owned(), "line one\nline two\n".to_owned()]);
        assert_eq!(secrets, ["line one\nline two", "hunter22", "line one", "line two"]);
    }
}
