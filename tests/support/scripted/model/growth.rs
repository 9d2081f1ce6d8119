//! Volumes that grow, change and are looked at.
use wharfline::csi::proto::controller_service_capability::rpc::Type as Can;
use wharfline::csi::proto::node_service_capability::rpc::Type as NodeCan;
use wharfline::csi::proto::plugin_capability::volume_expansion::Type as Expansion;
use wharfline::csi::{Code, proto};

use super::controller::{condition, demand, describe, ill};
use super::rules;
use super::{Bench, Model, Place, Refusal};

impl Model {
    /// Where a volume is used and its file system is smaller than it has to be.
    pub(in super::super) fn debts(&self) -> Vec<Place> {
        let places = self.stages.keys().chain(self.publications.keys().map(|(place, _)| place));
        let mut debts = places
            .filter(|place| {
                let owed = self.volumes.get(&place.0).map_or(0, |volume| volume.owed_bytes);
                self.grown.get(place).copied().unwrap_or(0) < owed
            })
            .cloned()
            .collect::<Vec<_>>();
        debts.sort();
        debts.dedup();
        debts
    }

    pub(super) fn expand(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ControllerExpandVolumeRequest,
    ) -> Result<proto::ControllerExpandVolumeResponse, Refusal> {
        demand(bench, Can::ExpandVolume)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        rules::map(bench, "secrets", &request.secrets)?;
        let (required, limit) = rules::range(bench, request.capacity_range.as_ref())?;
        let id = &request.volume_id;
        let Some(volume) = self.volumes.get(id) else {
            return Err(Refusal::new(Code::NotFound, format!("no volume {id}")));
        };
        let attached = self.attachments.iter().find(|((volume, _), _)| volume == id).map(|(_, one)| one);
        if let (Some(attached), Some(capability)) = (attached, &request.volume_capability) {
            let same = attached.capability == *capability;
            bench.demand(same, Code::InvalidArgument, "volume_capability is not that of the attachment")?;
        }
        let (online, offline) = (Expansion::Online as i32, Expansion::Offline as i32);
        let only_offline =
            bench.config.expansion.contains(&offline) && !bench.config.expansion.contains(&online);
        let used = attached.is_some()
            || self.stages.keys().any(|(volume, _)| volume == id)
            || self.publications.keys().any(|((volume, _), _)| volume == id);
        bench.demand(!(only_offline && used), Code::FailedPrecondition, "it grows offline only")?;
        let shrinks = limit > 0 && limit < volume.capacity;
        bench.demand(!shrinks, Code::OutOfRange, "a volume does not shrink")?;
        let bytes = required.max(volume.capacity);
        if bytes > bench.config.max_volume_bytes {
            return Err(Refusal::new(Code::OutOfRange, "larger than a volume can be"));
        }
        if bytes - volume.capacity > bench.config.total_bytes - self.used() {
            return Err(Refusal::new(Code::ResourceExhausted, "no space left"));
        }
        let node_expansion_required = bench.config.node_expansion;
        self.volumes.entry(id.clone()).and_modify(|volume| {
            volume.capacity = bytes;
            volume.owed_bytes = if node_expansion_required { bytes } else { 0 };
        });
        Ok(proto::ControllerExpandVolumeResponse { capacity_bytes: bytes, node_expansion_required })
    }

    pub(super) fn modify(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ControllerModifyVolumeRequest,
    ) -> Result<proto::ControllerModifyVolumeResponse, Refusal> {
        demand(bench, Can::ModifyVolume)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        let some = !request.mutable_parameters.is_empty();
        bench.demand(some, Code::InvalidArgument, "mutable_parameters are missing")?;
        rules::map(bench, "mutable_parameters", &request.mutable_parameters)?;
        known(bench, &request.mutable_parameters)?;
        rules::map(bench, "secrets", &request.secrets)?;
        let Some(volume) = self.volumes.get_mut(&request.volume_id) else {
            return Err(Refusal::new(Code::NotFound, format!("no volume {}", request.volume_id)));
        };
        volume.mutable.extend(request.mutable_parameters.clone());
        Ok(proto::ControllerModifyVolumeResponse {})
    }

    pub(super) fn get_volume(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ControllerGetVolumeRequest,
    ) -> Result<proto::ControllerGetVolumeResponse, Refusal> {
        use proto::controller_get_volume_response::VolumeStatus;
        rules::alpha(bench, "ControllerGetVolume")?;
        demand(bench, Can::GetVolume)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        let id = &request.volume_id;
        let Some(volume) = self.volumes.get(id) else {
            return Err(Refusal::new(Code::NotFound, format!("no volume {id}")));
        };
        let nodes = self.attachments.keys().filter(|(attached, _)| attached == id);
        let told = bench.config.controller_can(Can::ListVolumesPublishedNodes);
        let published_node_ids = nodes.filter(|_| told).map(|(_, node)| node.clone()).collect();
        let status = VolumeStatus { published_node_ids, volume_condition: condition(bench, id) };
        let volume = describe(id, volume, &volume.request.clone().unwrap_or_default());
        Ok(proto::ControllerGetVolumeResponse { volume: Some(volume), status: Some(status) })
    }

