//! One data directory, a driver on it that can be stopped and started again, and clients. Everything on real mounts.
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use wharfline::csi::proto::controller_client::ControllerClient;
use wharfline::csi::proto::identity_client::IdentityClient;
use wharfline::csi::proto::node_client::NodeClient;
use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;
use wharfline::csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use wharfline::csi::proto::{self, VolumeCapability};
use wharfline::drivers::dir::{Mode, ServeError, Server, Settings};

pub(crate) const NODE: &str = "node-a";

pub(crate) struct Rig {
    root: tempfile::TempDir,
    running: Option<Instance>,
}

pub(crate) struct Instance {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
    channel: Channel,
}

impl Instance {
    pub(crate) fn start(settings: &Settings) -> Self {
        let server = Server::bind(settings).expect("the driver starts");
        let path = PathBuf::from(settings.endpoint.strip_prefix("unix://").expect("a unix socket"));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        let connector = tower::service_fn(move |_: http::Uri| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Self { stop, task, channel }
    }

    pub(crate) async fn stop(self) {
        drop(self.channel);
        let _ = self.stop.send(());
        let ended = tokio::time::timeout(std::time::Duration::from_secs(20), self.task).await;
        ended.expect("it ends in time").expect("it does not panic").expect("it ends well");
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }
}

impl Rig {
    /// A driver in mode `all` on an empty data directory.
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount, which only root can");
        let root = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(root.path().join("targets")).expect("a directory for targets");
        let mut rig = Self { root, running: None };
        rig.running = Some(Instance::start(&rig.settings(Mode::All, "csi.sock")));
        rig
    }

    pub(crate) fn settings(&self, mode: Mode, socket: &str) -> Settings {
        Settings {
            endpoint: format!("unix://{}", self.root.path().join(socket).display()),
            node_id: NODE.to_owned(),
            data_dir: self.data_dir(),
            mode,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path("D")
    }

    /// The data directory of a volume, as the driver lays it out.
    pub(crate) fn data(&self, volume: &str) -> PathBuf {
        self.data_dir().join("volumes").join(volume).join("data")
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.path("targets").join(name)
    }

    pub(crate) fn instance(&self) -> &Instance {
        self.running.as_ref().expect("the driver runs")
    }

    pub(crate) async fn restart(&mut self) {
        self.running.take().expect("the driver runs").stop().await;
        assert!(!self.path("csi.sock").exists(), "the socket stayed behind");
        self.running = Some(Instance::start(&self.settings(Mode::All, "csi.sock")));
    }

    pub(crate) async fn create(&self, request: proto::CreateVolumeRequest) -> Result<proto::Volume, Status> {
        let made = self.instance().controller().create_volume(request).await?;
        Ok(made.into_inner().volume.expect("a volume"))
    }

    /// A volume of no particular size; its id.
    pub(crate) async fn volume(&self, name: &str) -> String {
        self.create(create(name)).await.expect("a volume").volume_id
    }

    pub(crate) async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = proto::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
        self.instance().controller().delete_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, request: proto::NodePublishVolumeRequest) -> Result<(), Status> {
        self.instance().node().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, volume: &str, target: &Path) -> Result<(), Status> {
        let request = proto::NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: target.display().to_string(),
        };
        self.instance().node().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn ids(&self) -> Vec<String> {
        let listed = self.instance().controller().list_volumes(proto::ListVolumesRequest::default()).await;
        let entries = listed.expect("a list").into_inner().entries;
        entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id).collect()
    }

    /// Stops the driver; nothing may be left in the mount table or on disk.
    pub(crate) async fn finish(mut self) {
        self.running.take().expect("the driver runs").stop().await;
        assert_eq!(mounts_below(self.root.path()), [] as [PathBuf; 0]);
        for empty in [
            "D/volumes",
            "D/trash",
            "D/snapshots",
            "D/trash-of-snapshots",
            "D/ephemeral",
            "D/trash-of-ephemeral",
            "targets",
        ] {
            assert_eq!(entries(&self.path(empty)), [] as [String; 0], "in {empty}");
        }
        assert!(!self.path("csi.sock").exists(), "the socket stayed behind");
    }
}

impl Drop for Rig {
    /// After a failed test: takes the test's own mounts away, so that its directory can be removed.
    fn drop(&mut self) {
        for point in mounts_below(self.root.path()).into_iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// A request for a volume that one node may write.
pub(crate) fn create(name: &str) -> proto::CreateVolumeRequest {
    proto::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability(Access::SingleNodeWriter)],
        ..Default::default()
    }
}

pub(crate) fn sized(name: &str, required_bytes: i64, limit_bytes: i64) -> proto::CreateVolumeRequest {
    let capacity_range = Some(proto::CapacityRange { required_bytes, limit_bytes });
    proto::CreateVolumeRequest { capacity_range, ..create(name) }
}

pub(crate) fn publish(volume: &str, target: &Path) -> proto::NodePublishVolumeRequest {
    proto::NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(Access::SingleNodeWriter)),
        ..Default::default()
    }
}

pub(crate) fn publish_as(volume: &str, target: &Path, mode: Access) -> proto::NodePublishVolumeRequest {
    proto::NodePublishVolumeRequest { volume_capability: Some(capability(mode)), ..publish(volume, target) }
}

pub(crate) fn capability(mode: Access) -> VolumeCapability {
    with_flags(mode, &[])
}

pub(crate) fn with_flags(mode: Access, flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume { mount_flags, ..Default::default() })),
    }
}

/// The code of a refusal, whose message must say something about `about`.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Status>, about: &str) -> Code {
    let status = result.expect_err("it is refused");
    assert!(status.message().contains(about), "{status:?} says nothing of {about:?}");
    status.code()
}

pub(crate) fn entries(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Mount points at or below a path, with the line of each in the mount table.
pub(crate) fn mount_lines(below: &Path) -> Vec<(PathBuf, String)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let point = |line: &str| PathBuf::from(line.split(' ').nth(4).expect("a mount point"));
    let lines = table.lines().map(|line| (point(line), line.to_owned()));
    lines.filter(|(point, _)| point.starts_with(below)).collect()
}

pub(crate) fn mounts_below(path: &Path) -> Vec<PathBuf> {
    mount_lines(path).into_iter().map(|(point, _)| point).collect()
}

pub(crate) fn mount_line(at: &Path) -> String {
    let found = mount_lines(at).into_iter().find(|(point, _)| point == at);
    found.unwrap_or_else(|| panic!("{} is not mounted", at.display())).1
}
