//! Messages as they are on the wire, and lies about them.
//!
//! A lie changes the fields that it names and leaves every other byte as the driver sent it, those of fields that nobody
//! here knows as well.
use std::collections::BTreeMap;

use prost::encoding::{
    WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len,
};
use serde_json::{Map, Value};

use super::contract::{Contract, Field, Kind};
use super::fault::{Faults, Place};

/// A flag and the length stand before each message of gRPC.
const FRAME_HEADER: usize = 5;
/// The number of the key in an entry of any map.
const MAP_KEY: u32 = 1;

/// One field of a message.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) number: u32,
    /// All of it, its key included.
    whole: &'a [u8],
    /// What it holds, where it says how long that is.
    pub(super) bytes: Option<&'a [u8]>,
}

/// The fields of a message, in their order; none if it is no message.
pub(super) fn pieces(message: &[u8]) -> Option<Vec<Piece<'_>>> {
    let mut rest = message;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let begin = rest;
        let (number, kind) = decode_key(&mut rest).ok()?;
        let mut bytes = None;
        match kind {
            WireType::Varint => drop(decode_varint(&mut rest).ok()?),
            WireType::SixtyFourBit => rest = rest.get(8..)?,
            WireType::ThirtyTwoBit => rest = rest.get(4..)?,
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                bytes = Some(rest.get(..length)?);
                rest = rest.get(length..)?;
            }
            // Nobody uses them; what they are about is not looked at.
            WireType::StartGroup | WireType::EndGroup => return None,
        }
        pieces.push(Piece { number, whole: begin.get(..begin.len() - rest.len())?, bytes });
    }
    Some(pieces)
}

/// The first message of a body and what is behind it; none while it is not whole, or when it is compressed.
pub(super) fn first_message(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = body.get(1..FRAME_HEADER)?.try_into().map(u32::from_be_bytes).ok()?;
    let end = usize::try_from(length).ok()?.checked_add(FRAME_HEADER)?;
    let message = body.get(FRAME_HEADER..end)?;
    (body.first() == Some(&0)).then_some((message, body.get(end..)?))
}

/// A message as gRPC sends it.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(FRAME_HEADER + message.len());
    body.push(0);
    body.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    body.extend(message);
    body
}

/// What is told instead of what a message says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lie {
    fields: BTreeMap<u32, Told>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    /// This, keys included. Nothing for a field that is left out.
    This(Vec<u8>),
    /// The same with these changes.
    Changed(Lie),
}

impl Lie {
    /// The lie about a message that `values` describe; what is wrong with them goes to `faults`.
    pub(super) fn read(
        contract: &Contract,
        message: &str,
        values: &Map<String, Value>,
        place: &Place,
        faults: &mut Faults,
    ) -> Self {
        let known = contract.message(message);
        let mut lie = Self::default();
        for (name, value) in values {
            let place = place.field(name);
            match known.and_then(|known| known.fields.get(name)) {
                Some(field) => {
                    if let Some(told) = told(contract, field, value, &place, faults) {
                        lie.fields.insert(field.number, told);
                    }
                }
                None => {
                    let names =
                        known.map(|known| known.fields.keys().map(String::as_str).collect::<Vec<_>>());
                    let names = names.unwrap_or_default().join(", ");
                    let message = message.rsplit('.').next().unwrap_or(message);
                    faults.add(&place, format!("{message} has no such field; it has {names}"));
                }
            }
        }
        lie
    }

    /// The message with the lie in it; none if it is no message.
    pub(super) fn tell(&self, message: &[u8]) -> Option<Vec<u8>> {
        let pieces = pieces(message)?;
        let mut told = Vec::with_capacity(message.len());
        for piece in pieces.iter().filter(|piece| !self.fields.contains_key(&piece.number)) {
            told.extend_from_slice(piece.whole);
        }
        // Behind the others: of a oneof the last one counts.
        for (number, what) in &self.fields {
            match what {
                Told::This(bytes) => told.extend_from_slice(bytes),
                Told::Changed(lie) => {
                    // Of a message that comes in parts each adds to those before.
                    let parts = pieces.iter().filter(|piece| piece.number == *number);
                    let honest: Vec<u8> = parts.filter_map(|piece| piece.bytes).flatten().copied().collect();
                    delimited(*number, &lie.tell(&honest)?, &mut told);
                }
            }
        }
        Some(told)
    }
}

