//! Secrets of a request in the answer to it: drivers repeat what they sent on, as it is or as they have written it down.
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

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

/// How many bytes of these are compared with secrets, each time that one is: some tenths of a second at most.
const MOST_COMPARED: usize = 256 * 1024 * 1024;

/// What is named in a secret is searched for from so many bytes on, unless its name says that it is one: shorter ones may be any word.
const MIN_NAMED: usize = 8;

/// What a word in the name of a secret begins with.
const SECRET_WORDS: [&str; 5] = ["pass", "pwd", "secret", "token", "cred"];

/// What is within one, such as `PGPASSWORD` or `accesstoken`.
const WITHIN_WORDS: [&str; 4] = ["passw", "secret", "token", "credential"];

/// Words in the name of what may be one, and how such words end, as `apikey` does.
const MAYBE_WORDS: [&str; 7] = ["key", "keyring", "auth", "authorization", "pw", "psk", "pin"];
const MAYBE_ENDS: [&str; 2] = ["key", "keyring"];

/// How the parts of a list are named that has names and values.
const NAMES: [&str; 4] = ["name", "key", "k", "id"];
const VALUES: [&str; 5] = ["value", "val", "v", "content", "data"];

/// What has such a name, and is none.
const NO_SECRETS: [&str; 12] =
    ["true", "false", "none", "null", "user", "name", "basic", "bearer", "cephx", "chap", "ldap", "password"];

/// Of a secret that was cut off so many bytes are one, if they are half of it.
const LEAST_CUT: usize = 8;

/// So many are one whatever they are of.
const SURE_CUT: usize = 16;

/// How long one may be that is a plain word.
const LONGEST_WORD: usize = 24;

/// How many pieces of a message are compared with those of secrets.
const MOST_PIECES: usize = 8 * 1024 * 1024;

/// The texts to search for: each secret, each line of one with several, and what is named in one that is JSON, a list of names and values,
/// or an address with a password; the longest first.
pub(crate) fn searched<'a>(secrets: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut texts = Vec::new();
    for secret in secrets {
        add(secret, (Named::Secret, NESTED), &mut texts);
    }
    texts.retain(|text| text.len() >= MIN_SEARCHED_SECRET);
    texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    texts.dedup();
    texts
}

/// Adds a text of at least so many bytes, and what is in it, if it has a form in which it may be in another one so often.
fn add(secret: &str, (named, nested): (Named, usize), texts: &mut Vec<String>) {
    texts.extend(Some(secret.trim().to_owned()).filter(|text| text.len() >= named.least()));
    if let Some(json) = list(secret).filter(|_| nested > 0) {
        add_values(named, &json, nested - 1, texts);
        return;
    }
    if nested > 0 {
        add_decoded(secret, (named, nested - 1), texts);
    }
    for line in secret.lines() {
        texts.extend(Some(line.trim().to_owned()).filter(|text| text.len() >= named.least()));
        if let Some(json) = list(line).filter(|_| nested > 0) {
            add_values(named, &json, nested - 1, texts);
            continue;
        }
        add_named(line, texts);
        line.split([';', '&', ',', '?', '#']).for_each(|part| add_named(part, texts));
        line.split_whitespace().filter(|part| part.contains('=')).for_each(|part| add_named(part, texts));
        add_last(line, texts);
        add_passwords(line, texts);
    }
}

/// A list or an object of JSON.
fn list(text: &str) -> Option<serde_json::Value> {
    let text = Some(text.trim()).filter(|text| text.starts_with(['{', '[']));
    text.and_then(|text| serde_json::from_str(text).ok())
}

/// What the name of a text says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// It is a secret.
    Secret,
    /// It may be one.
    Maybe,
    /// Nothing.
    Other,
}

