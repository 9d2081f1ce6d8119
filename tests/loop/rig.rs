//! One data directory, driver processes on it that can be killed and started again, and clients.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use wharfline::csi::proto::controller_client::ControllerClient;
use wharfline::csi::proto::identity_client::IdentityClient;
use wharfline::csi::proto::node_client::NodeClient;
pub(crate) use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;
use wharfline::csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use wharfline::csi::proto::{self, VolumeCapability};

pub(crate) const MIB: i64 = 1 << 20;
/// What mkfs.xfs wants at least.
pub(crate) const XFS: i64 = 300 * MIB;
/// What mkfs.btrfs wants at least, with some room.
pub(crate) const BTRFS: i64 = 128 * MIB;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type Context = BTreeMap<String, String>;

/// A data directory that drivers share, and a place for what they mount.
pub(crate) struct Backend {
    root: tempfile::TempDir,
}

/// One process.
pub(crate) struct Driver {
    child: Child,
    log: PathBuf,
    /// Goes before the process is told to end, which waits for its clients.
    channel: Option<Channel>,
    pub(crate) node: String,
}

/// How a driver is started beside its node id.
#[derive(Clone, Default)]
pub(crate) struct How<'a> {
    pub(crate) mode: &'a str,
    pub(crate) limit: Option<u16>,
    pub(crate) variables: Vec<(&'a str, OsString)>,
    /// Where the data directory is; the usual one when empty.
    pub(crate) data: Option<PathBuf>,
    pub(crate) topology: Option<&'a str>,
}

/// The path with the programs that `make test` gets.
pub(crate) fn programs() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    for more in [concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin"), "/usr/sbin", "/sbin"] {
        path.push(":");
        path.push(more);
    }
    path
}

