//! Caches that lag behind: a leader never acts on a state older than its own last write, and two leaders, each with old
//! caches, do no harm together.
use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Seen, WRITES, condition, pass_millis};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, disk, phase, ready, user};
use crate::quickstart::{nothing_left, quickstart, running};

const LAG: Duration = Duration::from_millis(500);
const LATENCY: Duration = Duration::from_millis(20);
const LAGGING: [&str; 4] = ["volumeclaims", "volumes", "volumeattachments", "allocations"];

/// Waits, and has everything that uses the plugin looked at again and again meanwhile.
async fn poked(bench: &Bench, what: &str, test: impl Fn(&Seen) -> bool) {
    for turn in 0..2000 {
        if test(&bench.seen) {
            return;
        }
        bench.behave("a", |b| b.max_volumes = 100 + turn % 2);
        pass_millis(50).await;
    }
    panic!("never: {what}");
}

/// Scenario A42.
/// Whoever looks again before a cache shows what was written last would write it once more, and be refused.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_twice_because_a_cache_is_late() {
    for late in LAGGING {
        let bench = Bench::new(&["a"]).await;
        let objects = quickstart();
        bench.make("plugins", objects[0].2.clone()).await;
        bench.make("volumeclasses", objects[1].2.clone()).await;
        bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "dir"))).await;
        bench.delay(late, LAG);
        let before = bench.writes().len();
        bench.make("volumeclaims", objects[2].2.clone()).await;
        bench.make("allocations", objects[3].2.clone()).await;
        poked(&bench, "it runs", |seen| running(seen, "hello")).await;
        bench.quiet().await;
        bench.delete("allocations", "default", "hello").await;
        bench.delete("volumeclaims", "default", "data").await;
        poked(&bench, "the volume is gone", |seen| seen.all("volumes").is_empty()).await;
        bench.quiet().await;
        let writes = bench.writes().split_off(before);
        let refused: Vec<_> = writes
            .iter()
            .filter(|w| w.code >= 400)
            .map(|w| format!("{} {} {}", w.code, w.method, w.path))
            .collect();
        // Placement and the claims controller may write one claim at the same moment.
        assert!(refused.len() <= 1, "{late} come late: {refused:#?}");
        bench.end().await;
    }
}

/// Scenarios B16, B127.
/// Two leaders at once, one of which sees one kind late. The ledger refuses two publications and two attachments.
#[tokio::test(start_paused = true)]
async fn two_leaders_with_old_caches_grant_one_after_the_other() {
    for late in LAGGING {
        let behaviour = Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() };
        let mut bench = Bench::with(&["a", "b"], behaviour).await;
        // Two who know different things may contradict one another until they know the same: that must take time.
        bench.delay(WRITES, LATENCY);
        bench.start_others(&[(late, LAG), (WRITES, LATENCY)]);
        disk(&bench).await;
        bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
        bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
        bench.quiet().await;
        assert_eq!((bench.ledger.count("create"), bench.seen.all("volumes").len()), (1, 1), "{late}");
        let mut asked: Vec<_> = bench.writes().into_iter().filter(|w| w.method == "POST").collect();
        asked.retain(|w| w.path.ends_with("/volumes"));
        let named = |w: &crate::bench::Write| w.body["spec"]["source"]["create"]["name"].clone();
        assert!(!asked.is_empty() && asked.iter().all(|w| named(w) == named(&asked[0])), "{asked:#?}");
        for round in 0..2 {
            // Two ask at once, in either order.
            let (first, second) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
            bench.make("allocations", user("one", "c", first)).await;
            bench.make("allocations", user("two", "c", second)).await;
            let runs = |seen: &Seen, name: &str| phase(seen, name) == "Running";
            bench.until("one of them runs", |seen| runs(seen, "one") || runs(seen, "two")).await;
            let (winner, other) = if runs(&bench.seen, "one") { ("one", "two") } else { ("two", "one") };
            bench.quiet().await;
            assert_eq!(phase(&bench.seen, other), "WaitingVolumes");
            assert_eq!(bench.seen.all("volumeattachments").len(), 1, "what lost its grant is closed");
            assert_eq!(bench.quiet().await.len(), 0, "and nobody fights over it");
            // Stopped and started: the grant moves over and back.
            bench.patch("allocations", "default", winner, json!({ "spec": { "stop": true } })).await;
            bench.until("the other runs", |seen| runs(seen, other)).await;
            bench.patch("allocations", "default", winner, json!({ "spec": { "stop": false } })).await;
            bench.delete("allocations", "default", other).await;
            bench.until("the first runs again", |seen| runs(seen, winner)).await;
            bench.delete("allocations", "default", winner).await;
            bench
                .until("both are gone", |seen| ["one", "two"].iter().all(|n| phase(seen, n).is_empty()))
                .await;
        }
        bench.delete("volumeclaims", "default", "c").await;
        bench.delete("plugins", "", "disk").await;
        bench.delete("volumeclasses", "", "disk").await;
        bench.until("nothing is left", nothing_left).await;
        assert!(bench.ledger.is_empty(), "{:?}", bench.ledger.calls());
        bench.end().await;
    }
}

