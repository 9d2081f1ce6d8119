//! Who gets a volume, when, and what stays until its node has let go.
use serde_json::json;

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DISK};
use crate::manifests::{claim, class, disk, phase, plugin, ready, user, why};
use crate::quickstart::{nothing_left, quickstart, running};

fn disks() -> Behaviour {
    Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }
}

/// Each writer's writes, counted: one life of the quickstart, whose claim is deleted with its user or once that is gone. An older
/// daemon lets go only where it is asked to, and controllers that are heard on the wire alone let in once there is an attachment.
#[tokio::test(start_paused = true)]
async fn a_life_costs_these_writes_and_waiting_costs_none() {
    for (together, older) in [(true, false), (false, false), (true, true), (false, true)] {
        life(together, older, false).await;
    }
    life(true, false, true).await;
}

/// Nobody is granted or let go by what may have changed meanwhile.
fn guarded(all: &[crate::bench::Write], apart: bool) {
    let by: Vec<_> = all
        .iter()
        .filter_map(|w| w.goes_by.clone().map(|by| (w.method.clone(), by.plural, by.version)))
        .collect();
    let removed = ("PUT".to_owned(), "volumeattachments".to_owned(), None);
    if apart {
        assert_eq!(by, [removed]);
    } else {
        let holder = all.iter().position(|w| w.path.contains("/volumes/") && w.method == "PUT").unwrap();
        assert_eq!((by.len(), &by[1]), (2, &removed));
        let (method, plural, version) = &by[0];
        assert_eq!((method.as_str(), plural.as_str()), ("POST", "volumes"));
        let given = all[holder].body["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        let seen: u64 = version.as_ref().unwrap().parse().unwrap();
        assert!(seen > given, "the version that the holder made: {seen}, {given}");
    }
}

async fn life(together: bool, older: bool, apart: bool) {
    let mut bench = Bench::new(&["a"]).await;
    if apart {
        bench.apart().await;
    }
    bench.behave("a", |b| b.by_itself = !older);
    let objects = quickstart();
    bench.make("plugins", objects[0].2.clone()).await;
    bench.make("volumeclasses", objects[1].2.clone()).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "dir"))).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let before = bench.writes().len();
    bench.make("volumeclaims", objects[2].2.clone()).await;
    bench.until("it waits", |seen| why(&seen.only("volumeclaims")) == "WaitingForFirstConsumer").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.make("allocations", objects[3].2.clone()).await;
    bench.until("it runs", |seen| running(seen, "hello")).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let (user, claim) = (("allocations", "hello"), ("volumeclaims", "data"));
    for (plural, name) in if together { [claim, user] } else { [user, claim] } {
        bench.delete(plural, "default", name).await;
        if !together && plural == "allocations" {
            bench.until("it is gone", |seen| seen.get("allocations", "default", "hello").is_null()).await;
            assert_eq!(bench.quiet().await.len(), 0);
        }
    }
    bench.until("the volume is gone", |seen| seen.all("volumes").is_empty()).await;
    assert_eq!(bench.quiet().await.len(), 0);
    let short = |path: &str| {
        let parts: Vec<_> = path.split('/').collect();
        let status = if parts.last() == Some(&"status") { "/status" } else { "" };
        let kind = ["volumeclaims", "volumes", "volumeattachments", "allocations", "nodes", "plugins"];
        format!("{}{status}", kind.iter().find(|k| parts.contains(k)).unwrap_or(&"other"))
    };
    let writes: Vec<_> =
        bench.writes().split_off(before).iter().map(|w| format!("{} {}", w.method, short(&w.path))).collect();
    let count = |line: &str| writes.iter().filter(|w| *w == line).count();
    let expected = [
        ("PUT volumes/status", 2), // the holder, no holder and with that mostly its end; it is made with its host
        ("PUT allocations/status", 1), // its node
        ("POST volumes", 1),
        ("POST volumeattachments", 1), // with who is let in; their finalizers go with the last word of a node
        ("PATCH volumeattachments", usize::from(apart)),
        ("DELETE volumeattachments", usize::from(older)),
        ("DELETE volumes", usize::from(!together)),
        ("PATCH allocations", 1),
        ("PATCH volumeclaims", 1),
        ("PATCH volumeclaims/status", 2 + usize::from(!together)), // waiting, bound, not used any more
        ("PATCH plugins/status", 1),                               // whose volumes they are, with the first
    ];
    for (line, times) in expected {
        assert_eq!(count(line), times, "{line}: {writes:#?}");
    }
    guarded(&bench.writes().split_off(before), apart);
    let listed: usize = expected.iter().map(|(_, times)| times).sum();
    assert_eq!(writes.len(), listed, "{writes:#?}");
    bench.end().await;
}

