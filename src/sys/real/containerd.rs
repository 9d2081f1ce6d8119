//! [`RealContainerd`]: containerd is spoken to over its socket, each time over a new connection. So one that was started
//! anew is found, and nothing is held while nothing happens. Of its API the services of containers and tasks are used;
//! its images and snapshots are not: a container's root is made by us, and stays where no kill can leave it mounted
//! (`sys::shim::stage`).
use crate::sys::containerd::{Contained, Containerd, ContainerdError, NAMESPACE};
use crate::sys::containers::Lack;
use crate::sys::ffi;
use crate::sys::proc::{self, Called};
use crate::sys::shim::stand_in::{self, LINK};
use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use prost::Message;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

/// What was generated from `proto/containerd`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod proto {
    pub(super) mod containers {
        tonic::include_proto!("containerd.services.containers.v1");
    }
    pub(super) mod tasks {
        tonic::include_proto!("containerd.services.tasks.v1");
    }
    pub(super) mod version {
        tonic::include_proto!("containerd.services.version.v1");
    }
}

use proto::containers::containers_client::ContainersClient;
use proto::containers::{
    Container, CreateContainerRequest, DeleteContainerRequest, GetContainerRequest, ListContainersRequest,
    container,
};
use proto::tasks::tasks_client::TasksClient;
use proto::tasks::{
    CreateTaskRequest, DeleteTaskRequest, GetRequest, KillRequest, Process, RuncOptions, StartRequest,
    Status as Phase, WaitRequest,
};
use proto::version::version_client::VersionClient;

/// How long it may take to answer, but for what runs runc.
const ANSWER: Duration = Duration::from_secs(5);
/// How long it may take to make or to start a container: shorter than the shim waits for it.
const MAKE: Duration = Duration::from_secs(15);
/// How long a killed container may take to be over.
const END: Duration = Duration::from_secs(10);
/// How long what was started for a container may take to go by itself when that is gone.
const GOES: Duration = Duration::from_secs(2);
/// What is done when nothing is asked of it any more.
const WAITING: &str = "wait until nothing is done for the container";
/// Its own shim for runc.
const RUNTIME: &str = "io.containerd.runc.v2";
/// The program that it starts for each container under that name: `… -namespace NAMESPACE -id ID -address SOCKET`, for a
/// moment with `start` or `delete` behind it.
const PROGRAM: &[u8] = b"containerd-shim-runc-v2";
/// The types of what it takes without looking into it.
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
const OPTIONS: &str = "containerd.runc.v1.Options";
/// The label with the directory of the task that a container is made for. By it, and by it alone, ours are found.
const DIRECTORY: &str = "wharfline.dev/directory";
/// The longest message that it may send: a list of all containers has their documents.
const LARGEST: usize = 64 << 20;

/// The containerd of this machine.
#[derive(Debug, Clone)]
pub struct RealContainerd {
    socket: PathBuf,
}

/// A container that shall be made.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// Its name.
    pub(crate) id: &'a str,
    /// The directory of its task.
    pub(crate) directory: &'a Path,
    /// What else is written on it.
    pub(crate) labels: &'a [(String, String)],
    /// The document of the OCI runtime specification.
    pub(crate) document: Vec<u8>,
    /// What is called as runc.
    pub(crate) runc: &'a Path,
}

impl RealContainerd {
    /// The one at this socket, be it there or not.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Makes a container, and its first process, which waits. Returns that one's number.
    pub(crate) async fn create(&self, wanted: &Wanted<'_>) -> Result<u32, ContainerdError> {
        let line = self.dial().await?;
        let mut labels: BTreeMap<String, String> = wanted.labels.iter().cloned().collect();
        labels.insert(DIRECTORY.to_owned(), wanted.directory.display().to_string());
        let options = RuncOptions { binary_name: wanted.runc.display().to_string() };
        let options = prost_types::Any { type_url: OPTIONS.to_owned(), value: options.encode_to_vec() };
        let runtime = container::Runtime { name: RUNTIME.to_owned(), options: Some(options.clone()) };
        let spec = prost_types::Any { type_url: SPEC.to_owned(), value: wanted.document.clone() };
        let container =
            Container { id: wanted.id.to_owned(), labels, runtime: Some(runtime), spec: Some(spec) };
        let mut containers = ContainersClient::new(line.clone());
        let request = asked(CreateContainerRequest { container: Some(container) });
        answer("make the container", ANSWER, containers.create(request)).await?;
        let request = CreateTaskRequest { container_id: wanted.id.to_owned(), options: Some(options) };
        let made = answer("make the task", MAKE, TasksClient::new(line).create(asked(request))).await?;
        Ok(made.pid)
    }

