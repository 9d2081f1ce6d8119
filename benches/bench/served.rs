//! A real `wharfline server` in a process of its own, and who comes to it.
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use wharfline::server::Pki;
use wharfline::sys::{Random, random::RealRandom};

use super::stack::wharfline;
use super::wire::{Caller, Door, JSON};

/// A server with a directory of its own. It goes with this value.
pub(crate) struct Served {
    child: Child,
    data: tempfile::TempDir,
    pub(crate) url: String,
    pub(crate) pki: Pki,
    pub(crate) admin: Door,
}

impl Served {
    /// Starts one over this store and waits until it is ready.
    pub(crate) fn start(store: &str) -> Self {
        let data = tempfile::Builder::new().prefix("wfs").tempdir_in("/var/tmp").unwrap();
        let log = std::fs::File::create(data.path().join("log")).unwrap();
        let mut child = Command::new(wharfline())
            .args(["server", "--data-dir"])
            .arg(data.path())
            .args(["--listen", "127.0.0.1:0", "--store", store])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = || std::fs::read_to_string(data.path().join("log")).unwrap_or_default();
        let url =
            line.strip_prefix("ready ").unwrap_or_else(|| panic!("not ready\n{}", log())).trim().to_owned();
        let random = |bytes: &mut [u8]| RealRandom.fill(bytes);
        let pki = Pki::load_or_create(&data.path().join("pki"), Timestamp::now(), &random).unwrap();
        let admin = Door::new(&url, pki.ca_pem(), &pki.issue_admin().unwrap());
        Self { child, data, url, pki, admin }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.data.path().join("log")).unwrap_or_default()
    }

    /// The kubeconfig of its administrator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.data.path().join("kubeconfig")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("-- the server's log --\n{}", self.log());
        }
    }
}

/// The newest revision of the store.
pub(crate) async fn revision(admin: &mut Caller) -> u64 {
    let list = admin.done(Method::GET, "/api/v1/namespaces?limit=1", None).await;
    list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Makes an object of a kind of ours.
pub(crate) async fn create(admin: &mut Caller, plural: &str, object: &Value) {
    let path = format!("{}/{plural}", super::wire::OURS);
    admin.done(Method::POST, &path, Some((JSON, object))).await;
}

/// A plugin without processes of its own: one on each node with these labels; and a class of it.
pub(crate) async fn null_plugin(admin: &mut Caller, placement: &Value) {
    let external = json!({ "external": { "socket": "/run/null.sock" } });
    let plugin = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": "null" },
        "spec": { "instances": [{ "name": "all", "role": "Monolith", "placement": placement, "runtime": external }] } });
    create(admin, "plugins", &plugin).await;
    let class = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass", "metadata": { "name": "null" },
        "spec": { "plugin": "null", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate" } });
    create(admin, "volumeclasses", &class).await;
}

/// A claim of that class.
pub(crate) fn claim(name: &str) -> Value {
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim", "metadata": { "name": name },
        "spec": { "volumeClassName": "null", "accessModes": ["SingleNodeWriter"],
            "resources": { "requests": { "storage": "1Mi" } } } })
}

/// An allocation that uses the claim of its name.
pub(crate) fn allocation(name: &str) -> Value {
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation", "metadata": { "name": name },
        "spec": { "volumes": [{ "name": "v", "claimName": name }] } })
}
