//! The command line against the real server within the process: what it prints, how it exits, what it asks.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
mod support {
    pub(crate) mod server_api;
}

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use support::server_api::{options, store};
use wharfline::cli::{self, Exit, Terminal};
use wharfline::server::{Identity, Server};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: cli::Options,
    #[command(subcommand)]
    command: cli::Command,
}

/// The real server, and a client that notes what it is asked.
struct Cluster {
    server: Server,
    asked: Arc<Mutex<Vec<String>>>,
    /// Whether somebody else deletes whatever is deleted a moment before.
    hasty: bool,
    /// How many lists are not answered.
    away: Arc<AtomicUsize>,
}

/// How one command ended.
#[derive(Debug)]
struct Ran {
    exit: Exit,
    out: String,
    err: String,
    asked: Vec<String>,
}

impl Ran {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!((self.exit, self.err.as_str()), (Exit::Done, ""), "{}", self.out);
        self.out
    }
}

/// A writer whose text can be read, and waited for, while the command runs.
#[derive(Clone, Default)]
struct Shared(tokio::sync::watch::Sender<String>);

impl Shared {
    fn text(&self) -> String {
        self.0.borrow().clone()
    }

    /// Waits until the text satisfies the condition.
    async fn until(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut news = self.0.subscribe();
        let satisfied = news.wait_for(|text| condition(text));
        match tokio::time::timeout(Duration::from_secs(20), satisfied).await {
            Ok(Ok(text)) => text.clone(),
            _ => panic!("never {what}: {}", self.text()),
        }
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let more = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.send_modify(|text| text.push_str(more));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Cluster {
    async fn new() -> Self {
        let store = store();
        let server = Server::new(store, wharfline::api::definitions(), options());
        server.bootstrap().await.unwrap();
        Self { server, asked: Arc::default(), hasty: false, away: Arc::default() }
    }

    fn client(&self) -> kube::Client {
        let inner = self.server.client(Identity::admin());
        let (asked, hasty) = (Arc::clone(&self.asked), self.hasty);
        let away_for = Arc::clone(&self.away);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let line = format!("{} {}", request.method(), request.uri());
            if !matches!(request.uri().path(), "/api" | "/apis") {
                asked.lock().unwrap().push(line);
            }
            let inner = inner.clone();
            let of_one = request.uri().query().is_some_and(|query| query.contains("metadata.name"));
            let away = of_one
                && away_for.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
            let before = (hasty && request.method() == http::Method::DELETE)
                .then(|| http::Request::delete(request.uri()).body(kube::client::Body::empty()).unwrap());
            async move {
                if away {
                    return Err(kube::Error::Service("nobody listens there".into()));
                }
                if let Some(before) = before {
                    inner.send(before).await.unwrap();
                }
                inner.send(request).await
            }
        });
        kube::Client::new(service, "default")
    }

    async fn run_with(&self, words: &[&str], stdin: &str, out: Shared) -> Ran {
        let line = Line::try_parse_from(std::iter::once("wharfline").chain(words.iter().copied()))
            .unwrap_or_else(|error| panic!("{error}"));
        self.asked.lock().unwrap().clear();
        let mut err = Shared::default();
        let terminal = Terminal { input: &mut stdin.as_bytes(), out: &mut out.clone(), err: &mut err };
        let exit = cli::execute(self.client(), &line.options, &line.command, terminal).await;
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        Ran { exit, out: out.text(), err: err.text(), asked }
    }

    async fn run(&self, words: &[&str]) -> Ran {
        self.run_with(words, "", Shared::default()).await
    }

    async fn apply(&self, manifest: &str) -> Ran {
        self.run_with(&["apply", "-f", "-"], manifest, Shared::default()).await
    }

    async fn patch(&self, words: &[&str], patch: &Value) {
        let mut all = vec!["patch"];
        all.extend(words);
        let text = patch.to_string();
        all.extend(["-p", &text]);
        let ran = self.run(&all).await;
        assert_eq!(ran.exit, Exit::Done, "{ran:?}");
    }

    async fn free(&self, what: &str) {
        self.patch(&[what], &json!({ "metadata": { "finalizers": null } })).await;
    }
}

const APP: &str = "
apiVersion: wharfline.dev/v1alpha1
kind: Plugin
metadata: {name: dir}
spec:
  instances: [{name: all, role: Monolith, runtime: {process: {command: [wharfline, csi, dir]}}}]
---
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClass
metadata: {name: dir}
spec: {plugin: dir}
---
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClaim
metadata: {name: data, labels: {app: shop}}
spec:
  volumeClassName: dir
  accessModes: [SingleNodeWriter]
  resources: {requests: {storage: 1Gi}}
