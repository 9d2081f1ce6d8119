//! The Node service: volumes are put on target paths and taken away. There is nothing to stage.
use tonic::{Request, Response, Status, async_trait};

use super::volumes::open_data;
use super::{Backing, Core, ephemeral, publish};
use crate::csi::proto;
use crate::csi::proto::node_server::Node;
use crate::csi::proto::node_service_capability::rpc::Type as Rpc;
use crate::drivers::record::Publication;
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{self, TargetPath, VolumeId};
use crate::drivers::service::Driver;
use crate::drivers::stats;

#[async_trait]
impl<B: Backing> Node for Driver<Core<B>> {
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
            core.unpublish(&request.volume_id, &target)?;
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
        let capabilities = [Rpc::GetVolumeStats, Rpc::SingleNodeMultiWriter].map(capability).to_vec();
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
        request: Request<proto::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<proto::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.off_the_runtime(move |core| core.stats(&request)).await
    }

    async fn node_expand_volume(
        &self,
        _: Request<proto::NodeExpandVolumeRequest>,
    ) -> Result<Response<proto::NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("the node has no part in growing a volume"))
    }
}

impl<B: Backing> Core<B> {
    fn publish(
        &self,
        asked: &proto::NodePublishVolumeRequest,
    ) -> Result<proto::NodePublishVolumeResponse, Refusal> {
        let id = request::volume_id(&asked.volume_id)?;
        let target = request::path("target_path", &asked.target_path)?;
        let capability = request::the_capability(asked.volume_capability.as_ref(), self)?;
        let publication = Publication { target, capability, read_only: asked.readonly };
        if let Some(attributes) = ephemeral::asked(&asked.volume_context) {
            ephemeral::publish(&self.volumes, &asked.volume_id, &attributes, &publication)?;
            return Ok(proto::NodePublishVolumeResponse {});
        }
        let id = id.ok_or_else(|| Refusal::NoVolume { volume: asked.volume_id.clone() })?;
        publish::publish(&self.volumes.homes, (&id, &asked.volume_id), &publication)?;
        Ok(proto::NodePublishVolumeResponse {})
    }

    fn unpublish(&self, handle: &str, target: &TargetPath) -> Result<(), Refusal> {
        match VolumeId::parse(handle) {
            Some(volume) => publish::unpublish(&self.volumes.homes, &volume, target),
            None => ephemeral::unpublish(&self.volumes, handle, target),
        }
    }

    /// Looks without waiting for a call on the volume, and keeps none waiting.
    fn stats(
        &self,
        asked: &proto::NodeGetVolumeStatsRequest,
    ) -> Result<proto::NodeGetVolumeStatsResponse, Refusal> {
        let id = request::volume_id(&asked.volume_id)?;
        let path = request::path("volume_path", &asked.volume_path)?;
        let missing = || Refusal::NoVolume { volume: asked.volume_id.clone() };
        let own = ephemeral::id(&self.volumes, &asked.volume_id);
        let (homes, id) = match self.volumes.ephemeral.find(&own)? {
            Some(_) => (&self.volumes.ephemeral, own),
            None => (&self.volumes.homes, id.ok_or_else(missing)?),
        };
        homes.find(&id)?.ok_or_else(missing)?;
        let home_path = homes.home_path(&id);
        let home = homes.home(&id)?.ok_or_else(missing)?;
        let data = open_data(&home, &home_path)?;
        if !publish::is_at(&id, &data, &path)? {
            let path = path.as_path().to_owned();
            return Err(Refusal::NotThere { volume: asked.volume_id.clone(), path });
        }
        let failed = || Refusal::failed("look at", &home_path);
        Ok(stats::answer(B::usage(&data).map_err(failed())?, B::entries(&data).map_err(failed())?))
    }
}
