//! Which blocks of a snapshot hold something, or changed, for whoever asks on this machine (CO-META-01 to -06).
//!
//! A question is no object and nothing is kept of it. While a stream of the plugin lasts its snapshots are not deleted; one that
//! breaks goes on after the last byte that was told; one whose reader takes nothing is given up.
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::mpsc;

use super::context::Node;
use super::requests::{self, Secrets};
use crate::api::blocks::{Block, Interrupted, Line, Part, Question, Refusal};
use crate::api::meta::SecretRef;
use crate::csi::check::Blocks as Told;
use crate::csi::{self};
use crate::csi::{Advice, BlockStream, Failure, Plugin, StreamTerms, Terms, proto};
use crate::plan::Reason;
use crate::plan::blocks::{Picture, differ, picture};
use crate::plan::registry::Service;

/// How long one stream may take: then it goes on as another one.
const STREAM: Duration = Duration::from_secs(600);
/// How long a plugin may say nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a reader may take nothing.
const STALLED: Duration = Duration::from_secs(60);
/// How often in a row a stream is begun that tells nothing new, and the pause before the second.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// Of one daemon: made before it, and without an answer until it knows its machine.
#[derive(Debug, Clone, Default)]
pub struct Blocks(Arc<OnceLock<Weak<Node>>>);

/// One question as the plugin is asked.
struct Asked {
    name: String,
    handle: String,
    base: Option<String>,
    secret: Option<SecretRef>,
    secrets: Secrets,
    plugin: Plugin,
    terms: StreamTerms,
}

impl Blocks {
    /// Whose plugins are asked.
    pub(super) fn of(&self, node: &Arc<Node>) {
        // A daemon has its own.
        let _second = self.0.set(Arc::downgrade(node));
    }

    /// The answer, line by line.
    ///
    /// # Errors
    /// What cannot be asked, or not here.
    pub async fn ask(&self, question: Question) -> Result<mpsc::Receiver<Line>, Refusal> {
        let node = self.0.get().and_then(Weak::upgrade);
        let node = node.ok_or_else(|| refusal("the daemon does not run yet; try again"))?;
        let from = question.starting_offset;
        if from < 0 {
            return Err(refusal(format!("--from {from}: an offset in bytes is 0 or more")));
        }
        let asked = prepare(&node, &question).await?;
        let stream = open(&asked, from).await.map_err(|broken| refusal(asked.tells(broken.failure)))?;
        let (lines, answer) = mpsc::channel(1);
        tokio::spawn(async move {
            tokio::select! {
                () = node.stop.cancelled() => {}
                () = tell(&asked, stream, &lines) => {}
            }
        });
        Ok(answer)
    }
}

fn refusal(message: impl Into<String>) -> Refusal {
    Refusal { message: message.into() }
}

async fn prepare(node: &Arc<Node>, question: &Question) -> Result<Asked, Refusal> {
    let of = |error: crate::plan::blocks::Refusal| refusal(error.to_string());
    let Picture { name, plugin, handle, secret, .. } = {
        let target = picture(&question.snapshot, &question.claim_name).map_err(of)?;
        if let Some(since) = &question.since {
            differ(&base(since, question).map_err(of)?, &target).map_err(of)?;
        }
        target
    };
    let base = question.since.as_ref().map(|since| base(since, question)).transpose().map_err(of)?;
    let service = node.registry.serving_volume(&plugin, Service::Controller, &handle);
    let Some((_, instance)) =
        service.or_else(|| node.registry.serving_volume(&plugin, Service::Node, &handle))
    else {
        let reason = Reason::PluginNotReady { plugin, node: node.options.name.clone() };
        return Err(refusal(format!("{reason}; ask where an instance of it is that makes controller calls")));
    };
    let asker = format!("snapshots/{name}");
    let secrets =
        node.secrets(&asker, secret.as_ref()).await.map_err(|reason| refusal(reason.to_string()))?;
    let own = |method: &str| {
        let plugin = node.caches.plugins.one(&plugin)?;
        plugin.spec.deadlines.get(method).and_then(|text| crate::api::quantity::duration(text))
    };
    let method = if base.is_some() { "GetMetadataDelta" } else { "GetMetadataAllocated" };
    let deadline = own(method).unwrap_or(STREAM);
    let terms = Terms { deadline, attempt: 1, lease: None, gate: None, alpha: node.alpha(&plugin) };
    let terms = StreamTerms { terms, silence: SILENCE };
    let base = base.map(|base| base.handle);
    Ok(Asked { name, handle, base, secret, secrets, plugin: instance.client, terms })
}

