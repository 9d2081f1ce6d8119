//! Manifests: YAML and JSON text to plain JSON values and back.
//!
//! The only file that knows serde-saphyr. Text becomes a [`Value`] first and a typed object never: what a field
//! means is the server's business. Reading refuses, with the position, what another reader would take differently:
//! duplicate keys, custom tags, numbers with a leading zero, alias bombs. Never reads a file itself.
use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

/// How large one file may be, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// How many documents one file may hold.
pub const MAX_DOCUMENTS: usize = 100;

/// Why a manifest was refused, with the position where there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {message}", position.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default())]
pub struct ManifestError {
    /// The file as the person named it.
    pub file: String,
    /// Line and column, both from 1.
    pub position: Option<(u64, u64)>,
    /// What is wrong with it, and what to write instead where that is known.
    pub message: String,
}

/// One object of a manifest and where it stood.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The object.
    pub object: Value,
    /// The file and the line where it begins.
    pub origin: String,
}

/// Every object in the text; `List` objects are taken apart, empty documents are skipped.
pub fn parse(text: &str, file: &str) -> Result<Vec<Document>, ManifestError> {
    let fault = |position, message: String| ManifestError { file: file.to_owned(), position, message };
    if text.len() > MAX_BYTES {
        let message = format!("the file is larger than {MAX_BYTES} bytes; split it");
        return Err(fault(None, message));
    }
    let values = match json_documents(text) {
        Some(values) => values,
        None => yaml_documents(text).map_err(|(position, message)| fault(position, message))?,
    };
    if values.len() > MAX_DOCUMENTS {
        return Err(fault(None, too_many()));
    }
    let mut documents = Vec::new();
    for (line, value) in values {
        let origin = format!("{file}:{line}");
        if !value.is_object() {
            let message = format!("an object is wanted here, not {}", kind_of(&value));
            return Err(fault(Some((line, 1)), message));
        }
        documents.extend(flatten(value).map(|object| Document { object, origin: origin.clone() }));
    }
    Ok(documents)
}

/// One value, for text that is no object of its own such as a patch.
pub fn parse_value(text: &str, name: &str) -> Result<Value, ManifestError> {
    let fault = |position, message: String| ManifestError { file: name.to_owned(), position, message };
    if let Some(mut values) = json_documents(text)
        && values.len() == 1
    {
        return Ok(values.remove(0).1);
    }
    let mut values = yaml_documents(text).map_err(|(position, message)| fault(position, message))?;
    match values.len() {
        1 => Ok(values.remove(0).1),
        n => Err(fault(None, format!("one document is wanted here, not {n}"))),
    }
}

/// The value as block YAML that ends with a newline and that every YAML reader takes for the same value.
pub fn to_yaml(value: &Value) -> String {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    match serde_saphyr::to_string_with_options(value, options) {
        Ok(text) => text,
        // JSON is YAML as well; a person loses comfort, not data.
        Err(_) => format!("{value:#}\n"),
    }
}

type Position = Option<(u64, u64)>;
type Placed = (u64, Value);

fn too_many() -> String {
    format!("more than {MAX_DOCUMENTS} documents; split the file")
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn flatten(value: Value) -> Box<dyn Iterator<Item = Value>> {
    let is_list =
        value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && value["items"].is_array();
    match value {
        Value::Object(mut fields) if is_list => match fields.remove("items") {
            Some(Value::Array(items)) => Box::new(items.into_iter()),
            _ => Box::new(std::iter::empty()),
        },
        other => Box::new(std::iter::once(other)),
    }
}

/// The documents of a JSON text, or nothing when it is not strict JSON: YAML then says where the fault is.
fn json_documents(text: &str) -> Option<Vec<Placed>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Strict>();
    let mut documents = Vec::new();
    loop {
        let rest = &text[stream.byte_offset()..];
        let begin = text.len() - rest.trim_start().len();
        match stream.next() {
            Some(Ok(Strict(value))) => documents.push((line_of(text, begin), value)),
            Some(Err(_)) => return None,
            None => return Some(documents),
        }
    }
}

fn line_of(text: &str, offset: usize) -> u64 {
    1 + text[..offset].matches('\n').count() as u64
}

/// A JSON value whose objects have no key twice.
struct Strict(Value);