";

/// Scenario A25.
#[tokio::test]
async fn apply_creates_changes_and_leaves_alone() {
    let cluster = Cluster::new().await;
    let made = cluster.apply(APP).await;
    assert_eq!(
        made.asked,
        [
            "GET /apis/wharfline.dev/v1alpha1/plugins/dir",
            "POST /apis/wharfline.dev/v1alpha1/plugins?fieldManager=kubectl-client-side-apply&fieldValidation=Strict",
            "GET /apis/wharfline.dev/v1alpha1/volumeclasses/dir",
            "POST /apis/wharfline.dev/v1alpha1/volumeclasses?fieldManager=kubectl-client-side-apply&fieldValidation=Strict",
            "GET /apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims/data",
            "POST /apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims?fieldManager=kubectl-client-side-apply&fieldValidation=Strict",
        ]
    );
    assert_eq!(made.ok(), "plugin/dir created\nvolumeclass/dir created\nvolumeclaim/data created\n");
    let again = cluster.apply(APP).await;
    // The server filled defaults into the list of instances, and a merge patch replaces lists as a whole.
    let writes: Vec<&String> = again.asked.iter().filter(|asked| !asked.starts_with("GET ")).collect();
    assert!(
        matches!(writes[..], [patch] if patch.starts_with("PATCH /apis/wharfline.dev/v1alpha1/plugins/dir?")),
        "{writes:?}"
    );
    assert_eq!(again.ok(), "plugin/dir unchanged\nvolumeclass/dir unchanged\nvolumeclaim/data unchanged\n");

    // A label of somebody else stays, one that the file dropped goes.
    cluster.run(&["label", "vc/data", "theirs=1"]).await.ok();
    let changed = APP.replace("labels: {app: shop}", "labels: {tier: db}");
    let out = cluster.apply(&changed).await.ok();
    assert!(out.ends_with("volumeclaim/data configured\n"), "{out}");
    let labels = cluster.run(&["get", "vc", "data", "-o", "jsonpath={.metadata.labels}"]).await.ok();
    assert_eq!(labels, r#"{"theirs":"1","tier":"db"}"#);
}

#[tokio::test]
async fn apply_tries_only_when_told() {
    let cluster = Cluster::new().await;
    let client = cluster.run_with(&["apply", "-f", "-", "--dry-run=client"], APP, Shared::default()).await;
    assert!(client.out.starts_with("plugin/dir created (dry run)\n"), "{client:?}");
    let server = cluster.run_with(&["apply", "-f", "-", "--dry-run=server"], APP, Shared::default()).await;
    assert!(server.asked[1].ends_with("&dryRun=All"), "{server:?}");
    assert!(server.ok().starts_with("plugin/dir created (server dry run)\n"));
    assert_eq!(cluster.run(&["get", "plugins"]).await.err, "No resources found.\n");
}

#[tokio::test]
async fn a_secret_applied_again_is_unchanged() {
    let cluster = Cluster::new().await;
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: correct-horse}}";
    assert_eq!(cluster.apply(secret).await.ok(), "secret/s created\n");
    assert_eq!(cluster.apply(secret).await.ok(), "secret/s unchanged\n");
    let page = cluster.run(&["describe", "secret", "s"]).await.ok();
    assert!(!page.contains("horse") && page.contains("password: 13 bytes"), "{page}");
}

/// Scenario A22.
#[tokio::test]
async fn every_fault_is_listed_and_the_rest_goes_on() {
    let cluster = Cluster::new().await;
    let bad = "
apiVersion: wharfline.dev/v1alpha1
kind: Volume
metadata: {name: v}
spec: {plugin: '', source: {}, accessModes: [Whatever]}
---
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClass
metadata: {name: ok}
spec: {plugin: dir}
";
    let ran = cluster.apply(bad).await;
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, "volumeclass/ok created\n"));
    assert!(ran.err.starts_with("error: volume/v: the server refused the object, it has "), "{}", ran.err);
    let mut causes: Vec<&str> = ran.err.lines().filter_map(|line| line.strip_prefix("  why: ")).collect();
    causes.sort_unstable();
    let fields: Vec<&str> = causes.iter().filter_map(|cause| cause.split(": ").next()).collect();
    assert_eq!(fields, ["spec.accessModes[0]", "spec.plugin", "spec.source"], "{}", ran.err);

    let unknown =
        "{apiVersion: wharfline.dev/v1alpha1, kind: VolumeClass, metadata: {name: x}, spec: {plugn: dir}}";
    let ran = cluster.apply(unknown).await;
    assert!(ran.err.contains("spec.plugn") && ran.err.contains("\"plugin\""), "{}", ran.err);
}

