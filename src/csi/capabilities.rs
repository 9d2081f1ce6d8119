//! What a plugin says that it can do, as plain sets.
//!
//! Numbers that this version does not know are left out, never an error: a newer plugin must work.
use super::proto::controller_service_capability::rpc::Type as Controller;
use super::proto::group_controller_service_capability::rpc::Type as Group;
use super::proto::node_service_capability::rpc::Type as Node;
use super::proto::plugin_capability::service::Type as Service;
use super::proto::plugin_capability::volume_expansion::Type as Expansion;
use super::proto::{
    self, controller_service_capability, group_controller_service_capability, node_service_capability,
    plugin_capability,
};

macro_rules! capability_set {
    ($(#[$doc:meta])* $set:ident of $kind:ident { $($(#[$flag_doc:meta])* $flag:ident: $value:ident,)* }) => {
        $(#[$doc])*
        #[allow(clippy::struct_excessive_bools)] // a set of independent flags is what it is
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $set {
            $($(#[$flag_doc])* pub $flag: bool,)*
        }

        impl $set {
            /// CSI's names of what is set, in the order of the contract.
            pub fn names(&self) -> Vec<&'static str> {
                let flags = [$((self.$flag, $kind::$value.as_str_name())),*];
                flags.into_iter().filter_map(|(set, name)| set.then_some(name)).collect()
            }

            fn add(&mut self, number: i32) {
                match $kind::try_from(number) {
                    Ok($kind::Unknown) | Err(_) => {}
                    $(Ok($kind::$value) => self.$flag = true,)*
                }
            }
        }
    };
}

capability_set! {
    /// What the plugin's controller service can do (`ControllerGetCapabilities`).
    ControllerCapabilities of Controller {
        /// CreateVolume and DeleteVolume.
        create_delete_volume: CreateDeleteVolume,
        /// ControllerPublishVolume and ControllerUnpublishVolume: volumes are attached before they are used.
        publish_unpublish_volume: PublishUnpublishVolume,
        /// ListVolumes.
        list_volumes: ListVolumes,
        /// GetCapacity.
        get_capacity: GetCapacity,
        /// CreateSnapshot and DeleteSnapshot, and volumes made from snapshots.
        create_delete_snapshot: CreateDeleteSnapshot,
        /// ListSnapshots.
        list_snapshots: ListSnapshots,
        /// Volumes made from volumes.
        clone_volume: CloneVolume,
        /// `readonly` may be set when a volume is attached.
        publish_readonly: PublishReadonly,
        /// ControllerExpandVolume.
        expand_volume: ExpandVolume,
        /// ListVolumes tells where volumes are attached.
        list_volumes_published_nodes: ListVolumesPublishedNodes,
        /// Alpha: volumes report their condition.
        volume_condition: VolumeCondition,
        /// Alpha: ControllerGetVolume.
        get_volume: GetVolume,
        /// Alpha: the two access modes that tell one writer on a node from several.
        single_node_multi_writer: SingleNodeMultiWriter,
        /// ControllerModifyVolume and mutable parameters.
        modify_volume: ModifyVolume,
        /// Alpha: GetSnapshot.
        get_snapshot: GetSnapshot,
    }
}

capability_set! {
    /// What the plugin's node service can do (`NodeGetCapabilities`).
    NodeCapabilities of Node {
        /// Volumes are staged once per node before they are published.
        stage_unstage_volume: StageUnstageVolume,
        /// NodeGetVolumeStats.
        get_volume_stats: GetVolumeStats,
        /// NodeExpandVolume.
        expand_volume: ExpandVolume,
        /// Alpha: volumes report their condition.
        volume_condition: VolumeCondition,
        /// Alpha: the two access modes that tell one writer on a node from several.
        single_node_multi_writer: SingleNodeMultiWriter,
        /// The plugin gives files to the group named in the volume capability.
        volume_mount_group: VolumeMountGroup,
    }
}

capability_set! {
    /// What the plugin's group controller service can do (`GroupControllerGetCapabilities`).
    GroupControllerCapabilities of Group {
        /// All three calls about snapshots of groups of volumes.
        create_delete_get_volume_group_snapshot: CreateDeleteGetVolumeGroupSnapshot,
    }
}

capability_set! {
    /// The services that the plugin has.
    Services of Service {
        /// The controller service, in some instance.
        controller_service: ControllerService,
        /// Volumes are reachable from some nodes only: topology must be used.
        volume_accessibility_constraints: VolumeAccessibilityConstraints,
        /// The group controller service.
        group_controller_service: GroupControllerService,
        /// Alpha: the snapshot metadata service.
        snapshot_metadata_service: SnapshotMetadataService,
    }
}

capability_set! {
    /// When volumes may grow.
    VolumeExpansion of Expansion {
        /// While they are in use.
        online: Online,
        /// While they are not published.
        offline: Offline,
    }
}

/// What the plugin as a whole says (`GetPluginCapabilities`). Empty is legal: a plugin that serves nodes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PluginCapabilities {
    /// The services that it has.
    pub services: Services,
    /// When its volumes may grow.
    pub expansion: VolumeExpansion,
}

impl From<&proto::GetPluginCapabilitiesResponse> for PluginCapabilities {
    fn from(response: &proto::GetPluginCapabilitiesResponse) -> Self {
        let mut set = Self::default();
        for capability in &response.capabilities {
            match &capability.r#type {
                Some(plugin_capability::Type::Service(service)) => set.services.add(service.r#type),
                Some(plugin_capability::Type::VolumeExpansion(expansion)) => {
                    set.expansion.add(expansion.r#type);
                }
                None => {}
            }
        }
        set
    }
}

impl From<&proto::ControllerGetCapabilitiesResponse> for ControllerCapabilities {
    fn from(response: &proto::ControllerGetCapabilitiesResponse) -> Self {
        let mut set = Self::default();
        for capability in &response.capabilities {
            match &capability.r#type {
                Some(controller_service_capability::Type::Rpc(rpc)) => set.add(rpc.r#type),
                None => {}
            }
        }
        set
    }
}

impl From<&proto::GroupControllerGetCapabilitiesResponse> for GroupControllerCapabilities {
    fn from(response: &proto::GroupControllerGetCapabilitiesResponse) -> Self {
        let mut set = Self::default();
        for capability in &response.capabilities {
            match &capability.r#type {
                Some(group_controller_service_capability::Type::Rpc(rpc)) => set.add(rpc.r#type),
                None => {}
            }
        }
        set
    }
}

impl From<&proto::NodeGetCapabilitiesResponse> for NodeCapabilities {
    fn from(response: &proto::NodeGetCapabilitiesResponse) -> Self {
        let mut set = Self::default();
        for capability in &response.capabilities {
            match &capability.r#type {
                Some(node_service_capability::Type::Rpc(rpc)) => set.add(rpc.r#type),
                None => {}
            }
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_empty_entries_and_repeats_are_ignored() {
        let rpc = |number| proto::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(controller_service_capability::Rpc {
                r#type: number,
            })),
        };
        let response = proto::ControllerGetCapabilitiesResponse {
            capabilities: vec![
                rpc(6),
                rpc(999),
                rpc(0),
                rpc(-1),
                rpc(1),
                rpc(6),
                proto::ControllerServiceCapability { r#type: None },
            ],
        };
        let set = ControllerCapabilities::from(&response);
        assert_eq!(set.names(), ["CREATE_DELETE_VOLUME", "LIST_SNAPSHOTS"]);
        assert!(set.create_delete_volume && !set.publish_unpublish_volume);
    }

    #[test]
    fn services_and_expansion_are_told_apart() {
        let capability = |kind| proto::PluginCapability { r#type: Some(kind) };
        let response = proto::GetPluginCapabilitiesResponse {
            capabilities: vec![
                capability(plugin_capability::Type::Service(plugin_capability::Service { r#type: 2 })),
                capability(plugin_capability::Type::VolumeExpansion(plugin_capability::VolumeExpansion {
                    r#type: 1,
                })),
            ],
        };
        let set = PluginCapabilities::from(&response);
        assert_eq!(set.services.names(), ["VOLUME_ACCESSIBILITY_CONSTRAINTS"]);
        assert_eq!(set.expansion.names(), ["ONLINE"]);
    }
}
