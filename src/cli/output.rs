//! The forms of `-o`: how objects that are no table are printed.
use std::io::Write;

use serde_json::{Value, json};

use super::failure::Failure;
use super::jsonpath::{Template, as_text};
use super::kinds::{Resource, nearest};
use super::manifest;
use super::table::clean;

/// A form of output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    /// The server's table, wide or not.
    Table { wide: bool },
    /// JSON, indented.
    Json,
    /// YAML.
    Yaml,
    /// `kind.group/name`.
    Name,
    /// A template.
    JsonPath(Template),
    /// Headings and a template each.
    Columns(Vec<(String, Template)>),
}

const FORMS: [&str; 6] = ["wide", "json", "yaml", "name", "jsonpath", "custom-columns"];

impl Output {
    /// Reads the value of `-o`.
    pub(crate) fn parse(form: Option<&str>) -> Result<Self, Failure> {
        let (word, rest) = match form {
            Some(form) => form.split_once('=').map_or((form, None), |(word, rest)| (word, Some(rest))),
            None => return Ok(Self::Table { wide: false }),
        };
        let template = |text: &str| Template::parse(text).map_err(|e| Failure::usage(e.to_string()));
        match (word, rest) {
            ("" | "wide" | "json" | "yaml" | "name", None) => Ok(match word {
                "json" => Self::Json,
                "yaml" => Self::Yaml,
                "name" => Self::Name,
                word => Self::Table { wide: word == "wide" },
            }),
            ("jsonpath", Some(text)) => Ok(Self::JsonPath(template(text)?)),
            ("custom-columns", Some(text)) => {
                let columns = text.split(',').map(|column| {
                    let malformed = || {
                        Failure::usage(format!("the column \"{column}\" has no path"))
                            .try_this("write HEADING:.path")
                    };
                    let (heading, path) = column.split_once(':').ok_or_else(malformed)?;
                    Ok((heading.to_owned(), template(path)?))
                });
                Ok(Self::Columns(columns.collect::<Result<_, Failure>>()?))
            }
            ("jsonpath" | "custom-columns", None) => {
                Err(Failure::usage(format!("-o {word} needs a value")).try_this(format!("write -o {word}=…")))
            }
            _ => {
                let failure = Failure::usage(format!("-o {word} is not known"));
                let advice = nearest(word, FORMS.into_iter()).map_or_else(
                    || format!("one of {}", FORMS.join(", ")),
                    |near| format!("did you mean -o {near}?"),
                );
                Err(failure.try_this(advice))
            }
        }
    }

    /// Only the forms that make sense after a change: one object as it is now, or its name.
    pub(crate) fn of_change(form: Option<&str>) -> Result<Self, Failure> {
        let output = Self::parse(form)?;
        match (&output, form) {
            (Self::Table { .. }, Some(_)) | (Self::Columns(_), _) => {
                Err(Failure::usage("-o takes json, yaml, name or jsonpath here"))
            }
            _ => Ok(output),
        }
    }

    /// Whether the server should render a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Table { .. })
    }

    /// Prints one object or a `List` of them; `label` names an object for [`Output::Name`].
    pub(crate) fn print(
        &self,
        out: &mut dyn Write,
        value: &Value,
        label: &dyn Fn(&Value) -> String,
    ) -> Result<(), Failure> {
        let items: Vec<&Value> = match value["items"].as_array() {
            Some(items) if value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => {
                items.iter().collect()
            }
            _ => vec![value],
        };
        match self {
            Self::Table { .. } => {}
            Self::Json => writeln!(out, "{value:#}")?,
            Self::Yaml => out.write_all(manifest::to_yaml(value).as_bytes())?,
            Self::Name => {
                for item in items {
                    writeln!(out, "{}", label(item))?;
                }
            }
            Self::JsonPath(template) => {
                let text = template.render(value);
                out.write_all(text.as_bytes())?;
                // kubectl leaves the line open, which only a script wants; a template ends its own lines.
                if !text.ends_with('\n') && std::io::IsTerminal::is_terminal(&std::io::stdout()) {
                    writeln!(out)?;
                }
            }
            Self::Columns(columns) => {
                let headings: Vec<&str> = columns.iter().map(|(heading, _)| heading.as_str()).collect();
                let cell = |item: &Value, template: &Template| {
                    let found: Vec<String> = template.find(item).into_iter().map(as_text).collect();
                    if found.is_empty() { "<none>".to_owned() } else { clean(&found.join(",")) }
                };
                let rows: Vec<Vec<String>> = items
                    .iter()
                    .map(|item| columns.iter().map(|(_, path)| cell(item, path)).collect())
                    .collect();
                super::table::print(out, &headings, &rows)?;
            }
        }
        Ok(())
    }
}

/// The object as a person wants to see it: without the bookkeeping of field owners.
pub(crate) fn tidy(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// Objects as one `List`.
pub(crate) fn list_of(items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items, "metadata": { "resourceVersion": "" } })
}

/// The object with the kind that items of a list may leave out.
pub(crate) fn with_kind(mut object: Value, resource: &Resource) -> Value {
    if object.is_object() && object.get("kind").is_none() {
        object["apiVersion"] = json!(resource.api_version());
        object["kind"] = json!(resource.kind);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(form: &str, value: &Value) -> String {
        let mut out = Vec::new();
        let label = |item: &Value| format!("k/{}", item["metadata"]["name"].as_str().unwrap_or_default());
        Output::parse(Some(form)).unwrap().print(&mut out, value, &label).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn forms_are_printed() {
        let one = json!({ "metadata": { "name": "a" }, "size": 1 });
        let list = list_of(&[one.clone(), json!({ "metadata": { "name": "b" } })]);
        assert_eq!(printed("name", &one), "k/a\n");
        assert_eq!(printed("name", &list), "k/a\nk/b\n");
        assert_eq!(printed("yaml", &one), "metadata:\n  name: a\nsize: 1\n");
        assert_eq!(printed("json", &json!({"a": 1})), "{\n  \"a\": 1\n}\n");
        assert_eq!(printed("jsonpath={.items[*].metadata.name}{'\\n'}", &list), "a b\n");
        assert_eq!(
            printed("custom-columns=NAME:.metadata.name,N:.size", &list),
            "NAME   N\na      1\nb      <none>\n"
        );
    }

    #[test]
    fn unknown_forms_are_refused_with_advice() {
        for (form, what) in [
            ("yml", "-o yml is not known"),
            ("jsonpath", "-o jsonpath needs a value"),
            ("custom-columns=A", "the column \"A\" has no path"),
        ] {
            let failure = Output::parse(Some(form)).unwrap_err();
            assert_eq!((failure.what.as_str(), failure.exit), (what, super::super::failure::Exit::Usage));
            assert!(failure.advice.is_some(), "{form}");
        }
        assert!(Output::of_change(Some("wide")).is_err());
    }
}