    /// The volume is used here at `path`; with staging the request says where it is staged.
    fn used_here(
        &self,
        bench: &mut Bench<'_>,
        id: &str,
        (path, staging): (&str, &str),
    ) -> Result<Place, Refusal> {
        rules::text(bench, "volume_id", id)?;
        rules::path(bench, "volume_path", path)?;
        let place = (id.to_owned(), bench.site.node_id.clone());
        let stage = self.stages.get(&place).map(|stage| stage.request.staging_target_path.clone());
        let published = self.publications.keys().any(|(at, _)| *at == place);
        let used = stage.is_some() || published;
        bench.demand(used, Code::NotFound, "the volume is neither staged nor published here")?;
        if bench.config.node_can(NodeCan::StageUnstageVolume) {
            let same = stage.as_deref() == Some(staging);
            bench.demand(same, Code::InvalidArgument, "staging_target_path is not where it is staged")?;
        }
        let there = stage.as_deref() == Some(path)
            || self.publications.contains_key(&(place.clone(), path.to_owned()));
        bench.demand(there, Code::NotFound, "the volume is not at volume_path")?;
        Ok(place)
    }

    pub(super) fn stats(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::NodeGetVolumeStatsRequest,
    ) -> Result<proto::NodeGetVolumeStatsResponse, Refusal> {
        let condition = bench.config.node_can(NodeCan::VolumeCondition);
        let numbers = bench.config.node_can(NodeCan::GetVolumeStats);
        bench.demand(
            numbers || condition && bench.config.alpha,
            Code::Unimplemented,
            "neither GET_VOLUME_STATS nor VOLUME_CONDITION is reported",
        )?;
        let paths = (request.volume_path.as_str(), request.staging_target_path.as_str());
        self.used_here(bench, &request.volume_id, paths)?;
        let total = self.volumes.get(&request.volume_id).map_or(0, |volume| volume.capacity);
        let usage = proto::VolumeUsage { available: total - total / 4, total, used: total / 4, unit: 1 };
        Ok(proto::NodeGetVolumeStatsResponse {
            usage: numbers.then_some(usage).into_iter().collect(),
            volume_condition: condition.then(|| ill(bench, &request.volume_id)),
        })
    }

    pub(super) fn node_expand(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::NodeExpandVolumeRequest,
    ) -> Result<proto::NodeExpandVolumeResponse, Refusal> {
        let there = bench.config.node_can(NodeCan::ExpandVolume);
        bench.demand(there, Code::Unimplemented, "EXPAND_VOLUME is not reported")?;
        if !request.secrets.is_empty() {
            rules::alpha(bench, "secrets of NodeExpandVolume")?;
        }
        rules::map(bench, "secrets", &request.secrets)?;
        let paths = (request.volume_path.as_str(), request.staging_target_path.as_str());
        let place = self.used_here(bench, &request.volume_id, paths)?;
        let (required, _) = rules::range(bench, request.capacity_range.as_ref())?;
        let staged = self.stages.get(&place).map(|stage| &stage.request.volume_capability);
        let published = self.publications.iter().find(|((at, _), _)| *at == place);
        let used = staged.or(published.map(|(_, one)| &one.request.volume_capability));
        let same = used == Some(&request.volume_capability);
        bench.demand(same, Code::InvalidArgument, "volume_capability is not that of the use")?;
        // Without a controller that grows volumes it grows here.
        let alone = !bench.config.controller_can(Can::ExpandVolume);
        let volume = self.volumes.entry(request.volume_id.clone());
        volume.and_modify(|volume| {
            volume.capacity = if alone { volume.capacity.max(required) } else { volume.capacity };
        });
        let bytes = self.volumes.get(&request.volume_id).map_or(0, |volume| volume.capacity);
        self.grown.insert(place, bytes);
        Ok(proto::NodeExpandVolumeResponse { capacity_bytes: bytes })
    }
}

/// Whether the plugin knows what a volume is to be given.
pub(super) fn known(
    bench: &mut Bench<'_>,
    wanted: &std::collections::BTreeMap<String, String>,
) -> Result<(), Refusal> {
    let all = bench.config.attributes.clone();
    let unknown = wanted.keys().find(|key| all.as_ref().is_some_and(|all| !all.contains(key)));
    // The plugin's own rule, and no fault of the caller's.
    match unknown {
        Some(key) => Err(Refusal::new(Code::InvalidArgument, format!("no attribute {key}"))),
        None => Ok(()),
    }
}
