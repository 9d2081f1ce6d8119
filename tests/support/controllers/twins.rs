//! Two Volumes of one plugin and handle: one of them is used, and nothing is deleted under the other.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition, pass};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, disk, phase, ready, user, why};

fn disks() -> Behaviour {
    Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }
}

/// A volume that a person registers for the claim of the same name, and that claim.
async fn registered(bench: &Bench, name: &str, handle: &str) {
    // Of two made in one second either may go first.
    pass(1).await;
    bench.ledger_exists(name);
    let volume = json!({ "metadata": { "name": name }, "spec": { "plugin": "disk",
        "source": { "existing": { "handle": handle } }, "accessModes": ["SingleNodeWriter"],
        "reclaimPolicy": "Retain", "claimRef": { "name": name, "namespace": "default" } } });
    bench.make("volumes", volume).await;
    let of_it = json!({ "metadata": { "name": name }, "spec": { "volumeName": name,
        "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "1Gi" } } } });
    bench.make("volumeclaims", of_it).await;
}

/// Where each node knows its own alone, one handle on two nodes is two volumes.
#[tokio::test(start_paused = true)]
async fn one_handle_of_two_nodes_that_know_their_own_alone_is_two_volumes() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.patch("plugins", "", "disk", json!({ "spec": { "controllerScope": "Node" } })).await;
    for (name, node) in [("first", "a"), ("second", "b")] {
        pass(1).await;
        bench.ledger_exists(name);
        let volume = json!({ "metadata": { "name": name }, "spec": { "plugin": "disk",
            "source": { "existing": { "handle": "disk-7", "nodeName": node, "topology": [{ "zone": node }] } },
            "accessModes": ["SingleNodeWriter"], "reclaimPolicy": "Retain",
            "claimRef": { "name": name, "namespace": "default" } } });
        bench.make("volumes", volume).await;
        let of_it = json!({ "metadata": { "name": name },
            "spec": { "volumeName": name, "accessModes": ["SingleNodeWriter"] } });
        bench.make("volumeclaims", of_it).await;
    }
    bench
        .until("both are ready", |seen| ["first", "second"].iter().all(|name| ready(&volume(seen, name))))
        .await;
    for name in ["first", "second"] {
        assert!(condition(&volume(&bench.seen, name), "HandleShared").is_null());
    }
    // On one node they are one all the same.
    bench.patch("plugins", "", "disk", json!({ "spec": { "controllerScope": "Cluster" } })).await;
    bench.patch("volumes", "", "second", json!({ "metadata": { "labels": { "look": "again" } } })).await;
    bench.until("told", |seen| why(&volume(seen, "second")) == "HandleShared").await;
    for name in ["second", "first"] {
        bench.delete("volumeclaims", "default", name).await;
        bench.delete("volumes", "", name).await;
    }
    bench.quiet().await;
    bench.end().await;
}

fn volume(seen: &Seen, name: &str) -> Value {
    seen.get("volumes", "", name)
}

/// The one that was there first is granted, the other says which and waits; on one node or on two.
#[tokio::test(start_paused = true)]
async fn of_two_volumes_of_one_handle_one_is_used() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    registered(&bench, "first", "disk-7").await;
    bench.make("allocations", user("one", "first", "a")).await;
    bench.until("one runs", |seen| phase(seen, "one") == "Running").await;
    registered(&bench, "second", "disk-7").await;
    registered(&bench, "stranger", "disk-8").await;
    bench.make("allocations", user("two", "second", "b")).await;
    bench.make("allocations", user("three", "second", "a")).await;
    bench.until("it says why", |seen| why(&volume(seen, "second")) == "HandleShared").await;
    bench
        .until("the claim says why", |seen| {
            let claim = seen.get("volumeclaims", "default", "second");
            why(&claim) == "HandleShared"
                && condition(&claim, "Ready")["message"].as_str().unwrap().contains("first")
        })
        .await;
    bench.until("the other is ready", |seen| ready(&volume(seen, "stranger"))).await;
    bench.quiet().await;
    assert!(ready(&volume(&bench.seen, "first")), "what is used stays usable");
    assert_eq!(condition(&volume(&bench.seen, "first"), "HandleShared")["status"], "True");
    assert!(condition(&volume(&bench.seen, "stranger"), "HandleShared").is_null());
    assert_eq!(bench.seen.all("volumeattachments").len(), 1, "nobody else was let in");

    bench.delete("allocations", "default", "three").await;
    bench.delete("allocations", "default", "one").await;
    bench.quiet().await;
    assert!(!ready(&volume(&bench.seen, "second")), "the first may be used again at any time");
    bench.delete("volumes", "", "first").await;
    bench.until("the second runs", |seen| phase(seen, "two") == "Running").await;
    // The first one is there until its claim goes, too.
    assert_eq!(condition(&volume(&bench.seen, "second"), "HandleShared")["status"], "True");
    bench.delete("volumeclaims", "default", "first").await;
    bench.until("one is left", |seen| condition(&volume(seen, "second"), "HandleShared").is_null()).await;
    assert!(volume(&bench.seen, "first").is_null());
    bench.delete("allocations", "default", "two").await;
    bench.quiet().await;
    bench.end().await;
}

/// A volume that was made is registered once more by a person: with its claim gone the data stays, until the other goes.
#[tokio::test(start_paused = true)]
async fn what_another_volume_has_a_handle_of_is_not_deleted_with_its_claim() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "data"))).await;
    let made = bench.seen.only("volumes");
    let (name, handle) =
        (made["metadata"]["name"].as_str().unwrap(), made["status"]["handle"].as_str().unwrap());
    registered(&bench, "again", handle).await;
    bench
        .until("both say so", |seen| {
            why(&volume(seen, "again")) == "HandleShared"
                && condition(&volume(seen, name), "HandleShared")["status"] == "True"
        })
        .await;
    bench.delete("volumeclaims", "default", "data").await;
    bench.until("it says why", |seen| why(&volume(seen, name)) == "HandleShared").await;
    bench.quiet().await;
    assert_eq!(bench.ledger.count("delete"), 0);
    bench.delete("volumeclaims", "default", "again").await;
    bench.delete("volumes", "", "again").await;
    bench.until("gone", |seen| volume(seen, name).is_null()).await;
    assert_eq!(bench.ledger.count("delete"), 1);
    bench.end().await;
}

