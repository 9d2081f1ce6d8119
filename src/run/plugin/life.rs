//! The whole life of a scratch volume: made, attached, staged, published, looked at, grown, copied, and all the way down.
//! Each step is made twice, as an orchestrator does that has not heard the answer.
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::beyond::whole;
use super::card::point;
use super::examiner::{Examiner, OK};
use super::scratch::{Debt, Scratch};
use crate::csi::proto::volume_capability::access_mode::Mode;
use crate::csi::proto::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use crate::csi::proto::{self, CapacityRange, VolumeContentSource};
use crate::csi::{Code, Rpc, check};
use crate::sys::real::parse_mountinfo;

const AGAIN: &str = "The same call again is OK, for its answer may have been lost.";
/// How long a snapshot may take until it can be used.
const READY: Duration = Duration::from_secs(120);
/// Between two questions for it.
const PAUSE: Duration = Duration::from_millis(500);

/// How a volume is used on this node.
pub(super) struct Use {
    pub(super) attach: Option<proto::ControllerPublishVolumeRequest>,
    pub(super) stage: Option<proto::NodeStageVolumeRequest>,
    pub(super) publish: proto::NodePublishVolumeRequest,
}

impl Examiner {
    /// One volume from its creation to its end. What a failed step leaves is taken away by [`Examiner::clean`].
    pub(super) async fn life(&mut self, size: i64, scratch: &Scratch) {
        let whole = point(Rpc::CreateVolume.name(), "a life", "A volume is made, used and taken away.");
        if let Err(why) = self.has(Rpc::CreateVolume) {
            self.card.skip(whole, why);
            return;
        }
        let Some(volume) = self.make("volume", size, None).await else { return };
        self.other_than_made(size, &volume).await;
        self.confirm(&volume).await;
        let mut size = size.max(volume.capacity_bytes);
        if self.here.node {
            let Some(grown) = self.used(&volume, scratch).await else { return };
            size = size.max(grown);
        }
        if !self.here.node || !self.can.plugin.expansion.online {
            size = size.max(self.grow(&volume, None).await);
        }
        if self.copies(&volume, size).await.is_some() {
            self.unmake("volume", &volume.volume_id).await;
        }
    }

    /// The request for a volume that can be used here.
    pub(super) fn making_of(
        &self,
        what: &str,
        size: i64,
        source: Option<VolumeContentSource>,
    ) -> proto::CreateVolumeRequest {
        let here = self.topology().map(|topology| proto::TopologyRequirement {
            requisite: vec![topology.clone()],
            preferred: vec![topology],
        });
        proto::CreateVolumeRequest {
            name: self.name(what),
            capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
            volume_capabilities: vec![self.capability()],
            parameters: self.parameters.clone(),
            secrets: self.secrets.clone(),
            volume_content_source: source,
            accessibility_requirements: here,
            ..Default::default()
        }
    }

    /// Makes a volume, twice. Its debt is the last one.
    async fn make(
        &mut self,
        what: &str,
        size: i64,
        source: Option<VolumeContentSource>,
    ) -> Option<proto::Volume> {
        let request = self.making_of(what, size, source);
        self.debts.push(Debt::Volume(Box::new(request.clone()), None));
        let case = format!("{what}: made");
        let at = point(
            Rpc::CreateVolume.name(),
            &case,
            "A volume is made, of the size that was asked for, with an id.",
        );
        let made = self.plugin.create_volume(request.clone(), self.deadline).await;
        let volume = self.card.answer(at, OK, made)?;
        self.paid();
        self.debts.push(Debt::Volume(Box::new(request.clone()), Some(volume.volume_id.clone())));
        let case = format!("{what}: its answer");
        let form = "An answer fits its request: the size, the source, the places.";
        self.legal(
            point(Rpc::CreateVolume.name(), &case, form),
            check::created(&request, &volume),
            &volume.volume_id,
        );
        let again = self.plugin.create_volume(request.clone(), self.deadline).await;
        let case = format!("{what}: again");
        let at = point(
            Rpc::CreateVolume.name(),
            &case,
            "The same request again is answered with the same volume.",
        );
        match again {
            Ok(again) => {
                let same = again.volume_id == volume.volume_id;
                let whole = check::created(&request, &again);
                if !same {
                    self.owe_beneath(Debt::Volume(Box::new(request), Some(again.volume_id.clone())));
                }
                match whole {
                    Ok(()) => self.card.holds(at, same, again.volume_id),
                    Err(fault) => self.card.holds(at, false, fault.to_string()),
                };
            }
            Err(failure) => drop(self.card.answer::<()>(at, OK, Err(failure))),
        }
        Some(volume)
    }

