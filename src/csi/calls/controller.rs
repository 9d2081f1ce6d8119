//! The Controller service, but for snapshots.
use std::collections::BTreeMap;

use super::super::capabilities::ControllerCapabilities;
use super::super::check;
use super::super::failure::Failure;
use super::super::plugin::{Plugin, Terms};
use super::super::proto;
use super::super::rpc::Rpc;
use super::{Answer, usable};

/// The Controller service.
impl Plugin {
    /// Creates a volume. An OK that holds no usable volume is uncertain. Compare with [`check::created`].
    pub async fn create_volume(
        &self,
        request: proto::CreateVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::Volume> {
        let judge = |reply: &proto::CreateVolumeResponse| {
            usable(Rpc::CreateVolume, check::volume(reply.volume.as_ref()))
        };
        let reply = self.call_checked(request, terms, judge).await?;
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
        let judge = |reply: &proto::ControllerPublishVolumeResponse| {
            usable(Rpc::ControllerPublishVolume, check::map("publish_context", &reply.publish_context))
        };
        self.call_checked(request, terms, judge).await
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

    /// One page of the plugin's volumes; [`Pages`](check::Pages) finds the way through all of them.
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

    /// What the controller service can do.
    pub async fn controller_get_capabilities(
        &self,
        terms: impl Into<Terms>,
    ) -> Answer<ControllerCapabilities> {
        let reply = self.call(proto::ControllerGetCapabilitiesRequest {}, terms).await?;
        Ok(ControllerCapabilities::from(&reply))
    }

    /// Makes a volume larger. An OK with a size outside the range asked for is uncertain: the volume may have grown.
    pub async fn controller_expand_volume(
        &self,
        request: proto::ControllerExpandVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<check::Expanded> {
        let asked = proto::ControllerExpandVolumeRequest {
            secrets: BTreeMap::new(),
            volume_id: String::new(),
            ..request.clone()
        };
        let judge = |reply: &_| usable(Rpc::ControllerExpandVolume, check::expanded(&asked, reply));
        let reply = self.call_checked(request, terms, judge).await?;
        check::expanded(&asked, &reply)
            .map_err(|fault| Failure::unusable(Rpc::ControllerExpandVolume, &fault))
    }

    /// Changes what may be changed of a volume. The request holds every parameter that is managed, not only those that are
    /// new: a plugin takes what is left out for "as it is".
    pub async fn controller_modify_volume(
        &self,
        request: proto::ControllerModifyVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ControllerModifyVolumeResponse> {
        self.call(request, terms).await
    }

    /// What the plugin knows of one volume. Alpha, and only when nobody else is at the volume
    /// ([`Failure::is_busy`]).
    pub async fn controller_get_volume(
        &self,
        request: proto::ControllerGetVolumeRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ControllerGetVolumeResponse> {
        let asked = request.volume_id.clone();
        let judge = |reply: &_| usable(Rpc::ControllerGetVolume, check::got_volume(&asked, reply));
        self.call_checked(request, terms, judge).await
    }
}
