//! What one life of one volume does not show: long names, exact sizes, lists with what was made, and what has to be refused of a volume
//! that is there.
//!
//! With [`harmless`](super::harmless) and [`life`](super::life) these are the cases of csi-sanity (docs/plugins.md). What is made is owed
//! until the end, and taken away then.
use std::collections::{BTreeMap, BTreeSet};

use super::card::point;
use super::examiner::{Examiner, MISSING, OK};
use super::life::{detach, unpublish, unstage};
use super::scratch::{Debt, Scratch};
use crate::csi::proto::volume_capability::access_mode::Mode;
use crate::csi::proto::{self, CapacityRange};
use crate::csi::{Code, Plugin, Rpc, check};

/// How long a name may be, in bytes.
const LONGEST_NAME: usize = 128;
/// How many snapshots there are of so many volumes while lists are read.
const PICTURED: usize = 3;
/// The entries of a short page.
const SHORT: i32 = 2;

impl Examiner {
    /// Everything that wants volumes beside the one that is led through its life.
    pub(super) async fn beyond(&mut self, size: i64, scratch: &Scratch) {
        if self.has(Rpc::CreateVolume).is_err() {
            return;
        }
        self.names_and_sizes(size).await;
        let Some(volume) = self.keep("spare", size, |_| {}).await else {
            let at =
                point("", "beside other volumes", "Volumes are made, listed and refused beside each other.");
            self.card.skip(at, "none could be made");
            return;
        };
        self.incomplete(&volume).await;
        let free = self.never_there(&volume, scratch).await;
        self.attaches(&volume).await;
        self.attach_limit(size).await;
        self.modifies(size, &volume).await;
        if self.here.node {
            if free && self.one_path(size, scratch).await {
                self.grown_before(size, scratch).await;
            } else {
                let at =
                    point("", "more volumes that are used here", "Volumes are used, one after the other.");
                self.card.skip(at, "what was there before could not be taken off");
            }
        }
        self.listed(size).await;
        self.pictures(size, &volume).await;
    }

    /// Makes a volume that is there until the end.
    async fn keep(
        &mut self,
        what: &str,
        size: i64,
        change: impl FnOnce(&mut proto::CreateVolumeRequest),
    ) -> Option<proto::Volume> {
        let mut request = self.making_of(what, size, None);
        change(&mut request);
        self.debts.push(Debt::Volume(Box::new(request.clone()), None));
        let made = self.plugin.create_volume(request.clone(), self.deadline).await;
        let case = format!("{what}: made");
        let at = point(Rpc::CreateVolume.name(), &case, "A volume is made, of the size that was asked for.");
        let volume = self.card.answer(at, OK, made)?;
        self.paid();
        self.debts.push(Debt::Volume(Box::new(request.clone()), Some(volume.volume_id.clone())));
        if let Err(fault) = check::created(&request, &volume) {
            let case = format!("{what}: its answer");
            let at = point(Rpc::CreateVolume.name(), &case, "An answer fits its request.");
            self.card.holds(at, false, fault.to_string());
            return None;
        }
        Some(volume)
    }

    /// A name as long as it may be.
    fn longest(&self, what: &str) -> String {
        let name = self.name(what);
        let left = LONGEST_NAME.saturating_sub(name.len());
        format!("{name}{}", "x".repeat(left))
    }

    async fn names_and_sizes(&mut self, size: i64) {
        let name = self.longest("long");
        self.keep("128 bytes of name", size, |request| request.name = name).await;
        let mut request = self.making_of("exact", size, None);
        request.capacity_range = Some(CapacityRange { required_bytes: size, limit_bytes: size });
        self.debts.push(Debt::Volume(Box::new(request.clone()), None));
        let contract = "What is asked for exactly is that large, or OUT_OF_RANGE.";
        let at = point(Rpc::CreateVolume.name(), "an exact size", contract);
        match self.plugin.create_volume(request.clone(), self.deadline).await {
            Ok(volume) => {
                self.paid();
                self.debts.push(Debt::Volume(Box::new(request), Some(volume.volume_id)));
                let exact = [0, size].contains(&volume.capacity_bytes);
                self.card.holds(at, exact, format!("{} bytes", volume.capacity_bytes));
            }
            Err(failure) => drop(self.card.answer::<()>(at, &[Code::OutOfRange], Err(failure))),
        }
    }

