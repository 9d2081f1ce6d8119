//! A cluster of processes: etcd, servers, nodes, each with a directory of its own.
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::etcd::Etcd;
use crate::net::{Cut, HUB, Net};

/// The binary under test.
const WHARFLINE: &str = env!("CARGO_BIN_EXE_wharfline");
/// How long anything may take before the test fails.
const DEADLINE: Duration = Duration::from_secs(60);

/// One process that says `ready` and what it is.
struct Process {
    child: Child,
    ready: String,
}

/// A cluster.
pub(crate) struct Cluster {
    etcd: Etcd,
    directory: tempfile::TempDir,
    servers: Vec<Option<Process>>,
    nodes: Vec<(String, Option<Process>)>,
    machines: Vec<(String, Process)>,
    net: Option<Net>,
}

/// Ends a machine's first process, and with it all others, and waits until they are gone and their locks with them: the
/// process that we started waits for that one.
fn off(mut process: Process) {
    let id = process.child.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let first = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
    match first.and_then(rustix::process::Pid::from_raw) {
        Some(first) => rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap(),
        None => process.child.kill().unwrap(),
    }
    process.child.wait().unwrap();
}

impl Cluster {
    /// An etcd of one member and so many servers.
    pub(crate) async fn start(servers: usize) -> Self {
        Self::over(servers, None).await
    }

    /// The same on a network of its own, to which machines have cables. The runtime must have one thread: this one.
    pub(crate) async fn apart(servers: usize) -> Self {
        let net = Net::make();
        Self::over(servers, Some(net)).await
    }

    async fn over(servers: usize, net: Option<Net>) -> Self {
        let etcd = Etcd::start(1).await;
        let directory = tempfile::Builder::new().prefix("wfc").tempdir_in("/var/tmp").unwrap();
        let (servers_of, nodes, machines) = (Vec::new(), Vec::new(), Vec::new());
        let mut cluster = Self { etcd, directory, servers: servers_of, nodes, machines, net };
        for n in 0..servers {
            cluster.servers.push(None);
            let store = cluster.store();
            cluster.serve(n, "pki", &store).unwrap_or_else(|log| panic!("server {n}: {log}"));
        }
        cluster
    }

    /// The directory of a server or of a node.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What `--store` is to be.
    pub(crate) fn store(&self) -> String {
        format!("etcd://{}", self.etcd.endpoints().join(","))
    }

    /// Starts a server with these keys over this store; what it said when it did not get ready.
    pub(crate) fn serve(&mut self, n: usize, pki: &str, store: &str) -> Result<(), String> {
        let host = if self.net.is_some() { HUB } else { "127.0.0.1" };
        self.serve_at(n, pki, store, &format!("{host}:0"))
    }

    /// The same at an address.
    pub(crate) fn serve_at(&mut self, n: usize, pki: &str, store: &str, at: &str) -> Result<(), String> {
        self.serve_with(n, (pki, store, at), &[])
    }

    /// The same with more flags.
    pub(crate) fn serve_with(
        &mut self,
        n: usize,
        (pki, store, at): (&str, &str, &str),
        more: &[&str],
    ) -> Result<(), String> {
        let name = format!("s{n}");
        let pki = self.place(pki);
        let mut command = Command::new(WHARFLINE);
        command.arg("server").arg("--data-dir").arg(self.place(&name)).arg("--pki-dir").arg(pki);
        command.args(["--listen", at, "--store", store]).args(more);
        let process = self.begin(&name, command)?;
        if self.servers.len() == n {
            self.servers.push(None);
        }
        self.servers[n] = Some(process);
        Ok(())
    }

    /// Starts `wharfline up` as a node; where its API is.
    pub(crate) fn up(&mut self, name: &str) -> String {
        let mut command = Command::new(WHARFLINE);
        command.arg("up").arg("--data-dir").arg(self.place(name)).args(["--listen", "127.0.0.1:0"]);
        let process = self.begin(name, command).unwrap_or_else(|log| panic!("{log}"));
        let address = process.ready.strip_prefix("https://").unwrap().to_owned();
        self.nodes.push((name.to_owned(), Some(process)));
        address
    }

