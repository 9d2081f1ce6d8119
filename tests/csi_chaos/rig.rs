//! The command itself before a scripted driver in this process, or before any other one.
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use wharfline::csi::{Alpha, Plugin, PluginOptions, UnixConnector};

use crate::support::scripted::{Backend, Config, Scripted, Site};

pub(crate) const WHARFLINE: &str = env!("CARGO_BIN_EXE_wharfline");
pub(crate) const LONG: Duration = Duration::from_secs(20);
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// One running command. Dropped, it is killed.
pub(crate) struct Chaos {
    pub(crate) dir: tempfile::TempDir,
    child: Child,
}

impl Chaos {
    /// Starts it with a script, these arguments more, and `ROOT` in them for its directory; until it listens.
    pub(crate) fn start(script: &Value, arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), script, arguments)
    }

    /// The same in a directory that is there.
    pub(crate) fn start_in(dir: tempfile::TempDir, script: &Value, arguments: &[&str]) -> Self {
        let mut chaos = Self::begin(dir, script, arguments);
        until("it listens", || {
            assert!(chaos.child.try_wait().unwrap().is_none(), "it ended: {}", chaos.log());
            std::os::unix::net::UnixStream::connect(chaos.socket()).is_ok()
        });
        chaos
    }

    pub(crate) fn begin(dir: tempfile::TempDir, script: &Value, arguments: &[&str]) -> Self {
        let file = dir.path().join("chaos.yaml");
        std::fs::write(&file, script.to_string()).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(WHARFLINE);
        command.args(["csi", "chaos", "--script"]).arg(&file);
        command.args(arguments.iter().map(|word| word.replace("ROOT", dir.path().to_str().unwrap())));
        command.env("CSI_ENDPOINT", format!("unix://{}/chaos.sock", dir.path().display()));
        command.env("TMPDIR", dir.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        Self { dir, child }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("chaos.sock")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// The lines about calls that it has written.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.log().lines().filter(|line| line.contains(" call method=")).map(str::to_owned).collect()
    }

    /// The line about the only call of this kind, once it is written.
    pub(crate) async fn line(&self, method: &str) -> String {
        let word = format!("method=\"{method}\"");
        let lines = || self.calls().into_iter().filter(|line| line.contains(&word)).collect::<Vec<_>>();
        until_async(&format!("a line about {method}"), || !lines().is_empty()).await;
        lines().remove(0)
    }

    pub(crate) fn plugin(&self) -> Plugin {
        plugin(&self.socket())
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its end, awaited.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until("it ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }

    /// The ids of its children.
    pub(crate) fn children(&self) -> Vec<i32> {
        let ours = self.child.id().to_string();
        let parent = |pid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit(") ").next()?.split(' ').nth(1).map(str::to_owned)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        all.filter(|pid| parent(*pid).as_deref() == Some(&ours)).collect()
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command before a scripted driver, and a caller.
pub(crate) struct Rig {
    pub(crate) backend: Arc<Backend>,
    pub(crate) scripted: Scripted,
    pub(crate) chaos: Chaos,
    pub(crate) plugin: Plugin,
}

impl Rig {
    pub(crate) fn new(script: &Value) -> Self {
        Self::with(Config::full(), script)
    }

    pub(crate) fn with(config: Config, script: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backend = Backend::new(config);
        let scripted = Scripted::start(&backend, Site::new("node-a"), dir.path().join("driver.sock"));
        let chaos = Chaos::start_in(dir, script, &["--driver", "unix://ROOT/driver.sock"]);
        let plugin = chaos.plugin();
        Self { backend, scripted, chaos, plugin }
    }
}

/// A caller of the driver at this socket, who may use what is alpha.
pub(crate) fn plugin(socket: &Path) -> Plugin {
    let options = PluginOptions { alpha: Alpha::On, ..PluginOptions::default() };
    Plugin::new(UnixConnector::new(socket).unwrap(), options)
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::yield_now();
    }
}

/// The same, while others on this thread go on.
pub(crate) async fn until_async(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        tokio::task::yield_now().await;
    }
}
