//! The Node service.
use std::collections::BTreeMap;

use super::super::capabilities::NodeCapabilities;
use super::super::check;
use super::super::failure::Failure;
use super::super::gates::Alpha;
use super::super::plugin::{Plugin, Terms};
use super::super::proto;
use super::super::rpc::Rpc;
use super::{Answer, usable};

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

    /// What the node service can do.
    pub async fn node_get_capabilities(&self, terms: impl Into<Terms>) -> Answer<NodeCapabilities> {
        let reply = self.call(proto::NodeGetCapabilitiesRequest {}, terms).await?;
        Ok(NodeCapabilities::from(&reply))
    }

    /// What the plugin calls this node; judge it with [`check::node_info`].
    pub async fn node_get_info(&self, terms: impl Into<Terms>) -> Answer<proto::NodeGetInfoResponse> {
        self.call(proto::NodeGetInfoRequest {}, terms).await
    }

    /// How full a volume is, and how it is. Only when nobody else is at the volume ([`Failure::is_busy`]), and never for
    /// longer than [`LONGEST_READ`](super::super::plugin::LONGEST_READ): so nothing waits for it longer than that, even
    /// when the file system behind it hangs. What makes no sense in the answer is left out.
    pub async fn node_get_volume_stats(
        &self,
        request: proto::NodeGetVolumeStatsRequest,
        terms: impl Into<Terms>,
    ) -> Answer<check::Stats> {
        self.call(request, terms).await.map(|reply| check::stats(&reply))
    }

    /// Makes the file system on this node as large as its volume. What it has then, in bytes, if the plugin says so. Its
    /// secrets are alpha: they are sent only where that is switched on.
    pub async fn node_expand_volume(
        &self,
        mut request: proto::NodeExpandVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<Option<i64>> {
        let terms = terms.into();
        if self.alpha(&terms) == Alpha::Off {
            request.secrets.clear();
        }
        let asked = proto::NodeExpandVolumeRequest {
            secrets: BTreeMap::new(),
            volume_id: String::new(),
            ..request.clone()
        };
        let judge = |reply: &_| usable(Rpc::NodeExpandVolume, check::node_expanded(&asked, reply));
        let reply = self.call_checked(request, terms, judge).await?;
        check::node_expanded(&asked, &reply).map_err(|fault| Failure::unusable(Rpc::NodeExpandVolume, &fault))
    }
}