fn told(
    contract: &Contract,
    field: &Field,
    value: &Value,
    place: &Place,
    faults: &mut Faults,
) -> Option<Told> {
    if value.is_null() {
        return Some(Told::This(Vec::new()));
    }
    if let (Kind::Message(name), false, Value::Object(values)) = (&field.kind, field.repeated, value) {
        return Some(Told::Changed(Lie::read(contract, name, values, place, faults)));
    }
    let mut bytes = Vec::new();
    match (&field.kind, value) {
        (Kind::Map(entry), Value::Object(values)) => {
            let held = contract.message(entry).and_then(|entry| entry.fields.get("value"))?;
            for (key, value) in values {
                let mut pair = Vec::new();
                delimited(MAP_KEY, key.as_bytes(), &mut pair);
                one(contract, held, value, &place.field(key), faults, &mut pair)?;
                delimited(field.number, &pair, &mut bytes);
            }
        }
        (Kind::Map(_), _) => return faults.none(place, "write an object, or null to leave it out"),
        (_, Value::Array(values)) if field.repeated => {
            for (index, value) in values.iter().enumerate() {
                one(contract, field, value, &place.item(index), faults, &mut bytes)?;
            }
        }
        _ if field.repeated => return faults.none(place, "write a list, or null to leave it out"),
        _ => one(contract, field, value, place, faults, &mut bytes)?,
    }
    Some(Told::This(bytes))
}

/// A message of nothing but these values.
fn made(
    contract: &Contract,
    message: &str,
    values: &Map<String, Value>,
    place: &Place,
    faults: &mut Faults,
) -> Option<Vec<u8>> {
    Lie::read(contract, message, values, place, faults).tell(&[])
}

/// One value with its key.
fn one(
    contract: &Contract,
    field: &Field,
    value: &Value,
    place: &Place,
    faults: &mut Faults,
    out: &mut Vec<u8>,
) -> Option<()> {
    let number = field.number;
    match (&field.kind, value) {
        (Kind::Bool, Value::Bool(yes)) => varint(number, u64::from(*yes), out),
        (Kind::Bool, _) => return faults.none(place, "write true or false, or null to leave it out"),
        (Kind::Whole, Value::Number(n)) => {
            // A negative one is its two's complement, as protobuf has it.
            let bits = n.as_u64().or_else(|| n.as_i64().map(i64::cast_unsigned));
            let Some(bits) = bits else { return faults.none(place, "write a whole number") };
            varint(number, bits, out);
        }
        (Kind::Whole, _) => return faults.none(place, "write a whole number, or null to leave it out"),
        (Kind::Text, Value::String(text)) => delimited(number, text.as_bytes(), out),
        (Kind::Text, _) => return faults.none(place, "write a text in quotes, or null to leave it out"),
        (Kind::Choice(_), Value::Number(n)) if n.as_i64().is_some() => {
            varint(number, n.as_i64().unwrap_or_default().cast_unsigned(), out);
        }
        (Kind::Choice(names), value) => match value.as_str().and_then(|name| names.get(name)) {
            Some(value) => varint(number, i64::from(*value).cast_unsigned(), out),
            None => {
                let names = names.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                return faults.none(place, &format!("write a number or one of {names}"));
            }
        },
        (Kind::Message(name), Value::Object(values)) => {
            delimited(number, &made(contract, name, values, place, faults)?, out);
        }
        // Scalars that can be absent, such as `ready` of Probe, are messages with one field.
        (Kind::Message(name), value) if name.starts_with("google.protobuf.") && name.ends_with("Value") => {
            let inner = contract.message(name).and_then(|message| message.fields.get("value"))?;
            let mut bytes = Vec::new();
            one(contract, inner, value, place, faults, &mut bytes)?;
            delimited(number, &bytes, out);
        }
        (Kind::Message(_), _) => return faults.none(place, "write an object, or null to leave it out"),
        (Kind::Map(_) | Kind::Other, _) => return faults.none(place, "a field of this type cannot be set"),
    }
    Some(())
}

fn varint(number: u32, bits: u64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    encode_varint(bits, out);
}

