//! B4: 100 volumes on one node, one allocation with all of them and 100 with one each, against the raw driver loop: the
//! same calls by a small client, one after the other.
//!
//! How long a client takes that has the orchestrator's concurrency, all volumes at once and nothing else to do, is told
//! beside it.
use std::time::Instant;

use serde_json::json;

use super::ROUNDS;
use super::idle::Usage;
use super::plugin::Plugin;
use super::raw::Raw;
use super::report::{Report, Row, Target, median, ms};
use super::stack::Stack;

const VOLUMES: usize = 100;

pub(crate) async fn measure(report: &mut Report) {
    for (manner, name) in [("quick", "B4"), ("slow", "B4s")] {
        let raw = Raw::new(manner).await;
        let (mut serial, mut at_once) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            serial.push(ms(raw.burst(VOLUMES, false).await));
            at_once.push(ms(raw.burst(VOLUMES, true).await));
        }
        drop(raw);
        let plugin = Plugin::start(manner);
        let (stack, world) = Stack::with_plugin(&plugin).await;
        let claims: Vec<String> = (0..VOLUMES).map(|n| format!("c-{n}")).collect();
        let (mut together, mut apart, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            world.claims_bound(&claims).await;
            let used = Usage::of(stack.pid()).cpu;
            let start = Instant::now();
            world.allocation("all", &claims).await;
            let one = ["all".to_owned()];
            let end = world.published.all_are(&one, &VOLUMES).await;
            together.push(ms(end.duration_since(start)));
            cpu.push((Usage::of(stack.pid()).cpu - used) * 1e3);
            world.clear(&one, &claims).await;

            world.claims_bound(&claims).await;
            let start = Instant::now();
            let each = claims.iter().map(|name| world.allocation(name, std::slice::from_ref(name)));
            futures::future::join_all(each).await;
            let end = world.published.all_are(&claims, &1).await;
            apart.push(ms(end.duration_since(start)));
            world.clear(&claims, &claims).await;
        }
        stack.end();
        // A slow driver sets the pace by itself: it must not be kept waiting by us.
        let floor = if manner == "quick" { median(&serial) } else { median(&at_once) };
        let more =
            json!({ "rawAtOnceMs": at_once, "rawSerialMs": serial, "concurrency": VOLUMES, "cpuMs": cpu });
        let told = if manner == "quick" { "" } else { ", driver as slow as hostpath" };
        let row = |what: String, rounds: Vec<f64>| Row {
            floor: Some(floor),
            target: Some(Target::Ratio(1.5)),
            more: more.clone(),
            ..Row::new(name, what, "ms", rounds)
        };
        report.add(row(format!("1 x {VOLUMES} volumes{told}"), together));
        report.add(row(format!("{VOLUMES} x 1 volume{told}"), apart));
        report.add(Row::new(name, format!("raw loop, one after the other{told}"), "ms", serial));
        report.add(Row::new(name, format!("raw calls, all at once{told}"), "ms", at_once));
    }
}
