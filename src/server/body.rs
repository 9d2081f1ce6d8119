//! Request bodies: read within a size, parsed within a depth, duplicate keys reported.
use std::cell::RefCell;

use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::path::Path;
use super::status::Refusal;

/// The most bytes of a request body.
pub(crate) const MAX_BODY: usize = 1 << 20;
/// The deepest nesting of a body.
pub(crate) const MAX_DEPTH: usize = 64;

/// How many keys that stand twice are listed.
const MOST_DUPLICATES: usize = 50;
/// The unit in which bodies have their place in memory.
const PLACE: usize = 64 << 10;

/// How many places a body takes: by the length that it names, and the most when it names none.
pub(crate) fn places(body: &Body) -> usize {
    let length = http_body::Body::size_hint(body).exact().and_then(|length| usize::try_from(length).ok());
    length.unwrap_or(MAX_BODY).min(MAX_BODY).div_ceil(PLACE).max(1)
}

/// How long a request may take to send its body.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

/// Reads a whole body of at most [`MAX_BODY`] bytes.
pub(crate) async fn read(body: Body) -> Result<Bytes, Refusal> {
    read_within(body, MAX_BODY).await
}

/// Reads a whole body of at most so many bytes.
pub(crate) async fn read_within(body: Body, most: usize) -> Result<Bytes, Refusal> {
    let read = tokio::time::timeout(DEADLINE, Limited::new(body, most).collect()).await;
    match read.map_err(|_| Refusal::bad_request("the request body did not come in time"))? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("the request body is larger than {most} bytes"),
        )),
        Err(error) => Err(Refusal::bad_request(format!("the request body could not be read: {error}"))),
    }
}

/// Parses JSON; of duplicate keys the last one counts.
pub(crate) fn json(bytes: &[u8]) -> Result<Value, Refusal> {
    json_with_duplicates(bytes).map(|(value, _)| value)
}

/// Parses JSON and lists the paths of keys that stand twice.
pub(crate) fn json_with_duplicates(bytes: &[u8]) -> Result<(Value, Vec<String>), Refusal> {
    if too_deep(bytes) {
        return Err(Refusal::bad_request(format!("the body is nested more than {MAX_DEPTH} levels deep")));
    }
    let duplicates = RefCell::new(Vec::new());
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let value = Node { path: Path::Root, duplicates: &duplicates }
        .deserialize(&mut parser)
        .and_then(|value| parser.end().map(|()| value))
        .map_err(|e| Refusal::bad_request(format!("the body is not valid JSON: {e}")))?;
    Ok((value, duplicates.into_inner()))
}

/// Whether a value has more levels than so many.
pub(crate) fn nests_deeper(value: &Value, levels: usize) -> bool {
    let inside = |value: &Value| nests_deeper(value, levels.saturating_sub(1));
    match value {
        Value::Object(fields) => levels == 0 || fields.values().any(inside),
        Value::Array(items) => levels == 0 || items.iter().any(inside),
        _ => false,
    }
}

/// Counts brackets outside strings, so that no parser recurses deeper than we allow.
fn too_deep(bytes: &[u8]) -> bool {
    let (mut depth, mut text, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match (text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => text = !text,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

/// Builds a [`Value`] while noting keys that stand twice.
struct Node<'a> {
    path: Path<'a>,
    duplicates: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = self.path.item(items.len());
            match access.next_element_seed(Node { path, duplicates: self.duplicates })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let value =
                access.next_value_seed(Node { path: self.path.field(&key), duplicates: self.duplicates })?;
            if fields.contains_key(&key) && self.duplicates.borrow().len() < MOST_DUPLICATES {
                self.duplicates.borrow_mut().push(self.path.field(&key).into());
            }
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{json, json_with_duplicates};

    #[test]
    fn depth_is_bounded_before_parsing() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(json(nested(64).as_bytes()).is_ok());
        assert!(json(nested(65).as_bytes()).is_err());
        assert!(json("[".repeat(80_000).as_bytes()).is_err());
        assert_eq!(json(br#""[[[\"[[""#).unwrap(), json!("[[[\"[["), "brackets in text do not count");
    }

    #[test]
    fn duplicate_keys_are_reported_by_path() {
        let (value, twice) =
            json_with_duplicates(br#"{"spec":{"a":1,"a":2,"l":[{"b":1.5,"b":null}]},"x":-1}"#).unwrap();
        assert_eq!(value, json!({ "spec": { "a": 2, "l": [{ "b": null }] }, "x": -1 }));
        assert_eq!(twice, ["spec.a", "spec.l[0].b"]);
    }

    #[test]
    fn broken_json_is_refused() {
        for bad in ["", "{", "{} {}", "nul", "\u{1}"] {
            assert_eq!(json(bad.as_bytes()).unwrap_err().code, 400, "{bad:?}");
        }
    }
}
