//! The storage system itself: what exists, what is attached, staged and published, and the rules of CSI about it.
//!
//! Every call is answered as the specification says. What a caller must never do is noted as a violation as well,
//! even where the specification only has an error code for it.
mod blocks;
mod controller;
mod groups;
mod growth;
mod node;
mod rules;
mod snapshots;

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use wharfline::csi::{Code, proto};

use super::ask::Ask;
use super::backend::Site;
use super::config::{Config, Effects};
use super::mounts;
use rules::MULTI_NODE;

pub(super) type Map = BTreeMap<String, String>;

/// Why a call is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub code: Code,
    /// The text.
    pub message: String,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Something that exists or is held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leftover {
    /// A volume made by `CreateVolume`.
    Volume(String),
    /// A volume attached to a node.
    Attachment {
        /// The volume.
        volume: String,
        /// The node.
        node: String,
    },
    /// A volume staged on a node.
    Stage {
        /// The volume.
        volume: String,
        /// The node.
        node: String,
    },
    /// A volume published on a node.
    Publication {
        /// The volume.
        volume: String,
        /// The node.
        node: String,
        /// Where.
        target: String,
    },
    /// A snapshot, by its id.
    Snapshot(String),
    /// A group of snapshots, by its id.
    Group(String),
}

pub(super) struct Volume {
    /// The request that made it, without secrets; none if it was there before.
    pub(super) request: Option<proto::CreateVolumeRequest>,
    pub(super) capacity: i64,
    pub(super) context: Map,
    pub(super) topology: Vec<proto::Topology>,
    /// What was set by `CreateVolume` and changed by `ControllerModifyVolume`.
    pub(super) mutable: Map,
    /// The file system has to be as large as this wherever the volume is used; zero for no matter.
    pub(super) owed_bytes: i64,
}

pub(super) struct Attachment {
    pub(super) capability: proto::VolumeCapability,
    pub(super) readonly: bool,
    pub(super) context: Map,
}

pub(super) struct Stage {
    /// The request, without secrets.
    pub(super) request: proto::NodeStageVolumeRequest,
}

pub(super) struct Publication {
    /// The request, without secrets.
    pub(super) request: proto::NodePublishVolumeRequest,
}

/// (volume, node)
pub(super) type Place = (String, String);

/// A snapshot.
pub(super) struct Taken {
    /// The request that made it, without secrets; none if a group did.
    pub(super) request: Option<proto::CreateSnapshotRequest>,
    pub(super) snapshot: proto::Snapshot,
    /// So many more answers say that it is not ready.
    pub(super) ready_after: u32,
}

/// A group of snapshots.
pub(super) struct TakenGroup {
    /// The request that made it, without secrets.
    pub(super) request: proto::CreateVolumeGroupSnapshotRequest,
    pub(super) members: Vec<String>,
    pub(super) ready_after: u32,
}

/// The ledger.
#[derive(Default)]
pub(super) struct Model {
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) names: BTreeMap<String, String>,
    pub(super) made: u64,
    pub(super) nodes: BTreeSet<String>,
    pub(super) fenced: BTreeSet<String>,
    pub(super) attachments: BTreeMap<Place, Attachment>,
    pub(super) stages: BTreeMap<Place, Stage>,
    /// By place and target.
    pub(super) publications: BTreeMap<(Place, String), Publication>,
    /// How large the file system was made on a node.
    pub(super) grown: BTreeMap<Place, i64>,
    pub(super) snapshots: BTreeMap<String, Taken>,
    pub(super) groups: BTreeMap<String, TakenGroup>,
}

/// What one call is judged with.
pub(super) struct Bench<'a> {
    pub(super) site: &'a Site,
    pub(super) config: &'a Config,
    pub(super) faults: &'a mut Vec<String>,
}

