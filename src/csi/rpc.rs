//! The calls that this project makes: their names, their paths, and what each request is about.
//!
//! Decides nothing. A new call is one line in each of the two tables here and one method in `calls.rs`.
use std::collections::BTreeMap;
use std::fmt;

use super::proto;

macro_rules! rpcs {
    ($($service:literal { $($rpc:ident),* $(,)? })*) => {
        /// One CSI call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rpc {
            $($(#[doc = concat!("`", $service, ".", stringify!($rpc), "`")] $rpc,)*)*
        }

        impl Rpc {
            /// Every call that [`Plugin`](super::Plugin) can make.
            pub const ALL: &'static [Self] = &[$($(Self::$rpc,)*)*];

            /// The name as CSI writes it.
            pub fn name(self) -> &'static str {
                match self { $($(Self::$rpc => stringify!($rpc),)*)* }
            }

            /// Whether it takes down what another call has made.
            pub fn undoes(self) -> bool {
                matches!(
                    self,
                    Self::DeleteVolume
                        | Self::ControllerUnpublishVolume
                        | Self::NodeUnstageVolume
                        | Self::NodeUnpublishVolume
                )
            }

            /// The HTTP/2 path.
            pub(crate) fn path(self) -> &'static str {
                match self { $($(Self::$rpc => concat!("/csi.v1.", $service, "/", stringify!($rpc)),)*)* }
            }
        }
    };
}

rpcs! {
    "Identity" { GetPluginInfo, GetPluginCapabilities, Probe }
    "Controller" {
        CreateVolume, DeleteVolume, ControllerPublishVolume, ControllerUnpublishVolume,
        ValidateVolumeCapabilities, ListVolumes, GetCapacity, ControllerGetCapabilities,
        ControllerExpandVolume,
    }
    "Node" {
        NodeStageVolume, NodeUnstageVolume, NodePublishVolume, NodeUnpublishVolume,
        NodeExpandVolume, NodeGetCapabilities, NodeGetInfo,
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a call excludes others from while it is in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A volume that has a handle.
    Volume(String),
    /// A volume that has no handle yet, by the name sent to `CreateVolume`.
    Name(String),
    /// The plugin's readiness: a probe never overlaps another probe.
    Readiness,
}

impl Key {
    /// The handle or name of the volume, for records.
    pub(crate) fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(volume) | Self::Name(volume) => Some(volume),
            Self::Readiness => None,
        }
    }
}

/// A request with one reply, as the wire knows it.
pub(crate) trait Unary: prost::Message + 'static {
    /// What the plugin answers.
    type Reply: prost::Message + Default + 'static;
    /// Which call this is.
    const RPC: Rpc;

    /// What it is about, if calls about the same thing must wait for one another.
    fn key(&self) -> Option<Key> {
        None
    }

    /// Its secrets, so that an answer which repeats one can be cleaned.
    fn secrets(&self) -> Option<&BTreeMap<String, String>> {
        None
    }
}

macro_rules! unary {
    ($($rpc:ident: $request:ident => $reply:ident $(, $key:ident($field:ident))? $(+ $secrets:ident)?;)*) => {
        $(impl Unary for proto::$request {
            type Reply = proto::$reply;
            const RPC: Rpc = Rpc::$rpc;

            $(fn key(&self) -> Option<Key> {
                Some(Key::$key(self.$field.clone()))
            })?

            $(fn secrets(&self) -> Option<&BTreeMap<String, String>> {
                Some(&self.$secrets)
            })?
        })*
    };
}

unary! {
    GetPluginInfo: GetPluginInfoRequest => GetPluginInfoResponse;
    GetPluginCapabilities: GetPluginCapabilitiesRequest => GetPluginCapabilitiesResponse;
    CreateVolume: CreateVolumeRequest => CreateVolumeResponse, Name(name) + secrets;
    DeleteVolume: DeleteVolumeRequest => DeleteVolumeResponse, Volume(volume_id) + secrets;
    ControllerPublishVolume: ControllerPublishVolumeRequest => ControllerPublishVolumeResponse,
        Volume(volume_id) + secrets;
    ControllerUnpublishVolume: ControllerUnpublishVolumeRequest => ControllerUnpublishVolumeResponse,
        Volume(volume_id) + secrets;
    ValidateVolumeCapabilities: ValidateVolumeCapabilitiesRequest => ValidateVolumeCapabilitiesResponse,
        Volume(volume_id) + secrets;
    ListVolumes: ListVolumesRequest => ListVolumesResponse;
    GetCapacity: GetCapacityRequest => GetCapacityResponse;
    ControllerGetCapabilities: ControllerGetCapabilitiesRequest => ControllerGetCapabilitiesResponse;
    ControllerExpandVolume: ControllerExpandVolumeRequest => ControllerExpandVolumeResponse,
        Volume(volume_id) + secrets;
    NodeExpandVolume: NodeExpandVolumeRequest => NodeExpandVolumeResponse, Volume(volume_id) + secrets;
    NodeStageVolume: NodeStageVolumeRequest => NodeStageVolumeResponse, Volume(volume_id) + secrets;
    NodeUnstageVolume: NodeUnstageVolumeRequest => NodeUnstageVolumeResponse, Volume(volume_id);
    NodePublishVolume: NodePublishVolumeRequest => NodePublishVolumeResponse, Volume(volume_id) + secrets;
    NodeUnpublishVolume: NodeUnpublishVolumeRequest => NodeUnpublishVolumeResponse, Volume(volume_id);
    NodeGetCapabilities: NodeGetCapabilitiesRequest => NodeGetCapabilitiesResponse;
    NodeGetInfo: NodeGetInfoRequest => NodeGetInfoResponse;
}

impl Unary for proto::ProbeRequest {
    type Reply = proto::ProbeResponse;
    const RPC: Rpc = Rpc::Probe;

    fn key(&self) -> Option<Key> {
        Some(Key::Readiness)
    }
}
