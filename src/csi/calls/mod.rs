//! The calls of a [`Plugin`], one method each.
//!
//! The order of calls, and which of them a plugin's capabilities allow ([`gates`](super::gates)), is the caller's business.
//! What is alpha is not sent where neither [`PluginOptions`](super::PluginOptions) nor the call's
//! [`Terms`](super::Terms) switch it on.
mod controller;
mod groups;
mod node;
mod snapshots;

use super::capabilities::PluginCapabilities;
use super::check::Fault;
use super::failure::Failure;
use super::plugin::{Plugin, Terms};
use super::proto;
use super::rpc::Rpc;

/// What a plugin that answers a probe says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It serves calls.
    Ready,
    /// It is well, and still starting.
    Starting,
}

/// A typed answer, or the failure of the attempt.
type Answer<T> = Result<T, Failure>;

/// The Identity service.
impl Plugin {
    /// Name and version; judge them with [`check::plugin_info`](super::check::plugin_info).
    pub async fn get_plugin_info(&self, terms: impl Into<Terms>) -> Answer<proto::GetPluginInfoResponse> {
        self.call(proto::GetPluginInfoRequest {}, terms).await
    }

    /// What the plugin as a whole can do.
    pub async fn get_plugin_capabilities(&self, terms: impl Into<Terms>) -> Answer<PluginCapabilities> {
        let reply = self.call(proto::GetPluginCapabilitiesRequest {}, terms).await?;
        Ok(PluginCapabilities::from(&reply))
    }

    /// Whether the plugin is ready, asked over a connection of its own. One probe at a time.
    pub async fn probe(&self, terms: impl Into<Terms>) -> Answer<Readiness> {
        let reply = self.call_apart(proto::ProbeRequest {}, terms).await?;
        Ok(if reply.ready == Some(false) { Readiness::Starting } else { Readiness::Ready })
    }
}

/// An OK whose content breaks the contract is no answer.
fn usable<T>(rpc: Rpc, judged: Result<T, Fault>) -> Answer<()> {
    judged.map(drop).map_err(|fault| Failure::unusable(rpc, &fault))
}