impl Backend {
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount, which only root can");
        let root = tempfile::Builder::new().prefix("loop").tempdir_in("/var/tmp").unwrap();
        for place in ["targets", "staging"] {
            std::fs::create_dir(root.path().join(place)).unwrap();
        }
        Self { root }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("D")
    }

    pub(crate) fn image(&self, volume: &str) -> PathBuf {
        self.data().join("volumes").join(volume).join("image")
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.path("targets").join(name)
    }

    /// A staging directory, made as an orchestrator does.
    pub(crate) fn staging(&self, name: &str) -> PathBuf {
        let path = self.path("staging").join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// A driver in mode `all` on `node-a`.
    pub(crate) fn all(&self) -> Driver {
        self.start("node-a", How::default())
    }

    pub(crate) fn start(&self, node: &str, how: How<'_>) -> Driver {
        let mode = if how.mode.is_empty() { "all" } else { how.mode };
        let socket = self.path(&format!("{node}.{mode}.sock"));
        let log = self.path(&format!("{node}.{mode}.log"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_wharfline"));
        command.args(["csi", "loop", "--node-id", node, "--mode", mode, "--endpoint"]);
        command.arg(format!("unix://{}", socket.display()));
        command.arg("--data-dir").arg(how.data.clone().unwrap_or_else(|| self.data()));
        if let Some(limit) = how.limit {
            command.args(["--max-volumes-per-node", &limit.to_string()]);
        }
        if let Some(topology) = how.topology {
            command.args(["--topology", topology]);
        }
        command.env("PATH", programs()).envs(how.variables.clone());
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut child = command.spawn().unwrap();
        until("it listens", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended: {}", read(&log));
            StdStream::connect(&socket).is_ok()
        });
        let connector = tower::service_fn(move |_: http::Uri| {
            let socket = socket.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Driver { child, log, channel: Some(channel), node: node.to_owned() }
    }

    /// Loop devices over files of this backend.
    pub(crate) fn devices(&self) -> Vec<String> {
        let mut found: Vec<_> =
            devices_below(self.root.path()).into_iter().map(|(device, _)| device).collect();
        found.sort();
        found
    }

    /// Mount points of this backend.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        mount_lines(self.root.path()).into_iter().map(|(point, _)| point).collect()
    }

    /// Nothing may be left in the mount table, of loop devices, or on disk.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), [] as [PathBuf; 0]);
        assert_eq!(self.devices(), [] as [String; 0]);
        for empty in ["D/volumes", "D/trash", "D/snapshots", "D/trash-of-snapshots", "targets"] {
            assert_eq!(entries(&self.path(empty)), [] as [String; 0], "in {empty}");
        }
        for node in entries(&self.path("D/nodes")) {
            assert_eq!(entries(&self.path("D/nodes").join(&node)), ["node.json"], "of {node}");
        }
        for staging in entries(&self.path("staging")) {
            assert!(entries(&self.path("staging").join(&staging)).is_empty(), "{staging} is not empty");
        }
    }
}

impl Drop for Backend {
    /// After a failed test: takes the test's own mounts and devices away.
    fn drop(&mut self) {
        for (point, _) in mount_lines(self.root.path()).into_iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        for (device, _) in devices_below(self.root.path()) {
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

impl Driver {
    fn channel(&self) -> Channel {
        self.channel.clone().expect("it runs")
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel())
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }

    pub(crate) fn nodes(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel())
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and a good end.
    pub(crate) async fn stop(mut self) {
        self.channel = None;
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let end = Instant::now() + PATIENCE;
        let ended = loop {
            // The connection is closed by a task of this runtime.
            tokio::task::yield_now().await;
            if let Some(ended) = self.child.try_wait().unwrap() {
                break ended;
            }
            assert!(Instant::now() < end, "it does not end");
        };
        assert!(ended.success(), "{}", read(&self.log));
    }

    /// Waits until it was killed, by itself.
    #[cfg(feature = "kill-points")]
    pub(crate) fn killed(&mut self) {
        use std::os::unix::process::ExitStatusExt as _;
        let mut ended = None;
        until("it is killed", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().signal(), Some(9), "{}", read(&self.log));
    }

    pub(crate) fn log(&self) -> String {
        read(&self.log)
    }

    pub(crate) async fn create(&self, request: proto::CreateVolumeRequest) -> Result<proto::Volume, Status> {
        Ok(self.controller().create_volume(request).await?.into_inner().volume.expect("a volume"))
    }

    /// The id of a volume for this capability.
    pub(crate) async fn volume(&self, name: &str, bytes: i64, capability: &VolumeCapability) -> String {
        self.create(create(name, bytes, capability)).await.expect("a volume").volume_id
    }

    pub(crate) async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = proto::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub(crate) async fn attach(
        &self,
        volume: &str,
        node: &str,
        capability: &VolumeCapability,
    ) -> Result<Context, Status> {
        let request = attach(volume, node, capability);
        Ok(self.controller().controller_publish_volume(request).await?.into_inner().publish_context)
    }

    pub(crate) async fn detach(&self, volume: &str, node: &str) -> Result<(), Status> {
        let request = proto::ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        self.controller().controller_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn stage(&self, request: proto::NodeStageVolumeRequest) -> Result<(), Status> {
        self.nodes().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, volume: &str, staging: &Path) -> Result<(), Status> {
        let request = proto::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: staging.display().to_string(),
        };
        self.nodes().node_unstage_volume(request).await.map(drop)
    }

    /// Unstages, as an orchestrator does: again while a mount namespace that was copied from this one at a bad moment, by
    /// another test, holds the file system still.
    pub(crate) async fn unstaged(&self, volume: &str, staging: &Path) {
        self.try_unstaged(volume, staging).await.expect("unstaged");
    }

    /// The same, and any other answer is the caller's matter.
    pub(crate) async fn try_unstaged(&self, volume: &str, staging: &Path) -> Result<(), Status> {
        let end = Instant::now() + PATIENCE;
        let mut again = tokio::time::interval(Duration::from_millis(20));
        loop {
            match self.unstage(volume, staging).await {
                Err(status) if status.code() == Code::Aborted && Instant::now() < end => again.tick().await,
                other => return other,
            };
        }
    }

    pub(crate) async fn publish(&self, request: proto::NodePublishVolumeRequest) -> Result<(), Status> {
        self.nodes().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, volume: &str, target: &Path) -> Result<(), Status> {
        let request = proto::NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: target.display().to_string(),
        };
        self.nodes().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn expand(
        &self,
        volume: &str,
        bytes: i64,
    ) -> Result<proto::ControllerExpandVolumeResponse, Status> {
        let range = proto::CapacityRange { required_bytes: bytes, limit_bytes: 0 };
        let request = proto::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(range),
            ..Default::default()
        };
        Ok(self.controller().controller_expand_volume(request).await?.into_inner())
    }

    /// What the node says that the volume has then.
    pub(crate) async fn expand_here(&self, volume: &str, path: &Path, bytes: i64) -> Result<i64, Status> {
        let range = proto::CapacityRange { required_bytes: bytes, limit_bytes: 0 };
        let request = proto::NodeExpandVolumeRequest {
            volume_id: volume.to_owned(),
            volume_path: path.display().to_string(),
            capacity_range: (bytes > 0).then_some(range),
            ..Default::default()
        };
        Ok(self.nodes().node_expand_volume(request).await?.into_inner().capacity_bytes)
    }

    pub(crate) async fn stats(&self, volume: &str, path: &Path) -> Result<Vec<proto::VolumeUsage>, Status> {
        let request = proto::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.display().to_string(),
            ..Default::default()
        };
        Ok(self.nodes().node_get_volume_stats(request).await?.into_inner().usage)
    }

    pub(crate) async fn snapshot(&self, volume: &str, name: &str) -> Result<proto::Snapshot, Status> {
        let request = proto::CreateSnapshotRequest {
            source_volume_id: volume.to_owned(),
            name: name.to_owned(),
            ..Default::default()
        };
        Ok(self.controller().create_snapshot(request).await?.into_inner().snapshot.expect("a snapshot"))
    }

    pub(crate) async fn delete_snapshot(&self, snapshot: &str) -> Result<(), Status> {
        let request = proto::DeleteSnapshotRequest { snapshot_id: snapshot.to_owned(), ..Default::default() };
        self.controller().delete_snapshot(request).await.map(drop)
    }

    /// The ids of all snapshots.
    pub(crate) async fn snapshots(&self) -> Vec<String> {
        let listed = self.controller().list_snapshots(proto::ListSnapshotsRequest::default()).await;
        let entries = listed.unwrap().into_inner().entries;
        entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect()
    }

    /// Each volume with the nodes that have it.
    pub(crate) async fn list(&self) -> Vec<(String, Vec<String>)> {
        let listed = self.controller().list_volumes(proto::ListVolumesRequest::default()).await;
        let entry = |entry: proto::list_volumes_response::Entry| {
            (entry.volume.unwrap().volume_id, entry.status.unwrap().published_node_ids)
        };
        listed.unwrap().into_inner().entries.into_iter().map(entry).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("-- {} --\n{}", self.log.display(), self.log());
        }
    }
}

