//! Questions that change nothing at a driver that looks what it is given: what is listed, and calls that it has to refuse. One
//! that does not refuse to make something is asked to delete it at once; what it might undo it is asked only where it may be
//! exercised.
use super::card::point;
use super::examiner::{Examiner, MISSING, OK, ONLY_EXERCISED};
use super::scratch::Debt;
use crate::csi::proto::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use crate::csi::proto::{self, CapacityRange, VolumeContentSource};
use crate::csi::{Code, Plugin, Rpc, check};

const REQUIRED: &str = "A required field that is missing is INVALID_ARGUMENT.";
const GONE: &str = "What is not there is deleted: OK.";
const UNKNOWN: &str = "What is not there is NOT_FOUND.";
const NO_PARAMETER: &str = "A parameter that is none is INVALID_ARGUMENT.";
/// The code of what is not there.
const NOT_THERE: &[Code] = &[Code::NotFound];
/// Where two things are wrong of a request, each may be told.
const EITHER: &[Code] = &[Code::InvalidArgument, Code::NotFound];
const LISTS: &str = "Whoever lists answers each question for a list.";
const STALE: &str = "A token that is no token of a page is ABORTED.";
/// A page that no driver has given out.
const NO_TOKEN: &str = "wharfline-probe-no-such-page";
/// A path at which nothing is.
const NOWHERE: &str = "/nonexistent/wharfline-probe";

macro_rules! lacks {
    ($examiner:ident: $($rpc:ident($method:ident, $request:ident);)*) => {
        $($examiner.lacks(Rpc::$rpc, async |p, t| p.$method(proto::$request::default(), t).await).await;)*
    };
}

impl Examiner {
    /// Everything that can be asked without a volume.
    pub(super) async fn harmless(&mut self) {
        self.node_info().await;
        self.making().await;
        self.deleting().await;
        self.attaching().await;
        self.validating().await;
        self.listing().await;
        self.snapshots().await;
        self.growing().await;
        self.groups().await;
        self.staging().await;
        self.publishing().await;
        self.looking().await;
        self.unreported().await;
    }