/// Scenario B21.
/// What was kept after its claim is used by nobody any more: registered anew it is free at once.
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_kept_may_be_registered_anew() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    registered(&bench, "old", "disk-7").await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "old"))).await;
    bench.delete("volumeclaims", "default", "old").await;
    bench.until("kept", |seen| volume(seen, "old")["status"]["phase"] == "Released").await;
    registered(&bench, "new", "disk-7").await;
    bench.make("allocations", user("one", "new", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    // The old one is claimed again while the new one is in use.
    let again = json!({ "metadata": { "name": "old" }, "spec": { "volumeName": "old",
        "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "1Gi" } } } });
    bench.make("volumeclaims", again).await;
    bench.until("the old one waits", |seen| why(&volume(seen, "old")) == "HandleShared").await;
    assert!(ready(&volume(&bench.seen, "new")));
    bench.delete("allocations", "default", "one").await;
    bench.quiet().await;
    bench.end().await;
}

/// A claim, and its volume once that was made.
async fn made(bench: &Bench, name: &str) -> String {
    pass(1).await;
    bench.make("volumeclaims", claim(name, "disk", "SingleNodeWriter")).await;
    let of = |seen: &Seen| {
        let all = seen.all("volumes").into_iter();
        let mut own = all.filter(|v| v["spec"]["claimRef"]["name"] == name && v["status"]["exists"] == "Up");
        own.next().map(|v| v["metadata"]["name"].as_str().unwrap().to_owned())
    };
    bench.until("it is made", |seen| of(seen).is_some()).await;
    of(&bench.seen).unwrap()
}

/// What is in it is the first one's: it is never used, and deletes nothing, even when the first one is gone and its data stays.
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_given_the_handle_of_another_one_is_not_used_and_goes_alone() {
    let bench = Bench::with(&["a"], Behaviour { one_volume: "same", ..disks() }).await;
    disk(&bench).await;
    let first = made(&bench, "one").await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "one"))).await;
    let second = made(&bench, "two").await;
    let not_used = |seen: &Seen| why(&volume(seen, &second)) == "HandleShared";
    bench.until("it is not to be used", not_used).await;
    let message = condition(&volume(&bench.seen, &second), "Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("the handle of volume \"{first}\"")), "{message}");
    bench.make("allocations", user("app", "two", "a")).await;
    bench.quiet().await;
    assert!(bench.seen.all("volumeattachments").is_empty());
    assert!(ready(&volume(&bench.seen, &first)));
    assert!(condition(&volume(&bench.seen, &first), "HandleShared").is_null(), "it has nothing to wait for");
    bench.patch("volumes", "", &first, json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    bench.delete("volumeclaims", "default", "one").await;
    bench.delete("volumes", "", &first).await;
    bench.until("the first one is gone", |seen| volume(seen, &first).is_null()).await;
    bench.quiet().await;
    assert!(not_used(&bench.seen), "its data stays, and is nobody's");
    bench.delete("allocations", "default", "app").await;
    bench.delete("volumeclaims", "default", "two").await;
    bench.until("it is gone", |seen| seen.all("volumes").is_empty()).await;
    assert_eq!(bench.ledger.count("delete"), 0);
    bench.end().await;
}

