//! The Controller service: volumes and snapshots are made, listed and deleted, and volumes attached, detached and grown.
use tonic::{Request, Response, Status, async_trait};

use super::Core;
use super::attachment::Attachment;
use super::image::FsType;
use super::volumes::{LEAST, Record, Wanted};
use crate::csi::proto;
use crate::csi::proto::controller_server::Controller;
use crate::csi::proto::controller_service_capability::rpc::Type as Rpc;
use crate::drivers::listing::{self, wire};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{self, Capability, CapabilityFault, Source};
use crate::drivers::service::Driver;
use crate::drivers::snapshots;
use crate::sys::Random as _;
use crate::sys::random::RealRandom;

#[async_trait]
impl Controller for Driver<Core> {
    async fn create_volume(
        &self,
        request: Request<proto::CreateVolumeRequest>,
    ) -> Result<Response<proto::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| {
            let volume = core.create(&request)?;
            Ok(proto::CreateVolumeResponse { volume: Some(volume) })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<proto::DeleteVolumeRequest>,
    ) -> Result<Response<proto::DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| {
            // What cannot be an id of ours names no volume, and no volume is what the caller wants.
            if let Some(id) = request::volume_id(&request.volume_id)? {
                core.volumes.delete(&id)?;
            }
            Ok(proto::DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<proto::ControllerPublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.attach(request)).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<proto::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| {
            // A volume or a node that is not known has nothing attached; with no node, all of them are meant.
            if let Some(id) = request::volume_id(&request.volume_id)? {
                let node = Some(request.node_id.as_str()).filter(|node| !node.is_empty());
                core.volumes.detach(&id, node)?;
            }
            Ok(proto::ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<proto::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<proto::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.validate(request)).await
    }

    async fn list_volumes(
        &self,
        request: Request<proto::ListVolumesRequest>,
    ) -> Result<Response<proto::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.list(&request)).await
    }

    async fn get_capacity(
        &self,
        request: Request<proto::GetCapacityRequest>,
    ) -> Result<Response<proto::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.capacity(&request)).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<proto::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<proto::ControllerGetCapabilitiesResponse>, Status> {
        use proto::controller_service_capability::{Rpc as Wrapped, Type};
        let served = [
            Rpc::CreateDeleteVolume,
            Rpc::PublishUnpublishVolume,
            Rpc::PublishReadonly,
            Rpc::ListVolumes,
            Rpc::ListVolumesPublishedNodes,
            Rpc::GetCapacity,
            Rpc::CreateDeleteSnapshot,
            Rpc::ListSnapshots,
            Rpc::GetSnapshot,
            Rpc::CloneVolume,
            Rpc::ExpandVolume,
            Rpc::GetVolume,
            Rpc::SingleNodeMultiWriter,
        ];
        let capability = |rpc: Rpc| proto::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Wrapped { r#type: rpc.into() })),
        };
        let capabilities = served.map(capability).to_vec();
        Ok(Response::new(proto::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<proto::CreateSnapshotRequest>,
    ) -> Result<Response<proto::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.snapshot(&request)).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<proto::DeleteSnapshotRequest>,
    ) -> Result<Response<proto::DeleteSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| snapshots::delete(&core.volumes.snapshots, &request)).await
    }

    async fn list_snapshots(
        &self,
        request: Request<proto::ListSnapshotsRequest>,
    ) -> Result<Response<proto::ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| snapshots::list(&core.volumes.snapshots, &request)).await
    }

    async fn get_snapshot(
        &self,
        request: Request<proto::GetSnapshotRequest>,
    ) -> Result<Response<proto::GetSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| snapshots::get(&core.volumes.snapshots, &request)).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<proto::ControllerExpandVolumeRequest>,
    ) -> Result<Response<proto::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.expand(&request)).await
    }

    async fn controller_get_volume(
        &self,
        request: Request<proto::ControllerGetVolumeRequest>,
    ) -> Result<Response<proto::ControllerGetVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.get(&request)).await
    }

    async fn controller_modify_volume(
        &self,
        _: Request<proto::ControllerModifyVolumeRequest>,
    ) -> Result<Response<proto::ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("nothing of a volume can be changed"))
    }
}

