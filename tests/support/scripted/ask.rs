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
    NodeStageVolume(NodeStageVolumeRequest) volume_id;
    NodeUnstageVolume(NodeUnstageVolumeRequest) volume_id;
    NodePublishVolume(NodePublishVolumeRequest) volume_id;
    NodeUnpublishVolume(NodeUnpublishVolumeRequest) volume_id;
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
}