    /// The same name for another size.
    async fn other_than_made(&mut self, size: i64, volume: &proto::Volume) {
        let contract = "A name that has a volume of another size is ALREADY_EXISTS.";
        let at = point(Rpc::CreateVolume.name(), "volume: another size under its name", contract);
        let larger = volume.capacity_bytes.max(size).saturating_mul(2);
        if volume.capacity_bytes == 0 {
            self.card.skip(at, "the driver does not say what size it has");
            return;
        }
        let Some(Debt::Volume(request, _)) = self.debts.last() else { return };
        let range = CapacityRange { required_bytes: larger, limit_bytes: larger };
        let request = proto::CreateVolumeRequest { capacity_range: Some(range), ..(**request).clone() };
        let asked = self.plugin.create_volume(request.clone(), self.deadline).await;
        if let Ok(other) = &asked
            && other.volume_id != volume.volume_id
        {
            self.owe_beneath(Debt::Volume(Box::new(request), Some(other.volume_id.clone())));
        }
        self.card.answer(at, &[Code::AlreadyExists], asked);
    }

    async fn confirm(&mut self, volume: &proto::Volume) {
        let request = proto::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.volume_id.clone(),
            volume_context: volume.volume_context.clone(),
            volume_capabilities: vec![self.capability()],
            parameters: self.parameters.clone(),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let contract = "A volume can do what it was made for.";
        let at = point(Rpc::ValidateVolumeCapabilities.name(), "volume: what it was made for", contract);
        let answer = self.plugin.validate_volume_capabilities(request.clone(), self.deadline).await;
        match answer {
            Ok(answer) => {
                let confirmed = check::confirmation(&request, &answer);
                self.card.holds(at, confirmed == check::Confirmation::Confirmed, format!("{confirmed:?}"));
            }
            Err(failure) => drop(self.card.answer::<()>(at, OK, Err(failure))),
        }
    }

    /// Up on this node, looked at, and down again: what it has grown to. None when a step failed.
    async fn used(&mut self, volume: &proto::Volume, scratch: &Scratch) -> Option<i64> {
        let how = self.up(("volume", Mode::SingleNodeWriter), volume, scratch).await?;
        self.look(volume, scratch).await;
        let online = self.can.plugin.expansion.online;
        let grown = if online { self.grow(volume, Some(&how)).await } else { 0 };
        self.down(&how, scratch).await?;
        Some(grown)
    }

    pub(super) async fn up(
        &mut self,
        (what, mode): (&str, Mode),
        volume: &proto::Volume,
        scratch: &Scratch,
    ) -> Option<Use> {
        let (volume_id, volume_context) = (volume.volume_id.clone(), volume.volume_context.clone());
        let (secrets, volume_capability) = (self.secrets.clone(), Some(self.capability_for(mode)));
        let mut how = Use { attach: None, stage: None, publish: proto::NodePublishVolumeRequest::default() };
        let mut publish_context = std::collections::BTreeMap::new();
        if self.has(Rpc::ControllerPublishVolume).is_ok() {
            let request = proto::ControllerPublishVolumeRequest {
                volume_id: volume_id.clone(),
                node_id: self.node_id(),
                volume_capability: volume_capability.clone(),
                secrets: secrets.clone(),
                volume_context: volume_context.clone(),
                readonly: false,
            };
            publish_context = self.attach(what, &request).await?;
            how.attach = Some(request);
        }
        let staging = scratch.staging().display().to_string();
        let stages = self.has(Rpc::NodeStageVolume).is_ok();
        if stages {
            let request = proto::NodeStageVolumeRequest {
                volume_id: volume_id.clone(),
                publish_context: publish_context.clone(),
                staging_target_path: staging.clone(),
                volume_capability: volume_capability.clone(),
                secrets: secrets.clone(),
                volume_context: volume_context.clone(),
            };
            self.stage(what, &request).await?;
            how.stage = Some(request);
        }
        how.publish = proto::NodePublishVolumeRequest {
            volume_id,
            publish_context,
            staging_target_path: if stages { staging } else { String::new() },
            target_path: scratch.target().display().to_string(),
            volume_capability,
            readonly: false,
            secrets,
            volume_context,
        };
        self.publish(what, &how.publish).await?;
        let there = if self.block { is_device(&scratch.target()) } else { is_mount(&scratch.target()) };
        let contract = "A published volume is at its path.";
        let case = format!("{what}: it is there");
        let at = point(Rpc::NodePublishVolume.name(), &case, contract);
        let seen = if there { "it is" } else { "nothing is mounted there, as seen from here" };
        self.card.holds(at, there, seen);
        Some(how)
    }

