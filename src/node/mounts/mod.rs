//! One volume on this node: the ladder of `plan::mount`, carried out.
//!
//! Gather, plan, carry out one step, journal, and again until nothing is left to do; then write what came of it. The
//! steps do not need the server; only their report does.
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;

mod at_host;
mod expand;
mod healing;
pub(super) mod health;
mod look;
mod others;
mod owners;
mod report;
mod steps;
mod strays;
mod unit;
pub(super) mod usage;

pub use at_host::allowed_host_path;
pub use healing::healing;
pub use health::Sightings;
pub use unit::user_note;
pub(super) use unit::{is_going, tenure};
pub use usage::{Measured, Usages};

use super::context::{Key, Node};
use super::hosting::UNSENT;
use super::journal::JournalError;
use super::writes::{Guard, Part};
use crate::api::allocation::AllocationPhase;
use crate::api::definitions::ATTACHED_PART;
use crate::api::{Allocation, VolumeAttachment};
use crate::csi::{Advice, Failure, Remedy, Rpc};
use crate::plan::mount::{self, Step};
use crate::plan::{Next, Reason};
use crate::sys::kernel::KernelError;
use crate::sys::path::BadPath;
use unit::{Unit, gather};

/// How long a step that must not be repeated as it is waits for a change.
pub const BLOCKED: Duration = Duration::from_secs(365 * 24 * 3600);

/// The word for what somebody else mounted where a volume is.
const FOREIGN_MOUNT: &str = "ForeignMount";

/// The fields of an attachment's status that its node writes.
pub(super) const NODE: Part = Part { name: "node", fields: ATTACHED_PART, epoch: None, guard: Guard::Any };

/// Why a step did not succeed.
enum Trouble {
    /// It waits for something whose change wakes it.
    Wait(Reason),
    /// A call failed.
    Call(Failure),
    /// The thing is there with other arguments: it comes down first, which the journal says by now.
    Undo(Failure),
    /// The kernel said no, or shows something else than it should.
    Kernel(&'static str, String),
    /// The journal cannot be written; the daemon is ending.
    Journal(JournalError),
}

impl From<JournalError> for Trouble {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<KernelError> for Trouble {
    fn from(error: KernelError) -> Self {
        Self::Kernel("KernelRefused", chain(&error))
    }
}

impl From<BadPath> for Trouble {
    fn from(error: BadPath) -> Self {
        Self::Kernel("PathNotAllowed", error.to_string())
    }
}

/// An error with all that led to it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What the server said, or why it did not: in its words alone, without its whole answer.
pub(super) fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => chain(error),
    }
}

/// Brings one volume on this node as far as it goes. Returns when to try again, if time alone may help.
pub async fn reconcile(node: &Arc<Node>, volume: &str) -> Option<Duration> {
    if !node.synced() {
        return None;
    }
    let mut again: Option<Duration> = None;
    let mut held: Vec<String> = Vec::new();
    loop {
        let units = gather(node, volume);
        let mut progressed = false;
        for unit in &units {
            match one_step(node, (volume, unit), &mut held).await {
                Moved::On(delay) => {
                    progressed = true;
                    again = [again, delay].into_iter().flatten().min();
                }
                Moved::Not(delay) => again = [again, delay].into_iter().flatten().min(),
            }
        }
        if !progressed {
            let report = record(node, &units).await;
            return [again, report].into_iter().flatten().min().filter(|d| *d < BLOCKED / 2);
        }
    }
}

/// What came of one step.
enum Moved {
    /// Something changed, or is passed over from now on: look again. When time alone may help with what was passed over,
    /// after how long.
    On(Option<Duration>),
    /// Nothing can be done now; when time alone may help, after how long.
    Not(Option<Duration>),
}