#[tokio::test]
async fn a_file_with_a_fault_sends_nothing() {
    let cluster = Cluster::new().await;
    let nameless = format!("{APP}---\n{{apiVersion: wharfline.dev/v1alpha1, kind: Plugin, metadata: {{}}}}");
    let misnamed =
        format!("{APP}---\n{{apiVersion: wharfline.dev/v1alpha1, kind: Plugins, metadata: {{name: a}}}}");
    let twice = format!("{APP}  accessModes: []\n");
    for (text, told) in [
        (twice.as_str(), "error: stdin:20:3: duplicate key accessModes"),
        (&nameless, "error: stdin:21: metadata.name is missing"),
        (&misnamed, "  try: did you mean kind: Plugin?"),
        ("---\n", "error: the files hold no objects\n  why: nothing was read from stdin"),
    ] {
        let ran = cluster.apply(text).await;
        assert_eq!((ran.exit, ran.asked.len()), (Exit::Failed, 0), "{ran:?}");
        assert!(ran.err.contains(told), "{told}: {ran:?}");
    }
}

#[tokio::test]
async fn get_prints_the_servers_tables_and_other_forms() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let claims = cluster.run(&["get", "vc"]).await;
    assert_eq!(claims.asked, ["GET /apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims?limit=500"]);
    let text = claims.ok();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "STATUS", "VOLUME", "CAPACITY", "MODES", "CLASS", "USED-BY", "AGE"]);
    assert_eq!((lines[1][0], lines[1].last()), ("data", Some(&"0s")));

    let both = cluster.run(&["get", "plugins,vclass"]).await.ok();
    assert!(both.contains("plugin.wharfline.dev/dir") && both.contains("\n\nNAME"), "{both}");
    for (words, wanted) in [
        (vec!["get", "claims", "-o", "name"], "volumeclaim.wharfline.dev/data\n"),
        (vec!["get", "claim/data", "-o", "jsonpath={.spec.volumeClassName}"], "dir"),
        (vec!["get", "vc", "-A", "-l", "app=shop", "-o", "custom-columns=N:.metadata.name"], "N\ndata\n"),
        (vec!["get", "vc", "-l", "app=other", "-o", "name"], ""),
        (
            vec!["get", "vc", "--field-selector", "metadata.name=data", "--no-headers", "-o", "name"],
            "volumeclaim.wharfline.dev/data\n",
        ),
        (
            vec!["get", "namespaces", "--sort-by=.metadata.name", "--no-headers", "-o", "name"],
            "namespace/default\nnamespace/wharfline-system\n",
        ),
    ] {
        assert_eq!(cluster.run(&words).await.ok(), wanted, "{words:?}");
    }
    let yaml = cluster.run(&["get", "vclass/dir", "-o", "yaml"]).await.ok();
    assert!(yaml.starts_with("apiVersion: wharfline.dev/v1alpha1\nkind: VolumeClass\nmetadata:\n"), "{yaml}");
    let json: Value =
        serde_json::from_str(&cluster.run(&["get", "vc,vclass", "-o", "json"]).await.ok()).unwrap();
    assert_eq!(
        (&json["kind"], &json["items"][0]["kind"], &json["items"][1]["kind"]),
        (&json!("List"), &json!("VolumeClaim"), &json!("VolumeClass"))
    );
}

/// Scenario A37.
#[tokio::test]
async fn volumes_are_listed_by_their_plugin() {
    let cluster = Cluster::new().await;
    let of = |name: &str, plugin: &str| {
        format!(
            "{{apiVersion: wharfline.dev/v1alpha1, kind: Volume, metadata: {{name: {name}}}, spec: {{plugin: {plugin}, \
             accessModes: [SingleNodeWriter], source: {{existing: {{handle: {name}}}}}}}}}\n"
        )
    };
    let all = [of("one", "dir"), of("two", "nas"), of("three", "dir")].join("---\n");
    cluster.apply(&all).await.ok();
    for (selector, wanted) in [
        ("spec.plugin=dir", "volume.wharfline.dev/one\nvolume.wharfline.dev/three\n"),
        ("spec.plugin=nas", "volume.wharfline.dev/two\n"),
        ("spec.plugin=none", ""),
    ] {
        let ran = cluster.run(&["get", "volumes", "--field-selector", selector, "-o", "name"]).await;
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, wanted), "{selector}: {}", ran.err);
    }
}