/// Who leaves with the claim is mostly gone before anybody could read that it is in use.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_users_leave_with_it_is_told_to_be_in_use_only_if_that_lasts() {
    for lasts in [false, true] {
        let bench = Bench::with(&["a"], disks()).await;
        disk(&bench).await;
        bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
        bench.make("allocations", user("one", "c", "a")).await;
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        assert_eq!(bench.quiet().await.len(), 0);
        bench.behave("a", move |b| b.unpublishes = !lasts);
        let before = bench.writes().len();
        bench.delete("allocations", "default", "one").await;
        bench.delete("volumeclaims", "default", "c").await;
        if lasts {
            bench.until("it is told", |seen| why(&seen.only("volumeclaims")) == "InUse").await;
            bench.behave("a", |b| b.unpublishes = true);
        }
        bench
            .until("gone", |seen| seen.all("volumes").is_empty() && seen.all("volumeclaims").is_empty())
            .await;
        let told = |path: &str| path.contains("/volumeclaims/") && path.ends_with("/status");
        let writes = bench.writes().split_off(before);
        assert_eq!(writes.iter().filter(|w| told(&w.path)).count(), usize::from(lasts), "{lasts}");
        bench.end().await;
    }
}

/// What is over within a second is not written; what lasts is.
#[tokio::test(start_paused = true)]
async fn what_goes_on_by_itself_is_told_once_it_takes_long() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.behave("a", |b| b.creates = false);
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("being made", |seen| why(&seen.only("volumeclaims")) == "Provisioning").await;
    bench.until("it waits", |seen| phase(seen, "one") == "Pending").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.behave("a", |b| b.creates = true);
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.behave("a", |b| b.creates = false);
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "c").await;
    bench.until("going", |seen| seen.only("volumes")["status"]["phase"] == "Releasing").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.behave("a", |b| b.creates = true);
    bench.until("gone", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

/// The last user of a node may take long to end. What it has is closed for good once nobody has it any more, and not before:
/// who comes meanwhile, and may be beside it, need not wait for it.
#[tokio::test(start_paused = true)]
async fn who_comes_while_the_last_one_takes_long_to_end_does_not_wait_for_it() {
    let mut shared = disks();
    shared.capabilities.extend(["controller/SINGLE_NODE_MULTI_WRITER", "node/SINGLE_NODE_MULTI_WRITER"]);
    let bench = Bench::with(&["a"], shared).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeMultiWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let attachment = bench.seen.only("volumeattachments")["metadata"]["uid"].clone();
    bench.behave("a", |b| b.unpublishes = false);
    bench.delete("allocations", "default", "one").await;
    bench.until("it ends", |seen| phase(seen, "one") == "Stopping").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.make("allocations", user("two", "c", "a")).await;
    bench.until("the next one runs", |seen| phase(seen, "two") == "Running").await;
    assert_eq!(phase(&bench.seen, "one"), "Stopping");
    bench.behave("a", |b| b.unpublishes = true);
    bench.until("it is gone", |seen| seen.get("allocations", "default", "one").is_null()).await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!(phase(&bench.seen, "two"), "Running");
    assert_eq!(bench.seen.only("volumeattachments")["metadata"]["uid"], attachment, "the same all the time");
    // A node that is gone says nothing more: what it has is closed at once, so that it can be fenced.
    bench.behave("a", |b| b.unpublishes = false);
    bench.delete("allocations", "default", "two").await;
    bench.until("it ends", |seen| phase(seen, "two") == "Stopping").await;
    bench.behave("a", |b| b.alive = false);
    let closed = |seen: &crate::bench::Seen| {
        !seen.only("volumeattachments")["metadata"]["deletionTimestamp"].is_null()
    };
    bench.until("closed", closed).await;
    bench.end().await;
}

/// Users of one node's volume that may run side by side are not spread over the nodes, where the second would wait.
#[tokio::test(start_paused = true)]
async fn those_who_share_a_volume_on_one_node_meet_there() {
    let mut shared = disks();
    shared.capabilities.extend(["controller/SINGLE_NODE_MULTI_WRITER", "node/SINGLE_NODE_MULTI_WRITER"]);
    let bench = Bench::with(&["a", "b", "c"], shared).await;
    disk(&bench).await;
    for round in 0..4 {
        let name = format!("c{round}");
        let users: Vec<_> = (0..3).map(|n| format!("user-{round}-{n}")).collect();
        let who = users.clone();
        bench.make("volumeclaims", claim(&name, "disk", "SingleNodeMultiWriter")).await;
        for user in &users {
            bench.make("allocations", crate::manifests::user(user, &name, "")).await;
        }
        let all_run = move |seen: &crate::bench::Seen| who.iter().all(|user| phase(seen, user) == "Running");
        bench.until("all run", all_run).await;
        let node =
            |user: &String| bench.seen.get("allocations", "default", user)["status"]["nodeName"].clone();
        assert!(users.iter().all(|user| node(user) == node(&users[0])), "{users:?}");
    }
    bench.end().await;
}

/// Scenarios A43, A47.
/// Obligation CO-CTRL-33.
#[tokio::test(start_paused = true)]
async fn a_single_writer_is_used_by_one_after_the_other() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("one runs", |seen| phase(seen, "one") == "Running").await;
    bench.make("allocations", user("two", "c", "b")).await;
    bench.until("two is bound", |seen| phase(seen, "two") == "WaitingVolumes").await;
    bench
        .until("a person can read why", |seen| {
            seen.all("events").iter().any(|e| e["reason"] == "HeldElsewhere")
        })
        .await;
    let two = bench.seen.get("allocations", "default", "two");
    let ready =
        two["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    let said = ready["message"].as_str().unwrap();
    assert!(ready["reason"] == "HeldElsewhere" && said.contains("\"default/one\" on node \"a\""), "{ready}");
    bench.quiet().await;
    assert_eq!(phase(&bench.seen, "two"), "WaitingVolumes");
    bench.delete("allocations", "default", "one").await;
    bench.until("two runs", |seen| phase(seen, "two") == "Running").await;
    let volume = bench.seen.only("volumes");
    let name = volume["metadata"]["name"].as_str().unwrap();
    let uid = |name: &str| bench.seen.get("allocations", "default", name)["metadata"]["uid"].clone();
    let calls = bench.ledger.calls();
    assert_eq!(calls.len(), 7, "{calls:?}");
    assert_eq!(calls[4], format!("detach {name} a"));
    assert_eq!(calls[6], format!("publish {name} b {}", uid("two").as_str().unwrap()));
    bench.end().await;
}

/// Scenario B76.
/// Obligation CO-NODE-48.
#[tokio::test(start_paused = true)]
async fn whoever_comes_second_to_a_single_writer_waits_on_the_same_node_too() {
    let mut behaviour = disks();
    behaviour.capabilities.extend(["controller/SINGLE_NODE_MULTI_WRITER", "node/SINGLE_NODE_MULTI_WRITER"]);
    for (behaviour, mode) in [(disks(), "SingleNodeWriter"), (behaviour, "SingleNodeSingleWriter")] {
        let bench = Bench::with(&["a", "b"], behaviour).await;
        disk(&bench).await;
        bench.make("volumeclaims", claim("c", "disk", mode)).await;
        bench.make("allocations", user("one", "c", "a")).await;
        bench.until("one runs", |seen| phase(seen, "one") == "Running").await;
        for (name, node) in [("two", "a"), ("three", "b")] {
            bench.make("allocations", user(name, "c", node)).await;
            bench.until("it waits", |seen| phase(seen, name) == "WaitingVolumes").await;
        }
        bench.quiet().await;
        for name in ["two", "three"] {
            assert_eq!(phase(&bench.seen, name), "WaitingVolumes", "{mode} {name}");
        }
        assert_eq!(bench.ledger.count("publish"), 1, "{mode}");
        bench.end().await;
    }
}

/// Obligation CO-NODE-01: what the driver says on the node decides.
#[tokio::test(start_paused = true)]
async fn a_volume_is_staged_and_attached_where_its_driver_says_so() {
    for (capabilities, attach, stage) in [
        (DISK.to_vec(), true, true),
        (DISK.iter().copied().filter(|can| !can.starts_with("node/")).collect(), true, false),
        (DISK.iter().copied().filter(|can| !can.contains("PUBLISH")).collect(), false, true),
        (DISK[..2].to_vec(), false, false),
    ] {
        let bench = Bench::with(&["a"], Behaviour { capabilities, ..Behaviour::default() }).await;
        disk(&bench).await;
        bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
        bench.make("allocations", user("one", "c", "a")).await;
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        let spec = bench.seen.only("volumeattachments")["spec"].clone();
        assert_eq!((&spec["attachRequired"], &spec["stageRequired"]), (&json!(attach), &json!(stage)));
        bench.end().await;
    }
}

/// Obligation CO-NODE-14.
#[tokio::test(start_paused = true)]
async fn what_is_attached_keeps_the_id_that_its_node_had_then() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    let ids = |seen: &crate::bench::Seen| {
        let of = |a: &serde_json::Value| {
            let word = |at: &serde_json::Value| at.as_str().unwrap_or_default().to_owned();
            (word(&a["spec"]["claim"]["name"]), word(&a["spec"]["nodeId"]))
        };
        seen.all("volumeattachments").iter().map(of).collect::<std::collections::BTreeSet<_>>()
    };
    for (name, id) in [("first", ""), ("second", "another")] {
        bench.behave("a", |b| b.node_id = id.to_owned());
        bench
            .until("told", |seen| seen.only("plugininstances")["status"]["nodeId"] != "id-a" || id.is_empty())
            .await;
        bench.quiet().await;
        bench.make("volumeclaims", claim(name, "disk", "SingleNodeWriter")).await;
        bench.make("allocations", user(name, name, "a")).await;
        bench.until("it runs", |seen| phase(seen, name) == "Running").await;
    }
    let both = [("first", "id-a"), ("second", "another")].map(|(of, id)| (of.to_owned(), id.to_owned()));
    assert_eq!(ids(&bench.seen), both.clone().into());
    bench.quiet().await;
    assert_eq!(ids(&bench.seen), both.into(), "nobody rewrites it");
    bench.end().await;
}

