//! The command line as a process: the real binary and real kubectl against the same server, over HTTP.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test stops at what it did not expect")]
mod support {
    pub(crate) mod server_api;
}

use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::server_api::{options, store};
use wharfline::server::{Identity, Server};

/// A server on a loopback port, a home directory and a data directory with the kubeconfig.
struct Site {
    directory: tempfile::TempDir,
    serving: tokio::task::JoinHandle<()>,
}

/// How a process ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
}

impl Site {
    async fn new() -> Self {
        let server = Server::new(store(), wharfline::api::definitions(), options());
        server.bootstrap().await.unwrap();
        let router = server.router().layer(axum::Extension(Identity::admin()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            // The server lives as long as its routes.
            let _server = server;
            axum::serve(listener, router).await.unwrap();
        });
        let directory = tempfile::tempdir().unwrap();
        let site = Self { directory, serving };
        std::fs::create_dir_all(site.data()).unwrap();
        std::fs::write(site.data().join("kubeconfig"), kubeconfig(&address.to_string())).unwrap();
        site
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    async fn spawn(&self, program: &Path, words: &[&str], variables: &[(&str, &str)]) -> Ended {
        let home = self.directory.path().join("home");
        let mut command = std::process::Command::new(program);
        command.args(words).stdin(Stdio::null()).env_clear().env("HOME", &home).env("PATH", "/usr/bin:/bin");
        // A proxy of the environment must not come between us and the loopback.
        command.env("HTTPS_PROXY", "http://127.0.0.1:1").env("https_proxy", "http://127.0.0.1:1");
        command.envs(variables.iter().copied());
        let ended = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
        let ended = ended.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { code: ended.status.code(), out: text(ended.stdout), err: text(ended.stderr) }
    }

    async fn wharfline(&self, words: &[&str]) -> Ended {
        let data = self.data().display().to_string();
        let program = Path::new(env!("CARGO_BIN_EXE_wharfline"));
        self.spawn(program, words, &[("WHARFLINE_DATA_DIR", &data)]).await
    }

    async fn kubectl(&self, words: &[&str]) -> Ended {
        let config = self.data().join("kubeconfig").display().to_string();
        self.spawn(Path::new("kubectl"), words, &[("KUBECONFIG", &config)]).await
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn kubeconfig(address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters: [{{name: here, cluster: {{server: 'http://{address}'}}}}]\n\
         users: [{{name: me, user: {{}}}}]\n\
         contexts: [{{name: here, context: {{cluster: here, user: me}}}}]\n"
    )
}

const CLAIM: &str = "
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClaim
metadata:
  name: data
  labels: {a: '1', b: 'yes'}
spec:
  volumeClassName: dir
  accessModes: [SingleNodeWriter]
  resources: {requests: {storage: 1Gi}}
";

#[tokio::test]
async fn the_kubeconfig_of_the_data_directory_is_found() {
    let site = Site::new().await;
    let file = site.write("claim.yaml", CLAIM);
    assert_eq!(site.wharfline(&["apply", "-f", &file]).await.ok(), "volumeclaim/data created\n");
    // Flags stand before or after the verb.
    assert_eq!(
        site.wharfline(&["-n", "default", "get", "vc", "-o", "name"]).await.ok(),
        "volumeclaim.wharfline.dev/data\n"
    );
    let version = site.wharfline(&["version"]).await.ok();
    assert!(version.contains("Client Version: v") && version.contains("Server Version: v"), "{version}");
}

#[tokio::test]
async fn exit_codes_say_what_kind_of_failure_it_was() {
    let site = Site::new().await;
    let nowhere = site.write("nowhere", &kubeconfig("127.0.0.1:1"));
    let broken = site.write("broken", "clusters: 7");
    for (words, code, told) in [
        (vec!["get", "vc", "nope"], 3, "not found"),
        (vec!["get"], 2, "Usage"),
        (vec!["gett", "vc"], 2, "get"),
        (vec!["get", "vc", "--kubeconfig", &nowhere], 6, "error: the server cannot be reached"),
        (vec!["get", "vc", "--kubeconfig", "/does/not/exist"], 1, "/does/not/exist"),
        (vec!["get", "vc", "--kubeconfig", &broken], 1, "cannot be used"),
        (vec!["get", "vc", "--data-dir", "/does/not/exist"], 1, "error: no kubeconfig was found"),
        (vec!["apply", "-f", "/does/not/exist.yaml"], 1, "cannot be read"),
        (vec!["apply", "-f", "https://example.com/a.yaml"], 1, "URLs are not opened"),
        (vec!["wait", "vc/nope", "--for=create", "--timeout=1s"], 5, "waited too long"),
        (vec!["version", "--client", "--kubeconfig", "/does/not/exist"], 0, ""),
    ] {
        let ended = site.wharfline(&words).await;
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        assert!(ended.err.contains(told), "{words:?}: {ended:?}");
    }
}

#[tokio::test]
async fn kubectl_and_we_continue_each_others_work() {
    let site = Site::new().await;
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        eprintln!("NOT TESTED with kubectl: there is none on the path");
        return;
    }
    let file = site.write("claim.yaml", CLAIM);
    assert_eq!(site.kubectl(&["apply", "-f", &file]).await.ok(), "volumeclaim.wharfline.dev/data created\n");
    assert_eq!(site.wharfline(&["apply", "-f", &file]).await.ok(), "volumeclaim/data unchanged\n");
    // What one tool applied and the file dropped, the other removes.
    let fewer = site.write("claim.yaml", &CLAIM.replace("{a: '1', b: 'yes'}", "{b: 'yes', c: '3'}"));
    assert_eq!(site.wharfline(&["apply", "-f", &fewer]).await.ok(), "volumeclaim/data configured\n");
    let labels = ["get", "volumeclaims", "data", "-o", "jsonpath={.metadata.labels}"];
    assert_eq!(site.kubectl(&labels).await.ok(), r#"{"b":"yes","c":"3"}"#);
    assert_eq!(site.wharfline(&labels).await.ok(), r#"{"b":"yes","c":"3"}"#);
    assert_eq!(
        site.kubectl(&["apply", "-f", &fewer]).await.ok(),
        "volumeclaim.wharfline.dev/data unchanged\n"
    );
    let last = site.write("claim.yaml", &CLAIM.replace("{a: '1', b: 'yes'}", "{}"));
    assert_eq!(
        site.kubectl(&["apply", "-f", &last]).await.ok(),
        "volumeclaim.wharfline.dev/data configured\n"
    );
    assert_eq!(site.wharfline(&labels).await.ok(), "{}");
    assert_eq!(site.wharfline(&["apply", "-f", &last]).await.ok(), "volumeclaim/data unchanged\n");

    // Tables, names and YAML are the same from both.
    for words in [
        vec!["get", "volumeclaims"],
        vec!["get", "vc", "data", "-o", "wide"],
        vec!["get", "vc,namespaces"],
        vec!["get", "vc", "-A", "--show-labels"],
        vec!["get", "vc", "-o", "name"],
        vec!["get", "namespaces", "--sort-by=.metadata.name"],
        vec!["get", "vc", "data", "-o", "json"],
        vec!["get", "vc", "-o", "custom-columns=NAME:.metadata.name,NONE:.status.none"],
        vec!["get", "vc", "-o", "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}"],
    ] {
        let (ours, theirs) = (site.wharfline(&words).await.ok(), site.kubectl(&words).await.ok());
        let lines = |text: &str| text.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
        if words.contains(&"json") {
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(&ours), value(&theirs));
        } else {
            assert_eq!(lines(&ours), lines(&theirs), "{words:?}");
        }
    }
    let ours = site.wharfline(&["get", "vc", "data", "-o", "yaml"]).await.ok();
    let back = site.write("back.yaml", &ours);
    assert_eq!(
        site.kubectl(&["apply", "--dry-run=server", "-f", &back, "-o", "name"]).await.ok(),
        "volumeclaim.wharfline.dev/data\n"
    );

    // Texts that YAML readers like to take for something else come back as they were.
    let texts = serde_json::json!({
        "a": "yes", "b": "0777", "c": "1e3", "d": "null", "e": "", "f": " x ", "g": "a: b", "h": "# c", "i": "1_000",
        "j": "one\n\n  two\n", "k": "\ttab", "l": "é😀\u{7}\u{2028}", "m": "2024-01-01", "n": "12:30:45", "on": "off", "y": "~",
        "o": "0o17", "p": "0x1f", "q": ".5", "r": "-", "s": "=", "t": "<<", "u": "- a", "v": "trail \n", "w": "!x", "x": "&a *b",
    });
    let map = serde_json::json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "odd" }, "data": texts });
    let file = site.write("odd.json", &map.to_string());
    assert_eq!(site.wharfline(&["apply", "-f", &file]).await.ok(), "configmap/odd created\n");
    let back = site.write("odd.yaml", &site.wharfline(&["get", "configmap", "odd", "-o", "yaml"]).await.ok());
    let read = site.kubectl(&["apply", "--dry-run=client", "-f", &back, "-o", "json"]).await.ok();
    let read: serde_json::Value = serde_json::from_str(&read).unwrap();
    assert_eq!(read["data"], texts);
}
