//! Which blocks of a snapshot hold something, or changed, for whoever asks on this machine (CO-META-01 to -06).
//!
//! A question is no object and nothing is kept of it. The node that makes the snapshot's calls answers, so that its deletion and
//! a list of its blocks are in one place: from the question to the end of the answer the snapshot is not deleted here ([`Listed`]). A
//! stream that breaks goes on after the last byte that was told, with whichever process serves by then; one whose reader takes nothing is
//! let go until he does, and the question ends if he does not within ten minutes.
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::context::{Key, Node, snapshot_word};
use super::registry::Fingerprint;
use super::requests::{self, Secrets};
use crate::api::Snapshot;
use crate::api::blocks::{Block, Interrupted, Line, Part, Question, Refusal};
use crate::api::meta::SecretRef;
use crate::api::snapshot::SnapshotStatus;
use crate::csi::check::{Blocks as Told, Fault};
use crate::csi::{
    self, Advice, BlockStream, Capabilities, Closed, Failure, Plugin, Rpc, StreamTerms, Terms, proto,
};
use crate::plan::Reason;
use crate::plan::blocks::{self as plan, After, Picture, Progress, after, differ, full_name, here, picture};
use crate::plan::host::rests;
use crate::plan::registry::Service;

/// How long a plugin may say nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a reader may take nothing before the plugin's stream is let go.
const STALLED: Duration = Duration::from_secs(60);
/// How long after that he is waited for: what he lists is not deleted meanwhile.
const GIVEN_UP: Duration = Duration::from_secs(600);
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

/// What is being listed here: none of it is deleted meanwhile.
#[derive(Debug, Default)]
pub struct Listed(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    made: u64,
    all: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// The Snapshot.
    uid: String,
    plugin: String,
    /// What the plugin knows the picture by: whoever deletes that deletes it under the list, whatever its object is.
    handle: String,
    /// The list ends with this.
    end: CancellationToken,
}

/// What one list is about, as long as it is answered.
struct Held {
    node: Arc<Node>,
    numbers: Vec<u64>,
    end: CancellationToken,
}

impl Listed {
    /// Whether one of these is being listed.
    pub fn has<'a>(&self, plugin: &str, mut handles: impl Iterator<Item = &'a str>) -> bool {
        let lists = self.lists();
        handles.any(|handle| lists.all.iter().any(|one| one.plugin == plugin && one.handle == handle))
    }

    /// This node makes no calls of a Snapshot any more. The lists that are about it are to end; false if there is none. When one has, it is
    /// looked at again.
    pub fn end(&self, uid: &str) -> bool {
        let lists = self.lists();
        let mut any = false;
        for one in lists.all.iter().filter(|one| one.uid == uid) {
            one.end.cancel();
            any = true;
        }
        any
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Holds the picture that is listed, and the one that it is compared with.
    fn new(node: &Arc<Node>, (target, base): ((&str, &Picture), Option<(&str, &Picture)>)) -> Self {
        let end = CancellationToken::new();
        let mut lists = node.listed.lists();
        let mut numbers = Vec::new();
        for (uid, picture) in std::iter::once(target).chain(base) {
            lists.made += 1;
            let (number, uid, end) = (lists.made, uid.to_owned(), end.clone());
            let (plugin, handle) = (picture.plugin.clone(), picture.handle.clone());
            lists.all.push(Entry { number, uid, plugin, handle, end });
            numbers.push(number);
        }
        drop(lists);
        Self { node: Arc::clone(node), numbers, end }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut lists = self.node.listed.lists();
        let (over, rest) =
            std::mem::take(&mut lists.all).into_iter().partition(|one| self.numbers.contains(&one.number));
        lists.all = rest;
        drop(lists);
        let over: Vec<Entry> = over;
        for snapshot in self.node.caches.snapshots.all() {
            let plugin =
                snapshot.status.as_ref().and_then(|status| status.of.as_ref()).map(|of| of.plugin.as_str());
            let status = snapshot.status.iter();
            let has = |handle: &str| {
                over.iter().any(|one| Some(one.plugin.as_str()) == plugin && one.handle == handle)
            };
            let its = over.iter().any(|one| Some(&one.uid) == snapshot.metadata.uid.as_ref());
            let waited = its || status.flat_map(SnapshotStatus::known_by).any(has);
            if waited {
                self.node.queue.wake(Key::Host(snapshot_word(&snapshot)));
            }
        }
    }
}

