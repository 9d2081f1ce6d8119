//! The node's lease, and what its NodeAgent says.
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::context::{API_DEADLINE, Key, Node};
use super::journal::{Entry, StoreEntry, TaskEntry};
use super::writes::{Guard, Part};
use crate::api::definitions::AGENT_PART;
use crate::api::meta::{Condition, READY, Truth, set_condition};
use crate::api::node_agent::LEASE_BOOT;
use crate::api::{NodeAgent, NodeAgentStatus};

/// Where leases and plugin allocations live.
pub const SYSTEM: &str = "wharfline-system";

/// Between two looks for what a runtime lacks.
const AGAIN: Duration = Duration::from_secs(60);

/// What stays the same about this daemon.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Kept with the journal.
    pub incarnation: String,
    /// The kernel's release.
    pub kernel: String,
}

/// Why nothing may be done here in the name of this node.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Another daemon lives under this node's name.
    #[error(
        "another daemon renews the lease of node \"{name}\" (incarnation {other}); give this machine another name"
    )]
    Impostor {
        /// The node's name.
        name: String,
        /// The other's incarnation.
        other: String,
    },
    /// The server's store is not the one that what runs here was started for: all of it would count as unwanted.
    #[error(
        "{tasks} tasks and {volumes} volumes are up here for another store than this one, in which they are not \
         known. Put that store back, or take down what is left here with `wharfline down`"
    )]
    OtherStore {
        /// How many tasks the journal knows.
        tasks: usize,
        /// How many volumes it knows.
        volumes: usize,
    },
}

/// Renews the lease until the daemon ends; an error when another incarnation of this node lives, or the server's store is
/// another one.
pub async fn renew(node: Arc<Node>, incarnation: String) -> Result<(), Refused> {
    let period = node.options.lease / 3;
    let mut beat = tokio::time::interval(period);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut held: Option<Lease> = None;
    // When the other's last word was first seen, and that word.
    let mut seen_other: Option<(Instant, MicroTime)> = None;
    let mut known = false;
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return Ok(()),
            _ = beat.tick() => {}
        }
        if !known {
            known = match tokio::time::timeout(API_DEADLINE, recognise(&node)).await {
                Ok(Ok(())) => true,
                Ok(Err(Unknown::Refused(refused))) => return Err(refused),
                Ok(Err(Unknown::Unread(reason))) => {
                    tracing::debug!(reason, "the server was not asked which store it has");
                    false
                }
                Err(_) => false,
            };
            if !known {
                continue;
            }
        }
        let sent = Instant::now();
        match tokio::time::timeout(period.min(API_DEADLINE), once(&node, &incarnation, held.take())).await {
            Ok(Ok(Renewal::Held(lease))) => {
                let valid = node.lease_valid();
                node.renewed_at(sent);
                held = Some(*lease);
                seen_other = None;
                if !valid {
                    wake_held_back(&node);
                }
            }
            Ok(Ok(Renewal::Other { holder, renewed })) => {
                held = outwait(&node, &incarnation, seen_other.as_ref(), (holder, renewed.as_ref())).await?;
                if held.is_some() {
                    node.renewed_at(sent);
                    wake_held_back(&node);
                }
                let word = renewed.unwrap_or_else(|| MicroTime(node.now().0));
                seen_other = Some(seen_other.map_or((sent, word.clone()), |(since, _)| (since, word)));
            }
            // While the server was away the other could not renew either.
            Ok(Err(error)) => {
                seen_other = None;
                tracing::debug!(error = &error as &dyn std::error::Error, "lease not renewed");
            }
            Err(_) => {
                seen_other = None;
                tracing::debug!("lease not renewed in time");
            }
        }
    }
}

/// What becomes of another's lease, which was seen so before: it is taken once that one is surely gone.
///
/// # Errors
///
/// When the other one lives.
async fn outwait(
    node: &Node,
    incarnation: &str,
    seen: Option<&(Instant, MicroTime)>,
    (holder, renewed): (String, Option<&MicroTime>),
) -> Result<Option<Lease>, Refused> {
    let looked = seen.map(|(since, word)| (since.elapsed(), word));
    match other(looked, renewed, node.options.lease) {
        Other::Lives => Err(Refused::Impostor { name: node.options.name.clone(), other: holder }),
        Other::Gone => {
            let taken = tokio::time::timeout(API_DEADLINE, take_over(node, incarnation, renewed));
            Ok(taken.await.ok().flatten())
        }
        Other::Unsure => {
            if seen.is_none() {
                let name = &node.options.name;
                tracing::info!(
                    node = name,
                    lease_seconds = node.options.lease.as_secs(),
                    "another daemon had this node's name and may run still: waits until it has not been heard for a lease"
                );
            }
            Ok(None)
        }
    }
}

