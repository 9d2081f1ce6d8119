//! Nodes that fall silent, come back, are fenced, deleted, or taken down.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, Seen, WRITES, condition};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, class, disk, phase, ready, user, why};

fn disks() -> Behaviour {
    Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }
}

fn node_status(seen: &Seen, node: &str) -> Value {
    condition(&seen.get("nodes", "", node), "Ready")["status"].clone()
}

/// One allocation on `a`, running on a disk whose controller calls `b` makes, and `a` silent.
async fn lost(rebind: bool) -> Bench {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.behave("a", |b| b.healthy = false);
    bench.until("only b serves", |seen| !ready(&seen.get("plugins", "", "disk"))).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("b is host", |seen| seen.only("volumes")["status"]["controller"]["nodeName"] == "b").await;
    bench.behave("a", |b| b.healthy = true);
    let mut one = user("one", "c", "");
    one["spec"]["onNodeLost"] = json!(if rebind { "Rebind" } else { "Hold" });
    bench.patch("nodes", "", "b", json!({ "spec": { "unschedulable": true } })).await;
    bench.make("allocations", one).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    assert_eq!(bench.seen.get("allocations", "default", "one")["status"]["nodeName"], "a");
    bench.patch("nodes", "", "b", json!({ "spec": { "unschedulable": null } })).await;
    bench.behave("a", |b| b.alive = false);
    bench.until("a is lost", |seen| node_status(seen, "a") == "Unknown").await;
    bench
}

fn one(seen: &Seen) -> Value {
    seen.get("allocations", "default", "one")
}

fn taint(boot: &str) -> Value {
    json!({ "spec": { "taints": [{ "key": "wharfline.dev/out-of-service", "value": boot, "effect": "NoExecute" }] } })
}

/// Obligation CO-CTRL-50.
#[tokio::test(start_paused = true)]
async fn silence_frees_nothing_and_says_what_would() {
    let bench = lost(true).await;
    bench.until("why", |seen| why(&one(seen)) == "NoFence").await;
    let message = condition(&one(&bench.seen), "Ready")["message"].as_str().unwrap().to_owned();
    assert!(
        message.ends_with("wharfline taint node a --overwrite wharfline.dev/out-of-service=boot-1:NoExecute"),
        "{message}"
    );
    // An old fence, of another boot, says nothing.
    bench.patch("nodes", "", "a", taint("boot-0")).await;
    bench.make("allocations", user("two", "c", "b")).await;
    crate::bench::pass(3600).await;
    assert_eq!((bench.ledger.count("detach"), bench.ledger.count("publish")), (0, 1));
    assert_eq!(one(&bench.seen)["status"]["nodeName"], "a");
    bench.behave("a", |b| b.alive = true);
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    assert_eq!(bench.ledger.count("publish"), 1, "nothing was touched");
    bench.end().await;
}

