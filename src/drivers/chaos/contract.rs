//! What the contract has: its calls, their messages and the fields of these, read off the compiled descriptor.
use std::collections::{BTreeMap, HashMap};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::csi::proto::FILE_DESCRIPTOR_SET;

/// The package whose services are calls of CSI.
const PACKAGE: &str = "csi.v1";
/// The fields of a request that say what it is about. What stands first is what a call is told by.
const SUBJECTS: [&str; 9] = [
    "name",
    "volume_id",
    "snapshot_id",
    "group_snapshot_id",
    "source_volume_id",
    "base_snapshot_id",
    "target_snapshot_id",
    "source_volume_ids",
    "snapshot_ids",
];

/// All calls and messages.
#[derive(Debug, Default)]
pub(super) struct Contract {
    /// By path without its leading slash, such as `csi.v1.Controller/CreateVolume`.
    methods: BTreeMap<String, Method>,
    messages: HashMap<String, Message>,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Method {
    /// The name without its service.
    pub(super) name: String,
    /// Full name of what is answered.
    pub(super) output: String,
    /// The answer comes as a stream.
    pub(super) streams: bool,
    /// Numbers of the request's fields that say what it is about, in the order in which they are looked at.
    subjects: Vec<u32>,
}

impl Method {
    /// The ids and names that a request is about.
    pub(super) fn subjects(&self, request: &[u8]) -> Vec<String> {
        let Some(pieces) = super::wire::pieces(request) else { return Vec::new() };
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        let of = |number: u32| {
            pieces.iter().filter(move |piece| piece.number == number).filter_map(|piece| text(piece.bytes?))
        };
        self.subjects.iter().copied().flat_map(of).filter(|text| !text.is_empty()).collect()
    }
}

/// One message.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// By name.
    pub(super) fields: BTreeMap<String, Field>,
}

/// One field.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) number: u32,
    pub(super) kind: Kind,
    /// It is a list, or a map.
    pub(super) repeated: bool,
}

/// What a field holds.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Bool,
    /// Any integer that is a plain varint, signed or not.
    Whole,
    Text,
    /// Names and numbers.
    Choice(BTreeMap<String, i32>),
    /// Another message, by full name.
    Message(String),
    /// Entries with a text as key; the full name of the entry's message.
    Map(String),
    /// What CSI does not use.
    Other,
}

impl Contract {
    /// The contract that this program was built with.
    ///
    /// # Errors
    /// Never, as long as the build wrote what it compiled.
    pub(super) fn read() -> Result<Self, prost::DecodeError> {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET)?;
        let mut gathered = Gathered::default();
        for file in &set.file {
            for message in &file.message_type {
                gathered.message(file.package(), message);
            }
            for choice in &file.enum_type {
                gathered.choice(file.package(), choice);
            }
        }
        let messages = gathered.messages();
        let mut methods = BTreeMap::new();
        for file in set.file.iter().filter(|file| file.package() == PACKAGE) {
            for service in &file.service {
                for method in &service.method {
                    let input = messages.get(method.input_type().trim_start_matches('.'));
                    let subject = |name: &&str| Some(input?.fields.get(*name)?.number);
                    let known = Method {
                        name: method.name().to_owned(),
                        output: method.output_type().trim_start_matches('.').to_owned(),
                        streams: method.server_streaming(),
                        subjects: SUBJECTS.iter().filter_map(subject).collect(),
                    };
                    methods.insert(format!("{PACKAGE}.{}/{}", service.name(), method.name()), known);
                }
            }
        }
        Ok(Self { methods, messages })
    }

    /// The call at this path, without its leading slash.
    pub(super) fn method(&self, path: &str) -> Option<&Method> {
        self.methods.get(path)
    }

    /// Every call, with its path.
    pub(super) fn methods(&self) -> impl Iterator<Item = (&str, &Method)> {
        self.methods.iter().map(|(path, method)| (path.as_str(), method))
    }

    /// The message of this full name.
    pub(super) fn message(&self, name: &str) -> Option<&Message> {
        self.messages.get(name)
    }
}

/// Everything by full name, before the fields are told apart: a field may be of what comes later in the file.
#[derive(Default)]
struct Gathered<'a> {
    messages: Vec<(String, &'a DescriptorProto)>,
    choices: HashMap<String, BTreeMap<String, i32>>,
}

