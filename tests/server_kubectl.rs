//! Real kubectl against the server, over TLS. Without a kubectl on the path it says so and tests nothing.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a run without kubectl must say so")]
mod support {
    pub(crate) mod server_api;
    pub(crate) mod server_tls;
}

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;
use support::server_api::*;
use support::server_tls::Tls;
use wharfline::api::definitions;

const CLASS: &str = "
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClass
metadata:
  name: dir
spec:
  plugin: dir
  reclaimPolicy: Delete
";

const CONFIG: &str = "
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  namespace: default
data:
  colour: blue
";

/// kubectl with a home and caches of its own.
#[derive(Clone)]
struct Kubectl {
    home: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// None if there is no kubectl here.
    fn find(tls: &Tls) -> Option<Self> {
        let found = Command::new("kubectl").args(["version", "--client"]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            eprintln!("no kubectl on the path: not tested with it");
            return None;
        }
        let home = tls.directory.path().join("home");
        std::fs::create_dir(&home).unwrap();
        Some(Self { home, kubeconfig: tls.kubeconfig() })
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["60", "kubectl", "--cache-dir"]).arg(self.home.join("cache"));
        command.args(line.split_whitespace());
        command.env("HOME", &self.home).env("KUBECONFIG", &self.kubeconfig).current_dir(&self.home);
        command
    }

    /// Runs a command; whether it succeeded, and all it said.
    async fn run(&self, line: &str, input: &str) -> (bool, String) {
        let mut command = self.command(line);
        let input = input.to_owned();
        let run = move || {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        };
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// Runs a command that must succeed.
    async fn ok(&self, line: &str) -> String {
        self.ok_with(line, "").await
    }

    async fn ok_with(&self, line: &str, input: &str) -> String {
        let (good, said) = self.run(line, input).await;
        assert!(good, "kubectl {line}: {said}");
        said
    }

    /// Runs a command that must fail.
    async fn fails(&self, line: &str, input: &str) -> String {
        let (good, said) = self.run(line, input).await;
        assert!(!good, "kubectl {line} succeeded: {said}");
        said
    }

    /// A command that goes on, line by line.
    fn follow(&self, line: &str) -> Following {
        let mut child = self.command(line).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Following { child, lines }
    }
}

