//! The raw driver loop: the same CSI calls by a small client, with no orchestrator.
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use wharfline::csi::{self, PluginOptions, UnixConnector, proto};

use super::plugin::{NODE_ID, Plugin};

/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A client of a plugin of its own.
pub(crate) struct Raw {
    client: csi::Plugin,
    place: PathBuf,
    _plugin: Plugin,
}

fn capability() -> proto::VolumeCapability {
    proto::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

impl Raw {
    /// Starts the plugin and connects.
    pub(crate) async fn new(manner: &str) -> Self {
        let plugin = Plugin::start(manner);
        let client = csi::Plugin::new(UnixConnector::new(&plugin.socket).unwrap(), PluginOptions::default());
        client.get_plugin_info(DEADLINE).await.unwrap();
        let place = plugin.files.path().join("places");
        std::fs::create_dir_all(&place).unwrap();
        Self { client, place, _plugin: plugin }
    }

    /// One call that does nothing.
    pub(crate) async fn ask(&self) {
        self.client.get_plugin_info(DEADLINE).await.unwrap();
    }

    /// Makes a volume.
    pub(crate) async fn create(&self, name: &str) {
        let request = proto::CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(proto::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
            volume_capabilities: vec![capability()],
            ..Default::default()
        };
        self.client.create_volume(request, DEADLINE).await.unwrap();
    }

    /// Attaches, stages and publishes a volume.
    pub(crate) async fn up(&self, name: &str) {
        let attach = proto::ControllerPublishVolumeRequest {
            volume_id: name.into(),
            node_id: NODE_ID.into(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.client.controller_publish_volume(attach, DEADLINE).await.unwrap();
        let (staging, target) = self.paths(name);
        std::fs::create_dir(&staging).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let stage = proto::NodeStageVolumeRequest {
            volume_id: name.into(),
            staging_target_path: text(&staging),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.client.node_stage_volume(stage, DEADLINE).await.unwrap();
        let publish = proto::NodePublishVolumeRequest {
            volume_id: name.into(),
            staging_target_path: text(&staging),
            target_path: text(&target),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.client.node_publish_volume(publish, DEADLINE).await.unwrap();
    }

    /// The whole life of a volume, by calls alone.
    pub(crate) async fn life(&self, name: &str) {
        self.create(name).await;
        self.up(name).await;
        let (staging, target) = self.paths(name);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let volume_id = || name.to_owned();
        let unpublish =
            proto::NodeUnpublishVolumeRequest { volume_id: volume_id(), target_path: text(&target) };
        self.client.node_unpublish_volume(unpublish, DEADLINE).await.unwrap();
        let unstage =
            proto::NodeUnstageVolumeRequest { volume_id: volume_id(), staging_target_path: text(&staging) };
        self.client.node_unstage_volume(unstage, DEADLINE).await.unwrap();
        std::fs::remove_dir(&staging).unwrap();
        let detach = proto::ControllerUnpublishVolumeRequest {
            volume_id: volume_id(),
            node_id: NODE_ID.into(),
            ..Default::default()
        };
        self.client.controller_unpublish_volume(detach, DEADLINE).await.unwrap();
        let delete = proto::DeleteVolumeRequest { volume_id: volume_id(), ..Default::default() };
        self.client.delete_volume(delete, DEADLINE).await.unwrap();
    }

    /// Everything of a volume goes.
    pub(crate) fn down(&self, name: &str) {
        let (staging, target) = self.paths(name);
        for path in [target, staging] {
            unmount(&path, UnmountFlags::empty()).unwrap();
            std::fs::remove_dir(path).unwrap();
        }
    }

    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.place.join(format!("{name}.staging")), self.place.join(format!("{name}.target")))
    }

    /// Attaches, stages and publishes so many volumes, one after the other or all at once; their creation is not
    /// counted.
    pub(crate) async fn burst(&self, volumes: usize, at_once: bool) -> Duration {
        let names: Vec<String> = (0..volumes).map(|n| format!("raw-{n}")).collect();
        for name in &names {
            self.create(name).await;
        }
        let start = Instant::now();
        if at_once {
            futures::future::join_all(names.iter().map(|name| self.up(name))).await;
        } else {
            for name in &names {
                self.up(name).await;
            }
        }
        let took = start.elapsed();
        for name in &names {
            self.down(name);
        }
        took
    }
}
