//! How much room a plugin's backend has, asked by the controllers at one of its instances.
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{Rig, Special};
use crate::support::scripted::{Answer, Ask, Config};

const GET: Rpc = Rpc::GetCapacity;
/// The instance of the rig.
const OWN: &str = "p";
const ALL: i64 = 64 << 20;

async fn ready(config: Config) -> Rig {
    let mut rig = Rig::idle(config).await;
    rig.options.heartbeat = Duration::from_millis(300);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig
}

async fn ask(rig: &Rig, rooms: Value) {
    rig.world.patch(&rig.instances, OWN, json!({ "spec": { "rooms": rooms } })).await;
}

async fn told(rig: &Rig, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let instance = rig.world.until(&rig.instances, OWN, what, |i| holds(&i["status"]["rooms"])).await;
    serde_json::to_value(instance).unwrap()["status"]["rooms"].clone()
}

/// Obligation CO-CTRL-71.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_room_there_is_is_asked_as_it_will_be_asked_for_and_again_when_it_has_changed() {
    let mut config = Config { total_bytes: ALL, max_volume_bytes: ALL / 2, ..Config::full() };
    config.services = vec![1, 2];
    let mut rig = ready(config).await;
    assert_eq!(rig.count(GET), 0);
    let zones = [json!({ "zone": "a" }), Value::Null];
    let question = |zone: &Value| match zone {
        Value::Null => json!({ "class": "anywhere" }),
        zone => json!({ "class": "k", "parameters": { "pool": "fast" }, "segments": zone }),
    };
    ask(&rig, json!([question(&zones[0]), question(&zones[1])])).await;
    let rooms = told(&rig, "answered", |rooms| rooms[1]["availableBytes"] == ALL).await;
    assert_eq!((&rooms[0]["class"], &rooms[0]["segments"]), (&json!("k"), &zones[0]), "{rooms}");
    assert_eq!((&rooms[0]["availableBytes"], &rooms[0]["largestBytes"]), (&json!(ALL), &json!(ALL / 2)));
    let pair = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let asked: Vec<_> = rig.backend.calls_of(GET).into_iter().map(|call| call.ask).collect();
    let wanted = [
        proto::GetCapacityRequest {
            volume_capabilities: Vec::new(),
            parameters: pair("pool", "fast"),
            accessible_topology: Some(proto::Topology { segments: pair("zone", "a") }),
        },
        proto::GetCapacityRequest::default(),
    ];
    assert_eq!(asked, wanted.map(Ask::GetCapacity));
    // A volume that hardly takes any of it: looked at, and no news.
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig.called(GET, 4).await;
    let large = json!({ "source": { "create": { "name": "vol-2", "requiredBytes": ALL / 4 } } });
    rig.ask("vol-2", &Special { spec: large, ..Special::default() }).await;
    rig.volume_up("vol-2").await;
    let left = ALL - ALL / 4 - (1 << 20);
    let rooms = told(&rig, "less", |rooms| rooms[0]["availableBytes"] == left).await;
    assert_eq!(rooms[1]["availableBytes"], left);
    rig.end_volume("vol-2").await;
    told(&rig, "more", |rooms| rooms[1]["availableBytes"] == ALL - (1 << 20)).await;
    rig.end_volume("vol-1").await;
    rig.called(GET, 10).await;
    // Nothing more happens, and nobody asks. The next daemon asks once.
    rig.called(Rpc::Probe, rig.count(Rpc::Probe) + 3).await;
    assert_eq!(rig.count(GET), 10);
    rig.stop().await;
    rig.start().await;
    rig.called(GET, 12).await;
    ask(&rig, json!([])).await;
    told(&rig, "forgotten", Value::is_null).await;
    rig.finish().await;
}

/// What a driver does not answer is told, and known by nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_tell_is_asked_again_when_something_has_happened() {
    let rig = ready(Config { total_bytes: ALL, ..Config::full() }).await;
    rig.backend.next(GET, Answer::fail(Code::Unavailable, "the pool is away"));
    ask(&rig, json!([{ "class": "k" }])).await;
    let rooms = told(&rig, "told", |rooms| rooms[0]["message"].is_string()).await;
    assert!(rooms[0]["message"].as_str().unwrap().contains("the pool is away"), "{rooms}");
    assert!(rooms[0]["availableBytes"].is_null());
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    told(&rig, "answered", |rooms| rooms[0]["availableBytes"] == ALL - (1 << 20)).await;
    rig.end_volume("vol-1").await;
    let negative = proto::GetCapacityResponse { available_capacity: -1, ..Default::default() };
    rig.backend.next(GET, Answer::reply(&negative));
    ask(&rig, json!([{ "class": "other" }])).await;
    told(&rig, "no answer", |rooms| rooms[0]["class"] == "other" && rooms[0]["message"].is_string()).await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_without_the_call_is_asked_nothing() {
    let mut config = Config::full();
    config.controller.retain(|can| *can != 4);
    let rig = ready(config).await;
    ask(&rig, json!([{ "class": "k" }])).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig.end_volume("vol-1").await;
    assert_eq!(rig.count(GET), 0);
    assert!(rig.instances.get(OWN).await.unwrap().status.unwrap().rooms.is_empty());
    rig.finish().await;
}