#[tokio::test]
async fn what_is_not_there_is_told_by_the_exit_code() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let ran = cluster.run(&["get", "vc", "data", "nope", "-o", "name"]).await;
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::NotFound, "volumeclaim.wharfline.dev/data\n"));
    assert_eq!(ran.err, "error: volumeclaims.wharfline.dev \"nope\" not found\n");
    for (words, exit) in [
        (vec!["get", "pods"], Exit::NotFound),
        (vec!["get", "vc", "nope", "--ignore-not-found"], Exit::Done),
        (vec!["get", "vc", "data", "-l", "a=b"], Exit::Usage),
        (vec!["get", "vc", "data", "-A"], Exit::Usage),
        (vec!["get", "vc", "-o", "yml"], Exit::Usage),
        (vec!["get", "vc", "--field-selector", "spec.none=1"], Exit::Failed),
        (vec!["delete", "vc", "nope"], Exit::NotFound),
        (vec!["delete", "vc", "nope", "--ignore-not-found"], Exit::Done),
        (vec!["delete", "vc"], Exit::Usage),
        (vec!["describe", "vc", "nope"], Exit::NotFound),
        (vec!["wait", "vc/nope", "--for=condition=Ready"], Exit::NotFound),
        (vec!["wait", "vc/nope", "--for=delete"], Exit::Done),
        (vec!["wait", "vc/data", "--for=nothing"], Exit::Usage),
        (vec!["wait", "vc/data", "--for=condition=Ready", "--timeout=0"], Exit::TimedOut),
        (vec!["label", "vc/data", "app=other"], Exit::Failed),
        (vec!["label", "vc/data", "app=other", "--overwrite"], Exit::Done),
        (vec!["patch", "vc/data", "-p", "{metadata: {resourceVersion: '1'}}"], Exit::Conflict),
        (vec!["version"], Exit::Done),
        (vec!["api-resources"], Exit::Done),
    ] {
        assert_eq!(cluster.run(&words).await.exit, exit, "{words:?}");
    }
}

/// Scenario A33.
/// In whatever order they are named.
#[tokio::test]
async fn of_two_that_are_deleted_each_is_handled_for_itself() {
    for names in [["nope", "data"], ["data", "nope"]] {
        let cluster = Cluster::new().await;
        cluster.apply(APP).await.ok();
        let ran = cluster.run(&["delete", "vc", names[0], names[1], "--wait=false"]).await;
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::NotFound, "volumeclaim/data deleted\n"), "{names:?}");
        assert_eq!(ran.err, "error: volumeclaims.wharfline.dev \"nope\" not found\n", "{names:?}");
        let path = "jsonpath={.metadata.deletionTimestamp}";
        let since = cluster.run(&["get", "vc", "data", "-o", path]).await.ok();
        assert!(!since.is_empty(), "{names:?}: nobody asked for that one's end");
    }
}

/// Of what was only listed nobody said that it is there.
#[tokio::test]
async fn what_goes_by_itself_while_all_are_deleted_is_no_failure() {
    let mut cluster = Cluster::new().await;
    cluster.hasty = true;
    for (words, exit) in [
        (vec!["delete", "secrets", "--all"], Exit::Done),
        (vec!["delete", "secrets", "-l", "app=shop"], Exit::Done),
        (vec!["delete", "secret", "key"], Exit::NotFound),
        (vec!["delete", "secret", "key", "--ignore-not-found"], Exit::Done),
    ] {
        let secret = "{apiVersion: v1, kind: Secret, metadata: {name: key, labels: {app: shop}}}";
        cluster.apply(secret).await.ok();
        let ran = cluster.run(&words).await;
        assert_eq!((ran.exit, ran.out.as_str()), (exit, ""), "{words:?}: {}", ran.err);
        assert!(ran.asked.iter().any(|asked| asked.starts_with("DELETE ")), "{words:?}: {:?}", ran.asked);
    }
}

#[tokio::test]
async fn get_watches_one_line_per_change() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let out = Shared::default();
    let watching = cluster.run_with(&["get", "vc", "-w", "--output-watch-events"], "", out.clone());
    let changing = async {
        out.until("listed", |text| text.contains("data")).await;
        let phase = json!({ "status": { "phase": "Bound" } });
        let client = cluster.server.client(Identity::admin());
        let body = phase.to_string().into_bytes();
        let request =
            http::Request::patch("/apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims/data/status")
                .header("content-type", "application/merge-patch+json")
                .body(body)
                .unwrap();
        client.request_text(request).await.unwrap();
        out.until("changed", |text| text.contains("MODIFIED")).await;
        let request =
            http::Request::delete("/apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims/data");
        client.request_text(request.body(Vec::new()).unwrap()).await.unwrap();
        let request =
            http::Request::patch("/apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims/data")
                .header("content-type", "application/merge-patch+json")
                .body(br#"{"metadata": {"finalizers": null}}"#.to_vec())
                .unwrap();
        client.request_text(request).await.unwrap();
        out.until("gone", |text| text.contains("DELETED")).await
    };
    let text = tokio::select! {
        text = changing => text,
        ran = watching => panic!("the watch ended: {ran:?}"),
    };
    let events: Vec<&str> = text.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(events, ["EVENT", "ADDED", "MODIFIED", "MODIFIED", "DELETED"], "{text}");
    assert!(text.lines().nth(2).unwrap().contains("Bound"), "{text}");
}

