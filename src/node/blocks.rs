//! Which blocks of a snapshot hold something, or changed, for whoever asks on this machine (CO-META-01 to -06).
//!
//! A question is no object and nothing is kept of it. The node that makes the snapshot's calls answers, so that its deletion and
//! a stream about it are in one place: while a stream lasts the snapshot is not deleted. A stream that breaks goes on after the
//! last byte that was told, with whichever process serves by then; one whose reader takes nothing is let go until he does.
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::mpsc;

use super::context::Node;
use super::registry::Fingerprint;
use super::requests::{self, Secrets};
use crate::api::Snapshot;
use crate::api::blocks::{Block, Interrupted, Line, Part, Question, Refusal};
use crate::api::meta::SecretRef;
use crate::csi::check::Blocks as Told;
use crate::csi::{
    self, Advice, BlockStream, Capabilities, Closed, Failure, Plugin, Rpc, StreamTerms, Terms, proto,
};
use crate::plan::Reason;
use crate::plan::blocks::{self as plan, After, Picture, Progress, after, differ, here, picture};
use crate::plan::registry::Service;

/// How long a plugin may say nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a reader may take nothing before the plugin's stream is let go.
const STALLED: Duration = Duration::from_secs(60);
/// Before a question is asked again that told nothing new: each time once. A driver is back within the last one.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];

/// Of one daemon: made before it, and without an answer until it knows its machine.
#[derive(Debug, Clone)]
pub struct Blocks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: OnceLock<Weak<Node>>,
    pauses: [Duration; 4],
}

impl Default for Blocks {
    fn default() -> Self {
        Self::with_pauses(PAUSES)
    }
}

/// One question as the plugin is asked.
struct Asked {
    node: Arc<Node>,
    /// The Snapshot, as `namespace/name`.
    name: String,
    plugin: String,
    rpc: Rpc,
    handle: String,
    base: Option<String>,
    secret: Option<SecretRef>,
    secrets: Secrets,
}

/// How a stream ended.
enum Ended {
    /// The answer is whole, or nobody wants it any more.
    Over,
    /// It broke.
    Broke(csi::Interrupted),
    /// Nobody took this line. The question goes on behind it.
    Stalled(Line),
}

impl Blocks {
    /// One that waits so long before a question is asked again that told nothing new, each time once.
    pub fn with_pauses(pauses: [Duration; 4]) -> Self {
        Self(Arc::new(Inner { node: OnceLock::new(), pauses }))
    }

    /// Whose plugins are asked.
    pub(super) fn of(&self, node: &Arc<Node>) {
        // A daemon has its own.
        let _second = self.0.node.set(Arc::downgrade(node));
    }

    /// The answer, line by line.
    ///
    /// # Errors
    /// What cannot be asked, or not here.
    pub async fn ask(&self, question: Question) -> Result<mpsc::Receiver<Line>, Refusal> {
        let node = self.0.node.get().and_then(Weak::upgrade);
        let node = node.ok_or_else(|| refusal("the daemon does not run yet; try again"))?;
        let from = question.starting_offset;
        if from < 0 {
            return Err(refusal(format!("--from {from}: an offset in bytes is 0 or more")));
        }
        let stop = node.stop.clone();
        let asked = prepare(node, &question).await?;
        let stream = match asked.open(from).await {
            Err(broken) if broken.failure.advice() != Advice::Repeat => {
                return Err(refusal(asked.tells(broken.failure)));
            }
            begun => begun,
        };
        let (lines, answer) = mpsc::channel(1);
        let pauses = self.0.pauses;
        let progress = Progress { to: from, capacity: None, vain: 0 };
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                // Whoever asked is gone.
                () = lines.closed() => {}
                () = tell(&asked, (stream, progress), &pauses, &lines) => {}
            }
        });
        Ok(answer)
    }
}

fn refusal(message: impl Into<String>) -> Refusal {
    Refusal { message: message.into() }
}