async fn one_step(node: &Arc<Node>, (volume, unit): (&str, &Unit), held: &mut Vec<String>) -> Moved {
    let key = unit.key();
    node.retry.renew(&key, &unit.generation());
    // What others of the handle do meanwhile would make the decision wrong.
    let _turn = node.turns.take(&unit.staging()).await;
    let Chosen { step, name, cure } = match choose(node, unit, held) {
        Ok(chosen) => chosen,
        Err(moved) => return moved,
    };
    if node.notes.begun(&key) {
        unit.tell_users(node);
    }
    match unit.carry_out(node, step, &name).await {
        Ok(()) => {
            node.retry.succeeded(&name);
            node.notes.clear(&unit.note(step));
            // A driver whose mounts die each time is given longer and longer pauses.
            if let Some(cure) = cure {
                node.retry.failed(&cure, "heal".to_owned());
            }
            unit.recovered(node, &name);
            unit.wake_others(node);
            Moved::On(None)
        }
        Err(trouble) => {
            match &trouble {
                // Another process may be asked at once.
                Trouble::Call(failure) if failure.is_turned_away() => {
                    node.queue.wake(Key::Mount(volume.to_owned()));
                }
                Trouble::Call(failure) if failure.is_unsent() => node.not_sent(Key::Mount(volume.to_owned())),
                Trouble::Call(_)
                | Trouble::Wait(_)
                | Trouble::Undo(_)
                | Trouble::Kernel(..)
                | Trouble::Journal(_) => {}
            }
            unit.failed(node, &name, &trouble);
            let delay = trouble_delay(node, &unit.note(step), &name, &trouble);
            if matches!(trouble, Trouble::Undo(_)) {
                return Moved::On(None);
            }
            held.push(name);
            match step {
                Step::Publish(_) | Step::Unpublish(_) => Moved::On(delay),
                // It is tried before users, and behind them from then on.
                Step::Expand => Moved::On(delay),
                Step::Close | Step::Stage | Step::Unstage | Step::PassOn | Step::Release => Moved::Not(delay),
            }
        }
    }
}

/// A step that may be made now.
struct Chosen {
    step: Step,
    /// What it is counted under.
    name: String,
    /// What it is counted under beside that, if it heals.
    cure: Option<String>,
}

/// The next step of all that are not held: each of those is told in `held`. Else why none is made.
fn choose(node: &Node, unit: &Unit, held: &mut Vec<String>) -> Result<Chosen, Moved> {
    let key = unit.key();
    let mut seen = unit.seen(node);
    let mut soonest: Option<Duration> = None;
    loop {
        let step = match mount::next(unit.wanted, &seen) {
            Next::Do(step) => step,
            // What was passed over says itself why it waits.
            Next::Converged | Next::Wait(_) if soonest.is_some() => return Err(Moved::Not(soonest)),
            Next::Converged => {
                node.notes.clear(&key);
                return Err(Moved::Not(None));
            }
            Next::Wait(reason) => {
                node.notes.wait(&key, &reason);
                return Err(Moved::Not(None));
            }
        };
        let name = format!("{key}/{}", unit.step_name(step));
        let cure = healing::cures(step, &seen).then(|| format!("{name}/heal"));
        let pause = cure.as_ref().and_then(|cure| node.retry.remaining(cure));
        let left = node.retry.remaining(&name).or(pause);
        if left.is_none() && !held.contains(&name) {
            return Ok(Chosen { step, name, cure });
        }
        soonest = [soonest, left.or(Some(BLOCKED))].into_iter().flatten().min();
        held.push(name);
        match step {
            // One user's trouble is no other's.
            Step::Publish(i) | Step::Unpublish(i) => seen.publications[i].held = true,
            Step::Close | Step::Stage | Step::Unstage | Step::PassOn | Step::Release | Step::Expand => {
                return Err(Moved::Not(soonest));
            }
        }
    }
}

impl Trouble {
    /// A word and a sentence.
    fn text(&self) -> (String, String) {
        match self {
            Self::Wait(reason) => (reason.word().to_owned(), reason.to_string()),
            Self::Call(failure) => (reason_word(failure), sentence(failure)),
            Self::Undo(failure) => (reason_word(failure), failure.to_string()),
            Self::Kernel(word, message) => ((*word).to_owned(), message.clone()),
            Self::Journal(error) => ("JournalFailed".to_owned(), chain(error)),
        }
    }
}

/// Counts the failure, notes why under this key, and says when to try again if time alone may help.
fn trouble_delay(node: &Node, note: &str, step: &str, trouble: &Trouble) -> Option<Duration> {
    if let Trouble::Call(failure) = trouble
        && failure.is_unsent()
    {
        // Nothing was tried, so there is nothing to tell: the plugin's word about itself wakes it, and this if that does
        // not come.
        return Some(UNSENT);
    }
    let (word, sentence) = trouble.text();
    let delay = match trouble {
        // A node may only get Secrets, not watch them.
        Trouble::Wait(Reason::SecretMissing { .. } | Reason::SecretUnreadable { .. }) => {
            Some(node.retry.failed(step, word.clone()))
        }
        Trouble::Wait(_) => None,
        Trouble::Call(failure) => match failure.remedy() {
            Remedy::Repeat | Remedy::RepairSecrets => {
                Some(node.retry.failed(step, failure.code_name().to_owned()))
            }
            Remedy::ChangeInput | Remedy::Unsupported => {
                node.retry.failed(step, failure.code_name().to_owned());
                node.retry.block(step, BLOCKED);
                None
            }
        },
        Trouble::Undo(failure) => Some(node.retry.failed(step, failure.code_name().to_owned())),
        Trouble::Kernel(..) | Trouble::Journal(_) => Some(node.retry.failed(step, word.clone())),
    };
    node.notes.set(note, &word, &sentence, delay.map(|d| node.later(d)));
    delay
}

