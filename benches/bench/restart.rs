//! B5: SIGKILL with 1,000 published volumes, and the start after it.
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::json;

use super::ROUNDS;
use super::plugin::Plugin;
use super::report::{Report, Row, Target};
use super::stack::{Stack, World};

const ALLOCATIONS: usize = 100;
const EACH: usize = 10;
/// How long calls are looked for after a start.
const AFTERWARDS: Duration = Duration::from_secs(5);

pub(crate) async fn measure(report: &mut Report) {
    let mut plugin = Plugin::start("quick");
    let (mut stack, world) = Stack::with_plugin(&plugin).await;
    let claims: Vec<Vec<String>> =
        (0..ALLOCATIONS).map(|a| (0..EACH).map(|c| format!("c-{a}-{c}")).collect()).collect();
    let names: Vec<String> = (0..ALLOCATIONS).map(|a| format!("a-{a}")).collect();
    let start = Instant::now();
    world.claims_bound(&claims.concat()).await;
    let users = names.iter().zip(&claims);
    futures::stream::iter(users)
        .for_each_concurrent(16, |(name, claims)| world.allocation(name, claims))
        .await;
    world.published.all_are(&names, &EACH).await;
    let filling = start.elapsed();
    drop(world);
    let before = plugin.mutating();
    let (mut rebuilt, mut ready) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        stack.kill();
        let logged = stack.log().len();
        let (start, clock) = (Instant::now(), Timestamp::now());
        stack.up();
        ready.push(start.elapsed().as_secs_f64() * 1e3);
        let log = stack.log().split_off(logged);
        rebuilt.push(rebuilt_after(&log, clock).unwrap_or(f64::NAN));
        World::new(stack.client().await).plugin_ready().await;
        tokio::time::sleep(AFTERWARDS).await;
    }
    let calls = plugin.mutating() - before;
    let total = ALLOCATIONS * EACH;
    stack.end();
    let row = |what: String, unit, rounds, most| Row {
        target: Some(Target::Value(most)),
        more: json!({ "volumes": total, "fillingSeconds": filling.as_secs_f64() }),
        ..Row::new("B5", what, unit, rounds)
    };
    report.add(row(format!("{total} published, exec to state rebuilt"), "ms", rebuilt, 100.0));
    report.add(row(format!("{total} published, exec to ready"), "ms", ready, 1000.0));
    report.add(row(format!("mutating calls after {ROUNDS} restarts"), "", vec![calls as f64], 0.0));
}

/// The time of the log line that says that the state is rebuilt, in milliseconds after `start`.
fn rebuilt_after(log: &str, start: Timestamp) -> Option<f64> {
    let line = log.lines().find(|line| line.contains("state rebuilt"))?;
    let stamp = line.split_whitespace().find_map(|word| word.parse::<Timestamp>().ok())?;
    Some(stamp.duration_since(start).as_secs_f64() * 1e3)
}
