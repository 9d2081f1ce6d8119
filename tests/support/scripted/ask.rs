//! A request as the plugin got it.
use prost::Message;
use wharfline::csi::{Rpc, proto};

macro_rules! asks {
    ($($rpc:ident($request:ident) $($field:ident)?;)*) => {
        /// One decoded request.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Ask {
            $($rpc(proto::$request),)*
        }

        impl Ask {
            /// Decodes the request of `rpc`.
            pub fn decode(rpc: Rpc, bytes: &[u8]) -> Result<Self, prost::DecodeError> {
                match rpc {
                    $(Rpc::$rpc => proto::$request::decode(bytes).map(Self::$rpc),)*
                }
            }

            /// The request as it travels.
            pub fn encode(&self) -> Vec<u8> {
                match self {
                    $(Self::$rpc(request) => request.encode_to_vec(),)*
                }
            }

            /// Which call it is.
            pub fn rpc(&self) -> Rpc {
                match self {
                    $(Self::$rpc(_) => Rpc::$rpc,)*
                }
            }

            /// Handle of the volume that it is about, or the name for `CreateVolume`.
            pub fn volume(&self) -> Option<&str> {
                match self {
                    $(Self::$rpc(_request) => asks!(@volume _request $($field)?),)*
                }
            }
        }
    };
    (@volume $request:ident) => { None };
    (@volume $request:ident $field:ident) => { Some(&$request.$field) };
}

asks! {
    GetPluginInfo(GetPluginInfoRequest);
    GetPluginCapabilities(GetPluginCapabilitiesRequest);
    Probe(ProbeRequest);
    CreateVolume(CreateVolumeRequest) name;
    DeleteVolume(DeleteVolumeRequest) volume_id;
    ControllerPublishVolume(ControllerPublishVolumeRequest) volume_id;
    ControllerUnpublishVolume(ControllerUnpublishVolumeRequest) volume_id;
    ValidateVolumeCapabilities(ValidateVolumeCapabilitiesRequest) volume_id;
    ListVolumes(ListVolumesRequest);
    GetCapacity(GetCapacityRequest);
    ControllerGetCapabilities(ControllerGetCapabilitiesRequest);
    CreateSnapshot(CreateSnapshotRequest) source_volume_id;
    DeleteSnapshot(DeleteSnapshotRequest);
    ListSnapshots(ListSnapshotsRequest);
    GetSnapshot(GetSnapshotRequest);
    ControllerExpandVolume(ControllerExpandVolumeRequest) volume_id;
    ControllerGetVolume(ControllerGetVolumeRequest) volume_id;
    ControllerModifyVolume(ControllerModifyVolumeRequest) volume_id;
    GroupControllerGetCapabilities(GroupControllerGetCapabilitiesRequest);
    CreateVolumeGroupSnapshot(CreateVolumeGroupSnapshotRequest);
    DeleteVolumeGroupSnapshot(DeleteVolumeGroupSnapshotRequest);
    GetVolumeGroupSnapshot(GetVolumeGroupSnapshotRequest);
    GetMetadataAllocated(GetMetadataAllocatedRequest);
    GetMetadataDelta(GetMetadataDeltaRequest);
    NodeStageVolume(NodeStageVolumeRequest) volume_id;
    NodeUnstageVolume(NodeUnstageVolumeRequest) volume_id;
    NodePublishVolume(NodePublishVolumeRequest) volume_id;
    NodeUnpublishVolume(NodeUnpublishVolumeRequest) volume_id;
    NodeGetVolumeStats(NodeGetVolumeStatsRequest) volume_id;
    NodeExpandVolume(NodeExpandVolumeRequest) volume_id;
    NodeGetCapabilities(NodeGetCapabilitiesRequest);
    NodeGetInfo(NodeGetInfoRequest);
}

impl Ask {
    /// The call that `path` of a request names, if we know it.
    pub fn rpc_of(path: &str) -> Option<Rpc> {
        let name = path.rsplit('/').next()?;
        Rpc::ALL.iter().copied().find(|rpc| rpc.name() == name)
    }

    /// A call of the Node service about a volume.
    pub fn is_node_call(&self) -> bool {
        self.volume().is_some() && self.rpc().name().starts_with("Node")
    }

    /// What a script may choose its answer by: the volume, else the snapshot, else the group, by id or name.
    pub fn subject(&self) -> Option<&str> {
        match self {
            Self::DeleteSnapshot(request) => Some(&request.snapshot_id),
            Self::GetSnapshot(request) => Some(&request.snapshot_id),
            Self::GetMetadataAllocated(request) => Some(&request.snapshot_id),
            Self::GetMetadataDelta(request) => Some(&request.target_snapshot_id),
            Self::CreateVolumeGroupSnapshot(request) => Some(&request.name),
            Self::DeleteVolumeGroupSnapshot(request) => Some(&request.group_snapshot_id),
            Self::GetVolumeGroupSnapshot(request) => Some(&request.group_snapshot_id),
            _ => self.volume(),
        }
    }
}