/// A fence is of one outage: kept, the next silence of the daemon alone would be one.
///
/// Obligation CO-CTRL-50.
#[tokio::test(start_paused = true)]
async fn a_fence_of_a_boot_that_is_heard_again_is_taken_away() {
    let bench = lost(true).await;
    // What wrote there has ended; the machine has not.
    bench.ledger.power_off("a");
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench
        .until("it runs on b", |seen| {
            one(seen)["status"]["nodeName"] == "b" && phase(seen, "one") == "Running"
        })
        .await;
    bench.ledger.power_on("a");
    bench.behave("a", |b| b.alive = true);
    let taints = |seen: &Seen| seen.get("nodes", "", "a")["spec"]["taints"].as_array().map_or(0, Vec::len);
    bench.until("the taint is gone", |seen| taints(seen) == 0).await;
    let told = |seen: &Seen| seen.all("events").iter().filter(|event| event["reason"] == "NotOff").count();
    bench.until("told", |seen| told(seen) == 1).await;
    // Silent once more, it may write, and frees nothing.
    bench.make("volumeclaims", claim("d", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("two", "d", "a")).await;
    bench.until("it runs", |seen| phase(seen, "two") == "Running").await;
    bench.behave("a", |b| b.alive = false);
    bench.until("why", |seen| why(&seen.get("allocations", "default", "two")) == "NoFence").await;
    bench.behave("a", |b| b.alive = true);
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    // Nothing new comes to one that is said to be off, until it is heard.
    bench.behave("a", |b| b.alive = false);
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench.make("volumeclaims", claim("e", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("three", "e", "a")).await;
    crate::bench::pass(5).await;
    assert_eq!(taints(&bench.seen), 1);
    let three = bench.seen.get("allocations", "default", "three");
    let placed = condition(&three, "Placed")["message"].as_str().unwrap().to_owned();
    assert!(placed.contains("a: said to be off"), "{three}");
    let claimed = bench.seen.get("volumeclaims", "default", "e")["status"]["volumeName"].clone();
    let volume = bench.seen.get("volumes", "", claimed.as_str().unwrap());
    assert_eq!(volume["status"]["controller"]["nodeName"], "b", "it begins no calls either");
    bench.behave("a", |b| b.alive = true);
    bench.until("the taint is gone", |seen| taints(seen) == 0).await;
    bench.until("it runs", |seen| phase(seen, "three") == "Running").await;
    bench.end().await;
}

/// Said of a node that is well by mistake, it is taken away with the next renewal; the silence that comes after that is no fence, whoever
/// leads by then.
///
/// Obligation CO-CTRL-50.
#[tokio::test(start_paused = true)]
async fn a_fence_of_a_node_that_was_heard_after_it_is_none() {
    let mut bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let mut rebinding = user("one", "c", "");
    rebinding["spec"]["onNodeLost"] = json!("Rebind");
    bench.make("allocations", rebinding).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let node = one(&bench.seen)["status"]["nodeName"].as_str().unwrap().to_owned();
    let taints = |seen: &Seen| seen.get("nodes", "", &node)["spec"]["taints"].as_array().map_or(0, Vec::len);
    let told = |seen: &Seen| seen.all("events").iter().filter(|event| event["reason"] == "NotOff").count();
    let said = tokio::time::Instant::now();
    bench.patch("nodes", "", &node, taint("boot-1")).await;
    bench.until("it is taken away", |seen| taints(seen) == 0 && told(seen) == 1).await;
    assert!(said.elapsed() < Duration::from_secs(10), "{:?}", said.elapsed());
    // Nobody led when it was said and when the node was heard; then its daemon ends.
    bench.stop().await;
    bench.patch("nodes", "", &node, taint("boot-1")).await;
    crate::bench::pass(10).await;
    bench.behave(&node, |b| b.alive = false);
    bench.start();
    bench.until("it is taken away again", |seen| taints(seen) == 0).await;
    bench.until("it is silent", |seen| node_status(seen, &node) == "Unknown").await;
    bench.until("why", |seen| why(&one(seen)) == "NoFence").await;
    crate::bench::pass(300).await;
    assert_eq!(
        (bench.ledger.count("detach"), one(&bench.seen)["status"]["nodeName"].clone()),
        (0, json!(node))
    );
    bench.end().await;
}

/// A machine that begins anew renews its lease before it says which boot it has: nothing was wrong with what was said of the former one.
#[tokio::test(start_paused = true)]
async fn a_fenced_machine_that_begins_anew_disproves_nothing() {
    let bench = lost(true).await;
    bench.ledger.power_off("a");
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench
        .until("it runs on b", |seen| {
            one(seen)["status"]["nodeName"] == "b" && phase(seen, "one") == "Running"
        })
        .await;
    bench.ledger.power_on("a");
    bench.delay("nodeagents", Duration::from_secs(25));
    bench.behave("a", |b| (b.alive, b.boot) = (true, "boot-2".to_owned()));
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    crate::bench::pass(60).await;
    let info = bench.seen.get("nodes", "", "a")["status"]["nodeInfo"].clone();
    assert_eq!(info["bootID"], "boot-2", "it is known by now");
    assert!(!bench.seen.all("events").iter().any(|event| event["reason"] == "NotOff"), "nobody was wrong");
    bench.end().await;
}

/// Controllers that begin find the lease of a node that is off as its last word left it: that does not say that it is heard, and a deletion
/// in that moment says what it said before.
#[tokio::test(start_paused = true)]
async fn a_lease_that_new_controllers_find_does_not_say_that_its_node_is_heard() {
    let mut bench = lost(true).await;
    bench.ledger.power_off("a");
    let before = bench.writes().len();
    bench.stop().await;
    bench.start();
    crate::bench::pass(5).await;
    assert_eq!(node_status(&bench.seen, "a"), "Unknown");
    let of_node = |w: &crate::bench::Write| w.path.ends_with("/nodes/a/status");
    assert!(!bench.writes().split_off(before).iter().any(of_node), "nothing new is known of it");
    bench.delete("nodes", "", "a").await;
    bench.until("a is gone", |seen| seen.get("nodes", "", "a").is_null()).await;
    bench
        .until("it runs on b", |seen| {
            one(seen)["status"]["nodeName"] == "b" && phase(seen, "one") == "Running"
        })
        .await;
    bench.end().await;
}

/// It is deleted as one that is silent, and comes back in that moment, which the controllers do not see yet.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_as_it_is_deleted_keeps_what_it_has() {
    let bench = lost(true).await;
    bench.delay("leases", Duration::from_secs(20));
    bench.behave("a", |b| b.alive = true);
    crate::bench::pass(3).await;
    let before = bench.writes().len();
    bench.delete("nodes", "", "a").await;
    crate::bench::pass(10).await;
    let writes = bench.writes().split_off(before);
    let refused = |w: &&crate::bench::Write| w.path.ends_with("/nodes/a") && w.code == 409;
    assert!(writes.iter().any(|w| refused(&w)), "it was let go as it was seen: {writes:?}");
    bench.until("it is heard", |seen| node_status(seen, "a") == "True").await;
    crate::bench::pass(60).await;
    assert_eq!(phase(&bench.seen, "one"), "Running", "{}", one(&bench.seen));
    assert_eq!(one(&bench.seen)["status"]["nodeName"], "a");
    assert_eq!(bench.ledger.count("detach"), 0, "{:?}", bench.ledger.calls());
    bench.delete("allocations", "default", "one").await;
    bench.until("a is gone", |seen| seen.get("nodes", "", "a").is_null()).await;
    bench.end().await;
}

/// Its boot and its last word are of its NodeAgent, whose watch may be behind that of its lease.
#[tokio::test(start_paused = true)]
async fn a_silent_node_goes_by_what_the_server_has_of_it() {
    let bench = lost(true).await;
    bench.ledger.power_off("a");
    bench.delay("nodeagents", Duration::from_secs(120));
    bench.ledger.power_on("a");
    bench.behave("a", |b| (b.alive, b.boot) = (true, "boot-2".to_owned()));
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    bench.behave("a", |b| b.alive = false);
    bench.until("a is lost", |seen| node_status(seen, "a") == "Unknown").await;
    bench.ledger.power_off("a");
    bench.delete("nodes", "", "a").await;
    crate::bench::pass(30).await;
    assert!(!bench.seen.get("nodes", "", "a").is_null(), "what it said last has not come here");
    bench.until("a is gone", |seen| seen.get("nodes", "", "a").is_null()).await;
    bench.end().await;
}

/// A person deletes it while it is shown as heard, in the moment in which it is found silent: that it is silent is then of after that.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_deleted_while_its_silence_is_being_written_was_heard() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.behave("a", |b| b.alive = false);
    crate::bench::pass(6).await;
    let before = bench.writes().len();
    bench.delay(WRITES, Duration::from_secs(10));
    crate::bench::pass(9).await;
    assert_eq!(node_status(&bench.seen, "a"), "True", "on its way");
    bench.delete("nodes", "", "a").await;
    bench.delay(WRITES, Duration::ZERO);
    let ready = |seen: &Seen| condition(&seen.get("nodes", "", "a"), "Ready");
    bench.until("it is found out", |seen| ready(seen)["reason"] == "SilentSinceDeleted").await;
    let writes = bench.writes().split_off(before);
    let refused = |w: &&crate::bench::Write| w.path.ends_with("/nodes/a/status") && w.code == 409;
    assert_eq!(writes.iter().filter(refused).count(), 1, "the one that was on its way");
    crate::bench::pass(600).await;
    assert!(!bench.seen.get("nodes", "", "a").is_null());
    assert_eq!(bench.ledger.count("detach"), 0);
    bench.behave("a", |b| b.alive = true);
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    bench.end().await;
}