async fn prepare(node: Arc<Node>, question: &Question) -> Result<Asked, Refusal> {
    let of = |error: plan::Refusal| refusal(error.to_string());
    let target = picture(&question.snapshot, &question.claim_name).map_err(of)?;
    let base = match &question.since {
        Some(since) => {
            let base = base(since, question).map_err(of)?;
            differ(&base, &target).map_err(of)?;
            Some(base)
        }
        None => None,
    };
    let host = question.snapshot.status.as_ref().and_then(|status| status.controller.as_ref());
    let uid = question.snapshot.metadata.uid.as_deref();
    let known = uid.is_some_and(|uid| node.caches.snapshots.has(uid));
    here(&target.name, &node.options.name, host.map(|host| host.node_name.as_str()), known).map_err(of)?;
    let Picture { name, plugin, handle, secret, .. } = target;
    let rpc = if base.is_some() { Rpc::GetMetadataDelta } else { Rpc::GetMetadataAllocated };
    let asker = format!("snapshots/{name}");
    let secrets =
        node.secrets(&asker, secret.as_ref()).await.map_err(|reason| refusal(reason.to_string()))?;
    let base = base.map(|base| base.handle);
    let asked = Asked { node, name, plugin, rpc, handle, base, secret, secrets };
    asked.may().map_err(refusal)?;
    Ok(asked)
}

/// The earlier picture: of several volumes, that of the same claim.
fn base(since: &Snapshot, question: &Question) -> Result<Picture, plan::Refusal> {
    let claim = if since.is_group() { question.claim_name.as_str() } else { "" };
    picture(since, claim)
}

fn capabilities(known: Fingerprint) -> Capabilities {
    let Fingerprint { plugin, controller, group, node, .. } = known;
    Capabilities { plugin, controller, group, node }
}

impl Asked {
    /// Who is asked now.
    fn serving(&self) -> Option<(Plugin, Arc<dyn csi::Gate>, Option<Fingerprint>)> {
        let services = [Service::Controller, Service::Node].into_iter();
        let mut serving = services.filter_map(|service| {
            let (key, instance) = self.node.registry.serving_volume(&self.plugin, service, &self.handle)?;
            let gate = self.node.gate(key, (&self.plugin, service), &self.handle);
            Some((instance.client, gate, instance.progress.fingerprint))
        });
        serving.next()
    }

    fn not_ready(&self) -> String {
        let node = self.node.options.name.clone();
        Reason::PluginNotReady { plugin: self.plugin.clone(), node }.to_string()
    }

    /// Whether the driver has what is asked for, as it says.
    fn may(&self) -> Result<(), String> {
        let (_, _, known) = self.serving().ok_or_else(|| self.not_ready())?;
        let can = known.map(capabilities).unwrap_or_default();
        csi::may(self.rpc, &can, self.node.alpha(&self.plugin)).map_err(|closed| match closed {
            Closed::Alpha => format!(
                "{closed}; `spec.alpha: true` of Plugin \"{}\" switches it on, where its driver has \
                 SNAPSHOT_METADATA_SERVICE",
                self.plugin
            ),
            _ => Reason::PluginLacks { plugin: self.plugin.clone(), capability: "SNAPSHOT_METADATA_SERVICE" }
                .to_string(),
        })
    }

