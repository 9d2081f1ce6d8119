//! Who may speak beyond the local administrator: nodes whose Node carries the hash of the key that they show, and users
//! whose Secret carries the hash of their token.
//!
//! Who was let in stays so until that object changes; then whatever is open ends, and it is looked at anew.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::hub::{Change, Hub, Taken};
use super::objects::Objects;
use super::resource::Resource;
use super::status::Refusal;

/// What the object of a member says of it.
pub(crate) trait Membership: Clone + PartialEq + Send + Sync + 'static {
    /// Reads it; none if the object makes nobody a member.
    fn of(object: &Value) -> Option<Self>;
}

/// The members of one kind that were let in.
pub(crate) struct Members<M> {
    /// Where their objects are.
    resource: Arc<Resource>,
    /// What stands before a member's name in the key of its object.
    prefix: String,
    state: Mutex<State<M>>,
}

struct State<M> {
    known: HashMap<String, Member<M>>,
    /// How many changes of their objects were seen.
    changes: u64,
}

struct Member<M> {
    what: M,
    /// Cancelled when the member is no longer welcome as it was.
    leave: CancellationToken,
}

impl<M: Membership> Members<M> {
    /// Nobody yet; `prefix` is what stands before a member's name in the key of its object.
    pub(crate) fn new(resource: Arc<Resource>, prefix: String) -> Self {
        Self { resource, prefix, state: Mutex::new(State { known: HashMap::new(), changes: 0 }) }
    }

    fn state(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a member that was let in.
    pub(crate) fn known(&self, name: &str) -> Option<(M, CancellationToken)> {
        let state = self.state();
        state.known.get(name).map(|member| (member.what.clone(), member.leave.clone()))
    }

    /// Reads what is said of a member whom `fits` lets in; what comes with it is cancelled when it must go.
    pub(crate) async fn read(
        &self,
        inner: &Inner,
        name: &str,
        fits: impl Fn(&M) -> bool,
    ) -> Result<Option<(M, CancellationToken)>, Refusal> {
        loop {
            let changes = self.state().changes;
            let found = inner.objects.get(&self.resource, &format!("{}{name}", self.prefix)).await?;
            let found = found.map(|stored| stored.value(&self.resource)).transpose()?;
            let Some(what) = found.as_ref().and_then(M::of).filter(&fits) else { return Ok(None) };
            let mut state = self.state();
            // A change that came meanwhile may have been this one's: what was read is old then.
            if state.changes == changes {
                // Another of its requests was first: what that one opened goes on.
                if let Some(member) = state.known.get(name).filter(|member| member.what == what) {
                    return Ok(Some((what, member.leave.clone())));
                }
                let leave = CancellationToken::new();
                let member = Member { what: what.clone(), leave: leave.clone() };
                if let Some(before) = state.known.insert(name.to_owned(), member) {
                    before.leave.cancel();
                }
                return Ok(Some((what, leave)));
            }
        }
    }

    /// Takes notice of a change: who is no longer what it was ends what it has open.
    fn look(&self, objects: &Objects, change: &Change) {
        let name = std::str::from_utf8(&change.key).ok().and_then(|key| key.strip_prefix(&self.prefix));
        let Some(name) = name else { return };
        let mut state = self.state();
        state.changes += 1;
        let Some(member) = state.known.get(name) else { return };
        let now = change.new.as_ref().and_then(|side| side.view(objects, &self.resource).ok());
        let now = now.and_then(|view| serde_json::from_slice::<Value>(&view.json).ok());
        if now.as_ref().and_then(M::of).as_ref() != Some(&member.what)
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

/// Follows the objects of members until `closing`: who is removed or changed goes at once.
pub(crate) async fn follow<M: Membership>(
    (hub, objects, members): (Arc<Hub>, Arc<Objects>, Arc<Members<M>>),
    closing: CancellationToken,
) {
    let lane = members.resource.lane;
    let followed = async {
        hub.ready().await;
        let mut news = hub.news(lane);
        let mut cursor = hub.position();
        // Whoever was let in before was not followed.
        members.forget_all();
        loop {
            news.mark_unchanged();
            match hub.take(lane, cursor) {
                Taken::Changes(changes) => {
                    for change in changes {
                        cursor = change.rev;
                        members.look(&objects, &change);
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