fn seen_holders(seen: &Seen) -> Vec<Value> {
    seen.only("volumes")["status"]["holders"].as_array().cloned().unwrap_or_default()
}

/// Nor is it given what was waited for there when that was said, and it is told why.
#[tokio::test(start_paused = true)]
async fn who_waits_on_a_node_that_is_said_to_be_off_gets_nothing_before_the_taint_goes() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "b")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.make("allocations", user("two", "c", "a")).await;
    bench.until("it waits", |seen| phase(seen, "two") == "WaitingVolumes").await;
    // A renewal that disproves it takes a while.
    bench.delay("leases", Duration::from_secs(8));
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench.delete("allocations", "default", "one").await;
    let two = |seen: &Seen| seen.get("allocations", "default", "two");
    bench.until("it is told", |seen| two(seen)["status"]["obstacle"]["reason"] == "SaidOff").await;
    bench.until("nobody has it", |seen| seen.all("volumeattachments").is_empty()).await;
    crate::bench::pass(3).await;
    assert_eq!((phase(&bench.seen, "two"), bench.ledger.count("publish")), ("WaitingVolumes".into(), 1));
    assert!(seen_holders(&bench.seen).is_empty(), "it was given to it");
    bench.until("it runs", |seen| phase(seen, "two") == "Running").await;
    assert_eq!(bench.seen.get("nodes", "", "a")["spec"]["taints"].as_array().map_or(0, Vec::len), 0);
    bench.until("nothing is said of before", |seen| two(seen)["status"]["obstacle"].is_null()).await;
    bench.end().await;
}

