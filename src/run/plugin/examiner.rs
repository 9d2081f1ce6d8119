//! Who asks: the driver, what it says that it can do, and the card on which everything goes.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::card::{Card, Driver, Point, Verdict, point};
use super::scratch::Debt;
use crate::csi::proto::volume_capability::access_mode::Mode;
use crate::csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::csi::{Alpha, Capabilities, Code, Failure, Plugin, Readiness, Rpc, Service, check, may, proto};

/// What a call is missing whose request names nothing.
pub(super) const MISSING: &[Code] = &[Code::InvalidArgument];
/// Why a driver is not asked what a careless one would do all the same.
pub(super) const ONLY_EXERCISED: &str =
    "asked with --exercise alone: a driver that does not refuse it would change something";
/// All went well.
pub(super) const OK: &[Code] = &[Code::Ok];

/// An examination under way.
pub(super) struct Examiner {
    pub(super) plugin: Plugin,
    pub(super) deadline: Duration,
    pub(super) card: Card,
    pub(super) can: Capabilities,
    /// Which services answer at this socket.
    pub(super) here: Here,
    /// What the driver calls this node, and where that is.
    pub(super) node: Option<proto::NodeGetInfoResponse>,
    /// What is sent with each call that takes it.
    pub(super) parameters: BTreeMap<String, String>,
    /// The attributes that volumes are given.
    pub(super) mutable: BTreeMap<String, String>,
    pub(super) secrets: BTreeMap<String, String>,
    /// The file system of volumes; empty for the driver's choice.
    pub(super) fs_type: String,
    /// Volumes are devices.
    pub(super) block: bool,
    /// It was allowed to change something.
    pub(super) exercise: bool,
    /// As many volumes are attached as the node takes.
    pub(super) to_the_limit: bool,
    /// Part of each name that is made up: nobody else has it.
    pub(super) token: String,
    /// What was made and is there still.
    pub(super) debts: Vec<Debt>,
    /// What could not be taken away.
    pub(super) left: Vec<String>,
    /// The ids of volumes whose deletion was answered with OK.
    pub(super) deleted: BTreeSet<String>,
}

/// Which services this instance serves. A plugin's instances report the same, and need not serve the same.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Here {
    pub(super) controller: bool,
    pub(super) group: bool,
    pub(super) node: bool,
}

impl Examiner {
    /// A volume for one writer on one node.
    pub(super) fn capability(&self) -> proto::VolumeCapability {
        self.capability_for(Mode::SingleNodeWriter)
    }