/// One question as the plugin is asked.
struct Asked {
    node: Arc<Node>,
    /// What is not deleted meanwhile.
    held: Held,
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
    /// Nobody took this line, with which so much would have been told. The question goes on behind it.
    Stalled(Line, Progress),
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
        let end = asked.held.end.clone();
        let begun = tokio::select! {
            begun = asked.open(from) => begun,
            () = end.cancelled() => return Err(refusal(plan::Refusal::NoHost(asked.name).to_string())),
        };
        let stream = match begun {
            Err(broken) if broken.failure.advice() != Advice::Repeat => {
                return Err(refusal(asked.tells(broken.failure)));
            }
            begun => begun,
        };
        let (lines, answer) = mpsc::channel(1);
        let pauses = self.0.pauses;
        let mut progress = Progress { to: from, capacity: None, vain: 0 };
        tokio::spawn(async move {
            let last = tokio::select! {
                () = stop.cancelled() => return,
                // Whoever asked is gone.
                () = lines.closed() => return,
                () = end.cancelled() => {
                    let message = format!(
                        "this node makes the calls of Snapshot \"{}\", or of what it is compared with, no more", asked.name
                    );
                    Some(Interrupted { message, resume_at: Some(progress.from()) })
                }
                last = tell(&asked, stream, &mut progress, (&pauses, &lines)) => last,
            };
            // Nothing is listed any more, whenever somebody takes that word.
            drop(asked);
            if let Some(last) = last {
                tokio::select! {
                    () = stop.cancelled() => {}
                    _gone = lines.send(Line::Interrupted(last)) => {}
                }
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
    let uid_of = |snapshot: &Snapshot| snapshot.metadata.uid.clone().unwrap_or_default();
    let (uid, since) = (uid_of(&question.snapshot), question.since.as_ref().map(uid_of).unwrap_or_default());
    let held = Held::new(&node, ((&uid, &target), base.as_ref().map(|base| (since.as_str(), base))));
    // Whoever looks at it from here on sees that it is listed; who did so before may be about to delete it, or to let go of it.
    let known = node.caches.snapshots.get(&uid);
    let named = host.map(|host| host.node_name.as_str());
    here(&target.name, &node.options.name, named, known.is_some()).map_err(of)?;
    for snapshot in [known, node.caches.snapshots.get(&since)].into_iter().flatten() {
        if is_resting(&node, &snapshot) {
            return Err(of(plan::Refusal::NoHost(full_name(&snapshot))));
        }
        if snapshot.metadata.deletion_timestamp.is_some() {
            return Err(of(plan::Refusal::Leaving(full_name(&snapshot))));
        }
    }
    let Picture { name, plugin, handle, secret, .. } = target;
    let rpc = if base.is_some() { Rpc::GetMetadataDelta } else { Rpc::GetMetadataAllocated };
    let asker = format!("snapshots/{name}");
    let secrets =
        node.secrets(&asker, secret.as_ref()).await.map_err(|reason| refusal(reason.to_string()))?;
    let base = base.map(|base| base.handle);
    let asked = Asked { node, held, name, plugin, rpc, handle, base, secret, secrets };
    asked.may().map_err(refusal)?;
    Ok(asked)
}

/// Whether this node makes no more calls of a Snapshot that it knows, or is about to let go of it.
fn is_resting(node: &Node, snapshot: &Snapshot) -> bool {
    let Some(status) = &snapshot.status else { return true };
    let host = status.controller.as_ref().filter(|host| host.node_name == node.options.name);
    host.is_none_or(|host| rests(host, status.asked_to_release, status.released_epoch))
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

/// Tells a stream to its end, over as many of the plugin's as that takes. What is to be told last, if it was broken off.
async fn tell(
    asked: &Asked,
    mut stream: Result<BlockStream, csi::Interrupted>,
    progress: &mut Progress,
    (pauses, lines): (&[Duration], &mpsc::Sender<Line>),
) -> Option<Interrupted> {
    loop {
        let ended = match stream {
            Ok(stream) => follow(asked, stream, lines, progress).await,
            Err(broken) => Ended::Broke(broken),
        };
        let from = match ended {
            Ended::Over => return None,
            Ended::Stalled(line, told) => {
                let last = line == Line::Complete;
                // Whoever takes nothing for so long holds up a deletion.
                match tokio::time::timeout(GIVEN_UP, lines.send(line)).await {
                    Ok(Ok(())) if !last => {}
                    Ok(_) => return None,
                    Err(_) => {
                        let message =
                            format!("nothing of it was taken for {} minutes", GIVEN_UP.as_secs() / 60);
                        return Some(Interrupted { message, resume_at: Some(progress.from()) });
                    }
                }
                *progress = told;
                progress.from()
            }
            Ended::Broke(csi::Interrupted { failure, resume_at }) => {
                let believed = resume_at.is_some();
                let repeat = failure.advice() == Advice::Repeat;
                let vain = progress.vain;
                match after(*progress, (believed, repeat), pauses.len()) {
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
                        return Some(Interrupted { message, resume_at });
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
        // What is told is what was taken.
        let mut next = *progress;
        let line = match stream.next().await {
            Ok(Some(told)) if progress.capacity.is_some_and(|before| before != told.capacity) => {
                let why = "the volume's capacity changes from one stream to the next";
                let failure = Failure::unusable(asked.rpc, &Fault::WrongBlocks { why });
                return Ended::Broke(csi::Interrupted { failure, resume_at: None });
            }
            Ok(Some(told)) => Line::Part(part_of(&told, &mut next)),
            Ok(None) => Line::Complete,
            Err(broken) => return Ended::Broke(broken),
        };
        let over = line == Line::Complete;
        match tokio::time::timeout(STALLED, lines.reserve()).await {
            Ok(Ok(place)) => {
                *progress = next;
                place.send(line);
            }
            Ok(Err(_)) => return Ended::Over,
            Err(_) => {
                tracing::info!(snapshot = asked.name, "who asked for its blocks takes none; they wait");
                return Ended::Stalled(line, next);
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