impl<'de> serde::Deserialize<'de> for Strict {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> serde::de::Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((key, Strict(value))) = map.next_entry::<String, Strict>()? {
            if fields.contains_key(&key) {
                return Err(serde::de::Error::custom(format_args!("duplicate key {key}")));
            }
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

fn yaml_documents(text: &str) -> Result<Vec<Placed>, (Position, String)> {
    let lines = scan(text)?;
    let options = serde_saphyr::options! {
        reject_unsupported_tags: true,
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! { max_documents: 10 * MAX_DOCUMENTS, max_nodes: 200_000 },
        // What a file repeats by aliases may not grow far beyond the size of a file.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 },
    };
    let values: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let position = error.location().map(|at| (at.line(), at.column()));
        (position, words_of(error.without_snippet()))
    })?;
    let line = |index: usize| lines.get(index).copied().unwrap_or(1);
    Ok(values.into_iter().enumerate().map(|(index, value)| (line(index), whole_numbers(value))).collect())
}

/// The reader's words without the position, which stands in front, and without advice to programmers.
fn words_of(error: &serde_saphyr::Error) -> String {
    if let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error {
        return format!("duplicate key {}", key.as_deref().unwrap_or_default()).trim_end().to_owned();
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    line.split(" at line ").next().unwrap_or(line).to_owned()
}

/// Walks the events for what the reader itself lets pass, and finds the line where each document begins.
fn scan(text: &str) -> Result<Vec<u64>, (Position, String)> {
    let mut lines = Vec::new();
    let mut at_root = false;
    for event in Parser::new_from_str(text) {
        // The reader proper reports what cannot be parsed, in its own words.
        let Ok((event, span)) = event else { return Ok(lines) };
        let position = (span.start.line() as u64, span.start.col() as u64 + 1);
        match &event {
            Event::DocumentStart(..) => {
                at_root = true;
                continue;
            }
            Event::Scalar(word, ScalarStyle::Plain, _, None) => {
                if has_leading_zero(word) {
                    let message = format!(
                        "the number {word} begins with a zero, which readers take differently; write \"{word}\" for a text or drop the zero"
                    );
                    return Err((Some(position), message));
                }
                let nothing = matches!(word.as_ref(), "" | "~" | "null" | "Null" | "NULL");
                if at_root && !nothing {
                    lines.push(position.0);
                }
            }
            other if at_root && other.is_node() => lines.push(position.0),
            _ => {}
        }
        if lines.len() > MAX_DOCUMENTS {
            return Err((Some(position), too_many()));
        }
        at_root &= !event.is_node();
    }
    Ok(lines)
}

fn has_leading_zero(word: &str) -> bool {
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// `1e3` and `2.0` are whole numbers to kubectl, so they are to us.
fn whole_numbers(value: Value) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    match value {
        Value::Number(n) => match n.as_f64() {
            #[allow(clippy::cast_possible_truncation)] // a whole number below 2^53 fits
            Some(float) if n.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => (float as i64).into(),
            _ => Value::Number(n),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, whole_numbers(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn values(text: &str) -> Vec<Value> {
        parse(text, "f").unwrap().into_iter().map(|d| d.object).collect()
    }

    fn refusal(text: &str) -> String {
        parse(text, "f.yaml").unwrap_err().to_string()
    }

    #[test]
    fn documents_of_both_languages_are_read() {
        for (text, wanted) in [
            ("a: 1\n---\nb: yes\n", vec![json!({"a": 1}), json!({"b": true})]),
            ("---\n# nothing\n---\na: 1_000\n---\n", vec![json!({"a": 1000})]),
            (
                "{\"a\": \"\\ud83d\\ude00\"}\n{\"b\": [null, 1.5]}",
                vec![json!({"a": "😀"}), json!({"b": [null, 1.5]})],
            ),
            ("{a: 1, b: [x, 'y']}", vec![json!({"a": 1, "b": ["x", "y"]})]),
            (
                "a: 1e3\nb: 2.5\nc: 0\nd: 0.5\ne: -0.5",
                vec![json!({"a": 1000, "b": 2.5, "c": 0, "d": 0.5, "e": -0.5})],
            ),
            (
                "base: &b {x: 1}\nuse: {<<: *b, y: 2}",
                vec![json!({"base": {"x": 1}, "use": {"x": 1, "y": 2}})],
            ),
            ("a: \"0777\"\nb: 0x1F\nc: 2024-01-01", vec![json!({"a": "0777", "b": 31, "c": "2024-01-01"})]),
            ("apiVersion: v1\nkind: List\nitems: [{a: 1}, {b: 2}]", vec![json!({"a": 1}), json!({"b": 2})]),
            ("", vec![]),
        ] {
            assert_eq!(values(text), wanted, "{text}");
        }
    }

    #[test]
    fn documents_know_where_they_begin() {
        let read = parse("# top\na: 1\n---\n---\n\nb: 1\n", "m.yaml").unwrap();
        assert_eq!(read.iter().map(|d| d.origin.as_str()).collect::<Vec<_>>(), ["m.yaml:2", "m.yaml:6"]);
        let read = parse("{\"a\": 1}\n\n{\"b\": 1}\n", "m.json").unwrap();
        assert_eq!(read.iter().map(|d| d.origin.as_str()).collect::<Vec<_>>(), ["m.json:1", "m.json:3"]);
    }

    #[test]
    fn what_readers_take_differently_is_refused_with_its_position() {
        for (text, position, word) in [
            ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1", "duplicate"),
            ("{\"a\": 1, \"a\": 2}", "f.yaml:1:10", "duplicate"),
            ("mode: 0777\n", "f.yaml:1:7", "begins with a zero"),
            ("a:\n  - -007\n", "f.yaml:2:5", "begins with a zero"),
            ("a: !secret x\n", "f.yaml:1:", "tag"),
            ("a: [1, 2\nb: 3\n", "f.yaml:2:", ""),
            ("a: 1\n---\n- x\n", "f.yaml:3:1", "not a list"),
            ("just text", "f.yaml:1:1", "not a text"),
        ] {
            let refused = refusal(text);
            assert!(refused.starts_with(position), "{text:?}: {refused}");
            assert!(refused.to_lowercase().contains(word), "{text:?}: {refused}");
        }
    }

    #[test]
    fn bombs_are_refused() {
        let mut aliases = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let line = vec![format!("*a{}", level - 1); 10].join(", ");
            aliases.extend(["a", &level.to_string(), ": &a", &level.to_string(), " [", &line, "]\n"]);
        }
        let deeper = |level: u32| {
            let below = level - 1;
            format!(
                "m{level}: &m{level} {{a{level}: {{<<: [*m{below}, *m{below}]}}, b{level}: {{<<: *m{below}}}}}\n"
            )
        };
        let merges: String =
            std::iter::once("m0: &m0 {k0: 1}\n".to_owned()).chain((1..40).map(deeper)).collect();
        let deep = "[".repeat(20_000);
        let many = "a: 1\n---\n".repeat(101);
        let large = format!("a: {}", "x".repeat(MAX_BYTES));
        for (name, text) in
            [("aliases", &aliases), ("merges", &merges), ("deep", &deep), ("many", &many), ("large", &large)]
        {
            let refused = parse(text, "f");
            assert!(refused.is_err(), "{name}");
        }
        assert_eq!(values(&"a: 1\n---\n".repeat(100)).len(), 100);
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for value in [
            json!({"a": "yes", "b": "0777", "c": "1e3", "d": "null", "e": "", "f": " x ", "g": "a: b", "h": "# c"}),
            json!({"y": 1, "on": "off", "~": null, "1": [[], {}, [[1, [2]]]], "": "x", "a b": {"c": true}}),
            json!({"t": "2024-01-01", "u": "12:30:45", "v": "0x1f", "w": "1_000", "x": ".5", "z": "-", "q": "\"'"}),
            json!({"m": "one\ntwo\n", "n": "one\n\n  two", "o": "\ttab\n", "p": "é😀\u{7}\u{85}\u{2028}", "r": "trail \n"}),
            json!({"big": 18_446_744_073_709_551_615_u64, "neg": -9_007_199_254_740_993_i64, "half": 0.5}),
            json!({"l": [{"a": [{"b": "c"}]}, "long text that goes on for more than eighty characters, so that a folding writer would wish to break it"]}),
        ] {
            let text = to_yaml(&value);
            assert_eq!(values(&text), [value], "{text}");
        }
    }
}