/// It stays to be looked at, and needs nothing of its node.
#[tokio::test(start_paused = true)]
async fn an_allocation_that_is_over_keeps_no_node() {
    let ends = |phase: &str| json!({ "status": { "phase": phase } });
    let stops = json!({ "spec": { "stop": true } });
    for (end, change, goes) in
        [("Complete", ends("Complete"), true), ("Failed", ends("Failed"), true), ("Stopped", stops, false)]
    {
        let bench = Bench::with(&["a", "b"], disks()).await;
        let unused = json!({ "metadata": { "name": "one" }, "spec": { "nodeName": "a" } });
        bench.make("allocations", unused).await;
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        bench.patch("allocations", "default", "one", change).await;
        bench.until("it is over", |seen| phase(seen, "one") == end).await;
        bench.quiet().await;
        bench.delete("nodes", "", "a").await;
        bench.quiet().await;
        assert_eq!(bench.seen.get("nodes", "", "a").is_null(), goes, "{end}");
        assert_eq!(phase(&bench.seen, "one"), end, "it stays to be looked at");
        bench.delete("allocations", "default", "one").await;
        bench.until("one is gone", |seen| one(seen).is_null()).await;
        bench.until("a is gone", |seen| seen.get("nodes", "", "a").is_null()).await;
        bench.end().await;
    }
}

