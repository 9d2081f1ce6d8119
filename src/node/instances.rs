//! What a PluginInstance's status says.
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;

use super::allocations::{admit, forget_bad_runs, refuse, runtime_note};
use super::context::{Key, Node};
use super::registry::{Fingerprint, Instance, InstanceKey, Progress};
use super::supervisor::Fault;
use super::writes::{Guard, Part};
use super::{audit, drift, room};
use crate::api::PluginInstanceStatus;
use crate::api::definitions::INSTANCE_PART;
use crate::api::meta::{Condition, READY, Truth, set_condition};
use crate::api::plugin::{BEGINS, CRASH_LOOP, HEALTH_TIMED_OUT, STEADY};
use crate::plan::Reason;
use crate::plan::supervise::{Process, Runs, has_run_on, is_steady, steady_in};

/// The fields of a PluginInstance's status: all of them.
const INSTANCE: Part = Part { name: "instance", fields: INSTANCE_PART, epoch: None, guard: Guard::Any };

pub(super) async fn report(node: &Arc<Node>, key: &InstanceKey) -> Option<Duration> {
    let Some(object) = node.caches.instances.one(&format!("{}/{}", key.allocation, key.task)) else {
        refuse(node, key).await;
        return None;
    };
    admit(node, key, &object).await;
    let known = node.registry.get(key);
    // It is admitted for something else than what it was started as.
    let other = |i: &Instance| i.plugin != object.spec.plugin || i.role != object.spec.role;
    let known = match known.filter(other) {
        Some(former) => {
            node.queue.wake(Key::Allocation(key.allocation.clone()));
            let sentence = format!("its task still serves plugin {} as {:?}", former.plugin, former.role);
            let fault = Some(("Starting".to_owned(), sentence));
            Some(Instance { progress: Progress { fault, ..Progress::default() }, ..former })
        }
        None => node.registry.get(key),
    };
    let before = object.status.clone().unwrap_or_default();
    // A daemon that has just begun has not asked it yet: what was said of a running one stands until it has.
    let running = node.tasks.process(&key.allocation, &key.task) == Process::Running;
    let undecided = known.as_ref().is_some_and(|instance| instance.progress.is_undecided());
    if undecided && running && !before.conditions.is_empty() {
        return None;
    }
    let mut progress = known.map_or_else(|| unregistered(node, key), |instance| instance.progress);
    if !running && progress.healthy_since.is_none() {
        progress.fault = not_startable(node, key).or(progress.fault);
    }
    let status = instance_status(node, &progress, &before, object.meta().generation);
    if has_run_on(runs(node, &progress, &before.conditions)) {
        // An hour later a Probe may fail: that is no third end in a row.
        forget_bad_runs(node, key).await;
    }
    let steady = well_for(node, &progress).filter(|_| status.unsteady().is_some());
    let steady = steady.map(|well_for| steady_in(well_for, node.options.long_run));
    if audit::concerns(&object) {
        node.queue.wake(Key::Audit(key.clone()));
    }
    if room::concerns(&object) {
        node.queue.wake(Key::Room(key.clone()));
    }
    if drift::concerns(node, key) {
        node.queue.wake(Key::Drift(key.clone()));
    }
    let result = node.write_status(&*object, &INSTANCE, &status).await;
    let again = node.after_write(&format!("pi/{}/{}/report", key.allocation, key.task), result);
    [again, steady].into_iter().flatten().min()
}

/// For how many milliseconds an instance has been well.
fn well_for(node: &Node, progress: &Progress) -> Option<i64> {
    progress.healthy_since.map(|since| node.now().0.as_millisecond() - since.0.as_millisecond())
}

/// What is known of its runs, beside what was last said of them.
fn runs(node: &Node, progress: &Progress, conditions: &[Condition]) -> Runs {
    let known = conditions.iter().find(|c| c.kind == STEADY);
    Runs {
        bad: progress.bad_runs,
        well_for: well_for(node, progress),
        long: node.options.long_run,
        said: known.map(|known| known.status == Truth::True),
    }
}

/// Adds whether its process keeps running, once there was reason to doubt that.
fn add_steady(node: &Node, progress: &Progress, conditions: &mut Vec<Condition>, generation: Option<i64>) {
    let runs = runs(node, progress, conditions);
    let said = runs.said;
    let condition = match is_steady(runs) {
        None => return,
        Some(true) => Condition::new(STEADY, Truth::True, STEADY, ""),
        Some(false) => {
            let (runs, last) = (progress.bad_runs, progress.last_end.as_str());
            let last = match last {
                // The daemon that saw it has told.
                "" if said == Some(false) => return,
                "" => String::new(),
                last => format!("; the last one: {last}"),
            };
            let message = format!(
                "none of its last {runs} runs went well, and it is called steady once it has been well for {} s{last}",
                node.options.long_run.as_secs()
            );
            Condition::new(STEADY, Truth::False, CRASH_LOOP, message)
        }
    };
    set_condition(conditions, condition.of_generation(generation), node.now());
}