/// Somebody whose caches were old may make an attachment when its volume is gone already. Nobody may be let into it, so
/// it goes; one whose volume is there, though the cache shows it late, stays.
#[tokio::test(start_paused = true)]
async fn an_attachment_whose_volume_is_gone_goes_too() {
    let behaviour = Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() };
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    bench.delay("volumes", LAG);
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    poked(&bench, "it runs", |seen| phase(seen, "one") == "Running").await;
    let mut orphan = bench.seen.only("volumeattachments");
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    poked(&bench, "the volume is gone", |seen| seen.all("volumes").is_empty()).await;
    orphan["metadata"] = json!({ "name": orphan["metadata"]["name"] });
    orphan["spec"]["allocations"] = json!([]);
    orphan.as_object_mut().unwrap().remove("status");
    let detached = bench.ledger.count("detach");
    bench.make("volumeattachments", orphan).await;
    bench.until("it goes", |seen| seen.all("volumeattachments").is_empty()).await;
    assert_eq!(bench.ledger.count("detach"), detached, "nobody was let in, so nothing is undone");
    bench.delete("plugins", "", "disk").await;
    bench.delete("volumeclasses", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// A cache of allocations that is older than that of instances does not take a plugin from its nodes.
#[tokio::test(start_paused = true)]
async fn an_instance_of_an_allocation_that_comes_late_stays() {
    let behaviour = Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() };
    let mut bench = Bench::with(&["a", "b"], behaviour).await;
    // Another leader, which does not know of the allocations that the first has made.
    bench.start_others(&[("allocations", LAG), (WRITES, LATENCY)]);
    disk(&bench).await;
    crate::bench::pass(3).await;
    let deletions: Vec<_> = bench.writes().into_iter().filter(|w| w.method == "DELETE").collect();
    assert_eq!(deletions.len(), 0, "{:?}", deletions.first());
    bench.delete("plugins", "", "disk").await;
    bench.until("its instances go", |seen| seen.all("plugininstances").is_empty()).await;
    bench.delete("volumeclasses", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// A watch that has gone deaf shows every node as silent; it is not the nodes that are.
#[tokio::test(start_paused = true)]
async fn late_leases_make_no_node_silent() {
    let bench =
        Bench::with(&["a", "b"], Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }).await;
    disk(&bench).await;
    bench.quiet().await;
    let before = bench.writes().len();
    bench.delay("leases", Duration::from_secs(25));
    crate::bench::pass(120).await;
    assert_eq!(bench.writes().split_off(before).len(), 0, "nothing happened, and nothing was said");
    bench.behave("a", |b| b.alive = false);
    let silent = |seen: &Seen| condition(&seen.get("nodes", "", "a"), "Ready")["status"] == "Unknown";
    bench.until("a is silent by the server's own word", silent).await;
    assert_eq!(condition(&bench.seen.get("nodes", "", "b"), "Ready")["status"], "True");
    bench.end().await;
}

/// An allocation mostly comes with its claim, before or after it: that it is not there is told once that is worth a write.
#[tokio::test(start_paused = true)]
async fn an_allocation_that_comes_before_its_claim_says_nothing_of_that_at_once() {
    let bench = Bench::with(&["a"], Behaviour::default()).await;
    disk(&bench).await;
    bench.make("allocations", user("one", "c", "a")).await;
    let begun = tokio::time::Instant::now();
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    assert!(
        begun.elapsed() < Duration::from_millis(900),
        "its claim was not heard of: {:?}",
        begun.elapsed()
    );
    let told = |write: &crate::bench::Write| {
        write.path.contains("allocations/one") && write.body.to_string().contains("NotFound")
    };
    assert_eq!(bench.writes().iter().filter(|write| told(write)).count(), 0);
    bench.make("allocations", user("two", "none", "a")).await;
    let placed =
        |seen: &Seen| condition(&seen.get("allocations", "default", "two"), "Placed")["reason"].clone();
    bench.until("told", |seen| placed(seen) == "NotFound").await;
    bench.end().await;
}
