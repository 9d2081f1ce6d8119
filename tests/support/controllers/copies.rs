//! Claims that begin as copies of claims: what is frozen, what they wait for, and what waits for them.
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};
use crate::fake::{Behaviour, DIR, DISK};
use crate::manifests::{claim, class, disk, plugin, user, why};

const CLONE: &str = "controller/CLONE_VOLUME";
/// Its host tells how large a volume is.
const SIZED: &str = "controller/EXPAND_VOLUME";

fn copying(of: &[&'static str]) -> Behaviour {
    Behaviour { capabilities: [of, &[CLONE, SIZED]].concat(), ..Behaviour::default() }
}

/// A claim `name` that is filled from another one; of the size of that one when it asks for none.
fn copy(name: &str, of: &str, size: Option<&str>) -> Value {
    let mut claim = claim(name, "disk", "SingleNodeWriter");
    claim["spec"]["dataSource"] = json!({ "claimName": of });
    claim["spec"]["resources"] = size.map_or(Value::Null, |size| json!({ "requests": { "storage": size } }));
    claim
}

fn told(seen: &Seen, name: &str) -> Value {
    condition(&seen.get("volumeclaims", "default", name), "Ready")
}

fn bound(seen: &Seen, name: &str) -> bool {
    seen.get("volumeclaims", "default", name)["status"]["phase"] == "Bound"
}

/// The Volume of a claim; null before there is one.
fn volume_of(seen: &Seen, claim: &str) -> Value {
    let all = seen.all("volumes");
    all.into_iter().find(|v| v["spec"]["claimRef"]["name"] == claim).unwrap_or_default()
}

fn content(seen: &Seen, claim: &str) -> Value {
    volume_of(seen, claim)["spec"]["source"]["create"]["content"].clone()
}

/// A bound claim `data`, and nothing is made from now on.
async fn halted(behaviour: Behaviour) -> Bench {
    let bench = Bench::with(&["a"], behaviour).await;
    disk(&bench).await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    bench.until("data is bound", |seen| bound(seen, "data")).await;
    bench.behave("a", |b| b.creates = false);
    bench
}

/// Part of obligation CO-CTRL-05.
#[tokio::test(start_paused = true)]
async fn a_copied_claim_stays_until_its_copy_is_made() {
    let bench = halted(copying(DISK)).await;
    let data = volume_of(&bench.seen, "data");
    bench.make("volumeclaims", copy("copy", "data", None)).await;
    bench
        .until("the copy has a host", |seen| volume_of(seen, "copy")["status"]["controller"].is_object())
        .await;
    let made = volume_of(&bench.seen, "copy");
    let frozen = json!({ "volume": data["metadata"]["name"], "uid": data["metadata"]["uid"],
        "handle": data["status"]["handle"] });
    assert_eq!(content(&bench.seen, "copy"), frozen);
    assert_eq!(made["spec"]["source"]["create"]["requiredBytes"], 1 << 30, "it is as large as its source");
    let entered = volume_of(&bench.seen, "data")["status"]["copies"].clone();
    assert_eq!(entered, json!([made["metadata"]["name"]]));
    bench.delete("volumeclaims", "default", "data").await;
    bench.until("who is copying is told", |seen| told(seen, "data")["reason"] == "InUse").await;
    let message = told(&bench.seen, "data")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("claim default/copy"), "{message}");
    assert_eq!(bench.quiet().await.len(), 0, "waiting costs nothing");
    bench.behave("a", |b| b.creates = true);
    bench.until("the copy is there", |seen| bound(seen, "copy")).await;
    bench.until("data is gone", |seen| seen.get("volumeclaims", "default", "data").is_null()).await;
    bench.until("one volume is left", |seen| !seen.only("volumes").is_null()).await;
    let (copy, data) = (&made["metadata"]["name"], &data["metadata"]["name"]);
    let calls = bench.ledger.calls();
    let tail = [format!("create {}", copy.as_str().unwrap()), format!("delete {}", data.as_str().unwrap())];
    assert_eq!(calls[calls.len() - 2..], tail);
    bench.end().await;
}

