//! Requests that the scripted plugin accepts, complete, for tests that care for one field.
use std::collections::BTreeMap;

use wharfline::csi::proto;
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};

/// A mounted volume in a mode.
pub fn capability(mode: Mode) -> proto::VolumeCapability {
    proto::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode as i32 }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: String::new(),
            mount_flags: Vec::new(),
            volume_mount_group: String::new(),
        })),
    }
}

/// A volume for one node.
pub fn create(name: &str) -> proto::CreateVolumeRequest {
    proto::CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(proto::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

/// The end of a volume.
pub fn delete(id: &str) -> proto::DeleteVolumeRequest {
    proto::DeleteVolumeRequest { volume_id: id.into(), secrets: BTreeMap::new() }
}

/// A snapshot of a volume.
pub fn snapshot(volume: &str, name: &str) -> proto::CreateSnapshotRequest {
    proto::CreateSnapshotRequest {
        source_volume_id: volume.into(),
        name: name.into(),
        secrets: BTreeMap::new(),
        parameters: BTreeMap::new(),
    }
}

/// The end of a snapshot.
pub fn delete_snapshot(id: &str) -> proto::DeleteSnapshotRequest {
    proto::DeleteSnapshotRequest { snapshot_id: id.into(), secrets: BTreeMap::new() }
}

/// A snapshot of each of these volumes.
pub fn group(volumes: &[&str], name: &str) -> proto::CreateVolumeGroupSnapshotRequest {
    proto::CreateVolumeGroupSnapshotRequest {
        name: name.into(),
        source_volume_ids: volumes.iter().map(|volume| (*volume).to_owned()).collect(),
        secrets: BTreeMap::new(),
        parameters: BTreeMap::new(),
    }
}

/// The end of a group snapshot.
pub fn delete_group(id: &str, members: &[&str]) -> proto::DeleteVolumeGroupSnapshotRequest {
    proto::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.into(),
        snapshot_ids: members.iter().map(|member| (*member).to_owned()).collect(),
        secrets: BTreeMap::new(),
    }
}

/// A look at a group snapshot.
pub fn get_group(id: &str, members: &[&str]) -> proto::GetVolumeGroupSnapshotRequest {
    proto::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.into(),
        snapshot_ids: members.iter().map(|member| (*member).to_owned()).collect(),
        secrets: BTreeMap::new(),
    }
}

/// What a snapshot holds.
pub fn allocated(snapshot: &str, from: i64) -> proto::GetMetadataAllocatedRequest {
    proto::GetMetadataAllocatedRequest {
        snapshot_id: snapshot.into(),
        starting_offset: from,
        ..Default::default()
    }
}

/// What differs between two snapshots.
pub fn delta(base: &str, target: &str, from: i64) -> proto::GetMetadataDeltaRequest {
    proto::GetMetadataDeltaRequest {
        base_snapshot_id: base.into(),
        target_snapshot_id: target.into(),
        starting_offset: from,
        ..Default::default()
    }
}

/// At least so many bytes.
pub fn at_least(bytes: i64) -> proto::CapacityRange {
    proto::CapacityRange { required_bytes: bytes, limit_bytes: 0 }
}

/// A volume on its way through a node: what later requests repeat of earlier answers.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// Handle.
    pub volume: String,
    /// What the plugin calls the node.
    pub node: String,
    /// From `CreateVolume`.
    pub volume_context: BTreeMap<String, String>,
    /// From `ControllerPublishVolume`.
    pub publish_context: BTreeMap<String, String>,
    /// The access mode.
    pub mode: i32,
    /// Where it is staged; empty if the plugin does not stage.
    pub staging: String,
    /// The secrets of every request that has them.
    pub secrets: BTreeMap<String, String>,
}

impl Way {
    /// A volume for one node, staged at `/staging`.
    pub fn new(volume: &str, node: &str) -> Self {
        Self {
            volume: volume.into(),
            node: node.into(),
            mode: Mode::SingleNodeWriter as i32,
            staging: "/staging".into(),
            ..Self::default()
        }
    }

    fn capability(&self) -> Option<proto::VolumeCapability> {
        Mode::try_from(self.mode).ok().map(capability)
    }