/// Scenarios A56, B48.
/// Obligation CO-CTRL-45.
#[tokio::test(start_paused = true)]
async fn nothing_is_detached_before_the_nodes_word() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("one runs", |seen| phase(seen, "one") == "Running").await;
    bench.behave("a", |b| b.releases = false);
    bench.delete("allocations", "default", "one").await;
    bench.make("allocations", user("two", "c", "b")).await;
    let closed = |seen: &crate::bench::Seen| {
        !seen.only("volumeattachments")["metadata"]["deletionTimestamp"].is_null()
    };
    bench.until("it is closed", closed).await;
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs no writes");
    assert_eq!(bench.ledger.count("detach"), 0);
    assert_eq!(bench.seen.only("volumes")["status"]["holders"][0]["nodeName"], "a");
    bench.behave("a", |b| {
        b.releases = true;
        b.detaches = false;
    });
    bench.behave("b", |b| b.detaches = false);
    bench.quiet().await;
    assert!(closed(&bench.seen), "released, but not detached");
    assert_eq!(phase(&bench.seen, "two"), "WaitingVolumes");
    bench.behave("a", |b| b.detaches = true);
    bench.behave("b", |b| b.detaches = true);
    bench.until("two runs", |seen| phase(seen, "two") == "Running").await;
    bench.until("one is gone", |seen| seen.get("allocations", "default", "one").is_null()).await;
    bench.end().await;
}

