//! What people do: they apply and delete, and ask again until they are told that it is done.
//!
//! What they were told is written down: what was acknowledged is there until they ask for its end.
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use serde_json::{Value, json};
use tokio::sync::Notify;
use wharfline::api::node_agent::OUT_OF_SERVICE;

use crate::network;
use crate::universe::{Promise, Universe, below};

/// The path of all volumes.
const VOLUMES: &str = "/apis/wharfline.dev/v1alpha1/volumes";

/// The path of all attachments.
const ATTACHMENTS: &str = "/apis/wharfline.dev/v1alpha1/volumeattachments";

/// One wish.
#[derive(Clone, Debug)]
pub enum Wish {
    Create {
        collection: String,
        object: Value,
    },
    Delete {
        path: String,
    },
    /// The whole spec of an object is to be another one.
    Change {
        path: String,
        spec: Value,
    },
    /// The volume of a claim is deleted, whatever becomes of the claim.
    DeleteVolumeOf {
        claim: String,
    },
    /// A claim is deleted, and a moment later its volume is to be kept.
    KeepVolumeOf {
        claim: String,
    },
    /// The attachments of a claim are deleted by hand, whoever uses them.
    TakeAway {
        claim: String,
    },
    /// A node's boot is declared dead, or nothing of the node any more.
    Fence {
        node: String,
        boot: Option<String>,
    },
}

impl Wish {
    fn path(&self) -> String {
        match self {
            Self::Create { collection, object } => {
                format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
            }
            Self::Delete { path } | Self::Change { path, .. } | Self::KeepVolumeOf { claim: path } => {
                path.clone()
            }
            // Beside what is asked of the claim itself.
            Self::DeleteVolumeOf { claim } => format!("{claim}-volume"),
            Self::TakeAway { claim } => format!("{claim}-attachments"),
            Self::Fence { node, .. } => format!("/api/v1/nodes/{node}"),
        }
    }
}

/// The key of the store that an object of ours lies under.
fn key_of(path: &str) -> String {
    let parts: Vec<_> = path.split('/').collect();
    match parts[..] {
        [_, _, group, _, "namespaces", namespace, plural, name] => {
            format!("/wharfline/{group}/{plural}/{namespace}/{name}")
        }
        [_, _, group, _, plural, name] => format!("/wharfline/{group}/{plural}/{name}"),
        [_, _, _, plural, name] => format!("/wharfline/core/{plural}/{name}"),
        _ => unreachable!("people ask for objects of ours and for nodes"),
    }
}

/// Wishes and how many of them are done.
#[derive(Default)]
pub struct Desk {
    queue: Mutex<VecDeque<Wish>>,
    open: Mutex<usize>,
    came: Notify,
    /// One wish about an object after the other, as one person has them.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Desk {
    pub fn ask(&self, wish: Wish) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(wish);
        self.came.notify_one();
    }

    /// Wishes that nobody has acknowledged yet.
    pub fn open(&self) -> usize {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, path: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(path.to_owned()).or_default())
    }
}

/// The software of the people's host.
pub async fn host(universe: Arc<Universe>, desk: Arc<Desk>) -> turmoil::Result {
    let client = network::client(&universe, network::PEOPLE, "admin");
    loop {
        let next = desk.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(wish) = next else {
            desk.came.notified().await;
            continue;
        };
        let (client, desk, universe) = (client.clone(), Arc::clone(&desk), Arc::clone(&universe));
        tokio::spawn(async move {
            let path = wish.path();
            let turn = desk.turn(&path);
            let _mine = turn.lock().await;
            fulfil(&client, &universe, &wish, &key_of(&path)).await;
            universe.note(&format!("people: done: {wish:.60?}"));
            *desk.open.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        });
    }
}

