//! `manifests/external.yaml`: a driver that something else runs, away and back again under a published volume.
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{Rig, WHARFLINE, until};

const EXTERNAL: &str = include_str!("../../manifests/external.yaml");

/// A driver that this test runs.
struct Driver {
    directory: tempfile::TempDir,
    process: Option<Child>,
}

impl Driver {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("driver").tempdir_in("/var/tmp").unwrap();
        Self { directory, process: None }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    fn volumes(&self) -> PathBuf {
        self.directory.path().join("data/volumes")
    }

    fn start(&mut self) {
        let endpoint = format!("unix://{}", self.socket().display());
        let data = self.directory.path().join("data");
        let mut command = Command::new(WHARFLINE);
        command.args(["csi", "dir", "--node-id", "node-a", "--endpoint", &endpoint, "--data-dir"]).arg(data);
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        self.process = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Obligation CO-PLUG-17.
#[test]
fn a_driver_that_goes_away_and_comes_back_finds_everything_as_it_was() {
    let (mut rig, mut driver) = (Rig::new(), Driver::new());
    rig.up();
    let manifest = EXTERNAL.replace("/run/my-driver/csi.sock", driver.socket().to_str().unwrap());
    assert_ne!(manifest, EXTERNAL);
    rig.apply(&manifest);
    until("it is said that there is no driver yet", || {
        rig.run(&["why", "plugin/my-driver"]).contains(driver.socket().to_str().unwrap())
    });
    driver.start();
    rig.wait_ready("allocation/my-user");
    let path = rig.run(&["get", "allocation", "my-user", "-o", "jsonpath={.status.volumes[0].path}"]);
    std::fs::write(Path::new(&path).join("kept"), "all along").unwrap();
    let mounts = rig.mounts();

    driver.kill();
    let killed = Instant::now();
    until("the plugin is not ready", || ready(&rig, "plugin/my-driver") == "False");
    // By the end of its connection; the next Probe would come after half a minute.
    assert!(killed.elapsed() < Duration::from_secs(15), "noticed after {:?}", killed.elapsed());
    assert_eq!(ready(&rig, "allocation/my-user"), "True", "its user goes on");
    rig.kill();
    rig.up();
    assert_eq!(ready(&rig, "plugin/my-driver"), "False");
    driver.start();
    rig.wait_ready("plugin/my-driver");
    rig.wait_ready("allocation/my-user");
    assert_eq!(rig.mounts(), mounts);
    assert_eq!(std::fs::read_to_string(Path::new(&path).join("kept")).unwrap(), "all along");

    rig.run(&["delete", "-f", rig.data.path().with_extension("yaml").to_str().unwrap()]);
    until("no backend volume is left", || std::fs::read_dir(driver.volumes()).unwrap().count() == 0);
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
    assert!(driver.socket().exists(), "what something else runs is its own");
}

/// The status of an object's condition `Ready`.
fn ready(rig: &Rig, object: &str) -> String {
    let (kind, name) = object.split_once('/').unwrap();
    let object = rig.get(kind, name);
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|c| c["type"] == "Ready");
    ready.and_then(|c| c["status"].as_str()).unwrap_or_default().to_owned()
}
