//! Volumes that are there while they are published: NodePublishVolume makes them, NodeUnpublishVolume removes them with all
//! that is in them.
//!
//! Their ids are the caller's, so each has a directory by the hash of its own. They are no volumes to the controller: nobody
//! lists, clones or deletes them.
use std::collections::BTreeMap;

use super::volumes::{Record, Volumes, is_unused};
use super::{Backing, publish};
use crate::drivers::record::Publication;
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{self, Size, TargetPath, VolumeId};

/// By this key of a volume context, with the value `true`, Kubernetes and others say that a volume is such a one.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// The one attribute: so many bytes, such as `1Gi`.
const SIZE: &str = "size";

/// What a volume of this kind is asked for with; none if the request is about one that was created.
pub(super) fn asked(context: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let ephemeral = context.get(EPHEMERAL).is_some_and(|value| value == "true");
    let own = |(key, _): &(&String, &String)| !request::is_foreign(key);
    ephemeral.then(|| context.iter().filter(own).map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Makes the volume, unless it is there, and publishes it. The same request again is success.
pub(super) fn publish<B: Backing>(
    volumes: &Volumes<B>,
    handle: &str,
    attributes: &BTreeMap<String, String>,
    publication: &Publication,
) -> Result<(), Refusal> {
    if VolumeId::parse(handle).is_some() {
        let problem = "is as that of a volume that is created; an ephemeral one has another".to_owned();
        return Err(Refusal::Invalid { field: "volume_id", problem });
    }
    let size = size(attributes)?;
    let id = id(volumes, handle);
    match volumes.ephemeral.find(&id)? {
        Some(known) => same(&known, handle, attributes)?,
        None => make(volumes, Record::new(id.clone(), handle, B::capacity(size)?, attributes.clone()))?,
    }
    publish::publish(&volumes.ephemeral, (&id, handle), publication)
}

/// Takes the volume away from `target`, and once it is nowhere else removes it. One that is not there is success.
pub(super) fn unpublish<B: Backing>(
    volumes: &Volumes<B>,
    handle: &str,
    target: &TargetPath,
) -> Result<(), Refusal> {
    let id = id(volumes, handle);
    publish::unpublish(&volumes.ephemeral, &id, target)?;
    match volumes.ephemeral.delete(&id, is_unused) {
        // It is published elsewhere: the last one removes it.
        Err(Refusal::InUse { .. }) => Ok(()),
        other => other,
    }
}

/// The directory of the volume that a caller knows by this handle.
pub(super) fn id<B: Backing>(volumes: &Volumes<B>, handle: &str) -> VolumeId {
    volumes.id(&format!("ephemeral/{handle}"))
}

fn make<B: Backing>(volumes: &Volumes<B>, record: Record) -> Result<(), Refusal> {
    // One at a time, or two would be promised the same bytes.
    let persistent = volumes.homes.lock_all()?;
    let all = volumes.ephemeral.lock_all()?;
    let room = volumes.room_beside([&persistent, &all])?;
    if record.capacity > room.available {
        return Err(volumes.no_room(record.capacity, room));
    }
    let capacity = record.capacity;
    let draft = all.begin(record)?;
    B::make(&draft.home, capacity).map_err(Refusal::failed("make the data of", &draft.path()))?;
    draft.place_in(&all).map(drop)
}

fn same(known: &Record, handle: &str, attributes: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if known.parameters == *attributes {
        return Ok(());
    }
    Err(Refusal::NameTaken { kind: "volume", name: handle.to_owned(), what: "volume_context" })
}

fn size(attributes: &BTreeMap<String, String>) -> Result<Size, Refusal> {
    const FIELD: &str = "volume_context";
    let invalid = |problem| Refusal::Invalid { field: FIELD, problem };
    if let Some(key) = attributes.keys().find(|key| *key != SIZE) {
        return Err(invalid(format!("{key:?} is not known; this driver knows {SIZE}")));
    }
    let Some(text) = attributes.get(SIZE) else { return Ok(Size::default()) };
    let required = bytes(text).ok_or_else(|| {
        invalid(format!("{SIZE} {text:?} is no number of bytes, such as 1048576, 512Mi or 1Gi"))
    })?;
    Ok(Size { required, limit: None })
}

fn bytes(text: &str) -> Option<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];
    let unit = units.into_iter().find_map(|(unit, power)| Some((text.strip_suffix(unit)?, power)));
    let (number, power) = unit.unwrap_or((text, 0));
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(1 << power).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn sizes() {
        for (text, wanted) in [
            ("1", Some(1)),
            ("1Ki", Some(1 << 10)),
            ("3Mi", Some(3 << 20)),
            ("1Gi", Some(1 << 30)),
            ("2Ti", Some(2 << 40)),
            ("", None),
            ("Gi", None),
            ("0", None),
            ("-1", None),
            ("+1", None),
            ("1G", None),
            ("1.5Gi", None),
            ("18446744073709551615Ti", None),
        ] {
            assert_eq!(bytes(text), wanted, "{text}");
        }
    }

    #[test]
    fn only_what_says_so_is_ephemeral_and_what_others_add_is_none_of_its_attributes() {
        assert_eq!(asked(&map(&[("size", "1Gi")])), None);
        assert_eq!(asked(&map(&[(EPHEMERAL, "false"), ("size", "1Gi")])), None);
        let all = map(&[(EPHEMERAL, "true"), ("csi.storage.k8s.io/pod.name", "app"), ("size", "1Gi")]);
        assert_eq!(asked(&all), Some(map(&[("size", "1Gi")])));
        assert!(size(&map(&[("tier", "gold")])).is_err());
        assert_eq!(size(&map(&[])).unwrap(), Size::default());
    }
}
