//! The Controller service.
use wharfline::csi::proto::controller_service_capability::rpc::Type as Can;
use wharfline::csi::proto::plugin_capability::service::Type as Service;
use wharfline::csi::proto::validate_volume_capabilities_response::Confirmed;
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::{Code, proto};

use super::super::mounts;
use super::rules::{self, MULTI_NODE};
use super::{Attachment, Bench, Map, Model, Refusal, Volume};

/// The parameter by which volumes are told to be one: who asks for another one of them is given the handle of what there is.
pub const ONE: &str = "one";

/// A plugin without the controller service must not be asked for it.
pub(super) fn demand_service(bench: &mut Bench<'_>) -> Result<(), Refusal> {
    let there = bench.config.has_service(Service::ControllerService);
    bench.demand(there, Code::Unimplemented, "CONTROLLER_SERVICE is not reported")
}

pub(super) fn demand(bench: &mut Bench<'_>, capability: Can) -> Result<(), Refusal> {
    demand_service(bench)?;
    let there = bench.config.controller_can(capability);
    bench.demand(there, Code::Unimplemented, &format!("{} is not reported", capability.as_str_name()))
}

fn capability(bench: &mut Bench<'_>, wanted: Option<&proto::VolumeCapability>) -> Result<(), Refusal> {
    let several_writers = bench.config.controller_can(Can::SingleNodeMultiWriter);
    rules::capability(bench, wanted, several_writers)
}

impl Model {
    pub(super) fn create(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::CreateVolumeRequest,
    ) -> Result<proto::CreateVolumeResponse, Refusal> {
        demand(bench, Can::CreateDeleteVolume)?;
        check_create(bench, request)?;
        let frozen = proto::CreateVolumeRequest { secrets: Map::new(), ..request.clone() };
        if let Some(id) = self.names.get(&request.name) {
            let volume = &self.volumes[id];
            let of_another = volume.request.as_ref().is_some_and(|other| other.name != request.name);
            if !of_another && volume.request.as_ref() != Some(&frozen) {
                let message = format!("{} exists, made by another request", request.name);
                return Err(bench.violated(Code::AlreadyExists, message));
            }
            return Ok(proto::CreateVolumeResponse { volume: Some(describe(id, volume, request)) });
        }
        let (required, limit) =
            request.capacity_range.as_ref().map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
        let bytes = if required > 0 { required } else { limit.clamp(1, 1 << 30) };
        if bytes > bench.config.max_volume_bytes {
            return Err(Refusal::new(
                Code::OutOfRange,
                format!("at most {} bytes", bench.config.max_volume_bytes),
            ));
        }
        if bytes > bench.config.total_bytes - self.used() {
            return Err(Refusal::new(Code::ResourceExhausted, "no space left"));
        }
        self.check_source(bench, request)?;
        if let Some(twin) = self.twin(request) {
            self.names.insert(request.name.clone(), twin.clone());
            let described = describe(&twin, &self.volumes[&twin], request);
            return Ok(proto::CreateVolumeResponse { volume: Some(described) });
        }
        self.made += 1;
        let id = format!("backend/{:04}", self.made);
        let topology = match &request.accessibility_requirements {
            Some(wanted) => {
                wanted.preferred.first().or(wanted.requisite.first()).cloned().into_iter().collect()
            }
            None => Vec::new(),
        };
        let context = bench.config.volume_context.clone();
        let mutable = request.mutable_parameters.clone();
        let volume =
            Volume { request: Some(frozen), capacity: bytes, context, topology, mutable, owed_bytes: 0 };
        let described = describe(&id, &volume, request);
        mounts::make(&bench.config.effects, &id).map_err(broken)?;
        self.names.insert(request.name.clone(), id.clone());
        self.volumes.insert(id, volume);
        Ok(proto::CreateVolumeResponse { volume: Some(described) })
    }

    /// What there is of those that have to be one, by mistake.
    fn twin(&self, request: &proto::CreateVolumeRequest) -> Option<String> {
        let wanted = request.parameters.get(ONE)?;
        let is_it = |volume: &Volume| {
            volume.request.as_ref().is_some_and(|other| other.parameters.get(ONE) == Some(wanted))
        };
        self.volumes.iter().find(|(_, volume)| is_it(volume)).map(|(id, _)| id.clone())
    }

