//! A structural schema, read once: every write is held against it, and nothing is looked up by keyword then.
use std::collections::BTreeMap;

use serde_json::Value;

/// What a schema says of one value.
#[derive(Debug, Default)]
pub(crate) struct Rule {
    pub(super) kind: Kind,
    /// Null is as good as any value.
    pub(super) nullable: bool,
    /// The only values that are allowed.
    pub(super) allowed: Option<Vec<Value>>,
    pub(super) properties: BTreeMap<String, Rule>,
    /// The properties that get a value when they have none.
    pub(super) defaults: Vec<(String, Value)>,
    pub(super) required: Vec<String>,
    pub(super) extra: Extra,
    /// Fields that nobody declared are kept.
    pub(super) open: bool,
    pub(super) items: Option<Box<Rule>>,
    /// What tells the items of a list apart.
    pub(super) apart: Apart,
    /// A struct or map that is written as a whole.
    pub(super) atomic: bool,
    /// How many properties, items or characters there are, at least and at most.
    pub(super) size: (Option<u64>, Option<u64>),
    pub(super) low: Option<Bound>,
    pub(super) high: Option<Bound>,
    pub(super) format: Option<String>,
    pub(super) all_of: Vec<Rule>,
    pub(super) any_of: Vec<Rule>,
    pub(super) one_of: Vec<Rule>,
    pub(super) not: Option<Box<Rule>>,
    /// The names that a union offers: what each branch requires.
    pub(super) offers: String,
}

/// The type of a value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Any,
    Object,
    Array,
    String,
    Boolean,
    Integer,
    Number,
    IntOrString,
}

/// What may be beside the declared properties.
#[derive(Debug, Default)]
pub(super) enum Extra {
    #[default]
    Nothing,
    Anything,
    Of(Box<Rule>),
}

/// What tells the items of a list apart.
#[derive(Debug, Default)]
pub(crate) enum Apart {
    /// Nothing: the list is one piece.
    #[default]
    Nothing,
    /// Their values: the list is a set.
    Themselves,
    /// The values of these fields.
    Keys(Vec<String>),
}

/// One end of a range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) limit: f64,
    /// The limit itself is outside.
    pub(super) strict: bool,
}

impl Rule {
    /// Reads a schema. What it does not know (CEL rules, merge hints) says nothing here.
    pub(crate) fn read(schema: &Value) -> Self {
        let is = |key: &str| schema[key] == Value::Bool(true);
        let inner = |key: &str| schema.get(key).filter(|inner| inner.is_object()).map(Self::read);
        let branches = |key: &str| schema[key].as_array().into_iter().flatten().map(Self::read).collect();
        let bound = |limit: &str, strict: &str| {
            schema[limit].as_f64().map(|limit| Bound { limit, strict: is(strict) })
        };
        let properties = || schema["properties"].as_object().into_iter().flatten();
        let default = |(name, of): (&String, &Value)| Some((name.clone(), of.get("default")?.clone()));
        let kind = Kind::read(schema);
        let (least, most) = match kind {
            Kind::Object => ("minProperties", "maxProperties"),
            Kind::Array => ("minItems", "maxItems"),
            Kind::Any | Kind::String | Kind::Boolean | Kind::Integer | Kind::Number | Kind::IntOrString => {
                ("minLength", "maxLength")
            }
        };
        Self {
            kind,
            nullable: is("nullable"),
            allowed: schema["enum"].as_array().cloned(),
            properties: properties().map(|(name, of)| (name.clone(), Self::read(of))).collect(),
            defaults: properties().filter_map(default).collect(),
            required: words(&schema["required"]),
            extra: match schema.get("additionalProperties") {
                None | Some(Value::Bool(false)) => Extra::Nothing,
                Some(of) if of.is_object() => Extra::Of(Box::new(Self::read(of))),
                Some(_) => Extra::Anything,
            },
            open: is("x-kubernetes-preserve-unknown-fields"),
            items: inner("items").map(Box::new),
            apart: match words(&schema["x-kubernetes-list-map-keys"]) {
                keys if !keys.is_empty() => Apart::Keys(keys),
                _ if schema["x-kubernetes-list-type"] == "set" || is("uniqueItems") => Apart::Themselves,
                _ => Apart::Nothing,
            },
            atomic: schema["x-kubernetes-map-type"] == "atomic",
            size: (schema[least].as_u64(), schema[most].as_u64()),
            low: bound("minimum", "exclusiveMinimum"),
            high: bound("maximum", "exclusiveMaximum"),
            format: schema["format"].as_str().map(str::to_owned),
            all_of: branches("allOf"),
            any_of: branches("anyOf"),
            one_of: branches("oneOf"),
            not: inner("not").map(Box::new),
            offers: offers(schema),
        }
    }

    /// The rule of a declared property.
    pub(crate) fn property(&self, name: &str) -> Option<&Self> {
        self.properties.get(name)
    }

    /// The rule of the items of a list.
    pub(crate) fn items(&self) -> Option<&Self> {
        self.items.as_deref()
    }

    /// What tells the items of a list apart.
    pub(crate) fn apart(&self) -> &Apart {
        &self.apart
    }

    /// Whether a struct or map is written as a whole.
    pub(crate) fn is_atomic(&self) -> bool {
        self.atomic
    }

    /// What a property gets when it has no value.
    pub(crate) fn default_of(&self, name: &str) -> Option<&Value> {
        self.defaults.iter().find(|(known, _)| known == name).map(|(_, default)| default)
    }
}

impl Kind {
    fn read(schema: &Value) -> Self {
        if schema["x-kubernetes-int-or-string"] == Value::Bool(true) {
            return Self::IntOrString;
        }
        match schema["type"].as_str() {
            Some("object") => Self::Object,
            Some("array") => Self::Array,
            Some("string") => Self::String,
            Some("boolean") => Self::Boolean,
            Some("integer") => Self::Integer,
            Some("number") => Self::Number,
            Some(_) | None => Self::Any,
        }
    }

    pub(super) fn fits(&self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Object => value.is_object(),
            Self::Array => value.is_array(),
            Self::String => value.is_string(),
            Self::Boolean => value.is_boolean(),
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::IntOrString => value.is_string() || value.is_i64() || value.is_u64(),
        }
    }

    /// As messages say it.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::IntOrString => "integer or string",
        }
    }
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn offers(schema: &Value) -> String {
    let branches = [&schema["oneOf"], &schema["anyOf"]].into_iter().filter_map(Value::as_array).flatten();
    let names = branches.map(|branch| words(&branch["required"]).join(" with "));
    names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
}