/// Why the store is not known.
enum Unknown {
    Refused(Refused),
    Unread(String),
}

/// Asks the server which store it has, before anything is done in its name.
async fn recognise(node: &Node) -> Result<(), Unknown> {
    let unread = |error: &dyn std::error::Error| Unknown::Unread(error.to_string());
    let namespaces: Api<Namespace> = Api::all(node.client.0.clone());
    let uid = namespaces.get(SYSTEM).await.map_err(|error| unread(&error))?.uid().unwrap_or_default();
    let had = node.journal.store();
    let runs = |t: &TaskEntry| !node.tasks.process(&t.allocation.uid, &t.task).idle();
    let tasks = node.journal.tasks().iter().filter(|task| runs(task)).count();
    let volumes = node.journal.attachments().len();
    let known = store(had.as_ref().map(|s| s.uid.as_str()), &uid, tasks + volumes > 0);
    match known {
        Known::Same => Ok(()),
        Known::Other if !node.options.any_store => {
            Err(Unknown::Refused(Refused::OtherStore { tasks, volumes }))
        }
        // The old one stays on record until nothing of it is left: should this be interrupted, the next start still knows.
        Known::Other => Ok(()),
        Known::New => {
            let entry = StoreEntry { uid, node: node.options.name.clone() };
            node.journal.put_soon(Entry::Store(entry)).await.map_err(|error| unread(&error))
        }
    }
}

/// How the server's store is related to the journal.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    Same,
    New,
    Other,
}

/// A store whose uid is not the one that the journal had is another one, if anything is left of what was done for that.
fn store(had: Option<&str>, now: &str, in_use: bool) -> Known {
    match had {
        Some(had) if had == now => Known::Same,
        Some(_) if in_use => Known::Other,
        // Journals of before this was kept say nothing of it.
        Some(_) | None => Known::New,
    }
}

/// What is known of another who holds the lease.
#[derive(Debug, PartialEq, Eq)]
enum Other {
    Lives,
    Gone,
    Unsure,
}

/// Alive is who renews while we look; a dead one's last word stays as it is for a whole lease. `seen` is its word when we
/// first looked, and for how long we have looked since, without a gap.
fn other(seen: Option<(Duration, &MicroTime)>, renewed: Option<&MicroTime>, lease: Duration) -> Other {
    match seen {
        None => Other::Unsure,
        Some((_, word)) if renewed.is_some_and(|renewed| renewed != word) => Other::Lives,
        Some((looked, _)) if looked >= lease => Other::Gone,
        Some(_) => Other::Unsure,
    }
}

/// The lease is valid again: what was held back because of it goes on. What this node is host of is listed anew, and goes
/// on with that.
fn wake_held_back(node: &Node) {
    for allocation in node.caches.allocations.all() {
        node.queue.wake(Key::Allocation(allocation.uid().unwrap_or_default()));
    }
}

enum Renewal {
    Held(Box<Lease>),
    Other { holder: String, renewed: Option<MicroTime> },
}

async fn once(node: &Node, incarnation: &str, held: Option<Lease>) -> Result<Renewal, kube::Error> {
    let api: Api<Lease> = Api::namespaced(node.client.0.clone(), SYSTEM);
    let name = &node.options.name;
    let current = match held {
        Some(lease) => Some(lease),
        None => api.get_opt(name).await?,
    };
    let Some(lease) = current else {
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let lease = renewed(node, incarnation, Lease { metadata, spec: None });
        return Ok(Renewal::Held(Box::new(api.create(&PostParams::default(), &lease).await?)));
    };
    let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.clone()).unwrap_or_default();
    if !holder.is_empty() && holder != incarnation {
        let renewed = lease.spec.and_then(|s| s.renew_time);
        return Ok(Renewal::Other { holder, renewed });
    }
    let lease = renewed(node, incarnation, lease);
    Ok(Renewal::Held(Box::new(api.replace(name, &PostParams::default(), &lease).await?)))
}

/// Takes the lease of one who has not renewed it since `seen`, unless it was renewed in this very moment.
async fn take_over(node: &Node, incarnation: &str, seen: Option<&MicroTime>) -> Option<Lease> {
    let api: Api<Lease> = Api::namespaced(node.client.0.clone(), SYSTEM);
    let lease = api.get(&node.options.name).await.ok()?;
    if lease.spec.as_ref().and_then(|s| s.renew_time.as_ref()) != seen {
        return None;
    }
    let lease = renewed(node, incarnation, lease);
    api.replace(&node.options.name, &PostParams::default(), &lease).await.ok()
}

