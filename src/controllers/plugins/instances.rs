//! PluginInstances: gone after their task, or while it is stopped, and the Plugin of one that nobody declared.
use std::sync::Arc;

use kube::Resource;
use kube::api::ObjectMeta;
use serde_json::Value;

use super::super::context::Context;
use super::super::drive::Outcome;
use super::super::facts::deleting;
use super::super::ledger::PATIENCE;
use super::super::write::Failure;
use super::tasks::{self, is_stopped};
use crate::api::meta::{ObjectRef, READY, is_true};
use crate::api::{Allocation, Plugin, PluginInstance, PluginSpec};
use crate::plan::marks::UNDECLARED_FROM;

/// One look at one instance.
pub(crate) async fn reconcile(object: Arc<PluginInstance>, context: Arc<Context>) -> Outcome {
    let of = &object.spec.allocation;
    let allocation = tasks::allocation_of(&context, of);
    let healthy = object.status.as_ref().is_some_and(|s| is_true(&s.conditions, READY));
    if allocation.is_none() {
        if deleting(&*object) {
            return Ok(None);
        }
        if !gone(&context, of).await? {
            // It may go before the cache has ever shown it, and then nobody tells.
            return Ok(Some(PATIENCE));
        }
        context.delete(&*object).await?;
        return Ok(None);
    }
    if !healthy && !deleting(&*object) && allocation.is_some_and(|a| is_stopped(&a)) {
        context.delete_as_seen(&*object).await?;
        return Ok(None);
    }
    if healthy && context.world.plugins.named(&object.spec.plugin).is_none() {
        context.create(&undeclared(&object)).await?;
    }
    Ok(None)
}

/// Asks the server itself: the cache of allocations may be older than that of instances, and a plugin that serves would
/// be gone from its node for a while.
async fn gone(context: &Context, of: &ObjectRef) -> Result<bool, Failure> {
    let path = Allocation::url_path(&(), Some(&of.namespace));
    let found: Option<Value> = context.read(&path, &of.name).await?;
    Ok(found.is_none_or(|allocation| allocation["metadata"]["uid"].as_str() != Some(&of.uid)))
}

fn undeclared(instance: &PluginInstance) -> Plugin {
    let from = (UNDECLARED_FROM.to_owned(), instance.spec.allocation.namespace.clone());
    let metadata = ObjectMeta {
        name: Some(instance.spec.plugin.clone()),
        annotations: Some([from].into()),
        ..ObjectMeta::default()
    };
    Plugin { metadata, spec: PluginSpec::default(), status: None }
}