/// What the reason of a failure ends with whose driver says that data is lost.
pub const DATA_LOSS: &str = "DataLoss";

/// `NodeStageVolume` failing is `NodeStageVolumeFailed`, one in doubt `NodeStageVolumeUncertain`, and one whose driver says that
/// data is lost `NodeStageVolumeDataLoss` (CO-ERR-15).
pub fn reason_word(failure: &Failure) -> String {
    let what = match failure.is_uncertain() {
        true => "Uncertain",
        false if failure.is_data_loss() => DATA_LOSS,
        false => "Failed",
    };
    format!("{}{what}", failure.rpc.name())
}

/// What a call failed of, what a person can do about it, and what it waits for if it does.
pub fn sentence(failure: &Failure) -> String {
    let waits =
        matches!(failure.remedy(), Remedy::ChangeInput | Remedy::Unsupported) && !failure.rpc.undoes();
    let until = match failure.advice() {
        Advice::NextMount => "; it grows when it is staged anew, once all that use it here have let go",
        _ if waits => "; not tried again before its input changes or the plugin restarts",
        _ => "",
    };
    format!("{failure}{}{until}", hint(failure))
}

/// What a person has to know of a failure that is not said by its code.
fn hint(failure: &Failure) -> &'static str {
    match failure.rpc {
        _ if failure.is_data_loss() => "; the driver says that data is lost: look at its backend",
        // Its name is made of its claim's uid: nobody else has a reason to use it (CO-CTRL-15).
        Rpc::CreateVolume if failure.is_already_exists() => {
            "; a volume of this very name was asked for otherwise before: report that, and look what it is before you delete it"
        }
        // A driver ought to say OK of what it does not know (CO-CTRL-23).
        Rpc::DeleteVolume if failure.is_not_found() => {
            "; it is asked on; set reclaimPolicy Retain to let the volume go without the driver's word"
        }
        _ => "",
    }
}

async fn record(node: &Arc<Node>, units: &[Unit]) -> Option<Duration> {
    let mut retry: Option<Duration> = None;
    for unit in units {
        unit.forget_the_done(node);
        unit.tell_users(node);
        let Some(object) = &unit.object else { continue };
        if unit.entry.is_none() && not_worth_a_word(node, unit, object) {
            continue;
        }
        let status = unit.status(node, unit.released());
        // Tasks that were told to end mostly do so before anybody could read that they are waited for.
        let passing =
            unit.detach_follows(node, unit.released()) || unit.told(node).0 == Reason::TasksRunning.word();
        if passing && let Some(left) = node.keep_back(&**object, &NODE, &status) {
            retry = Some(retry.map_or(left, |r| r.min(left)));
            continue;
        }
        let result = node.write_status(&**object, &NODE, &status).await;
        if let Some(delay) = node.after_write(&format!("{}/report", unit.key()), result) {
            retry = Some(retry.map_or(delay, |r| r.min(delay)));
        }
    }
    retry
}

/// Nothing was begun here: nobody uses it, or it waits for its attach, of which its host tells. A write that says no more
/// than that would be one in every claim's way.
fn not_worth_a_word(node: &Node, unit: &Unit, object: &VolumeAttachment) -> bool {
    let said = object.status.as_ref().is_some_and(|s| s.node.is_some() || !s.conditions.is_empty());
    let (word, _, _) = unit.told(node);
    let under_way = Reason::NotAttached.word() == word && unit.wanted == mount::Attachment::Open;
    !said && (unit.users.is_empty() && object.status.is_none() || under_way)
}

/// A directory name for any ids: 32 hexadecimal digits of their SHA-256.
pub fn hash(parts: &[&str]) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part.as_bytes());
    }
    context.finish().as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One staging directory per plugin and volume on a node, whatever uses it.
pub fn staging_name(plugin: &str, handle: &str) -> String {
    hash(&["staging", plugin, handle])
}

/// Whether an allocation is on its way out, as far as its volumes go.
pub fn stopping(node: &Node, allocation: &Allocation) -> bool {
    // Stopped is no end of its own: an allocation whose node comes back runs again.
    let over = matches!(
        allocation.status.as_ref().and_then(|s| s.phase),
        Some(AllocationPhase::Complete | AllocationPhase::Failed)
    );
    allocation.meta().deletion_timestamp.is_some() || has_to_stop(allocation) || node.stopped() || over
}

/// Whether it was stopped by a person, or has to leave this node.
pub fn has_to_stop(allocation: &Allocation) -> bool {
    allocation.spec.stop || allocation.status.as_ref().is_some_and(|status| status.evicted)
}

/// The last component of every target path; the plugin makes it.
pub const TARGET: &str = "target";
