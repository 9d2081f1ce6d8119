//! How a daemon on this machine is set up, and the objects that joining makes.
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as CoreNode;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};

use crate::api::NodeAgent;
use crate::api::node_agent::NodeAgentSpec;
use crate::node::Options;
use crate::node::context::STOPPED;
use crate::server::{Identity, Server};

/// How long a node's lease lasts.
pub const LEASE: Duration = Duration::from_secs(10);
/// Between two times that a node joins again.
const AGAIN: Duration = Duration::from_secs(1);
/// Beneath which directories volumes may be published on the host, unless `up --host-path` says otherwise.
pub const HOST_PATHS: [&str; 3] = ["/srv", "/mnt", "/run/wharfline"];

/// The usual options of a daemon.
pub fn options(name: &str, data_dir: PathBuf, run_dir: PathBuf) -> Options {
    Options {
        name: name.to_owned(),
        data_dir,
        run_dir,
        host_paths: HOST_PATHS.iter().map(PathBuf::from).collect(),
        runtimes: vec!["external".to_owned(), "process".to_owned()],
        lease: LEASE,
        any_store: false,
    }
}

/// Makes the Node and NodeAgent objects, as joining does. Whether the node is marked stopped is set as wanted.
pub async fn join(server: &Server, name: &str, stopped: bool) -> Result<(), kube::Error> {
    let client = server.client(Identity::controllers());
    make(&client, name).await?;
    let nodes: Api<CoreNode> = Api::all(client);
    let now = nodes.get(name).await?;
    if now.annotations().contains_key(STOPPED) != stopped {
        let value = if stopped { serde_json::json!("true") } else { serde_json::Value::Null };
        let patch = serde_json::json!({ "metadata": { "annotations": { STOPPED: value } } });
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

/// Joins again whenever the Node or the NodeAgent was deleted: as long as a daemon runs under the name, there is a node of
/// that name. Never returns.
pub async fn rejoin(client: Client, name: &str) -> Infallible {
    let mut pause = tokio::time::interval(AGAIN);
    pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pause.tick().await;
        let nodes: Api<CoreNode> = Api::all(client.clone());
        let agents: Api<NodeAgent> = Api::all(client.clone());
        let gone = tokio::select! {
            gone = await_condition(nodes, name, |node: Option<&CoreNode>| node.is_none()) => gone.map(drop),
            gone = await_condition(agents, name, |agent: Option<&NodeAgent>| agent.is_none()) => gone.map(drop),
        };
        let made = match gone {
            Ok(()) => make(&client, name).await.map_err(anyhow::Error::from),
            Err(error) => Err(error.into()),
        };
        match made {
            Ok(()) => tracing::warn!(node = name, "the Node or its NodeAgent was deleted: joined again"),
            Err(error) => tracing::debug!(error = &*error as &dyn std::error::Error, "not joined again"),
        }
    }
}

async fn make(client: &Client, name: &str) -> Result<(), kube::Error> {
    let meta = || ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let node = CoreNode { metadata: meta(), ..CoreNode::default() };
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