/// Nobody knows which of them had it first: never both have it, whoever is looked at first.
#[tokio::test(start_paused = true)]
async fn of_two_volumes_that_are_given_one_handle_at_once_one_is_used() {
    for late in [0, 3] {
        let bench = Bench::with(&["a"], Behaviour { one_volume: "same", ..disks() }).await;
        disk(&bench).await;
        bench.delay("volumes", std::time::Duration::from_secs(late));
        for name in ["one", "two"] {
            bench.make("volumeclaims", claim(name, "disk", "SingleNodeWriter")).await;
            bench.make("allocations", user(name, name, "a")).await;
        }
        let running = |seen: &Seen| {
            ["one", "two"].into_iter().filter(|name| phase(seen, name) == "Running").collect::<Vec<_>>()
        };
        bench.until("one runs", |seen| !running(seen).is_empty()).await;
        bench.quiet().await;
        let anothers = |seen: &Seen| {
            let all = seen.all("volumes");
            all.iter().filter(|v| condition(v, "HandleShared")["reason"] == "HandleOfAnother").count()
        };
        assert_eq!((running(&bench.seen).len(), anothers(&bench.seen)), (1, 1));
        assert_eq!(bench.ledger.count("again"), 0, "nothing of it was deleted");
        assert_eq!(bench.seen.all("volumeattachments").len(), 1);
        for name in ["one", "two"] {
            bench.delete("allocations", "default", name).await;
            bench.delete("volumeclaims", "default", name).await;
        }
        bench.until("both are gone", |seen| seen.all("volumes").is_empty()).await;
        assert_eq!(bench.ledger.count("delete"), 1);
        bench.end().await;
    }
}

