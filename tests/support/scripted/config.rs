//! What the scripted plugin says of itself. May be changed while it runs.
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wharfline::csi::proto::controller_service_capability::rpc::Type as Controller;
use wharfline::csi::proto::group_controller_service_capability::rpc::Type as Group;
use wharfline::csi::proto::node_service_capability::rpc::Type as Node;
use wharfline::csi::proto::plugin_capability::service::Type as Service;

/// What a plugin does to a machine that is not real.
pub trait Hands: Send + Sync + std::fmt::Debug {
    /// Mounts a volume at a path that is there.
    fn mount(&self, volume: &str, at: &str, read_only: bool) -> io::Result<()>;
    /// Makes a directory; one that is there already is success.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Unmounts what is at the path; nothing there is success.
    fn unmount(&self, at: &str) -> io::Result<()>;
    /// Removes an empty directory; none there is success.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
}

/// What calls do to the machine.
#[derive(Clone, Debug, Default)]
pub enum Effects {
    /// Nothing: the ledger is all there is.
    #[default]
    Ledger,
    /// Real bind mounts of directories beneath the given one. Needs root.
    Mounts(PathBuf),
    /// Mounts of a simulated machine.
    Simulated(Arc<dyn Hands>),
}

/// The answers of the Identity, capability and information calls, and the limits of the backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// `GetPluginInfo`.
    pub name: String,
    /// `GetPluginInfo`.
    pub vendor_version: String,
    /// `Probe`; none leaves the field out, which means ready.
    pub ready: Option<bool>,
    /// Numbers of `PluginCapability.Service`; any may be given.
    pub services: Vec<i32>,
    /// Numbers of `PluginCapability.VolumeExpansion`.
    pub expansion: Vec<i32>,
    /// Numbers of `ControllerServiceCapability.RPC`.
    pub controller: Vec<i32>,
    /// Numbers of `GroupControllerServiceCapability.RPC`.
    pub group: Vec<i32>,
    /// Numbers of `NodeServiceCapability.RPC`.
    pub node: Vec<i32>,
    /// The caller may send what the contract calls alpha; else that is a violation.
    pub alpha: bool,
    /// So many answers about a new snapshot or group say that it is not ready yet.
    pub ready_after: u32,
    /// `ControllerExpandVolume` leaves the file system to the nodes.
    pub node_expansion: bool,
    /// A volume with snapshots cannot be deleted.
    pub dependent_snapshots: bool,
    /// Volumes with something wrong, and what.
    pub ill: BTreeMap<String, String>,
    /// Ranges of each snapshot that hold something: offset and size.
    pub allocated: Vec<(i64, i64)>,
    /// Ranges in which any two snapshots differ; none: nobody keeps account of it.
    pub changed: Option<Vec<(i64, i64)>>,
    /// Keys of `mutable_parameters` that it knows; any when there is none.
    pub attributes: Option<Vec<String>>,
    /// `NodeGetInfo`; also kept to when volumes are attached.
    pub max_volumes: i64,
    /// The time since the beginning, the same for all nodes. Only what `works_on` measures asks for it.
    pub clock: fn() -> std::time::Duration,
    /// For so long after its beginning a controller call may go on whose caller has gone: no other node may call then.
    pub works_on: std::time::Duration,
    /// Bytes in all; above it `CreateVolume` answers RESOURCE_EXHAUSTED.
    pub total_bytes: i64,
    /// Largest volume; above it `CreateVolume` answers OUT_OF_RANGE.
    pub max_volume_bytes: i64,
    /// Put into the context of every new volume.
    pub volume_context: BTreeMap<String, String>,
    /// Put into the context of every attachment, beside the node.
    pub publish_context: BTreeMap<String, String>,
    /// What calls do to the machine.
    pub effects: Effects,
    /// `NodePublishVolume` takes whatever is at the staging path for the volume, staged or not.
    pub careless: bool,
    /// `NodeStageVolume` mounts nothing at the staging path.
    pub bare_staging: bool,
    /// Answers are compressed with gzip.
    pub gzip: bool,
    /// Each answer about a volume is followed by GOAWAY, as a server sends it when a connection is old.
    pub goes_away: bool,
    /// It closes a connection after each answer.
    pub hangs_up: bool,
    /// How long a call takes that no script says anything of; asked at each of them.
    pub pace: fn() -> Duration,
}

impl Config {
    /// A plugin with all that a volume's way can have: created, attached, staged, published.
    pub fn full() -> Self {
        Self {
            services: vec![Service::ControllerService as i32],
            controller: vec![
                Controller::CreateDeleteVolume as i32,
                Controller::PublishUnpublishVolume as i32,
                Controller::ListVolumes as i32,
                Controller::ListVolumesPublishedNodes as i32,
                Controller::GetCapacity as i32,
                Controller::SingleNodeMultiWriter as i32,
            ],
            node: vec![Node::StageUnstageVolume as i32, Node::SingleNodeMultiWriter as i32],
            ..Self::node_only()
        }
    }

    /// A plugin with everything that the contract has, and a caller who may use what is alpha.
    pub fn everything() -> Self {
        Self {
            services: (1..=4).collect(),
            expansion: vec![1],
            controller: (1..=15).collect(),
            group: vec![Group::CreateDeleteGetVolumeGroupSnapshot as i32],
            node: (1..=6).collect(),
            alpha: true,
            ..Self::full()
        }
    }

    /// A plugin that creates and publishes, and neither attaches nor stages.
    pub fn without_attach_and_stage() -> Self {
        let mut config = Self::full();
        config.controller = vec![Controller::CreateDeleteVolume as i32, Controller::GetCapacity as i32];
        config.node.clear();
        config
    }

    /// A plugin without a controller service: volumes are there when they are named.
    pub fn node_only() -> Self {
        let context = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Self {
            name: "scripted.csi.example".into(),
            vendor_version: "1.0.0".into(),
            ready: None,
            services: Vec::new(),
            expansion: Vec::new(),
            controller: Vec::new(),
            group: Vec::new(),
            node: Vec::new(),
            alpha: false,
            ready_after: 0,
            node_expansion: false,
            dependent_snapshots: false,
            ill: BTreeMap::new(),
            allocated: Vec::new(),
            changed: None,
            max_volumes: 0,
            clock: || std::time::Duration::ZERO,
            works_on: std::time::Duration::ZERO,
            total_bytes: 1 << 50,
            max_volume_bytes: 1 << 40,
            // Odd on purpose: contexts are opaque and have to arrive unchanged.
            volume_context: context("pool/Näme", " two  spaces "),
            publish_context: context("device", "/dev/scripted\t0"),
            effects: Effects::Ledger,
            careless: false,
            bare_staging: false,
            gzip: false,
            goes_away: false,
            hangs_up: false,
            attributes: None,
            pace: || Duration::ZERO,
        }
    }

    pub(super) fn has_service(&self, service: Service) -> bool {
        self.services.contains(&(service as i32))
    }

    pub(super) fn controller_can(&self, capability: Controller) -> bool {
        self.controller.contains(&(capability as i32))
    }

    pub(super) fn group_can(&self, capability: Group) -> bool {
        self.group.contains(&(capability as i32))
    }

    pub(super) fn node_can(&self, capability: Node) -> bool {
        self.node.contains(&(capability as i32))
    }
}