/// What is said of one that is not in the registry: it was taken out when it had ended, or was never in it.
fn unregistered(node: &Node, key: &InstanceKey) -> Progress {
    let stopped = node.tasks.process(&key.allocation, &key.task) == Process::Stopped;
    let fault = stopped.then(|| ("Stopped".to_owned(), "its task has ended, as it was asked to".to_owned()));
    Progress { fault, ..Progress::default() }
}

/// Why its task cannot be started by its runtime, if that is more than a moment's wait.
fn not_startable(node: &Node, key: &InstanceKey) -> Option<(String, String)> {
    let (word, sentence, _) = node.notes.get(&runtime_note(&key.allocation, &key.task));
    let obstacles = [Reason::ImageUnusable, Reason::RuntimeMissing, Reason::RuntimeNotAllowed];
    obstacles.iter().any(|reason| reason.word() == word).then_some((word, sentence))
}

fn instance_status(
    node: &Node,
    progress: &Progress,
    before: &PluginInstanceStatus,
    generation: Option<i64>,
) -> PluginInstanceStatus {
    let found = progress.fingerprint.clone();
    let healthy = progress.healthy_since.is_some();
    let mut conditions = before.conditions.clone();
    let fault = progress.fault.clone();
    let fault = if healthy { fault } else { timed_out(fault.as_ref(), &before.conditions).or(fault) };
    let (word, message) = fault.unwrap_or_else(|| ("Starting".into(), String::new()));
    let steps = [
        ("Connected", progress.connected),
        ("Probed", progress.probed),
        ("Fingerprinted", healthy),
        (READY, healthy),
    ];
    for (kind, holds) in steps {
        let condition = if holds {
            Condition::new(kind, Truth::True, kind, "")
        } else {
            Condition::new(kind, Truth::False, &word, message.clone())
        };
        set_condition(&mut conditions, condition.of_generation(generation), node.now());
    }
    add_steady(node, progress, &mut conditions, generation);
    let since = progress.healthy_since;
    let mut status =
        PluginInstanceStatus { since, conditions, audit: None, rooms: Vec::new(), ..before.clone() };
    if let Some(found) = found {
        status.capabilities = capability_words(&found);
        status.provider = Some(found.provider);
        status.node_id = found.node_id;
        status.max_volumes = found.max_volumes;
        status.topology = found.topology;
    }
    status
}

/// That it took too long, as an earlier daemon said: that says more than that it begins once more.
fn timed_out(fault: Option<&Fault>, before: &[Condition]) -> Option<Fault> {
    let begins = fault.is_none_or(|(word, _)| BEGINS.contains(&word.as_str()));
    let late = |c: &&Condition| c.kind == READY && c.status == Truth::False && c.reason == HEALTH_TIMED_OUT;
    let said = before.iter().find(late).filter(|_| begins)?;
    Some((said.reason.clone(), said.message.clone()))
}

fn capability_words(found: &Fingerprint) -> Vec<String> {
    let word = |service: &'static str| move |name: &'static str| format!("{service}/{name}");
    let mut words: Vec<String> = found.plugin.services.names().into_iter().map(word("plugin")).collect();
    let expansion = |name: &'static str| format!("plugin/VOLUME_EXPANSION_{name}");
    words.extend(found.plugin.expansion.names().into_iter().map(expansion));
    words.extend(found.controller.names().into_iter().map(word("controller")));
    words.extend(found.group.names().into_iter().map(word("group-controller")));
    words.extend(found.node.names().into_iter().map(word("node")));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_it_took_too_long_is_said_on_while_it_only_begins_once_more() {
        let said = |truth, reason: &str| vec![Condition::new(READY, truth, reason, "within 2 s")];
        let late = said(Truth::False, HEALTH_TIMED_OUT);
        let fault = |word: &str| Some((word.to_owned(), "now".to_owned()));
        let kept = Some((HEALTH_TIMED_OUT.to_owned(), "within 2 s".to_owned()));
        for (now, before, wanted) in [
            (None, &late, kept.clone()),
            (fault(BEGINS[0]), &late, kept.clone()),
            (fault(BEGINS[1]), &late, kept),
            // It has ended, or answers as another one: that is news.
            (fault("ProcessEnded"), &late, None),
            (fault("OtherDriver"), &late, None),
            (None, &said(Truth::False, "ProcessEnded"), None),
            (None, &said(Truth::True, HEALTH_TIMED_OUT), None),
        ] {
            assert_eq!(timed_out(now.as_ref(), before), wanted, "{now:?} after {before:?}");
        }
    }
}