impl Bench<'_> {
    /// Notes a violation, and refuses.
    pub(super) fn violated(&mut self, code: Code, message: impl Into<String>) -> Refusal {
        let refusal = Refusal::new(code, message);
        self.faults.push(refusal.message.clone());
        refusal
    }

    /// Notes a violation unless `lawful`.
    pub(super) fn demand(&mut self, lawful: bool, code: Code, message: &str) -> Result<(), Refusal> {
        if lawful { Ok(()) } else { Err(self.violated(code, message)) }
    }
}

impl Model {
    pub(super) fn see_node(&mut self, site: &Site) {
        self.nodes.insert(site.node_id.clone());
    }

    pub(super) fn add_existing(&mut self, id: &str, context: Map) {
        let (topology, mutable) = (Vec::new(), Map::new());
        let volume = Volume { request: None, capacity: 0, context, topology, mutable, owed_bytes: 0 };
        self.volumes.insert(id.to_owned(), volume);
    }

    pub(super) fn reboot(&mut self, node: &str, effects: &Effects) {
        self.publications.retain(|((_, on), target), _| {
            if on == node {
                mounts::forget(effects, target);
            }
            on != node
        });
        self.stages.retain(|(_, on), stage| {
            if on == node {
                mounts::forget(effects, &stage.request.staging_target_path);
            }
            on != node
        });
    }

    pub(super) fn forget_stages(&mut self, node: &str) {
        self.stages.retain(|(_, on), _| on != node);
    }

    pub(super) fn forget_publications(&mut self, node: &str) {
        self.publications.retain(|((_, on), _), _| on != node);
    }

    /// Forgets what is staged or published elsewhere than at these paths.
    pub(super) fn keep_at(&mut self, points: &[std::path::PathBuf]) {
        let there = |path: &str| points.iter().any(|point| point.as_os_str() == path);
        self.publications.retain(|(_, target), _| there(target));
        self.stages.retain(|_, stage| there(&stage.request.staging_target_path));
    }

    pub(super) fn fence(&mut self, node: &str) {
        self.fenced.insert(node.to_owned());
    }

    pub(super) fn handle_of(&self, name: &str) -> Option<String> {
        self.names.get(name).cloned()
    }

    pub(super) fn volume_ids(&self) -> Vec<String> {
        self.volumes.keys().cloned().collect()
    }

    /// What a call is about, each thing under one name for both its id and the name that it was made under.
    pub(super) fn subjects(&self, ask: &Ask) -> Vec<String> {
        let snapshot = |id: &String| format!("snapshot {id}");
        match ask {
            Ask::CreateVolume(request) => {
                let unmade = || format!("the volume to be named {}", request.name);
                // Whoever is told by mistake that it is another's does not know.
                let of_name =
                    |volume: &Volume| volume.request.as_ref().is_none_or(|of_it| of_it.name == request.name);
                let known = self.names.get(&request.name);
                let known = known.filter(|id| self.volumes.get(*id).is_none_or(of_name));
                vec![known.cloned().unwrap_or_else(unmade)]
            }
            Ask::CreateSnapshot(request) => {
                let unmade = || format!("the snapshot to be named {}", request.name);
                let known = self.snapshot_named(&request.name).map_or_else(unmade, |id| snapshot(&id));
                vec![request.source_volume_id.clone(), known]
            }
            Ask::DeleteSnapshot(request) => vec![snapshot(&request.snapshot_id)],
            Ask::GetSnapshot(request) => vec![snapshot(&request.snapshot_id)],
            Ask::GetMetadataAllocated(request) => vec![snapshot(&request.snapshot_id)],
            Ask::GetMetadataDelta(request) => {
                vec![snapshot(&request.base_snapshot_id), snapshot(&request.target_snapshot_id)]
            }
            Ask::CreateVolumeGroupSnapshot(request) => {
                let unmade = || format!("the group to be named {}", request.name);
                let known = self.group_named(&request.name).map_or_else(unmade, |id| format!("group {id}"));
                request.source_volume_ids.iter().cloned().chain([known]).collect()
            }
            Ask::DeleteVolumeGroupSnapshot(request) => {
                let group = format!("group {}", request.group_snapshot_id);
                request.snapshot_ids.iter().map(snapshot).chain([group]).collect()
            }
            Ask::GetVolumeGroupSnapshot(request) => vec![format!("group {}", request.group_snapshot_id)],
            _ => ask.volume().map(str::to_owned).into_iter().collect(),
        }
    }

