//! Request bodies in Kubernetes' protobuf, for the few kinds that kubectl creates by typed clients: namespaces, secrets,
//! configmaps, nodes, the reviews, and the options of a deletion. They are decoded to JSON and go on as JSON; nothing is
//! ever encoded. A field that is not declared here is skipped, as every protobuf reader does.
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::status::Refusal;

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Reads a body into the JSON of its object.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, Refusal> {
    let bad = |why: String| Refusal::bad_request(format!("the body is not Kubernetes protobuf: {why}"));
    let envelope =
        bytes.strip_prefix(MAGIC).ok_or_else(|| bad("it does not begin with \"k8s\\0\"".to_owned()))?;
    let envelope = Unknown::decode(envelope).map_err(|e| bad(format!("the envelope: {e}")))?;
    if !envelope.encoding.is_empty() {
        let message = format!("bodies encoded as {} are not taken", envelope.encoding);
        return Err(Refusal::unsupported_media_type(message));
    }
    let Kind { api_version, kind } = envelope.kind.unwrap_or_default();
    let decode = match (api_version.as_str(), kind.as_str()) {
        ("v1", "Namespace") => json_of::<Namespace>,
        ("v1", "Secret") => json_of::<Secret>,
        ("v1", "ConfigMap") => json_of::<ConfigMap>,
        ("v1", "Node") => json_of::<Node>,
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => json_of::<AccessReview>,
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => json_of::<RulesReview>,
        ("authentication.k8s.io/v1", "SelfSubjectReview") => json_of::<SubjectReview>,
        (_, "DeleteOptions") => json_of::<DeleteOptions>,
        _ => {
            let message = format!(
                "{kind} in version \"{api_version}\" is not taken as protobuf; send application/json"
            );
            return Err(Refusal::unsupported_media_type(message));
        }
    };
    let mut object = decode(&envelope.raw).map_err(|why| bad(format!("{kind}: {why}")))?;
    object.insert("apiVersion".to_owned(), Value::from(api_version));
    object.insert("kind".to_owned(), Value::from(kind));
    Ok(Value::Object(object))
}

fn json_of<M: Message + Default + Serialize>(raw: &[u8]) -> Result<Map<String, Value>, String> {
    let message = M::decode(raw).map_err(|e| e.to_string())?;
    match serde_json::to_value(&message).map_err(|e| e.to_string())? {
        Value::Object(fields) => Ok(fields),
        other => Err(format!("it became {other}")),
    }
}

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    kind: Option<Kind>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
    #[prost(string, tag = "3")]
    encoding: String,
}