#[tokio::test]
async fn delete_asks_for_all_at_once_and_awaits_them_in_any_order() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let out = Shared::default();
    let deleting = Box::pin(cluster.run_with(&["delete", "-f", "-"], APP, out.clone()));
    let freeing = async {
        let all = "plugin/dir deleted\nvolumeclass/dir deleted\nvolumeclaim/data deleted\n";
        out.until("asked for all", |text| text == all).await;
        // The last of the file goes first.
        let client = cluster.server.client(Identity::admin());
        for path in ["namespaces/default/volumeclaims/data", "plugins/dir"] {
            let request = http::Request::patch(format!("/apis/wharfline.dev/v1alpha1/{path}"))
                .header("content-type", "application/merge-patch+json")
                .body(br#"{"metadata": {"finalizers": null}}"#.to_vec())
                .unwrap();
            client.request_text(request).await.unwrap();
        }
    };
    let (ran, ()) = tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(deleting, freeing) })
        .await
        .unwrap();
    let deletes = ran.asked.iter().position(|asked| !asked.starts_with("DELETE "));
    assert_eq!(deletes, Some(3), "{:?}", ran.asked);
    ran.ok();
    for kind in ["plugins", "vclass", "vc"] {
        assert_eq!(cluster.run(&["get", kind, "-o", "name"]).await.ok(), "");
    }
}

#[tokio::test]
async fn a_deletion_that_does_not_end_says_what_holds_it() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let ran = cluster.run(&["delete", "vc/data", "--timeout=1s"]).await;
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::TimedOut, "volumeclaim/data deleted\n"));
    assert_eq!(
        ran.err,
        "error: volumeclaim/data is still there after 1 s\n  why: held by wharfline.dev/protection\n  try: wharfline why volumeclaim/data\n"
    );
    assert_eq!(cluster.run(&["delete", "vc/data", "--wait=false"]).await.ok(), "volumeclaim/data deleted\n");
}

/// What is advised can be typed as it stands, and the cause is the one that `why` tells.
#[tokio::test]
async fn what_does_not_go_from_another_namespace_is_named_with_it() {
    let cluster = Cluster::new().await;
    let app = "
{apiVersion: wharfline.dev/v1alpha1, kind: VolumeClaim, metadata: {name: data, namespace: wharfline-system}, spec: {volumeClassName: fast, accessModes: [SingleNodeWriter], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: wharfline.dev/v1alpha1, kind: Allocation, metadata: {name: web, namespace: wharfline-system}, spec: {volumes: [{name: v, claimName: data}]}}
";
    cluster.apply(app).await.ok();
    let ours = ["-n", "wharfline-system"];
    let has = json!({ "status": { "volumes": [{ "name": "v", "volume": "vol", "published": "Up" }] } });
    cluster.patch(&["alloc/web", "--subresource=status", "-n", "wharfline-system"], &has).await;
    let ran = cluster.run(&[&["delete", "vc/data", "--timeout=1s"][..], &ours].concat()).await;
    let told = "  why: allocation/web -n wharfline-system: uses it\n  try: wharfline why volumeclaim/data -n wharfline-system\n";
    assert_eq!(ran.err, format!("error: volumeclaim/data is still there after 1 s\n{told}"));
    let ran = cluster.run(&[&["wait", "vc/data", "--for=delete", "--timeout=0"][..], &ours].concat()).await;
    assert_eq!(ran.err, format!("error: volumeclaim/data: waited too long\n{told}"));
    let ran = cluster.run(&[&["wait", "alloc/web", "--for=delete", "--timeout=0"][..], &ours].concat()).await;
    assert!(ran.err.ends_with("  try: wharfline delete allocation/web -n wharfline-system\n"), "{ran:?}");
    let advised = ["why", "volumeclaim/data", "-n", "wharfline-system"];
    assert!(cluster.run(&advised).await.ok().contains("allocation/web   uses it  <- cause"));
}

#[tokio::test]
async fn a_deletion_that_takes_long_says_meanwhile_what_it_waits_for() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let ran = cluster.run(&["delete", "vc/data", "--timeout=5s"]).await;
    let waits = "volumeclaim/data waits: held by wharfline.dev/protection\n";
    assert!(ran.err.starts_with(waits) && ran.err.matches(waits).count() == 1, "{}", ran.err);
}