    /// Lets a container's first process go on.
    pub(crate) async fn start(&self, id: &str) -> Result<(), ContainerdError> {
        let request = asked(StartRequest { container_id: id.to_owned() });
        let mut tasks = TasksClient::new(self.dial().await?);
        answer("start the task", MAKE, tasks.start(request)).await.map(drop)
    }

    /// How a container's first process ended, once it has.
    pub(crate) async fn ended(&self, id: &str) -> Result<u32, ContainerdError> {
        let request = asked(WaitRequest { container_id: id.to_owned() });
        let mut tasks = TasksClient::new(self.dial().await?);
        Ok(answer("wait for the task", END, tasks.wait(request)).await?.exit_status)
    }

    async fn dial(&self) -> Result<Channel, ContainerdError> {
        let socket = self.socket.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost").connect_timeout(ANSWER);
        let unreachable = |said| ContainerdError::Unreachable { socket: self.socket.clone(), said };
        match timeout(ANSWER, endpoint.connect_with_connector(connector)).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => Err(unreachable(chain(&error))),
            Err(_) => Err(unreachable("it took too long".to_owned())),
        }
    }

    /// Whether a shim was started by this one: the path that it was given leads there where the shim is.
    fn is_its(&self, shim: &Called) -> bool {
        let socket = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let address = shim.after("-address").map(|path| path.trim_start_matches('/'));
        let its =
            address.and_then(|path| socket(&Path::new(&format!("/proc/{}/root", shim.id.pid)).join(path)));
        its.is_some() && its == socket(&self.socket)
    }

    /// Waits until nothing is done for the container of this name any more, which containerd does not have; ends its shim if
    /// that does not go by itself.
    ///
    /// When its own shim is killed, containerd has runc clear up after the container by itself, and tells nobody. That goes by
    /// the path of the cgroup, which is the next container's of the same task, too: it would kill that one, or take its cgroup
    /// away before there is a process in it. And where its client goes, or it is killed itself, while it starts a shim, it knows
    /// nothing of that one, which then waits forever for somebody to say what it is for.
    async fn over(&self, id: &str) -> Result<(), ContainerdError> {
        let settled = async {
            // What starts a shim does so in another process, and so there may be one more than was seen.
            loop {
                let deletions = proc::called_with(&[id, "delete"])?;
                let (starts, shims): (Vec<_>, Vec<_>) = shims(Some(id))?
                    .into_iter()
                    .filter(|shim| self.is_its(shim))
                    .partition(|shim| shim.has("start"));
                if deletions.is_empty() && starts.is_empty() && shims.is_empty() {
                    return Ok::<_, std::io::Error>(());
                }
                gone(deletions.iter().chain(&starts)).await?;
                if let Ok(gone) = timeout(GOES, gone(shims.iter())).await {
                    gone?;
                    continue;
                }
                tracing::warn!(
                    container = id,
                    "containerd left its shim of a container that is gone: killed"
                );
                for shim in &shims {
                    proc::send(&shim.process, Signal::KILL)?;
                }
                gone(shims.iter()).await?;
            }
        };
        match timeout(END, settled).await {
            Ok(settled) => settled.map_err(|error| looking(&error)),
            Err(_) => Err(ContainerdError::InDoubt {
                call: WAITING,
                said: format!("something is done for it still, after {END:?}"),
            }),
        }
    }

    /// The first process of a container; none if it has none, or had one and that is forgotten.
    async fn process(&self, line: Channel, id: &str) -> Result<Option<Process>, ContainerdError> {
        let request = asked(GetRequest { container_id: id.to_owned() });
        match answer("look at the task", ANSWER, TasksClient::new(line).get(request)).await {
            Ok(found) => Ok(found.process),
            Err(ContainerdError::Absent { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Containerd for RealContainerd {
    async fn check(&self) -> Result<(), Lack> {
        let asked = async {
            let mut version = VersionClient::new(self.dial().await?);
            answer("say its version", ANSWER, version.version(Request::new(()))).await
        };
        asked.await.map(drop).map_err(|error| Lack::Containerd { said: error.to_string() })
    }

    async fn list(&self) -> Result<Vec<Contained>, ContainerdError> {
        let line = self.dial().await?;
        let mut all = Vec::new();
        for Container { id, labels, .. } in listed(line.clone(), format!("labels.{DIRECTORY:?}")).await? {
            let Some(directory) = labels.get(DIRECTORY) else { continue };
            let phase = self.process(line.clone(), &id).await?.map(|process| process.status());
            // Unknown is what is said where the asking failed: that is no end.
            let runs = !matches!(phase, None | Some(Phase::Stopped));
            all.push(Contained { id, directory: directory.into(), runs });
        }
        Ok(all)
    }

    async fn called_for(&self, root: &Path) -> Vec<PathBuf> {
        stand_in::called_for_tasks(root)
    }

    async fn strays(&self) -> Result<Vec<String>, ContainerdError> {
        let mut containers = ContainersClient::new(self.dial().await?);
        let mut found = Vec::new();
        for shim in shims(None).map_err(|error| looking(&error))?.iter().filter(|shim| self.is_its(shim)) {
            let Some(id) = shim.after("-id").map(str::to_owned) else { continue };
            // A container is there before its shim.
            let request = asked(GetContainerRequest { id: id.clone() });
            match answer("look at the container", ANSWER, containers.get(request)).await {
                Ok(_) => {}
                Err(ContainerdError::Absent { .. }) => found.push(id),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    async fn remove(&self, id: &str) -> Result<(), ContainerdError> {
        let line = self.dial().await?;
        let mut containers = ContainersClient::new(line.clone());
        let request = asked(GetContainerRequest { id: id.to_owned() });
        let container = match answer("look at the container", ANSWER, containers.get(request)).await {
            Ok(found) => found.container.unwrap_or_default(),
            Err(ContainerdError::Absent { .. }) => return self.over(id).await,
            Err(error) => return Err(error),
        };
        let mut tasks = TasksClient::new(line.clone());
        if let Some(process) = self.process(line.clone(), id).await? {
            if process.status() != Phase::Stopped {
                let signal = u32::try_from(libc::SIGKILL).unwrap_or_default();
                let request = asked(KillRequest { container_id: id.to_owned(), signal, all: true });
                // It may end by itself in this moment; whether it did, shows next.
                drop(answer("kill the task", ANSWER, tasks.kill(request)).await);
                let request = asked(WaitRequest { container_id: id.to_owned() });
                present(answer("wait for the task", END, tasks.wait(request)).await)?;
            }
            let request = asked(DeleteTaskRequest { container_id: id.to_owned() });
            present(answer("delete the task", MAKE, tasks.delete(request)).await)?;
        }
        let request = asked(DeleteContainerRequest { id: id.to_owned() });
        present(answer("delete the container", ANSWER, containers.delete(request)).await)?;
        // Until here runc was called by it.
        if let Some(directory) = called(&container) {
            stand_in::remove(&directory);
        }
        self.over(id).await
    }

    async fn remove_of(&self, of: &Path, root: &Path) -> Result<(), ContainerdError> {
        let directory = of.display().to_string();
        let filter = format!("labels.{DIRECTORY:?}=={directory:?}");
        let mut failed = Ok(());
        // Twice, for another one may be at it: what it has done meanwhile is no failure of ours.
        for _ in 0..2 {
            let found = listed(self.dial().await?, filter.clone()).await?;
            // By our own eyes, whatever the filter was taken for.
            let found = found.iter().filter(|found| found.labels.get(DIRECTORY) == Some(&directory));
            failed = Ok(());
            for container in found {
                failed = self.remove(&container.id).await.and(failed);
            }
            if failed.is_ok() {
                // Of those that it was never told of, too, and of one that another one removes in this moment.
                for id in stand_in::clear(root, of) {
                    failed = self.over(&id).await.and(failed);
                }
                break;
            }
        }
        failed
    }
}

/// When these have ended.
async fn gone(these: impl Iterator<Item = &Called>) -> std::io::Result<()> {
    for one in these {
        ffi::readable(one.process.try_clone()?)?.readable().await?.retain_ready();
    }
    Ok(())
}

/// Shims of containers in our namespace, of one container or of any, and what starts one.
fn shims(of: Option<&str>) -> std::io::Result<Vec<Called>> {
    let words: Vec<&str> = ["-namespace", NAMESPACE, "-id"].into_iter().chain(of).collect();
    let mut found = proc::called_with(&words)?;
    found.retain(|one| one.words().next().is_some_and(|name| name.ends_with(PROGRAM)) && !one.has("delete"));
    Ok(found)
}

fn looking(error: &std::io::Error) -> ContainerdError {
    ContainerdError::InDoubt { call: WAITING, said: error.to_string() }
}

/// What this filter of containerd's lets pass.
async fn listed(line: Channel, filter: String) -> Result<Vec<Container>, ContainerdError> {
    let mut containers = ContainersClient::new(line).max_decoding_message_size(LARGEST);
    let request = asked(ListContainersRequest { filters: vec![filter] });
    Ok(answer("list the containers", ANSWER, containers.list(request)).await?.containers)
}

/// The directory of a container in which lies what containerd calls as runc, if it is of our making.
fn called(container: &Container) -> Option<PathBuf> {
    let options = container.runtime.as_ref()?.options.as_ref()?;
    let program = PathBuf::from(RuncOptions::decode(options.value.as_slice()).ok()?.binary_name);
    let directory = program.parent().filter(|of| of.file_name() == Some(OsStr::new(&container.id)));
    directory.filter(|_| program.file_name() == Some(OsStr::new(LINK))).map(Path::to_owned)
}

/// That something is not there any more is what was wanted.
fn present<T>(answer: Result<T, ContainerdError>) -> Result<(), ContainerdError> {
    match answer {
        Ok(_) | Err(ContainerdError::Absent { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A request about what is in our namespace.
fn asked<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

/// An answer in time, or what may be done without one.
async fn answer<T>(
    call: &'static str,
    within: Duration,
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, ContainerdError> {
    match timeout(within, asked).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(failure(call, &status)),
        Err(_) => Err(ContainerdError::InDoubt { call, said: format!("no answer within {within:?}") }),
    }
}

/// What a status says of the call.
fn failure(call: &'static str, status: &Status) -> ContainerdError {
    let said = status.message().to_owned();
    match status.code() {
        Code::NotFound => ContainerdError::Absent { call, said },
        // The connection was there, so the request may have been, too.
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => {
            ContainerdError::InDoubt { call, said }
        }
        // containerd says Unknown of whatever a runtime refused.
        Code::Unknown if status.source_is_transport() => ContainerdError::InDoubt { call, said },
        _ => ContainerdError::Refused { call, said },
    }
}

/// Whether no server said it.
trait Transport {
    fn source_is_transport(&self) -> bool;
}

impl Transport for Status {
    fn source_is_transport(&self) -> bool {
        std::error::Error::source(self).is_some()
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_means() {
        let refused = |said: &str| ContainerdError::Refused { call: "x", said: said.to_owned() };
        let absent = |said: &str| ContainerdError::Absent { call: "x", said: said.to_owned() };
        let doubt = |said: &str| ContainerdError::InDoubt { call: "x", said: said.to_owned() };
        for (code, meaning) in [
            (Code::NotFound, absent("s")),
            (Code::AlreadyExists, refused("s")),
            (Code::FailedPrecondition, refused("s")),
            (Code::InvalidArgument, refused("s")),
            (Code::Unknown, refused("s")),
            (Code::Unavailable, doubt("s")),
            (Code::Cancelled, doubt("s")),
            (Code::DeadlineExceeded, doubt("s")),
        ] {
            assert_eq!(failure("x", &Status::new(code, "s")), meaning, "{code:?}");
        }
        let cut = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert!(matches!(failure("x", &cut), ContainerdError::InDoubt { .. }), "{cut:?}");
    }
}
