//! All calls of the contract: their names, their paths, and what each request is about.
//!
//! Decides nothing. Every call is one line in each of the two tables here and one method in `calls`.
use std::collections::BTreeMap;
use std::fmt;

use super::proto;
use super::turns::{Key, Manner};

macro_rules! rpcs {
    ($($service:ident { $($rpc:ident),* $(,)? })*) => {
        /// A service of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Service {
            $(#[doc = concat!("`", stringify!($service), "`")] $service,)*
        }

        /// One CSI call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rpc {
            $($(#[doc = concat!("`", stringify!($service), ".", stringify!($rpc), "`")] $rpc,)*)*
        }

        impl Rpc {
            /// Every call of the contract; [`Plugin`](super::Plugin) has a method for each.
            pub const ALL: &'static [Self] = &[$($(Self::$rpc,)*)*];

            /// The name as CSI writes it.
            pub fn name(self) -> &'static str {
                match self { $($(Self::$rpc => stringify!($rpc),)*)* }
            }

            /// The service that it belongs to.
            pub fn service(self) -> Service {
                match self { $($(Self::$rpc => Service::$service,)*)* }
            }

            /// The HTTP/2 path.
            pub(crate) fn path(self) -> &'static str {
                match self {
                    $($(Self::$rpc => concat!("/csi.v1.", stringify!($service), "/", stringify!($rpc)),)*)*
                }
            }
        }
    };
}

rpcs! {
    Identity { GetPluginInfo, GetPluginCapabilities, Probe }
    Controller {
        CreateVolume, DeleteVolume, ControllerPublishVolume, ControllerUnpublishVolume,
        ValidateVolumeCapabilities, ListVolumes, GetCapacity, ControllerGetCapabilities,
        CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot,
        ControllerExpandVolume, ControllerGetVolume, ControllerModifyVolume,
    }
    GroupController {
        GroupControllerGetCapabilities, CreateVolumeGroupSnapshot, DeleteVolumeGroupSnapshot,
        GetVolumeGroupSnapshot,
    }
    SnapshotMetadata { GetMetadataAllocated, GetMetadataDelta }
    Node {
        NodeStageVolume, NodeUnstageVolume, NodePublishVolume, NodeUnpublishVolume,
        NodeGetVolumeStats, NodeExpandVolume, NodeGetCapabilities, NodeGetInfo,
    }
}

impl Rpc {
    /// Whether it takes down what another call has made.
    pub fn undoes(self) -> bool {
        matches!(
            self,
            Self::DeleteVolume
                | Self::ControllerUnpublishVolume
                | Self::NodeUnstageVolume
                | Self::NodeUnpublishVolume
                | Self::DeleteSnapshot
                | Self::DeleteVolumeGroupSnapshot
        )
    }

    /// Whether it is answered by a stream.
    pub fn streams(self) -> bool {
        self.service() == Service::SnapshotMetadata
    }