pub(crate) fn create(name: &str, bytes: i64, capability: &VolumeCapability) -> proto::CreateVolumeRequest {
    let range = proto::CapacityRange { required_bytes: bytes, limit_bytes: 0 };
    proto::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: (bytes > 0).then_some(range),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    }
}

/// Whether this process, and so the driver, may let an ext4 grow that is mounted.
pub(crate) fn may_grow_ext4() -> bool {
    let sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.contains(rustix::thread::CapabilitySet::SYS_RESOURCE)
}

/// A request for a volume with what is in a snapshot, or in a volume.
pub(crate) fn from(
    source: proto::volume_content_source::Type,
    request: proto::CreateVolumeRequest,
) -> proto::CreateVolumeRequest {
    let source = proto::VolumeContentSource { r#type: Some(source) };
    proto::CreateVolumeRequest { volume_content_source: Some(source), ..request }
}

pub(crate) fn of_snapshot(id: &str) -> proto::volume_content_source::Type {
    let snapshot_id = id.to_owned();
    proto::volume_content_source::Type::Snapshot(proto::volume_content_source::SnapshotSource { snapshot_id })
}

pub(crate) fn of_volume(id: &str) -> proto::volume_content_source::Type {
    let volume_id = id.to_owned();
    proto::volume_content_source::Type::Volume(proto::volume_content_source::VolumeSource { volume_id })
}

pub(crate) fn attach(
    volume: &str,
    node: &str,
    capability: &VolumeCapability,
) -> proto::ControllerPublishVolumeRequest {
    proto::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability.clone()),
        ..Default::default()
    }
}

pub(crate) fn stage(
    volume: &str,
    context: &Context,
    staging: &Path,
    capability: &VolumeCapability,
) -> proto::NodeStageVolumeRequest {
    proto::NodeStageVolumeRequest {
        volume_id: volume.to_owned(),
        publish_context: context.clone(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability.clone()),
        ..Default::default()
    }
}

/// The publication of what a stage made.
pub(crate) fn publish(
    staged: &proto::NodeStageVolumeRequest,
    target: &Path,
) -> proto::NodePublishVolumeRequest {
    let staged = staged.clone();
    proto::NodePublishVolumeRequest {
        volume_id: staged.volume_id,
        publish_context: staged.publish_context,
        staging_target_path: staged.staging_target_path,
        target_path: target.display().to_string(),
        volume_capability: staged.volume_capability,
        ..Default::default()
    }
}

pub(crate) fn read_only(publish: proto::NodePublishVolumeRequest) -> proto::NodePublishVolumeRequest {
    proto::NodePublishVolumeRequest { readonly: true, ..publish }
}

pub(crate) fn mount(mode: Access, fs_type: &str, flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    let volume = MountVolume { fs_type: fs_type.to_owned(), mount_flags, ..Default::default() };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(volume)),
    }
}

pub(crate) fn ext4() -> VolumeCapability {
    mount(Access::SingleNodeWriter, "ext4", &[])
}

pub(crate) fn block(mode: Access) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

/// The code of a refusal, whose message must say something about `about`.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Status>, about: &str) -> Code {
    let status = result.expect_err("it is refused");
    assert!(status.message().contains(about), "{status:?} says nothing of {about:?}");
    status.code()
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::yield_now();
    }
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

/// Loop devices with a file below a path behind them.
fn devices_below(path: &Path) -> Vec<(String, String)> {
    let all = std::fs::read_dir("/sys/block").expect("block devices").flatten();
    let file = |entry: std::fs::DirEntry| {
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        Some((format!("/dev/{}", entry.file_name().to_string_lossy()), file.trim_end().to_owned()))
    };
    all.filter_map(file).filter(|(_, file)| Path::new(file).starts_with(path)).collect()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