    async fn open(&self, from: i64) -> Result<BlockStream, csi::Interrupted> {
        let Some((plugin, gate, _)) = self.serving() else {
            let failure = Failure::unvouched(self.rpc);
            return Err(csi::Interrupted { failure, resume_at: Some(from) });
        };
        let deadline = self.node.deadline(&self.plugin, self.rpc.name());
        let alpha = self.node.alpha(&self.plugin);
        let terms = Terms { deadline, attempt: 1, lease: None, gate: Some(gate), alpha };
        let terms = StreamTerms { terms, silence: SILENCE };
        let secrets = self.secrets.clone();
        match &self.base {
            None => {
                let request = proto::GetMetadataAllocatedRequest {
                    snapshot_id: self.handle.clone(),
                    starting_offset: from,
                    max_results: 0,
                    secrets,
                };
                plugin.get_metadata_allocated(request, terms).await
            }
            Some(base) => {
                let request = proto::GetMetadataDeltaRequest {
                    base_snapshot_id: base.clone(),
                    target_snapshot_id: self.handle.clone(),
                    starting_offset: from,
                    max_results: 0,
                    secrets,
                };
                plugin.get_metadata_delta(request, terms).await
            }
        }
    }

    /// A failure as whoever asked is told it.
    fn tells(&self, failure: Failure) -> String {
        let advice = failure.advice();
        let failure = requests::naming(failure, self.secret.as_ref());
        match advice {
            Advice::CopyWhole => {
                format!(
                    "{failure}; the plugin does not know what changed: leave --since out, and copy all of it"
                )
            }
            _ => failure.to_string(),
        }
    }
}

/// Tells a stream to its end, over as many of the plugin's as that takes.
async fn tell(
    asked: &Asked,
    (mut stream, mut progress): (Result<BlockStream, csi::Interrupted>, Progress),
    pauses: &[Duration],
    lines: &mpsc::Sender<Line>,
) {
    loop {
        let ended = match stream {
            Ok(stream) => follow(asked, stream, lines, &mut progress).await,
            Err(broken) => Ended::Broke(broken),
        };
        let from = match ended {
            Ended::Over => return,
            Ended::Stalled(line) => {
                let last = line == Line::Complete;
                if lines.send(line).await.is_err() || last {
                    return;
                }
                progress.from()
            }
            Ended::Broke(csi::Interrupted { failure, resume_at }) => {
                let believed = resume_at.is_some();
                let repeat = failure.advice() == Advice::Repeat;
                let vain = progress.vain;
                match after(progress, (believed, repeat), pauses.len()) {
                    After::Again(from) => {
                        tracing::info!(snapshot = asked.name, from, failure = %failure, "a list of blocks goes on");
                        progress.vain += 1;
                        tokio::time::sleep(pauses.get(vain).copied().unwrap_or_default()).await;
                        from
                    }
                    After::Over(resume_at) => {
                        let mut message = asked.tells(failure);
                        if !believed {
                            message
                                .push_str("; use nothing of what was told: the plugin contradicted itself");
                        }
                        // Whoever asked may be gone.
                        let _gone = lines.send(Line::Interrupted(Interrupted { message, resume_at })).await;
                        return;
                    }
                }
            }
        };
        stream = asked.open(from).await;
    }
}

/// Tells what is new of one stream.
async fn follow(
    asked: &Asked,
    mut stream: BlockStream,
    lines: &mpsc::Sender<Line>,
    progress: &mut Progress,
) -> Ended {
    loop {
        let line = match stream.next().await {
            Ok(Some(told)) => Line::Part(part_of(&told, progress)),
            Ok(None) => Line::Complete,
            Err(broken) => return Ended::Broke(broken),
        };
        let over = line == Line::Complete;
        match tokio::time::timeout(STALLED, lines.reserve()).await {
            Ok(Ok(place)) => place.send(line),
            Ok(Err(_)) => return Ended::Over,
            Err(_) => {
                tracing::info!(snapshot = asked.name, "who asked for its blocks takes none; they wait");
                return Ended::Stalled(line);
            }
        }
        if over {
            return Ended::Over;
        }
    }
}

fn part_of(told: &Told, progress: &mut Progress) -> Part {
    progress.capacity = Some(told.capacity);
    let new = told.blocks.iter().filter_map(|block| progress.take((block.start, block.end)));
    let blocks = new.map(|(offset, end)| Block { offset, size: end - offset }).collect();
    Part { capacity: told.capacity, blocks }
}