impl Named {
    fn of(name: &str) -> Self {
        let mut words = vec![String::new()];
        let mut before = ' ';
        for letter in name.chars() {
            let begins = letter.is_ascii_uppercase() && !before.is_ascii_uppercase();
            if !letter.is_ascii_alphanumeric() || begins {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut().filter(|_| letter.is_ascii_alphanumeric()) {
                word.push(letter.to_ascii_lowercase());
            }
            before = letter;
        }
        let maybe = |word: &String| {
            let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
            let one = word.strip_suffix('s').unwrap_or(word);
            MAYBE_WORDS.contains(&word)
                || MAYBE_WORDS.contains(&one)
                || MAYBE_ENDS.iter().any(|end| one.ends_with(end))
        };
        let is_secret = |word: &String| {
            SECRET_WORDS.iter().any(|begin| word.starts_with(begin))
                || WITHIN_WORDS.iter().any(|part| word.contains(part))
        };
        if words.iter().any(is_secret) {
            Self::Secret
        } else if words.iter().any(maybe) {
            Self::Maybe
        } else {
            Self::Other
        }
    }

    /// From how many bytes on such a text is searched for.
    fn least(self) -> usize {
        match self {
            Self::Secret | Self::Maybe => MIN_SEARCHED_SECRET,
            Self::Other => MIN_NAMED,
        }
    }

    /// Whether a text of this name is no secret by what it says.
    fn is_none(self, text: &str) -> bool {
        self != Self::Secret && NO_SECRETS.contains(&text.to_ascii_lowercase().as_str())
    }
}

/// The value of a text that gives one by a name, as in `key = VALUE` or `key: "VALUE" # a comment`.
fn add_named(text: &str, texts: &mut Vec<String>) {
    let Some(at) = text.find(['=', ':']) else { return };
    let (name, value) = (&text[..at], &text[at + 1..]);
    // An address has no name.
    if text[at..].starts_with("://") {
        return;
    }
    let named = Named::of(name);
    for value in [Some(value), value.split_once(" #").map(|(value, _)| value)].into_iter().flatten() {
        let value = value.trim().trim_matches(['"', '\'']);
        texts.extend(
            Some(value.to_owned()).filter(|value| value.len() >= named.least() && !named.is_none(value)),
        );
    }
}

/// What base64 stands for: drivers read it before they use it.
fn add_decoded(text: &str, (named, nested): (Named, usize), texts: &mut Vec<String>) {
    let code: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let code = code.trim_end_matches('=');
    if code.len() < MIN_NAMED || is_words(code) {
        return;
    }
    let read = STANDARD_NO_PAD.decode(code).or_else(|_| URL_SAFE_NO_PAD.decode(code));
    let Ok(bytes) = read else { return };
    match String::from_utf8(bytes) {
        Ok(plain) if !plain.chars().any(|c| c.is_control() && !c.is_whitespace()) => {
            add(&plain, (named, nested), texts);
        }
        // What has no letters is written in numbers.
        Ok(plain) => add_bytes(plain.as_bytes(), texts),
        Err(other) => add_bytes(other.as_bytes(), texts),
    }
}

/// Bytes as they are written down.
fn add_bytes(bytes: &[u8], texts: &mut Vec<String>) {
    if bytes.len() >= LEAST_CUT {
        texts.extend(numbers(bytes));
    }
}

/// The last part of a line whose parts have no names, as in `host:port:database:user:PASSWORD`.
fn add_last(line: &str, texts: &mut Vec<String>) {
    let mut parts = line.trim().rsplit(':');
    let (last, before) = (parts.next().unwrap_or_default().trim(), parts.count());
    if before > 1 && last.len() >= MIN_NAMED && !is_words(last) {
        texts.push(last.to_owned());
    }
}

/// The passwords in addresses, as in `scheme://user:PASSWORD@host`, and what they are where they are written for one.
fn add_passwords(text: &str, texts: &mut Vec<String>) {
    for (at, scheme) in text.match_indices("://") {
        let rest = &text[at + scheme.len()..];
        // A quote may be of the password, or of what the address stands in.
        for ends in [&['/', ' ', '?'][..], &['/', ' ', '?', '"', '\'']] {
            let rest = rest.split(ends).next().unwrap_or_default();
            let user = rest.rsplit_once('@').map(|(user, _)| user).unwrap_or_default();
            // A token may stand for both of them, or for the user alone.
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let token = Some(name).filter(|name| name.len() >= LEAST_CUT && !is_words(name));
            for text in token.into_iter().chain(Some(password).filter(|password| !password.is_empty())) {
                texts.push(text.to_owned());
                texts.push(percent_decode_str(text).decode_utf8_lossy().into_owned());
            }
        }
    }
}

/// The texts in a value of JSON of which a name says this.
fn add_values(named: Named, of: &serde_json::Value, nested: usize, texts: &mut Vec<String>) {
    match of {
        serde_json::Value::String(text) if named.is_none(text) => {}
        serde_json::Value::String(text) => add(text, (named, nested), texts),
        serde_json::Value::Number(number) => {
            texts.extend(Some(number.to_string()).filter(|text| text.len() >= named.least()));
        }
        serde_json::Value::Array(all) => all.iter().for_each(|one| add_values(named, one, nested, texts)),
        serde_json::Value::Object(all) => {
            let part = |names: &[&str]| {
                let is_it = |name: &String| names.contains(&name.to_ascii_lowercase().as_str());
                all.iter().find(|(name, _)| is_it(name)).map(|(_, one)| one)
            };
            let called = part(&NAMES).and_then(serde_json::Value::as_str).map(Named::of);
            if let (Some(named), Some(value)) = (called, part(&VALUES)) {
                add_values(named, value, nested, texts);
            }
            all.iter().for_each(|(name, one)| add_values(Named::of(name), one, nested, texts));
        }
        serde_json::Value::Null | serde_json::Value::Bool(_) => {}
    }
}

/// The text without these secrets (CO-GEN-22), of which the longer ones come first. One that stands in it as it is, in whatever case, is left
/// out, and so is a piece of one; one that is written in another way, or may be in what is too much to be searched, leaves nothing of the
/// text.
pub(crate) fn hidden<'t>(text: &'t str, secrets: &[String]) -> Cow<'t, str> {
    if secrets.is_empty() {
        return Cow::Borrowed(text);
    }
    if text.len() > MOST_SEARCHED {
        return Cow::Borrowed(NOT_SHOWN);
    }
    let mut rest = Cow::Borrowed(text);
    let (mut forms, mut left) = (None, MOST_COMPARED);
    for secret in secrets {
        if let Some(without) = without(&rest, secret) {
            (rest, forms) = (Cow::Owned(without), None);
        }
        // Before the shorter ones are left out: they may be parts of it.
        let forms = forms.get_or_insert_with(|| Forms::of(&rest));
        if forms.as_ref().is_none_or(|forms| forms.repeat(secret, &mut left)) {
            return Cow::Borrowed(NOT_SHOWN);
        }
    }
    // Of the text as it was: one that is a part of another one does not cut pieces of that in two.
    let text = match shown(text, &marks(text, secrets)) {
        Some(rest) => Cow::Owned(rest),
        None => Cow::Borrowed(text),
    };
    let cut = secrets.iter().filter(|secret| may_be_cut(secret)).collect::<Vec<_>>();
    let forms = readings(&text).filter(|_| !cut.is_empty());
    match forms {
        Some(all) if are_pieces_in(&all, &cut) => Cow::Borrowed(NOT_SHOWN),
        None if !cut.is_empty() => Cow::Borrowed(NOT_SHOWN),
        Some(_) | None => text,
    }
}

