//! One `wharfline up` on a directory of its own, and the command line against it.
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary under test.
pub(crate) const WHARFLINE: &str = env!("CARGO_BIN_EXE_wharfline");
/// How long anything may take before the test fails.
const DEADLINE: &str = "60s";

/// A data directory and the `up` that runs on it, if one does.
pub(crate) struct Rig {
    pub(crate) data: tempfile::TempDir,
    up: Option<Child>,
    address: String,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let data = tempfile::Builder::new().prefix("wfl").tempdir_in("/var/tmp").unwrap();
        Self { data, up: None, address: String::new() }
    }

    /// `up`, until it says that it is ready.
    pub(crate) fn up(&mut self) {
        let line = self.up_under(&[]);
        assert!(line.starts_with("ready "), "not ready: {line:?}\n{}", self.log());
    }

    /// `up` with these variables, until its first line, which is empty when it ended before.
    pub(crate) fn up_under(&mut self, variables: &[(&str, &str)]) -> String {
        let mut command = self.up_command(&["--listen", "127.0.0.1:0", "--node-name", "node-a"]);
        command.envs(variables.iter().copied());
        self.begin(command)
    }

    /// `up` with these flags, until it says that it is ready.
    pub(crate) fn up_with(&mut self, args: &[&str]) {
        let line = self.begin(self.up_command(args));
        assert!(line.starts_with("ready "), "not ready: {line:?}\n{}", self.log());
    }

    /// `up` on a machine of its own, of which the kernel tells this boot id: processes and mounts that all end with it.
    pub(crate) fn up_on_machine(&mut self, boot: &str) {
        let booted = self.data.path().with_extension("boot");
        std::fs::write(&booted, format!("{boot}\n")).unwrap();
        let up = self.up_command(&["--listen", "127.0.0.1:0", "--node-name", "node-a"]);
        let log = std::fs::OpenOptions::new().append(true).open(self.log_path()).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--fork", "--pid", "--mount", "--mount-proc", "--kill-child"]);
        // With set -e: a machine that tells another boot is no machine of the test's.
        let script = "set -e; mount --bind \"$1\" /proc/sys/kernel/random/boot_id; shift; exec \"$@\"";
        command.args(["sh", "-c", script, "sh"]).arg(&booted).arg(up.get_program()).args(up.get_args());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let line = self.begin(command);
        assert!(line.starts_with("ready "), "not ready: {line:?}\n{}", self.log());
    }

    fn begin(&mut self, mut command: Command) -> String {
        let mut up = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(up.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.up = Some(up);
        if let Some(address) = line.strip_prefix("ready ") {
            address.trim().clone_into(&mut self.address);
        }
        line
    }

    /// Waits for `up` to be killed.
    #[cfg(feature = "kill-points")]
    pub(crate) fn killed(&mut self) {
        use std::os::unix::process::ExitStatusExt;
        let mut ended = None;
        until("the process is killed", || {
            ended = self.up.as_mut().unwrap().try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().signal(), Some(9), "{}", self.log());
        self.up = None;
    }

    pub(crate) fn up_command(&self, args: &[&str]) -> Command {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = Command::new(WHARFLINE);
        command.arg("up").arg("--data-dir").arg(self.data.path()).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        command
    }

    fn log_path(&self) -> PathBuf {
        self.data.path().with_extension("log")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// `host:port` of the API.
    pub(crate) fn address(&self) -> &str {
        self.address.trim_start_matches("https://")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.data.path().join("kubeconfig")
    }

    /// Whether an `up` of it runs.
    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// SIGKILL: no goodbye.
    pub(crate) fn kill(&mut self) {
        let mut up = self.up.take().unwrap();
        up.kill().unwrap();
        up.wait().unwrap();
    }

    /// SIGTERM, and its end awaited.
    pub(crate) fn terminate(&mut self) {
        let mut up = self.up.take().unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(up.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(up.wait().unwrap().success(), "{}", self.log());
    }

    /// Waits for `up` to end by itself.
    pub(crate) fn ended(&mut self) {
        let mut up = self.up.take().unwrap();
        assert!(up.wait().unwrap().success(), "{}", self.log());
    }

    /// The command line against this `up`.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(WHARFLINE);
        command.arg("--kubeconfig").arg(self.kubeconfig()).arg("--data-dir").arg(self.data.path()).args(args);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn try_run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed; its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        let output = self.try_run(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "wharfline {args:?}: {}\n{}\n{}\n-- up's log --\n{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr),
            self.log()
        );
        text(&output.stdout)
    }

    /// One object.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        serde_json::from_str(&self.run(&["get", kind, name, "-o", "json"])).unwrap()
    }

    /// Every object of a kind.
    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.run(&["get", kind, "-A", "-o", "json"])).unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// What the files say that its tasks wrote, for the message of a test that fails.
    pub(crate) fn written(&self, allocation: &Value) -> String {
        let uid = allocation["metadata"]["uid"].as_str().unwrap();
        let tasks = allocation["status"]["tasks"].as_array().unwrap().iter();
        let of_task = |task: &Value| {
            let name = task["name"].as_str().unwrap();
            let logs = self.data.path().join("logs").join(uid).join(name);
            let exit = self.data.path().join("tasks").join(format!("{uid}.{name}")).join("exit.json");
            let files = [logs.join("stdout.log"), logs.join("stderr.log"), exit];
            files.map(|file| format!("{}: {:?}\n", file.display(), std::fs::read_to_string(&file))).concat()
        };
        tasks.map(of_task).collect()
    }

    pub(crate) fn apply(&self, manifest: &str) {
        let file = self.data.path().with_extension("yaml");
        std::fs::write(&file, manifest).unwrap();
        self.run(&["apply", "-f", file.to_str().unwrap()]);
    }

    pub(crate) fn wait_ready(&self, what: &str) {
        self.run(&["wait", what, "--for=condition=Ready", "--timeout", DEADLINE]);
    }

    /// The lines of this machine's mount table beneath the data directory: id and mount point.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = |line: &str| {
            let mut fields = line.split(' ');
            let (id, point) = (fields.next()?, fields.nth(3)?);
            Path::new(point).starts_with(self.data.path()).then(|| format!("{id} {point}"))
        };
        table.lines().filter_map(ours).collect()
    }

    /// Processes whose command line names the data directory, by pid.
    pub(crate) fn processes(&self) -> Vec<String> {
        let wanted = self.data.path().to_str().unwrap();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_string_lossy().into_owned();
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if pid.bytes().all(|b| b.is_ascii_digit()) && String::from_utf8_lossy(&line).contains(wanted) {
                found.push(format!("{pid} {}", String::from_utf8_lossy(&line).replace('\0', " ").trim()));
            }
        }
        found.sort();
        found
    }

    /// Nothing of it may be left.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert_eq!(self.processes(), Vec::<String>::new());
        let run_dir = wharfline::run::machine::run_dir(self.data.path());
        let left = std::fs::read_dir(&run_dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        assert!(!run_dir.exists(), "a socket's directory is left: {:?}", left.collect::<Vec<_>>());
    }
}

impl Drop for Rig {
    /// A failed test leaves nothing running either, and one that ends without `down` nothing mounted.
    fn drop(&mut self) {
        if let Some(mut up) = self.up.take() {
            let _ = up.kill();
            let _ = up.wait();
        }
        let beneath = format!(" {}/", self.data.path().display());
        let mounted = std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|all| all.contains(&beneath));
        if std::thread::panicking() || mounted {
            crate::scripted::steered::relent();
            let mut down = Command::new(WHARFLINE);
            down.args(["down", "--delete-volumes", "--timeout", "20s", "--data-dir"]).arg(self.data.path());
            let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        if std::thread::panicking() {
            eprintln!("-- up's log --\n{}", self.log());
        }
        for extension in ["log", "yaml", "boot"] {
            let _ = std::fs::remove_file(self.data.path().with_extension(extension));
        }
    }
}

/// Waits until something holds that no object tells of.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::yield_now();
    }
}
