//! B1: what one claim costs beyond the driver's calls, from its acknowledgement to its volume being published.
//!
//! The floor is the shortest chain of durable writes and hops that an attached, staged and published volume needs.
use std::time::{Duration, Instant};

use serde_json::json;

use super::ROUNDS;
use super::floors::Floors;
use super::plugin::Plugin;
use super::raw::Raw;
use super::report::{Report, Row, Target, median, ms};
use super::stack::{Stack, World};

/// How many claims per round, one at a time.
const CLAIMS: usize = 40;

pub(crate) async fn measure(report: &mut Report, floors: &Floors) {
    let calls = calls().await;
    let plugin = Plugin::start("quick");
    let (stack, world) = Stack::with_plugin(&plugin).await;
    one(&world, "warm").await;
    let revision = |world: &World| {
        let (claims, params) = (world.claims.clone(), kube::api::ListParams::default());
        async move {
            claims.list(&params).await.unwrap().metadata.resource_version.unwrap().parse::<u64>().unwrap()
        }
    };
    let before = revision(&world).await;
    let (mut rounds, mut all) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut times = Vec::new();
        for claim in 0..CLAIMS {
            let took = one(&world, &format!("b1-{round}-{claim}")).await;
            times.push(ms(took) - calls);
        }
        rounds.push(median(&times));
        all.extend(times);
    }
    let writes = (revision(&world).await - before) as f64 / (ROUNDS * CLAIMS) as f64;
    all.sort_by(f64::total_cmp);
    stack.end();
    let chain = |put: f64| Some((5.0 * put + 4.0 * floors.hop + floors.fdatasync) / 1e3);
    if floors.etcd_put.is_some() {
        let what = "the same, of a floor with writes to this disk instead of etcd";
        report.add(Row { floor: chain(floors.fdatasync), ..Row::new("B1", what, "ms", rounds.clone()) });
    }
    report.add(Row {
        floor: chain(floors.put()),
        target: Some(Target::Ratio(3.0)),
        more: json!({ "callsMs": calls, "p99Ms": all[all.len() * 99 / 100], "writesPerLife": writes,
            "floor": "5 puts + 4 hops + 1 fdatasync" }),
        ..Row::new("B1", "one claim, acknowledged to published, less calls", "ms", rounds)
    });
}

/// The driver's own time for one volume, without an orchestrator, in milliseconds.
async fn calls() -> f64 {
    let raw = Raw::new("quick").await;
    let mut times = Vec::new();
    for n in 0..200 {
        let name = format!("v-{n}");
        let start = Instant::now();
        raw.create(&name).await;
        raw.up(&name).await;
        times.push(ms(start.elapsed()));
        raw.down(&name);
    }
    median(&times)
}

/// One claim whose user waits for it already; both are gone afterwards.
async fn one(world: &World, name: &str) -> Duration {
    let names = [name.to_owned()];
    world.allocation(name, &names).await;
    world.claim(name).await;
    let acknowledged = Instant::now();
    let published = world.published.all_are(&names, &1).await;
    let took = published.duration_since(acknowledged);
    world.clear(&names, &names).await;
    took
}
