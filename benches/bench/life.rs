//! The life of plugins: from a socket to its use, from a death to the status, from one instance to another, many at a
//! restart, and what an idle one costs.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use kube::Api;
use kube::api::DeleteParams;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use wharfline::api::{Plugin as Object, PluginInstance, VolumeClass};

use super::ROUNDS;
use super::idle::shims;
use super::plugin::{NODE_ID, Plugin, listens};
use super::report::{Report, Row, Target, ms};
use super::stack::{Seen, Stack, World};

/// How many plugins a node runs at a restart, and how many volumes of each are published.
const PLUGINS: usize = 50;
const EACH: usize = 20;
/// What a start leaves to do is done in this time.
const AFTERWARDS: Duration = Duration::from_secs(5);
/// How long a plugin is away before it is there again: the pauses between two tries to connect have grown by then.
const AWAY: Duration = Duration::from_secs(3);
/// Two heartbeats, and a little.
const IDLE: Duration = Duration::from_secs(61);

pub(crate) async fn measure(report: &mut Report) {
    alone(report).await;
    run(report).await;
    two(report).await;
    many(report).await;
}

fn instances(world: &World) -> Seen<bool> {
    Seen::follow(Api::all(world.client.clone()), |instance: &PluginInstance| {
        let conditions = instance.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        wharfline::api::meta::is_true(conditions, "Ready")
    })
}

async fn ready(seen: &Seen<bool>, wanted: usize) {
    seen.until(|all| all.values().filter(|(ready, _)| *ready).count() == wanted).await;
}

/// One instance dies and comes back, and is idle in the end.
async fn alone(report: &mut Report) {
    let mut plugin = Plugin::start("quick");
    let (stack, world) = Stack::with_plugin(&plugin).await;
    let seen = instances(&world);
    ready(&seen, 1).await;
    let (mut deaths, mut births) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let start = Instant::now();
        plugin.kill();
        ready(&seen, 0).await;
        deaths.push(ms(start.elapsed()));
        let name = format!("waits-{round}");
        world.claim(&name).await;
        tokio::time::sleep(AWAY).await;
        let bound = {
            plugin.again();
            let start = Instant::now();
            world.bound.all_are(&[name], &true).await.duration_since(start)
        };
        births.push(ms(bound));
        ready(&seen, 1).await;
    }
    tokio::time::sleep(AFTERWARDS).await;
    let before = plugin.calls();
    tokio::time::sleep(IDLE).await;
    let after = plugin.calls();
    let made = |of: &dyn Fn(&str) -> bool| -> u64 {
        let sum = |calls: &BTreeMap<String, u64>| {
            calls.iter().filter(|(name, _)| of(name.as_str())).map(|(_, count)| count).sum::<u64>()
        };
        sum(&after) - sum(&before)
    };
    let (probes, others) = (made(&|name| name == "Probe"), made(&|name| name != "Probe"));
    world.clear(&[], &(0..ROUNDS).map(|round| format!("waits-{round}")).collect::<Vec<_>>()).await;
    stack.end();
    let row = |what, rounds, most| Row {
        target: Some(Target::Value(most)),
        ..Row::new("plugins", what, "ms", rounds)
    };
    report.add(row("a plugin listens, to a claim that waited for it", births, 100.0));
    report.add(row("a plugin's death, to its status", deaths, 100.0));
    for (of, count, most) in [("probes of", probes, 3.0), ("other calls to", others, 0.0)] {
        let what = format!("{of} an idle plugin in {} s", IDLE.as_secs());
        let target = Some(Target::Value(most));
        report.add(Row { target, ..Row::new("plugins", what, "", vec![count as f64]) });
    }
}

