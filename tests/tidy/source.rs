//! Rust text as tokens and paths: enough of the language to know what a file names, without comments and strings.

/// One token, with the line it starts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) line: usize,
    /// The text; a string or character literal is an empty text.
    pub(crate) text: String,
}

/// One path as written in a `use` or in an expression, made absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) line: usize,
    /// `crate` and the modules below it, or an outside crate and what is named in it. A glob ends in `*`.
    pub(crate) segments: Vec<String>,
}

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    while i < chars.len() {
        let start = i;
        let token = match (chars[i], chars.get(i + 1)) {
            (c, _) if c.is_whitespace() => {
                i += 1;
                None
            }
            ('/', Some('/')) => {
                i = end_of_line(&chars, i);
                None
            }
            ('/', Some('*')) => {
                i = end_of_block(&chars, i);
                None
            }
            (':', Some(':')) => {
                i += 2;
                Some("::".to_owned())
            }
            ('\'', _) => {
                i = end_of_quote(&chars, i);
                Some(String::new())
            }
            _ => match end_of_string(&chars, i) {
                Some(end) => {
                    i = end;
                    Some(String::new())
                }
                None => {
                    i = end_of_word(&chars, i);
                    Some(chars[start..i].iter().collect::<String>().trim_start_matches("r#").to_owned())
                }
            },
        };
        out.extend(token.map(|text| Token { line, text }));
        line += chars[start..i].iter().filter(|c| **c == '\n').count();
    }
    out
}

fn end_of_line(chars: &[char], from: usize) -> usize {
    chars[from..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| from + n)
}

fn end_of_block(chars: &[char], from: usize) -> usize {
    let (mut depth, mut i) = (0, from);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

/// Past a character literal or a lifetime.
fn end_of_quote(chars: &[char], from: usize) -> usize {
    match (chars.get(from + 1), chars.get(from + 2)) {
        (Some('\\'), _) => (from + 3..chars.len()).find(|i| chars[*i] == '\'').map_or(chars.len(), |i| i + 1),
        (Some(_), Some('\'')) => from + 3,
        _ => end_of_word(chars, from + 1),
    }
}

/// Past a string literal of any sort that starts here, if one does.
fn end_of_string(chars: &[char], from: usize) -> Option<usize> {
    let quote = from + chars[from..].iter().take(2).take_while(|c| "bcr".contains(**c)).count();
    let raw = chars[from..quote].contains(&'r');
    let hashes = if raw { chars[quote..].iter().take_while(|c| **c == '#').count() } else { 0 };
    if chars.get(quote + hashes) != Some(&'"') {
        return None;
    }
    let mut i = quote + hashes + 1;
    while i < chars.len() {
        if chars[i] == '\\' && !raw {
            i += 1;
        } else if chars[i] == '"'
            && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
        {
            return Some(i + 1 + hashes);
        }
        i += 1;
    }
    Some(chars.len())
}

fn end_of_word(chars: &[char], from: usize) -> usize {
    let raw = if chars[from..].starts_with(&['r', '#']) { 2 } else { 0 };
    let word = chars[from + raw..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
    if word == 0 { from + 1 } else { from + raw + word }
}

fn is_word(token: Option<&Token>) -> bool {
    token.is_some_and(|t| t.text.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

/// Every path that a file names, made absolute; `module` is the file's own place, such as `["plan", "mount"]`.
pub(crate) fn paths(tokens: &[Token], module: &[String]) -> Vec<Named> {
    let mut out = Vec::new();
    let mut here = module.to_vec();
    let mut opened = Vec::new(); // depths at which an inline module was entered
    let (mut depth, mut i) = (0_usize, 0);
    while i < tokens.len() {
        let at = |n: usize| tokens.get(i + n).map_or("", |t| t.text.as_str());
        match at(0) {
            "mod" if is_word(tokens.get(i + 1)) && at(2) == "{" => {
                here.push(at(1).to_owned());
                opened.push(depth);
                depth += 1;
                i += 3;
                continue;
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if opened.last() == Some(&depth) {
                    opened.pop();
                    here.pop();
                }
            }
            "use" if at(1) != "<" => {
                let (end, found) = tree(tokens, i + 1, &[]);
                out.extend(found.into_iter().map(|named| absolute(named, &here)));
                i = end;
                continue;
            }
            "extern" if at(1) == "crate" => {
                out.push(Named { line: tokens[i].line, segments: vec![at(2).to_owned()] });
                i += 3;
                continue;
            }
            _ if starts_path(tokens, i) => {
                let (end, segments) = plain(tokens, i);
                out.push(absolute(Named { line: tokens[i].line, segments }, &here));
                i = end;
                continue;
            }
            _ => {}
        }
        i += 1;
    }
    out
}

fn starts_path(tokens: &[Token], i: usize) -> bool {
    let before = |n: usize| i.checked_sub(n).map_or("", |at| tokens[at].text.as_str());
    let followed = tokens.get(i + 1).is_some_and(|t| t.text == "::");
    let goes_on = match before(1) {
        // `a::b` and `<A as B>::c` go on; `-> ::a`, `=> ::a` and `(::a` start.
        "::" if before(2) == ">" => !matches!(before(3), "-" | "="),
        "::" => i.checked_sub(2).is_some_and(|at| is_word(tokens.get(at))),
        "." => true,
        _ => false,
    };
    is_word(tokens.get(i)) && followed && !goes_on
}

fn plain(tokens: &[Token], from: usize) -> (usize, Vec<String>) {
    let (mut i, mut segments) = (from, vec![tokens[from].text.clone()]);
    while tokens.get(i + 1).is_some_and(|t| t.text == "::") && is_word(tokens.get(i + 2)) {
        segments.push(tokens[i + 2].text.clone());
        i += 2;
    }
    (i + 1, segments)
}

/// The leaves of one tree of a `use`, and where it ends.
fn tree(tokens: &[Token], from: usize, prefix: &[String]) -> (usize, Vec<Named>) {
    let (mut i, mut path, mut out) = (from, prefix.to_vec(), Vec::new());
    let line = tokens.get(from).map_or(0, |t| t.line);
    while let Some(token) = tokens.get(i) {
        match token.text.as_str() {
            "::" => i += 1,
            "{" => {
                i += 1;
                while tokens.get(i).is_some_and(|t| t.text != "}") {
                    let (end, leaves) = tree(tokens, i, &path);
                    out.extend(leaves);
                    i = if tokens.get(end).is_some_and(|t| t.text == ",") { end + 1 } else { end };
                }
                return (i + 1, out);
            }
            "," | "}" | ";" => break,
            "as" => i += 2,
            "self" if !path.is_empty() => i += 1,
            word => {
                path.push(word.to_owned());
                i += 1;
            }
        }
    }
    out.push(Named { line, segments: path });
    (i, out)
}

fn absolute(named: Named, here: &[String]) -> Named {
    let mut segments = named.segments.into_iter().peekable();
    let mut base = match segments.peek().map(String::as_str) {
        Some("self" | "super") => here.to_vec(),
        Some("crate" | "wharfline") => {
            segments.next();
            Vec::new()
        }
        _ => return Named { line: named.line, segments: segments.collect() },
    };
    while let Some(word) = segments.next_if(|s| s == "self" || s == "super") {
        if word == "super" {
            base.pop();
        }
    }
    base.insert(0, "crate".to_owned());
    base.extend(segments);
    Named { line: named.line, segments: base }
}
