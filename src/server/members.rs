//! Which nodes may speak: those whose Node carries the hash of the key that they show.
//!
//! A node that was let in stays so until its Node changes; then whatever it has open ends, and it is looked at anew.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::hub::{Change, Hub, Taken};
use super::joining::KEY;
use super::objects::Objects;
use super::resource::Resource;
use super::status::Refusal;

/// The nodes that were let in.
#[derive(Default)]
pub(crate) struct Members {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, Member>,
    /// How many changes of Nodes were seen.
    changes: u64,
}

struct Member {
    key: String,
    /// Cancelled when the node is no longer welcome as it was.
    leave: CancellationToken,
}

impl Members {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a node pass that shows a key; what is returned is cancelled when it must go.
    pub(crate) async fn admit(
        &self,
        inner: &Inner,
        name: &str,
        key: &str,
    ) -> Result<CancellationToken, Refusal> {
        let Some(resource) = inner.registry.nodes() else { return Err(removed(name)) };
        loop {
            let changes = {
                let state = self.state();
                if let Some(member) = state.known.get(name).filter(|member| member.key == key) {
                    return Ok(member.leave.clone());
                }
                state.changes
            };
            let found = inner.objects.get(resource, &resource.key(None, name)).await?;
            let bound = found.map(|stored| stored.value(resource)).transpose()?.as_ref().and_then(key_of);
            if bound.as_deref() != Some(key) {
                return Err(removed(name));
            }
            let mut state = self.state();
            // A change that came meanwhile may have been this node's: what was read is old then.
            if state.changes == changes {
                let member = Member { key: key.to_owned(), leave: CancellationToken::new() };
                let leave = member.leave.clone();
                if let Some(before) = state.known.insert(name.to_owned(), member) {
                    before.leave.cancel();
                }
                return Ok(leave);
            }
        }
    }

    /// Takes notice of a change of a Node: who is removed, or has another key, ends what it has open.
    fn look(&self, objects: &Objects, nodes: &Resource, change: &Change) {
        let name = std::str::from_utf8(&change.key).ok().and_then(|key| key.strip_prefix(&nodes.prefix));
        let now = change.new.as_ref().and_then(|side| side.view(objects, nodes).ok());
        let now = now.and_then(|view| serde_json::from_slice::<Value>(&view.json).ok());
        let key = now.as_ref().and_then(key_of);
        let mut state = self.state();
        state.changes += 1;
        let known = name.and_then(|name| Some((name, state.known.get(name)?)));
        if let Some((name, _)) = known.filter(|(_, member)| Some(&member.key) != key.as_ref())
            && let Some(member) = state.known.remove(name)
        {
            member.leave.cancel();
        }
    }

    /// What was missed is not known: everybody is looked at anew.
    fn forget_all(&self) {
        let mut state = self.state();
        state.changes += 1;
        state.known.drain().for_each(|(_, member)| member.leave.cancel());
    }
}

fn key_of(node: &Value) -> Option<String> {
    node["metadata"]["annotations"][KEY].as_str().map(str::to_owned)
}

/// The refusal of who was a node.
fn removed(name: &str) -> Refusal {
    let message =
        format!("node \"{name}\" is not a member with this key: it was removed, or its name given away");
    Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)
}

/// Follows the Nodes until `closing`: who is removed, or whose key changes, goes at once.
pub(crate) async fn follow(
    (hub, objects, members): (Arc<Hub>, Arc<Objects>, Arc<Members>),
    nodes: Arc<Resource>,
    closing: CancellationToken,
) {
    let followed = async {
        hub.ready().await;
        let mut news = hub.news(nodes.lane);
        let mut cursor = hub.position();
        // Whoever was let in before was not followed.
        members.forget_all();
        loop {
            news.mark_unchanged();
            match hub.take(nodes.lane, cursor) {
                Taken::Changes(changes) => {
                    for change in changes {
                        cursor = change.rev;
                        members.look(&objects, &nodes, &change);
                    }
                    continue;
                }
                Taken::Nothing(seen) => cursor = seen,
                Taken::TooOld => {
                    cursor = hub.position();
                    members.forget_all();
                    continue;
                }
            }
            if news.changed().await.is_err() {
                return;
            }
        }
    };
    let _closed = closing.run_until_cancelled(followed).await;
}
