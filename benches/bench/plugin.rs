//! The `bind` plugin: attach and stage cost nothing, publish is one bind mount. It shows what Wharfline itself costs.
//!
//! Manners: `quick` does only that; `slow` takes as long as the CSI project's own hostpath plugin was measured to take,
//! one call at a time as that one does; `counted` adds a byte to a file for each call that changes something, and has the
//! name of its directory. A line on standard input is answered with the number of calls of each kind.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use wharfline::csi::proto;
use wharfline::csi::proto::controller_service_capability::rpc::Type as Controller;

use super::stack::unmount_beneath;

/// What the plugin calls this node.
pub(crate) const NODE_ID: &str = "bench-node";
/// `NodePublishVolume` of hostpath, and every other call of it.
const SLOW: (Duration, Duration) = (Duration::from_micros(10_400), Duration::from_micros(400));
/// The calls that change something.
const MUTATING: [&str; 8] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
];

/// A plugin process and its files.
pub(crate) struct Plugin {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) socket: PathBuf,
    pub(crate) files: tempfile::TempDir,
}

impl Plugin {
    /// Starts one and waits until it listens.
    pub(crate) fn start(manner: &str) -> Self {
        let files = tempfile::Builder::new().prefix("wfp").tempdir_in("/var/tmp").unwrap();
        Self::start_in(files, manner)
    }

    fn start_in(files: tempfile::TempDir, manner: &str) -> Self {
        let socket = files.path().join("csi.sock");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("as-plugin")
            .arg(&socket)
            .arg(files.path().join("volumes"))
            .arg(manner)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (ask, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut plugin = Self { child, ask, answers, socket, files };
        let mut line = String::new();
        plugin.answers.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "listening");
        plugin
    }

    /// It answers nothing any more, and keeps its connections.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// It answers again.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Kills its process; the socket stays, as after any kill.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, in the place of the one that was killed, and returns when it listens.
    pub(crate) fn again(&mut self) {
        std::fs::remove_file(&self.socket).unwrap();
        let files = std::mem::replace(&mut self.files, tempfile::tempdir().unwrap());
        *self = Self::start_in(files, "quick");
    }

    /// How often each call was made.
    pub(crate) fn calls(&mut self) -> BTreeMap<String, u64> {
        writeln!(self.ask).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// How many calls were made that change something.
    pub(crate) fn mutating(&mut self) -> u64 {
        let calls = self.calls();
        MUTATING.iter().filter_map(|name| calls.get(*name)).sum()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        unmount_beneath(self.files.path());
    }
}

struct Served {
    node: String,
    volumes: PathBuf,
    slow: bool,
    counted: Option<std::fs::File>,
    turn: tokio::sync::Mutex<()>,
    calls: Mutex<BTreeMap<String, u64>>,
}

/// Serves until it is killed or nobody can ask it any more; as a task of a node, until it is killed.
pub(crate) fn serve(socket: &str, volumes: &str, manner: &str, node: Option<&str>) {
    let socket = socket.strip_prefix("unix://").unwrap_or(socket);
    let served = Arc::new(Served {
        node: node.unwrap_or(NODE_ID).to_owned(),
        volumes: volumes.into(),
        slow: manner == "slow",
        counted: (manner == "counted").then(|| {
            let file = PathBuf::from(volumes).with_extension("calls");
            std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap()
        }),
        turn: tokio::sync::Mutex::default(),
        calls: Mutex::default(),
    });
    let counted = Arc::clone(&served);
    let answers = move || {
        for _ in std::io::stdin().lines() {
            println!("{}", serde_json::to_string(&*counted.calls.lock().unwrap()).unwrap());
        }
        std::process::exit(0);
    };
    if node.is_none() {
        std::thread::spawn(answers);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        println!("listening");
        if node.is_some() {
            std::fs::write(listens(Path::new(volumes)), std::process::id().to_string()).unwrap();
        }
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let served = Arc::clone(&served);
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let served = Arc::clone(&served);
                    async move { Ok::<_, Infallible>(answer(&served, request).await) }
                });
                let connection =
                    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                // The other side ends it as it likes.
                let _ = connection.await;
            });
        }
    });
}

/// Where a plugin that a node runs writes, as soon as it listens, which process it is.
pub(crate) fn listens(volumes: &Path) -> PathBuf {
    volumes.with_extension("listens")
}

type Frames = futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

