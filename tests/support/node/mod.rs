//! A real node daemon on the real kernel, against a real server within this process.
mod boot;
mod handles;
mod link;
mod reluctant;
mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use wharfline::node::{self, Machine, Options};
use wharfline::run::{join, machine};
use wharfline::server::{Identity, SealingKey, Server, ServerOptions};
use wharfline::store::embedded::{EmbeddedStore, MemoryDisk, Options as StoreOptions};
use wharfline::sys::real::{Pool, RealProcesses};

pub use boot::{forgetful, rebooted, ungiving};
pub use link::Link;
pub use reluctant::{blind, mute, reluctant};
pub use rig::{NODE_ID, Rig, Special, condition, condition_message, condition_reason};

/// How long a test waits for anything before it fails.
pub const DEADLINE: Duration = Duration::from_secs(20);
/// The node's name.
pub const NODE: &str = "node-a";

/// A directory for one test, on a real file system.
pub struct Place {
    pub data: tempfile::TempDir,
    pub run: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let data = tempfile::Builder::new().prefix("wfl").tempdir_in("/var/tmp").unwrap();
        let run = machine::run_dir(data.path());
        Self { data, run }
    }

    pub fn options(&self) -> Options {
        join::options(NODE, self.data.path().to_owned(), self.run.clone())
    }

    /// The real machine, with the binary under test as the shim.
    pub fn machine(&self) -> Machine {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_wharfline"));
        let processes = RealProcesses::with_program(program, Pool::new(4, DEADLINE));
        Machine {
            processes: Arc::new(processes),
            ..machine::machine(self.data.path(), Path::new("/nowhere/containerd.sock")).unwrap()
        }
    }
}

/// A server in memory.
pub async fn server() -> Server {
    let store = EmbeddedStore::inline(MemoryDisk::default(), StoreOptions::default()).unwrap();
    let server = Server::new(
        Arc::new(store),
        wharfline::api::definitions(),
        ServerOptions::new(SealingKey::new(&[7; 32])),
    );
    server.bootstrap().await.unwrap();
    join::join(&server, NODE, false).await.unwrap();
    server
}

/// One running daemon.
pub struct Daemon {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), node::Error>>,
}

impl Daemon {
    /// Starts it and waits until it is ready.
    pub async fn start(server: &Server, place: &Place) -> Self {
        Self::start_on(server, place.machine(), place.options()).await
    }

    pub async fn start_on(server: &Server, machine: Machine, options: Options) -> Self {
        Self::start_with(server.client(Identity::node(&options.name)), machine, options).await
    }

    /// Starts it with a client of the test's making. What a killed predecessor still writes is waited for.
    pub async fn start_with(client: kube::Client, machine: Machine, options: Options) -> Self {
        let end = tokio::time::Instant::now() + DEADLINE;
        // The lock of a daemon that was killed has no event of its own.
        let mut again = tokio::time::interval(Duration::from_millis(2));
        loop {
            match Self::try_start(client.clone(), machine.clone(), options.clone()).await {
                Ok(daemon) => return daemon,
                Err(node::Error::InUse(_)) if tokio::time::Instant::now() < end => {
                    again.tick().await;
                }
                Err(error) => panic!("the daemon did not start: {error:?}"),
            }
        }
    }

    /// Starts it, or says why not.
    pub async fn try_start(
        client: kube::Client,
        machine: Machine,
        options: Options,
    ) -> Result<Self, node::Error> {
        let (tell, ready) = oneshot::channel();
        let stop = CancellationToken::new();
        let mut task = tokio::spawn(node::run(client, machine, options, tell, stop.clone()));
        tokio::select! {
            ready = tokio::time::timeout(DEADLINE, ready) => match ready {
                Ok(Ok(())) => Ok(Self { stop, task }),
                Ok(Err(_)) => Err(task.await.unwrap().unwrap_err()),
                Err(_) => panic!("the daemon did not get ready"),
            },
            ended = &mut task => Err(ended.unwrap().unwrap_err()),
        }
    }