    /// What a volume is to be filled from has to be there, usable, and no larger than the volume.
    fn check_source(
        &self,
        bench: &mut Bench<'_>,
        request: &proto::CreateVolumeRequest,
    ) -> Result<(), Refusal> {
        use proto::volume_content_source::Type;
        let source = request.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
        let bytes = match source {
            None => return Ok(()),
            Some(Type::Volume(source)) => self.volumes.get(&source.volume_id).map(|volume| volume.capacity),
            Some(Type::Snapshot(source)) => match self.snapshots.get(&source.snapshot_id) {
                None => None,
                Some(taken) => {
                    let ready = taken.ready_after == 0;
                    bench.demand(ready, Code::FailedPrecondition, "the snapshot is not ready")?;
                    Some(taken.snapshot.size_bytes)
                }
            },
        };
        let Some(bytes) = bytes else { return Err(Refusal::new(Code::NotFound, "there is no such source")) };
        let required = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        bench.demand(required == 0 || required >= bytes, Code::OutOfRange, "smaller than its source")
    }

    pub(super) fn used(&self) -> i64 {
        self.volumes.values().map(|volume| volume.capacity).sum()
    }

    pub(super) fn delete(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::DeleteVolumeRequest,
    ) -> Result<proto::DeleteVolumeResponse, Refusal> {
        demand(bench, Can::CreateDeleteVolume)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        let id = &request.volume_id;
        let held = self.attachments.keys().chain(self.stages.keys());
        let held = held.chain(self.publications.keys().map(|(place, _)| place));
        if let Some((_, node)) = held.into_iter().find(|(volume, _)| volume == id) {
            return Err(bench.violated(Code::FailedPrecondition, format!("{id} is in use on {node}")));
        }
        let snapshot = self.snapshots.values().find(|taken| taken.snapshot.source_volume_id == *id);
        if let Some(taken) = snapshot.filter(|_| bench.config.dependent_snapshots) {
            let message = format!("{} is a snapshot of it", taken.snapshot.snapshot_id);
            return Err(Refusal::new(Code::FailedPrecondition, message));
        }
        if self.volumes.remove(id).is_some() {
            mounts::destroy(&bench.config.effects, id).map_err(broken)?;
        }
        self.names.retain(|_, named| named != id);
        Ok(proto::DeleteVolumeResponse {})
    }

    pub(super) fn attach(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ControllerPublishVolumeRequest,
    ) -> Result<proto::ControllerPublishVolumeResponse, Refusal> {
        demand(bench, Can::PublishUnpublishVolume)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        rules::text(bench, "node_id", &request.node_id)?;
        capability(bench, request.volume_capability.as_ref())?;
        let readonly = !request.readonly || bench.config.controller_can(Can::PublishReadonly);
        bench.demand(
            readonly,
            Code::InvalidArgument,
            "readonly is set, and PUBLISH_READONLY is not reported",
        )?;
        let (id, node) = (&request.volume_id, &request.node_id);
        let Some(volume) = self.volumes.get(id) else {
            return Err(Refusal::new(Code::NotFound, format!("no volume {id}")));
        };
        if !self.nodes.contains(node) {
            return Err(Refusal::new(Code::NotFound, format!("no node {node}")));
        }
        bench.demand(
            request.volume_context == volume.context,
            Code::InvalidArgument,
            "volume_context is not that of the volume",
        )?;
        let wanted = request.volume_capability.clone().unwrap_or_default();
        if let Some(there) = self.attachments.get(&(id.clone(), node.clone())) {
            if there.capability == wanted && there.readonly == request.readonly {
                return Ok(proto::ControllerPublishVolumeResponse { publish_context: there.context.clone() });
            }
            return Err(bench.violated(Code::AlreadyExists, "attached there with another capability"));
        }
        let elsewhere =
            self.attachments.keys().find(|(volume, _)| volume == id).map(|(_, node)| node.clone());
        if let Some(other) = elsewhere
            && !MULTI_NODE.contains(&rules::mode(&wanted))
        {
            return Err(bench.violated(Code::FailedPrecondition, format!("{id} is attached to {other}")));
        }
        // Where the request says who may write.
        let one_writes = rules::mode(&wanted) == Mode::MultiNodeSingleWriter as i32
            && bench.config.controller_can(Can::PublishReadonly)
            && !request.readonly;
        let writable = |(at, there): &(&(String, String), &Attachment)| at.0 == *id && !there.readonly;
        if let Some(((_, other), _)) = self.attachments.iter().find(writable).filter(|_| one_writes) {
            let message = format!("{id} is attached to {other} for writing");
            return Err(bench.violated(Code::FailedPrecondition, message));
        }
        let limit = usize::try_from(bench.config.max_volumes).unwrap_or(0);
        if limit > 0 && self.attachments.keys().filter(|(_, on)| on == node).count() >= limit {
            return Err(Refusal::new(Code::ResourceExhausted, format!("{node} holds {limit} volumes")));
        }
        let mut context = bench.config.publish_context.clone();
        context.insert("attached to".into(), node.clone());
        let attachment =
            Attachment { capability: wanted, readonly: request.readonly, context: context.clone() };
        self.attachments.insert((id.clone(), node.clone()), attachment);
        Ok(proto::ControllerPublishVolumeResponse { publish_context: context })
    }