/// A plugin may give away again what it has just deleted: while its object is there nobody knows.
#[tokio::test(start_paused = true)]
async fn a_handle_of_what_is_being_deleted_is_waited_for() {
    let bench = Bench::with(&["a"], Behaviour { one_volume: "lun-7", deletes: false, ..disks() }).await;
    disk(&bench).await;
    let first = made(&bench, "one").await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "one"))).await;
    bench.delete("volumeclaims", "default", "one").await;
    bench.until("it goes", |seen| why(&volume(seen, &first)) == "Releasing").await;
    let second = made(&bench, "two").await;
    bench.until("it waits", |seen| why(&volume(seen, &second)) == "HandleEnding").await;
    bench.quiet().await;
    assert!(volume(&bench.seen, &second)["status"]["handleChecked"].is_null(), "nothing is said of it yet");
    bench.behave("a", |b| b.deletes = true);
    bench.until("the first one is gone", |seen| volume(seen, &first).is_null()).await;
    bench.until("it is its own", |seen| ready(&seen.get("volumeclaims", "default", "two"))).await;
    // What its plugin gave it at first may be what it has deleted since.
    assert_eq!(bench.ledger.count("again"), 1);
    let said = |seen: &Seen| volume(seen, &second)["status"]["handleChecked"] == "lun-7";
    bench.until("it is said", said).await;
    assert!(condition(&volume(&bench.seen, &second), "HandleShared").is_null());
    bench.delete("volumeclaims", "default", "two").await;
    bench.until("it is gone", |seen| seen.all("volumes").is_empty()).await;
    assert_eq!(bench.ledger.count("delete"), 2);
    bench.end().await;
}

/// Controllers that see no Volumes for a while: nothing is deleted before they have, nor used that may be.
#[tokio::test(start_paused = true)]
async fn what_is_registered_in_the_moment_of_a_deletion_is_used_by_nobody_before_that_is_known() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let made = made(&bench, "data").await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "data"))).await;
    let handle = volume(&bench.seen, &made)["status"]["handle"].as_str().unwrap().to_owned();
    let told = |seen: &Seen, name: &str| condition(&volume(seen, name), "HandleShared")["status"] == "True";
    bench.delay("volumes", std::time::Duration::from_secs(5));
    registered(&bench, "again", &handle).await;
    // Looked at with each change.
    let refused = |seen: &Seen| {
        let refused = why(&volume(seen, "again")) == "HandleShared";
        assert!(!refused || told(seen, &made), "the other one knows of it first");
        refused
    };
    bench.until("who is refused is told", refused).await;
    bench.delete("volumeclaims", "default", "data").await;
    bench.quiet().await;
    assert_eq!(bench.ledger.count("delete"), 0);
    bench.delete("volumeclaims", "default", "again").await;
    bench.delete("volumes", "", "again").await;
    bench.until("gone", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

/// From then on nothing is deleted under who waits: that is so, however long the other one's word is on its way.
#[tokio::test(start_paused = true)]
async fn who_is_refused_is_told_once_the_other_one_knows() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let made = made(&bench, "data").await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "data"))).await;
    let handle = volume(&bench.seen, &made)["status"]["handle"].as_str().unwrap().to_owned();
    let path = format!("/volumes/{made}/status");
    let let_go = bench.hold(&path);
    registered(&bench, "again", &handle).await;
    pass(10).await;
    let asked = bench.writes().into_iter().filter(|w| w.path.ends_with(&path) && w.code == 0).count();
    assert_eq!(asked, 1, "it is on its way");
    assert_ne!(why(&volume(&bench.seen, "again")), "HandleShared");
    let_go.cancel();
    bench.until("who waits is told", |seen| why(&volume(seen, "again")) == "HandleShared").await;
    assert_eq!(condition(&volume(&bench.seen, &made), "HandleShared")["status"], "True");
    for name in ["again", "data"] {
        bench.delete("volumeclaims", "default", name).await;
    }
    bench.delete("volumes", "", "again").await;
    bench.until("gone", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

/// A volume that is being deleted at its backend, and is kept by now: whose deletion is under way there.
async fn kept_late(behaviour: Behaviour) -> (Bench, String) {
    let bench = Bench::with(&["a"], Behaviour { deletes: false, ..behaviour }).await;
    disk(&bench).await;
    let name = made(&bench, "data").await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "data"))).await;
    bench.delete("volumeclaims", "default", "data").await;
    bench.until("it goes", |seen| why(&volume(seen, &name)) == "Releasing").await;
    bench.patch("volumes", "", &name, json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    pass(20).await;
    let left = volume(&bench.seen, &name);
    assert_eq!(left["metadata"]["annotations"]["wharfline.dev/kept-late"], "true", "{left}");
    assert_eq!(left["status"]["askedToRelease"], 1, "its host may be at it: {left}");
    (bench, name)
}