    async fn attach(
        &mut self,
        what: &str,
        request: &proto::ControllerPublishVolumeRequest,
    ) -> Option<std::collections::BTreeMap<String, String>> {
        self.debts.push(Debt::Attached(detach(request)));
        let call = Rpc::ControllerPublishVolume.name();
        let [attached, again_it_is, context] =
            ["attached", "again", "its context"].map(|case| format!("{what}: {case}"));
        let first = self.plugin.controller_publish_volume(request.clone(), self.deadline).await;
        let first = self.card.answer(point(call, &attached, "A volume is attached to a node."), OK, first)?;
        let again = self.plugin.controller_publish_volume(request.clone(), self.deadline).await;
        let again = self.card.answer(point(call, &again_it_is, AGAIN), OK, again)?;
        let contract = "What is handed on to the node stays the same while the volume is attached.";
        let same = first.publish_context == again.publish_context;
        // Only keys are shown: drivers put tokens there.
        let keys = first.publish_context.keys().cloned().collect::<Vec<_>>().join(", ");
        self.card.holds(point(call, &context, contract), same, keys);
        Some(first.publish_context)
    }

    async fn stage(&mut self, what: &str, request: &proto::NodeStageVolumeRequest) -> Option<()> {
        self.debts.push(Debt::Staged(unstage(request)));
        for (case, contract) in [("staged", "A volume is staged on its node."), ("again", AGAIN)] {
            let case = &format!("{what}: {case}");
            let staged = self.plugin.node_stage_volume(request.clone(), self.deadline).await;
            self.card.answer(point(Rpc::NodeStageVolume.name(), case, contract), OK, staged)?;
        }
        Some(())
    }

    async fn publish(&mut self, what: &str, request: &proto::NodePublishVolumeRequest) -> Option<()> {
        self.debts.push(Debt::Published(unpublish(request)));
        for (case, contract) in [("published", "A volume is published at a path."), ("again", AGAIN)] {
            let case = &format!("{what}: {case}");
            let published = self.plugin.node_publish_volume(request.clone(), self.deadline).await;
            self.card.answer(point(Rpc::NodePublishVolume.name(), case, contract), OK, published)?;
        }
        Some(())
    }

    async fn look(&mut self, volume: &proto::Volume, scratch: &Scratch) {
        let staged = if self.can.node.stage_unstage_volume { scratch.staging() } else { PathBuf::new() };
        let request = proto::NodeGetVolumeStatsRequest {
            volume_id: volume.volume_id.clone(),
            volume_path: scratch.target().display().to_string(),
            staging_target_path: staged.display().to_string(),
        };
        let asking = async |plugin: &crate::csi::Plugin, deadline| {
            plugin.node_get_volume_stats(request, deadline).await
        };
        let case = ("volume: how full it is", "A published volume's figures are told.");
        let Some(stats) = self.ask(Rpc::NodeGetVolumeStats, case, OK, asking).await else { return };
        let told = stats.bytes.is_some() || stats.inodes.is_some();
        let at = point(
            Rpc::NodeGetVolumeStats.name(),
            "volume: what it tells",
            "Figures have a total and are not negative.",
        );
        self.card.holds(at, told, format!("{:?}", stats.bytes));
        let elsewhere = proto::NodeGetVolumeStatsRequest {
            volume_id: volume.volume_id.clone(),
            volume_path: scratch.second().display().to_string(),
            staging_target_path: staged.display().to_string(),
        };
        let asking = async |plugin: &crate::csi::Plugin, deadline| {
            plugin.node_get_volume_stats(elsewhere, deadline).await
        };
        let case = ("volume: at a path where it is not", "What is not at a path is NOT_FOUND.");
        self.ask(Rpc::NodeGetVolumeStats, case, &[Code::NotFound], asking).await;
    }