    pub(super) fn detach(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ControllerUnpublishVolumeRequest,
    ) -> Result<proto::ControllerUnpublishVolumeResponse, Refusal> {
        demand(bench, Can::PublishUnpublishVolume)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        // Unset would mean all nodes.
        rules::text(bench, "node_id", &request.node_id)?;
        let place = (request.volume_id.clone(), request.node_id.clone());
        let held = self.stages.contains_key(&place) || self.publications.keys().any(|(at, _)| *at == place);
        if held && !self.fenced.contains(&request.node_id) {
            let message = format!("{} is staged or published on {}", place.0, place.1);
            return Err(bench.violated(Code::FailedPrecondition, message));
        }
        self.attachments.remove(&place);
        Ok(proto::ControllerUnpublishVolumeResponse {})
    }

    pub(super) fn validate(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ValidateVolumeCapabilitiesRequest,
    ) -> Result<proto::ValidateVolumeCapabilitiesResponse, Refusal> {
        demand_service(bench)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        let some = !request.volume_capabilities.is_empty();
        bench.demand(some, Code::InvalidArgument, "volume_capabilities are missing")?;
        for wanted in &request.volume_capabilities {
            capability(bench, Some(wanted))?;
        }
        let Some(volume) = self.volumes.get(&request.volume_id) else {
            return Err(Refusal::new(Code::NotFound, format!("no volume {}", request.volume_id)));
        };
        if volume.context != request.volume_context {
            let message = "the context is another".into();
            return Ok(proto::ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context.clone(),
            volume_capabilities: request.volume_capabilities.clone(),
            parameters: request.parameters.clone(),
            mutable_parameters: request.mutable_parameters.clone(),
        };
        Ok(proto::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
    }

    pub(super) fn list(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ListVolumesRequest,
    ) -> Result<proto::ListVolumesResponse, Refusal> {
        use proto::list_volumes_response::{Entry, VolumeStatus};
        demand(bench, Can::ListVolumes)?;
        let most = usize::try_from(request.max_entries);
        bench.demand(most.is_ok(), Code::InvalidArgument, "max_entries is negative")?;
        let from = match request.starting_token.as_str() {
            "" => 0,
            token => match token.parse::<usize>() {
                Ok(from) if from <= self.volumes.len() => from,
                Ok(_) | Err(_) => return Err(Refusal::new(Code::Aborted, "no such token")),
            },
        };
        let most = most.ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
        let told = bench.config.controller_can(Can::ListVolumesPublishedNodes);
        let entry = |(id, volume): (&String, &Volume)| {
            let nodes = self.attachments.keys().filter(|(attached, _)| attached == id);
            let published_node_ids = nodes.map(|(_, node)| node.clone()).collect();
            Entry {
                volume: Some(describe(id, volume, &volume.request.clone().unwrap_or_default())),
                status: told
                    .then(|| VolumeStatus { published_node_ids, volume_condition: condition(bench, id) }),
            }
        };
        let entries = self.volumes.iter().skip(from).take(most).map(entry).collect::<Vec<_>>();
        let end = from + entries.len();
        let next_token = if end < self.volumes.len() { end.to_string() } else { String::new() };
        Ok(proto::ListVolumesResponse { entries, next_token })
    }

    pub(super) fn capacity(&mut self, bench: &mut Bench<'_>) -> Result<proto::GetCapacityResponse, Refusal> {
        demand(bench, Can::GetCapacity)?;
        Ok(proto::GetCapacityResponse {
            available_capacity: bench.config.total_bytes - self.used(),
            maximum_volume_size: Some(bench.config.max_volume_bytes),
            minimum_volume_size: None,
        })
    }
}

fn check_create(bench: &mut Bench<'_>, request: &proto::CreateVolumeRequest) -> Result<(), Refusal> {
    rules::text(bench, "name", &request.name)?;
    bench.demand(request.name.len() <= 128, Code::InvalidArgument, "name is too long")?;
    let some = !request.volume_capabilities.is_empty();
    bench.demand(some, Code::InvalidArgument, "volume_capabilities are missing")?;
    for wanted in &request.volume_capabilities {
        capability(bench, Some(wanted))?;
    }
    rules::map(bench, "parameters", &request.parameters)?;
    rules::map(bench, "secrets", &request.secrets)?;
    if let Some(range) = &request.capacity_range {
        let (required, limit) = (range.required_bytes, range.limit_bytes);
        let sane =
            required >= 0 && limit >= 0 && (required > 0 || limit > 0) && (limit == 0 || limit >= required);
        bench.demand(sane, Code::InvalidArgument, "capacity_range makes no sense")?;
    }
    if let Some(wanted) = &request.accessibility_requirements {
        let used = bench.config.has_service(Service::VolumeAccessibilityConstraints);
        bench.demand(used, Code::InvalidArgument, "VOLUME_ACCESSIBILITY_CONSTRAINTS is not reported")?;
        let some = !wanted.requisite.is_empty() || !wanted.preferred.is_empty();
        bench.demand(some, Code::InvalidArgument, "accessibility_requirements are empty")?;
    }
    let modify = request.mutable_parameters.is_empty() || bench.config.controller_can(Can::ModifyVolume);
    bench.demand(modify, Code::InvalidArgument, "MODIFY_VOLUME is not reported")?;
    super::growth::known(bench, &request.mutable_parameters)?;
    if let Some(source) = &request.volume_content_source {
        use proto::volume_content_source::Type;
        let can = match &source.r#type {
            Some(Type::Snapshot(_)) => bench.config.controller_can(Can::CreateDeleteSnapshot),
            Some(Type::Volume(_)) => bench.config.controller_can(Can::CloneVolume),
            None => false,
        };
        bench.demand(can, Code::InvalidArgument, "volumes cannot be made from such a source")?;
    }
    Ok(())
}

/// What is told of how a volume is; nothing where that is not reported.
pub(super) fn condition(bench: &Bench<'_>, volume: &str) -> Option<proto::VolumeCondition> {
    bench.config.controller_can(Can::VolumeCondition).then(|| ill(bench, volume))
}

pub(super) fn ill(bench: &Bench<'_>, volume: &str) -> proto::VolumeCondition {
    let wrong = bench.config.ill.get(volume);
    proto::VolumeCondition { abnormal: wrong.is_some(), message: wrong.cloned().unwrap_or_default() }
}

pub(super) fn describe(id: &str, volume: &Volume, request: &proto::CreateVolumeRequest) -> proto::Volume {
    proto::Volume {
        capacity_bytes: volume.capacity,
        volume_id: id.to_owned(),
        volume_context: volume.context.clone(),
        content_source: request.volume_content_source.clone(),
        accessible_topology: volume.topology.clone(),
    }
}

#[allow(clippy::needless_pass_by_value)] // the shape that `map_err` wants
pub(super) fn broken(error: std::io::Error) -> Refusal {
    Refusal::new(Code::Internal, error.to_string())
}