#[tokio::test]
async fn why_walks_from_the_workload_to_what_is_missing() {
    let cluster = Cluster::new().await;
    let app = "
{apiVersion: wharfline.dev/v1alpha1, kind: VolumeClaim, metadata: {name: data}, spec: {volumeClassName: fast, accessModes: [SingleNodeWriter], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: wharfline.dev/v1alpha1, kind: Allocation, metadata: {name: web}, spec: {volumes: [{name: v, claimName: data}]}}
";
    cluster.apply(app).await.ok();
    let page = cluster.run(&["why", "alloc/web"]).await.ok();
    assert!(
        page.starts_with("allocation/web waits. The cause is volumeclass/fast: does not exist\n"),
        "{page}"
    );
    assert!(page.contains("    volumeclass/fast   does not exist  <- cause\n"), "{page}");
    let same = cluster.run(&["why", "claim", "data"]).await.ok();
    assert!(same.ends_with("Blocked too:  allocation/web\n"), "{same}");
    assert_eq!(cluster.run(&["why", "vc/none"]).await.exit, Exit::NotFound);
    assert_eq!(cluster.run(&["why", "secret/x"]).await.exit, Exit::Usage);
    let (one, other) =
        (cluster.run(&["why", "vc/data"]).await.ok(), cluster.run(&["why", "alloc/web"]).await.ok());
    assert_eq!(cluster.run(&["why", "vc/data", "alloc/web"]).await.ok(), format!("{one}\n{other}"));
    let ran = cluster.run(&["why", "vc/none", "vc/data"]).await;
    assert_eq!((ran.exit, ran.out), (Exit::NotFound, one), "one that is missing hides no other");
}

#[tokio::test]
async fn whatever_is_applied_while_it_goes_is_warned_about() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    for object in ["plugin/dir", "volumeclass/dir", "volumeclaim/data"] {
        cluster.patch(&[object], &json!({ "metadata": { "finalizers": ["example.com/held"] } })).await;
        assert_eq!(cluster.run(&["delete", object, "--wait=false"]).await.exit, Exit::Done);
    }
    let ran = cluster.apply(APP).await;
    for object in ["plugin/dir", "volumeclass/dir", "volumeclaim/data"] {
        let told = format!("warning: {object} is being deleted; what is applied goes with it\n");
        assert_eq!(ran.err.matches(&told).count(), 1, "{ran:?}");
    }
}

#[tokio::test]
async fn nobody_waits_for_a_deletion_that_nobody_asked_for_without_being_told() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let ran = cluster.run(&["wait", "vc/data", "--for=delete", "--timeout=0"]).await;
    assert_eq!(
        (ran.exit, ran.err.as_str()),
        (
            Exit::TimedOut,
            "error: volumeclaim/data: waited too long\n  why: nobody has asked for its deletion\n  try: wharfline delete volumeclaim/data\n"
        )
    );
}

#[tokio::test]
async fn every_example_is_accepted() {
    let cluster = Cluster::new().await;
    let mut examples = 0;
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests")).unwrap() {
        let ran = cluster.run(&["apply", "-f", &file.unwrap().path().display().to_string()]).await;
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""));
        examples += 1;
    }
    assert!(examples >= 5, "only {examples} examples were found");
}

#[tokio::test]
async fn logs_of_a_plugin_are_those_of_its_newest_instance_here() {
    let cluster = Cluster::new().await;
    let data = tempfile::tempdir().unwrap();
    let flag = format!("--data-dir={}", data.path().display());
    let ran = cluster.run(&["logs", "plugin/disk", &flag]).await;
    assert_eq!(
        (ran.exit, ran.err.lines().next()),
        (Exit::NotFound, Some("error: no instance of plugin/disk is there"))
    );
    for (name, node) in [("one", "node-a"), ("two", "node-b")] {
        let task = "{name: t, runtime: {process: {command: [x]}}}";
        let alloc = format!(
            "{{apiVersion: wharfline.dev/v1alpha1, kind: Allocation, metadata: {{name: {name}}}, spec: {{tasks: [{task}]}}}}"
        );
        cluster.apply(&alloc).await.ok();
        let uid =
            cluster.run(&["get", &format!("alloc/{name}"), "-o", "jsonpath={.metadata.uid}"]).await.ok();
        let of = format!("{{namespace: default, name: {name}, uid: {uid}}}");
        let spec = format!("{{plugin: disk, role: Node, nodeName: {node}, allocation: {of}, task: t}}");
        let instance = format!(
            "{{apiVersion: wharfline.dev/v1alpha1, kind: PluginInstance, metadata: {{name: {name}}}, spec: {spec}}}"
        );
        cluster.apply(&instance).await.ok();
        if name == "one" {
            let ran = cluster.run(&["logs", "plugin/disk", &flag]).await;
            assert!(ran.exit == Exit::Failed && ran.err.contains("it has instances on: node-a"), "{ran:?}");
        }
        let task = data.path().join("logs").join(uid).join("t");
        std::fs::create_dir_all(&task).unwrap();
        std::fs::write(task.join("stdout.log"), format!("{name}\n")).unwrap();
        let ran = cluster.run(&["logs", "plugin/disk", &flag]).await;
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, format!("{name}\n").as_str()), "{}", ran.err);
    }
}