    /// Ends it as SIGTERM does: workloads and mounts stay.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Ends it between two awaits, as near to SIGKILL as one process gets.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// What the test does as the controllers and a person.
#[derive(Clone)]
pub struct World(pub kube::Client, watch::Sender<bool>);

impl World {
    pub fn new(server: &Server) -> Self {
        let (client, (speaks, of_handles)) = (server.client(Identity::controllers()), watch::channel(true));
        handles::compare(&client, &of_handles);
        Self(client, speaks)
    }

    /// Whether anything is said of new handles, which the controllers do as soon as they see them.
    pub fn speak_of_handles(&self, speak: bool) {
        self.1.send_replace(speak);
    }

    pub async fn create<K>(&self, api: &Api<K>, object: Value) -> K
    where
        K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let mut object: K = serde_json::from_value(object).unwrap();
        // What a daemon says of these last takes their own finalizer with it, and is to be read.
        if ["Volume", "VolumeAttachment", "Allocation"]
            .contains(&K::kind(&K::DynamicType::default()).as_ref())
        {
            object.finalizers_mut().push("example.com/read".to_owned());
        }
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.0.clone())
    }

    pub fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.0.clone(), "default")
    }

    pub async fn status<K>(&self, api: &Api<K>, name: &str, status: Value) -> K
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let patch = json!({ "status": status });
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()
    }

    pub async fn patch<K>(&self, api: &Api<K>, name: &str, patch: Value) -> K
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()
    }

    /// Waits until the object satisfies the predicate.
    pub async fn until<K>(&self, api: &Api<K>, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> K
    where
        K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug + Send + 'static,
    {
        let condition = |object: Option<&K>| object.is_some_and(|o| holds(&serde_json::to_value(o).unwrap()));
        let waiting = kube::runtime::wait::await_condition(api.clone(), name, condition);
        if let Ok(Ok(Some(object))) = tokio::time::timeout(DEADLINE, waiting).await {
            return object;
        }
        let now = serde_json::to_value(api.get_opt(name).await.ok().flatten()).unwrap();
        panic!("{name} never became {what}: {now:#}");
    }

    /// Removes the finalizers of an object that is being deleted, as its controller does.
    pub async fn let_go<K>(&self, api: &Api<K>, name: &str)
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        self.patch(api, name, json!({ "metadata": { "finalizers": null } })).await;
    }

    pub async fn delete<K>(&self, api: &Api<K>, name: &str)
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Mount points beneath a directory.
pub fn mounts_beneath(directory: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|p| Path::new(p).starts_with(directory)).map(str::to_owned).collect()
}

/// `metadata.uid`.
pub fn uid<K: Resource>(object: &K) -> String {
    object.uid().unwrap()
}

/// Waits until something holds that no object tells of, such as a file's content: woken by inotify on the directory.
pub async fn until(mut holds: impl FnMut() -> bool, what: &str) {
    let end = tokio::time::Instant::now() + DEADLINE;
    // The one place that looks again and again: what is waited for has no event of its own.
    let mut beat = tokio::time::interval(Duration::from_millis(5));
    while !holds() {
        assert!(tokio::time::Instant::now() < end, "never came true: {what}");
        beat.tick().await;
    }
}

/// Waits for a file's content.
pub async fn until_file(path: &Path, content: &str) {
    until(
        || std::fs::read_to_string(path).is_ok_and(|c| c == content),
        &format!("{} holds {content:?}", path.display()),
    )
    .await;
}

impl Place {
    /// Undoes the tree's shared mount; nothing else may be mounted any more.
    pub fn clear(&self) {
        let tree = self.data.path().join("volumes");
        rustix::mount::unmount(&tree, rustix::mount::UnmountFlags::empty()).unwrap();
        assert_eq!(mounts_beneath(self.data.path()), Vec::<String>::new());
    }
}