/// Which bytes of a text are of one of these secrets, or of a piece of one.
fn marks(text: &str, secrets: &[String]) -> Vec<bool> {
    let lower = text.to_ascii_lowercase();
    let mut marks = vec![false; text.len()];
    let mut windows = Windows::of([lower.as_str()]);
    for secret in secrets {
        let wanted = secret.to_ascii_lowercase();
        lower.match_indices(&wanted).for_each(|(at, _)| marks[at..at + wanted.len()].fill(true));
        if may_be_cut(secret) {
            for (piece, length) in pieces(secret) {
                windows.each(length, piece.as_bytes(), |at| marks[at..at + length].fill(true));
            }
        }
    }
    marks
}

/// Whether a piece of one of these secrets is in one of these texts. So it is said, too, of more than can be compared.
fn are_pieces_in(texts: &[String], secrets: &[&String]) -> bool {
    let lower = texts.iter().map(|text| text.to_ascii_lowercase()).collect::<Vec<_>>();
    let lengths = 1 + SURE_CUT - LEAST_CUT;
    if lower.iter().map(String::len).sum::<usize>() * lengths > MOST_PIECES {
        return true;
    }
    let mut windows = Windows::of(lower.iter().map(String::as_str));
    secrets.iter().flat_map(|secret| pieces(secret)).any(|(piece, length)| {
        let mut any = false;
        windows.each(length, piece.as_bytes(), |_| any = true);
        any
    })
}