    /// The request that has a volume grow.
    pub(super) fn growing_to(
        &self,
        volume_id: &str,
        capacity_range: Option<CapacityRange>,
    ) -> proto::ControllerExpandVolumeRequest {
        proto::ControllerExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            capacity_range,
            secrets: self.secrets.clone(),
            volume_capability: Some(self.capability()),
        }
    }

    /// The node's part in it, where the volume is published.
    pub(super) fn growing_there(
        &self,
        how: &Use,
        capacity_range: Option<CapacityRange>,
    ) -> proto::NodeExpandVolumeRequest {
        proto::NodeExpandVolumeRequest {
            volume_id: how.publish.volume_id.clone(),
            volume_path: how.publish.target_path.clone(),
            capacity_range,
            staging_target_path: how.publish.staging_target_path.clone(),
            volume_capability: Some(self.capability()),
            secrets: self.secrets.clone(),
        }
    }

    /// Makes the volume larger, in use or not: what it has then, 0 when that is not known.
    async fn grow(&mut self, volume: &proto::Volume, how: Option<&Use>) -> i64 {
        let larger = volume.capacity_bytes.max(1 << 20).saturating_mul(2);
        let range = Some(CapacityRange { required_bytes: larger, limit_bytes: 0 });
        let request = self.growing_to(&volume.volume_id, range);
        let mut grown = None;
        for (case, contract) in
            [("volume: twice its size", "A volume grows to what was asked for."), ("volume: again", AGAIN)]
        {
            let request = request.clone();
            let asking = async |plugin: &crate::csi::Plugin, deadline| {
                plugin.controller_expand_volume(request, deadline).await
            };
            grown = self.ask(Rpc::ControllerExpandVolume, (case, contract), OK, asking).await;
        }
        let Some(grown) = grown else { return 0 };
        if let Some(how) = how
            && grown.node_expansion_required
        {
            let request = self.growing_there(how, range);
            let case = ("volume: on its node", "Where the node has a part in it, that is done there.");
            let asking = async |plugin: &crate::csi::Plugin, deadline| {
                plugin.node_expand_volume(request, deadline).await
            };
            self.ask(Rpc::NodeExpandVolume, case, OK, asking).await;
        }
        grown.bytes
    }

    async fn down(&mut self, how: &Use, scratch: &Scratch) -> Option<()> {
        let request = unpublish(&how.publish);
        for (case, contract) in
            [("volume: taken off", "A volume is taken off its path."), ("volume: again", AGAIN)]
        {
            let done = self.plugin.node_unpublish_volume(request.clone(), self.deadline).await;
            self.card.answer(point(Rpc::NodeUnpublishVolume.name(), case, contract), OK, done)?;
        }
        self.paid();
        let gone = std::fs::symlink_metadata(scratch.target()).is_err();
        let contract = "What a driver made at the path it removes.";
        let at = point(Rpc::NodeUnpublishVolume.name(), "volume: its path is gone", contract);
        self.card.holds(at, gone, if gone { "it is" } else { "it is there" });
        if let Some(staged) = &how.stage {
            let request = unstage(staged);
            for (case, contract) in [("volume: unstaged", "A volume is unstaged."), ("volume: again", AGAIN)]
            {
                let done = self.plugin.node_unstage_volume(request.clone(), self.deadline).await;
                self.card.answer(point(Rpc::NodeUnstageVolume.name(), case, contract), OK, done)?;
            }
            self.paid();
        }
        if let Some(attached) = &how.attach {
            let request = detach(attached);
            for (case, contract) in [("volume: detached", "A volume is detached."), ("volume: again", AGAIN)]
            {
                let done = self.plugin.controller_unpublish_volume(request.clone(), self.deadline).await;
                self.card.answer(point(Rpc::ControllerUnpublishVolume.name(), case, contract), OK, done)?;
            }
            self.paid();
        }
        Some(())
    }

    /// Snapshots and clones of a volume; none when one is left that could not be taken away.
    async fn copies(&mut self, volume: &proto::Volume, size: i64) -> Option<()> {
        let snapshot = match self.has(Rpc::CreateSnapshot) {
            Err(why) => {
                self.card
                    .skip(point(Rpc::CreateSnapshot.name(), "a life", "A snapshot is taken and used."), why);
                None
            }
            Ok(()) => self.snap(volume).await,
        };
        if let Some(snapshot) = snapshot {
            let source = Source::Snapshot(SnapshotSource { snapshot_id: snapshot.clone() });
            self.copy("from the snapshot", size, source).await?;
            for (case, contract) in
                [("snapshot: deleted", "A snapshot is deleted."), ("snapshot: again", AGAIN)]
            {
                let (snapshot_id, secrets) = (snapshot.clone(), self.secrets.clone());
                let request = proto::DeleteSnapshotRequest { snapshot_id, secrets };
                let done = self.plugin.delete_snapshot(request, self.deadline).await;
                self.card.answer(point(Rpc::DeleteSnapshot.name(), case, contract), OK, done)?;
            }
            self.paid();
        } else if matches!(self.debts.last(), Some(Debt::Snapshot(..))) {
            return None;
        }
        if self.can.controller.clone_volume {
            let source = Source::Volume(VolumeSource { volume_id: volume.volume_id.clone() });
            self.copy("clone", size, source).await?;
        } else {
            let at = point(Rpc::CreateVolume.name(), "clone: made", "A volume is made from another one.");
            self.card.skip(at, "the plugin's controller service does not report CLONE_VOLUME");
        }
        Some(())
    }

    async fn copy(&mut self, what: &str, size: i64, source: Source) -> Option<()> {
        let source = VolumeContentSource { r#type: Some(source) };
        let copy = self.make(what, size, Some(source)).await?;
        self.unmake(what, &copy.volume_id).await
    }

    /// Takes a snapshot and waits until it can be used.
    async fn snap(&mut self, volume: &proto::Volume) -> Option<String> {
        let request = proto::CreateSnapshotRequest {
            source_volume_id: volume.volume_id.clone(),
            name: self.name("snapshot"),
            secrets: self.secrets.clone(),
            parameters: std::collections::BTreeMap::new(),
        };
        self.debts.push(Debt::Snapshot(request.clone(), None));
        let call = Rpc::CreateSnapshot.name();
        let taken = self.plugin.create_snapshot(request.clone(), self.deadline).await;
        let mut taken = self.card.answer(
            point(call, "snapshot: taken", "A snapshot is taken of a volume."),
            OK,
            taken,
        )?;
        self.paid();
        self.debts.push(Debt::Snapshot(request.clone(), Some(taken.snapshot_id.clone())));
        self.legal(
            point(call, "snapshot: its answer", "An answer fits its request: the volume that it is of."),
            whole(&taken).and(check::snapshot_taken(&request, &taken)),
            &taken.snapshot_id,
        );
        let id = taken.snapshot_id.clone();
        let until = Instant::now() + READY;
        let contract = "The same request again tells of the same snapshot, until it can be used.";
        loop {
            let again = self.plugin.create_snapshot(request.clone(), self.deadline).await;
            match again {
                Ok(again) => taken = again,
                Err(failure) => {
                    self.card.answer::<()>(point(call, "snapshot: again", contract), OK, Err(failure));
                    return None;
                }
            }
            if taken.snapshot_id != id {
                self.owe_beneath(Debt::Snapshot(request.clone(), Some(taken.snapshot_id.clone())));
            }
            if taken.snapshot_id != id || taken.ready_to_use || Instant::now() >= until {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let same = taken.snapshot_id == id && taken.ready_to_use && whole(&taken).is_ok();
        let seen = format!("{}, ready_to_use: {}", taken.snapshot_id, taken.ready_to_use);
        self.card.holds(point(call, "snapshot: again", contract), same, seen).then_some(id)
    }

    /// Deletes a volume, twice. Its debt is the last one.
    async fn unmake(&mut self, what: &str, volume_id: &str) -> Option<()> {
        for (case, contract) in [("deleted", "A volume is deleted."), ("deleted again", AGAIN)] {
            let case = format!("{what}: {case}");
            let request =
                proto::DeleteVolumeRequest { volume_id: volume_id.to_owned(), secrets: self.secrets.clone() };
            let done = self.plugin.delete_volume(request, self.deadline).await;
            self.card.answer(point(Rpc::DeleteVolume.name(), &case, contract), OK, done)?;
        }
        self.paid();
        Some(())
    }
}

pub(super) fn detach(
    attached: &proto::ControllerPublishVolumeRequest,
) -> proto::ControllerUnpublishVolumeRequest {
    proto::ControllerUnpublishVolumeRequest {
        volume_id: attached.volume_id.clone(),
        node_id: attached.node_id.clone(),
        secrets: attached.secrets.clone(),
    }
}

pub(super) fn unstage(staged: &proto::NodeStageVolumeRequest) -> proto::NodeUnstageVolumeRequest {
    proto::NodeUnstageVolumeRequest {
        volume_id: staged.volume_id.clone(),
        staging_target_path: staged.staging_target_path.clone(),
    }
}

pub(super) fn unpublish(published: &proto::NodePublishVolumeRequest) -> proto::NodeUnpublishVolumeRequest {
    proto::NodeUnpublishVolumeRequest {
        volume_id: published.volume_id.clone(),
        target_path: published.target_path.clone(),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

fn is_mount(path: &Path) -> bool {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    parse_mountinfo(&table).is_ok_and(|rows| rows.iter().any(|row| row.mount_point == path))
}