/// Without anything to detach, the node's word alone frees the volume.
#[tokio::test(start_paused = true)]
async fn nothing_is_granted_before_the_nodes_word_where_nothing_is_attached() {
    let local = Behaviour {
        capabilities: vec![
            "plugin/CONTROLLER_SERVICE",
            "controller/CREATE_DELETE_VOLUME",
            "node/STAGE_UNSTAGE_VOLUME",
        ],
        ..Behaviour::default()
    };
    let bench = Bench::with(&["a", "b"], local).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("one runs", |seen| phase(seen, "one") == "Running").await;
    assert_eq!(bench.seen.only("volumeattachments")["spec"]["attachRequired"], false);
    bench.behave("a", |b| b.releases = false);
    bench.delete("allocations", "default", "one").await;
    bench.make("allocations", user("two", "c", "b")).await;
    let closed = |seen: &crate::bench::Seen| {
        !seen.only("volumeattachments")["metadata"]["deletionTimestamp"].is_null()
    };
    bench.until("it is closed", closed).await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert!(closed(&bench.seen), "not released");
    assert_eq!(bench.seen.only("volumes")["status"]["holders"][0]["nodeName"], "a");
    assert_eq!(phase(&bench.seen, "two"), "WaitingVolumes");
    bench.behave("a", |b| b.releases = true);
    bench.until("two runs", |seen| phase(seen, "two") == "Running").await;
    bench.end().await;
}

/// Scenario A49.
#[tokio::test(start_paused = true)]
async fn users_on_one_node_share_and_the_last_one_out_closes() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "MultiNodeMultiWriter")).await;
    for (name, node) in [("one", "a"), ("two", "a"), ("three", "b")] {
        bench.make("allocations", user(name, "c", node)).await;
    }
    for name in ["one", "two", "three"] {
        bench.until("all run", |seen| phase(seen, name) == "Running").await;
    }
    assert_eq!((bench.seen.all("volumeattachments").len(), bench.ledger.count("attach")), (2, 2));
    bench.delete("allocations", "default", "one").await;
    bench.until("one is gone", |seen| seen.get("allocations", "default", "one").is_null()).await;
    bench.quiet().await;
    assert_eq!((bench.ledger.count("detach"), bench.seen.all("volumeattachments").len()), (0, 2));
    bench.delete("allocations", "default", "two").await;
    bench.until("two is gone", |seen| seen.get("allocations", "default", "two").is_null()).await;
    assert_eq!(bench.ledger.count("detach"), 1);
    assert_eq!(phase(&bench.seen, "three"), "Running");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_stopped_lets_go_and_starts_again() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "c", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.patch("allocations", "default", "one", json!({ "spec": { "stop": true } })).await;
    bench.until("nothing is attached", |seen| seen.all("volumeattachments").is_empty()).await;
    bench
        .until("nobody holds it", |seen| {
            seen.only("volumes")["status"]["holders"].as_array().is_none_or(Vec::is_empty)
        })
        .await;
    assert_eq!(phase(&bench.seen, "one"), "Stopped");
    bench.patch("allocations", "default", "one", json!({ "spec": { "stop": false } })).await;
    bench.until("it runs again", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}