    /// `ControllerPublishVolume`
    pub fn attach(&self) -> proto::ControllerPublishVolumeRequest {
        proto::ControllerPublishVolumeRequest {
            volume_id: self.volume.clone(),
            node_id: self.node.clone(),
            volume_capability: self.capability(),
            readonly: false,
            secrets: self.secrets.clone(),
            volume_context: self.volume_context.clone(),
        }
    }

    /// `ControllerUnpublishVolume`
    pub fn detach(&self) -> proto::ControllerUnpublishVolumeRequest {
        proto::ControllerUnpublishVolumeRequest {
            volume_id: self.volume.clone(),
            node_id: self.node.clone(),
            secrets: self.secrets.clone(),
        }
    }

    /// `ValidateVolumeCapabilities`
    pub fn validate(&self) -> proto::ValidateVolumeCapabilitiesRequest {
        proto::ValidateVolumeCapabilitiesRequest {
            volume_id: self.volume.clone(),
            volume_context: self.volume_context.clone(),
            volume_capabilities: self.capability().into_iter().collect(),
            secrets: self.secrets.clone(),
            ..Default::default()
        }
    }

    /// `NodeStageVolume`
    pub fn stage(&self) -> proto::NodeStageVolumeRequest {
        proto::NodeStageVolumeRequest {
            volume_id: self.volume.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: self.staging.clone(),
            volume_capability: self.capability(),
            secrets: self.secrets.clone(),
            volume_context: self.volume_context.clone(),
        }
    }

    /// `NodeUnstageVolume`
    pub fn unstage(&self) -> proto::NodeUnstageVolumeRequest {
        proto::NodeUnstageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: self.staging.clone(),
        }
    }

    /// `NodePublishVolume`
    pub fn publish(&self, target: &str) -> proto::NodePublishVolumeRequest {
        proto::NodePublishVolumeRequest {
            volume_id: self.volume.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: self.staging.clone(),
            target_path: target.into(),
            volume_capability: self.capability(),
            readonly: false,
            secrets: self.secrets.clone(),
            volume_context: self.volume_context.clone(),
        }
    }

    /// `NodeUnpublishVolume`
    pub fn unpublish(&self, target: &str) -> proto::NodeUnpublishVolumeRequest {
        proto::NodeUnpublishVolumeRequest { volume_id: self.volume.clone(), target_path: target.into() }
    }

    /// `ControllerExpandVolume`
    pub fn expand(&self, bytes: i64) -> proto::ControllerExpandVolumeRequest {
        proto::ControllerExpandVolumeRequest {
            volume_id: self.volume.clone(),
            capacity_range: Some(at_least(bytes)),
            secrets: self.secrets.clone(),
            volume_capability: self.capability(),
        }
    }

    /// `NodeExpandVolume`
    pub fn node_expand(&self, path: &str, bytes: i64) -> proto::NodeExpandVolumeRequest {
        proto::NodeExpandVolumeRequest {
            volume_id: self.volume.clone(),
            volume_path: path.into(),
            capacity_range: Some(at_least(bytes)),
            staging_target_path: self.staging.clone(),
            volume_capability: self.capability(),
            secrets: self.secrets.clone(),
        }
    }

    /// `ControllerModifyVolume`
    pub fn modify(&self, key: &str, value: &str) -> proto::ControllerModifyVolumeRequest {
        proto::ControllerModifyVolumeRequest {
            volume_id: self.volume.clone(),
            secrets: self.secrets.clone(),
            mutable_parameters: BTreeMap::from([(key.to_owned(), value.to_owned())]),
        }
    }

    /// `ControllerGetVolume`
    pub fn get(&self) -> proto::ControllerGetVolumeRequest {
        proto::ControllerGetVolumeRequest { volume_id: self.volume.clone() }
    }

    /// `NodeGetVolumeStats`
    pub fn stats(&self, path: &str) -> proto::NodeGetVolumeStatsRequest {
        proto::NodeGetVolumeStatsRequest {
            volume_id: self.volume.clone(),
            volume_path: path.into(),
            staging_target_path: self.staging.clone(),
        }
    }
}