fn delimited(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(key_len(number) + encoded_len_varint(bytes.len() as u64) + bytes.len());
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use serde_json::json;

    use super::*;
    use crate::csi::proto;

    fn lie(message: &str, values: Value) -> Result<Lie, Vec<String>> {
        let mut faults = Faults::default();
        let Value::Object(values) = values else { panic!("an object") };
        let contract = Contract::read().unwrap();
        let lie = Lie::read(&contract, message, &values, &Place::root().field("lie"), &mut faults);
        let found = faults.into_lines();
        if found.is_empty() { Ok(lie) } else { Err(found) }
    }

    fn volume() -> proto::CreateVolumeResponse {
        let volume = proto::Volume {
            capacity_bytes: 5,
            volume_id: "honest".into(),
            volume_context: [("pool".into(), "p".into())].into(),
            ..Default::default()
        };
        proto::CreateVolumeResponse { volume: Some(volume) }
    }

    #[test]
    fn a_lie_changes_what_it_names_and_nothing_else() {
        let told = |values: Value| {
            let bytes = lie("csi.v1.CreateVolumeResponse", values).unwrap().tell(&volume().encode_to_vec());
            proto::CreateVolumeResponse::decode(bytes.unwrap().as_slice()).unwrap().volume
        };
        let honest = volume().volume.unwrap();
        let other = proto::Volume { volume_id: "other".into(), ..honest.clone() };
        assert_eq!(told(json!({ "volume": { "volume_id": "other" } })), Some(other));
        let context = proto::Volume { volume_context: [("x".into(), "y".into())].into(), ..honest.clone() };
        assert_eq!(told(json!({ "volume": { "volume_context": { "x": "y" } } })), Some(context));
        let less = proto::Volume { capacity_bytes: -1, volume_context: [].into(), ..honest.clone() };
        let values = json!({ "volume": { "capacity_bytes": -1, "volume_context": null } });
        assert_eq!(told(values), Some(less));
        assert_eq!(told(json!({ "volume": null })), None);
        let segments = [("zone".to_owned(), "z".to_owned())].into();
        let accessible_topology = vec![proto::Topology { segments }];
        let values = json!({ "volume": { "accessible_topology": [{ "segments": { "zone": "z" } }] } });
        assert_eq!(told(values), Some(proto::Volume { accessible_topology, ..honest }));
    }

    #[test]
    fn what_can_be_absent_is_told_false_by_a_plain_value() {
        for ready in [false, true] {
            let lie = lie("csi.v1.ProbeResponse", json!({ "ready": ready })).unwrap();
            for honest in [Some(true), None] {
                let told = lie.tell(&proto::ProbeResponse { ready: honest }.encode_to_vec()).unwrap();
                assert_eq!(proto::ProbeResponse::decode(told.as_slice()).unwrap().ready, Some(ready));
            }
        }
    }

    #[test]
    fn names_of_an_enum_and_lists_of_messages() {
        use proto::node_service_capability::{Rpc, Type, rpc};
        let values =
            json!({ "capabilities": [{ "rpc": { "type": "EXPAND_VOLUME" } }, { "rpc": { "type": 99 } }] });
        let told = lie("csi.v1.NodeGetCapabilitiesResponse", values).unwrap().tell(&[]).unwrap();
        let told = proto::NodeGetCapabilitiesResponse::decode(told.as_slice()).unwrap();
        let of = |number| proto::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: number })) };
        assert_eq!(told.capabilities, [of(rpc::Type::ExpandVolume.into()), of(99)]);
    }

    #[test]
    fn what_cannot_be_told_is_said_with_its_place() {
        for (values, fault) in [
            (json!({ "volum": null }), "lie.volum: CreateVolumeResponse has no such field; it has volume"),
            (json!({ "volume": 1 }), "lie.volume: write an object"),
            (json!({ "volume": { "volume_id": 1 } }), "lie.volume.volume_id: write a text"),
            (
                json!({ "volume": { "capacity_bytes": "1" } }),
                "lie.volume.capacity_bytes: write a whole number",
            ),
            (
                json!({ "volume": { "capacity_bytes": 1.5 } }),
                "lie.volume.capacity_bytes: write a whole number",
            ),
            (json!({ "volume": { "volume_context": [] } }), "lie.volume.volume_context: write an object"),
            (
                json!({ "volume": { "volume_context": { "a": 1 } } }),
                "lie.volume.volume_context.a: write a text",
            ),
            (
                json!({ "volume": { "accessible_topology": {} } }),
                "lie.volume.accessible_topology: write a list",
            ),
            (
                json!({ "volume": { "accessible_topology": [{ "segment": 1 }] } }),
                "lie.volume.accessible_topology[0].segment: Topology has no such field; it has segments",
            ),
        ] {
            let found = lie("csi.v1.CreateVolumeResponse", values.clone()).unwrap_err();
            assert!(found.len() == 1 && found[0].starts_with(fault), "{values}: {found:?}");
        }
        let found = lie("csi.v1.ProbeResponse", json!({ "ready": "no" })).unwrap_err();
        assert!(found[0].starts_with("lie.ready: write true or false"), "{found:?}");
    }

    #[test]
    fn bytes_that_are_no_message_are_left_alone() {
        let lie = lie("csi.v1.ProbeResponse", json!({ "ready": false })).unwrap();
        assert_eq!(lie.tell(&[0xff, 0xff]), None);
        assert_eq!(first_message(&[0, 0, 0, 0]), None);
        assert_eq!(first_message(&[0, 0, 0, 0, 2, 7]), None, "not whole");
        assert_eq!(first_message(&[1, 0, 0, 0, 1, 7]), None, "compressed");
        assert_eq!(first_message(&[0, 0, 0, 0, 1, 7, 8]), Some((&[7][..], &[8][..])));
        assert_eq!(first_message(&framed(b"ab")), Some((&b"ab"[..], &b""[..])));
    }
}