    async fn making(&mut self) {
        let whole = proto::CreateVolumeRequest {
            name: self.name("refused"),
            volume_capabilities: vec![self.capability()],
            parameters: self.parameters.clone(),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let unnamed = proto::CreateVolumeRequest { name: String::new(), ..whole.clone() };
        let incapable = proto::CreateVolumeRequest { volume_capabilities: Vec::new(), ..whole.clone() };
        let asked = [("without a name", unnamed), ("without a capability", incapable)];
        for (case, request) in asked {
            let secrets = self.secrets.clone();
            self.ask(Rpc::CreateVolume, (case, REQUIRED), MISSING, async move |plugin, deadline| {
                let made = plugin.create_volume(request, deadline).await?;
                let volume_id = made.volume_id.clone();
                // It should not be there; the answer is judged all the same.
                let _ =
                    plugin.delete_volume(proto::DeleteVolumeRequest { volume_id, secrets }, deadline).await;
                Ok(made)
            })
            .await;
        }
        self.odd_making(whole).await;
    }

    /// What a driver that is careless would make all the same, in the name of this examination.
    async fn odd_making(&mut self, whole: proto::CreateVolumeRequest) {
        let from = |source| proto::CreateVolumeRequest {
            volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
            ..whole.clone()
        };
        let mut asked = Vec::new();
        if self.can.controller.create_delete_snapshot {
            let source = Source::Snapshot(SnapshotSource { snapshot_id: self.nobody() });
            asked.push(("from a snapshot that is not there", UNKNOWN, NOT_THERE, from(source)));
        }
        if self.can.controller.clone_volume {
            let source = Source::Volume(VolumeSource { volume_id: self.nobody() });
            asked.push(("from a volume that is not there", UNKNOWN, NOT_THERE, from(source)));
        }
        if self.can.controller.modify_volume {
            let mutable_parameters = [("wharfline-probe".to_owned(), "x".to_owned())].into();
            let odd = proto::CreateVolumeRequest { mutable_parameters, ..whole };
            asked.push(("with an attribute that no driver knows", NO_PARAMETER, MISSING, odd));
        }
        for (case, contract, wanted, request) in asked {
            if !self.exercise {
                self.card.skip(point(Rpc::CreateVolume.name(), case, contract), ONLY_EXERCISED);
                continue;
            }
            let owed = Box::new(request.clone());
            let debt = |made: Option<&proto::Volume>| {
                Debt::Volume(owed.clone(), made.map(|volume| volume.volume_id.clone()))
            };
            let asking = async |p: &Plugin, t| p.create_volume(request, t).await;
            self.refused(Rpc::CreateVolume, (case, contract), wanted, debt, asking).await;
        }
    }

    async fn deleting(&mut self) {
        let request = proto::DeleteVolumeRequest { volume_id: self.nobody(), secrets: self.secrets.clone() };
        let empty = proto::DeleteVolumeRequest { volume_id: String::new(), ..request.clone() };
        for (case, contract, wanted, request) in [
            ("without an id", REQUIRED, MISSING, empty),
            ("of a volume that is not there", GONE, OK, request),
        ] {
            self.ask(Rpc::DeleteVolume, (case, contract), wanted, async |p, t| {
                p.delete_volume(request, t).await
            })
            .await;
        }
    }

    async fn attaching(&mut self) {
        let node_id = self.node_id();
        let whole = proto::ControllerPublishVolumeRequest {
            volume_id: self.nobody(),
            node_id: node_id.clone(),
            volume_capability: Some(self.capability()),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let without_id = proto::ControllerPublishVolumeRequest { volume_id: String::new(), ..whole.clone() };
        let without_node = proto::ControllerPublishVolumeRequest { node_id: String::new(), ..whole.clone() };
        let incapable = proto::ControllerPublishVolumeRequest { volume_capability: None, ..whole.clone() };
        for (case, contract, wanted, request) in [
            ("without a volume", REQUIRED, MISSING, without_id),
            ("without a node", REQUIRED, MISSING, without_node),
            ("without a capability", REQUIRED, MISSING, incapable),
            ("of a volume that is not there", UNKNOWN, &[Code::NotFound][..], whole),
        ] {
            let asking = async |p: &Plugin, t| p.controller_publish_volume(request, t).await;
            self.ask(Rpc::ControllerPublishVolume, (case, contract), wanted, asking).await;
        }
        let request = proto::ControllerUnpublishVolumeRequest {
            node_id,
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let asking = async |p: &Plugin, t| p.controller_unpublish_volume(request, t).await;
        self.ask(Rpc::ControllerUnpublishVolume, ("without a volume", REQUIRED), MISSING, asking).await;
    }

    async fn validating(&mut self) {
        let whole = proto::ValidateVolumeCapabilitiesRequest {
            volume_id: self.nobody(),
            volume_capabilities: vec![self.capability()],
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let without_id =
            proto::ValidateVolumeCapabilitiesRequest { volume_id: String::new(), ..whole.clone() };
        let incapable =
            proto::ValidateVolumeCapabilitiesRequest { volume_capabilities: Vec::new(), ..whole.clone() };
        for (case, contract, wanted, request) in [
            ("without a volume", REQUIRED, MISSING, without_id),
            ("without a capability", REQUIRED, EITHER, incapable),
            ("of a volume that is not there", UNKNOWN, &[Code::NotFound][..], whole),
        ] {
            let asking = async |p: &Plugin, t| p.validate_volume_capabilities(request, t).await;
            self.ask(Rpc::ValidateVolumeCapabilities, (case, contract), wanted, asking).await;
        }
    }

    async fn listing(&mut self) {
        let page = proto::ListVolumesRequest { max_entries: 1, starting_token: String::new() };
        let asking = async |p: &Plugin, t| p.list_volumes(page, t).await;
        if let Some(answer) = self.ask(Rpc::ListVolumes, ("a page of one", LISTS), OK, asking).await {
            let at = point(
                Rpc::ListVolumes.name(),
                "what it lists",
                "A page has no more than was asked for, of volumes with ids.",
            );
            let judged = check::Pages::new().took(&answer.next_token, answer.entries.len(), 1);
            let each = answer.entries.iter().try_for_each(|entry| check::listed(entry).map(drop));
            self.legal(at, judged.and(each), &format!("{} entries", answer.entries.len()));
        }
        let asking = async |p: &Plugin, t| p.list_volumes(proto::ListVolumesRequest::default(), t).await;
        if let Some(answer) = self.ask(Rpc::ListVolumes, ("without a limit", LISTS), OK, asking).await {
            let at =
                point(Rpc::ListVolumes.name(), "what it lists without a limit", "Each volume has an id.");
            let each = answer.entries.iter().try_for_each(|entry| check::listed(entry).map(drop));
            self.legal(at, each, &format!("{} entries", answer.entries.len()));
        }
        let stale = proto::ListVolumesRequest { starting_token: NO_TOKEN.to_owned(), max_entries: 0 };
        let asking = async |p: &Plugin, t| p.list_volumes(stale, t).await;
        self.ask(Rpc::ListVolumes, ("a token that is none", STALE), &[Code::Aborted], asking).await;
        let room = proto::GetCapacityRequest {
            volume_capabilities: vec![self.capability()],
            parameters: self.parameters.clone(),
            accessible_topology: self.topology(),
        };
        let asking = async |p: &Plugin, t| p.get_capacity(room, t).await;
        let says = "Whoever tells the room that is left tells it.";
        if let Some(answer) = self.ask(Rpc::GetCapacity, ("answers", says), OK, asking).await {
            let at = point(Rpc::GetCapacity.name(), "what it tells", "No size is negative.");
            self.legal(at, check::room(&answer), &format!("{} bytes", answer.available_capacity));
        }
        let asking = async |p: &Plugin, t| p.get_capacity(proto::GetCapacityRequest::default(), t).await;
        self.ask(Rpc::GetCapacity, ("of nothing in particular", says), OK, asking).await;
        let asking = async |p: &Plugin, t| {
            p.controller_get_volume(proto::ControllerGetVolumeRequest::default(), t).await
        };
        self.ask(Rpc::ControllerGetVolume, ("without a volume", REQUIRED), MISSING, asking).await;
        let unknown = proto::ControllerGetVolumeRequest { volume_id: self.nobody() };
        let asking = async |p: &Plugin, t| p.controller_get_volume(unknown, t).await;
        let case = ("of a volume that is not there", UNKNOWN);
        self.ask(Rpc::ControllerGetVolume, case, &[Code::NotFound], asking).await;
    }

    async fn snapshots(&mut self) {
        let unnamed = proto::CreateSnapshotRequest {
            source_volume_id: self.nobody(),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let of_nothing = proto::CreateSnapshotRequest {
            name: self.name("refused"),
            source_volume_id: String::new(),
            ..unnamed.clone()
        };
        for (case, request) in [("without a name", unnamed), ("without a volume", of_nothing)] {
            let secrets = self.secrets.clone();
            self.ask(Rpc::CreateSnapshot, (case, REQUIRED), MISSING, async move |plugin, deadline| {
                let made = plugin.create_snapshot(request, deadline).await?;
                let request = proto::DeleteSnapshotRequest { snapshot_id: made.snapshot_id.clone(), secrets };
                // As with a volume.
                let _ = plugin.delete_snapshot(request, deadline).await;
                Ok(made)
            })
            .await;
        }
        let request =
            proto::DeleteSnapshotRequest { snapshot_id: self.nobody(), secrets: self.secrets.clone() };
        let empty = proto::DeleteSnapshotRequest { snapshot_id: String::new(), ..request.clone() };
        for (case, contract, wanted, request) in [
            ("without an id", REQUIRED, MISSING, empty),
            ("of a snapshot that is not there", GONE, OK, request),
        ] {
            let asking = async |p: &Plugin, t| p.delete_snapshot(request, t).await;
            self.ask(Rpc::DeleteSnapshot, (case, contract), wanted, asking).await;
        }
        self.snapshot_lists().await;
    }

    async fn snapshot_lists(&mut self) {
        let list = proto::ListSnapshotsRequest { secrets: self.secrets.clone(), ..Default::default() };
        let one = proto::ListSnapshotsRequest { max_entries: 1, ..list.clone() };
        for (case, seen, request) in [
            ("a page of one", "what it lists", one),
            ("without a limit", "what it lists without a limit", list.clone()),
        ] {
            let most = request.max_entries;
            let asking = async |p: &Plugin, t| p.list_snapshots(request, t).await;
            if let Some(answer) = self.ask(Rpc::ListSnapshots, (case, LISTS), OK, asking).await {
                let contract =
                    "A page has no more than was asked for, of snapshots with ids, volumes and times.";
                let judged = check::Pages::new().took(&answer.next_token, answer.entries.len(), most);
                let each = answer.entries.iter().try_for_each(|entry| {
                    let listed = check::snapshot_listed("", "", entry.snapshot.as_ref())?;
                    super::beyond::whole(listed)
                });
                let at = point(Rpc::ListSnapshots.name(), seen, contract);
                self.legal(at, judged.and(each), &format!("{} entries", answer.entries.len()));
            }
        }
        let stale = proto::ListSnapshotsRequest { starting_token: NO_TOKEN.to_owned(), ..list.clone() };
        let asking = async |p: &Plugin, t| p.list_snapshots(stale, t).await;
        self.ask(Rpc::ListSnapshots, ("a token that is none", STALE), &[Code::Aborted], asking).await;
        let unknown = proto::ListSnapshotsRequest { snapshot_id: self.nobody(), ..list.clone() };
        let sourceless = proto::ListSnapshotsRequest { source_volume_id: self.nobody(), ..list };
        let empty = "A list of what is not there is empty, and OK.";
        for (case, seen, request) in [
            ("of an id that is not there", "which is empty", unknown),
            ("of a volume that is not there", "which has none", sourceless),
        ] {
            let asking = async |p: &Plugin, t| p.list_snapshots(request, t).await;
            if let Some(answer) = self.ask(Rpc::ListSnapshots, (case, empty), OK, asking).await {
                let at = point(Rpc::ListSnapshots.name(), seen, empty);
                self.card.holds(at, answer.entries.is_empty(), format!("{} entries", answer.entries.len()));
            }
        }
        let asking = async |p: &Plugin, t| p.get_snapshot(proto::GetSnapshotRequest::default(), t).await;
        self.ask(Rpc::GetSnapshot, ("without an id", REQUIRED), MISSING, asking).await;
        let unknown = proto::GetSnapshotRequest { snapshot_id: self.nobody(), secrets: self.secrets.clone() };
        let asking = async |p: &Plugin, t| p.get_snapshot(unknown, t).await;
        let case = ("of a snapshot that is not there", UNKNOWN);
        self.ask(Rpc::GetSnapshot, case, NOT_THERE, asking).await;
    }

    async fn growing(&mut self) {
        let range = Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 });
        let whole = self.growing_to(&self.nobody(), range);
        let without_id = proto::ControllerExpandVolumeRequest { volume_id: String::new(), ..whole.clone() };
        let without_size = proto::ControllerExpandVolumeRequest { capacity_range: None, ..whole.clone() };
        for (case, contract, wanted, request) in [
            ("without a volume", REQUIRED, MISSING, without_id),
            ("without a size", REQUIRED, EITHER, without_size),
            ("of a volume that is not there", UNKNOWN, &[Code::NotFound][..], whole),
        ] {
            let asking = async |p: &Plugin, t| p.controller_expand_volume(request, t).await;
            self.ask(Rpc::ControllerExpandVolume, (case, contract), wanted, asking).await;
        }
        let known = self.mutable.clone();
        let invented = [("wharfline-probe".to_owned(), "x".to_owned())].into();
        let request = proto::ControllerModifyVolumeRequest {
            secrets: self.secrets.clone(),
            mutable_parameters: if known.is_empty() { invented } else { known.clone() },
            ..Default::default()
        };
        if !known.is_empty() {
            let unknown =
                proto::ControllerModifyVolumeRequest { volume_id: self.nobody(), ..request.clone() };
            let asking = async |p: &Plugin, t| p.controller_modify_volume(unknown, t).await;
            let case = ("of a volume that is not there", UNKNOWN);
            self.ask(Rpc::ControllerModifyVolume, case, NOT_THERE, asking).await;
        }
        let asking = async |p: &Plugin, t| p.controller_modify_volume(request, t).await;
        self.ask(Rpc::ControllerModifyVolume, ("without a volume", REQUIRED), MISSING, asking).await;
    }

    async fn groups(&mut self) {
        let unnamed = proto::CreateVolumeGroupSnapshotRequest {
            source_volume_ids: vec![self.nobody()],
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let secrets = self.secrets.clone();
        let asking = async |p: &Plugin, t| {
            let made = p.create_volume_group_snapshot(unnamed, t).await?;
            let request = proto::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: made.group_snapshot_id.clone(),
                snapshot_ids: made.snapshots.iter().map(|one| one.snapshot_id.clone()).collect(),
                secrets,
            };
            // As with a volume.
            let _ = p.delete_volume_group_snapshot(request, t).await;
            Ok(made)
        };
        self.ask(Rpc::CreateVolumeGroupSnapshot, ("without a name", REQUIRED), MISSING, asking).await;
        let of = |group: String| proto::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: group,
            snapshot_ids: vec![self.nobody()],
            secrets: self.secrets.clone(),
        };
        for (case, contract, wanted, request) in [
            ("without an id", REQUIRED, MISSING, of(String::new())),
            ("of a group that is not there", UNKNOWN, NOT_THERE, of(self.nobody())),
        ] {
            let asking = async |p: &Plugin, t| p.get_volume_group_snapshot(request, t).await;
            self.ask(Rpc::GetVolumeGroupSnapshot, (case, contract), wanted, asking).await;
        }
        let of = |group: String| proto::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group,
            snapshot_ids: vec![self.nobody()],
            secrets: self.secrets.clone(),
        };
        for (case, contract, wanted, request) in [
            ("without an id", REQUIRED, MISSING, of(String::new())),
            ("of a group that is not there", GONE, OK, of(self.nobody())),
        ] {
            let asking = async |p: &Plugin, t| p.delete_volume_group_snapshot(request, t).await;
            self.ask(Rpc::DeleteVolumeGroupSnapshot, (case, contract), wanted, asking).await;
        }
    }

    async fn node_info(&mut self) {
        let says = "A node says what its driver calls it.";
        let asking = async |p: &Plugin, t| p.node_get_info(t).await;
        if let Some(info) = self.ask(Rpc::NodeGetInfo, ("answers", says), OK, asking).await {
            let form = "An id of 256 bytes at most, no negative limit, topology of letters and digits.";
            let at = point(Rpc::NodeGetInfo.name(), "what it says", form);
            self.legal(at, check::node_info(&info), &info.node_id);
            if self.can.plugin.services.volume_accessibility_constraints {
                let contract = "Whose volumes are bound to places says where a node is.";
                let at = point(Rpc::NodeGetInfo.name(), "where it is", contract);
                let told = info.accessible_topology.as_ref().is_some_and(|place| !place.segments.is_empty());
                self.card.holds(at, told, if told { "it says" } else { "no topology" });
            }
            self.node = Some(info);
        }
    }

    async fn staging(&mut self) {
        let whole = proto::NodeStageVolumeRequest {
            volume_id: self.nobody(),
            staging_target_path: NOWHERE.to_owned(),
            volume_capability: Some(self.capability()),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let without_id = proto::NodeStageVolumeRequest { volume_id: String::new(), ..whole.clone() };
        let without_path =
            proto::NodeStageVolumeRequest { staging_target_path: String::new(), ..whole.clone() };
        let incapable = proto::NodeStageVolumeRequest { volume_capability: None, ..whole };
        for (case, wanted, request) in [
            ("without a volume", MISSING, without_id),
            ("without a path", MISSING, without_path),
            ("without a capability", EITHER, incapable),
        ] {
            let asking = async |p: &Plugin, t| p.node_stage_volume(request, t).await;
            self.ask(Rpc::NodeStageVolume, (case, REQUIRED), wanted, asking).await;
        }
        let (volume_id, path) = (self.nobody(), NOWHERE.to_owned());
        let without_id = proto::NodeUnstageVolumeRequest { staging_target_path: path, ..Default::default() };
        let without_path = proto::NodeUnstageVolumeRequest { volume_id, ..Default::default() };
        for (case, request) in [("without a volume", without_id), ("without a path", without_path)] {
            let asking = async |p: &Plugin, t| p.node_unstage_volume(request, t).await;
            self.ask(Rpc::NodeUnstageVolume, (case, REQUIRED), MISSING, asking).await;
        }
    }

    async fn publishing(&mut self) {
        let staged = if self.can.node.stage_unstage_volume { NOWHERE.to_owned() } else { String::new() };
        let whole = proto::NodePublishVolumeRequest {
            volume_id: self.nobody(),
            staging_target_path: staged,
            target_path: format!("{NOWHERE}/target"),
            volume_capability: Some(self.capability()),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let without_id = proto::NodePublishVolumeRequest { volume_id: String::new(), ..whole.clone() };
        let without_path = proto::NodePublishVolumeRequest { target_path: String::new(), ..whole.clone() };
        let incapable = proto::NodePublishVolumeRequest { volume_capability: None, ..whole };
        for (case, request) in [
            ("without a volume", without_id),
            ("without a path", without_path),
            ("without a capability", incapable),
        ] {
            let asking = async |p: &Plugin, t| p.node_publish_volume(request, t).await;
            self.ask(Rpc::NodePublishVolume, (case, REQUIRED), MISSING, asking).await;
        }
        let (volume_id, target_path) = (self.nobody(), format!("{NOWHERE}/target"));
        let without_id = proto::NodeUnpublishVolumeRequest { target_path, ..Default::default() };
        let without_path = proto::NodeUnpublishVolumeRequest { volume_id, ..Default::default() };
        for (case, request) in [("without a volume", without_id), ("without a path", without_path)] {
            let asking = async |p: &Plugin, t| p.node_unpublish_volume(request, t).await;
            self.ask(Rpc::NodeUnpublishVolume, (case, REQUIRED), MISSING, asking).await;
        }
    }

    async fn looking(&mut self) {
        let whole = proto::NodeGetVolumeStatsRequest {
            volume_id: self.nobody(),
            volume_path: NOWHERE.to_owned(),
            staging_target_path: String::new(),
        };
        let without_id = proto::NodeGetVolumeStatsRequest { volume_id: String::new(), ..whole.clone() };
        let without_path = proto::NodeGetVolumeStatsRequest { volume_path: String::new(), ..whole.clone() };
        for (case, contract, wanted, request) in [
            ("without a volume", REQUIRED, MISSING, without_id),
            ("without a path", REQUIRED, MISSING, without_path),
            ("of a volume that is not there", UNKNOWN, &[Code::NotFound][..], whole),
        ] {
            let asking = async |p: &Plugin, t| p.node_get_volume_stats(request, t).await;
            self.ask(Rpc::NodeGetVolumeStats, (case, contract), wanted, asking).await;
        }
        let whole = proto::NodeExpandVolumeRequest {
            volume_id: self.nobody(),
            volume_path: NOWHERE.to_owned(),
            volume_capability: Some(self.capability()),
            ..Default::default()
        };
        let without_id = proto::NodeExpandVolumeRequest { volume_id: String::new(), ..whole.clone() };
        let without_path = proto::NodeExpandVolumeRequest { volume_path: String::new(), ..whole.clone() };
        for (case, contract, wanted, request) in [
            ("without a volume", REQUIRED, MISSING, without_id),
            ("without a path", REQUIRED, EITHER, without_path),
            ("of a volume that is not there", UNKNOWN, &[Code::NotFound][..], whole),
        ] {
            let asking = async |p: &Plugin, t| p.node_expand_volume(request, t).await;
            self.ask(Rpc::NodeExpandVolume, (case, contract), wanted, asking).await;
        }
    }

    /// The calls that are not reported, each with a request that names nothing.
    async fn unreported(&mut self) {
        lacks! { self:
            CreateVolume(create_volume, CreateVolumeRequest);
            DeleteVolume(delete_volume, DeleteVolumeRequest);
            ControllerPublishVolume(controller_publish_volume, ControllerPublishVolumeRequest);
            ControllerUnpublishVolume(controller_unpublish_volume, ControllerUnpublishVolumeRequest);
            ListVolumes(list_volumes, ListVolumesRequest);
            GetCapacity(get_capacity, GetCapacityRequest);
            CreateSnapshot(create_snapshot, CreateSnapshotRequest);
            DeleteSnapshot(delete_snapshot, DeleteSnapshotRequest);
            ListSnapshots(list_snapshots, ListSnapshotsRequest);
            ControllerExpandVolume(controller_expand_volume, ControllerExpandVolumeRequest);
            ControllerModifyVolume(controller_modify_volume, ControllerModifyVolumeRequest);
            NodeStageVolume(node_stage_volume, NodeStageVolumeRequest);
            NodeUnstageVolume(node_unstage_volume, NodeUnstageVolumeRequest);
            NodeGetVolumeStats(node_get_volume_stats, NodeGetVolumeStatsRequest);
            NodeExpandVolume(node_expand_volume, NodeExpandVolumeRequest);
        }
    }

    /// What the driver calls this node, or a name that it calls none.
    pub(super) fn node_id(&self) -> String {
        let id = self.node.as_ref().map(|node| node.node_id.clone()).filter(|id| !id.is_empty());
        id.unwrap_or_else(|| self.nobody())
    }

    /// Where this node is, if volumes are bound to places.
    pub(super) fn topology(&self) -> Option<proto::Topology> {
        let bound = self.can.plugin.services.volume_accessibility_constraints;
        self.node.as_ref().filter(|_| bound).and_then(|node| node.accessible_topology.clone())
    }
}
