//! A kernel whose watches come, go, and lose what they should tell.
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::sync::watch;
use wharfline::csi::Rpc;
use wharfline::node::Machine;
use wharfline::sys::Watches;
use wharfline::sys::watch::{DirEvent, WatchError};

use crate::support::node::{NODE_ID, Rig, condition, condition_message, condition_reason};
use crate::support::scripted::{Config, Scripted, Site};

/// What the kernel does now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mood {
    /// It gives no watch, and those that it gave are void.
    refuses: bool,
    /// How often it has lost what it should have told: until the first time it tells everything, from then on that alone.
    lost: usize,
}

static MOOD: LazyLock<watch::Sender<Mood>> = LazyLock::new(|| watch::Sender::new(Mood::default()));

/// The real one, in that mood.
#[derive(Debug)]
struct Fickle(Arc<dyn Watches>);

fn refused(directory: &std::path::Path) -> WatchError {
    let source = std::io::Error::from_raw_os_error(24);
    WatchError::Refused { path: directory.to_owned(), source }
}

#[async_trait]
impl Watches for Fickle {
    async fn appeared(&self, directory: &std::path::Path, name: &str) -> Result<(), WatchError> {
        let mut mood = MOOD.subscribe();
        tokio::select! {
            biased;
            _ = mood.wait_for(|mood| mood.refuses) => Err(refused(directory)),
            appeared = self.0.appeared(directory, name) => appeared,
        }
    }

    async fn changes(&self, directory: &std::path::Path) -> Result<BoxStream<'static, DirEvent>, WatchError> {
        let mut mood = MOOD.subscribe();
        if mood.borrow_and_update().refuses {
            return Err(refused(directory));
        }
        let told = self.0.changes(directory).await?;
        let lost = futures::stream::unfold(mood, |mut mood| async {
            mood.changed().await.ok()?;
            Some((DirEvent::Overflow, mood))
        });
        let told = told.filter(|_| futures::future::ready(MOOD.borrow().lost == 0));
        Ok(futures::stream::select(told, lost).boxed())
    }
}

fn wrap(machine: Machine) -> Machine {
    Machine { watches: Arc::new(Fickle(machine.watches)), ..machine }
}

/// Whether its directory is watched is told as it is now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_of_a_missing_socket_follows_its_watch() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.wrap = wrap;
    rig.plugin.stop().await;
    rig.start().await;
    rig.register().await;
    let said = |reason: &'static str| {
        move |i: &Value| {
            let unwatched = condition_message(i, "Ready").is_some_and(|m| m.contains("cannot be watched"));
            condition_reason(i, "Ready") == Some(reason) && unwatched == (reason == "WatchRefused")
        }
    };
    for (refuses, reason) in
        [(false, "NoSocket"), (true, "WatchRefused"), (false, "NoSocket"), (true, "WatchRefused")]
    {
        MOOD.send_modify(|mood| mood.refuses = refuses);
        rig.world.until(&rig.instances, "p", reason, said(reason)).await;
    }
    MOOD.send_modify(|mood| mood.refuses = false);
    rig.plugin.serve();
    rig.ready().await;
    rig.finish().await;
}

/// Events of all plugins' directories are lost at once. Only where another socket is at the path another driver can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_events_disturb_no_driver_that_is_still_there() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.wrap = wrap;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    for lost in 1..=3 {
        let probed = rig.count(Rpc::Probe);
        MOOD.send_modify(|mood| mood.lost = lost);
        rig.called(Rpc::Probe, probed + 1).await;
    }
    assert_eq!(rig.count(Rpc::NodeGetInfo), 1, "it was asked anew who it is");
    let mut newer = Scripted::start(&rig.backend, Site::new("i-newer"), rig.plugin.socket());
    MOOD.send_modify(|mood| mood.lost += 1);
    let newer_id = |i: &Value| i["status"]["nodeId"] == "i-newer" && condition(i, "Ready", "True");
    rig.world.until(&rig.instances, "p", "the newer one", newer_id).await;
    newer.stop().await;
    rig.plugin.kill().await;
    MOOD.send_modify(|mood| mood.lost = 0);
    rig.plugin.serve();
    let back = |i: &Value| i["status"]["nodeId"] == NODE_ID && condition(i, "Ready", "True");
    rig.world.until(&rig.instances, "p", "the former one", back).await;
    rig.finish().await;
}

/// The path of its socket is still there, and nobody listens: it is asked ever more rarely, but who comes is asked at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_in_the_place_of_a_driver_that_died_is_asked_without_a_pause() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.wrap = wrap;
    rig.options.probe_pause = (Duration::from_secs(3600), Duration::from_secs(3600));
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    for told in [true, false] {
        rig.plugin.kill().await;
        assert!(rig.plugin.socket().exists());
        rig.not_ready("ProbeFailed").await;
        // The second time what happens there is lost, and only that something was is told.
        let loses = |mood: &mut Mood| mood.lost += usize::from(!told);
        MOOD.send_modify(loses);
        rig.plugin.serve();
        MOOD.send_modify(loses);
        rig.ready().await;
    }
    rig.finish().await;
}
