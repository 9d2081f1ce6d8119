//! Every command that is served, as a table.

/// How a command ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// By itself, with this code.
    Exits(i32),
    /// Stopped once it has said so many lines.
    Stopped(usize),
}
use End::{Exits, Stopped};

/// One command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    /// Behind `kubectl`; words are parted by spaces.
    pub(crate) command: &'static str,
    /// What it reads.
    pub(crate) input: &'static str,
    pub(crate) end: End,
    /// What stands in its output, runs of spaces taken as one.
    pub(crate) says: &'static [&'static str],
}

/// Commands on one stage.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) lines: &'static [Line],
    /// What happens once a watch is open: method, path, body; PATCH is a merge patch.
    pub(crate) meanwhile: &'static [(&'static str, &'static str, &'static str)],
}

const fn line(command: &'static str, says: &'static [&'static str]) -> Line {
    Line { command, input: "", end: Exits(0), says }
}

const fn with(command: &'static str, input: &'static str, says: &'static [&'static str]) -> Line {
    Line { command, input, end: Exits(0), says }
}

const fn ends(code: i32, line: Line) -> Line {
    Line { end: Exits(code), ..line }
}

const fn stops(lines: usize, line: Line) -> Line {
    Line { end: Stopped(lines), ..line }
}

const fn case(name: &'static str, lines: &'static [Line]) -> Case {
    Case { name, lines, meanwhile: &[] }
}

const CLASS: &str = r"
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClass
metadata: {name: fast}
spec: {plugin: dir, reclaimPolicy: Delete}
";
const CLASS_KEPT: &str = r"
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClass
metadata: {name: fast}
spec: {plugin: dir, reclaimPolicy: Retain}
";
const CLASS_SLIP: &str = r"
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClass
metadata: {name: fast}
spec: {plguin: dir}
";
const CONFIG: &str = r"
apiVersion: v1
kind: ConfigMap
metadata: {name: made, namespace: default, labels: {set: one}}
data: {colour: blue}
";
const CONFIG_DARK: &str = r"
apiVersion: v1
kind: ConfigMap
metadata: {name: made, namespace: default, labels: {set: one}}
data: {shade: dark}
";
const CONFIG_OTHER: &str = r"
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: default, labels: {set: one}}
data: {colour: red}
";
const GENERATED: &str = r"
apiVersion: test.dev/v1
kind: Gadget
metadata: {generateName: some-, namespace: default}
spec: {plugin: dir}
";
const REPLACED: &str = r"
apiVersion: test.dev/v1
kind: Gadget
metadata: {name: a, namespace: default}
spec: {plugin: dir, size: 9}
";
const REVIEW: &str = r"
apiVersion: authorization.k8s.io/v1
kind: SelfSubjectAccessReview
spec: {resourceAttributes: {verb: get, group: test.dev, resource: gadgets}}
";

const A: &str = "/apis/test.dev/v1/namespaces/default/gadgets/a";
const A_STATUS: &str = "/apis/test.dev/v1/namespaces/default/gadgets/a/status";
const UP: &str = r#"{"status":{"phase":"Up","conditions":[{"type":"Ready","status":"True"}]}}"#;
const MOVED: &str = r#"{"spec":{"nodeName":"n2"}}"#;
const LET_GO: &str = r#"{"metadata":{"finalizers":null}}"#;

