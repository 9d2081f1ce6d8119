//! B3: whole lives of volumes with a driver that sets the pace, many in flight, against the same calls by a small client that
//! makes one at a time, and eight; B16: what the users of nine plugins notice of a tenth that does not answer.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::api::DeleteParams;
use serde_json::json;

use super::ROUNDS;
use super::plugin::Plugin;
use super::raw::Raw;
use super::report::{Report, Row, Target, ms};
use super::stack::{Stack, World};

/// Lives per round.
const LIVES: usize = 160;
/// How many at a time by the small client.
const WIDE: usize = 8;
/// How many at a time of ours: so many that the driver has always one to work on, if we let it.
const IN_FLIGHT: usize = 32;
/// Plugins, and claims of each that answers.
const PLUGINS: usize = 10;
const EACH: usize = 30;
/// Claims of the one that does not.
const STUCK: usize = 20;

/// B3.
pub(crate) async fn paced(report: &mut Report) {
    for width in [1, WIDE] {
        let raw = Raw::new("slow").await;
        let mut floor = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let next = AtomicUsize::new(0);
            let worker = || async {
                while let n @ 0..LIVES = next.fetch_add(1, Ordering::Relaxed) {
                    raw.life(&format!("life-{n}")).await;
                }
            };
            futures::future::join_all((0..width).map(|_| worker())).await;
            floor.push(LIVES as f64 / start.elapsed().as_secs_f64());
        }
        drop(raw);
        let plugin = Plugin::start("slow");
        let (stack, world) = Stack::with_plugin(&plugin).await;
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let start = Instant::now();
            let next = AtomicUsize::new(0);
            let worker = || async {
                while let n @ 0..LIVES = next.fetch_add(1, Ordering::Relaxed) {
                    life(&world, "bind", &format!("b3-{width}-{round}-{n}")).await;
                }
            };
            futures::future::join_all((0..IN_FLIGHT).map(|_| worker())).await;
            world.volumes.until(std::collections::HashMap::is_empty).await;
            rounds.push(LIVES as f64 / start.elapsed().as_secs_f64());
        }
        stack.end();
        report.add(Row {
            floor: Some(super::report::median(&floor)),
            target: Some(Target::AtLeast(0.9)),
            more: json!({ "rawPerSecond": floor, "lives": LIVES, "inFlight": IN_FLIGHT }),
            ..Row::new(
                "B3",
                format!("whole lives, driver as slow as hostpath, against {width} at a time"),
                "/s",
                rounds,
            )
        });
    }
}

/// One volume, asked for, published, and gone again; how long it took until it was published.
async fn life(world: &World, class: &str, name: &str) -> Duration {
    let names = [name.to_owned()];
    let start = Instant::now();
    world.allocation(name, &names).await;
    world.claim_of(class, name).await;
    let published = world.published.all_are(&names, &1).await;
    let params = DeleteParams::default();
    world.allocations.delete(name, &params).await.unwrap();
    world.claims.delete(name, &params).await.unwrap();
    world.published.until(|all| !all.contains_key(name)).await;
    world.bound.until(|all| !all.contains_key(name)).await;
    published.duration_since(start)
}

/// B16.
pub(crate) async fn beside_a_hung_one(report: &mut Report) {
    let plugins: Vec<Plugin> = (0..PLUGINS).map(|_| Plugin::start("quick")).collect();
    let (stack, world) = Stack::with_plugin(&plugins[0]).await;
    let mut classes = vec!["bind".to_owned()];
    for (n, plugin) in plugins.iter().enumerate().skip(1) {
        let name = format!("bind-{n}");
        world.register(&name, plugin).await;
        classes.push(name);
    }
    let class = Arc::new(classes);
    let nine = |prefix: &'static str| {
        let (world, class) = (&world, Arc::clone(&class));
        async move {
            let each = class.iter().skip(1).map(|class| async move {
                let mut times = Vec::new();
                for n in 0..EACH {
                    times.push(ms(life(world, class, &format!("{prefix}-{class}-{n}")).await));
                }
                times
            });
            p99(futures::future::join_all(each).await.concat())
        }
    };
    nine("warm").await;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in ["b16-a", "b16-b", "b16-c"] {
        without.push(nine(round).await);
    }
    plugins[0].stop();
    let stuck: Vec<String> = (0..STUCK).map(|n| format!("stuck-{n}")).collect();
    for name in &stuck {
        world.claim(name).await;
    }
    for round in ["b16-d", "b16-e", "b16-f"] {
        with.push(nine(round).await);
    }
    plugins[0].go_on();
    let params = DeleteParams::default();
    let mut gone: FuturesUnordered<_> =
        stuck.iter().map(|name| world.claims.delete(name, &params).map(Result::unwrap)).collect();
    while gone.next().await.is_some() {}
    drop(gone);
    world.volumes.until(std::collections::HashMap::is_empty).await;
    stack.end();
    report.add(Row {
        floor: Some(super::report::median(&without)),
        target: Some(Target::Ratio(1.5)),
        more: json!({ "plugins": PLUGINS, "p99WithoutMs": without, "claimsOfTheHungOne": STUCK }),
        ..Row::new("B16", "p99 of nine plugins' claims while a tenth hangs", "ms", with)
    });
}

fn p99(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() * 99 / 100]
}