async fn answer(served: &Served, request: Request<Incoming>) -> Response<StreamBody<Frames>> {
    let (head, body) = request.into_parts();
    let rpc = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    *served.calls.lock().unwrap().entry(rpc.clone()).or_default() += 1;
    if let Some(mut file) = served.counted.as_ref().filter(|_| MUTATING.contains(&rpc.as_str())) {
        file.write_all(b".").unwrap();
    }
    if served.slow {
        let _turn = served.turn.lock().await;
        tokio::time::sleep(if rpc == "NodePublishVolume" { SLOW.0 } else { SLOW.1 }).await;
    }
    let (message, code) = match reply(served, &rpc, body.get(5..).unwrap_or_default()) {
        Some(message) => (message, 0),
        None => (Vec::new(), 12),
    };
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap());
    framed.put_slice(&message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code));
    let frames = vec![Ok(Frame::data(framed.freeze())), Ok(Frame::trailers(trailers))];
    let mut response = Response::new(StreamBody::new(futures::stream::iter(frames)));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// The answer to a call, or none to one that it does not know.
fn reply(served: &Served, rpc: &str, body: &[u8]) -> Option<Vec<u8>> {
    let home = |volume: &str| served.volumes.join(volume);
    Some(match rpc {
        "Probe" => proto::ProbeResponse { ready: Some(true) }.encode_to_vec(),
        "GetPluginInfo" => proto::GetPluginInfoResponse {
            name: match &served.counted {
                Some(_) => format!("{}.csi.example", served.volumes.file_name().unwrap().display()),
                None => "bind.csi.example".into(),
            },
            vendor_version: "1".into(),
            ..Default::default()
        }
        .encode_to_vec(),
        "GetPluginCapabilities" => plugin_capabilities().encode_to_vec(),
        "ControllerGetCapabilities" => controller_capabilities().encode_to_vec(),
        "NodeGetCapabilities" => node_capabilities().encode_to_vec(),
        "NodeGetInfo" => {
            proto::NodeGetInfoResponse { node_id: served.node.clone(), ..Default::default() }.encode_to_vec()
        }
        "CreateVolume" => {
            let asked = proto::CreateVolumeRequest::decode(body).ok()?;
            std::fs::create_dir_all(home(&asked.name)).ok()?;
            let bytes = asked.capacity_range.map_or(1 << 20, |range| range.required_bytes);
            let volume = proto::Volume { volume_id: asked.name, capacity_bytes: bytes, ..Default::default() };
            proto::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec()
        }
        "DeleteVolume" => {
            let asked = proto::DeleteVolumeRequest::decode(body).ok()?;
            // It may be gone already.
            let _ = std::fs::remove_dir_all(home(&asked.volume_id));
            Vec::new()
        }
        "NodePublishVolume" => {
            let asked = proto::NodePublishVolumeRequest::decode(body).ok()?;
            std::fs::create_dir(&asked.target_path).ok()?;
            rustix::mount::mount_bind(home(&asked.volume_id), &asked.target_path).ok()?;
            Vec::new()
        }
        "NodeUnpublishVolume" => {
            let asked = proto::NodeUnpublishVolumeRequest::decode(body).ok()?;
            // Whatever of it is there goes.
            let _ = rustix::mount::unmount(&asked.target_path, rustix::mount::UnmountFlags::empty());
            let _ = std::fs::remove_dir(&asked.target_path);
            Vec::new()
        }
        "NodeStageVolume" => {
            let asked = proto::NodeStageVolumeRequest::decode(body).ok()?;
            rustix::mount::mount_bind(home(&asked.volume_id), &asked.staging_target_path).ok()?;
            Vec::new()
        }
        "NodeUnstageVolume" => {
            let asked = proto::NodeUnstageVolumeRequest::decode(body).ok()?;
            let _ = rustix::mount::unmount(&asked.staging_target_path, rustix::mount::UnmountFlags::empty());
            Vec::new()
        }
        "ControllerPublishVolume" | "ControllerUnpublishVolume" => Vec::new(),
        _ => return None,
    })
}

fn plugin_capabilities() -> proto::GetPluginCapabilitiesResponse {
    use proto::plugin_capability::{Service, Type, service};
    let service = Service { r#type: service::Type::ControllerService as i32 };
    proto::GetPluginCapabilitiesResponse {
        capabilities: vec![proto::PluginCapability { r#type: Some(Type::Service(service)) }],
    }
}

fn controller_capabilities() -> proto::ControllerGetCapabilitiesResponse {
    use proto::controller_service_capability::{Rpc, Type};
    let can = |rpc: Controller| proto::ControllerServiceCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: rpc as i32 })),
    };
    proto::ControllerGetCapabilitiesResponse {
        capabilities: vec![can(Controller::CreateDeleteVolume), can(Controller::PublishUnpublishVolume)],
    }
}

fn node_capabilities() -> proto::NodeGetCapabilitiesResponse {
    use proto::node_service_capability::{Rpc, Type, rpc};
    let stage = Rpc { r#type: rpc::Type::StageUnstageVolume as i32 };
    proto::NodeGetCapabilitiesResponse {
        capabilities: vec![proto::NodeServiceCapability { r#type: Some(Type::Rpc(stage)) }],
    }
}
