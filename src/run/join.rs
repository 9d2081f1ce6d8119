//! How a daemon on this machine is set up, and the objects that joining makes.
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node as CoreNode;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt};

use super::{allows, figures, machine};
use crate::api::NodeAgent;
use crate::api::node_agent::NodeAgentSpec;
use crate::api::plugin::LONGEST_CONTROLLER_CALL;
use crate::node::supervisor::{HEARTBEAT, PROBE_PAUSE};
use crate::node::{Blocks, Figures, Grants, Options};
use crate::plan::marks::STOPPED;
use crate::plan::supervise::LONG_RUN;
use crate::server::{Identity, KEY, LOCAL, Server};

/// How long a node's lease lasts.
pub const LEASE: Duration = Duration::from_secs(10);
/// Between two measurements of how full a node's volumes are.
pub const STATS_PERIOD: Duration = Duration::from_secs(60);
/// Between two times that a node joins again.
const AGAIN: Duration = Duration::from_secs(1);
/// Beneath which directories volumes may be published on the host, unless `up --host-path` says otherwise.
pub const HOST_PATHS: [&str; 3] = ["/srv", "/mnt", "/run/wharfline"];

/// The usual options of a daemon.
pub fn options(name: &str, data_dir: PathBuf, run_dir: PathBuf) -> Options {
    Options {
        name: name.to_owned(),
        containers: Grants::usual(&data_dir),
        data_dir,
        run_dir,
        host_paths: HOST_PATHS.iter().map(PathBuf::from).collect(),
        runtimes: allows::RUNTIMES.map(str::to_owned).to_vec(),
        lease: LEASE,
        heartbeat: HEARTBEAT,
        probe_pause: PROBE_PAUSE,
        long_run: LONG_RUN,
        stats_period: Some(STATS_PERIOD),
        figures: Figures::default(),
        blocks: Blocks::default(),
        longest_call: LONGEST_CONTROLLER_CALL + Duration::from_secs(30),
        any_store: false,
    }
}

/// The same for a daemon that allows this, tells that, and can be asked.
pub(super) fn options_of(
    data_dir: &Path,
    allows: &allows::Allows,
    (figures, told): (&figures::Args, &figures::Told),
    blocks: &Blocks,
) -> Options {
    Options {
        host_paths: allows.host_paths.clone(),
        containers: allows.containers.clone(),
        runtimes: allows.runtimes.clone(),
        stats_period: figures.period(),
        figures: told.figures(),
        blocks: blocks.clone(),
        ..options("", data_dir.to_owned(), machine::run_dir(data_dir))
    }
}

/// The node that runs in the server's own process, if there is one: not one that joined with a key.
pub async fn local_node(client: &Client) -> Result<Option<String>, kube::Error> {
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let all = nodes.list(&kube::api::ListParams::default()).await?.items;
    // One of before there were keys has no annotation.
    let local = |node: &&CoreNode| node.annotations().get(KEY).is_none_or(|key| key == LOCAL);
    Ok(all.iter().find(local).map(ResourceExt::name_any))
}

/// Makes the Node and NodeAgent objects, as joining does. Whether the node is marked stopped is set as wanted.
pub async fn join(server: &Server, name: &str, stopped: bool) -> Result<(), kube::Error> {
    let client = server.client(Identity::controllers());
    make(&client, name).await?;
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let node = nodes.get(name).await?;
    match node.annotations().get(KEY) {
        Some(key) if key == LOCAL => {}
        Some(_) => {
            let message =
                format!("node \"{name}\" is another machine, which joined with a key; choose another name");
            return Err(kube::Error::Service(message.into()));
        }
        None => {
            let patch = serde_json::json!({ "metadata": { "annotations": { KEY: LOCAL } } });
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
    }
    let marked = node.annotations().contains_key(STOPPED);
    if marked == stopped { Ok(()) } else { mark(&client, name, stopped).await }
}

/// Joins again whenever the Node or the NodeAgent was deleted: as long as a daemon runs under the name, there is a node of
/// that name, marked as it was. Never returns.
pub async fn rejoin(client: Client, name: &str) -> Infallible {
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let agents: Api<NodeAgent> = Api::all(client.clone());
    let (mut stopped, mut there) = (false, (true, true));
    let mut seen = futures::stream::select(
        watch_object(nodes, name).map_ok(Seen::Node).boxed(),
        watch_object(agents, name).map_ok(|agent| Seen::Agent(agent.is_some())).boxed(),
    );
    loop {
        match seen.next().await {
            Some(Ok(Seen::Node(Some(node)))) => stopped = node.annotations().contains_key(STOPPED),
            Some(Ok(Seen::Node(None))) => there.0 = false,
            Some(Ok(Seen::Agent(found))) => there.1 = found,
            // The watch tries again by itself; it must not do so at once, for ever.
            Some(Err(_)) | None => tokio::time::sleep(AGAIN).await,
        }
        while there != (true, true) {
            match again(&client, name, stopped).await {
                Ok(()) => {
                    there = (true, true);
                    tracing::warn!(node = name, "the Node or its NodeAgent was deleted: joined again");
                }
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "not joined again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }
}

/// What is seen of this node's own objects.
enum Seen {
    Node(Option<CoreNode>),
    Agent(bool),
}

async fn again(client: &Client, name: &str, stopped: bool) -> Result<(), kube::Error> {
    make(client, name).await?;
    if stopped { mark(client, name, true).await } else { Ok(()) }
}

/// Marks the Node as stopped, or takes the mark off.
async fn mark(client: &Client, name: &str, stopped: bool) -> Result<(), kube::Error> {
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let value = if stopped { serde_json::json!("true") } else { serde_json::Value::Null };
    let patch = serde_json::json!({ "metadata": { "annotations": { STOPPED: value } } });
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
}

async fn make(client: &Client, name: &str) -> Result<(), kube::Error> {
    let meta = || ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let nodes: Api<CoreNode> = Api::all(client.clone());
    // No machine that joins with a key gets this name.
    let annotations = Some([(KEY.to_owned(), LOCAL.to_owned())].into());
    let node = CoreNode { metadata: ObjectMeta { annotations, ..meta() }, ..CoreNode::default() };
    made(nodes.create(&PostParams::default(), &node).await)?;
    let agents: Api<NodeAgent> = Api::all(client.clone());
    let agent = NodeAgent { metadata: meta(), spec: NodeAgentSpec {}, status: None };
    made(agents.create(&PostParams::default(), &agent).await)
}

fn made<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}