/// Asks until the API has acknowledged it. Each try has a deadline: an answer may never come.
async fn fulfil(client: &kube::Client, universe: &Universe, wish: &Wish, key: &str) {
    if matches!(wish, Wish::Delete { .. } | Wish::Change { .. } | Wish::KeepVolumeOf { .. }) {
        // From the first try on it may be gone or another, whatever is answered.
        universe.look().promised.remove(key);
    }
    loop {
        match tokio::time::timeout(Duration::from_secs(5), attempt(client, wish)).await {
            Ok(Some(told)) => {
                let spec = match wish {
                    Wish::Create { object, .. } => Some(&object["spec"]),
                    Wish::Change { spec, .. } => Some(spec),
                    Wish::Delete { .. }
                    | Wish::DeleteVolumeOf { .. }
                    | Wish::KeepVolumeOf { .. }
                    | Wish::TakeAway { .. }
                    | Wish::Fence { .. } => None,
                };
                if let Some(spec) = spec {
                    let uid = told["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                    let promise = Promise { uid, spec: spec.clone() };
                    universe.look().promised.insert(key.to_owned(), promise);
                }
                return;
            }
            Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
        }
    }
}

/// What was told, when it was that the wish is fulfilled.
async fn attempt(client: &kube::Client, wish: &Wish) -> Option<Value> {
    match wish {
        Wish::Create { collection, object } => match ask(client, "POST", collection, Some(object)).await {
            Ok(made) => Some(made),
            // There already: ours, from a try whose answer was lost, or an older one that is on its way out.
            Err(409) => {
                let there = ask(client, "GET", &wish.path(), None).await.ok()?;
                there.pointer("/metadata/deletionTimestamp").is_none().then_some(there)
            }
            Err(_) => None,
        },
        Wish::Delete { path } => match ask(client, "DELETE", path, None).await {
            Ok(told) => Some(told),
            Err(404) => Some(Value::Null),
            Err(_) => None,
        },
        Wish::DeleteVolumeOf { claim } => {
            let Some(volume) = volume_of(client, claim).await? else { return Some(Value::Null) };
            unless_gone(ask(client, "DELETE", &volume, None).await)
        }
        Wish::KeepVolumeOf { claim } => {
            if let Some(volume) = volume_of(client, claim).await? {
                unless_gone(ask(client, "DELETE", claim, None).await)?;
                // By then its deletion is wanted, under way or over.
                tokio::time::sleep(Duration::from_millis(below(1500))).await;
                let kept = json!({ "spec": { "reclaimPolicy": "Retain" } });
                unless_gone(ask(client, "PATCH", &volume, Some(&kept)).await)?;
            }
            // What is kept stays for a person to delete.
            for volume in kept_of(client, claim).await? {
                unless_gone(ask(client, "DELETE", &volume, None).await)?;
            }
            Some(Value::Null)
        }
        Wish::TakeAway { claim } => {
            for attachment in attachments_of(client, claim).await? {
                unless_gone(ask(client, "DELETE", &attachment, None).await)?;
            }
            Some(Value::Null)
        }
        Wish::Change { path, spec } => ask(client, "PATCH", path, Some(&json!({ "spec": spec }))).await.ok(),
        Wish::Fence { boot, .. } => {
            let taint =
                |boot: &String| json!([{ "key": OUT_OF_SERVICE, "value": boot, "effect": "NoExecute" }]);
            let patch = json!({ "spec": { "taints": boot.as_ref().map(taint) } });
            ask(client, "PATCH", &wish.path(), Some(&patch)).await.ok()
        }
    }
}

/// The path of the volume of a claim, if it has one; nothing while nobody knows.
async fn volume_of(client: &kube::Client, claim: &str) -> Option<Option<String>> {
    let claim = unless_gone(ask(client, "GET", claim, None).await)?;
    let volume = claim["status"]["volumeName"].as_str();
    Some(volume.map(|volume| format!("{VOLUMES}/{volume}")))
}

/// The paths of the volumes that were kept of a claim; nothing while nobody knows.
async fn kept_of(client: &kube::Client, claim: &str) -> Option<Vec<String>> {
    let name = claim.rsplit('/').next();
    let all = ask(client, "GET", VOLUMES, None).await.ok()?;
    let kept = all["items"].as_array()?.iter().filter(|volume| {
        volume["spec"]["claimRef"]["name"].as_str() == name && volume["spec"]["reclaimPolicy"] == "Retain"
    });
    Some(
        kept.filter_map(|volume| Some(format!("{VOLUMES}/{}", volume["metadata"]["name"].as_str()?)))
            .collect(),
    )
}

/// The paths of the attachments of a claim; nothing while nobody knows.
async fn attachments_of(client: &kube::Client, claim: &str) -> Option<Vec<String>> {
    let name = claim.rsplit('/').next();
    let all = ask(client, "GET", ATTACHMENTS, None).await.ok()?;
    let of_it = all["items"].as_array()?.iter().filter(|a| a["spec"]["claim"]["name"].as_str() == name);
    Some(of_it.filter_map(|a| Some(format!("{ATTACHMENTS}/{}", a["metadata"]["name"].as_str()?))).collect())
}

/// An answer, if one came: what is gone says nothing.
fn unless_gone(answer: Result<Value, u16>) -> Option<Value> {
    match answer {
        Ok(told) => Some(told),
        Err(404) => Some(Value::Null),
        Err(_) => None,
    }
}

/// The answer, or the code of a refusal; 0 when there was no answer.
async fn ask(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> Result<Value, u16> {
    let bytes = body.map(|b| serde_json::to_vec(b).expect("an object")).unwrap_or_default();
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let request = request.body(bytes).expect("a request");
    match client.request::<Value>(request).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(_) => Err(0),
    }
}