    /// Whether the volume may be on several nodes.
    pub(super) fn is_shared(&self, volume: &str) -> bool {
        let made = self.volumes.get(volume).and_then(|volume| volume.request.as_ref());
        let asked = made.into_iter().flat_map(|request| &request.volume_capabilities);
        let held =
            self.attachments.iter().filter(|((id, _), _)| id == volume).map(|(_, one)| &one.capability);
        asked.chain(held).any(|capability| MULTI_NODE.contains(&rules::mode(capability)))
    }

    pub(super) fn left(&self) -> Vec<Leftover> {
        let mut left = Vec::new();
        left.extend(
            self.volumes
                .iter()
                .filter(|(_, volume)| volume.request.is_some())
                .map(|(id, _)| Leftover::Volume(id.clone())),
        );
        left.extend(
            self.attachments
                .keys()
                .map(|(volume, node)| Leftover::Attachment { volume: volume.clone(), node: node.clone() }),
        );
        left.extend(
            self.stages
                .keys()
                .map(|(volume, node)| Leftover::Stage { volume: volume.clone(), node: node.clone() }),
        );
        left.extend(self.publications.keys().map(|((volume, node), target)| Leftover::Publication {
            volume: volume.clone(),
            node: node.clone(),
            target: target.clone(),
        }));
        left.extend(self.snapshots.keys().cloned().map(Leftover::Snapshot));
        left.extend(self.groups.keys().cloned().map(Leftover::Group));
        left
    }

    /// Does what is asked, or refuses. The messages of the answer: one, but for calls that are answered by a stream.
    pub(super) fn perform(
        &mut self,
        site: &Site,
        config: &Config,
        ask: &Ask,
        faults: &mut Vec<String>,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let bench = &mut Bench { site, config, faults };
        let message = match ask {
            Ask::GetMetadataAllocated(request) => return self.allocated(bench, request),
            Ask::GetMetadataDelta(request) => return self.delta(bench, request),
            Ask::CreateSnapshot(request) => self.create_snapshot(bench, request)?.encode_to_vec(),
            Ask::DeleteSnapshot(request) => self.delete_snapshot(bench, request)?.encode_to_vec(),
            Ask::ListSnapshots(request) => self.list_snapshots(bench, request)?.encode_to_vec(),
            Ask::GetSnapshot(request) => self.get_snapshot(bench, request)?.encode_to_vec(),
            Ask::ControllerExpandVolume(request) => self.expand(bench, request)?.encode_to_vec(),
            Ask::ControllerGetVolume(request) => self.get_volume(bench, request)?.encode_to_vec(),
            Ask::ControllerModifyVolume(request) => self.modify(bench, request)?.encode_to_vec(),
            Ask::GroupControllerGetCapabilities(_) => group_capabilities(bench)?.encode_to_vec(),
            Ask::CreateVolumeGroupSnapshot(request) => self.create_group(bench, request)?.encode_to_vec(),
            Ask::DeleteVolumeGroupSnapshot(request) => self.delete_group(bench, request)?.encode_to_vec(),
            Ask::GetVolumeGroupSnapshot(request) => self.get_group(bench, request)?.encode_to_vec(),
            Ask::NodeGetVolumeStats(request) => self.stats(bench, request)?.encode_to_vec(),
            Ask::NodeExpandVolume(request) => self.node_expand(bench, request)?.encode_to_vec(),
            Ask::GetPluginInfo(_) => info(config).encode_to_vec(),
            Ask::GetPluginCapabilities(_) => plugin_capabilities(config).encode_to_vec(),
            Ask::Probe(_) => proto::ProbeResponse { ready: config.ready }.encode_to_vec(),
            Ask::CreateVolume(request) => self.create(bench, request)?.encode_to_vec(),
            Ask::DeleteVolume(request) => self.delete(bench, request)?.encode_to_vec(),
            Ask::ControllerPublishVolume(request) => self.attach(bench, request)?.encode_to_vec(),
            Ask::ControllerUnpublishVolume(request) => self.detach(bench, request)?.encode_to_vec(),
            Ask::ValidateVolumeCapabilities(request) => self.validate(bench, request)?.encode_to_vec(),
            Ask::ListVolumes(request) => self.list(bench, request)?.encode_to_vec(),
            Ask::GetCapacity(_) => self.capacity(bench)?.encode_to_vec(),
            Ask::ControllerGetCapabilities(_) => controller_capabilities(bench)?.encode_to_vec(),
            Ask::NodeStageVolume(request) => self.stage(bench, request)?.encode_to_vec(),
            Ask::NodeUnstageVolume(request) => self.unstage(bench, request)?.encode_to_vec(),
            Ask::NodePublishVolume(request) => self.publish(bench, request)?.encode_to_vec(),
            Ask::NodeUnpublishVolume(request) => self.unpublish(bench, request)?.encode_to_vec(),
            Ask::NodeGetCapabilities(_) => node_capabilities(config).encode_to_vec(),
            Ask::NodeGetInfo(_) => node_info(site, config).encode_to_vec(),
        };
        Ok(vec![message])
    }
}