/// The files are made before the task runs.
#[tokio::test]
async fn logs_of_who_wrote_nothing_say_whether_it_has_started() {
    let cluster = Cluster::new().await;
    let app = "{apiVersion: wharfline.dev/v1alpha1, kind: Allocation, metadata: {name: web}, spec: {tasks: [{name: t, runtime: {process: {command: [x]}}}]}}";
    cluster.apply(app).await.ok();
    let data = tempfile::tempdir().unwrap();
    let flag = format!("--data-dir={}", data.path().display());
    let uid = cluster.run(&["get", "alloc/web", "-o", "jsonpath={.metadata.uid}"]).await.ok();
    let task = data.path().join("logs").join(uid).join("t");
    std::fs::create_dir_all(&task).unwrap();
    for file in ["stdout.log", "stderr.log"] {
        std::fs::write(task.join(file), "").unwrap();
    }
    let event = |reason: &str, message: &str| json!({ "time": "2026-01-01T00:00:00Z", "reason": reason, "message": message });
    for (state, event, told) in [
        (
            "Pending",
            event("StartFailed", "volume v went away"),
            "nothing was written: the task has not started (StartFailed: volume v went away)\n",
        ),
        ("Running", event("Started", "started"), "the task wrote nothing\n"),
    ] {
        let tasks = json!({ "status": { "tasks": [{ "name": "t", "state": state, "events": [event] }] } });
        cluster.patch(&["alloc/web", "--subresource=status"], &tasks).await;
        for name in ["web", "allocation.wharfline.dev/web", "allocation.wharfline.dev/web/t"] {
            let ran = cluster.run(&["logs", name, &flag]).await;
            assert_eq!((ran.exit, ran.out.as_str(), ran.err.as_str()), (Exit::Done, "", told), "{name}");
        }
    }
    std::fs::write(task.join("stdout.log"), "one\n").unwrap();
    assert_eq!(cluster.run(&["logs", "web", "--tail=0", &flag]).await.ok(), "", "it wrote something");
}