/// What of a secret gives it away, in small letters, and how long a piece of it is that does: it as it is, unless its parts are words, and in
/// base64.
fn pieces(secret: &str) -> impl Iterator<Item = (String, usize)> {
    let length = secret.len().div_ceil(2).clamp(LEAST_CUT, SURE_CUT);
    let mut codes = base64s(secret);
    codes.sort_unstable();
    codes.dedup();
    let codes = codes.into_iter().map(|code| (code, SURE_CUT));
    let plain = Some((secret.to_owned(), length)).filter(|_| !is_words(secret));
    plain.into_iter().chain(codes).map(|(text, length)| (text.to_ascii_lowercase(), length))
}

/// All pieces of some texts, by how long they are, and where each is. They are few beside those of secrets, which may be large.
struct Windows<'t> {
    texts: Vec<&'t str>,
    all: BTreeMap<usize, HashMap<&'t [u8], Vec<usize>>>,
}

impl<'t> Windows<'t> {
    fn of(texts: impl IntoIterator<Item = &'t str>) -> Self {
        Self { texts: texts.into_iter().collect(), all: BTreeMap::new() }
    }

    /// Says where each piece of this length of a secret is.
    fn each(&mut self, length: usize, secret: &[u8], mut found: impl FnMut(usize)) {
        let texts = &self.texts;
        let windows = self.all.entry(length).or_insert_with(|| {
            let mut all: HashMap<&[u8], Vec<usize>> = HashMap::new();
            for text in texts {
                for (at, window) in text.as_bytes().windows(length).enumerate() {
                    all.entry(window).or_default().push(at);
                }
            }
            all
        });
        if windows.is_empty() {
            return;
        }
        for piece in secret.windows(length) {
            // Found once, it need not be found again.
            windows.remove(piece).into_iter().flatten().for_each(&mut found);
        }
    }
}

/// Whether a piece of a secret means that secret: not of what has a form of its own, whose parts are in many texts and which is searched for
/// part by part.
fn may_be_cut(secret: &str) -> bool {
    let parts = ["\n", "://", ": ", " = "].iter().any(|part| secret.contains(part));
    let heads = secret.starts_with("-----") || secret.ends_with(':') && secret.contains(' ');
    let section = secret.starts_with('[') && secret.ends_with(']');
    secret.len() > LEAST_CUT && !(parts || heads || section) && list(secret).is_none()
}

/// Whether a secret is a name, a path or a host, or one that is given by a name: parts of it are in many texts.
fn is_words(secret: &str) -> bool {
    let named = |(name, value): &(&str, &str)| {
        // What is encoded ends with this sign, too.
        !value.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic() || "._-".contains(c))
    };
    let value = secret.split_once('=').filter(named).map_or(secret, |(_, value)| value);
    is_name(value) || is_path(value) || value.split(',').all(is_place)
}