    /// What is missing of a request whose volume is there.
    async fn incomplete(&mut self, volume: &proto::Volume) {
        const CONTRACT: &str = "A required field that is missing is INVALID_ARGUMENT.";
        let (volume_id, secrets) = (volume.volume_id.clone(), self.secrets.clone());
        let whole = proto::ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.clone(),
            volume_context: volume.volume_context.clone(),
            secrets: secrets.clone(),
            ..Default::default()
        };
        let request = whole.clone();
        let asking = async |p: &Plugin, t| p.validate_volume_capabilities(request, t).await;
        let case = ("spare: without a capability", CONTRACT);
        self.ask(Rpc::ValidateVolumeCapabilities, case, MISSING, asking).await;
        let least = proto::ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.clone(),
            volume_capabilities: vec![self.capability()],
            secrets: secrets.clone(),
            ..Default::default()
        };
        let asking = async |p: &Plugin, t| p.validate_volume_capabilities(least, t).await;
        let contract = "What is asked for is confirmed with what it is, or a message says why not.";
        let case = ("spare: an id and a capability", contract);
        if let Some(answer) = self.ask(Rpc::ValidateVolumeCapabilities, case, OK, asking).await {
            let said = answer.confirmed.is_none_or(|confirmed| !confirmed.volume_capabilities.is_empty());
            let at = point(Rpc::ValidateVolumeCapabilities.name(), "spare: what it confirms", contract);
            self.card.holds(at, said, if said { "as asked" } else { "confirmed, without a capability" });
        }
        let request = self.growing_to(&volume_id, None);
        let asking = async |p: &Plugin, t| p.controller_expand_volume(request, t).await;
        self.ask(Rpc::ControllerExpandVolume, ("spare: without a size", CONTRACT), MISSING, asking).await;
        let request = proto::NodeExpandVolumeRequest {
            volume_id,
            volume_capability: Some(self.capability()),
            ..Default::default()
        };
        let asking = async |p: &Plugin, t| p.node_expand_volume(request, t).await;
        self.ask(Rpc::NodeExpandVolume, ("spare: without a path", CONTRACT), MISSING, asking).await;
    }

    /// Taking off what was never there. False when something is where volumes are used now.
    async fn never_there(&mut self, volume: &proto::Volume, scratch: &Scratch) -> bool {
        const CONTRACT: &str = "What is not there is taken off: OK, or NOT_FOUND.";
        let off = [Code::Ok, Code::NotFound];
        let request = proto::NodeUnpublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            target_path: scratch.target().display().to_string(),
        };
        let asking = async |p: &Plugin, t| p.node_unpublish_volume(request, t).await;
        self.ask(Rpc::NodeUnpublishVolume, ("spare: never published", CONTRACT), &off, asking).await;
        let request = proto::NodeUnstageVolumeRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path: scratch.staging().display().to_string(),
        };
        let asking = async |p: &Plugin, t| p.node_unstage_volume(request, t).await;
        self.ask(Rpc::NodeUnstageVolume, ("spare: never staged", CONTRACT), &off, asking).await;
        let request = proto::NodeStageVolumeRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path: scratch.staging().display().to_string(),
            volume_context: volume.volume_context.clone(),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let debt = Debt::Staged(unstage(&request));
        let asking = async |p: &Plugin, t| p.node_stage_volume(request, t).await;
        let case = ("spare: without a capability", "A required field that is missing is INVALID_ARGUMENT.");
        self.refused(Rpc::NodeStageVolume, case, MISSING, |_| debt.clone(), asking).await
    }

    /// Attaches that have to be refused.
    async fn attaches(&mut self, volume: &proto::Volume) {
        let request = self.attaching_of(volume);
        let stranger = proto::ControllerPublishVolumeRequest { node_id: self.nobody(), ..request.clone() };
        let contract = "A node that is not there is NOT_FOUND.";
        let debt = Debt::Attached(detach(&stranger));
        let asking = async |p: &Plugin, t| p.controller_publish_volume(stranger, t).await;
        let case = ("spare: to a node that is not there", contract);
        self.refused(Rpc::ControllerPublishVolume, case, &[Code::NotFound], |_| debt.clone(), asking).await;
        let contract = "What is attached otherwise already is ALREADY_EXISTS.";
        let case = "spare: for reading, attached for writing";
        if self.has(Rpc::ControllerPublishVolume).is_err() || !self.here.node {
            return;
        }
        if !self.can.controller.publish_readonly {
            let at = point(Rpc::ControllerPublishVolume.name(), case, contract);
            self.card.skip(at, "the plugin's controller service does not report PUBLISH_READONLY");
            return;
        }
        self.debts.push(Debt::Attached(detach(&request)));
        let reading = proto::ControllerPublishVolumeRequest { readonly: true, ..request.clone() };
        let asking = async |p: &Plugin, t| p.controller_publish_volume(request, t).await;
        let first = ("spare: attached", "A volume is attached to a node.");
        if self.ask(Rpc::ControllerPublishVolume, first, OK, asking).await.is_none() {
            return;
        }
        let asking = async |p: &Plugin, t| p.controller_publish_volume(reading, t).await;
        self.ask(Rpc::ControllerPublishVolume, (case, contract), &[Code::AlreadyExists], asking).await;
        self.pay_last().await;
    }

    fn attaching_of(&self, volume: &proto::Volume) -> proto::ControllerPublishVolumeRequest {
        proto::ControllerPublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: self.node_id(),
            volume_capability: Some(self.capability()),
            secrets: self.secrets.clone(),
            volume_context: volume.volume_context.clone(),
            readonly: false,
        }
    }

    /// One volume more than the node says that it takes.
    async fn attach_limit(&mut self, size: i64) {
        let contract = "More volumes than a node takes are RESOURCE_EXHAUSTED.";
        let at = point(Rpc::ControllerPublishVolume.name(), "one more than the limit", contract);
        if let Err(why) = self.has(Rpc::ControllerPublishVolume) {
            self.card.skip(at, why);
            return;
        }
        let limit = self.node.as_ref().map_or(0, |node| node.max_volumes_per_node);
        if limit <= 0 {
            self.card.skip(at, "the node names no limit");
            return;
        }
        if !self.to_the_limit {
            self.card.skip(at, format!("asked with --attach-limit alone: it takes {limit} volumes"));
            return;
        }
        let mark = self.debts.len();
        for number in 0..=limit {
            let Some(volume) = self.keep(&format!("limit-{number}"), size, |_| {}).await else { break };
            let request = self.attaching_of(&volume);
            self.debts.push(Debt::Attached(detach(&request)));
            let attached = self.plugin.controller_publish_volume(request, self.deadline).await;
            let wanted: &[Code] = if number < limit { OK } else { &[Code::ResourceExhausted] };
            let case = format!("volume {} of {limit}", number + 1);
            let at = point(Rpc::ControllerPublishVolume.name(), &case, contract);
            if self.card.answer(at, wanted, attached).is_none() {
                break;
            }
        }
        self.pay_to(mark).await;
    }

    /// Attributes of a volume that is there.
    async fn modifies(&mut self, size: i64, volume: &proto::Volume) {
        if let Err(why) = self.has(Rpc::ControllerModifyVolume) {
            let at = point(Rpc::ControllerModifyVolume.name(), "a change", "Attributes can be changed.");
            self.card.skip(at, why);
            return;
        }
        let refused = ("spare: what no driver knows", "A parameter that is none is INVALID_ARGUMENT.");
        let invented = BTreeMap::from([("wharfline-probe".to_owned(), "x".to_owned())]);
        self.modify(volume, refused, MISSING, invented.clone()).await;
        let wanted = self.mutable.clone();
        let contract = "A volume is given the attributes that are asked for.";
        if wanted.is_empty() {
            let at = point(Rpc::ControllerModifyVolume.name(), "spare: changed", contract);
            self.card.skip(at, "give some with --mutable-parameter KEY=VALUE");
            return;
        }
        self.modify(volume, ("spare: changed", contract), OK, wanted.clone()).await;
        let with = wanted.clone();
        let made = self.keep("with attributes", size, |request| request.mutable_parameters = with).await;
        if let Some(made) = made {
            self.modify(&made, ("with attributes: again", contract), OK, wanted).await;
            let case = ("with attributes: what no driver knows", refused.1);
            self.modify(&made, case, MISSING, invented).await;
        }
    }

    async fn modify(
        &mut self,
        volume: &proto::Volume,
        case: (&str, &str),
        wanted: &[Code],
        mutable_parameters: BTreeMap<String, String>,
    ) {
        let (volume_id, secrets) = (volume.volume_id.clone(), self.secrets.clone());
        let request = proto::ControllerModifyVolumeRequest { volume_id, secrets, mutable_parameters };
        let asking = async |p: &Plugin, t| p.controller_modify_volume(request, t).await;
        self.ask(Rpc::ControllerModifyVolume, case, wanted, asking).await;
    }

    /// A volume for one writer is not published at a second path. False when something of it is still where volumes are used.
    async fn one_path(&mut self, size: i64, scratch: &Scratch) -> bool {
        let contract =
            "A volume for a single writer that is published elsewhere on its node is FAILED_PRECONDITION.";
        let case = "single writer: a second path";
        let at = point(Rpc::NodePublishVolume.name(), case, contract);
        if !self.can.node.single_node_multi_writer {
            self.card.skip(at, "the plugin's node service does not report SINGLE_NODE_MULTI_WRITER");
            return true;
        }
        let mode = Mode::SingleNodeSingleWriter;
        let capability = self.capability_for(mode);
        let made = self.keep("single writer", size, |request| request.volume_capabilities = vec![capability]);
        let Some(volume) = made.await else { return true };
        let mark = self.debts.len();
        if let Some(how) = self.up(("single writer", mode), &volume, scratch).await {
            let mut request = how.publish.clone();
            request.target_path = scratch.second().display().to_string();
            let debt = Debt::Published(unpublish(&request));
            let asking = async |p: &Plugin, t| p.node_publish_volume(request, t).await;
            let wanted = [Code::FailedPrecondition];
            self.refused(Rpc::NodePublishVolume, (case, contract), &wanted, |_| debt.clone(), asking).await;
        }
        self.pay_to(mark).await
    }

    /// What grew while nobody used it is as large on its node once it is there.
    async fn grown_before(&mut self, size: i64, scratch: &Scratch) {
        let contract = "A node brings what is published there to the size that it has.";
        if let Err(why) = self.has(Rpc::NodeExpandVolume) {
            self.card.skip(point(Rpc::NodeExpandVolume.name(), "grown: on its node", contract), why);
            return;
        }
        let Some(volume) = self.keep("grown", size, |_| {}).await else { return };
        let larger = volume.capacity_bytes.max(size).saturating_mul(2);
        let range = Some(CapacityRange { required_bytes: larger, limit_bytes: 0 });
        let request = self.growing_to(&volume.volume_id, range);
        let asking = async |p: &Plugin, t| p.controller_expand_volume(request, t).await;
        let case = ("grown: not in use", "A volume that nobody uses grows to what was asked for.");
        if self.has(Rpc::ControllerExpandVolume).is_ok()
            && self.ask(Rpc::ControllerExpandVolume, case, OK, asking).await.is_none()
        {
            return;
        }
        let mark = self.debts.len();
        let Some(how) = self.up(("grown", Mode::SingleNodeWriter), &volume, scratch).await else {
            self.pay_to(mark).await;
            return;
        };
        let request = self.growing_there(&how, range);
        let asking = async |p: &Plugin, t| p.node_expand_volume(request, t).await;
        self.ask(Rpc::NodeExpandVolume, ("grown: on its node", contract), OK, asking).await;
        self.pay_to(mark).await;
    }

    /// Asks for what has to be refused. What it would leave is owed beforehand, and paid when it was not refused for sure; with what it
    /// answered, where it did. False when that stays.
    pub(super) async fn refused<T>(
        &mut self,
        rpc: Rpc,
        (case, contract): (&str, &str),
        wanted: &[Code],
        debt: impl Fn(Option<&T>) -> Debt,
        asking: impl AsyncFnOnce(&Plugin, std::time::Duration) -> Result<T, crate::csi::Failure>,
    ) -> bool {
        let at = point(rpc.name(), case, contract);
        if let Err(why) = self.has(rpc) {
            self.card.skip(at, why);
            return true;
        }
        self.debts.push(debt(None));
        let result = asking(&self.plugin, self.deadline).await;
        self.paid();
        let nothing = result.as_ref().is_err_and(|failure| !failure.is_uncertain());
        if !nothing {
            self.debts.push(debt(result.as_ref().ok()));
        }
        self.card.answer(at, wanted, result);
        nothing || self.pay_last().await
    }

    /// Pays all that came after this mark. False when something of it stays owed: nothing is put in its place then.
    async fn pay_to(&mut self, mark: usize) -> bool {
        while self.debts.len() > mark {
            if !self.pay_last().await {
                return false;
            }
        }
        true
    }

    /// Pays what is owed last. False when that cannot be paid now: it is owed until the end, and what is beneath it with it.
    async fn pay_last(&mut self) -> bool {
        let Some(debt) = self.debts.last().cloned() else { return false };
        let paid = self.pay(&debt).await.is_ok();
        if paid {
            self.paid();
        }
        paid
    }

    /// A list has a volume while it is there.
    async fn listed(&mut self, size: i64) {
        let contract = "A list has what is there, and not what is gone.";
        if let Err(why) = self.has(Rpc::ListVolumes) {
            self.card.skip(point(Rpc::ListVolumes.name(), "with a volume that was made", contract), why);
            return;
        }
        let Some(volume) = self.keep("listed", size, |_| {}).await else { return };
        for (case, there) in [("with a volume that was made", true), ("once it is deleted", false)] {
            if !there {
                self.pay_last().await;
            }
            let at = point(Rpc::ListVolumes.name(), case, contract);
            match self.all_volumes().await {
                Ok(ids) => {
                    let has = ids.contains(&volume.volume_id);
                    self.card.holds(at, has == there, if has { "it is in it" } else { "it is not in it" });
                }
                Err(why) => drop(self.card.holds(at, false, why)),
            }
        }
    }

    pub(super) async fn all_volumes(&self) -> Result<BTreeSet<String>, String> {
        let (mut pages, mut all) = (check::Pages::new(), BTreeSet::new());
        loop {
            let request =
                proto::ListVolumesRequest { max_entries: 0, starting_token: pages.token().to_owned() };
            let answer = self.plugin.list_volumes(request, self.deadline).await;
            let answer = answer.map_err(|failure| failure.to_string())?;
            for entry in &answer.entries {
                all.insert(check::listed(entry).map_err(|fault| fault.to_string())?.volume_id.clone());
            }
            let more = pages.took(&answer.next_token, answer.entries.len(), 0);
            if !more.map_err(|fault| fault.to_string())? {
                return Ok(all);
            }
        }
    }

    /// Snapshots of several volumes, and the lists that they are in.
    async fn pictures(&mut self, size: i64, spare: &proto::Volume) {
        if self.has(Rpc::CreateSnapshot).is_err() {
            return;
        }
        let mut taken = Vec::new();
        for number in 0..PICTURED {
            let volume = self.keep(&format!("pictured-{number}"), size, |_| {}).await;
            let Some(volume) = volume else { return };
            let what = format!("picture-{number}");
            let name = self.name(&what);
            let Some(snapshot) = self.picture((&what, &name), &volume, OK).await else { return };
            taken.push(snapshot);
        }
        let name = self.name("picture-0");
        let other = ("picture-0: its name, another volume", name.as_str());
        self.picture(other, spare, &[Code::AlreadyExists]).await;
        let name = self.longest("picture");
        let case = ("128 bytes of name", name.as_str());
        for _ in 0..2 {
            if self.picture(case, spare, OK).await.is_none() {
                return;
            }
        }
        self.got(&taken).await;
        self.found(&taken).await;
    }

    /// Takes a snapshot; whatever comes of it is owed.
    async fn picture(
        &mut self,
        (what, name): (&str, &str),
        volume: &proto::Volume,
        wanted: &[Code],
    ) -> Option<proto::Snapshot> {
        let request = proto::CreateSnapshotRequest {
            source_volume_id: volume.volume_id.clone(),
            name: name.to_owned(),
            secrets: self.secrets.clone(),
            parameters: BTreeMap::new(),
        };
        let call = Rpc::CreateSnapshot.name();
        let contract = "A snapshot has a name of its own, a volume that it is of, and the time of its cut.";
        self.debts.push(Debt::Snapshot(request.clone(), None));
        let result = self.plugin.create_snapshot(request.clone(), self.deadline).await;
        let id = result.as_ref().ok().map(|snapshot| snapshot.snapshot_id.clone());
        if id.is_some() || result.as_ref().is_err_and(|failure| !failure.is_uncertain()) {
            self.paid();
        }
        if id.is_some() {
            self.debts.push(Debt::Snapshot(request.clone(), id));
        }
        let snapshot = self.card.answer(point(call, what, contract), wanted, result)?;
        let case = format!("{what}: its answer");
        let at = point(call, &case, contract);
        self.legal(at, whole(&snapshot).and(check::snapshot_taken(&request, &snapshot)), name)
            .then_some(snapshot)
    }

    async fn got(&mut self, taken: &[proto::Snapshot]) {
        let Some(one) = taken.get(1) else { return };
        let request =
            proto::GetSnapshotRequest { snapshot_id: one.snapshot_id.clone(), secrets: self.secrets.clone() };
        let asking = async |p: &Plugin, t| p.get_snapshot(request, t).await;
        let case = ("one of several", "A snapshot that is asked for by its id is told, and no other.");
        if let Some(got) = self.ask(Rpc::GetSnapshot, case, OK, asking).await {
            let at = point(Rpc::GetSnapshot.name(), "one of several: what it tells", case.1);
            self.legal(at, whole(&got), &got.snapshot_id);
        }
    }

    /// Lists by an id, by a volume, in short pages, and once one is gone.
    async fn found(&mut self, taken: &[proto::Snapshot]) {
        let call = Rpc::ListSnapshots.name();
        if let Err(why) = self.has(Rpc::ListSnapshots) {
            self.card.skip(point(call, "with what was taken", "A list has what is there."), why);
            return;
        }
        let Some(one) = taken.get(1).cloned() else { return };
        let by_id =
            proto::ListSnapshotsRequest { snapshot_id: one.snapshot_id.clone(), ..Default::default() };
        let by_source = proto::ListSnapshotsRequest {
            source_volume_id: one.source_volume_id.clone(),
            ..Default::default()
        };
        let mine: BTreeSet<_> = taken.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect();
        let only = BTreeSet::from([one.snapshot_id.clone()]);
        for (case, contract, request) in [
            ("by an id", "A list by an id has that one alone.", by_id),
            ("by a volume", "A list by a volume has those of it alone.", by_source),
        ] {
            let listed = self.all_snapshots(request).await;
            let seen = |ids: &BTreeSet<String>| format!("{} of them", ids.len());
            match listed {
                Ok(ids) => drop(self.card.holds(point(call, case, contract), ids == only, seen(&ids))),
                Err(why) => drop(self.card.holds(point(call, case, contract), false, why)),
            }
        }
        let gone: BTreeSet<_> = mine.difference(&only).cloned().collect();
        let short = || proto::ListSnapshotsRequest { max_entries: SHORT, ..Default::default() };
        for (case, contract, wanted) in [
            ("in pages of two", "All pages together have what is there, once.", &mine),
            ("once one is deleted", "A list has what is there, and not what is gone.", &gone),
        ] {
            if wanted.len() < mine.len() {
                let (snapshot_id, secrets) = (one.snapshot_id.clone(), self.secrets.clone());
                let request = proto::DeleteSnapshotRequest { snapshot_id, secrets };
                let asking = async |p: &Plugin, t| p.delete_snapshot(request, t).await;
                self.ask(Rpc::DeleteSnapshot, ("picture-1", "A snapshot is deleted."), OK, asking).await;
            }
            let at = point(call, case, contract);
            match self.all_snapshots(short()).await {
                Ok(ids) => {
                    let ours: BTreeSet<_> = ids.intersection(&mine).cloned().collect();
                    self.card.holds(at, ours == *wanted, format!("{} of {}", ours.len(), wanted.len()));
                }
                Err(why) => drop(self.card.holds(at, false, why)),
            }
        }
    }

    /// All pages of a list, each no longer than was asked for, and with nothing in it twice.
    async fn all_snapshots(&self, list: proto::ListSnapshotsRequest) -> Result<BTreeSet<String>, String> {
        let (mut pages, mut all) = (check::Pages::new(), BTreeSet::new());
        let wrong = |fault: check::Fault| fault.to_string();
        loop {
            let request = proto::ListSnapshotsRequest {
                starting_token: pages.token().to_owned(),
                secrets: self.secrets.clone(),
                ..list.clone()
            };
            let answer = self.plugin.list_snapshots(request, self.deadline).await;
            let answer = answer.map_err(|failure| failure.to_string())?;
            for entry in &answer.entries {
                let entry = entry.snapshot.as_ref();
                let one = check::snapshot_listed(&list.source_volume_id, &list.snapshot_id, entry);
                let one = one.map_err(wrong)?;
                whole(one).map_err(wrong)?;
                if !all.insert(one.snapshot_id.clone()) {
                    return Err(format!("{} is in it twice", one.snapshot_id));
                }
            }
            if !pages.took(&answer.next_token, answer.entries.len(), list.max_entries).map_err(wrong)? {
                return Ok(all);
            }
        }
    }
}

/// Whether a snapshot tells all that the contract wants: an orchestrator does without some of it.
pub(super) fn whole(snapshot: &proto::Snapshot) -> Result<(), check::Fault> {
    check::snapshot(Some(snapshot))?;
    if snapshot.source_volume_id.is_empty() {
        return Err(check::Fault::Nothing { what: "source volume" });
    }
    if snapshot.creation_time.is_none() {
        return Err(check::Fault::Nothing { what: "creation time" });
    }
    Ok(())
}
