//! A btrfs in a file, driver processes on it that can be killed and started again, and clients.
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
use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;
use wharfline::csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use wharfline::csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use wharfline::csi::proto::{self, VolumeCapability};

pub(crate) const MIB: i64 = 1 << 20;
pub(crate) const NODE: &str = "node-a";
const PATIENCE: Duration = Duration::from_secs(30);

/// A file system of 2 GiB, mounted, and a place for what is published.
pub(crate) struct Backend {
    root: tempfile::TempDir,
    driver: &'static str,
}

/// One process.
pub(crate) struct Driver {
    child: Child,
    log: PathBuf,
    /// Goes before the process is told to end, which waits for its clients.
    channel: Option<Channel>,
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    for more in [concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin"), "/usr/sbin", "/sbin"] {
        path.push(":");
        path.push(more);
    }
    let done = Command::new(program).args(arguments).env("PATH", path).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}; tools/fetch-btrfs gets mkfs.btrfs"));
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Backend {
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount, which only root can");
        let root = tempfile::Builder::new().prefix("btrfs").tempdir_in("/var/tmp").unwrap();
        for place in ["targets", "fs"] {
            std::fs::create_dir(root.path().join(place)).unwrap();
        }
        let backend = Self { root, driver: "btrfs" };
        let image = backend.path("image");
        std::fs::File::create(&image).unwrap().set_len(2 << 30).unwrap();
        run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()]);
        let fs = backend.path("fs");
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), fs.as_os_str()]);
        backend
    }

    /// The same with the driver `dir`, which has the same calls.
    #[cfg(feature = "kill-points")]
    pub(crate) fn of_dir() -> Self {
        let mut backend = Self::new();
        backend.driver = "dir";
        backend
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path("fs/D")
    }

    pub(crate) fn data(&self, volume: &str) -> PathBuf {
        self.data_dir().join("volumes").join(volume).join("data")
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.path("targets").join(name)
    }

    pub(crate) fn start(&self) -> Driver {
        self.start_with(Vec::new())
    }

    pub(crate) fn start_with(&self, variables: Vec<(&str, OsString)>) -> Driver {
        let (socket, log) = (self.path("csi.sock"), self.path("log"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_wharfline"));
        command.args(["csi", self.driver, "--node-id", NODE, "--endpoint"]);
        command.arg(format!("unix://{}", socket.display()));
        command.arg("--data-dir").arg(self.data_dir()).envs(variables);
        // Nothing else is started: there is nothing to be found.
        command.env("PATH", "/nowhere");
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
        Driver { child, log, channel: Some(channel) }
    }

    /// Everything that was written is counted.
    pub(crate) fn sync(&self) {
        let fs = std::fs::File::open(self.path("fs")).unwrap();
        rustix::fs::syncfs(&fs).unwrap();
    }

    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()));
        points.filter(|point| point.starts_with(self.root.path())).collect()
    }

    /// Nothing may be left in the mount table, on the file system, or of its subvolumes.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), [self.path("fs")]);
        for empty in
            ["volumes", "trash", "snapshots", "trash-of-snapshots", "ephemeral", "trash-of-ephemeral"]
        {
            assert_eq!(entries(&self.data_dir().join(empty)), [] as [String; 0], "in {empty}");
        }
        assert_eq!(entries(&self.path("targets")), [] as [String; 0]);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        for point in self.mounts().into_iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
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

    pub(crate) fn node(&self) -> NodeClient<Channel> {
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

    pub(crate) async fn create(&self, request: proto::CreateVolumeRequest) -> Result<proto::Volume, Status> {
        Ok(self.controller().create_volume(request).await?.into_inner().volume.expect("a volume"))
    }

    pub(crate) async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = proto::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, volume: &str, target: &Path) -> Result<(), Status> {
        let request = proto::NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: target.display().to_string(),
            volume_capability: Some(writer()),
            ..Default::default()
        };
        self.node().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn publish_ephemeral(&self, handle: &str, target: &Path) -> Result<(), Status> {
        let context = [("csi.storage.k8s.io/ephemeral", "true"), ("size", "2Mi")];
        let request = proto::NodePublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: target.display().to_string(),
            volume_capability: Some(writer()),
            volume_context: context.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..Default::default()
        };
        self.node().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, volume: &str, target: &Path) -> Result<(), Status> {
        let request = proto::NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: target.display().to_string(),
        };
        self.node().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn expand(&self, volume: &str, bytes: i64) -> Result<i64, Status> {
        let request = proto::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(proto::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        let answer = self.controller().controller_expand_volume(request).await?.into_inner();
        assert!(!answer.node_expansion_required);
        Ok(answer.capacity_bytes)
    }

    pub(crate) async fn stats(&self, volume: &str, path: &Path) -> Result<Vec<proto::VolumeUsage>, Status> {
        let request = proto::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.display().to_string(),
            ..Default::default()
        };
        Ok(self.node().node_get_volume_stats(request).await?.into_inner().usage)
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

    pub(crate) async fn snapshots(&self) -> Vec<String> {
        let listed = self.controller().list_snapshots(proto::ListSnapshotsRequest::default()).await;
        let entries = listed.unwrap().into_inner().entries;
        entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect()
    }

    pub(crate) async fn volumes(&self) -> Vec<String> {
        let listed = self.controller().list_volumes(proto::ListVolumesRequest::default()).await;
        let entries = listed.unwrap().into_inner().entries;
        entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("-- {} --\n{}", self.log.display(), read(&self.log));
        }
    }
}

pub(crate) fn writer() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Access::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

pub(crate) fn create(name: &str, bytes: i64) -> proto::CreateVolumeRequest {
    let range = proto::CapacityRange { required_bytes: bytes, limit_bytes: 0 };
    proto::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: (bytes > 0).then_some(range),
        volume_capabilities: vec![writer()],
        ..Default::default()
    }
}

pub(crate) fn from_snapshot(id: &str, request: proto::CreateVolumeRequest) -> proto::CreateVolumeRequest {
    from(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }), request)
}

pub(crate) fn from_volume(id: &str, request: proto::CreateVolumeRequest) -> proto::CreateVolumeRequest {
    from(Type::Volume(VolumeSource { volume_id: id.to_owned() }), request)
}

fn from(source: Type, request: proto::CreateVolumeRequest) -> proto::CreateVolumeRequest {
    let source = proto::VolumeContentSource { r#type: Some(source) };
    proto::CreateVolumeRequest { volume_content_source: Some(source), ..request }
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
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::yield_now();
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
