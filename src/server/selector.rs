//! Label and field selectors: parsing what clients send and matching it against an object's own words.
use std::collections::BTreeMap;
use std::fmt;

use memchr::{memchr, memmem};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::query::Query;
use super::route::Target;
use super::status::Refusal;

/// What is known of an object for matching, without its body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// The labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// The declared selectable fields with their values; a missing field is the empty string.
    pub(crate) fields: BTreeMap<&'static str, String>,
}

impl Traits {
    /// Reads the labels and the given fields out of the JSON of a whole object, and skips the rest of it.
    pub(crate) fn read(json: &[u8], selectable: &'static [&'static str]) -> Result<Self, serde_json::Error> {
        let paths: Vec<&str> =
            ALWAYS.iter().chain(["metadata.labels"].iter()).chain(selectable).copied().collect();
        let mut json = serde_json::Deserializer::from_slice(json);
        Ok(Self::of(&Only(&paths).deserialize(&mut json)?, selectable))
    }

    /// Reads the labels and the given fields out of a whole object.
    pub(crate) fn of(object: &Value, selectable: &'static [&'static str]) -> Self {
        let labels = object["metadata"]["labels"].as_object().map(|labels| {
            labels.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned())).collect()
        });
        let fields = ALWAYS.iter().chain(selectable).map(|path| (*path, field_text(object, path))).collect();
        Self { labels: labels.unwrap_or_default(), fields }
    }
}

/// Fields that every kind can be selected by.
const ALWAYS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Reads what lies at these paths, each of names with dots between, and nothing else. An empty path is the whole value.
struct Only<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Only<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        if self.0.contains(&"") { Value::deserialize(json) } else { json.deserialize_any(self) }
    }
}