    /// A volume that is used so.
    pub(super) fn capability_for(&self, mode: Mode) -> proto::VolumeCapability {
        let mounted = MountVolume { fs_type: self.fs_type.clone(), ..MountVolume::default() };
        let kind = if self.block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(mounted) };
        let access_mode = Some(AccessMode { mode: mode.into() });
        proto::VolumeCapability { access_mode, access_type: Some(kind) }
    }

    /// An id that no volume or snapshot has.
    pub(super) fn nobody(&self) -> String {
        format!("wharfline-probe-nothing-{}", self.token)
    }

    /// A name for something that is made.
    pub(super) fn name(&self, what: &str) -> String {
        format!("wharfline-probe-{}-{what}", self.token)
    }

    /// Whether the call can be judged here: it is served and reported.
    pub(super) fn has(&self, rpc: Rpc) -> Result<(), String> {
        let here = match rpc.service() {
            Service::Identity | Service::SnapshotMetadata => true,
            Service::Controller => self.here.controller,
            Service::GroupController => self.here.group,
            Service::Node => self.here.node,
        };
        if !here {
            return Err("its service is not served at this socket".to_owned());
        }
        may(rpc, &self.can, Alpha::On).map_err(|closed| closed.to_string())
    }

    /// Asks with a request that cannot succeed or changes nothing, where the driver has the call; else that is noted.
    pub(super) async fn ask<T>(
        &mut self,
        rpc: Rpc,
        (case, contract): (&str, &str),
        wanted: &[Code],
        asking: impl AsyncFnOnce(&Plugin, Duration) -> Result<T, Failure>,
    ) -> Option<T> {
        let point = point(rpc.name(), case, contract);
        if let Err(why) = self.has(rpc) {
            self.card.skip(point, why);
            return None;
        }
        // A driver that does not look what it is given may take nothing for everything.
        if !self.exercise && rpc.undoes() && case.starts_with("without") {
            self.card.skip(point, ONLY_EXERCISED);
            return None;
        }
        let result = asking(&self.plugin, self.deadline).await;
        self.card.answer(point, wanted, result)
    }

    /// A call that the driver does not report: it says so when it is called.
    pub(super) async fn lacks<T>(
        &mut self,
        rpc: Rpc,
        asking: impl AsyncFnOnce(&Plugin, Duration) -> Result<T, Failure>,
    ) {
        let point =
            point(rpc.name(), "not reported", "What a driver does not report it answers UNIMPLEMENTED.");
        let served = match rpc.service() {
            Service::Controller => self.here.controller,
            Service::GroupController => self.here.group,
            Service::Node => self.here.node,
            Service::Identity | Service::SnapshotMetadata => false,
        };
        if !served || may(rpc, &self.can, Alpha::On).is_ok() {
            return;
        }
        let reads =
            matches!(rpc, Rpc::ListVolumes | Rpc::ListSnapshots | Rpc::GetCapacity | Rpc::NodeGetVolumeStats);
        if !reads && !self.exercise {
            self.card.skip(point, ONLY_EXERCISED);
        } else {
            let result = asking(&self.plugin, self.deadline).await;
            self.card.answer(point, &[Code::Unimplemented], result);
        }
    }

    /// The Identity service, and what the driver says that it can do. False when it does not answer at all.
    pub(super) async fn identity(&mut self) -> bool {
        let (plugin, deadline) = (self.plugin.clone(), self.deadline);
        let answers = |rpc: Rpc, contract| point(rpc.name(), "answers", contract);
        let first = answers(Rpc::GetPluginInfo, "A driver says who it is.");
        let Some(info) = self.card.answer(first, OK, plugin.get_plugin_info(deadline).await) else {
            return false;
        };
        self.card.driver = Driver { name: info.name.clone(), version: info.vendor_version.clone() };
        let form = "A name has 63 letters, digits, '-' and '.' at most, a letter or digit at both ends.";
        let named = proto::GetPluginInfoResponse { vendor_version: "1".to_owned(), ..info.clone() };
        self.legal(point(Rpc::GetPluginInfo.name(), "name", form), check::plugin_info(&named), &info.name);
        let version = point(Rpc::GetPluginInfo.name(), "version", "A driver says its version.");
        self.card.holds(version, !info.vendor_version.is_empty(), info.vendor_version.clone());
        let told = answers(Rpc::GetPluginCapabilities, "A driver says which services it has.");
        let reported = plugin.get_plugin_capabilities(deadline).await;
        self.can.plugin = self.card.answer(told, OK, reported).unwrap_or_default();
        let probe = answers(Rpc::Probe, "A driver says whether it is well.");
        if let Some(readiness) = self.card.answer(probe, OK, plugin.probe(deadline).await) {
            let ready = point(
                Rpc::Probe.name(),
                "is ready",
                "What else is asked of a driver counts once it is ready.",
            );
            let seen = if readiness == Readiness::Ready { "ready" } else { "ready: false" };
            self.card.holds(ready, readiness == Readiness::Ready, seen);
        }
        self.services().await;
        true
    }

    /// Which of the reported services answer here, and what each can do.
    async fn services(&mut self) {
        let (plugin, deadline) = (self.plugin.clone(), self.deadline);
        let services = self.can.plugin.services;
        let contract = "A service that a driver has says what it can do.";
        let node = plugin.node_get_capabilities(deadline).await;
        let controller = plugin.controller_get_capabilities(deadline).await;
        let split = |own: Option<&Failure>, other_is_here: bool| {
            // A plugin may be in two processes, one for each service.
            own.is_some_and(Failure::is_unimplemented) && other_is_here
        };
        let at = point(Rpc::ControllerGetCapabilities.name(), "answers", contract);
        if !services.controller_service {
            self.card.skip(at, "the plugin does not report CONTROLLER_SERVICE");
        } else if split(controller.as_ref().err(), node.is_ok()) {
            self.card.skip(at, "the controller service is not served at this socket");
        } else if let Some(can) = self.card.answer(at, OK, controller.clone()) {
            (self.can.controller, self.here.controller) = (can, true);
        }
        let at = point(Rpc::NodeGetCapabilities.name(), "answers", contract);
        if split(node.as_ref().err(), controller.is_ok()) {
            self.card.skip(at, "the node service is not served at this socket");
        } else if let Some(can) = self.card.answer(at, OK, node) {
            (self.can.node, self.here.node) = (can, true);
        }
        let at = point(Rpc::GroupControllerGetCapabilities.name(), "answers", contract);
        let group = plugin.group_controller_get_capabilities(deadline).await;
        if !services.group_controller_service {
            self.card.skip(at, "the plugin does not report GROUP_CONTROLLER_SERVICE");
        } else if split(group.as_ref().err(), self.here.node && !self.here.controller) {
            self.card.skip(at, "the group controller service is not served at this socket");
        } else if let Some(can) = self.card.answer(at, OK, group) {
            (self.can.group, self.here.group) = (can, true);
        }
        let implied = self.can.controller.list_volumes_published_nodes;
        if implied {
            let contract = "Who lists the nodes of volumes lists volumes and attaches them.";
            let at = point(Rpc::ControllerGetCapabilities.name(), "capabilities that go together", contract);
            let can = &self.can.controller;
            self.card.holds(at, can.list_volumes && can.publish_unpublish_volume, can.names().join(", "));
        }
    }

    /// Whether an answer is as the contract wants answers.
    pub(super) fn legal<T>(&mut self, point: Point<'_>, judged: Result<T, check::Fault>, seen: &str) -> bool {
        match judged {
            Ok(_) => self.card.holds(point, true, seen),
            Err(fault) => self.card.holds(point, false, fault.to_string()),
        }
    }

    /// Notes that something of ours is left, or that nothing is.
    pub(super) fn cleaned(&mut self) {
        let left = std::mem::take(&mut self.left);
        let at = point("", "nothing is left", "What was made for this is taken away again.");
        let verdict = if left.is_empty() { Verdict::Pass } else { Verdict::Fail };
        self.card.add(at, verdict, if left.is_empty() { "nothing".to_owned() } else { left.join("; ") });
    }
}
