//! The Node service: volumes are put on target paths and taken away. There is nothing to stage.
use tonic::{Request, Response, Status, async_trait};

use super::{Core, publish};
use crate::csi::proto;
use crate::csi::proto::node_server::Node;
use crate::csi::proto::node_service_capability::rpc::Type as Rpc;
use crate::drivers::record::Publication;
use crate::drivers::refusal::Refusal;
use crate::drivers::request;
use crate::drivers::service::Driver;

#[async_trait]
impl Node for Driver<Core> {
    async fn node_publish_volume(
        &self,
        request: Request<proto::NodePublishVolumeRequest>,
    ) -> Result<Response<proto::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.publish(&request)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<proto::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<proto::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| {
            request::volume_id(&request.volume_id)?;
            let target = request::path("target_path", &request.target_path)?;
            publish::unpublish(&core.volumes, &request.volume_id, &target)?;
            Ok(proto::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<proto::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<proto::NodeGetCapabilitiesResponse>, Status> {
        use proto::node_service_capability::{Rpc as Wrapped, Type};
        let rpc = Wrapped { r#type: Rpc::SingleNodeMultiWriter.into() };
        let capabilities = vec![proto::NodeServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(Response::new(proto::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<proto::NodeGetInfoRequest>,
    ) -> Result<Response<proto::NodeGetInfoResponse>, Status> {
        Ok(Response::new(proto::NodeGetInfoResponse {
            node_id: self.core.node_id.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.core.topology()),
        }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<proto::NodeStageVolumeRequest>,
    ) -> Result<Response<proto::NodeStageVolumeResponse>, Status> {
        Err(Status::unimplemented("there is nothing to stage"))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<proto::NodeUnstageVolumeRequest>,
    ) -> Result<Response<proto::NodeUnstageVolumeResponse>, Status> {
        Err(Status::unimplemented("there is nothing to stage"))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<proto::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<proto::NodeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("a directory has no size of its own"))
    }

    async fn node_expand_volume(
        &self,
        _: Request<proto::NodeExpandVolumeRequest>,
    ) -> Result<Response<proto::NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes do not grow"))
    }
}

impl Core {
    fn publish(
        &self,
        asked: &proto::NodePublishVolumeRequest,
    ) -> Result<proto::NodePublishVolumeResponse, Refusal> {
        let id = request::volume_id(&asked.volume_id)?;
        let target = request::path("target_path", &asked.target_path)?;
        let capability = request::the_capability(asked.volume_capability.as_ref(), self)?;
        let id = id.ok_or_else(|| Refusal::NoVolume { volume: asked.volume_id.clone() })?;
        let publication = Publication { target, capability, read_only: asked.readonly };
        publish::publish(&self.volumes, &id, &publication)?;
        Ok(proto::NodePublishVolumeResponse {})
    }
}