/// The name of a field, and the paths of [`Only`] below it; nothing if there are none.
struct Name<'a>(&'a [&'a str]);

impl<'de, 'a> DeserializeSeed<'de> for Name<'a> {
    type Value = Option<(String, Vec<&'a str>)>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Name<'a> {
    type Value = Option<(String, Vec<&'a str>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        let below = |path: &&'a str| match path.strip_prefix(name)? {
            "" => Some(""),
            rest => rest.strip_prefix('.'),
        };
        let paths: Vec<_> = self.0.iter().filter_map(below).collect();
        Ok((!paths.is_empty()).then(|| (name.to_owned(), paths)))
    }
}

impl<'de> Visitor<'de> for Only<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut found = serde_json::Map::new();
        while let Some(wanted) = fields.next_key_seed(Name(self.0))? {
            match wanted {
                Some((name, paths)) => {
                    let value = fields.next_value_seed(Only(&paths))?;
                    found.insert(name, value);
                }
                None => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(found))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

fn field_text(object: &Value, path: &str) -> String {
    match path.split('.').try_fold(object, |at, part| at.get(part)) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Demand {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    Above(i64),
    Below(i64),
}

/// A label selector together with a field selector.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<(String, Demand)>,
    fields: Vec<(&'static str, Demand)>,
}

impl Selector {
    /// Parses both selectors; `selectable` are the fields of the kind beyond name and namespace.
    pub(crate) fn parse(
        labels: Option<&str>,
        fields: Option<&str>,
        selectable: &'static [&'static str],
    ) -> Result<Self, Refusal> {
        let labels = labels.unwrap_or_default();
        let labels = split(labels).into_iter().map(label_demand).collect::<Result<_, _>>()?;
        let fields = fields.unwrap_or_default().split(',').filter(|part| !part.trim().is_empty());
        let fields = fields.map(|part| field_demand(part, selectable)).collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    /// The selector of a request. A watch of one object is a watch of its collection by name.
    pub(crate) fn of(target: &Target, query: &Query) -> Result<Self, Refusal> {
        let fields = match (&target.name, &query.field_selector) {
            (Some(name), Some(fields)) => Some(format!("{fields},metadata.name={name}")),
            (Some(name), None) => Some(format!("metadata.name={name}")),
            (None, fields) => fields.clone(),
        };
        Self::parse(query.label_selector.as_deref(), fields.as_deref(), target.resource.kind.selectable)
    }

    /// Whether only objects are selected in which a field is this.
    pub(crate) fn wants(&self, path: &str, value: &str) -> bool {
        self.fields.iter().any(|(field, demand)| {
            *field == path && matches!(demand, Demand::In(values) if values.len() == 1 && values[0] == value)
        })
    }

    /// A field that must have one value, and that value.
    pub(crate) fn one(&self) -> Option<(&'static str, String)> {
        self.fields.iter().find_map(|(field, demand)| match demand {
            Demand::In(values) if values.len() == 1 => Some((*field, values[0].clone())),
            _ => None,
        })
    }

    /// A text that the JSON of all that is selected has in it.
    pub(crate) fn hint(&self) -> Option<Hint> {
        let labels = self.labels.iter().map(|(_, demand)| demand);
        let mut demands = self.fields.iter().map(|(_, demand)| demand).chain(labels);
        demands.find_map(|demand| match demand {
            Demand::In(values) if values.len() == 1 => Hint::of(&values[0]),
            _ => None,
        })
    }

    /// Whether everything matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object with these traits is selected.
    pub(crate) fn matches(&self, traits: &Traits) -> bool {
        self.labels.iter().all(|(key, demand)| demand.holds(traits.labels.get(key).map(String::as_str)))
            && self
                .fields
                .iter()
                .all(|(path, demand)| demand.holds(Some(traits.fields.get(path).map_or("", String::as_str))))
    }
}

/// What the JSON of an object must have in it to be selected: a kind is searched for it many times faster than it is read.
pub(crate) struct Hint(memmem::Finder<'static>);

impl Hint {
    /// The hint of a text that a field or label must be; none where what is no string might be shown so.
    fn of(text: &str) -> Option<Self> {
        let number = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
        let other = matches!(text, "true" | "false") || text.starts_with(['[', '{']);
        // Empty is what is not there.
        (!number && !other).then(|| Self(memmem::Finder::new(&format!("\"{text}\"")).into_owned()))
    }

    /// Whether an object may be selected. Without a backslash in it, each string of a JSON stands there as it is.
    pub(crate) fn may_be_in(&self, json: &[u8]) -> bool {
        self.0.find(json).is_some() || memchr(b'\\', json).is_some()
    }
}

impl Demand {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|text| text.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|text| values.iter().any(|v| v == text)),
            Self::NotIn(values) => value.is_none_or(|text| values.iter().all(|v| v != text)),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::Above(limit) => number().is_some_and(|n| n > *limit),
            Self::Below(limit) => number().is_some_and(|n| n < *limit),
        }
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn label_demand(part: &str) -> Result<(String, Demand), Refusal> {
    let bad = || Refusal::bad_request(format!("unable to parse label selector requirement {part:?}"));
    if let Some((key, values)) = part.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(bad)?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = key.split_whitespace();
        let (key, operator) = (words.next().ok_or_else(bad)?, words.next().ok_or_else(bad)?);
        let demand = match operator {
            "in" => Demand::In(values),
            "notin" => Demand::NotIn(values),
            _ => return Err(bad()),
        };
        return label(key, demand).ok_or_else(bad);
    }
    let demanded = if let Some((key, value)) = part.split_once("!=") {
        label(key, Demand::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        label(key, Demand::In(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = part.split_once('>') {
        value.trim().parse().ok().and_then(|limit| label(key, Demand::Above(limit)))
    } else if let Some((key, value)) = part.split_once('<') {
        value.trim().parse().ok().and_then(|limit| label(key, Demand::Below(limit)))
    } else if let Some(key) = part.strip_prefix('!') {
        label(key, Demand::Missing)
    } else {
        label(part, Demand::Exists)
    };
    demanded.ok_or_else(bad)
}

fn label(key: &str, demand: Demand) -> Option<(String, Demand)> {
    let key = key.trim();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!key.is_empty() && key.chars().all(allowed)).then(|| (key.to_owned(), demand))
}

fn field_demand(part: &str, selectable: &'static [&'static str]) -> Result<(&'static str, Demand), Refusal> {
    let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
        (path, value, false)
    } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (path, value, true)
    } else {
        return Err(Refusal::bad_request(format!("invalid selector: {part:?}; can't understand {part:?}")));
    };
    let path = path.trim();
    let always: &'static [&'static str] = &["metadata.name", "metadata.namespace"];
    let known = always.iter().chain(selectable).find(|known| **known == path);
    let known = known.ok_or_else(|| {
        Refusal::bad_request(format!("field label not supported: {path}; supported: {}", listing(selectable)))
    })?;
    let values = vec![unescaped(value)];
    Ok((known, if equal { Demand::In(values) } else { Demand::NotIn(values) }))
}

fn listing(selectable: &[&str]) -> String {
    ["metadata.name", "metadata.namespace"].iter().chain(selectable).copied().collect::<Vec<_>>().join(", ")
}

/// Takes back the escapes that clients put before `\`, `,` and `=`.
fn unescaped(value: &str) -> String {
    let mut plain = String::new();
    let mut chars = value.trim().chars();
    while let Some(c) = chars.next() {
        plain.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
    }
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Hint, Selector, Traits};

    const FIELDS: &[&str] = &["spec.nodeName"];

    fn matches(labels: Option<&str>, fields: Option<&str>) -> bool {
        let object = json!({
            "metadata": { "name": "a", "labels": { "app": "web", "tier": "3" } },
            "spec": {}
        });
        Selector::parse(labels, fields, FIELDS).unwrap().matches(&Traits::of(&object, FIELDS))
    }

    #[test]
    fn what_is_read_of_the_json_is_what_the_whole_object_says() {
        const FIELDS: &[&str] =
            &["spec.nodeName", "status", "reason", "spec.deep.text", "spec.list.x", "none.x"];
        let object = json!({
            "metadata": { "name": "a", "uid": "u", "labels": { "x.y/z": "1", "b": "\u{e9}" }, "namesake": { "name": 1 } },
            "spec": { "nodeName": "n\"1", "deep": { "text": 7.5, "other": [1, { "name": "z" }] }, "list": [1, "x"] },
            "status": { "phase": "Up", "list": [null, true, -1, 2] }, "reason": null, "none": false,
        });
        let whole = Traits::of(&object, FIELDS);
        assert_eq!(Traits::read(object.to_string().as_bytes(), FIELDS).unwrap(), whole);
        assert_eq!((whole.fields["spec.nodeName"].as_str(), whole.labels.len()), ("n\"1", 2));
        assert_eq!(Traits::read(b"[1, {}]", FIELDS).unwrap(), Traits::of(&Value::Null, FIELDS));
        assert!(Traits::read(b"{", FIELDS).is_err(), "what is damaged is not passed over");
    }

    #[test]
    fn label_selectors_follow_the_kubernetes_grammar() {
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=3", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (web, db),tier", true),
            ("app notin (web)", false),
            ("!other", true),
            ("other", false),
            ("tier>2", true),
            ("tier<3", false),
        ] {
            assert_eq!(matches(Some(selector), None), expected, "{selector}");
        }
        for bad in ["app in web", "a b", "app ~ (x)", "=x"] {
            assert!(Selector::parse(Some(bad), None, FIELDS).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_has_no_hint_in_it_is_not_selected() {
        const FIELDS: &[&str] = &["spec.x"];
        let texts = [
            "n1", "1", "-2.5e3", "7.50", "true", "false", "null", "", "[]", "[1]", "{}", "a b", "x\"y",
            "x\\y", "\u{e9}", "/", "1a", "e", "+",
        ];
        let strings = texts.map(|text| json!(text).to_string());
        let others =
            ["1", "1.0", "1E3", "-2.5e3", "7.50", "true", "false", "null", "[]", "[1]", "[ 1 ]", "{}", "{ }"];
        let escaped = [r#""\u006e1""#, r#""\/""#, r#""\u00e9""#].map(str::to_owned);
        let mut hinted = 0;
        for value in strings.into_iter().chain(others.map(str::to_owned)).chain(escaped) {
            let json = format!(r#"{{"metadata":{{"labels":{{"l":{value}}}}},"spec":{{"x":{value}}}}}"#);
            let traits = Traits::read(json.as_bytes(), FIELDS).unwrap();
            for text in
                texts.iter().copied().chain(["1000.0", "[1]", "1.0"]).filter(|text| !text.contains(','))
            {
                let hint = Hint::of(text);
                let (label, field) =
                    (super::Demand::In(vec![text.to_owned()]), super::Demand::In(vec![text.to_owned()]));
                for selector in [
                    Selector { labels: vec![("l".to_owned(), label)], fields: Vec::new() },
                    Selector { labels: Vec::new(), fields: vec![("spec.x", field)] },
                ] {
                    let may = hint.as_ref().is_none_or(|hint| hint.may_be_in(json.as_bytes()));
                    assert!(may || !selector.matches(&traits), "{text} in {json}");
                    hinted += usize::from(!may);
                }
            }
        }
        assert!(hinted > 100, "it is of use: {hinted}");
        let hint = |fields| Selector::parse(None, Some(fields), FIELDS).unwrap().hint().is_some();
        assert!(
            hint("spec.x=n1")
                && hint("spec.x!=n1,metadata.name=a")
                && !hint("spec.x!=n1")
                && !hint("spec.x=")
        );
    }

    #[test]
    fn a_missing_field_equals_the_empty_string_and_undeclared_fields_are_refused() {
        for (selector, expected) in [
            ("metadata.name=a", true),
            ("metadata.name==b", false),
            ("metadata.namespace=", true),
            ("spec.nodeName=", true),
            ("spec.nodeName!=n1", true),
            ("spec.nodeName=n1", false),
        ] {
            assert_eq!(matches(None, Some(selector)), expected, "{selector}");
        }
        let refusal = Selector::parse(None, Some("spec.size=1"), FIELDS).unwrap_err();
        assert_eq!(refusal.code, 400);
        assert!(refusal.message.contains("field label not supported: spec.size"), "{}", refusal.message);
    }
}