impl<'a> Gathered<'a> {
    fn message(&mut self, scope: &str, message: &'a DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        for nested in &message.nested_type {
            self.message(&name, nested);
        }
        for choice in &message.enum_type {
            self.choice(&name, choice);
        }
        self.messages.push((name, message));
    }

    fn choice(&mut self, scope: &str, choice: &EnumDescriptorProto) {
        let values = choice.value.iter().map(|value| (value.name().to_owned(), value.number()));
        self.choices.insert(format!("{scope}.{}", choice.name()), values.collect());
    }

    fn messages(&self) -> HashMap<String, Message> {
        let maps =
            self.messages.iter().filter(|(_, message)| is_entry(message)).map(|(name, _)| name.as_str());
        let maps = maps.collect::<std::collections::HashSet<_>>();
        let field = |field: &FieldDescriptorProto| {
            let of = field.type_name().trim_start_matches('.');
            let kind = match field.r#type() {
                Type::Bool => Kind::Bool,
                Type::Int32 | Type::Int64 | Type::Uint32 | Type::Uint64 => Kind::Whole,
                Type::String => Kind::Text,
                Type::Enum => Kind::Choice(self.choices.get(of).cloned().unwrap_or_default()),
                Type::Message if maps.contains(of) => Kind::Map(of.to_owned()),
                Type::Message => Kind::Message(of.to_owned()),
                Type::Double
                | Type::Float
                | Type::Fixed64
                | Type::Fixed32
                | Type::Group
                | Type::Bytes
                | Type::Sfixed32
                | Type::Sfixed64
                | Type::Sint32
                | Type::Sint64 => Kind::Other,
            };
            let number = u32::try_from(field.number()).unwrap_or(0);
            Field { number, kind, repeated: field.label() == Label::Repeated }
        };
        let message = |(name, message): &(String, &DescriptorProto)| {
            let fields = message.field.iter().map(|one| (one.name().to_owned(), field(one))).collect();
            (name.clone(), Message { fields })
        };
        self.messages.iter().map(message).collect()
    }
}

/// Whether it stands for the entries of a map.
fn is_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::proto;

    #[test]
    fn every_call_is_known_by_its_path() {
        let contract = Contract::read().unwrap();
        assert_eq!(contract.methods().count(), 32);
        let create = contract.method("csi.v1.Controller/CreateVolume").unwrap();
        assert_eq!(
            (create.name.as_str(), create.output.as_str()),
            ("CreateVolume", "csi.v1.CreateVolumeResponse")
        );
        let streams: Vec<_> =
            contract.methods().filter(|(_, m)| m.streams).map(|(_, m)| m.name.as_str()).collect();
        assert_eq!(streams, ["GetMetadataAllocated", "GetMetadataDelta"]);
        assert!(contract.method("csi.v1.Controller/NoSuchCall").is_none());
        let volume = contract.message("csi.v1.Volume").unwrap();
        assert!(matches!(volume.fields["volume_context"].kind, Kind::Map(_)));
        assert!(matches!(volume.fields["capacity_bytes"].kind, Kind::Whole));
    }

    #[test]
    fn a_request_says_what_it_is_about() {
        let contract = Contract::read().unwrap();
        let about = |path: &str, request: Vec<u8>| contract.method(path).unwrap().subjects(&request);
        let create = proto::CreateVolumeRequest {
            name: "pvc-1".into(),
            secrets: [("key".into(), "hidden".into())].into(),
            ..Default::default()
        };
        assert_eq!(about("csi.v1.Controller/CreateVolume", create.encode_to_vec()), ["pvc-1"]);
        let snapshot = proto::CreateSnapshotRequest {
            source_volume_id: "v".into(),
            name: "s".into(),
            ..Default::default()
        };
        assert_eq!(about("csi.v1.Controller/CreateSnapshot", snapshot.encode_to_vec()), ["s", "v"]);
        let group = proto::CreateVolumeGroupSnapshotRequest {
            name: "g".into(),
            source_volume_ids: vec!["a".into(), "b".into()],
            ..Default::default()
        };
        let path = "csi.v1.GroupController/CreateVolumeGroupSnapshot";
        assert_eq!(about(path, group.encode_to_vec()), ["g", "a", "b"]);
        assert!(about("csi.v1.Identity/Probe", Vec::new()).is_empty());
        assert!(about("csi.v1.Controller/CreateVolume", vec![0xff]).is_empty(), "no message");
    }
}