impl Core {
    fn create(&self, asked: &proto::CreateVolumeRequest) -> Result<proto::Volume, Refusal> {
        let name = request::name(&asked.name)?;
        let capabilities = request::capabilities(&asked.volume_capabilities, self)?;
        let size = request::size(asked.capacity_range.as_ref())?;
        request::no_parameters("parameters", asked.parameters.keys())?;
        request::no_parameters("mutable_parameters", asked.mutable_parameters.keys())?;
        let source = request::source(asked.volume_content_source.as_ref())?;
        let requirement = asked.accessibility_requirements.as_ref();
        let here = match (requirement, self.topology()) {
            (None, _) => true,
            (Some(_), Some(topology)) => request::topology_allows(requirement, &topology)?,
            (Some(_), None) => {
                return Err(Refusal::Invalid {
                    field: "accessibility_requirements",
                    problem: "are not supported: every node of the backend reaches every volume".into(),
                });
            }
        };
        // Any of them may be the one that is used.
        let least = capabilities.iter().map(least).max().unwrap_or(LEAST);
        let wanted = Wanted { name, size, least, parameters: asked.parameters.clone(), source, here };
        self.volumes.create(&wanted, &self.node_id).map(|record| self.describe(&record))
    }

    fn snapshot(
        &self,
        asked: &proto::CreateSnapshotRequest,
    ) -> Result<proto::CreateSnapshotResponse, Refusal> {
        let record = self.volumes.snapshot(&snapshots::wanted(asked)?)?;
        Ok(proto::CreateSnapshotResponse { snapshot: Some(snapshots::describe(&record)) })
    }

    fn expand(
        &self,
        asked: &proto::ControllerExpandVolumeRequest,
    ) -> Result<proto::ControllerExpandVolumeResponse, Refusal> {
        let id = request::volume_id(&asked.volume_id)?;
        let size = request::growth(asked.capacity_range.as_ref())?;
        let capability = request::any_capability(asked.volume_capability.as_ref(), self)?;
        let id = id.ok_or_else(|| Refusal::NoVolume { volume: asked.volume_id.clone() })?;
        let record = self.volumes.expand(&id, size)?;
        // A device that is made later has the new size; one that is there looks when it is told to.
        let block = capability.is_some_and(|capability| capability.block);
        Ok(proto::ControllerExpandVolumeResponse {
            capacity_bytes: wire(record.capacity),
            node_expansion_required: !block || !record.state.attachments.is_empty(),
        })
    }

    fn get(
        &self,
        asked: &proto::ControllerGetVolumeRequest,
    ) -> Result<proto::ControllerGetVolumeResponse, Refusal> {
        let missing = || Refusal::NoVolume { volume: asked.volume_id.clone() };
        let id = request::volume_id(&asked.volume_id)?.ok_or_else(missing)?;
        let record = self.volumes.homes.find(&id)?.ok_or_else(missing)?;
        let status = proto::controller_get_volume_response::VolumeStatus {
            published_node_ids: nodes(&record),
            ..Default::default()
        };
        Ok(proto::ControllerGetVolumeResponse { volume: Some(self.describe(&record)), status: Some(status) })
    }

    fn attach(
        &self,
        asked: proto::ControllerPublishVolumeRequest,
    ) -> Result<proto::ControllerPublishVolumeResponse, Refusal> {
        let id = request::volume_id(&asked.volume_id)?;
        if asked.node_id.is_empty() {
            return Err(Refusal::Invalid { field: "node_id", problem: "is missing".into() });
        }
        let capability = request::the_capability(asked.volume_capability.as_ref(), self)?;
        let id = id.ok_or_else(|| Refusal::NoVolume { volume: asked.volume_id.clone() })?;
        let record = self.volumes.homes.find(&id)?;
        let record = record.ok_or(Refusal::NoVolume { volume: asked.volume_id })?;
        let node = self.nodes.find(&asked.node_id)?;
        if let Some(problem) = too_small(&record, &capability) {
            return Err(Refusal::Unfit { volume: id.as_str().to_owned(), problem });
        }
        let token = RealRandom.token();
        let wanted = Attachment { node: asked.node_id, token, capability, read_only: asked.readonly };
        let attachment = self.volumes.attach(&id, &wanted, node.max_volumes)?;
        Ok(proto::ControllerPublishVolumeResponse { publish_context: attachment.context(&id) })
    }