#[derive(Clone, PartialEq, Message)]
struct Kind {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// Declares messages that become JSON with the names of their fields in camel case and without what is empty: Go writes
/// every plain field, empty or not.
macro_rules! messages {
    ($($name:ident { $($(#[$how:meta])* $field:ident: $type:ty = $skip:literal),* $(,)? })*) => {$(
        #[derive(Clone, PartialEq, Message, Serialize)]
        #[serde(rename_all = "camelCase")]
        struct $name {
            $($(#[$how])* #[serde(skip_serializing_if = $skip)] $field: $type,)*
        }
    )*};
}

messages! {
    ObjectMeta {
        #[prost(string, tag = "1")] name: String = "String::is_empty",
        #[prost(string, tag = "2")] generate_name: String = "String::is_empty",
        #[prost(string, tag = "3")] namespace: String = "String::is_empty",
        #[prost(string, tag = "5")] uid: String = "String::is_empty",
        #[prost(string, tag = "6")] resource_version: String = "String::is_empty",
        #[prost(int64, tag = "7")] generation: i64 = "is_zero",
        #[prost(message, optional, tag = "8")] #[serde(serialize_with = "time")]
        creation_timestamp: Option<Time> = "is_no_time",
        #[prost(message, optional, tag = "9")] #[serde(serialize_with = "time")]
        deletion_timestamp: Option<Time> = "is_no_time",
        #[prost(int64, optional, tag = "10")] deletion_grace_period_seconds: Option<i64> = "Option::is_none",
        #[prost(btree_map = "string, string", tag = "11")] labels: BTreeMap<String, String> = "BTreeMap::is_empty",
        #[prost(btree_map = "string, string", tag = "12")] annotations: BTreeMap<String, String> = "BTreeMap::is_empty",
        #[prost(message, repeated, tag = "13")] owner_references: Vec<Owner> = "Vec::is_empty",
        #[prost(string, repeated, tag = "14")] finalizers: Vec<String> = "Vec::is_empty",
    }
    Owner {
        #[prost(string, tag = "5")] api_version: String = "String::is_empty",
        #[prost(string, tag = "1")] kind: String = "String::is_empty",
        #[prost(string, tag = "3")] name: String = "String::is_empty",
        #[prost(string, tag = "4")] uid: String = "String::is_empty",
        #[prost(bool, optional, tag = "6")] controller: Option<bool> = "Option::is_none",
        #[prost(bool, optional, tag = "7")] block_owner_deletion: Option<bool> = "Option::is_none",
    }
    Namespace {
        #[prost(message, optional, tag = "1")] metadata: Option<ObjectMeta> = "Option::is_none",
        #[prost(message, optional, tag = "2")] spec: Option<NamespaceSpec> = "Option::is_none",
    }
    NamespaceSpec {
        #[prost(string, repeated, tag = "1")] finalizers: Vec<String> = "Vec::is_empty",
    }
    Secret {
        #[prost(message, optional, tag = "1")] metadata: Option<ObjectMeta> = "Option::is_none",
        #[prost(btree_map = "string, bytes", tag = "2")] #[serde(serialize_with = "base64")]
        data: BTreeMap<String, Vec<u8>> = "BTreeMap::is_empty",
        #[prost(string, tag = "3")] r#type: String = "String::is_empty",
        #[prost(btree_map = "string, string", tag = "4")] string_data: BTreeMap<String, String> = "BTreeMap::is_empty",
        #[prost(bool, optional, tag = "5")] immutable: Option<bool> = "Option::is_none",
    }
    ConfigMap {
        #[prost(message, optional, tag = "1")] metadata: Option<ObjectMeta> = "Option::is_none",
        #[prost(btree_map = "string, string", tag = "2")] data: BTreeMap<String, String> = "BTreeMap::is_empty",
        #[prost(btree_map = "string, bytes", tag = "3")] #[serde(serialize_with = "base64")]
        binary_data: BTreeMap<String, Vec<u8>> = "BTreeMap::is_empty",
        #[prost(bool, optional, tag = "4")] immutable: Option<bool> = "Option::is_none",
    }
    Node {
        #[prost(message, optional, tag = "1")] metadata: Option<ObjectMeta> = "Option::is_none",
        #[prost(message, optional, tag = "2")] spec: Option<NodeSpec> = "Option::is_none",
    }
    NodeSpec {
        #[prost(string, tag = "1")] #[serde(rename = "podCIDR")] pod_cidr: String = "String::is_empty",
        #[prost(string, tag = "3")] #[serde(rename = "providerID")] provider_id: String = "String::is_empty",
        #[prost(bool, tag = "4")] unschedulable: bool = "is_false",
        #[prost(message, repeated, tag = "5")] taints: Vec<Taint> = "Vec::is_empty",
        #[prost(string, repeated, tag = "7")] #[serde(rename = "podCIDRs")] pod_cidrs: Vec<String> = "Vec::is_empty",
    }
    Taint {
        #[prost(string, tag = "1")] key: String = "String::is_empty",
        #[prost(string, tag = "2")] value: String = "String::is_empty",
        #[prost(string, tag = "3")] effect: String = "String::is_empty",
        #[prost(message, optional, tag = "4")] #[serde(serialize_with = "time")]
        time_added: Option<Time> = "is_no_time",
    }
    AccessReview {
        #[prost(message, optional, tag = "1")] metadata: Option<ObjectMeta> = "Option::is_none",
        #[prost(message, optional, tag = "2")] spec: Option<AccessSpec> = "Option::is_none",
    }
    AccessSpec {
        #[prost(message, optional, tag = "1")] resource_attributes: Option<OfResource> = "Option::is_none",
        #[prost(message, optional, tag = "2")] non_resource_attributes: Option<OfPath> = "Option::is_none",
    }
    OfResource {
        #[prost(string, tag = "1")] namespace: String = "String::is_empty",
        #[prost(string, tag = "2")] verb: String = "String::is_empty",
        #[prost(string, tag = "3")] group: String = "String::is_empty",
        #[prost(string, tag = "4")] version: String = "String::is_empty",
        #[prost(string, tag = "5")] resource: String = "String::is_empty",
        #[prost(string, tag = "6")] subresource: String = "String::is_empty",
        #[prost(string, tag = "7")] name: String = "String::is_empty",
    }
    OfPath {
        #[prost(string, tag = "1")] path: String = "String::is_empty",
        #[prost(string, tag = "2")] verb: String = "String::is_empty",
    }
    RulesReview {
        #[prost(message, optional, tag = "1")] metadata: Option<ObjectMeta> = "Option::is_none",
        #[prost(message, optional, tag = "2")] spec: Option<RulesSpec> = "Option::is_none",
    }
    RulesSpec {
        #[prost(string, tag = "1")] namespace: String = "String::is_empty",
    }
    SubjectReview {
        #[prost(message, optional, tag = "1")] metadata: Option<ObjectMeta> = "Option::is_none",
    }
    DeleteOptions {
        #[prost(int64, optional, tag = "1")] grace_period_seconds: Option<i64> = "Option::is_none",
        #[prost(message, optional, tag = "2")] preconditions: Option<Preconditions> = "Option::is_none",
        #[prost(bool, optional, tag = "3")] orphan_dependents: Option<bool> = "Option::is_none",
        #[prost(string, optional, tag = "4")] propagation_policy: Option<String> = "Option::is_none",
        #[prost(string, repeated, tag = "5")] dry_run: Vec<String> = "Vec::is_empty",
    }
    Preconditions {
        #[prost(string, optional, tag = "1")] uid: Option<String> = "Option::is_none",
        #[prost(string, optional, tag = "2")] resource_version: Option<String> = "Option::is_none",
    }
}

/// A point in time; an empty one is Go's zero time, which is none.
#[derive(Clone, Copy, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[allow(clippy::ref_option, reason = "the signature is serde's")]
fn is_no_time(time: &Option<Time>) -> bool {
    time.is_none_or(|time| time.seconds == 0 && time.nanos == 0)
}

#[allow(clippy::ref_option, reason = "the signature is serde's")]
fn time<S: Serializer>(time: &Option<Time>, out: S) -> Result<S::Ok, S::Error> {
    let seconds = time.map_or(0, |time| time.seconds);
    let time = jiff::Timestamp::from_second(seconds).map_err(serde::ser::Error::custom)?;
    out.serialize_str(&super::admission::seconds(time))
}

fn base64<S: Serializer>(data: &BTreeMap<String, Vec<u8>>, out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(data.iter().map(|(key, value)| (key, STANDARD.encode(value))))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(flag: &bool) -> bool {
    !flag
}