    /// Where the servers are that run.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().flatten().map(|process| process.ready.clone()).collect()
    }

    /// Runs `wharfline node` until it is ready; what it said when it did not get ready.
    pub(crate) fn node(&mut self, name: &str, more: &[&str]) -> Result<(), String> {
        let mut command = Command::new(WHARFLINE);
        command.arg("node").arg("--data-dir").arg(self.place(name)).args(more);
        let process = self.begin(name, command)?;
        self.nodes.retain(|(known, _)| known != name);
        self.nodes.push((name.to_owned(), Some(process)));
        Ok(())
    }

    /// A node joins with a token of its own.
    pub(crate) fn join(&mut self, name: &str) {
        let (token, servers) = (self.token(&[]), self.urls().join(","));
        let joined = self.node(name, &["--server", &servers, "--token", &token, "--name", name]);
        joined.unwrap_or_else(|log| panic!("{name}: {log}"));
    }

    /// A node with processes, mounts and a network of its own, whose power can go off, and the boot id that its kernel
    /// tells. The first time it joins.
    pub(crate) fn machine(&mut self, name: &str, boot: &str) {
        let more = if self.place(name).exists() { Vec::new() } else { self.joining(name) };
        let started = self.try_machine(name, boot, &more);
        started.unwrap_or_else(|log| panic!("{name}: {log}"));
    }

    /// The arguments with which a machine joins as `name`.
    pub(crate) fn joining(&self, name: &str) -> Vec<String> {
        let (token, servers) = (self.token(&[]), self.urls().join(","));
        ["--server", &servers, "--token", &token, "--name", name].map(str::to_owned).to_vec()
    }

    /// Starts a machine with these arguments; what it said when it did not get ready.
    pub(crate) fn try_machine(&mut self, name: &str, boot: &str, more: &[String]) -> Result<(), String> {
        let booted = self.place(&format!("{name}.boot"));
        std::fs::write(&booted, format!("{boot}\n")).unwrap();
        let net = self.net.as_mut().expect("machines need a network");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", net.port(name)));
        net.mend(name);
        command.args(["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--kill-child"]);
        // With set -e: a machine that tells another boot is no machine of the test's.
        let script = "set -e; mount --bind \"$1\" /proc/sys/kernel/random/boot_id; shift; exec \"$@\"";
        command.args(["sh", "-c", script, "sh"]).arg(&booted).arg(WHARFLINE);
        command.arg("node").arg("--data-dir").arg(self.place(name)).args(more);
        let process = self.begin(name, command)?;
        self.machines.retain(|(known, _)| known != name);
        self.machines.push((name.to_owned(), process));
        Ok(())
    }

    /// Cuts a machine off from the others; what runs on it goes on.
    pub(crate) fn cut(&self, name: &str, cut: Cut) {
        self.net.as_ref().unwrap().cut(name, cut);
    }

    /// Mends a machine's cable.
    pub(crate) fn mend(&self, name: &str) {
        self.net.as_ref().unwrap().mend(name);
    }

    /// Everything on a machine ends at once, and its mounts with it. Nobody is told.
    pub(crate) fn power_off(&mut self, name: &str) {
        self.cut(name, Cut::Whole);
        let place = self.machines.iter().position(|(known, _)| known == name).unwrap();
        let (_, process) = self.machines.remove(place);
        off(process);
    }

    fn begin(&self, name: &str, mut command: Command) -> Result<Process, String> {
        let path = self.place(&format!("{name}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match line.strip_prefix("ready ") {
            Some(ready) => Ok(Process { child, ready: ready.trim().to_owned() }),
            None => {
                assert!(!child.wait().unwrap().success());
                Err(self.log(name))
            }
        }
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.place(&format!("{name}.log"))).unwrap_or_default()
    }

    /// SIGKILL to a server.
    pub(crate) fn kill_server(&mut self, n: usize) {
        let mut process = self.servers[n].take().unwrap();
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }

    /// SIGTERM to a server, and its end awaited.
    pub(crate) fn stop_server(&mut self, n: usize) {
        let mut process = self.servers[n].take().unwrap();
        let pid = rustix::process::Pid::from_child(&process.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(process.child.wait().unwrap().success());
    }

    /// SIGKILL to etcd.
    pub(crate) fn kill_store(&mut self) {
        self.etcd.kill(0);
    }

    /// Starts etcd again.
    pub(crate) async fn run_store(&mut self) {
        self.etcd.run(0);
        self.etcd.ready().await;
    }

    /// SIGTERM to a node's daemon, and its end awaited; SIGKILL unless `gently`.
    pub(crate) fn stop_node(&mut self, name: &str, gently: bool) {
        let (_, process) = self.nodes.iter_mut().find(|(known, _)| known == name).unwrap();
        let mut process = process.take().unwrap();
        if gently {
            let pid = rustix::process::Pid::from_child(&process.child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            assert!(process.child.wait().unwrap().success());
        } else {
            process.child.kill().unwrap();
            process.child.wait().unwrap();
        }
    }

    /// The command line against the first server that runs.
    pub(crate) fn try_run(&self, args: &[&str]) -> Output {
        let running = self.servers.iter().position(Option::is_some).unwrap();
        self.try_at(running, args)
    }

    /// The command line against one server.
    pub(crate) fn try_at(&self, server: usize, args: &[&str]) -> Output {
        let kubeconfig = self.place(&format!("s{server}")).join("kubeconfig");
        let mut command = wharfline();
        command.arg("--kubeconfig").arg(kubeconfig).args(args).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// A command that must succeed; its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        let done = self.try_run(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(done.status.success(), "{args:?}: {}{}", text(&done.stdout), text(&done.stderr));
        text(&done.stdout)
    }

    pub(crate) fn token(&self, more: &[&str]) -> String {
        self.run(&[&["token", "create"], more].concat()).trim().to_owned()
    }

    pub(crate) fn apply(&self, manifest: &str) {
        let file = self.place("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        self.run(&["apply", "-f", file.to_str().unwrap()]);
    }

    /// One object; null when there is none.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        let done = self.try_run(&["get", kind, name, "-o", "json"]);
        serde_json::from_slice(&done.stdout).unwrap_or_default()
    }

    /// Every object of a kind.
    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.run(&["get", kind, "-A", "-o", "json"])).unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// What the processes on a machine see at a path.
    pub(crate) fn inside(&self, machine: &str, path: &str) -> PathBuf {
        let (_, process) = self.machines.iter().find(|(known, _)| known == machine).unwrap();
        PathBuf::from(format!("/proc/{}/root{path}", process.child.id()))
    }

    /// What is mounted beneath a node's directory, on its own machine if it has one, but for its own bind.
    pub(crate) fn mounts(&self, node: &str) -> Vec<String> {
        let machine = self.machines.iter().find(|(known, _)| known == node);
        let whose = machine.map_or("self".to_owned(), |(_, process)| process.child.id().to_string());
        let (table, place) =
            (std::fs::read_to_string(format!("/proc/{whose}/mountinfo")).unwrap(), self.place(node));
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let beneath = points.filter(|point| std::path::Path::new(point).starts_with(&place));
        beneath
            .filter(|point| **point != *place.join("volumes").to_str().unwrap())
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        for (name, _) in self.machines.iter().filter(|_| failed) {
            self.mend(name);
        }
        if failed && self.servers.iter().any(Option::is_some) {
            // What is up is taken down by the cluster itself while it can.
            for kind in ["allocations", "volumeclaims", "volumes", "plugins"] {
                let _done = self.try_run(&["delete", kind, "--all", "-A", "--timeout", "20s"]);
            }
        }
        for (name, mut process) in std::mem::take(&mut self.machines) {
            let _ = process.child.kill();
            let _ = process.child.wait();
            if failed {
                eprintln!("-- {name} --\n{}", self.log(&name));
            }
        }
        let nodes = self.nodes.iter_mut().filter_map(|(_, process)| process.take());
        for mut process in nodes.chain(self.servers.iter_mut().filter_map(Option::take)) {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        for (name, _) in std::mem::take(&mut self.nodes) {
            let place = self.place(&name);
            let done = Command::new(WHARFLINE).arg("down").arg("--data-dir").arg(&place).output().unwrap();
            if failed {
                eprintln!("-- {name} --\n{}", self.log(&name));
            } else {
                assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
            }
        }
    }
}

/// A command by itself.
pub(crate) fn alone(args: &[&str]) -> Output {
    wharfline().args(args).stdin(Stdio::null()).output().unwrap()
}

/// The program, which ends after a while whatever it does.
pub(crate) fn wharfline() -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "5", "120", WHARFLINE]);
    command
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::yield_now();
    }
}
