//! Why an allocation has no node: what is wrong with each node that it could go to.
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
use super::nodes::closed;
use super::{Service, Walk, key};
use crate::api::Allocation;
use crate::api::meta::{Condition, ObjectRef};

impl Walk<'_> {
    /// Adds the nodes that do not fit, if that is what placement says. What it says of claims is for their branches.
    pub(super) fn add_places(
        &self,
        branch: &mut Branch,
        allocation: &Allocation,
        told: Option<&Condition>,
    ) -> bool {
        let Some(told) = told else { return false };
        let pin = allocation.spec.node_name.as_str();
        match told.reason.as_str() {
            "NoNodes" => branch.because.push(no_node()),
            "NotFound" if !pin.is_empty() && !self.nodes.contains_key(&key(pin)) => {
                branch.because.push(self.node(pin));
            }
            "NoNodeFits" => {
                let wanted = |node: &&&Node| pin.is_empty() || node.name_any() == pin;
                let nodes: Vec<&Node> = self.nodes.values().filter(wanted).copied().collect();
                let known = nodes.iter().filter_map(|node| self.refusal(node, allocation));
                branch.because.extend(known);
                // Where nothing else is found, what placement says of each node stands for itself.
                if branch.because.is_empty() {
                    let said = nodes.iter().filter_map(|node| {
                        let mut refusal = refusal_told(node, &nodes, &told.message, allocation)?;
                        if let Some(hint) = self.how_to_free(&refusal.text, allocation) {
                            refusal.hint = hint;
                        }
                        Some(refusal)
                    });
                    branch.because.extend(said);
                }
            }
            "OwnPlugin" => {
                "name a claim of another plugin in it, or run the driver in an allocation of its own"
                    .clone_into(&mut branch.hint);
            }
            "ClaimTaken" => {
                "let another allocation name its own in claimName beside claimTemplate; or, if nobody needs it, delete that claim"
                    .clone_into(&mut branch.hint);
            }
            _ => return false,
        }
        true
    }

    /// What the objects show of why an allocation cannot go to this node.
    fn refusal(&self, node: &Node, allocation: &Allocation) -> Option<Branch> {
        let name = node.name_any();
        let seen = self.node(&name);
        if seen.blocked() {
            return Some(seen);
        }
        let serves = allocation.spec.tasks.iter().any(|t| t.csi_plugin.is_some());
        if let Some((word, way_out)) = closed(node).filter(|_| !serves) {
            return Some(told(&name, word.to_owned(), way_out));
        }
        let mut labels = allocation.spec.node_selector.iter();
        if let Some((key, value)) = labels.find(|(key, value)| node.labels().get(*key) != Some(*value)) {
            let text = format!("has no label {key}={value}, which the allocation asks for");
            let hint = format!("`wharfline label node/{name} {key}={value}`, or change its nodeSelector");
            return Some(told(&name, text, hint));
        }
        let namespace = allocation.namespace().unwrap_or_default();
        let plugins =
            allocation.spec.volumes.iter().filter_map(|v| self.plugin_of(&namespace, &v.claim_name));
        plugins.map(|plugin| self.plugin(&plugin, Service::Node(&name))).find(Branch::blocked)
    }

    /// What a person can do about some reasons: who has the claim that is on another node has to end before it can come here.
    fn how_to_free(&self, text: &str, allocation: &Allocation) -> Option<String> {
        if let Some(hint) = how_to_run(text) {
            return Some(hint);
        }
        let (claim, on) = text.split_once("claim ")?.1.split_once(" is on node ")?;
        let namespace = allocation.namespace().unwrap_or_default();
        let claim = self.claims.get(&(namespace, claim.to_owned()))?;
        let volume = self.volumes.get(&key(&claim.status.as_ref()?.volume_name))?;
        let holders = volume.status.iter().flat_map(|status| &status.holders);
        let words = |of: &ObjectRef| Subject::namespaced(Kind::Allocation, &of.namespace, &of.name).words("");
        let users: Vec<String> = holders
            .filter(|holder| holder.node_name == on)
            .map(|holder| format!("`wharfline delete {}`", words(&holder.allocation)))
            .collect();
        let place = format!("let it be placed on {on} as well");
        // What lies there stays there, whoever goes.
        let lies = volume.spec.source.home().is_some();
        (!users.is_empty() || lies)
            .then(|| if lies { place } else { format!("{place}, or {}", users.join(" and ")) })
    }

    /// The plugin of a claim's volume, or of its class.
    fn plugin_of(&self, namespace: &str, claim: &str) -> Option<String> {
        let claim = self.claims.get(&(namespace.to_owned(), claim.to_owned()))?;
        let volume = claim.status.as_ref().map(|s| s.volume_name.as_str()).unwrap_or_default();
        let class = claim.spec.volume_class_name.as_str();
        match self.volumes.get(&key(volume)) {
            Some(volume) => Some(volume.spec.plugin.clone()),
            None => match &claim.spec.ephemeral {
                Some(ephemeral) => Some(ephemeral.plugin.clone()),
                None => self.classes.get(&key(class)).map(|class| class.spec.plugin.clone()),
            },
        }
    }
}

/// What a person can do about a node that cannot be used for a runtime.
fn how_to_run(text: &str) -> Option<String> {
    if let Some((_, runtime)) = text.split_once(" does not allow the runtime ") {
        return Some(format!(
            "start that node's daemon with `--runtime {runtime}` besides, or let it run elsewhere"
        ));
    }
    let (_, what) = text.split_once(" cannot use the runtime ")?;
    // Its daemon looks for it no more.
    let for_good = ["is not PID 1", "runs no containers"].iter().any(|words| what.contains(words));
    Some(if for_good {
        "let it run elsewhere, or with another runtime".to_owned()
    } else {
        "put there what is missing, or let it run elsewhere; the node looks once a minute".to_owned()
    })
}

/// In the place of a node where there is none at all.
pub(super) fn no_node() -> Branch {
    let mut branch = Branch::new(Subject::global(Kind::Node, "(none)"), State::Missing, "no node has joined");
    "start `wharfline up` on the machine that shall be the node, or `wharfline node` with a `wharfline token create`"
        .clone_into(&mut branch.hint);
    branch
}

/// What placement says of one of these nodes: `no node fits: a: not ready; b: cordoned`.
fn refusal_told(node: &Node, nodes: &[&Node], message: &str, allocation: &Allocation) -> Option<Branch> {
    let name = node.name_any();
    let details = message.strip_prefix("no node fits: ").unwrap_or(message);
    let of = |part: &str, name: &str| part.strip_prefix(name).is_some_and(|rest| rest.starts_with(": "));
    let mut parts = details.split("; ").skip_while(|part| !of(part, &name));
    let first = parts.next()?.strip_prefix(name.as_str())?.strip_prefix(": ")?;
    // What it says may have such parts itself.
    let more = parts.take_while(|part| !nodes.iter().any(|node| of(part, &node.name_any())));
    let why = std::iter::once(first).chain(more).collect::<Vec<_>>().join("; ");
    let namespace = allocation.namespace().unwrap_or_default();
    let words = Subject::namespaced(Kind::Allocation, &namespace, &allocation.name_any()).words("");
    let hint = format!("`wharfline describe {words}` tells of every node");
    Some(told(&name, format!("does not fit: {why}"), hint))
}

fn told(node: &str, text: String, hint: String) -> Branch {
    let mut branch = Branch::new(Subject::global(Kind::Node, node), State::Blocked, text);
    branch.hint = hint;
    branch
}
