//! Late-bound claims whose plugin has no room for them where their first user was going to be.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition, pass_millis};
use crate::fake::{Behaviour, DIR};
use crate::manifests::{claim, disk, phase, plugin, ready, user};
use crate::quickstart::nothing_left;

/// A plugin that makes volumes on each node for itself, or for all of them in their places, and a class that waits for users.
async fn late(nodes: &[&str], scope: &str) -> Bench {
    let bench = Bench::with(nodes, Behaviour { capabilities: DIR.to_vec(), ..Behaviour::default() }).await;
    bench.make("plugins", plugin("disk", scope)).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "disk"))).await;
    let class = json!({ "metadata": { "name": "late" },
        "spec": { "plugin": "disk", "volumeBindingMode": "WaitForFirstConsumer" } });
    bench.make("volumeclasses", class).await;
    bench.make("volumeclaims", claim("c", "late", "SingleNodeWriter")).await;
    bench
}

/// There is no room for what is asked for at these nodes, whoever is asked.
fn full(bench: &Bench, nodes: &[&str], at: &[&'static str]) {
    for node in nodes {
        bench.behave(node, |b| b.no_room = at.to_vec());
    }
}

/// The node that was chosen for claim `c` last, or that its volume was begun for.
fn selected(seen: &Seen) -> String {
    let claim = seen.get("volumeclaims", "default", "c");
    if let Some(chosen) = claim["status"]["selectedNode"].as_str() {
        return chosen.to_owned();
    }
    let mut volumes =
        seen.all("volumes").into_iter().filter(|v| v["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]);
    let begun = |v: Value| v["spec"]["source"]["create"]["selectedNode"].as_str().map(str::to_owned);
    volumes.find_map(begun).unwrap_or_default()
}

fn place_of(seen: &Seen, name: &str) -> String {
    let status = seen.get("allocations", "default", name)["status"].clone();
    status["nodeName"].as_str().unwrap_or_default().to_owned()
}

async fn end(bench: Bench, users: &[&str]) {
    for name in users {
        bench.delete("allocations", "default", name).await;
    }
    bench.delete("volumeclaims", "default", "c").await;
    bench.delete("volumeclasses", "", "late").await;
    bench.delete("plugins", "", "disk").await;
    bench.until("nothing is left", nothing_left).await;
    assert!(bench.ledger.is_empty(), "{:?}", bench.ledger.calls());
    bench.end().await;
}

/// Scenario B9.
/// Obligation CO-CTRL-16.
/// Both kinds of plugins: the volume is begun anew where there is room, its user goes there, and that is told.
#[tokio::test(start_paused = true)]
async fn a_volume_without_room_is_made_on_another_node_and_its_user_follows() {
    for scope in ["Node", "Cluster"] {
        let bench = late(&["a", "b", "c"], scope).await;
        full(&bench, &["a", "b", "c"], &["a", "b"]);
        bench.make("allocations", user("one", "c", "")).await;
        bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
        assert_eq!(
            (place_of(&bench.seen, "one").as_str(), selected(&bench.seen).as_str()),
            ("c", "c"),
            "{scope}"
        );
        assert_eq!(bench.seen.all("volumes").len(), 1, "{scope}");
        assert_eq!(bench.ledger.count("create"), 1, "{scope}: {:?}", bench.ledger.calls());
        let told: Vec<_> = bench.seen.all("events").into_iter().filter(|e| e["reason"] == "NoRoom").collect();
        let said = |of: &str| told.iter().any(|e| e.to_string().contains(of));
        assert!(told.len() == 2 && said("on node \\\"a\\\"") && said("it is made on \\\"c\\\""), "{told:?}");
        assert_eq!(bench.quiet().await.len(), 0);
        end(bench, &["one"]).await;
    }
}

/// Scenario B10.
/// It waits for no user, so nobody can go elsewhere with it: it waits where it was asked for, and says so.
#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_for_no_user_waits_for_room_and_is_bound_once_there_is_some() {
    let bench =
        Bench::with(&["a", "b"], Behaviour { capabilities: DIR.to_vec(), ..Behaviour::default() }).await;
    disk(&bench).await;
    full(&bench, &["a", "b"], &["a", "b"]);
    bench.make("volumeclaims", claim("c", "disk", "SingleNodeWriter")).await;
    let why = |seen: &Seen| condition(&seen.only("volumeclaims"), "Ready")["reason"].clone();
    bench.until("it has no room", |seen| why(seen) == "NoRoom").await;
    let volume = bench.seen.only("volumes")["metadata"]["uid"].clone();
    assert_eq!(bench.quiet().await.len(), 0);
    let claim = bench.seen.only("volumeclaims");
    assert_eq!((&claim["status"]["phase"], why(&bench.seen)), (&json!("Pending"), json!("NoRoom")));
    full(&bench, &["a", "b"], &[]);
    bench.until("bound", |seen| ready(&seen.only("volumeclaims"))).await;
    assert_eq!(bench.seen.only("volumes")["metadata"]["uid"], volume, "nothing was begun anew");
    assert_eq!(bench.ledger.count("create"), 1);
    bench.end().await;
}

/// A person wants it there: it waits for room there, and is not moved to and fro.
#[tokio::test(start_paused = true)]
async fn whose_user_is_pinned_waits_for_room_where_that_is() {
    let bench = late(&["a", "b"], "Node").await;
    full(&bench, &["a", "b"], &["a"]);
    bench.make("allocations", user("one", "c", "a")).await;
    let full_there =
        |seen: &Seen| seen.all("volumes").iter().any(|v| condition(v, "Ready")["reason"] == "NoRoom");
    bench.until("it has no room", full_there).await;
    let volume = bench.seen.only("volumes")["metadata"]["uid"].clone();
    assert_eq!(bench.quiet().await.len(), 0);
    let told = condition(&bench.seen.get("allocations", "default", "one"), "Ready")["message"].clone();
    assert!(told.as_str().is_some_and(|said| said.contains("as told")), "{told}");
    full(&bench, &["a", "b"], &[]);
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    assert_eq!(bench.seen.only("volumes")["metadata"]["uid"], volume, "nothing was begun anew");
    end(bench, &["one"]).await;
}

/// Nowhere is room: it waits where it was asked for last, and is tried elsewhere once that is long ago.
#[tokio::test(start_paused = true)]
async fn where_nobody_has_room_each_is_asked_again_after_a_while() {
    let bench = late(&["a", "b"], "Node").await;
    full(&bench, &["a", "b"], &["a", "b"]);
    bench.make("allocations", user("one", "c", "")).await;
    bench.until("both were tried", |seen| selected(seen) == "b").await;
    let there =
        |seen: &Seen| seen.all("volumes").iter().any(|v| v["spec"]["source"]["create"]["nodeName"] == "b");
    bench.until("it has no room there either", |seen| there(seen) && seen.all("volumes").len() == 1).await;
    full(&bench, &["a", "b"], &["b"]);
    pass_millis(5_000).await;
    let before = bench.writes().len();
    pass_millis(60_000).await;
    assert_eq!(bench.writes().len(), before, "nobody is asked again yet");
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    assert_eq!(place_of(&bench.seen, "one"), "a");
    end(bench, &["one"]).await;
}

/// A user with another volume that is on the full node already: both are not to be had anywhere else.
#[tokio::test(start_paused = true)]
async fn who_has_another_volume_there_already_is_not_moved_from_it() {
    let bench = late(&["a", "b"], "Node").await;
    bench.make("volumeclaims", claim("d", "late", "SingleNodeWriter")).await;
    bench.make("allocations", user("first", "d", "a")).await;
    bench.until("it runs", |seen| phase(seen, "first") == "Running").await;
    bench.delete("allocations", "default", "first").await;
    bench.until("it is gone", |seen| seen.get("allocations", "default", "first").is_null()).await;
    full(&bench, &["a", "b"], &["a"]);
    let both = json!({ "metadata": { "name": "one" }, "spec": { "volumes": [
        { "name": "v", "claimName": "c" }, { "name": "w", "claimName": "d" }] } });
    bench.make("allocations", both).await;
    bench.until("it is asked for", |seen| selected(seen) == "a").await;
    assert_eq!(bench.quiet().await.len(), 0);
    assert_eq!(selected(&bench.seen), "a");
    full(&bench, &["a", "b"], &[]);
    bench.until("it runs", |seen| phase(seen, "one") == "Running").await;
    bench.delete("allocations", "default", "one").await;
    bench.delete("volumeclaims", "default", "d").await;
    end(bench, &[]).await;
}