/// Scenarios A41, B12, B17.
#[tokio::test(start_paused = true)]
async fn every_missing_thing_is_named_and_waited_for() {
    let bench = Bench::with(&["a"], disks()).await;
    bench.make("allocations", user("one", "c", "")).await;
    let allocation = |seen: &crate::bench::Seen| seen.get("allocations", "default", "one");
    let claims = |seen: &crate::bench::Seen| seen.only("volumeclaims");
    bench.until("no claim", |seen| why(&allocation(seen)) == "NotFound").await;
    assert_eq!(condition(&allocation(&bench.seen), "Placed")["reason"], "NotFound");
    assert_eq!(phase(&bench.seen, "one"), "Pending");
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("no class", |seen| why(&claims(seen)) == "NotFound").await;
    bench.until("its volume", |seen| why(&allocation(seen)) == "VolumeNotReady").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.make("volumeclasses", class("disk", "disk")).await;
    bench
        .until("no plugin", |seen| {
            condition(&claims(seen), "Ready")["message"]
                .as_str()
                .is_some_and(|m| m.contains("Plugin \"disk\""))
        })
        .await;
    bench.behave("a", |b| b.healthy = false);
    bench.make("plugins", plugin("disk", "Cluster")).await;
    bench.until("not healthy", |seen| why(&claims(seen)) == "PluginNotReady").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.behave("a", |b| {
        b.healthy = true;
        b.capabilities = vec!["plugin/CONTROLLER_SERVICE"];
    });
    bench.until("cannot create", |seen| why(&claims(seen)) == "PluginLacksCapability").await;
    bench.quiet().await;
    assert!(bench.seen.all("volumes").is_empty() && bench.ledger.calls().is_empty(), "it was asked to");
    bench.behave("a", |b| b.capabilities = DISK.to_vec());
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.end().await;
}

/// Scenarios A6, B1, B2, B54.
/// Obligation CO-CTRL-34.
#[tokio::test(start_paused = true)]
async fn a_class_may_be_the_default_one_and_a_limit_is_kept() {
    let bench = Bench::with(&["a"], Behaviour { max_volumes: 1, ..disks() }).await;
    bench.make("plugins", plugin("disk", "Cluster")).await;
    bench
        .make(
            "volumeclasses",
            json!({ "metadata": { "name": "usual" }, "spec": { "plugin": "disk", "default": true,
        "fsType": "ext4", "mountOptions": ["noatime"], "parameters": { "k": "v" }, "reclaimPolicy": "Retain" } }),
        )
        .await;
    for name in ["c1", "c2"] {
        bench.make("volumeclaims", claim(name, "", "SingleNodeWriter")).await;
        bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", name))).await;
    }
    let spec = bench.seen.all("volumes")[0]["spec"].clone();
    assert_eq!((&spec["fsType"], &spec["reclaimPolicy"]), (&json!("ext4"), &json!("Retain")));
    assert_eq!(spec["mountOptions"], json!(["noatime"]));
    assert_eq!(spec["source"]["create"]["parameters"], json!({ "k": "v" }));
    assert_eq!(spec["source"]["create"]["requiredBytes"], 1 << 30);
    bench.make("allocations", user("one", "c1", "")).await;
    bench.until("one runs", |seen| phase(seen, "one") == "Running").await;
    let capability = bench.seen.only("volumeattachments")["spec"]["capability"].clone();
    assert_eq!((&capability["fsType"], &capability["mountOptions"]), (&json!("ext4"), &json!(["noatime"])));
    bench.make("allocations", user("two", "c2", "")).await;
    let two = |seen: &crate::bench::Seen| seen.get("allocations", "default", "two");
    bench.until("the node is full", |seen| why(&two(seen)) == "NoNodeFits").await;
    assert!(condition(&two(&bench.seen), "Placed")["message"].as_str().unwrap().contains("limit of 1"));
    bench.delete("allocations", "default", "one").await;
    bench.until("two runs", |seen| phase(seen, "two") == "Running").await;
    bench.delete("allocations", "default", "two").await;
    bench.delete("volumeclaims", "default", "c2").await;
    bench
        .until("it is kept", |seen| seen.all("volumes").iter().any(|v| v["status"]["phase"] == "Released"))
        .await;
    assert_eq!(bench.ledger.count("delete"), 0);
    bench.end().await;
}

