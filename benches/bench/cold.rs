//! B17: from nothing to the first published volume: an empty directory, `up`, `apply`.
//!
//! The driver's own time, from the start of its process to its first answers, is not counted.
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use wharfline::csi::{self, PluginOptions, UnixConnector};

use super::ROUNDS;
use super::report::{Report, Row, Target, median, ms};
use super::stack::{Stack, World, wharfline};

pub(crate) async fn measure(report: &mut Report) {
    let driver = median(&[driver().await, driver().await, driver().await]);
    let (mut rounds, mut whole, mut until_ready) = (Vec::new(), Vec::new(), Vec::new());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/quickstart.yaml");
    for _ in 0..ROUNDS {
        let mut stack = Stack::new();
        let start = Instant::now();
        stack.up();
        until_ready.push(ms(start.elapsed()));
        // The watch is opened while `apply` runs, so that it delays nothing.
        let mut apply = stack.command(&["apply", "-f", manifest]).spawn().unwrap();
        let world = World::new(stack.client().await);
        let end = world.published.all_are(&["hello".to_owned()], &1).await;
        assert!(apply.wait().unwrap().success());
        let took = ms(end.duration_since(start));
        whole.push(took);
        rounds.push(took - driver);
        stack.end();
    }
    let more = json!({ "driverMs": driver, "wholeMs": whole, "upUntilReadyMs": until_ready });
    report.add(Row {
        target: Some(Target::Value(300.0)),
        more,
        ..Row::new("B17", "empty directory to published, less the driver", "ms", rounds)
    });
    report.add(Row::new("B17", "of that, `up` until ready", "ms", until_ready));
}

/// From the start of the built-in driver's process to its first answers, in milliseconds.
async fn driver() -> f64 {
    let place = tempfile::Builder::new().prefix("wfd").tempdir_in("/var/tmp").unwrap();
    let socket = place.path().join("csi.sock");
    let start = Instant::now();
    let mut child = Command::new(wharfline())
        .args(["csi", "dir", "--node-id", "bench", "--endpoint"])
        .arg(format!("unix://{}", socket.display()))
        .arg("--data-dir")
        .arg(place.path().join("data"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !socket.exists() {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    let client = csi::Plugin::new(UnixConnector::new(&socket).unwrap(), PluginOptions::default());
    client.get_plugin_info(Duration::from_secs(10)).await.unwrap();
    let took = ms(start.elapsed());
    child.kill().unwrap();
    child.wait().unwrap();
    took
}
