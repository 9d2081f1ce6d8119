//! Every command of kubectl that we serve: with the real kubectl where there is one, and from recordings of what it asks
//! where there is none.
//!
//! `RECORD_KUBECTL=1 cargo test --test kubectl` writes `tests/kubectl_cases/` anew with the kubectl on the path.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a run without kubectl must say so")]
#[path = "kubectl/cases.rs"]
mod cases;
#[path = "kubectl/live.rs"]
mod live;
#[path = "kubectl/recording.rs"]
mod recording;
#[path = "support/server_api.rs"]
mod server_api;
#[path = "kubectl/stage.rs"]
mod stage;

use std::collections::BTreeSet;

use cases::{CASES, Case};
use futures::StreamExt;

/// How many kubectls run side by side.
const SIDE_BY_SIDE: usize = 4;

/// Runs some of the cases with the real kubectl; all of them are run by the tests below.
async fn run_live(chosen: impl Fn(&Case) -> bool) {
    let Some(version) = live::version() else {
        eprintln!("no kubectl on the path: only its recorded requests are tested");
        return;
    };
    let record = std::env::var_os("RECORD_KUBECTL").is_some();
    let chosen: Vec<&Case> = CASES.iter().filter(|case| chosen(case)).collect();
    assert!(!chosen.is_empty());
    let runs = futures::stream::iter(chosen).map(|case| {
        let version = version.clone();
        async move {
            let recorded = live::run(case).await?;
            if record {
                recording::write(case.name, &version, recorded);
            }
            Ok::<(), String>(())
        }
    });
    let done: Vec<_> = runs.buffer_unordered(SIDE_BY_SIDE).collect().await;
    let faults: Vec<String> = done.into_iter().filter_map(Result::err).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n\n"));
}

fn reads(case: &Case) -> bool {
    ["get", "describe", "events", "explain", "version", "api", "auth"]
        .iter()
        .any(|word| case.name.starts_with(word))
}

#[tokio::test(flavor = "multi_thread")]
async fn real_kubectl_reads() {
    run_live(reads).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_kubectl_writes() {
    run_live(|case| !reads(case)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_requests_are_answered_as_they_were() {
    let replays = futures::stream::iter(recording::all()).map(|(name, recorded)| async move {
        let told = name.clone();
        let replay = tokio::spawn(async move { recording::replay(&name, &recorded).await });
        replay.await.is_err().then_some(told)
    });
    let done: Vec<_> = replays.buffer_unordered(SIDE_BY_SIDE).collect().await;
    let mut failed: Vec<String> = done.into_iter().flatten().collect();
    failed.sort();
    assert!(failed.is_empty(), "other answers than were recorded, see above: {failed:?}");
}

#[test]
fn every_case_is_recorded_and_nothing_else() {
    let recorded: BTreeSet<String> = recording::all().into_iter().map(|(name, _)| name).collect();
    let wanted: BTreeSet<String> = CASES.iter().map(|case| case.name.to_owned()).collect();
    assert_eq!(wanted.len(), CASES.len(), "a name is there twice");
    let run = "run: RECORD_KUBECTL=1 cargo test --test kubectl";
    assert_eq!(wanted, recorded, "{run}");
}

/// What was seen of kubectl once is in the recordings: were these requests to go, the replay would prove less.
#[test]
fn the_recordings_hold_every_kind_of_request() {
    let all = recording::all();
    let exchanges: Vec<_> = all.iter().flat_map(|(_, recorded)| recorded.exchanges.iter()).collect();
    let has = |what: &str, test: &dyn Fn(&recording::Exchange) -> bool| {
        assert!(exchanges.iter().any(|exchange| test(exchange)), "no recording of {what}");
    };
    for content in [
        "application/json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/strategic-merge-patch+json",
        "application/vnd.kubernetes.protobuf",
    ] {
        has(content, &|exchange| exchange.content_type.as_deref() == Some(content));
    }
    for part in [
        "watch=true",
        "dryRun=All",
        "continue=",
        "limit=1&",
        "labelSelector=",
        "fieldSelector=metadata.name",
        "fieldSelector=involvedObject",
        "includeObject=Object",
        "fieldValidation=Strict",
        "/status",
        "/openapi/v2",
        "/openapi/v3/apis/",
    ] {
        has(part, &|exchange| format!("{}&", exchange.path).contains(part));
    }
    for policy in ["Background", "Foreground", "Orphan"] {
        has(policy, &|exchange| {
            exchange.body.as_ref().is_some_and(|body| body["propagationPolicy"] == policy)
        });
    }
    for code in [200, 201, 202, 400, 404, 405, 409, 415, 422] {
        has(&code.to_string(), &|exchange| exchange.code == code);
    }
}