/// The lease as it is renewed now.
fn renewed(node: &Node, incarnation: &str, mut lease: Lease) -> Lease {
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(incarnation.to_owned()),
        lease_duration_seconds: i32::try_from(node.options.lease.as_secs()).ok(),
        renew_time: Some(MicroTime(node.now().0)),
        ..LeaseSpec::default()
    });
    lease.metadata.annotations.get_or_insert_default().insert(LEASE_BOOT.to_owned(), node.boot_id.clone());
    lease
}

/// The fields of a NodeAgent's status: all of them.
const AGENT: Part = Part { name: "agent", fields: AGENT_PART, epoch: None, guard: Guard::Any };

/// Writes what the daemon says of its machine.
pub async fn report(node: &Arc<Node>, identity: &Identity) -> Option<Duration> {
    let api: Api<NodeAgent> = Api::all(node.client.0.clone());
    let step = "agent/report";
    let object = match tokio::time::timeout(API_DEADLINE, api.get(&node.options.name)).await {
        Ok(Ok(object)) => object,
        Ok(Err(error)) => return node.after_write(step, Err(error)),
        Err(_) => return node.after_write(step, Err(kube::Error::Service("no answer in time".into()))),
    };
    let mut status = object.status.clone().unwrap_or_default();
    let lacking = node.runtimes.look().await;
    // Not before the API has heard it of every allocation: whoever waits for this word may end the server next.
    let told = node.caches.allocations.all().iter().all(|a| {
        a.status.as_ref().and_then(|s| s.phase).is_some_and(crate::api::allocation::AllocationPhase::terminal)
    });
    let stopped = node.stopped() && node.journal.attachments().is_empty() && node.tasks.all_idle() && told;
    status = NodeAgentStatus {
        incarnation: identity.incarnation.clone(),
        boot_id: node.boot_id.clone(),
        kernel: identity.kernel.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        runtimes: node.runtimes.usable(),
        missing_runtimes: node.runtimes.missing(),
        host_paths: node.options.host_paths.iter().map(|p| p.to_string_lossy().into_owned()).collect(),
        leftovers: node.sightings.leftovers.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        stopped,
        conditions: std::mem::take(&mut status.conditions),
    };
    let condition = match (node.stopped(), stopped) {
        (false, _) => Condition::new(READY, Truth::True, "Running", ""),
        (true, false) => {
            Condition::new(READY, Truth::False, "Stopping", "wharfline down takes everything down here")
        }
        (true, true) => Condition::new(READY, Truth::False, "Stopped", "taken down by wharfline down"),
    };
    set_condition(&mut status.conditions, condition, node.now());
    if planted!("writes-for-nothing") {
        status.kernel = (node.now().0.as_second() / 3).to_string();
    }
    if planted!("answers-itself") {
        status.kernel = node.now().0.to_string();
    }
    let result = node.write_status(&object, &AGENT, &status).await;
    let again = match (planted!("writes-for-nothing"), planted!("answers-itself")) {
        (true, _) => Some(Duration::from_secs(3)),
        (_, true) => Some(Duration::from_millis(1)),
        // What a runtime lacks may be installed.
        (false, false) => lacking.then_some(AGAIN),
    };
    node.after_write(step, result).or(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_know_what_runs_here_is_another_one() {
        for (had, in_use, expected) in [
            (None, false, Known::New),
            (None, true, Known::New),
            (Some("new"), false, Known::Same),
            (Some("new"), true, Known::Same),
            (Some("old"), false, Known::New),
            (Some("old"), true, Known::Other),
        ] {
            assert_eq!(store(had, "new", in_use), expected, "{had:?} {in_use}");
        }
    }

    #[test]
    fn a_name_is_taken_over_from_one_who_said_nothing_for_a_whole_lease() {
        let time = |second| MicroTime(jiff::Timestamp::from_second(second).unwrap());
        let (lease, old, new) = (Duration::from_secs(10), time(1), time(2));
        for (looked, renewed, expected) in [
            (None, Some(&old), Other::Unsure),
            (Some(3), Some(&old), Other::Unsure),
            (Some(3), Some(&new), Other::Lives),
            (Some(9), None, Other::Unsure),
            (Some(10), Some(&old), Other::Gone),
            (Some(10), None, Other::Gone),
            (Some(20), Some(&new), Other::Lives),
        ] {
            let seen = looked.map(|seconds| (Duration::from_secs(seconds), &old));
            assert_eq!(other(seen, renewed, lease), expected, "{looked:?} {renewed:?}");
        }
    }
}