    /// Whether the contract calls it alpha: it may vanish, and is sent only where that was switched on.
    pub fn is_alpha(self) -> bool {
        matches!(self, Self::GetSnapshot | Self::ControllerGetVolume)
            || self.service() == Service::SnapshotMetadata
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request, as the wire knows it.
pub(crate) trait Question: prost::Message + 'static {
    /// Which call this is.
    const RPC: Rpc;
    /// How it waits for others that are about the same.
    const MANNER: Manner = Manner::Alone;

    /// What it is about, if calls about the same thing must wait for one another. What records call it by comes first.
    fn keys(&self) -> Vec<Key> {
        Vec::new()
    }

    /// Its secrets, so that an answer which repeats one can be cleaned.
    fn secrets(&self) -> Option<&BTreeMap<String, String>> {
        None
    }
}

/// A request with one reply.
pub(crate) trait Unary: Question {
    /// What the plugin answers.
    type Reply: prost::Message + Default + 'static;
}

/// A request whose answer is a stream of parts.
pub(crate) trait Streamed: Question {
    /// One part of the answer.
    type Part: prost::Message + Default + 'static;
}

macro_rules! questions {
    ($answers:ident($answer:ident) {
        $($rpc:ident($request:ident) -> $reply:ident $(+ $secrets:ident)? $(, $manner:ident [
            $($key:ident: $field:ident),* $(; each $each:ident: $many:ident)?
        ])?;)*
    }) => {
        $(impl Question for proto::$request {
            const RPC: Rpc = Rpc::$rpc;
            $(const MANNER: Manner = Manner::$manner;

            fn keys(&self) -> Vec<Key> {
                #[allow(unused_mut)] // most are about one thing
                let mut keys = vec![$(Key::$key(self.$field.clone())),*];
                $(keys.extend(self.$many.iter().cloned().map(Key::$each));)?
                keys
            })?

            $(fn secrets(&self) -> Option<&BTreeMap<String, String>> {
                Some(&self.$secrets)
            })?
        }

        impl $answers for proto::$request {
            type $answer = proto::$reply;
        })*
    };
}

// What only reads takes its turn if it is free. It must not hold up those who have to get somewhere.
questions! { Unary(Reply) {
    GetPluginInfo(GetPluginInfoRequest) -> GetPluginInfoResponse;
    GetPluginCapabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
    CreateVolume(CreateVolumeRequest) -> CreateVolumeResponse + secrets, Alone [Name: name];
    DeleteVolume(DeleteVolumeRequest) -> DeleteVolumeResponse + secrets, Alone [Volume: volume_id];
    ControllerPublishVolume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse + secrets,
        Alone [Volume: volume_id];
    ControllerUnpublishVolume(ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse + secrets,
        Alone [Volume: volume_id];
    ValidateVolumeCapabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse + secrets,
        Alone [Volume: volume_id];
    ListVolumes(ListVolumesRequest) -> ListVolumesResponse;
    GetCapacity(GetCapacityRequest) -> GetCapacityResponse;
    ControllerGetCapabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse;
    CreateSnapshot(CreateSnapshotRequest) -> CreateSnapshotResponse + secrets,
        Alone [Volume: source_volume_id, SnapshotName: name];
    DeleteSnapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse + secrets, Alone [Snapshot: snapshot_id];
    ListSnapshots(ListSnapshotsRequest) -> ListSnapshotsResponse + secrets;
    GetSnapshot(GetSnapshotRequest) -> GetSnapshotResponse + secrets, IfFree [Snapshot: snapshot_id];
    ControllerExpandVolume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse + secrets,
        Alone [Volume: volume_id];
    ControllerGetVolume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse, IfFree [Volume: volume_id];
    ControllerModifyVolume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse + secrets,
        Alone [Volume: volume_id];
    GroupControllerGetCapabilities(GroupControllerGetCapabilitiesRequest) -> GroupControllerGetCapabilitiesResponse;
    CreateVolumeGroupSnapshot(CreateVolumeGroupSnapshotRequest) -> CreateVolumeGroupSnapshotResponse + secrets,
        Alone [GroupName: name; each Volume: source_volume_ids];
    DeleteVolumeGroupSnapshot(DeleteVolumeGroupSnapshotRequest) -> DeleteVolumeGroupSnapshotResponse + secrets,
        Alone [Group: group_snapshot_id; each Snapshot: snapshot_ids];
    GetVolumeGroupSnapshot(GetVolumeGroupSnapshotRequest) -> GetVolumeGroupSnapshotResponse + secrets,
        IfFree [Group: group_snapshot_id];
    NodeStageVolume(NodeStageVolumeRequest) -> NodeStageVolumeResponse + secrets, Alone [Volume: volume_id];
    NodeUnstageVolume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse, Alone [Volume: volume_id];
    NodePublishVolume(NodePublishVolumeRequest) -> NodePublishVolumeResponse + secrets, Alone [Volume: volume_id];
    NodeUnpublishVolume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse, Alone [Volume: volume_id];
    NodeGetVolumeStats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse, IfFree [Volume: volume_id];
    NodeExpandVolume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse + secrets, Alone [Volume: volume_id];
    NodeGetCapabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
    NodeGetInfo(NodeGetInfoRequest) -> NodeGetInfoResponse;
} }

// A stream goes on for minutes: it holds off the deletion of its snapshots, and nothing else.
questions! { Streamed(Part) {
    GetMetadataAllocated(GetMetadataAllocatedRequest) -> GetMetadataAllocatedResponse + secrets,
        Beside [Snapshot: snapshot_id];
    GetMetadataDelta(GetMetadataDeltaRequest) -> GetMetadataDeltaResponse + secrets,
        Beside [Snapshot: base_snapshot_id, Snapshot: target_snapshot_id];
} }

impl Question for proto::ProbeRequest {
    const RPC: Rpc = Rpc::Probe;

    fn keys(&self) -> Vec<Key> {
        vec![Key::Readiness]
    }
}

impl Unary for proto::ProbeRequest {
    type Reply = proto::ProbeResponse;
}