/// Said too early: the daemon comes back a moment later, gets work that waited for it, and dies once more.
#[tokio::test(start_paused = true)]
async fn a_fence_that_is_set_just_before_the_daemon_comes_back_is_none_of_its_next_silence() {
    let bench = lost(true).await;
    bench.make("volumeclaims", claim("d", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("two", "d", "a")).await;
    bench.ledger.power_off("a");
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench.until("it runs on b", |seen| one(seen)["status"]["nodeName"] == "b").await;
    bench.ledger.power_on("a");
    bench.behave("a", |b| b.alive = true);
    let back = tokio::time::Instant::now();
    let taints = |seen: &Seen| seen.get("nodes", "", "a")["spec"]["taints"].as_array().map_or(0, Vec::len);
    bench.until("the taint is gone", |seen| taints(seen) == 0).await;
    assert!(back.elapsed() < Duration::from_secs(5), "with its first renewal: {:?}", back.elapsed());
    bench.until("two runs", |seen| phase(seen, "two") == "Running").await;
    bench.behave("a", |b| b.alive = false);
    bench.until("why", |seen| why(&seen.get("allocations", "default", "two")) == "NoFence").await;
    let published = bench.ledger.count("publish");
    bench.make("allocations", user("three", "d", "b")).await;
    crate::bench::pass(600).await;
    assert_eq!(bench.ledger.count("publish"), published, "two may write still");
    bench.behave("a", |b| b.alive = true);
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    bench.end().await;
}

/// Scenario A68.
/// Obligation CO-CTRL-50.
#[tokio::test(start_paused = true)]
async fn a_fence_moves_what_may_move_and_the_node_that_comes_back_only_clears_up() {
    let bench = lost(true).await;
    bench.ledger.power_off("a");
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench
        .until("it runs on b", |seen| {
            one(seen)["status"]["nodeName"] == "b" && phase(seen, "one") == "Running"
        })
        .await;
    let verbs: Vec<_> =
        bench.ledger.calls().iter().map(|c| c.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(verbs, ["create", "attach", "publish", "detach", "attach", "publish"]);
    let attachments = bench.seen.all("volumeattachments");
    assert_eq!(attachments.len(), 2, "the fenced one waits for its node");
    assert_eq!(bench.quiet().await.len(), 0);
    bench.ledger.power_on("a");
    bench.behave("a", |b| {
        b.alive = true;
        b.boot = "boot-2".to_owned();
    });
    bench.until("a has cleared up", |seen| seen.all("volumeattachments").len() == 1).await;
    assert_eq!(bench.ledger.count("publish"), 2);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_fenced_allocation_that_holds_fails_and_frees_its_volume() {
    let bench = lost(false).await;
    bench.make("allocations", user("two", "c", "b")).await;
    bench.ledger.power_off("a");
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench.until("one has failed", |seen| phase(seen, "one") == "Failed").await;
    assert_eq!(why(&one(&bench.seen)), "NodeLost");
    bench.until("two runs", |seen| phase(seen, "two") == "Running").await;
    bench.delete("allocations", "default", "one").await;
    bench.until("one is gone", |seen| one(seen).is_null()).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_renews_its_lease_is_not_fenced_by_a_taint() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.behave("a", |b| b.releases = false);
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench.delete("allocations", "default", "one").await;
    bench
        .until("closed", |seen| !seen.only("volumeattachments")["metadata"]["deletionTimestamp"].is_null())
        .await;
    crate::bench::pass(600).await;
    assert_eq!(bench.ledger.count("detach"), 0);
    bench.end().await;
}

/// It is heard while the word that it is off is on its way: what it may write to is not taken off.
///
/// Obligation CO-CTRL-50.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_heard_while_its_attachment_is_being_fenced_keeps_it() {
    let bench = lost(true).await;
    let attachment = bench.seen.only("volumeattachments")["metadata"]["name"].as_str().unwrap().to_owned();
    let path = format!("/volumeattachments/{attachment}");
    bench.delete("volumeattachments", "", &attachment).await;
    let let_go = bench.hold(&path);
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    let fencing = |bench: &Bench| {
        let writes = bench.writes().into_iter();
        writes.filter(|w| w.path.ends_with(&path) && w.body["spec"]["fenced"] == true).collect::<Vec<_>>()
    };
    crate::bench::pass(5).await;
    assert_eq!(fencing(&bench).iter().map(|w| w.code).collect::<Vec<_>>(), [0], "it is on its way");
    bench.behave("a", |b| (b.alive, b.releases) = (true, false));
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    let_go.cancel();
    crate::bench::pass(60).await;
    assert_eq!(fencing(&bench).iter().map(|w| w.code).collect::<Vec<_>>(), [409]);
    assert_eq!(bench.seen.get("volumeattachments", "", &attachment)["spec"]["fenced"], false);
    assert_eq!(bench.ledger.count("detach"), 0);
    bench.end().await;
}

/// What its silence was judged by is from before that: a renewal that comes meanwhile is seen.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_heard_while_its_word_is_read_keeps_what_it_has() {
    let bench = lost(true).await;
    let let_go = bench.hold("/nodeagents/a");
    bench.delete("nodes", "", "a").await;
    crate::bench::pass(5).await;
    assert!(!bench.seen.get("nodes", "", "a").is_null(), "its word is being read");
    bench.behave("a", |b| (b.alive, b.releases) = (true, false));
    crate::bench::pass(5).await;
    let_go.cancel();
    crate::bench::pass(60).await;
    assert!(!bench.seen.get("nodes", "", "a").is_null(), "it is heard, and has an attachment");
    assert_eq!(bench.ledger.count("detach"), 0);
    bench.end().await;
}

/// Scenarios A67, B50.
#[tokio::test(start_paused = true)]
async fn a_deleted_node_frees_what_it_had_once_it_is_silent() {
    let bench = lost(true).await;
    bench.ledger.power_off("a");
    bench.delete("nodes", "", "a").await;
    bench.until("a is gone", |seen| seen.get("nodes", "", "a").is_null()).await;
    bench
        .until("it runs on b", |seen| {
            one(seen)["status"]["nodeName"] == "b" && phase(seen, "one") == "Running"
        })
        .await;
    bench.until("its attachment went with it", |seen| seen.all("volumeattachments").len() == 1).await;
    bench.until("its plugin went with it", |seen| seen.all("plugininstances").len() == 1).await;
    bench.end().await;
}

/// Its deletion asked for its taking out, and is no word on what became of it later.
#[tokio::test(start_paused = true)]
async fn a_node_that_falls_silent_after_it_was_deleted_frees_nothing_until_it_is_said_to_be_off() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let mut moves = user("one", "c", "");
    moves["spec"]["onNodeLost"] = json!("Rebind");
    bench.patch("nodes", "", "b", json!({ "spec": { "unschedulable": true } })).await;
    bench.make("allocations", moves).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.patch("nodes", "", "b", json!({ "spec": { "unschedulable": null } })).await;
    assert_eq!(one(&bench.seen)["status"]["nodeName"], "a");
    bench.delete("nodes", "", "a").await;
    bench.behave("a", |b| b.alive = false);
    let ready = |seen: &Seen| condition(&seen.get("nodes", "", "a"), "Ready");
    bench.until("a is lost", |seen| ready(seen)["reason"] == "SilentSinceDeleted").await;
    let message = ready(&bench.seen)["message"].as_str().unwrap().to_owned();
    let command = "wharfline taint node a --overwrite wharfline.dev/out-of-service=boot-1:NoExecute";
    assert!(message.ends_with(command), "{message}");
    bench.until("why", |seen| why(&one(seen)) == "NoFence").await;
    // Nor does it say more that its lease is not there any more.
    bench.delete_lease("a").await;
    crate::bench::pass(3600).await;
    assert!(!bench.seen.get("nodes", "", "a").is_null(), "it may write still");
    assert_eq!(ready(&bench.seen)["reason"], "SilentSinceDeleted");
    assert_eq!((bench.ledger.count("detach"), bench.ledger.count("publish")), (0, 1));
    // Heard again it takes down nothing that is used; and silent once more it is no more off than before.
    bench.behave("a", |b| b.alive = true);
    bench.until("a is back", |seen| node_status(seen, "a") == "True").await;
    bench.behave("a", |b| b.alive = false);
    bench.until("a is lost", |seen| ready(seen)["reason"] == "SilentSinceDeleted").await;
    bench.ledger.power_off("a");
    bench.patch("nodes", "", "a", taint("boot-1")).await;
    bench.until("a is gone", |seen| seen.get("nodes", "", "a").is_null()).await;
    bench
        .until("it runs on b", |seen| {
            one(seen)["status"]["nodeName"] == "b" && phase(seen, "one") == "Running"
        })
        .await;
    bench.end().await;
}