struct Following {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Following {
    /// The next line, with its words parted by single spaces.
    async fn line(self, expected: &str) -> Self {
        let wait = move || {
            let line = self.lines.recv_timeout(Duration::from_secs(30)).expect("a line");
            (line.split_whitespace().collect::<Vec<_>>().join(" "), self)
        };
        let (line, following) = tokio::task::spawn_blocking(wait).await.unwrap();
        assert!(line.starts_with(expected), "{line:?}, not {expected:?}");
        following
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn words(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_live_their_life_under_kubectl() {
    let mut kinds = definitions();
    kinds.push(gadget());
    let tls = Tls::start(kinds).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    assert_eq!(kubectl.ok_with("apply -f -", CLASS).await.trim(), "volumeclass.wharfline.dev/dir created");
    assert!(kubectl.ok_with("apply -f -", CLASS).await.contains("unchanged"));
    let changed = CLASS.replace("Delete", "Retain");
    assert!(kubectl.ok_with("diff -f -", CLASS).await.is_empty());
    assert!(kubectl.fails("diff -f -", &changed).await.contains("+  reclaimPolicy: Retain"));
    assert!(kubectl.ok_with("apply -f -", &changed).await.contains("configured"));
    assert_eq!(kubectl.ok("get vclass dir -o jsonpath={.spec.reclaimPolicy}").await, "Retain");
    let table = words(&kubectl.ok("get volumeclasses").await);
    assert_eq!(table[0], "NAME PLUGIN RECLAIM BINDING DEFAULT AGE");
    assert!(table[1].starts_with("dir dir Retain Immediate "), "{table:?}");
    assert_eq!(kubectl.ok("get vclass -o name").await.trim(), "volumeclass.wharfline.dev/dir");
    kubectl.ok("label vclass dir team=x").await;
    kubectl.ok("annotate vclass dir note=y").await;
    assert!(kubectl.ok("get vclass -l team=x -o yaml").await.contains("note: \"y\""));
    kubectl.ok("patch vclass dir --type=merge -p {\"spec\":{\"default\":true}}").await;
    kubectl.fails("patch vclass dir --type=merge -p {\"spec\":{\"plugin\":\"other\"}}", "").await;
    assert_eq!(kubectl.ok("get vclass dir -o jsonpath={.metadata.generation}").await, "3");
    assert!(kubectl.ok("describe vclass dir").await.contains("Reclaim Policy"));
    assert!(kubectl.ok("delete vclass dir").await.contains("deleted"));
    assert!(kubectl.fails("get vclass dir", "").await.contains("(NotFound)"));
    tls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn core_kinds_are_served_to_kubectl_too() {
    let tls = Tls::start(vec![gadget()]).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    kubectl.ok_with("apply -f -", CONFIG).await;
    kubectl.ok_with("apply -f -", &CONFIG.replace("colour: blue", "shade: dark")).await;
    assert_eq!(kubectl.ok("get cm settings -o jsonpath={.data}").await, "{\"shade\":\"dark\"}");
    let secret = "
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: default}
stringData: {password: canary-one}
";
    kubectl.ok_with("apply -f -", secret).await;
    let table = words(&kubectl.ok("get secrets").await);
    assert_eq!(table[0], "NAME TYPE DATA AGE");
    assert!(table[1].starts_with("token Opaque 1 "));
    assert!(!kubectl.ok("get secrets -o wide").await.contains("canary"));
    assert_eq!(kubectl.ok("get secret token -o jsonpath={.data.password}").await, "Y2FuYXJ5LW9uZQ==");
    kubectl
        .ok_with("create -f -", r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}"#)
        .await;
    let namespaces = words(&kubectl.ok("get ns").await);
    assert!(namespaces.iter().any(|line| line.starts_with("shop Active ")), "{namespaces:?}");
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}"#;
    kubectl.ok_with("create -f -", node).await;
    kubectl.ok("cordon n1").await;
    let nodes = words(&kubectl.ok("get nodes -o wide").await);
    assert_eq!(nodes[0], "NAME STATUS KERNEL BOOT AGE");
    kubectl.ok("taint nodes n1 wharfline.dev/out-of-service=boot-1:NoExecute").await;
    kubectl.ok("label node n1 zone=a").await;
    let taints = kubectl.ok("get node n1 -o jsonpath={.spec.taints[*].value}{.spec.unschedulable}").await;
    assert!(taints.contains("boot-1") && taints.ends_with("true"), "{taints}");
    kubectl.ok("uncordon n1").await;
    tls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_watches_and_waits() {
    let tls = Tls::start(vec![gadget()]).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    post(&tls.server, GADGETS, a_gadget("a")).await;
    let following = kubectl.follow("get gadgets -w");
    let following = following.line("NAME NODE READY AGE").await.line("a Waiting").await;
    merge(&tls.server, &format!("{GADGETS}/a"), json!({ "spec": { "nodeName": "n1" } })).await;
    let following = following.line("a n1 Waiting").await;
    post(&tls.server, GADGETS, a_gadget("b")).await;
    drop(following.line("b Waiting").await);
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let waiting = kubectl.clone();
    let wait =
        tokio::spawn(async move { waiting.ok("wait gadget/a --for=condition=Ready --timeout=30s").await });
    merge(&tls.server, &format!("{GADGETS}/a/status"), status).await;
    assert!(wait.await.unwrap().contains("condition met"));
    kubectl.ok("wait gadget/a --for=jsonpath={.spec.nodeName}=n1 --timeout=30s").await;
    let waiting = kubectl.clone();
    let gone = tokio::spawn(async move { waiting.ok("wait gadget/b --for=delete --timeout=30s").await });
    assert!(kubectl.ok("delete gadget b").await.contains("\"b\" deleted"));
    gone.await.unwrap();
    assert_eq!(kubectl.ok("get gadgets --chunk-size=1 -o name").await.trim(), "gadget.test.dev/a");
    assert_eq!(kubectl.ok("get gadgets --field-selector spec.nodeName=n1 -o name").await.lines().count(), 1);
    assert!(kubectl.fails("get gadgets --field-selector spec.size=1", "").await.contains("not supported"));
    assert!(kubectl.ok("get gadgets --sort-by=.spec.size").await.contains("Waiting"));
    tls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_what_is_wrong() {
    let tls = Tls::start(definitions()).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    let slip = CLASS.replace("plugin:", "plguin:");
    let said = kubectl.fails("apply -f -", &slip).await;
    assert!(
        said.contains("strict decoding error: unknown field \"spec.plguin\"; did you mean \"plugin\"?"),
        "{said}"
    );
    let faulty = "
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClaim
metadata: {name: c, namespace: default}
spec:
  volumeClassName: dir
  accessModes: [SingleNodeWritr]
  resources: {requests: {storage: 2Gi}, limits: {storage: 1Gi}}
  volumeMode: Blok
";
    let said = kubectl.fails("apply -f -", faulty).await;
    for field in ["spec.accessModes[0]", "spec.resources.limits.storage", "spec.volumeMode"] {
        assert!(said.contains(field), "{field} is not in: {said}");
    }
    assert!(said.contains("did you mean \"SingleNodeWriter\"?"), "{said}");
    assert!(kubectl.ok("get volumeclaims").await.contains("No resources found"));
    tls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_on_the_servers_side() {
    let tls = Tls::start(definitions()).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    let apply = "apply --server-side -f -";
    let said = kubectl.ok_with("apply --server-side --dry-run=server -f -", CLASS).await;
    assert!(said.contains("volumeclass.wharfline.dev/dir serverside-applied (server dry run)"), "{said}");
    assert!(kubectl.fails("get vclass dir", "").await.contains("(NotFound)"));
    assert!(kubectl.fails("diff --server-side -f -", CLASS).await.contains("+  plugin: dir"));
    let said = kubectl.ok_with(apply, CLASS).await;
    assert_eq!(said.trim(), "volumeclass.wharfline.dev/dir serverside-applied");
    assert!(kubectl.ok_with("diff --server-side -f -", CLASS).await.is_empty());
    let changed = CLASS.replace("Delete", "Retain");
    assert!(kubectl.fails("diff --server-side -f -", &changed).await.contains("+  reclaimPolicy: Retain"));
    kubectl.ok_with(apply, &changed).await;
    assert!(!kubectl.ok("get vclass dir -o yaml").await.contains("managedFields"));
    let shown = kubectl.ok("get vclass dir -o yaml --show-managed-fields").await;
    assert!(shown.contains("manager: kubectl") && shown.contains("operation: Apply"), "{shown}");
    assert!(shown.contains("f:reclaimPolicy: {}"), "{shown}");
    // Another manager, and a person with a patch.
    let refused = kubectl.fails("apply --server-side --field-manager=other -f -", CLASS).await;
    assert!(
        refused.contains("Apply failed with 1 conflict: conflict with \"kubectl\": .spec.reclaimPolicy"),
        "{refused}"
    );
    kubectl.ok("patch vclass dir --type=merge -p {\"spec\":{\"reclaimPolicy\":\"Delete\"}}").await;
    let refused = kubectl.fails(apply, &changed).await;
    let wording = "conflict with \"kubectl-patch\" using wharfline.dev/v1alpha1: .spec.reclaimPolicy";
    assert!(refused.contains(wording), "{refused}");
    kubectl.ok_with("apply --server-side --force-conflicts -f -", &changed).await;
    assert_eq!(kubectl.ok("get vclass dir -o jsonpath={.spec.reclaimPolicy}").await, "Retain");
    kubectl.ok_with(apply, &CLASS.replace("  reclaimPolicy: Delete\n", "")).await;
    assert_eq!(kubectl.ok("get vclass dir -o jsonpath={.spec.reclaimPolicy}").await, "Delete", "the default");
    let slip = CLASS.replace("plugin:", "plguin:");
    assert!(kubectl.fails(apply, &slip).await.contains("unknown field \"spec.plguin\""));
    tls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_moves_from_one_side_to_the_other() {
    let tls = Tls::start(definitions()).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    kubectl.ok_with("apply -f -", CONFIG).await;
    let dark = CONFIG.replace("blue", "dark");
    // It changes a value on the way: what it applied on the other side is its own.
    kubectl.ok_with("apply --server-side -f -", &dark).await;
    assert_eq!(kubectl.ok("get cm settings -o jsonpath={.data}").await, "{\"colour\":\"dark\"}");
    let yaml = kubectl.ok("get cm settings -o yaml --show-managed-fields").await;
    assert!(yaml.contains("operation: Apply") && !yaml.contains("kubectl-client-side-apply"), "{yaml}");
    // And a field goes with its last word, which needs the move.
    kubectl.ok_with("apply --server-side -f -", &CONFIG.replace("colour: blue", "shade: deep")).await;
    assert_eq!(kubectl.ok("get cm settings -o jsonpath={.data}").await, "{\"shade\":\"deep\"}");
    // Back again: the note on the object stayed true.
    kubectl.ok_with("apply -f -", CONFIG).await;
    assert_eq!(kubectl.ok("get cm settings -o jsonpath={.data}").await, "{\"colour\":\"blue\"}");
    tls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_discovers_and_explains() {
    let tls = Tls::start(definitions()).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    let resources = words(&kubectl.ok("api-resources").await);
    for line in [
        "volumeclaims vc wharfline.dev/v1alpha1 true VolumeClaim",
        "allocations alloc wharfline.dev/v1alpha1 true Allocation",
        "nodes no v1 false Node",
        "secrets v1 true Secret",
        "leases coordination.k8s.io/v1 true Lease",
    ] {
        assert!(resources.iter().any(|row| row == line), "{line:?} is not in {resources:#?}");
    }
    let versions = kubectl.ok("api-versions").await;
    assert_eq!(
        versions.lines().collect::<Vec<_>>(),
        [
            "apiextensions.k8s.io/v1",
            "authentication.k8s.io/v1",
            "authorization.k8s.io/v1",
            "coordination.k8s.io/v1",
            "events.k8s.io/v1",
            "v1",
            "wharfline.dev/v1alpha1"
        ]
    );
    let explained = kubectl.ok("explain volumeclaims.spec").await;
    assert!(explained.contains("accessModes"), "{explained}");
    assert!(kubectl.ok("explain secret").await.contains("stringData"));
    assert!(kubectl.ok("version").await.contains("Server Version: v1.32.0"));
    tls.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reads_events_of_an_object() {
    let tls = Tls::start(vec![gadget()]).await;
    let Some(kubectl) = Kubectl::find(&tls) else { return };
    let made = post(&tls.server, GADGETS, a_gadget("a")).await;
    let event = json!({
        "metadata": { "name": "a.1", "namespace": "default" },
        "regarding": {
            "kind": "Gadget", "name": "a", "namespace": "default", "apiVersion": "test.dev/v1",
            "uid": made.at("/metadata/uid")
        },
        "note": "the gadget was made", "reason": "Made", "type": "Normal", "action": "Make",
        "reportingController": "test", "reportingInstance": "one", "eventTime": "2024-05-01T09:59:00.000000Z"
    });
    let posted = post(&tls.server, "/apis/events.k8s.io/v1/namespaces/default/events", event).await;
    assert_eq!(posted.code, 201);
    let described = kubectl.ok("describe gadget a").await;
    assert!(described.contains("the gadget was made"), "{described}");
    assert!(kubectl.ok("events --for gadget/a").await.contains("the gadget was made"));
    let table = words(&kubectl.ok("get events").await);
    assert_eq!(table[0], "NAME LAST-SEEN TYPE REASON OBJECT MESSAGE AGE");
    assert!(table[1].contains("Normal Made gadget/a the gadget was made"), "{table:?}");
    tls.stop().await;
}
