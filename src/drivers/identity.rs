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
        let service = |kind: &Offered| proto::PluginCapability {
            r#type: Some(proto::plugin_capability::Type::Service(proto::plugin_capability::Service {
                r#type: (*kind).into(),
            })),
        };
        let capabilities = C::OFFERED.iter().map(service).collect();
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