/// The earlier picture: of several volumes, that of the same claim.
fn base(since: &crate::api::Snapshot, question: &Question) -> Result<Picture, crate::plan::blocks::Refusal> {
    let claim = if since.is_group() { question.claim_name.as_str() } else { "" };
    picture(since, claim)
}

impl Asked {
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

async fn open(asked: &Asked, from: i64) -> Result<BlockStream, csi::Interrupted> {
    let (secrets, terms) = (asked.secrets.clone(), asked.terms.clone());
    match &asked.base {
        None => {
            let request = proto::GetMetadataAllocatedRequest {
                snapshot_id: asked.handle.clone(),
                starting_offset: from,
                max_results: 0,
                secrets,
            };
            asked.plugin.get_metadata_allocated(request, terms).await
        }
        Some(base) => {
            let request = proto::GetMetadataDeltaRequest {
                base_snapshot_id: base.clone(),
                target_snapshot_id: asked.handle.clone(),
                starting_offset: from,
                max_results: 0,
                secrets,
            };
            asked.plugin.get_metadata_delta(request, terms).await
        }
    }
}

/// Tells a stream to its end, over as many of the plugin's as that takes.
async fn tell(asked: &Asked, stream: BlockStream, lines: &mpsc::Sender<Line>) {
    let mut open_stream = Ok(stream);
    let mut vain = 0;
    loop {
        let broken = match open_stream {
            Ok(stream) => match follow(asked, stream, lines, &mut vain).await {
                Some(broken) => broken,
                None => return,
            },
            Err(broken) => broken,
        };
        vain += 1;
        let Some(from) = broken.resume_at.filter(|_| vain < TRIES && broken.failure.is_uncertain()) else {
            let message = asked.tells(broken.failure);
            let over = Interrupted { message, resume_at: broken.resume_at };
            // Whoever asked may be gone.
            let _gone = lines.send(Line::Interrupted(over)).await;
            return;
        };
        tracing::info!(snapshot = asked.name, from, failure = %broken.failure, "a list of blocks broke and goes on");
        tokio::time::sleep(PAUSE * vain.saturating_sub(1)).await;
        open_stream = open(asked, from).await;
    }
}

/// Tells one stream. What broke it, if the answer is not over; `vain` begins anew with each part.
async fn follow(
    asked: &Asked,
    mut stream: BlockStream,
    lines: &mpsc::Sender<Line>,
    vain: &mut u32,
) -> Option<csi::Interrupted> {
    loop {
        let line = match stream.next().await {
            Ok(Some(part)) => Line::Part(part_of(&part)),
            Ok(None) => Line::Complete,
            Err(broken) => return Some(broken),
        };
        let over = line == Line::Complete;
        if matches!(&line, Line::Part(part) if !part.blocks.is_empty()) {
            *vain = 0;
        }
        match tokio::time::timeout(STALLED, lines.send(line)).await {
            Ok(Ok(())) if !over => {}
            Ok(Ok(()) | Err(_)) => return None,
            Err(_) => {
                tracing::warn!(snapshot = asked.name, "who asked for its blocks reads none; given up");
                return None;
            }
        }
    }
}

fn part_of(told: &Told) -> Part {
    let blocks = told.blocks.iter().map(|block| Block { offset: block.start, size: block.end - block.start });
    Part { capacity: told.capacity, blocks: blocks.collect() }
}