/// The same of a process that the node runs: it is started for a claim that waits, and killed.
async fn run(report: &mut Report) {
    let files = tempfile::Builder::new().prefix("wfp").tempdir_in("/var/tmp").unwrap();
    let volumes = files.path().join("volumes");
    let mut stack = Stack::new();
    stack.up();
    let world = World::new(stack.client().await);
    let plugins = Api::<Object>::all(world.client.clone());
    world.create(&Api::<VolumeClass>::all(world.client.clone()), of_one("bind")).await;
    let seen = instances(&world);
    let (mut deaths, mut births) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("waits-{round}");
        world.claim(&name).await;
        let exe = std::env::current_exe().unwrap();
        let command = [
            exe.to_str().unwrap(),
            "as-plugin",
            "${CSI_ENDPOINT}",
            volumes.to_str().unwrap(),
            "quick",
            NODE_ID,
        ];
        let (clock, start) = (SystemTime::now(), Instant::now());
        world.create(&plugins, of_entries("bind", &[json!({ "process": { "command": command } })])).await;
        let bound = world.bound.all_are(std::slice::from_ref(&name), &true).await;
        let listened = std::fs::metadata(listens(&volumes)).unwrap().modified().unwrap();
        births.push(ms(bound.duration_since(start).saturating_sub(listened.duration_since(clock).unwrap())));
        ready(&seen, 1).await;
        let start = Instant::now();
        kill(&volumes);
        ready(&seen, 0).await;
        deaths.push(ms(start.elapsed()));
        ready(&seen, 1).await;
        world.clear(&[], &[name]).await;
        plugins.delete("bind", &DeleteParams::default()).await.unwrap();
        seen.until(HashMap::is_empty).await;
    }
    stack.end();
    let row =
        |what, rounds| Row { target: Some(Target::Value(100.0)), ..Row::new("plugins", what, "ms", rounds) };
    report.add(row("a plugin that the node runs listens, to a claim that waited for it", births));
    report.add(row("a plugin that the node runs is killed, to its status", deaths));
}

/// Kills the process that wrote who it is where it said that it listens.
fn kill(volumes: &Path) {
    let pid = std::fs::read_to_string(listens(volumes)).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

fn of_one(class: &str) -> Value {
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass", "metadata": { "name": class },
        "spec": { "plugin": class, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate" } })
}

fn of_entries(name: &str, entries: &[Value]) -> Value {
    let entry = |(number, runtime): (usize, &Value)| {
        json!({ "name": format!("e{number}"), "role": "Monolith", "placement": { "everyNode": {} },
            "runtime": runtime })
    };
    let entries: Vec<Value> = entries.iter().enumerate().map(entry).collect();
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": name },
        "spec": { "instances": entries } })
}

/// Of two instances the one that serves dies.
async fn two(report: &mut Report) {
    let mut plugins = [Plugin::start("quick"), Plugin::start("quick")];
    let mut stack = Stack::new();
    stack.up();
    let world = World::new(stack.client().await);
    let runtimes: Vec<Value> =
        plugins.iter().map(|plugin| json!({ "external": { "socket": plugin.socket } })).collect();
    world.create(&Api::<Object>::all(world.client.clone()), of_entries("bind", &runtimes)).await;
    world.create(&Api::<VolumeClass>::all(world.client.clone()), of_one("bind")).await;
    let seen = instances(&world);
    let mut rounds = Vec::new();
    let mut names = Vec::new();
    for round in 0..ROUNDS {
        ready(&seen, 2).await;
        let made = |plugin: &mut Plugin| *plugin.calls().get("CreateVolume").unwrap_or(&0);
        let before = made(&mut plugins[0]);
        let (first, name) = (format!("first-{round}"), format!("moves-{round}"));
        world.claim(&first).await;
        world.bound.all_are(std::slice::from_ref(&first), &true).await;
        // Whoever made that volume serves.
        let serves = usize::from(made(&mut plugins[0]) == before);
        let others = made(&mut plugins[1 - serves]);
        let start = Instant::now();
        plugins[serves].kill();
        world.claim(&name).await;
        let bound = world.bound.all_are(std::slice::from_ref(&name), &true).await;
        rounds.push(ms(bound.duration_since(start)));
        assert_eq!(made(&mut plugins[1 - serves]), others + 1, "the other one did not make it");
        names.extend([first, name]);
        plugins[serves].again();
    }
    ready(&seen, 2).await;
    world.clear(&[], &names).await;
    stack.end();
    report.add(Row {
        target: Some(Target::Value(1000.0)),
        ..Row::new("plugins", "of two instances the one that serves dies, to a claim's volume", "ms", rounds)
    });
}