/// Scenario A62.
/// Obligation CO-GEN-34.
#[tokio::test(start_paused = true)]
async fn a_host_is_replaced_only_after_the_longest_call() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.behave("b", |b| b.healthy = false);
    bench.until("only a serves", |seen| !ready(&seen.get("plugins", "", "disk"))).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let host = |seen: &Seen| seen.only("volumes")["status"]["controller"].clone();
    bench.until("a is host", |seen| host(seen)["nodeName"] == "a").await;
    bench.until("it exists", |seen| ready(&seen.only("volumeclaims"))).await;
    bench.behave("b", |b| b.healthy = true);
    bench.behave("a", |b| b.alive = false);
    bench.until("a is lost", |seen| node_status(seen, "a") == "Unknown").await;
    crate::bench::pass(140).await;
    assert_eq!(host(&bench.seen), json!({ "nodeName": "a", "epoch": 1 }));
    bench.until("b is host", |seen| host(seen) == json!({ "nodeName": "b", "epoch": 2 })).await;
    bench.until("b has said so", |seen| seen.only("volumes")["status"]["observedEpoch"] == 2).await;
    bench.make("allocations", user("one", "c", "b")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}

/// The controllers have made up their minds, and their write is on its way when the node renews its lease: what the node
/// then sees as its host's work is its own, so the write must come to nothing.
#[tokio::test(start_paused = true)]
async fn a_host_that_renews_its_lease_first_is_not_replaced() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.behave("b", |b| b.healthy = false);
    bench.until("only a serves", |seen| !ready(&seen.get("plugins", "", "disk"))).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let host = |seen: &Seen| seen.only("volumes")["status"]["controller"].clone();
    bench.until("a is host", |seen| host(seen)["nodeName"] == "a").await;
    bench.until("it exists", |seen| ready(&seen.only("volumeclaims"))).await;
    bench.behave("b", |b| b.healthy = true);
    bench.behave("a", |b| b.alive = false);
    bench.until("a is lost", |seen| node_status(seen, "a") == "Unknown").await;
    // It would be replaced 150 s after that.
    crate::bench::pass(147).await;
    let before = bench.writes().len();
    bench.delay(WRITES, Duration::from_secs(5));
    crate::bench::pass(4).await;
    bench.behave("a", |b| b.alive = true);
    crate::bench::pass(60).await;
    bench.delay(WRITES, Duration::ZERO);
    let writes = bench.writes().split_off(before);
    let tried: Vec<_> = writes.iter().filter(|w| w.method == "PUT" && w.path.contains("/volumes/")).collect();
    assert_eq!(tried.iter().map(|w| w.code).collect::<Vec<_>>(), [409], "one was on its way");
    assert_eq!(host(&bench.seen), json!({ "nodeName": "a", "epoch": 1 }));
    bench.make("allocations", user("one", "c", "b")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_taken_down_lets_go_and_comes_back() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let stopped = json!({ "metadata": { "annotations": { "wharfline.dev/stopped": "true" } } });
    bench.patch("nodes", "", "a", stopped).await;
    bench.until("nothing is attached", |seen| seen.all("volumeattachments").is_empty()).await;
    bench
        .until("the plugin was let go", |seen| {
            seen.all("allocations").iter().all(|a| a["status"]["phase"] == "Stopped")
        })
        .await;
    assert_eq!(bench.ledger.count("delete"), 0);
    assert_eq!(bench.quiet().await.len(), 0);
    let up = json!({ "metadata": { "annotations": { "wharfline.dev/stopped": null } } });
    bench.patch("nodes", "", "a", up).await;
    bench.until("it runs again", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}

/// Obligation CO-PLUG-20.
/// Scenario A19.
#[tokio::test(start_paused = true)]
async fn what_makes_the_controller_calls_of_a_node_taken_down_stops_last() {
    let bench = Bench::with(&["a"], disks()).await;
    let entry = |role: &str| json!({ "name": role.to_lowercase(), "role": role, "runtime": { "process": { "command": ["driver"] } } });
    let mut plugin = crate::manifests::plugin("disk", "Cluster");
    plugin["spec"]["instances"] = json!([entry("Controller"), entry("Node")]);
    bench.make("plugins", plugin).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "disk"))).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let stopped = json!({ "metadata": { "annotations": { "wharfline.dev/stopped": "true" } } });
    bench.patch("nodes", "", "a", stopped).await;
    let over = |seen: &Seen| seen.all("allocations").iter().all(|a| a["status"]["phase"] == "Stopped");
    bench.until("all is stopped", over).await;
    let released = |write: &&crate::bench::Write| write.body["status"]["pluginReleased"] == true;
    let order: Vec<_> = bench.writes().iter().filter(released).map(|write| write.path.clone()).collect();
    assert!(
        order.len() == 2 && order[0].contains("disk-node") && order[1].contains("disk-controller"),
        "{order:?}"
    );
    assert_eq!(bench.quiet().await.len(), 0);
    bench.end().await;
}

/// Scenario A62.
#[tokio::test(start_paused = true)]
async fn cordoned_nodes_keep_their_plugins_and_get_nothing_else() {
    let bench = Bench::with(&["a"], disks()).await;
    bench.patch("nodes", "", "a", json!({ "spec": { "unschedulable": true } })).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "")).await;
    bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
    bench.until("refused", |seen| why(&one(seen)) == "NoNodeFits").await;
    bench.patch("nodes", "", "a", json!({ "spec": { "unschedulable": false } })).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}