/// Obligation CO-CTRL-03.
#[tokio::test(start_paused = true)]
async fn what_a_copy_waits_for_is_told_and_it_goes_on_by_itself() {
    let behaviour = Behaviour { capabilities: [DISK, &[SIZED]].concat(), ..Behaviour::default() };
    let bench = Bench::with(&["a"], Behaviour { creates: false, ..behaviour }).await;
    disk(&bench).await;
    bench.make("volumeclaims", copy("copy", "data", Some("2Gi"))).await;
    bench.until("the plugin cannot", |seen| told(seen, "copy")["reason"] == "PluginLacksCapability").await;
    bench.behave("a", |b| b.capabilities.push(CLONE));
    bench.until("there is no data", |seen| told(seen, "copy")["reason"] == "NotFound").await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    bench.until("data is not ready", |seen| told(seen, "copy")["reason"] == "SourceNotReady").await;
    assert_eq!(bench.quiet().await.len(), 0);
    bench.behave("a", |b| b.creates = true);
    bench.until("it is made", |seen| bound(seen, "copy")).await;
    assert_eq!(volume_of(&bench.seen, "copy")["spec"]["source"]["create"]["requiredBytes"], 2_i64 << 30);
    bench
        .until("nothing is copied any more", |seen| volume_of(seen, "data")["status"]["copies"].is_null())
        .await;
    bench.make("volumeclaims", copy("small", "data", Some("512Mi"))).await;
    bench.until("it does not fit", |seen| told(seen, "small")["reason"] == "SourceMismatch").await;
    let message = told(&bench.seen, "small")["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("it has 1Gi; ask for no less"), "{message}");
    let mut block = copy("block", "data", None);
    block["spec"]["volumeMode"] = json!("Block");
    bench.make("volumeclaims", block).await;
    bench.until("it does not fit", |seen| told(seen, "block")["reason"] == "SourceMismatch").await;
    bench.delete("volumeclaims", "default", "data").await;
    bench.until("nothing holds it", |seen| seen.get("volumeclaims", "default", "data").is_null()).await;
    bench.until("there is none", |seen| told(seen, "small")["reason"] == "NotFound").await;
    assert!(bound(&bench.seen, "copy"), "a copy that is made needs its source no more");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_what_one_node_has_is_made_on_that_node() {
    let bench = Bench::with(&["a", "b"], copying(DIR)).await;
    bench.make("plugins", plugin("disk", "Node")).await;
    bench.make("volumeclasses", class("disk", "disk")).await;
    let mut late = class("late", "disk");
    late["spec"]["volumeBindingMode"] = json!("WaitForFirstConsumer");
    bench.make("volumeclasses", late).await;
    let all =
        |seen: &Seen| seen.all("plugininstances").iter().filter(|i| crate::manifests::ready(i)).count() == 2;
    bench.until("both are ready", all).await;
    bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
    bench.until("data is bound", |seen| bound(seen, "data")).await;
    let node =
        |seen: &Seen, claim: &str| volume_of(seen, claim)["spec"]["source"]["create"]["nodeName"].clone();
    let there = node(&bench.seen, "data");
    for name in ["one", "two", "three"] {
        bench.make("volumeclaims", copy(name, "data", None)).await;
        bench.until("it is bound", |seen| bound(seen, name)).await;
        assert_eq!(node(&bench.seen, name), there, "{name}");
    }
    // The first consumer goes where the source is, and a pin to another node is told.
    let mut of_late = copy("late", "data", None);
    of_late["spec"]["volumeClassName"] = json!("late");
    bench.make("volumeclaims", of_late).await;
    let other = if there == "a" { "b" } else { "a" };
    bench.make("allocations", user("pinned", "late", other)).await;
    let refused = |seen: &Seen| why(&seen.get("allocations", "default", "pinned")) == "NoNodeFits";
    bench.until("it cannot be reached there", refused).await;
    assert_eq!(volume_of(&bench.seen, "late"), Value::Null);
    bench.make("allocations", user("free", "late", "")).await;
    bench.until("it is bound", |seen| bound(seen, "late")).await;
    assert_eq!(node(&bench.seen, "late"), there);
    bench.end().await;
}

/// Part of obligation CO-CTRL-05: controllers with old caches beside others, and deletions in the very moment.
#[tokio::test(start_paused = true)]
async fn nothing_is_filled_from_what_is_gone_whoever_decides() {
    for late in [0, 1, 3, 10] {
        for after in [0, 200, 900, 1_500, 4_000] {
            let mut bench = Bench::with(&["a"], copying(DISK)).await;
            disk(&bench).await;
            bench.make("volumeclaims", claim("data", "disk", "SingleNodeWriter")).await;
            bench.until("data is bound", |seen| bound(seen, "data")).await;
            bench.start_others(&[
                ("volumes", Duration::from_secs(late)),
                ("volumeclaims", Duration::from_secs(late / 2)),
            ]);
            bench.make("volumeclaims", copy("copy", "data", None)).await;
            crate::bench::pass_millis(after).await;
            bench.delete("volumeclaims", "default", "data").await;
            bench.until("data is gone", |seen| seen.get("volumeclaims", "default", "data").is_null()).await;
            // It is there, or was never begun, and then its source is missing. The ledger refuses all else.
            bench
                .until("the copy knows", |seen| {
                    bound(seen, "copy") || told(seen, "copy")["reason"] == "NotFound"
                })
                .await;
            bench.quiet().await;
            bench.delete("volumeclaims", "default", "copy").await;
            bench.until("nothing is left", |seen| seen.all("volumes").is_empty()).await;
            bench.end().await;
        }
    }
}

/// Part of obligation CO-CTRL-05: what is on its way out is asked to fill nothing, by whomever the copy was made.
#[tokio::test(start_paused = true)]
async fn a_volume_that_goes_takes_no_new_copy() {
    let bench = halted(copying(DISK)).await;
    let data = volume_of(&bench.seen, "data");
    let name = data["metadata"]["name"].as_str().unwrap().to_owned();
    // Its host does nothing, and so it stays as it is.
    bench.delete("volumes", "", &name).await;
    let content =
        json!({ "volume": name, "uid": data["metadata"]["uid"], "handle": data["status"]["handle"] });
    let create = json!({ "name": "copy", "requiredBytes": 1 << 30, "content": content });
    let copy = json!({ "metadata": { "name": "copy" }, "spec": { "plugin": "disk",
        "accessModes": ["SingleNodeWriter"], "source": { "create": create } } });
    bench.make("volumes", copy).await;
    bench.quiet().await;
    let copy = bench.seen.get("volumes", "", "copy");
    assert_eq!(copy["status"]["controller"], Value::Null);
    assert_eq!(condition(&copy, "Ready")["reason"], "BeingDeleted");
    assert!(bench.seen.get("volumes", "", &name)["status"]["copies"].is_null());
    bench.end().await;
}
