//! The calls of a [`Plugin`], one method each.
//!
//! The order of calls, and which of them a plugin's capabilities allow, is the caller's business. Expansion and
//! statistics of volumes have their place here when they are built.
use super::capabilities::{ControllerCapabilities, NodeCapabilities, PluginCapabilities};
use super::check;
use super::failure::Failure;
use super::plugin::{Plugin, Terms};
use super::proto;
use super::rpc::Rpc;

/// What a plugin that answers a probe says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It serves calls.
    Ready,
    /// It is well, and still starting.
    Starting,
}

type Answer<T> = Result<T, Failure>;

/// The Identity service.
impl Plugin {
    /// Name and version; judge them with [`check::plugin_info`].
    pub async fn get_plugin_info(&self, terms: impl Into<Terms>) -> Answer<proto::GetPluginInfoResponse> {
        self.call(proto::GetPluginInfoRequest {}, terms).await
    }

    /// What the plugin as a whole can do.
    pub async fn get_plugin_capabilities(&self, terms: impl Into<Terms>) -> Answer<PluginCapabilities> {
        let reply = self.call(proto::GetPluginCapabilitiesRequest {}, terms).await?;
        Ok(PluginCapabilities::from(&reply))
    }

    /// Whether the plugin is ready, asked over a connection of its own. One probe at a time.
    pub async fn probe(&self, terms: impl Into<Terms>) -> Answer<Readiness> {
        let reply = self.call_apart(proto::ProbeRequest {}, terms).await?;
        Ok(if reply.ready == Some(false) { Readiness::Starting } else { Readiness::Ready })
    }
}

/// The Controller service.
impl Plugin {
    /// Creates a volume. An OK that holds no usable volume is uncertain. Compare with [`check::created`].
    pub async fn create_volume(
        &self,
        request: proto::CreateVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::Volume> {
        let usable = |reply: &proto::CreateVolumeResponse| match check::volume(reply.volume.as_ref()) {
            Ok(_) => Ok(()),
            Err(fault) => Err(Failure::unusable(Rpc::CreateVolume, &fault)),
        };
        let reply = self.call_checked(request, terms, usable).await?;
        reply.volume.ok_or_else(|| Failure::unusable(Rpc::CreateVolume, &check::Fault::NoVolume))
    }

    /// Deletes a volume.
    pub async fn delete_volume(
        &self,
        request: proto::DeleteVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::DeleteVolumeResponse> {
        self.call(request, terms).await
    }

    /// Attaches a volume to a node. An OK with a context too large to keep is uncertain.
    pub async fn controller_publish_volume(
        &self,
        request: proto::ControllerPublishVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ControllerPublishVolumeResponse> {
        let usable = |reply: &proto::ControllerPublishVolumeResponse| {
            check::map("publish_context", &reply.publish_context)
                .map_err(|fault| Failure::unusable(Rpc::ControllerPublishVolume, &fault))
        };
        self.call_checked(request, terms, usable).await
    }

    /// Detaches a volume from a node.
    pub async fn controller_unpublish_volume(
        &self,
        request: proto::ControllerUnpublishVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ControllerUnpublishVolumeResponse> {
        self.call(request, terms).await
    }

    /// Asks whether a volume can do what is wanted of it; read the answer with [`check::confirmation`].
    pub async fn validate_volume_capabilities(
        &self,
        request: proto::ValidateVolumeCapabilitiesRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ValidateVolumeCapabilitiesResponse> {
        self.call(request, terms).await
    }

    /// One page of the plugin's volumes.
    pub async fn list_volumes(
        &self,
        request: proto::ListVolumesRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ListVolumesResponse> {
        self.call(request, terms).await
    }

    /// The space that is left.
    pub async fn get_capacity(
        &self,
        request: proto::GetCapacityRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::GetCapacityResponse> {
        self.call(request, terms).await
    }

    /// Makes a volume larger. Judge the answer with [`check::expanded`].
    pub async fn controller_expand_volume(
        &self,
        request: proto::ControllerExpandVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ControllerExpandVolumeResponse> {
        self.call(request, terms).await
    }

    /// What the controller service can do.
    pub async fn controller_get_capabilities(
        &self,
        terms: impl Into<Terms>,
    ) -> Answer<ControllerCapabilities> {
        let reply = self.call(proto::ControllerGetCapabilitiesRequest {}, terms).await?;
        Ok(ControllerCapabilities::from(&reply))
    }
}

/// The Node service.
impl Plugin {
    /// Makes a volume ready for use on this node.
    pub async fn node_stage_volume(
        &self,
        request: proto::NodeStageVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::NodeStageVolumeResponse> {
        self.call(request, terms).await
    }

    /// Undoes [`node_stage_volume`](Self::node_stage_volume).
    pub async fn node_unstage_volume(
        &self,
        request: proto::NodeUnstageVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::NodeUnstageVolumeResponse> {
        self.call(request, terms).await
    }

    /// Makes a volume appear at a target path.
    pub async fn node_publish_volume(
        &self,
        request: proto::NodePublishVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::NodePublishVolumeResponse> {
        self.call(request, terms).await
    }

    /// Undoes [`node_publish_volume`](Self::node_publish_volume).
    pub async fn node_unpublish_volume(
        &self,
        request: proto::NodeUnpublishVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::NodeUnpublishVolumeResponse> {
        self.call(request, terms).await
    }

    /// Brings a volume on this node to its new size.
    pub async fn node_expand_volume(
        &self,
        request: proto::NodeExpandVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::NodeExpandVolumeResponse> {
        self.call(request, terms).await
    }

    /// What the node service can do.
    pub async fn node_get_capabilities(&self, terms: impl Into<Terms>) -> Answer<NodeCapabilities> {
        let reply = self.call(proto::NodeGetCapabilitiesRequest {}, terms).await?;
        Ok(NodeCapabilities::from(&reply))
    }

    /// What the plugin calls this node; judge it with [`check::node_info`].
    pub async fn node_get_info(&self, terms: impl Into<Terms>) -> Answer<proto::NodeGetInfoResponse> {
        self.call(proto::NodeGetInfoRequest {}, terms).await
    }
}
