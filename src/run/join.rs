//! How a daemon on this machine is set up, and the objects that joining makes.
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as CoreNode;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};

use crate::api::NodeAgent;
use crate::api::node_agent::NodeAgentSpec;
use crate::node::Options;
use crate::node::context::STOPPED;
use crate::server::{Identity, Server};

/// How long a node's lease lasts.
pub const LEASE: Duration = Duration::from_secs(10);
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
    }
}

/// Makes the Node and NodeAgent objects, as joining does. Whether the node is marked stopped is set as wanted.
pub async fn join(server: &Server, name: &str, stopped: bool) -> Result<(), kube::Error> {
    let client = server.client(Identity::controllers());
    let meta = || ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let node = CoreNode { metadata: meta(), ..CoreNode::default() };
    made(nodes.create(&PostParams::default(), &node).await)?;
    let agents: Api<NodeAgent> = Api::all(client);
    let agent = NodeAgent { metadata: meta(), spec: NodeAgentSpec {}, status: None };
    made(agents.create(&PostParams::default(), &agent).await)?;
    let now = nodes.get(name).await?;
    if now.annotations().contains_key(STOPPED) != stopped {
        let value = if stopped { serde_json::json!("true") } else { serde_json::Value::Null };
        let patch = serde_json::json!({ "metadata": { "annotations": { STOPPED: value } } });
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

fn made<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}
