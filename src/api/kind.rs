//! One kind as data: what the server needs to know to serve it.
use serde_json::Value;

use super::field::FieldError;

/// How a cell of a table is computed from the whole object.
#[derive(Clone, Copy)]
pub enum Cell {
    /// A Kubernetes JSONPath such as `.spec.nodeName`, as in a CRD's printer columns.
    Path(&'static str),
    /// A function of the whole object, for what no JSONPath can say; the path is what `crds/` carries instead.
    Computed(&'static str, fn(&Value) -> Value),
}

/// One printer column. NAME comes first and AGE last by themselves and are not listed.
#[derive(Clone, Copy)]
pub struct Column {
    /// The heading in upper case, such as `PROVIDER`.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub kind: &'static str,
    /// Shown only with `-o wide` (priority 1) when true.
    pub wide: bool,
    /// How the value is found.
    pub cell: Cell,
}

/// What node daemons may do with objects of a kind: read some, and write parts of their status.
#[derive(Clone, Copy, Debug)]
pub struct NodeRight {
    /// The field that must name the node, such as `spec.nodeName`; none: every node may read the object.
    pub by: Option<&'static str>,
    /// Whether the node may list and watch what it may read; a list must ask for the field that names it.
    pub lists: bool,
    /// The fields of the status that the node writes.
    pub writes: &'static [&'static str],
}

impl NodeRight {
    /// Of objects in which this field names the node: the node reads them and writes these fields of their status.
    pub const fn of(by: &'static str, writes: &'static [&'static str]) -> Self {
        Self { by: Some(by), lists: true, writes }
    }

    /// Every node reads all of them.
    pub const EVERY_NODE: Self = Self { by: None, lists: true, writes: &[] };

    /// Every node reads one whose name it knows.
    pub const BY_NAME: Self = Self { by: None, lists: false, writes: &[] };
}

/// One kind as data. Adding a kind adds one of these; the server has no code per kind of ours.
#[derive(Clone)]
pub struct KindDefinition {
    /// API group, empty for core.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Kind in camel case.
    pub kind: &'static str,
    /// Plural resource name in lower case.
    pub plural: &'static str,
    /// Singular name in lower case.
    pub singular: &'static str,
    /// Short names, such as `vc`.
    pub short_names: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Whether the kind has a status subresource.
    pub has_status: bool,
    /// Structural `openAPIV3Schema` of the whole object.
    pub schema: Value,
    /// Printer columns between NAME and AGE.
    pub columns: &'static [Column],
    /// Field selectors beyond `metadata.name` and `metadata.namespace`, as dotted paths such as `spec.nodeName`.
    pub selectable: &'static [&'static str],
    /// What nodes may do; nothing when empty.
    pub nodes: &'static [NodeRight],
    /// The finalizer set at admission, if the kind has one.
    pub finalizer: Option<&'static str>,
    /// Fills defaults that the schema cannot express; runs before validation on create and update of the main resource.
    pub default: fn(&mut Value),
    /// Adds to a change of the main resource what is to be known of it later, given the stored object; runs before validation.
    pub amend: fn(old: &Value, new: &mut Value),
    /// Lists every fault of the new object, given the stored one on update. Runs after schema validation.
    pub validate: fn(new: &Value, old: Option<&Value>) -> Vec<FieldError>,
    /// The field of a new object, if it has one, that only who may do everything may set: it reaches beyond the namespace.
    pub reserved: fn(new: &Value) -> Option<&'static str>,
    /// Why a write of the status comes too late to count, if it does: its writer is no longer the one who speaks of it.
    pub late: fn(new: &Value, old: &Value) -> Option<String>,
    /// Whether the status of an object says that it is to go: then its deletion begins with the write that says so. Only what has
    /// a finalizer may say that.
    pub goes: fn(object: &Value) -> bool,
    /// Whether the status of an object that is being deleted says that nothing of it is left: then its finalizer goes with the
    /// write that says so, and nobody has to write that once more. Where more than the object decides, never.
    pub over: fn(object: &Value) -> bool,
}

impl KindDefinition {
    /// `group/version`, or the version alone for core.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}