fn told(seen: &Seen, reason: &str) -> usize {
    seen.all("events").iter().filter(|event| event["reason"] == reason).count()
}

/// What was begun at the backend goes on there, whatever is wanted since: nobody says that the data stays before its host has said
/// how that ended.
#[tokio::test(start_paused = true)]
async fn what_is_kept_while_it_is_being_deleted_waits_for_the_word_of_its_host() {
    for (exists, reason) in [("Up", "Kept"), ("Unknown", "KeptInDoubt"), ("Down", "Deleted")] {
        let (bench, name) = kept_late(disks()).await;
        bench.patch("volumes", "", &name, json!({ "status": { "exists": exists } })).await;
        bench.quiet().await;
        assert!(!volume(&bench.seen, &name).is_null() || exists == "Down", "{exists}");
        bench.behave("a", |b| b.lets_go = true);
        bench.until("it goes", |seen| volume(seen, &name).is_null()).await;
        bench.until("it is told", |seen| told(seen, reason) == 1).await;
        assert_eq!(bench.ledger.count("delete"), 0);
        bench.end().await;
    }
}

/// Nor is it used by who registers it meanwhile: it may be gone in the next moment.
#[tokio::test(start_paused = true)]
async fn what_is_kept_while_it_is_being_deleted_is_used_by_nobody_else_before_its_host_has_let_go() {
    let (bench, name) = kept_late(disks()).await;
    let handle = volume(&bench.seen, &name)["status"]["handle"].as_str().unwrap().to_owned();
    registered(&bench, "again", &handle).await;
    bench.make("allocations", user("app", "again", "a")).await;
    bench.until("it waits", |seen| why(&volume(seen, "again")) == "HandleShared").await;
    bench.quiet().await;
    assert_eq!(why(&volume(&bench.seen, &name)), "Keeping");
    assert!(bench.seen.all("volumeattachments").is_empty());
    bench.behave("a", |b| b.lets_go = true);
    bench.until("it goes", |seen| volume(seen, &name).is_null()).await;
    bench.until("it is used", |seen| phase(seen, "app") == "Running").await;
    bench.delete("allocations", "default", "app").await;
    bench.quiet().await;
    bench.end().await;
}

/// The word of a host that is lost is not waited for longer than its calls take; nor is one asked that never had anything to delete.
#[tokio::test(start_paused = true)]
async fn what_is_kept_while_it_is_being_deleted_goes_in_doubt_when_its_host_is_lost() {
    let (bench, name) = kept_late(disks()).await;
    bench.behave("a", |b| b.alive = false);
    pass(60).await;
    assert!(!volume(&bench.seen, &name).is_null(), "its calls may be under way");
    bench.until("it goes", |seen| volume(seen, &name).is_null()).await;
    bench.until("it is told", |seen| told(seen, "KeptInDoubt") == 1).await;
    bench.end().await;

    let bench = Bench::with(&["a"], Behaviour { deletes: false, ..disks() }).await;
    disk(&bench).await;
    let name = made(&bench, "data").await;
    bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "data"))).await;
    bench.patch("volumes", "", &name, json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    bench.delete("volumeclaims", "default", "data").await;
    bench.delete("volumes", "", &name).await;
    bench.until("it goes", |seen| volume(seen, &name).is_null()).await;
    assert_eq!(told(&bench.seen, "Kept"), 1);
    bench.end().await;
}

/// It is wanted after all that it is deleted: its host goes on.
#[tokio::test(start_paused = true)]
async fn what_is_to_be_deleted_after_all_is_deleted() {
    let (bench, name) = kept_late(disks()).await;
    bench.patch("volumes", "", &name, json!({ "spec": { "reclaimPolicy": "Delete" } })).await;
    bench.behave("a", |b| b.deletes = true);
    bench.until("it is gone", |seen| volume(seen, &name).is_null()).await;
    assert_eq!(bench.ledger.count("delete"), 1);
    bench.end().await;
}
