//! What a volume is made from: a snapshot, or another volume.
use serde::{Deserialize, Serialize};

use super::{Size, VolumeId, invalid};
use crate::csi::proto;
use crate::csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use crate::drivers::refusal::Refusal;

const FIELD: &str = "volume_content_source";

/// What a volume is made from. The names are in records on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::drivers) enum Source {
    /// What a snapshot kept.
    Snapshot(VolumeId),
    /// What is in a volume now.
    Volume(VolumeId),
}

impl Source {
    /// As the answer repeats it.
    pub(in crate::drivers) fn wire(&self) -> proto::VolumeContentSource {
        let kind = match self {
            Self::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.as_str().to_owned() }),
            Self::Volume(id) => Type::Volume(VolumeSource { volume_id: id.as_str().to_owned() }),
        };
        proto::VolumeContentSource { r#type: Some(kind) }
    }

    /// That there is no such thing.
    pub(in crate::drivers) fn missing(&self) -> Refusal {
        match self {
            Self::Snapshot(id) => Refusal::NoSnapshot { snapshot: id.as_str().to_owned() },
            Self::Volume(id) => Refusal::NoVolume { volume: id.as_str().to_owned() },
        }
    }
}

/// Reads what a volume is to be made from. An id that cannot be one of this driver names nothing that exists.
pub(in crate::drivers) fn source(
    asked: Option<&proto::VolumeContentSource>,
) -> Result<Option<Source>, Refusal> {
    let Some(asked) = asked else { return Ok(None) };
    match &asked.r#type {
        None => Err(invalid(FIELD, "names neither a snapshot nor a volume")),
        Some(Type::Snapshot(snapshot)) if snapshot.snapshot_id.is_empty() => {
            Err(invalid(FIELD, "has no snapshot_id"))
        }
        Some(Type::Volume(volume)) if volume.volume_id.is_empty() => Err(invalid(FIELD, "has no volume_id")),
        Some(Type::Snapshot(snapshot)) => match VolumeId::parse(&snapshot.snapshot_id) {
            Some(id) => Ok(Some(Source::Snapshot(id))),
            None => Err(Refusal::NoSnapshot { snapshot: snapshot.snapshot_id.clone() }),
        },
        Some(Type::Volume(volume)) => match VolumeId::parse(&volume.volume_id) {
            Some(id) => Ok(Some(Source::Volume(id))),
            None => Err(Refusal::NoVolume { volume: volume.volume_id.clone() }),
        },
    }
}

/// The size of a volume that holds what is in a source of `bytes`: no smaller one.
pub(in crate::drivers) fn size_from(size: Size, bytes: u64) -> Result<Size, Refusal> {
    match size.limit {
        Some(limit) if limit < bytes => Err(Refusal::SourceTooLarge { source_bytes: bytes, limit }),
        Some(_) | None => Ok(Size { required: size.required.max(bytes), ..size }),
    }
}

/// The size that a volume is to grow to.
pub(in crate::drivers) fn growth(range: Option<&proto::CapacityRange>) -> Result<Size, Refusal> {
    match range {
        None => Err(invalid("capacity_range", "is missing")),
        Some(_) => super::size(range),
    }
}

/// Whether a volume of `capacity` bytes has to grow for this; none when it is that large already.
pub(in crate::drivers) fn grown(
    volume: &VolumeId,
    size: Size,
    capacity: u64,
) -> Result<Option<u64>, Refusal> {
    let out = |asked| Refusal::OutOfReach { volume: volume.as_str().to_owned(), capacity, asked };
    match size.limit {
        Some(limit) if limit < capacity => {
            Err(out(format!("at most {limit} are asked for, and volumes do not shrink")))
        }
        Some(_) | None => Ok((size.required > capacity).then_some(size.required)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123";

    #[test]
    fn a_source_is_one_thing_with_an_id() {
        let id = VolumeId::parse(ID).unwrap();
        let snapshot = |id: &str| Type::Snapshot(SnapshotSource { snapshot_id: id.into() });
        let volume = |id: &str| Type::Volume(VolumeSource { volume_id: id.into() });
        let ask = |kind| source(Some(&proto::VolumeContentSource { r#type: kind }));
        assert_eq!(source(None).unwrap(), None);
        for (kind, read) in
            [(snapshot(ID), Source::Snapshot(id.clone())), (volume(ID), Source::Volume(id.clone()))]
        {
            assert_eq!(ask(Some(kind.clone())).unwrap(), Some(read.clone()));
            assert_eq!(read.wire().r#type, Some(kind));
        }
        for malformed in [None, Some(snapshot("")), Some(volume(""))] {
            assert!(matches!(ask(malformed), Err(Refusal::Invalid { field: FIELD, .. })));
        }
        assert!(matches!(ask(Some(snapshot("../x"))), Err(Refusal::NoSnapshot { .. })));
        assert!(matches!(ask(Some(volume("../x"))), Err(Refusal::NoVolume { .. })));
    }

    #[test]
    fn sizes_from_a_source_and_to_grow_to() {
        let size = |required, limit: u64| Size { required, limit: (limit > 0).then_some(limit) };
        assert_eq!(size_from(size(0, 0), 7).unwrap(), size(7, 0));
        assert_eq!(size_from(size(9, 20), 7).unwrap(), size(9, 20));
        assert_eq!(size_from(size(0, 7), 7).unwrap(), size(7, 7));
        assert!(matches!(
            size_from(size(0, 6), 7),
            Err(Refusal::SourceTooLarge { source_bytes: 7, limit: 6 })
        ));
        let id = VolumeId::parse(ID).unwrap();
        assert_eq!(grown(&id, size(8, 0), 7).unwrap(), Some(8));
        for same in [size(7, 7), size(0, 9), size(3, 0)] {
            assert_eq!(grown(&id, same, 7).unwrap(), None);
        }
        assert!(matches!(grown(&id, size(0, 6), 7), Err(Refusal::OutOfReach { .. })));
        assert!(matches!(growth(None), Err(Refusal::Invalid { field: "capacity_range", .. })));
    }
}
