//! Nodes: not heard, taken down, or to be taken out.
use k8s_openapi::api::core::v1::{Node, Taint};

use super::super::{Branch, Kind, State, Subject};
use super::{Walk, add_words, key};
use crate::api::allocation::DRAIN;
use crate::api::node_agent::{OUT_OF_SERVICE, fence_command};

impl Walk<'_> {
    /// A node that was asked for: whether anything new may come to it, too, which keeps nothing that is there.
    pub(super) fn whole_node(&self, name: &str) -> Branch {
        let mut branch = self.node(name);
        if let Some((word, way_out)) = self.nodes.get(&key(name)).and_then(|node| closed(node))
            && !branch.blocked()
        {
            branch.add(&format!(", but {word}: nothing new comes to it before {way_out}"));
        }
        branch
    }

    pub(super) fn node(&self, name: &str) -> Branch {
        self.enter(Subject::global(Kind::Node, name), self.nodes.get(&key(name)), |node, mut branch| {
            let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
            let ready = conditions.iter().find(|c| c.type_ == "Ready");
            let heard = ready.is_some_and(|c| c.status == "True");
            let goes = node.metadata.deletion_timestamp.is_some();
            branch.say(if goes { "being deleted" } else { "ready" });
            if goes && heard {
                branch.state = State::Blocked;
                branch.name_reason("BeingDeleted");
                branch.because = self.left_on(name);
                return branch;
            }
            if !heard {
                branch.state = State::Blocked;
                if !goes {
                    branch.say("not ready");
                }
                let word = |text: Option<&String>| text.cloned().unwrap_or_default();
                let reason = word(ready.and_then(|c| c.reason.as_ref()));
                add_words(&mut branch, &reason, &word(ready.and_then(|c| c.message.as_ref())));
                if ready.is_some_and(|c| c.status == "Unknown") {
                    branch.hint = how_to_go_on(name, node);
                }
            }
            branch
        })
    }
}

/// Of a node whose present boot was said to be off.
const SAID_OFF: &str = "said to be off";

/// Why nothing new comes to a node that is heard, and what would end that.
pub(super) fn closed(node: &Node) -> Option<(&'static str, String)> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let spec = node.spec.as_ref()?;
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let boot = info.map(|info| info.boot_id.as_str()).unwrap_or_default();
    let taints = || spec.taints.iter().flatten();
    let off = |taint: &&Taint| taint.key == OUT_OF_SERVICE && taint.value.as_deref() == Some(boot);
    if taints().any(|taint| off(&taint)) {
        return Some((
            SAID_OFF,
            format!("`wharfline taint node {name} {OUT_OF_SERVICE}-`, or its next renewal"),
        ));
    }
    let drained = taints().any(|taint| taint.key == DRAIN && taint.effect == "NoExecute");
    let word = if drained { "being drained" } else { "cordoned" };
    (drained || spec.unschedulable == Some(true)).then(|| (word, format!("`wharfline uncordon {name}`")))
}

/// What a person can do about a node that is not heard.
fn how_to_go_on(name: &str, node: &Node) -> String {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let boot = info.map(|info| info.boot_id.as_str()).unwrap_or_default();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let off = taints.filter(|taint| taint.key == OUT_OF_SERVICE).filter_map(|taint| taint.value.as_deref());
    let said: Vec<_> = off.collect();
    if said.contains(&boot) {
        return format!(
            "{name} is said to be off, and what it had is free for others: delete what shall not wait for it, or start its daemon again"
        );
    }
    let other =
        if said.is_empty() { "" } else { "its taint names another boot, and says nothing of this one; " };
    format!(
        "start the node daemon on {name} or look at its log there; {other}where the machine is surely off, `{}`",
        fence_command(name, boot)
    )
}