    fn validate(
        &self,
        asked: proto::ValidateVolumeCapabilitiesRequest,
    ) -> Result<proto::ValidateVolumeCapabilitiesResponse, Refusal> {
        const FIELD: &str = "volume_capabilities";
        let id = request::volume_id(&asked.volume_id)?;
        if asked.volume_capabilities.is_empty() {
            return Err(Refusal::Invalid { field: FIELD, problem: "are missing".into() });
        }
        let record = id.map_or(Ok(None), |id| self.volumes.homes.find(&id))?;
        let Some(record) = record else { return Err(Refusal::NoVolume { volume: asked.volume_id }) };
        let no = |message: String| Ok(proto::ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        for one in &asked.volume_capabilities {
            match request::capability(one, self) {
                Ok(capability) => {
                    if let Some(problem) = too_small(&record, &capability) {
                        return no(format!("the volume {problem}"));
                    }
                }
                Err(CapabilityFault::Unsupported(problem)) => return no(problem),
                Err(malformed @ CapabilityFault::Malformed(_)) => return Err(malformed.refusal(FIELD)),
            }
        }
        if let Some(problem) = request::differs(&asked, &record.parameters) {
            return no(problem.into());
        }
        Ok(request::confirmed(asked))
    }

    fn list(&self, asked: &proto::ListVolumesRequest) -> Result<proto::ListVolumesResponse, Refusal> {
        use proto::list_volumes_response::{Entry, VolumeStatus};
        let ids = self.volumes.homes.ids()?;
        let (page, next_token) = listing::page(&ids, asked.max_entries, &asked.starting_token)?;
        let entry = |record: &Record| {
            let status = VolumeStatus { published_node_ids: nodes(record), ..Default::default() };
            Entry { volume: Some(self.describe(record)), status: Some(status) }
        };
        let entries = page.into_iter().filter_map(|id| self.volumes.homes.find_or_warn(id));
        Ok(proto::ListVolumesResponse { entries: entries.map(|record| entry(&record)).collect(), next_token })
    }

    fn describe(&self, record: &Record) -> proto::Volume {
        proto::Volume {
            capacity_bytes: wire(record.capacity),
            volume_id: record.id.as_str().to_owned(),
            volume_context: [].into(),
            content_source: record.source.as_ref().map(Source::wire),
            accessible_topology: self.topology().into_iter().collect(),
        }
    }

    fn capacity(&self, asked: &proto::GetCapacityRequest) -> Result<proto::GetCapacityResponse, Refusal> {
        let capabilities: Option<Vec<_>> =
            asked.volume_capabilities.iter().map(|one| request::capability(one, self).ok()).collect();
        let reachable = |term: &proto::Topology| {
            self.topology().is_some_and(|topology| request::matches(term, &topology))
        };
        let possible = asked.accessible_topology.as_ref().is_none_or(reachable)
            && request::no_parameters("parameters", asked.parameters.keys()).is_ok();
        // Nothing can be made of what cannot be made: that is an answer, not a fault of the caller.
        let (available, least) = match capabilities.filter(|_| possible) {
            Some(all) => (self.volumes.room()?.available, all.iter().map(least).max().unwrap_or(LEAST)),
            None => (0, LEAST),
        };
        Ok(proto::GetCapacityResponse {
            available_capacity: wire(available),
            maximum_volume_size: Some(wire(available)),
            minimum_volume_size: Some(wire(least)),
        })
    }
}

fn nodes(record: &Record) -> Vec<String> {
    record.state.attachments.iter().map(|attachment| attachment.node.clone()).collect()
}

/// The smallest volume that can be used so.
fn least(capability: &Capability) -> u64 {
    match FsType::parse(&capability.fs_type) {
        Some(fs) if !capability.block => fs.least(),
        Some(_) | None => LEAST,
    }
}

fn too_small(record: &Record, capability: &Capability) -> Option<String> {
    let (has, least) = (record.capacity, least(capability));
    (has < least).then(|| format!("has {has} bytes; {} needs {least} at least", capability.fs_type))
}
