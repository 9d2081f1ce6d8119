//! The Node service: volumes are staged, put on target paths and taken away.
use tonic::{Request, Response, Status, async_trait};

use super::{Core, publish, stage};
use crate::csi::proto;
use crate::csi::proto::node_server::Node;
use crate::csi::proto::node_service_capability::rpc::Type as Rpc;
use crate::drivers::publish::take_off_unknown;
use crate::drivers::record::Publication;
use crate::drivers::refusal::Refusal;
use crate::drivers::request;
use crate::drivers::service::Driver;

#[async_trait]
impl Node for Driver<Core> {
    async fn node_stage_volume(
        &self,
        request: Request<proto::NodeStageVolumeRequest>,
    ) -> Result<Response<proto::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.stage(request)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<proto::NodeUnstageVolumeRequest>,
    ) -> Result<Response<proto::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| {
            let volume = request::volume_id(&request.volume_id)?;
            let staging = request::path("staging_target_path", &request.staging_target_path)?;
            match volume {
                Some(volume) => stage::unstage(core, &volume, &staging)?,
                None => take_off_unknown(&request.volume_id, &staging)?,
            }
            Ok(proto::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<proto::NodePublishVolumeRequest>,
    ) -> Result<Response<proto::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.publish_at(request)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<proto::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<proto::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| {
            let volume = request::volume_id(&request.volume_id)?;
            let target = request::path("target_path", &request.target_path)?;
            match volume {
                Some(volume) => publish::unpublish(core, &volume, &target)?,
                None => take_off_unknown(&request.volume_id, &target)?,
            }
            Ok(proto::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<proto::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<proto::NodeGetCapabilitiesResponse>, Status> {
        use proto::node_service_capability::{Rpc as Wrapped, Type};
        let capability = |rpc: Rpc| proto::NodeServiceCapability {
            r#type: Some(Type::Rpc(Wrapped { r#type: rpc.into() })),
        };
        let served =
            [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::SingleNodeMultiWriter];
        let capabilities = served.map(capability).to_vec();
        Ok(Response::new(proto::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<proto::NodeGetInfoRequest>,
    ) -> Result<Response<proto::NodeGetInfoResponse>, Status> {
        Ok(Response::new(proto::NodeGetInfoResponse {
            node_id: self.core.node_id.clone(),
            max_volumes_per_node: self.core.max_volumes.into(),
            accessible_topology: self.core.topology(),
        }))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<proto::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<proto::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.stats(&request)).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<proto::NodeExpandVolumeRequest>,
    ) -> Result<Response<proto::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.expand_here(&request)).await
    }
}

impl Core {
    fn stage(&self, asked: proto::NodeStageVolumeRequest) -> Result<proto::NodeStageVolumeResponse, Refusal> {
        let volume = request::volume_id(&asked.volume_id)?;
        let staging = request::path("staging_target_path", &asked.staging_target_path)?;
        let capability = request::the_capability(asked.volume_capability.as_ref(), self)?;
        let volume = volume.ok_or(Refusal::NoVolume { volume: asked.volume_id })?;
        stage::stage(self, &volume, &stage::Asked { context: asked.publish_context, staging, capability })?;
        Ok(proto::NodeStageVolumeResponse {})
    }

    fn publish_at(
        &self,
        asked: proto::NodePublishVolumeRequest,
    ) -> Result<proto::NodePublishVolumeResponse, Refusal> {
        let volume = request::volume_id(&asked.volume_id)?;
        let target = request::path("target_path", &asked.target_path)?;
        let capability = request::the_capability(asked.volume_capability.as_ref(), self)?;
        let volume = volume.ok_or_else(|| Refusal::NoVolume { volume: asked.volume_id.clone() })?;
        if asked.staging_target_path.is_empty() {
            let problem = "is to be published, and staging_target_path is missing".to_owned();
            return Err(Refusal::Unfit { volume: asked.volume_id, problem });
        }
        let staging = request::path("staging_target_path", &asked.staging_target_path)?;
        let publication = Publication { target, capability, read_only: asked.readonly };
        let asked = publish::Asked { context: asked.publish_context, staging, publication };
        publish::publish(self, &volume, &asked)?;
        Ok(proto::NodePublishVolumeResponse {})
    }
}