pub(crate) const CASES: &[Case] = &[
    case("version", &[line("version", &["Server Version: v1.32.0"])]),
    case(
        "api-resources",
        &[line(
            "api-resources",
            &[
                "volumeclaims vc wharfline.dev/v1alpha1 true VolumeClaim",
                "customresourcedefinitions crd,crds apiextensions.k8s.io/v1 false CustomResourceDefinition",
            ],
        )],
    ),
    case("api-versions", &[line("api-versions", &["authorization.k8s.io/v1", "wharfline.dev/v1alpha1"])]),
    case("get-list", &[line("get gadgets", &["NAME NODE READY AGE a n1 Waiting 0s", "b Waiting 0s"])]),
    case("get-one", &[line("get gadget a", &["a n1 Waiting"])]),
    case("get-everywhere", &[line("get gadgets -A", &["NAMESPACE NAME", "default a"])]),
    case("get-wide", &[line("get gadgets -o wide", &["NAME NODE MODES READY AGE"])]),
    case("get-yaml", &[line("get gadget a -o yaml", &["kind: Gadget", "plugin: dir"])]),
    case("get-json", &[line("get gadgets -o json", &["\"kind\": \"List\"", "\"nodeName\": \"n1\""])]),
    case("get-name", &[line("get gadgets -o name", &["gadget.test.dev/a gadget.test.dev/b"])]),
    case("get-jsonpath", &[line("get gadgets -o jsonpath={.items[*].spec.size}", &["1 3"])]),
    case(
        "get-custom-columns",
        &[line("get gadgets -o custom-columns=N:.metadata.name,S:.spec.size", &["N S a 1 b 3"])],
    ),
    case("get-sorted", &[line("get gadgets --sort-by=.spec.size", &["NAME NODE READY AGE a", "b"])]),
    case("get-in-chunks", &[line("get gadgets --chunk-size=1", &["a n1", "b Waiting"])]),
    case("get-status", &[line("get gadget a --subresource=status", &["a n1 Waiting"])]),
    case("get-by-label", &[line("get gadgets -l app=x -o name", &["gadget.test.dev/a"])]),
    case("get-by-labels", &[line("get gadgets -l app!=x -o name", &["gadget.test.dev/b"])]),
    case(
        "get-by-field",
        &[line("get gadgets --field-selector spec.nodeName=n1 -o name", &["gadget.test.dev/a"])],
    ),
    case(
        "get-by-unknown-field",
        &[ends(
            1,
            line(
                "get gadgets --field-selector spec.size=1",
                &["supported: metadata.name, metadata.namespace, spec.nodeName"],
            ),
        )],
    ),
    case("get-missing", &[ends(1, line("get gadget c", &["(NotFound)"]))]),
    case("get-unserved", &[ends(1, line("get pods", &["the server doesn't have a resource type \"pods\""]))]),
    case("get-raw", &[line("get --raw /readyz?verbose", &["[+]store-followed ok readyz check passed"])]),
    Case {
        name: "get-watch",
        lines: &[stops(4, line("get gadgets -w", &["NAME NODE READY AGE a n1 Waiting", "a n2 Waiting"]))],
        meanwhile: &[("PATCH", A, MOVED)],
    },
    Case {
        name: "get-watch-only",
        lines: &[stops(2, line("get gadgets --watch-only", &["a n2 Waiting"]))],
        meanwhile: &[("PATCH", A, MOVED)],
    },
    Case {
        name: "get-watch-events",
        lines: &[stops(
            300,
            line("get gadgets -w -o yaml --output-watch-events", &["type: ADDED", "type: DELETED"]),
        )],
        meanwhile: &[
            ("PATCH", A, MOVED),
            ("DELETE", A, ""),
            (
                "POST",
                "/apis/test.dev/v1/namespaces/default/gadgets",
                r#"{"metadata":{"name":"c"},"spec":{"plugin":"dir"}}"#,
            ),
        ],
    },
    case("get-crds", &[line("get crd", &["NAME CREATED AT allocations.wharfline.dev 2024-05-01T10:00:00Z"])]),
    case(
        "get-crd",
        &[line("get crd gadgets.test.dev -o yaml", &["kind: CustomResourceDefinition", "type: Established"])],
    ),
    case("get-nodes", &[line("get nodes -o wide", &["NAME STATUS KERNEL BOOT AGE n1 Unknown"])]),
    case("get-secrets", &[line("get secrets", &["NAME TYPE DATA AGE token Opaque 1"])]),
    case(
        "get-several",
        &[line("get cm,secrets,nodes -o name", &["configmap/settings", "secret/token", "node/n1"])],
    ),
    case("describe", &[line("describe gadget a", &["Plugin: dir", "Made", "the gadget was made"])]),
    case(
        "describe-cluster-scoped",
        &[line("describe vclass dir", &["Reclaim Policy: Delete", "Events: <none>"])],
    ),
    case("describe-configmap", &[line("describe cm settings", &["colour: ---- blue"])]),
    case("describe-secret", &[line("describe secret token", &["password: 4 bytes"])]),
    case("describe-crd", &[line("describe crd gadgets.test.dev", &["Kind: Gadget"])]),
    case("events", &[line("events", &["Normal Made Gadget/a the gadget was made"])]),
    case("events-for", &[line("events --for gadget/a", &["the gadget was made"])]),
    case("get-events", &[line("get events", &["NAME LAST-SEEN TYPE REASON OBJECT MESSAGE AGE", "gadget/a"])]),
    case("apply-new", &[with("apply -f -", CLASS, &["volumeclass.wharfline.dev/fast created"])]),
    case(
        "apply-changed",
        &[
            with("apply -f -", CLASS, &["created"]),
            with("apply -f -", CLASS, &["unchanged"]),
            with("apply -f -", CLASS_KEPT, &["configured"]),
            line("get vclass fast -o jsonpath={.spec.reclaimPolicy}", &["Retain"]),
        ],
    ),
    case(
        "apply-changed-core",
        &[
            with("apply -f -", CONFIG, &["created"]),
            with("apply -f -", CONFIG_DARK, &["configured"]),
            line("get cm made -o jsonpath={.data}", &["{\"shade\":\"dark\"}"]),
        ],
    ),
    case(
        "apply-slip",
        &[ends(
            1,
            with(
                "apply -f -",
                CLASS_SLIP,
                &["strict decoding error: unknown field \"spec.plguin\"; did you mean \"plugin\"?"],
            ),
        )],
    ),
    case(
        "apply-dry-run",
        &[
            with("apply --dry-run=server -f -", CLASS, &["created (server dry run)"]),
            ends(1, line("get vclass fast", &["(NotFound)"])),
            with("apply -f -", CLASS, &["created"]),
            with("apply --dry-run=server -f -", CLASS_KEPT, &["configured (server dry run)"]),
            line("get vclass fast -o jsonpath={.spec.reclaimPolicy}", &["Delete"]),
        ],
    ),
    case(
        "apply-prune",
        &[
            with("apply -f -", CONFIG, &["created"]),
            with(
                "apply --prune -l set=one --prune-allowlist=core/v1/ConfigMap -f -",
                CONFIG_OTHER,
                &["configmap/other created", "configmap/made pruned"],
            ),
        ],
    ),
    case(
        "diff",
        &[
            with("apply -f -", CLASS, &["created"]),
            with("diff -f -", CLASS, &[]),
            ends(1, with("diff -f -", CLASS_KEPT, &["+ reclaimPolicy: Retain"])),
        ],
    ),
    case("diff-new", &[ends(1, with("diff -f -", CLASS, &["+ reclaimPolicy: Delete"]))]),
    case(
        "create-file",
        &[
            with("create -f -", CLASS, &["created"]),
            ends(1, with("create -f -", CLASS, &["(AlreadyExists)"])),
        ],
    ),
    case("create-dry-run", &[with("create --dry-run=server -f -", CLASS, &["created (server dry run)"])]),
    case("create-generated-name", &[with("create -f - -o name", GENERATED, &["gadget.test.dev/some-"])]),
    case(
        "create-namespace",
        &[line("create namespace shop", &["namespace/shop created"]), line("get ns shop", &["shop Active"])],
    ),
    case(
        "create-secret",
        &[
            line("create secret generic s --from-literal=user=me --type=test.dev/x", &["secret/s created"]),
            line("get secret s -o jsonpath={.type}{.data}", &["test.dev/x{\"user\":\"bWU=\"}"]),
        ],
    ),
    case(
        "create-configmap",
        &[
            line("create configmap c --from-literal=k=v", &["configmap/c created"]),
            line("get cm c -o jsonpath={.data}", &["{\"k\":\"v\"}"]),
        ],
    ),
    case(
        "create-review",
        &[with("create -f - -o jsonpath={.status} --validate=false", REVIEW, &["{\"allowed\":true}"])],
    ),
    case("create-crd", &[ends(1, line("label crd gadgets.test.dev a=b", &["read-only"]))]),
    case(
        "patch-merge",
        &[
            line("patch gadget a --type=merge -p {\"spec\":{\"size\":4}}", &["patched"]),
            line("get gadget a -o jsonpath={.spec.size}{.metadata.generation}", &["42"]),
        ],
    ),
    case(
        "patch-json",
        &[line(
            "patch gadget a --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/size\",\"value\":4}]",
            &["patched"],
        )],
    ),
    case(
        "patch-strategic",
        &[line("patch node n1 -p {\"spec\":{\"unschedulable\":true}}", &["node/n1 patched"])],
    ),
    case(
        "patch-strategic-refused",
        &[ends(1, line("patch vclass dir -p {\"spec\":{\"default\":true}}", &["strategic merge"]))],
    ),
    case(
        "patch-status",
        &[
            line(
                "patch gadget a --subresource=status --type=merge -p {\"status\":{\"phase\":\"Up\"}}",
                &["patched"],
            ),
            line("get gadget a", &["a n1 Up"]),
        ],
    ),
    case(
        "patch-refused",
        &[ends(
            1,
            line(
                "patch gadget a --type=merge -p {\"spec\":{\"plugin\":\"other\",\"mode\":\"x\"}}",
                &["spec.plugin", "spec.mode"],
            ),
        )],
    ),
    case(
        "label",
        &[line("label gadget a tier=one", &["labeled"]), line("label gadget a tier-", &["unlabeled"])],
    ),
    case("annotate", &[line("annotate gadget a note=x", &["annotated"])]),
    case(
        "edit",
        &[line("edit gadget a", &["edited"]), line("get gadget a -o jsonpath={.spec.size}", &["5"])],
    ),
    case(
        "replace",
        &[
            with("replace -f -", REPLACED, &["replaced"]),
            line("get gadget a -o jsonpath={.spec.size}", &["9"]),
        ],
    ),
    case(
        "replace-core",
        &[with("apply -f -", CONFIG, &["created"]), with("replace -f -", CONFIG_DARK, &["replaced"])],
    ),
    case(
        "delete",
        &[line("delete gadget a", &["\"a\" deleted"]), ends(1, line("get gadget a", &["(NotFound)"]))],
    ),
    Case {
        name: "delete-foreground",
        lines: &[line("delete gadget a --cascade=foreground", &["\"a\" deleted"])],
        meanwhile: &[("PATCH", A, LET_GO)],
    },
    Case {
        name: "delete-orphan",
        lines: &[line("delete gadget a --cascade=orphan", &["\"a\" deleted"])],
        meanwhile: &[("PATCH", A, LET_GO)],
    },
    case(
        "delete-without-wait",
        &[line("delete vc,gadget --all --wait=false", &["\"a\" deleted", "\"b\" deleted"])],
    ),
    case("delete-all", &[line("delete gadgets --all", &["\"a\" deleted", "\"b\" deleted"])]),
    case("delete-by-label", &[line("delete gadgets -l app=x", &["\"a\" deleted"])]),
    case(
        "delete-dry-run",
        &[
            line("delete gadget a --dry-run=server", &["deleted (server dry run)"]),
            line("get gadget a", &["a n1"]),
        ],
    ),
    case("delete-missing", &[line("delete gadget c --ignore-not-found", &[])]),
    Case {
        name: "wait-for-condition",
        lines: &[line("wait gadget/a --for=condition=Ready --timeout=30s", &["condition met"])],
        meanwhile: &[("PATCH", A_STATUS, UP)],
    },
    Case {
        name: "wait-for-jsonpath",
        lines: &[line("wait gadget/a --for=jsonpath={.spec.nodeName}=n2 --timeout=30s", &["condition met"])],
        meanwhile: &[("PATCH", A, MOVED)],
    },
    Case {
        name: "wait-for-deletion",
        lines: &[line("wait gadget/a --for=delete --timeout=30s", &["condition met"])],
        meanwhile: &[("DELETE", A, "")],
    },
    case(
        "wait-for-crd",
        &[line("wait crd/gadgets.test.dev --for=condition=Established --timeout=30s", &["condition met"])],
    ),
    case("explain", &[line("explain volumeclaims.spec.resources", &["requests", "DESCRIPTION"])]),
    case("explain-metadata", &[line("explain gadget.metadata.ownerReferences", &["by which it is found"])]),
    case("explain-core", &[line("explain nodes.spec.taints", &["effect", "NoExecute"])]),
    case("explain-recursive", &[line("explain allocations --recursive", &["restartPolicy", "status"])]),
    case("auth-can-i", &[line("auth can-i create gadgets", &["yes"])]),
    case("auth-can-i-status", &[line("auth can-i patch gadgets --subresource=status", &["yes"])]),
    case("auth-can-i-all", &[line("auth can-i * *", &["yes"])]),
    case("auth-can-i-not", &[ends(1, line("auth can-i delete crd", &["no"]))]),
    case("auth-can-i-unserved", &[ends(1, line("auth can-i get pods", &["no"]))]),
    case("auth-can-i-path", &[line("auth can-i get /metrics", &["yes"])]),
    case(
        "auth-can-i-list",
        &[line(
            "auth can-i --list",
            &[
                "gadgets.test.dev [] [] [create delete deletecollection get list patch update watch]",
                "[/metrics]",
            ],
        )],
    ),
    case("auth-whoami", &[line("auth whoami", &["Username wharfline:admin", "Groups [wharfline:admins]"])]),
    case("cordon", &[line("cordon n1", &["cordoned"]), line("uncordon n1", &["uncordoned"])]),
    case(
        "taint",
        &[
            line("taint nodes n1 wharfline.dev/out-of-service=boot-1:NoExecute", &["tainted"]),
            line("taint nodes n1 more=x:NoSchedule", &["tainted"]),
            line("get node n1 -o jsonpath={.spec.taints[*].key}", &["more wharfline.dev/out-of-service"]),
            line("taint nodes n1 wharfline.dev/out-of-service-", &["untainted"]),
            line("get node n1 -o jsonpath={.spec.taints[*].key}", &["more"]),
        ],
    ),
];
