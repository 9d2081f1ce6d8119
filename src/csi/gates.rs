//! May a call be made, by what a plugin said it can do? One row for each call.
//!
//! Decides on values and asks nobody. What a request may hold is its maker's business, but for what is alpha.
use std::fmt;

use super::capabilities::{
    ControllerCapabilities, GroupControllerCapabilities, NodeCapabilities, PluginCapabilities,
};
use super::rpc::{Rpc, Service};

/// Whether what the contract calls alpha is used. It may vanish between two minor versions.
///
/// The two access modes that tell one writer on a node from several are alpha by name alone: orchestrators use them by
/// default, and so does this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alpha {
    /// It is not sent.
    #[default]
    Off,
    /// It is.
    On,
}

/// All that a plugin said it can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// The plugin as a whole.
    pub plugin: PluginCapabilities,
    /// Its controller service.
    pub controller: ControllerCapabilities,
    /// Its group controller service.
    pub group: GroupControllerCapabilities,
    /// Its node service, on one node.
    pub node: NodeCapabilities,
}

/// Why a call must not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The plugin does not say that it has the service.
    #[error("the plugin does not report {0}")]
    NoService(&'static str),
    /// The service does not say that it has the call.
    #[error("the plugin's {service} service does not report {capability}")]
    NoCapability {
        /// The service.
        service: Side,
        /// CSI's name of what it would have to report.
        capability: &'static str,
    },
    /// The contract calls it alpha, and that is switched off.
    #[error("CSI calls it alpha, and what is alpha is switched off")]
    Alpha,
}

/// Whose capabilities are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The controller service.
    Controller,
    /// The group controller service.
    GroupController,
    /// The node service.
    Node,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Controller => "controller",
            Self::GroupController => "group controller",
            Self::Node => "node",
        })
    }
}

/// Whether `rpc` may be called. What `can` says must be of the plugin's last answers: capabilities change with versions.
///
/// To take down what an earlier version made, its own word at that time counts, not this one.
pub fn may(rpc: Rpc, can: &Capabilities, alpha: Alpha) -> Result<(), Closed> {
    if rpc.is_alpha() && alpha == Alpha::Off {
        return Err(Closed::Alpha);
    }
    service(rpc.service(), can)?;
    match asks(rpc, can, alpha) {
        None | Some((_, _, true)) => Ok(()),
        Some((side, capability, false)) => Err(Closed::NoCapability { service: side, capability }),
    }
}

fn service(service: Service, can: &Capabilities) -> Result<(), Closed> {
    let services = &can.plugin.services;
    let (there, name) = match service {
        Service::Identity | Service::Node => return Ok(()),
        Service::Controller => (services.controller_service, "CONTROLLER_SERVICE"),
        Service::GroupController => (services.group_controller_service, "GROUP_CONTROLLER_SERVICE"),
        Service::SnapshotMetadata => (services.snapshot_metadata_service, "SNAPSHOT_METADATA_SERVICE"),
    };
    if there { Ok(()) } else { Err(Closed::NoService(name)) }
}

/// What a call needs beside its service, and whether it is there.
fn asks(rpc: Rpc, can: &Capabilities, alpha: Alpha) -> Option<(Side, &'static str, bool)> {
    use Side::{Controller, GroupController, Node};
    let (controller, group, node) = (&can.controller, &can.group, &can.node);
    match rpc {
        Rpc::GetPluginInfo | Rpc::GetPluginCapabilities | Rpc::Probe => None,
        Rpc::CreateVolume | Rpc::DeleteVolume => {
            Some((Controller, "CREATE_DELETE_VOLUME", controller.create_delete_volume))
        }
        Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume => {
            Some((Controller, "PUBLISH_UNPUBLISH_VOLUME", controller.publish_unpublish_volume))
        }
        Rpc::ValidateVolumeCapabilities | Rpc::ControllerGetCapabilities => None,
        Rpc::ListVolumes => Some((Controller, "LIST_VOLUMES", controller.list_volumes)),
        Rpc::GetCapacity => Some((Controller, "GET_CAPACITY", controller.get_capacity)),
        Rpc::CreateSnapshot | Rpc::DeleteSnapshot => {
            Some((Controller, "CREATE_DELETE_SNAPSHOT", controller.create_delete_snapshot))
        }
        Rpc::ListSnapshots => Some((Controller, "LIST_SNAPSHOTS", controller.list_snapshots)),
        Rpc::GetSnapshot => Some((Controller, "GET_SNAPSHOT", controller.get_snapshot)),
        Rpc::ControllerExpandVolume => Some((Controller, "EXPAND_VOLUME", controller.expand_volume)),
        Rpc::ControllerGetVolume => Some((Controller, "GET_VOLUME", controller.get_volume)),
        Rpc::ControllerModifyVolume => Some((Controller, "MODIFY_VOLUME", controller.modify_volume)),
        Rpc::GroupControllerGetCapabilities => None,
        Rpc::CreateVolumeGroupSnapshot | Rpc::DeleteVolumeGroupSnapshot | Rpc::GetVolumeGroupSnapshot => {
            let there = group.create_delete_get_volume_group_snapshot;
            Some((GroupController, "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", there))
        }
        Rpc::GetMetadataAllocated | Rpc::GetMetadataDelta => None,
        Rpc::NodeStageVolume | Rpc::NodeUnstageVolume => {
            Some((Node, "STAGE_UNSTAGE_VOLUME", node.stage_unstage_volume))
        }
        Rpc::NodePublishVolume | Rpc::NodeUnpublishVolume => None,
        Rpc::NodeGetVolumeStats => {
            // A condition is alpha: who reports nothing else is asked only where that is used.
            let condition = node.volume_condition && alpha == Alpha::On;
            Some((Node, "GET_VOLUME_STATS", node.get_volume_stats || condition))
        }
        Rpc::NodeExpandVolume => Some((Node, "EXPAND_VOLUME", node.expand_volume)),
        Rpc::NodeGetCapabilities | Rpc::NodeGetInfo => None,
    }
}

#[cfg(test)]
mod tests;
