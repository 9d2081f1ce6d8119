//! The Identity service: who this is, what it offers in general, whether its data is there.
use tonic::{Request, Response, Status, async_trait};

use super::service::{Core, Driver};
use crate::csi::proto;
use crate::csi::proto::identity_server::Identity;
use crate::csi::proto::plugin_capability::service::Type as Offered;

#[async_trait]
impl<C: Core> Identity for Driver<C> {
    async fn get_plugin_info(
        &self,
        _: Request<proto::GetPluginInfoRequest>,
    ) -> Result<Response<proto::GetPluginInfoResponse>, Status> {
        Ok(Response::new(proto::GetPluginInfoResponse {
            name: C::NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: [].into(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<proto::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<proto::GetPluginCapabilitiesResponse>, Status> {
        use proto::plugin_capability::volume_expansion::Type as Expansion;
        use proto::plugin_capability::{Service, Type, VolumeExpansion};
        let service = |kind: Offered| Type::Service(Service { r#type: kind.into() });
        let online = Type::VolumeExpansion(VolumeExpansion { r#type: Expansion::Online.into() });
        let all = self.core.offered().into_iter().map(service).chain([online]);
        let capabilities = all.map(|kind| proto::PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(proto::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<proto::ProbeRequest>) -> Result<Response<proto::ProbeResponse>, Status> {
        self.off_the_runtime(|core| {
            core.probe()?;
            Ok(proto::ProbeResponse { ready: Some(true) })
        })
        .await
    }
}
