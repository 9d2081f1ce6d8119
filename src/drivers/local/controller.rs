//! The Controller service: volumes and snapshots are made, listed and deleted, and volumes grow. There is nothing to attach.
use tonic::{Request, Response, Status, async_trait};

use super::volumes::{Placement, Record, Wanted};
use super::{Backing, Core};
use crate::csi::proto;
use crate::csi::proto::controller_server::Controller;
use crate::csi::proto::controller_service_capability::rpc::Type as Rpc;
use crate::drivers::listing::{self, wire};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{self, CapabilityFault, Source};
use crate::drivers::service::Driver;
use crate::drivers::snapshots;

#[async_trait]
impl<B: Backing> Controller for Driver<Core<B>> {
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
            Rpc::GetCapacity,
            Rpc::ListVolumes,
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

    async fn controller_publish_volume(
        &self,
        _: Request<proto::ControllerPublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("there is nothing to attach"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<proto::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("there is nothing to attach"))
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

impl<B: Backing> Core<B> {
    fn create(&self, asked: &proto::CreateVolumeRequest) -> Result<proto::Volume, Refusal> {
        let name = request::name(&asked.name)?;
        request::capabilities(&asked.volume_capabilities, self)?;
        let size = request::size(asked.capacity_range.as_ref())?;
        request::no_parameters("parameters", asked.parameters.keys())?;
        request::no_parameters("mutable_parameters", asked.mutable_parameters.keys())?;
        let source = request::source(asked.volume_content_source.as_ref())?;
        let requirement = asked.accessibility_requirements.as_ref();
        let here = match request::topology_allows(requirement, &self.topology())? {
            false => Placement::Elsewhere,
            true if requirement.is_some() => Placement::Here,
            true => Placement::Anywhere,
        };
        let wanted = Wanted { name, size, parameters: asked.parameters.clone(), source, here };
        self.volumes.create(&wanted).map(|record| self.describe(&record))
    }

    fn describe(&self, record: &Record) -> proto::Volume {
        proto::Volume {
            capacity_bytes: wire(record.capacity),
            volume_id: record.id.as_str().to_owned(),
            volume_context: [].into(),
            content_source: record.source.as_ref().map(Source::wire),
            accessible_topology: vec![self.topology()],
        }
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
                Ok(_) => {}
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
        let ids = self.volumes.homes.ids()?;
        let (page, next_token) = listing::page(&ids, asked.max_entries, &asked.starting_token)?;
        let entries = page.into_iter().filter_map(|id| self.volumes.homes.find_or_warn(id));
        Ok(proto::ListVolumesResponse {
            entries: entries.map(|record| self.entry(&record)).collect(),
            next_token,
        })
    }

    fn entry(&self, record: &Record) -> proto::list_volumes_response::Entry {
        proto::list_volumes_response::Entry { volume: Some(self.describe(record)), status: None }
    }

    fn get(
        &self,
        asked: &proto::ControllerGetVolumeRequest,
    ) -> Result<proto::ControllerGetVolumeResponse, Refusal> {
        let missing = || Refusal::NoVolume { volume: asked.volume_id.clone() };
        let id = request::volume_id(&asked.volume_id)?.ok_or_else(missing)?;
        let record = self.volumes.homes.find(&id)?.ok_or_else(missing)?;
        // There is nothing to attach; the contract wants the message all the same.
        let status = proto::controller_get_volume_response::VolumeStatus::default();
        Ok(proto::ControllerGetVolumeResponse { volume: Some(self.describe(&record)), status: Some(status) })
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
        request::any_capability(asked.volume_capability.as_ref(), self)?;
        let id = id.ok_or_else(|| Refusal::NoVolume { volume: asked.volume_id.clone() })?;
        let record = self.volumes.expand(&id, size)?;
        Ok(proto::ControllerExpandVolumeResponse {
            capacity_bytes: wire(record.capacity),
            node_expansion_required: false,
        })
    }

    fn capacity(&self, asked: &proto::GetCapacityRequest) -> Result<proto::GetCapacityResponse, Refusal> {
        let impossible = asked.volume_capabilities.iter().any(|one| request::capability(one, self).is_err())
            || asked.accessible_topology.as_ref().is_some_and(|term| !self.is_in(term))
            || request::no_parameters("parameters", asked.parameters.keys()).is_err();
        // Nothing can be made of what cannot be made: that is an answer, not a fault of the caller.
        let available = if impossible { 0 } else { wire(self.volumes.room()?.available) };
        Ok(proto::GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: Some(available),
            minimum_volume_size: None,
        })
    }

    fn is_in(&self, term: &proto::Topology) -> bool {
        request::matches(term, &self.topology())
    }
}
