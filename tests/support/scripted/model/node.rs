//! The Node service, with both of the specification's tables about `NodePublishVolume`.
use wharfline::csi::proto::controller_service_capability::rpc::Type as ControllerCan;
use wharfline::csi::proto::node_service_capability::rpc::Type as Can;
use wharfline::csi::proto::plugin_capability::service::Type as Service;
use wharfline::csi::{Code, proto};

use super::super::mounts;
use super::controller::broken;
use super::rules;
use super::{Bench, Map, Model, Place, Publication, Refusal, Stage};

fn capability(bench: &mut Bench<'_>, wanted: Option<&proto::VolumeCapability>) -> Result<(), Refusal> {
    let several_writers = bench.config.node_can(Can::SingleNodeMultiWriter);
    rules::capability(bench, wanted, several_writers)
}

fn demand_staging(bench: &mut Bench<'_>) -> Result<(), Refusal> {
    let there = bench.config.node_can(Can::StageUnstageVolume);
    bench.demand(there, Code::Unimplemented, "STAGE_UNSTAGE_VOLUME is not reported")
}

fn attaches(bench: &Bench<'_>) -> bool {
    bench.config.has_service(Service::ControllerService)
        && bench.config.controller_can(ControllerCan::PublishUnpublishVolume)
}

impl Model {
    fn here(bench: &Bench<'_>, volume: &str) -> Place {
        (volume.to_owned(), bench.site.node_id.clone())
    }