fn info(config: &Config) -> proto::GetPluginInfoResponse {
    proto::GetPluginInfoResponse {
        name: config.name.clone(),
        vendor_version: config.vendor_version.clone(),
        manifest: Map::new(),
    }
}

fn plugin_capabilities(config: &Config) -> proto::GetPluginCapabilitiesResponse {
    use proto::plugin_capability::{Service, Type, VolumeExpansion};
    let services = config.services.iter().map(|number| Type::Service(Service { r#type: *number }));
    let expansion =
        config.expansion.iter().map(|number| Type::VolumeExpansion(VolumeExpansion { r#type: *number }));
    let capabilities =
        services.chain(expansion).map(|kind| proto::PluginCapability { r#type: Some(kind) }).collect();
    proto::GetPluginCapabilitiesResponse { capabilities }
}

fn controller_capabilities(
    bench: &mut Bench<'_>,
) -> Result<proto::ControllerGetCapabilitiesResponse, Refusal> {
    use proto::controller_service_capability::{Rpc, Type};
    controller::demand_service(bench)?;
    let one = |number: &i32| proto::ControllerServiceCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: *number })),
    };
    let capabilities = bench.config.controller.iter().map(one).collect();
    Ok(proto::ControllerGetCapabilitiesResponse { capabilities })
}

fn group_capabilities(
    bench: &mut Bench<'_>,
) -> Result<proto::GroupControllerGetCapabilitiesResponse, Refusal> {
    use proto::group_controller_service_capability::{Rpc, Type};
    groups::demand_service(bench)?;
    let one = |number: &i32| proto::GroupControllerServiceCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: *number })),
    };
    let capabilities = bench.config.group.iter().map(one).collect();
    Ok(proto::GroupControllerGetCapabilitiesResponse { capabilities })
}

fn node_capabilities(config: &Config) -> proto::NodeGetCapabilitiesResponse {
    use proto::node_service_capability::{Rpc, Type};
    let one =
        |number: &i32| proto::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: *number })) };
    proto::NodeGetCapabilitiesResponse { capabilities: config.node.iter().map(one).collect() }
}

fn node_info(site: &Site, config: &Config) -> proto::NodeGetInfoResponse {
    let topology = (!site.topology.is_empty()).then(|| proto::Topology { segments: site.topology.clone() });
    proto::NodeGetInfoResponse {
        node_id: site.node_id.clone(),
        max_volumes_per_node: config.max_volumes,
        accessible_topology: topology,
    }
}