/// Scenarios A32, B26.
/// What was kept goes once its policy says so, and a claim that was torn out by force takes its volume along.
/// Obligation CO-CTRL-12.
#[tokio::test(start_paused = true)]
async fn what_is_not_to_be_kept_goes_with_or_after_its_claim() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    for name in ["kept", "torn"] {
        bench.make("volumeclaims", claim(name, "disk", "SingleNodeWriter")).await;
        bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", name))).await;
    }
    bench.make("allocations", user("one", "torn", "a")).await;
    bench.until("one runs", |seen| phase(seen, "one") == "Running").await;
    let of = |name: &str| {
        let mut all = bench.seen.all("volumes").into_iter();
        let volume = all.find(|v| v["spec"]["claimRef"]["name"] == name).unwrap();
        volume["metadata"]["name"].as_str().unwrap().to_owned()
    };
    let (kept, torn) = (of("kept"), of("torn"));
    bench.patch("volumes", "", &kept, json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    bench.delete("volumeclaims", "default", "kept").await;
    bench.until("kept", |seen| seen.get("volumes", "", &kept)["status"]["phase"] == "Released").await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!(bench.ledger.count("delete"), 0);
    bench.patch("volumes", "", &kept, json!({ "spec": { "reclaimPolicy": "Delete" } })).await;
    bench.until("gone after its claim", |seen| seen.get("volumes", "", &kept).is_null()).await;
    assert_eq!(bench.ledger.count("delete"), 1);

    bench.delete("volumeclaims", "default", "torn").await;
    bench.patch("volumeclaims", "default", "torn", json!({ "metadata": { "finalizers": null } })).await;
    bench
        .until("on its way", |seen| {
            !seen.get("volumes", "", &torn)["metadata"]["deletionTimestamp"].is_null()
        })
        .await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!((phase(&bench.seen, "one").as_str(), bench.ledger.count("delete")), ("Running", 1));
    bench.delete("allocations", "default", "one").await;
    bench.until("gone with its last user", |seen| seen.get("volumes", "", &torn).is_null()).await;
    assert_eq!(bench.ledger.count("delete"), 2);
    bench.end().await;
}

/// Scenarios A32, A41, B21, B22, B31.
/// The nas example: a volume by handle, a plugin that makes no controller calls.
#[tokio::test(start_paused = true)]
async fn a_volume_that_existed_is_bound_by_name_and_never_deleted() {
    let nfs = Behaviour { capabilities: vec!["node/GET_VOLUME_STATS"], ..Behaviour::default() };
    let bench = Bench::with(&["a", "b"], nfs).await;
    let volume = json!({ "metadata": { "name": "archive" }, "spec": { "plugin": "nas",
        "source": { "existing": { "handle": "share-17", "context": { "server": "10.0.0.9" },
            "topology": [], "nodeName": "" } },
        "accessModes": ["MultiNodeMultiWriter"], "reclaimPolicy": "Retain", "mountOptions": [],
        "claimRef": { "name": "archive", "namespace": "default" } } });
    let of_it = json!({ "metadata": { "name": "archive" }, "spec": { "volumeName": "archive",
        "accessModes": ["MultiNodeMultiWriter"], "resources": { "requests": { "storage": "1Gi" } } } });
    bench.make("volumeclaims", of_it.clone()).await;
    bench.until("no volume", |seen| why(&seen.only("volumeclaims")) == "NotFound").await;
    bench.make("volumes", volume).await;
    bench.make("allocations", user("user", "archive", "a")).await;
    bench.until("no plugin", |seen| why(&seen.only("volumes")) == "NotFound").await;
    bench.make("plugins", plugin("nas", "Cluster")).await;
    bench.ledger_exists("archive");
    bench.until("it runs", |seen| phase(seen, "user") == "Running").await;
    let attachment = bench.seen.only("volumeattachments");
    assert_eq!(attachment["spec"]["handle"], "share-17");
    assert_eq!(attachment["spec"]["volumeContext"], json!({ "server": "10.0.0.9" }));
    assert_eq!(attachment["spec"]["attachRequired"], false);
    assert!(bench.seen.only("volumes")["status"]["controller"].is_null(), "nobody to be host of");
    bench
        .make(
            "volumeclaims",
            json!({ "metadata": { "name": "other" }, "spec": { "volumeName": "archive",
        "accessModes": ["MultiNodeMultiWriter"] } }),
        )
        .await;
    let other = |seen: &crate::bench::Seen| why(&seen.get("volumeclaims", "default", "other"));
    bench.until("it belongs to another", |seen| other(seen) == "BoundElsewhere").await;
    bench.delete("volumeclaims", "default", "archive").await;
    bench.until("it is in use", |seen| why(&seen.get("volumeclaims", "default", "archive")) == "InUse").await;
    bench.delete("allocations", "default", "user").await;
    bench.until("the claim is gone", |seen| seen.get("volumeclaims", "default", "archive").is_null()).await;
    bench.until("kept", |seen| seen.only("volumes")["status"]["phase"] == "Released").await;
    bench.make("volumeclaims", of_it).await;
    bench.until("bound again", |seen| ready(&seen.get("volumeclaims", "default", "archive"))).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_bound_claim_leaves_a_node_that_lost_its_plugin_before_the_volume_was_begun() {
    let bench = Bench::new(&["a", "b"]).await;
    let objects = quickstart();
    bench.make("plugins", objects[0].2.clone()).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "dir"))).await;
    bench.make("volumeclaims", objects[2].2.clone()).await;
    // Selected by hand for a node whose plugin is away: as after a crash between the selection and the volume.
    bench.behave("a", |b| b.healthy = false);
    bench.until("a is not served", |seen| !ready(&seen.get("plugins", "", "dir"))).await;
    bench.patch("volumeclaims", "default", "data", json!({ "status": { "selectedNode": "a" } })).await;
    bench.make("volumeclasses", objects[1].2.clone()).await;
    bench.until("it waits", |seen| why(&seen.only("volumeclaims")) == "PluginNotReady").await;
    bench.make("allocations", objects[3].2.clone()).await;
    bench.until("it runs", |seen| running(seen, "hello")).await;
    assert_eq!(bench.seen.get("allocations", "default", "hello")["status"]["nodeName"], "b");
    assert_eq!(bench.ledger.count("create"), 1);
    let made = bench.seen.only("volumes")["spec"]["source"]["create"]["selectedNode"].clone();
    let said = bench.seen.only("volumeclaims")["status"]["selectedNode"].clone();
    assert_eq!((made, said), (json!("b"), json!("b")), "of the two that were chosen the last one counts");
    bench.end().await;
}

