//! The daemon is killed at every call of a volume's life, and its successor finishes what was begun.
use wharfline::csi::Rpc;

use crate::support::node::Rig;
use crate::support::scripted::{Answer, Config, Gate, Logged};

const LIFE: [Rpc; 8] = [
    Rpc::CreateVolume,
    Rpc::ControllerPublishVolume,
    Rpc::NodeStageVolume,
    Rpc::NodePublishVolume,
    Rpc::NodeUnpublishVolume,
    Rpc::NodeUnstageVolume,
    Rpc::ControllerUnpublishVolume,
    Rpc::DeleteVolume,
];

/// Where in a call the daemon dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Point {
    /// The call has arrived and nothing is done yet; it never will be.
    Before,
    /// The plugin has done it, and nobody has heard.
    Done,
    /// The plugin does it when the daemon is gone.
    Late,
    /// The answer is on its way.
    Answered,
}

async fn whole_life(rig: &Rig) {
    rig.running().await;
    rig.end_all().await;
}

async fn die_at(rpc: Rpc, point: Point) {
    let rig = Rig::new(Config::full()).await;
    let mut rig = rig;
    let gate = Gate::new();
    let held = match point {
        Point::Before => Some(Answer::honest().hang(&gate)),
        Point::Done => Some(Answer::honest().after_effect().hang(&gate)),
        Point::Late => Some(Answer::honest().hang(&gate).late()),
        Point::Answered => None,
    };
    let waits = held.is_some();
    if let Some(answer) = held {
        rig.backend.next(rpc, answer);
    }
    let daemon = rig.daemon.take().unwrap();
    let successor = {
        let crash = async {
            if waits {
                rig.in_flight(rpc, 1).await;
            } else {
                rig.called(rpc, 1).await;
            }
            daemon.kill().await;
            let ended = |log: &[Logged]| !log.iter().any(Logged::in_flight);
            rig.backend.until("the call has ended", ended).await;
            rig.boot().await
        };
        tokio::join!(whole_life(&rig), crash).1
    };
    rig.daemon = Some(successor);
    // After an answer it may have gone on to the next call before it died.
    let next = LIFE.iter().skip_while(|one| **one != rpc).nth(1).filter(|_| !waits);
    for other in LIFE {
        let calls = rig.backend.calls_of(other);
        let most = if other == rpc || Some(&other) == next { 2 } else { 1 };
        // What had succeeded before an uncertain reverse call is not made anew, and nothing is skipped.
        assert!(
            (1..=most).contains(&calls.len()),
            "{point:?} {rpc}: {other} was called {} times",
            calls.len()
        );
        assert!(calls.windows(2).all(|w| w[0].ask == w[1].ask), "{point:?} {rpc}: {other} changed");
    }
    if waits {
        assert_eq!(rig.count(rpc), 2, "{point:?} {rpc}");
    }
    rig.finish().await;
}

async fn die_everywhere(point: Point) {
    for rpc in LIFE {
        die_at(rpc, point).await;
    }
}

/// Scenario A64.
/// Obligation CO-CTRL-35.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_the_effect_of_any_call() {
    die_everywhere(Point::Before).await;
}

/// Scenario A30.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_effect_of_any_call() {
    die_everywhere(Point::Done).await;
}

/// Obligation CO-GEN-09.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_the_effect_comes_afterwards() {
    die_everywhere(Point::Late).await;
}

/// Scenarios A30, B7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_any_answer_is_on_its_way() {
    die_everywhere(Point::Answered).await;
}

/// Scenarios B119, A54.
/// Obligation CO-GEN-28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_place_is_not_called_again_however_often_the_daemon_dies() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    let (calls, mounts) = (rig.backend.order(), rig.mounted());
    for _ in 0..3 {
        rig.kill().await;
        rig.start().await;
        rig.ready().await;
        rig.published("app").await;
    }
    rig.stop().await;
    assert_eq!(rig.backend.order(), calls);
    assert_eq!(rig.mounted(), mounts);
    rig.start().await;
    rig.end_all().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_end_does_not_wait_for_a_call_that_hangs() {
    let mut rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeStageVolume, Answer::honest().hang(&gate));
    let app = rig.user("app").await;
    rig.give(&[&app], &crate::support::node::Special::default()).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    let began = std::time::Instant::now();
    rig.stop().await;
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "{:?}", began.elapsed());
    rig.start().await;
    rig.published("app").await;
    assert_eq!(rig.count(Rpc::NodeStageVolume), 2);
    rig.end_all().await;
    rig.finish().await;
}