#[tokio::test]
async fn logs_are_read_here_or_the_right_node_is_named() {
    let cluster = Cluster::new().await;
    let app = "{apiVersion: wharfline.dev/v1alpha1, kind: Allocation, metadata: {name: web}, spec: {tasks: [{name: t, runtime: {process: {command: [x]}}}]}}";
    cluster.apply(app).await.ok();
    let data = tempfile::tempdir().unwrap();
    let flag = format!("--data-dir={}", data.path().display());
    let ran = cluster.run(&["logs", "web", &flag]).await;
    assert!(ran.exit == Exit::Failed && ran.err.contains("not placed on a node yet"), "{ran:?}");
    cluster
        .patch(&["alloc/web", "--subresource=status"], &json!({ "status": { "nodeName": "node-b" } }))
        .await;
    let ran = cluster.run(&["logs", "web", &flag]).await;
    assert!(ran.err.contains("  try: wharfline logs web -n default on node node-b"), "{ran:?}");
    let waiting = json!({ "status": { "tasks": [{ "name": "t", "state": "Pending" }] } });
    cluster.patch(&["alloc/web", "--subresource=status"], &waiting).await;
    let ran = cluster.run(&["logs", "web", &flag]).await;
    let told = "why: task t was not started yet, so that it has written nothing\n  try: wharfline why allocation/web -n default\n";
    assert!(ran.err.ends_with(told), "{ran:?}");

    let uid = cluster.run(&["get", "alloc/web", "-o", "jsonpath={.metadata.uid}"]).await.ok();
    let task = data.path().join("logs").join(uid).join("t");
    std::fs::create_dir_all(&task).unwrap();
    std::fs::write(task.join("stdout.log"), "one\ntwo\n").unwrap();
    std::fs::write(task.join("stderr.log"), "bad\n").unwrap();
    let ran = cluster.run(&["logs", "alloc/web/t", "--tail=1", &flag]).await;
    assert_eq!((ran.exit, ran.out.as_str(), ran.err.as_str()), (Exit::Done, "two\n", "bad\n"));

    // Followed until the allocation is over, across a rotation, and over a server that is away.
    cluster.away.store(2, Ordering::SeqCst);
    let out = Shared::default();
    let words = ["logs", "web", "-f", "--stream=stdout", flag.as_str()];
    let following = cluster.run_with(&words, "", out.clone());
    let client = cluster.server.client(Identity::admin());
    let writing = async {
        out.until("read", |text| text == "one\ntwo\n").await;
        std::fs::rename(task.join("stdout.log"), task.join("stdout.log.1")).unwrap();
        std::fs::write(task.join("stdout.log"), "three\n").unwrap();
        out.until("followed", |text| text.ends_with("three\n")).await;
        let request =
            http::Request::patch("/apis/wharfline.dev/v1alpha1/namespaces/default/allocations/web/status")
                .header("content-type", "application/merge-patch+json")
                .body(br#"{"status": {"phase": "Complete"}}"#.to_vec())
                .unwrap();
        client.request_text(request).await.unwrap();
    };
    let both = Box::pin(async { tokio::join!(following, writing) });
    let (ran, ()) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    let told = "the server cannot be reached; what is written here is shown all the same\n";
    assert_eq!(
        (ran.exit, ran.out.as_str(), ran.err.as_str()),
        (Exit::Done, "one\ntwo\nthree\n", told),
        "told once"
    );
    assert_eq!(cluster.away.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn wait_ends_with_what_it_waits_for() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let client = cluster.server.client(Identity::admin());
    let path = "/apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims/data/status";
    let ready = async |status: &str| {
        let condition = json!({ "type": "Ready", "status": status, "reason": "R", "message": "m", "observedGeneration": 1 });
        let body =
            json!({ "status": { "phase": "Bound", "conditions": [condition] } }).to_string().into_bytes();
        let request = http::Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .body(body)
            .unwrap();
        client.request_text(request).await.unwrap();
    };
    ready("False").await;
    let ran = cluster.run(&["wait", "vc/data", "--for=condition=Ready", "--timeout=1s"]).await;
    assert_eq!(ran.exit, Exit::TimedOut);
    assert_eq!(
        ran.err,
        "error: volumeclaim/data: waited too long\n  why: Ready is False: R: m\n  try: wharfline why volumeclaim/data\n"
    );
    let waiting = cluster.run(&["wait", "vc/data", "--for=condition=Ready", "--timeout=20s"]);
    let (ran, ()) = tokio::join!(waiting, ready("True"));
    assert_eq!(ran.ok(), "volumeclaim/data condition met\n");
    for goal in ["jsonpath={.status.phase}=Bound", "create", "condition=ready"] {
        assert_eq!(
            cluster.run(&["wait", "vc/data", "--for", goal]).await.ok(),
            "volumeclaim/data condition met\n",
            "{goal}"
        );
    }
}

#[tokio::test]
async fn events_are_listed_and_found_by_their_object() {
    let cluster = Cluster::new().await;
    cluster.apply(APP).await.ok();
    let event = |name: &str, kind: &str, object: &str, minute: u32| {
        format!(
            "{{apiVersion: v1, kind: Event, metadata: {{name: {name}}}, involvedObject: {{kind: {kind}, name: {object}, namespace: default}}, \
             type: Normal, reason: Bound, message: all well, firstTimestamp: '2024-05-01T09:{minute}:00Z', lastTimestamp: '2024-05-01T09:{minute}:00Z', count: 1}}\n---\n"
        )
    };
    let two = event("e2", "VolumeClaim", "data", 59) + &event("e1", "VolumeClaim", "other", 58);
    let made = cluster.apply(&two).await;
    assert_eq!(made.out, "event/e2 created\nevent/e1 created\n", "{made:?}");
    let all = cluster.run(&["events"]).await.ok();
    let objects: Vec<&str> = all.lines().map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert_eq!(objects, ["REASON", "volumeclaim/other", "volumeclaim/data"], "{all}");
    let one = cluster.run(&["events", "--for", "vc/data", "--no-headers"]).await;
    assert!(
        one.asked[0].contains("fieldSelector=involvedObject.kind%3DVolumeClaim%2CinvolvedObject.name%3Ddata"),
        "{one:?}"
    );
    assert_eq!(one.ok().lines().count(), 1);
    assert_eq!(cluster.run(&["events", "--types=Warning"]).await.err, "No events found.\n");
}