/// A volume that would stay when its claim is gone is made by the claim's own controller: that knows whether it is.
#[tokio::test(start_paused = true)]
async fn a_late_bound_claim_that_keeps_its_volume_says_its_node_first() {
    for (policy, first) in [("Delete", 0), ("Retain", 1)] {
        let bench = Bench::new(&["a"]).await;
        let objects = quickstart();
        bench.make("plugins", objects[0].2.clone()).await;
        let mut class = objects[1].2.clone();
        class["spec"]["reclaimPolicy"] = json!(policy);
        bench.make("volumeclasses", class).await;
        bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "dir"))).await;
        bench.make("volumeclaims", objects[2].2.clone()).await;
        bench.make("allocations", objects[3].2.clone()).await;
        bench.until("it runs", |seen| running(seen, "hello")).await;
        let chosen = |w: &&crate::bench::Write| w.method == "PUT" && w.path.contains("/volumeclaims/");
        assert_eq!(bench.writes().iter().filter(chosen).count(), first, "{policy}");
        assert_eq!(bench.seen.only("volumeclaims")["status"]["selectedNode"], "a");
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_volume_was_deleted_is_lost() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
    let name = bench.seen.only("volumes")["metadata"]["name"].as_str().unwrap().to_owned();
    bench.delete("volumes", "", &name).await;
    bench.until("lost", |seen| seen.only("volumeclaims")["status"]["phase"] == "Lost").await;
    bench.quiet().await;
    assert_eq!(bench.ledger.count("create"), 1, "never made anew");
    bench.delete("volumeclaims", "default", "c").await;
    bench.delete("plugins", "", "disk").await;
    bench.delete("volumeclasses", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    bench.end().await;
}

/// Scenario B26.
/// Who waits for a claim that is deleted neither keeps it nor gets it, and has the next one of its name, wherever that is.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_claim_that_is_deleted_waits_for_the_next_one() {
    let bench = Bench::with(&["a", "b"], disks()).await;
    disk(&bench).await;
    for policy in ["Delete", "Retain"] {
        let name = policy.to_lowercase();
        let late = json!({ "metadata": { "name": name }, "spec": { "plugin": "disk", "reclaimPolicy": policy,
            "volumeBindingMode": "WaitForFirstConsumer" } });
        bench.make("volumeclasses", late).await;
        bench.make("volumeclaims", claim("c", &name, "SingleNodeWriter")).await;
        bench.make("allocations", user("has", "c", "a")).await;
        bench.until("it runs", |seen| phase(seen, "has") == "Running").await;
        bench.make("allocations", user("waits", "c", "")).await;
        let waits = |seen: &Seen| seen.get("allocations", "default", "waits");
        bench.until("it has a node", |seen| phase(seen, "waits") == "WaitingVolumes").await;
        bench.delete("volumeclaims", "default", "c").await;
        bench.until("it is told", |seen| why(&waits(seen)) == "BeingDeleted").await;
        assert_eq!(phase(&bench.seen, "waits"), "Pending");
        bench.quiet().await;
        assert_eq!(phase(&bench.seen, "has"), "Running");
        bench.delete("allocations", "default", "has").await;
        bench.until("the claim is gone", |seen| seen.all("volumeclaims").is_empty()).await;
        // Nobody may have been granted a volume that stays.
        let released = |w: &crate::bench::Write| {
            w.path.contains("/volumeclaims/") && w.method == "PATCH" && w.goes_by.is_some()
        };
        assert_eq!(bench.writes().iter().any(released), policy == "Retain");
        bench.until("that is told, too", |seen| why(&waits(seen)) == "NotFound").await;
        let left = usize::from(policy == "Retain");
        bench.until("the volume goes or stays", |seen| seen.all("volumes").len() == left).await;
        bench.quiet().await;
        bench.make("volumeclaims", claim("c", &name, "SingleNodeWriter")).await;
        bench.until("it runs", |seen| phase(seen, "waits") == "Running").await;
        bench.delete("allocations", "default", "waits").await;
        bench.delete("volumeclaims", "default", "c").await;
        bench.until("the claim is gone", |seen| seen.all("volumeclaims").is_empty()).await;
        bench.quiet().await;
    }
    bench.end().await;
}