/// Words, such as a user's name or a pool's, with a number at most.
fn is_name(text: &str) -> bool {
    let words = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let between = |c: char| " .-_:".contains(c);
    let plain =
        |(at, c): (usize, char)| c.is_ascii_lowercase() || between(c) || at == 0 && c.is_ascii_uppercase();
    let short = text.len() <= LONGEST_WORD || text.contains(' ') || text.matches(between).count() > 1;
    short && text.len() - words.len() <= 3 && words.chars().enumerate().all(plain)
}

/// A path of a file, in small letters.
fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "/._-".contains(c);
    text.starts_with('/') && text.chars().all(plain)
}

/// A host, a mail address, or the name of a target: labels in small letters, the last of letters alone, or numbers alone.
fn is_place(text: &str) -> bool {
    if ["iqn.", "nqn.", "eui."].iter().any(|begin| text.starts_with(begin)) {
        return true;
    }
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let (host, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let letters = |text: &str| text.len() > 1 && text.chars().all(|c| c.is_ascii_lowercase());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    let labels: Vec<&str> = host.split('.').collect();
    let numbers = labels.len() == 4 && labels.iter().all(|label| digits(label));
    let named = labels.len() > 1 && labels.last().is_some_and(|last| letters(last));
    digits(port) && (numbers || named) && host.chars().all(plain) && user.chars().all(plain)
}

/// The text without the bytes that are marked; none where there are none.
fn shown(text: &str, marks: &[bool]) -> Option<String> {
    if !marks.contains(&true) {
        return None;
    }
    let mut kept = String::new();
    let mut before = false;
    for (at, letter) in text.char_indices() {
        // A piece may begin or end within a letter.
        let now = marks[at..at + letter.len_utf8()].contains(&true);
        match (before, now) {
            (_, false) => kept.push(letter),
            (false, true) => kept.push_str("<redacted>"),
            (true, true) => {}
        }
        before = now;
    }
    Some(kept)
}

/// The text without a secret that stands in it as it is; none where it does not.
fn without(text: &str, secret: &str) -> Option<String> {
    // Letters that differ in case alone are as long.
    let (whole, wanted) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
    let mut kept = String::new();
    let mut end = 0;
    for (at, _) in whole.match_indices(&wanted) {
        kept.push_str(text.get(end..at).unwrap_or_default());
        kept.push_str("<redacted>");
        end = at + wanted.len();
    }
    kept.push_str(text.get(end..).unwrap_or_default());
    (end > 0).then_some(kept)
}

/// What a text may be taken for.
struct Forms {
    lower: Vec<String>,
    /// Base64 may be broken into lines.
    unbroken: Vec<String>,
    bytes: usize,
}

impl Forms {
    fn of(text: &str) -> Option<Self> {
        let all = readings(text)?;
        Some(Self {
            lower: all.iter().map(|form| form.to_ascii_lowercase()).collect(),
            unbroken: all.iter().map(|form| form.chars().filter(|c| !c.is_whitespace()).collect()).collect(),
            bytes: all.iter().map(String::len).sum(),
        })
    }

    /// Whether a secret is in one of them: escaped as in JSON or by `%q`, for an address or for XML, as base64, or as numbers. So it is
    /// said, too, of more than is `left` to be compared.
    fn repeat(&self, secret: &str, left: &mut usize) -> bool {
        let (plain, codes) = (numbered(secret), codes(secret));
        let Some(rest) = left.checked_sub(self.bytes * (plain.len() + codes.len())) else { return true };
        *left = rest;
        let in_any = |forms: &[String], one: &String| forms.iter().any(|form| form.contains(one.as_str()));
        plain.iter().any(|one| in_any(&self.lower, one))
            || codes.iter().any(|code| in_any(&self.unbroken, code))
    }
}

/// A secret in small letters, and as the numbers of its bytes.
fn numbered(secret: &str) -> Vec<String> {
    // What is not ASCII may be escaped byte by byte.
    let bytes: String = secret.bytes().map(char::from).collect();
    let mut all = vec![secret.to_ascii_lowercase(), bytes.to_ascii_lowercase()];
    all.extend(numbers(secret.as_bytes()));
    all
}

/// Bytes as Go, Rust, Python and C show them, in small letters.
fn numbers(bytes: &[u8]) -> Vec<String> {
    type Write = fn(&u8) -> String;
    const DIGITS: Write = |byte| format!("{byte:02x}");
    const DECIMAL: Write = ToString::to_string;
    const LONG: Write = |byte| format!("0x{byte:02x}");
    const SHORT: Write = |byte| format!("0x{byte:x}");
    let ways: [(Write, &[&str]); 4] = [
        (DIGITS, &["", ":", " ", "-", ", ", ","]),
        (DECIMAL, &[" ", ", ", ","]),
        (LONG, &[", ", ","]),
        (SHORT, &[", "]),
    ];
    let all = |write: Write, between: &str| bytes.iter().map(write).collect::<Vec<_>>().join(between);
    ways.iter().flat_map(|(write, between)| between.iter().map(|between| all(*write, between))).collect()
}

/// What base64 has of a secret however it was written down before.
fn codes(secret: &str) -> Vec<String> {
    let sole = |mut all: Vec<String>| {
        all.sort();
        all.dedup();
        all
    };
    sole(sole(written(secret)).iter().flat_map(|one| base64s(one)).collect())
}

/// The text, and what it is once it is read as one that was written down in one of these ways, in another, and so on. None if there is no
/// end of these. What quotes are written as is read once, before or after all else: with each of the others there would be no end.
fn readings(text: &str) -> Option<Vec<String>> {
    let mut all = vec![text.to_owned()];
    let add = |all: &mut Vec<String>, next: String| {
        if !all.contains(&next) {
            all.push(next);
        }
    };
    add(&mut all, without_shell(text));
    let mut from = 0;
    for _ in 0..NESTED {
        let last = all.len();
        for at in from..last {
            let form = all[at].clone();
            let percent = |form: &str| percent_decode_str(form).decode_utf8_lossy().into_owned();
            let read =
                [unescape(&form), percent(&form), percent(&form.replace('+', " ")), without_entities(&form)];
            for next in read {
                add(&mut all, next);
            }
            if all.len() > MOST_READINGS {
                return None;
            }
        }
        from = last;
    }
    for at in 0..all.len() {
        let form = all[at].clone();
        for next in [without_shell(&form), without_quotes(&form), quoted_printable(&form)] {
            add(&mut all, next);
        }
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
    // As Python writes it.
    let mut units = [0; 2];
    let ascii = json.chars().map(|c| match c {
        '\0'..='\x7f' => c.to_string(),
        c => c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    });
    let ascii = ascii.collect();
    let percents = [percent(NON_ALPHANUMERIC), percent(UNRESERVED)];
    let mut all = vec![text.to_owned(), json, go, ascii, query];
    all.extend(percents);
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

/// A text without what a quote is written as within the quotes of a shell, of YAML or SQL.
fn without_shell(text: &str) -> String {
    let pairs = [(r#"'"'"'"#, "'"), (r"'\''", "'"), ("''", "'")];
    pairs.iter().fold(text.to_owned(), |text, (written, quote)| text.replace(written, quote))
}

/// A text without what is written for a quote where nothing else has a backslash, or where it stands twice.
fn without_quotes(text: &str) -> String {
    let pairs = [(r#"\""#, "\""), (r"\'", "'"), ("\"\"", "\"")];
    pairs.iter().fold(text.to_owned(), |text, (written, quote)| text.replace(written, quote))
}

/// A text that was written down as in a mail: `=` and two digits for a byte, and `=` at the end of a line that goes on.
fn quoted_printable(text: &str) -> String {
    let whole = text.replace("=\r\n", "").replace("=\n", "").replace('%', "%25").replace('=', "%");
    percent_decode_str(&whole).decode_utf8_lossy().into_owned()
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
mod tests;