/// A node with many plugins is started again.
async fn many(report: &mut Report) {
    let files = tempfile::Builder::new().prefix("wfp").tempdir_in("/var/tmp").unwrap();
    let mut stack = Stack::new();
    stack.up();
    let world = World::new(stack.client().await);
    let names: Vec<String> = (0..PLUGINS).map(|number| format!("p{number}")).collect();
    let exe = std::env::current_exe().unwrap();
    for name in &names {
        let command =
            json!([exe, "as-plugin", "${CSI_ENDPOINT}", files.path().join(name), "counted", "bench-node"]);
        let runtime = json!({ "process": { "command": command } });
        world.create(&Api::<Object>::all(world.client.clone()), of_entries(name, &[runtime])).await;
        world.create(&Api::<VolumeClass>::all(world.client.clone()), of_one(name)).await;
    }
    let seen = instances(&world);
    ready(&seen, PLUGINS).await;
    let claims: Vec<Vec<String>> =
        names.iter().map(|name| (0..EACH).map(|c| format!("{name}-{c}")).collect()).collect();
    let world = &world;
    let publish = async |(name, claims): (&String, &Vec<String>)| {
        for claim in claims {
            world.claim_of(name, claim).await;
        }
        world.allocation(name, claims).await;
    };
    futures::stream::iter(names.iter().zip(&claims)).for_each_concurrent(16, publish).await;
    world.published.all_are(&names, &EACH).await;
    tokio::time::sleep(AFTERWARDS).await;
    drop(seen);
    // A byte for each call that changes something.
    let calls = || -> u64 {
        let file = |name: &String| files.path().join(name).with_extension("calls");
        names.iter().map(|name| std::fs::metadata(file(name)).map_or(0, |m| m.len())).sum()
    };
    let (calls_before, shims_before) = (calls(), shims(stack.data.path()));
    let (mut rounds, mut used) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        stack.kill();
        let start = Instant::now();
        stack.up();
        rounds.push(ms(start.elapsed()));
        // A status was written before the kill: that each plugin is asked again is seen by a volume of each.
        let world = World::new(stack.client().await);
        let news: Vec<String> = names.iter().map(|name| format!("{name}-new")).collect();
        let claims = names.iter().zip(&news).map(|(plugin, claim)| world.claim_of(plugin, claim));
        futures::future::join_all(claims).await;
        used.push(ms(world.bound.all_are(&news, &true).await.duration_since(start)));
        for name in &news {
            world.claims.delete(name, &DeleteParams::default()).await.unwrap();
        }
        world.volumes.until(|all| all.len() == PLUGINS * EACH).await;
        tokio::time::sleep(AFTERWARDS).await;
    }
    // Those volumes were made and deleted.
    let asked_for = (2 * PLUGINS * ROUNDS) as u64;
    let (again, made) = (shims(stack.data.path()) != shims_before, calls() - calls_before - asked_for);
    stack.end();
    let what = |of: &str| format!("{PLUGINS} plugins, {} volumes: {of}", PLUGINS * EACH);
    for (of, rounds) in [("exec to ready", rounds), ("exec to a new volume of each", used)] {
        report
            .add(Row { target: Some(Target::Value(1000.0)), ..Row::new("plugins", what(of), "ms", rounds) });
    }
    for (of, count) in
        [("calls that change something", made as f64), ("plugins started again", f64::from(u8::from(again)))]
    {
        report
            .add(Row { target: Some(Target::Value(0.0)), ..Row::new("plugins", what(of), "", vec![count]) });
    }
}