/// What was stopped is told to start again when its claim has been made anew meanwhile, and its volume is or will be somewhere else.
#[tokio::test(start_paused = true)]
async fn what_starts_again_goes_where_its_new_claim_is() {
    let bench = Bench::new(&["a", "b"]).await;
    bench.make("plugins", plugin("dir", "Node")).await;
    bench.make("volumeclasses", class("now", "dir")).await;
    let late = json!({ "metadata": { "name": "late" },
        "spec": { "plugin": "dir", "volumeBindingMode": "WaitForFirstConsumer" } });
    bench.make("volumeclasses", late).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "dir"))).await;
    bench
        .until("both serve", |seen| seen.all("plugininstances").iter().filter(|i| ready(i)).count() == 2)
        .await;
    let node = |seen: &Seen| seen.get("allocations", "default", "one")["status"]["nodeName"].clone();
    for (class, first) in [("now", false), ("late", false), ("late", true)] {
        bench.make("volumeclaims", claim("c", class, "MultiNodeMultiWriter")).await;
        bench.make("allocations", user("one", "c", "")).await;
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        let before = node(&bench.seen);
        bench.patch("allocations", "default", "one", json!({ "spec": { "stop": true } })).await;
        bench.until("it is down", |seen| phase(seen, "one") == "Stopped").await;
        bench.delete("volumeclaims", "default", "c").await;
        bench
            .until("gone", |seen| seen.all("volumes").is_empty() && seen.all("volumeclaims").is_empty())
            .await;
        // It takes the place of the former volume.
        bench.make("volumeclaims", claim("other", "now", "SingleNodeWriter")).await;
        bench.until("bound", |seen| ready(&seen.get("volumeclaims", "default", "other"))).await;
        bench.make("volumeclaims", claim("c", class, "MultiNodeMultiWriter")).await;
        if first {
            let there = if before == "a" { "b" } else { "a" };
            bench.make("allocations", user("first", "c", there)).await;
            bench.until("it runs", |seen| phase(seen, "first") == "Running").await;
        }
        bench.quiet().await;
        bench.patch("allocations", "default", "one", json!({ "spec": { "stop": false } })).await;
        bench.until("it runs again", |seen| phase(seen, "one") == "Running").await;
        assert!(class == "late" && !first || node(&bench.seen) != before, "{class} {first} {before}");
        for name in ["one", "first"] {
            if name == "one" || first {
                bench.delete("allocations", "default", name).await;
            }
        }
        for name in ["c", "other"] {
            bench.delete("volumeclaims", "default", name).await;
        }
        bench
            .until("gone", |seen| seen.all("volumes").is_empty() && seen.all("volumeclaims").is_empty())
            .await;
    }
    bench.end().await;
}

/// Two claims name one volume, and one has it: the other goes at once, whoever uses the first one's.
#[tokio::test(start_paused = true)]
async fn a_claim_that_never_got_its_volume_is_not_kept_by_those_who_have_that() {
    let bench = Bench::with(&["a"], disks()).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("has", "disk", "SingleNodeWriter")).await;
    bench.make("allocations", user("one", "has", "a")).await;
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    let volume = bench.seen.only("volumes")["metadata"]["name"].clone();
    let second = json!({ "metadata": { "name": "second" }, "spec": { "volumeName": volume,
        "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "1Gi" } } } });
    bench.make("volumeclaims", second).await;
    let of = |seen: &Seen| seen.get("volumeclaims", "default", "second");
    bench.until("it is told", |seen| why(&of(seen)) == "BoundElsewhere").await;
    bench.delete("volumeclaims", "default", "second").await;
    bench.until("it is gone", |seen| of(seen).is_null()).await;
    assert_eq!(phase(&bench.seen, "one"), "Running");
    bench.end().await;
}