    /// A volume for one node is held by one node, whether the plugin attaches or not.
    fn check_holder(
        &self,
        bench: &mut Bench<'_>,
        id: &str,
        wanted: &proto::VolumeCapability,
    ) -> Result<(), Refusal> {
        let held = self.stages.keys().chain(self.publications.keys().map(|(place, _)| place));
        let other = held.into_iter().find(|(volume, node)| {
            volume == id && *node != bench.site.node_id && !self.fenced.contains(node)
        });
        match other {
            Some((_, node)) if !rules::MULTI_NODE.contains(&rules::mode(wanted)) => {
                let message = format!("{id} is held by {node} too");
                Err(bench.violated(Code::FailedPrecondition, message))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The volume exists, is attached here where that is needed, and both contexts are its own.
    fn usable(
        &mut self,
        bench: &mut Bench<'_>,
        id: &str,
        publish_context: &Map,
        volume_context: &Map,
    ) -> Result<(), Refusal> {
        if !self.volumes.contains_key(id) {
            // Nobody told this backend of its volumes: they are there when they are named.
            if bench.config.has_service(Service::ControllerService) {
                return Err(Refusal::new(Code::NotFound, format!("no volume {id}")));
            }
            self.add_existing(id, volume_context.clone());
        }
        let context = *volume_context == self.volumes[id].context;
        bench.demand(context, Code::InvalidArgument, "volume_context is not that of the volume")?;
        if !attaches(bench) {
            let empty = publish_context.is_empty();
            return bench.demand(empty, Code::InvalidArgument, "publish_context without attaching");
        }
        let node = bench.site.node_id.clone();
        match self.attachments.get(&Self::here(bench, id)) {
            None => Err(bench.violated(Code::FailedPrecondition, format!("{id} is not attached to {node}"))),
            Some(attachment) => {
                let same = attachment.context == *publish_context;
                bench.demand(same, Code::InvalidArgument, "publish_context is not that of the attachment")
            }
        }
    }

    pub(super) fn stage(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::NodeStageVolumeRequest,
    ) -> Result<proto::NodeStageVolumeResponse, Refusal> {
        demand_staging(bench)?;
        rules::text(bench, "volume_id", &request.volume_id)?;
        rules::path(bench, "staging_target_path", &request.staging_target_path)?;
        capability(bench, request.volume_capability.as_ref())?;
        rules::map(bench, "secrets", &request.secrets)?;
        self.usable(bench, &request.volume_id, &request.publish_context, &request.volume_context)?;
        let wanted = request.volume_capability.clone().unwrap_or_default();
        self.check_holder(bench, &request.volume_id, &wanted)?;
        let frozen = proto::NodeStageVolumeRequest { secrets: Map::new(), ..request.clone() };
        let place = Self::here(bench, &request.volume_id);
        if let Some(there) = self.stages.get(&place) {
            if there.request == frozen {
                return Ok(proto::NodeStageVolumeResponse {});
            }
            let (code, message) = if there.request.staging_target_path == request.staging_target_path {
                (Code::AlreadyExists, "staged there with other arguments")
            } else {
                (Code::FailedPrecondition, "staged at another path")
            };
            return Err(bench.violated(code, message));
        }
        if !bench.config.bare_staging {
            mounts::stage(&bench.config.effects, &request.volume_id, &request.staging_target_path)
                .map_err(broken)?;
        }
        self.stages.insert(place, Stage { request: frozen });
        Ok(proto::NodeStageVolumeResponse {})
    }

    pub(super) fn unstage(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::NodeUnstageVolumeRequest,
    ) -> Result<proto::NodeUnstageVolumeResponse, Refusal> {
        let place = Self::here(bench, &request.volume_id);
        // What an earlier version staged is unstaged, whatever this one says.
        if !self.stages.contains_key(&place) {
            demand_staging(bench)?;
        }
        rules::text(bench, "volume_id", &request.volume_id)?;
        rules::path(bench, "staging_target_path", &request.staging_target_path)?;
        if self.publications.keys().any(|(at, _)| *at == place) {
            return Err(bench.violated(Code::FailedPrecondition, "still published on this node"));
        }
        if let Some(there) = self.stages.get(&place) {
            let same = there.request.staging_target_path == request.staging_target_path;
            bench.demand(same, Code::FailedPrecondition, "staged at another path")?;
            mounts::undo(&bench.config.effects, &request.staging_target_path).map_err(broken)?;
            self.stages.remove(&place);
        }
        Ok(proto::NodeUnstageVolumeResponse {})
    }

    pub(super) fn publish(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::NodePublishVolumeRequest,
    ) -> Result<proto::NodePublishVolumeResponse, Refusal> {
        rules::text(bench, "volume_id", &request.volume_id)?;
        rules::path(bench, "target_path", &request.target_path)?;
        capability(bench, request.volume_capability.as_ref())?;
        rules::map(bench, "secrets", &request.secrets)?;
        let place = Self::here(bench, &request.volume_id);
        let wanted = request.volume_capability.clone().unwrap_or_default();
        if is_ephemeral(request) {
            let alone = request.staging_target_path.is_empty()
                && request.publish_context.is_empty()
                && !self.volumes.contains_key(&request.volume_id);
            bench.demand(alone, Code::InvalidArgument, "ephemeral, and created, attached or staged")?;
        } else {
            self.usable(bench, &request.volume_id, &request.publish_context, &request.volume_context)?;
            self.check_staged(bench, &place, request)?;
            self.check_holder(bench, &request.volume_id, &wanted)?;
        }
        let frozen = proto::NodePublishVolumeRequest { secrets: Map::new(), ..request.clone() };
        if let Some(there) = self.publications.get(&(place.clone(), request.target_path.clone())) {
            // Same target: the same arguments are a repetition, others a mistake. Both tables agree.
            return if there.request == frozen {
                Ok(proto::NodePublishVolumeResponse {})
            } else {
                Err(bench.violated(Code::AlreadyExists, "published there with other arguments"))
            };
        }
        let elsewhere = self.publications.keys().any(|(at, _)| *at == place);
        if elsewhere && !rules::several_targets(&wanted) {
            return Err(bench.violated(Code::FailedPrecondition, "published at another target"));
        }
        let bare = bench.config.bare_staging;
        mounts::publish(&bench.config.effects, request, bare).map_err(broken)?;
        self.publications.insert((place, request.target_path.clone()), Publication { request: frozen });
        Ok(proto::NodePublishVolumeResponse {})
    }

    /// With staging: staged here, at the path named, with the same capability. Without it: no path.
    fn check_staged(
        &self,
        bench: &mut Bench<'_>,
        place: &Place,
        request: &proto::NodePublishVolumeRequest,
    ) -> Result<(), Refusal> {
        if !bench.config.node_can(Can::StageUnstageVolume) {
            let empty = request.staging_target_path.is_empty();
            return bench.demand(empty, Code::InvalidArgument, "staging_target_path without staging");
        }
        let path = !request.staging_target_path.is_empty();
        bench.demand(path, Code::FailedPrecondition, "staging_target_path is missing")?;
        if bench.config.careless {
            return Ok(());
        }
        let Some(stage) = self.stages.get(place) else {
            return Err(bench.violated(Code::FailedPrecondition, "not staged on this node"));
        };
        let same = stage.request.staging_target_path == request.staging_target_path;
        bench.demand(same, Code::FailedPrecondition, "staged at another path")?;
        let same = stage.request.volume_capability == request.volume_capability;
        bench.demand(same, Code::InvalidArgument, "staged with another capability")
    }

    pub(super) fn unpublish(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::NodeUnpublishVolumeRequest,
    ) -> Result<proto::NodeUnpublishVolumeResponse, Refusal> {
        rules::text(bench, "volume_id", &request.volume_id)?;
        rules::path(bench, "target_path", &request.target_path)?;
        let at = (Self::here(bench, &request.volume_id), request.target_path.clone());
        if self.publications.contains_key(&at) {
            mounts::undo(&bench.config.effects, &request.target_path).map_err(broken)?;
            mounts::remove_target(&bench.config.effects, &request.target_path).map_err(broken)?;
            let ended = self.publications.remove(&at);
            if ended.is_some_and(|ended| is_ephemeral(&ended.request)) {
                mounts::destroy(&bench.config.effects, &request.volume_id).map_err(broken)?;
            }
        }
        Ok(proto::NodeUnpublishVolumeResponse {})
    }
}

/// Whether it is there only while it is published, as Kubernetes says it.
fn is_ephemeral(request: &proto::NodePublishVolumeRequest) -> bool {
    request.volume_context.get("csi.storage.k8s.io/ephemeral").is_some_and(|value| value == "true")
}
