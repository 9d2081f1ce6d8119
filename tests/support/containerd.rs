//! A containerd of a test's own: Debian's, as `tools/fetch-containerd` has it, on directories of the test's, without what
//! the test does not need. Its shims find their sockets in /run/containerd; a test in a mount namespace of its own has a file
//! system of its own there.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use wharfline::sys::Containerd as _;
use wharfline::sys::real::RealContainerd;

/// Where the shims of any containerd of this release have their sockets, and where they tell runc to keep its memory.
const RUN: &str = "/run/containerd";

/// A program of the tests' tools.
pub(crate) fn tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin");
    let mut places = std::env::split_paths(&path).chain([own]).map(|directory| directory.join(name));
    places.find(|program| program.is_file()).unwrap_or_else(|| {
        panic!("{name} is missing: run tools/fetch-containerd");
    })
}

/// A containerd that runs, or is stopped for a while.
pub(crate) struct Containerd {
    directory: PathBuf,
    child: Option<Child>,
    runs_in: RunsIn,
}

/// In which mount namespace it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunsIn {
    /// The test's own.
    Own,
    /// The machine's.
    Machine,
}

impl Containerd {
    /// One with all that it keeps in this directory, which must not be deep.
    pub(crate) async fn start(directory: &Path, runs_in: RunsIn) -> Self {
        std::fs::create_dir_all(RUN).unwrap();
        if runs_in == RunsIn::Own {
            mount("none", RUN, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        std::fs::create_dir_all(directory).unwrap();
        let at = |name: &str| directory.join(name).display().to_string();
        let unneeded = ["grpc.v1.cri", "snapshotter.v1.aufs", "snapshotter.v1.btrfs", "snapshotter.v1.zfs"]
            .map(|name| format!("\"io.containerd.{name}\""));
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [{}]\n[debug]\n  level = \"warn\"\n[grpc]\n  address = {:?}\n",
            at("root"),
            at("state"),
            unneeded.join(", "),
            at("sock"),
        );
        std::fs::write(directory.join("config.toml"), config).unwrap();
        let mut containerd = Self { directory: directory.to_owned(), child: None, runs_in };
        containerd.resume().await;
        containerd
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("sock")
    }

    /// What asks it.
    pub(crate) fn client(&self) -> RealContainerd {
        RealContainerd::new(self.socket())
    }

    /// Starts it again.
    pub(crate) async fn resume(&mut self) {
        let log = File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        // It finds its shim in its PATH, and that finds what it takes for runc by its whole path.
        let path = [tool("containerd-shim-runc-v2").parent().unwrap(), tool("runc").parent().unwrap()]
            .map(|directory| directory.display().to_string());
        let system = std::env::var("PATH").unwrap_or_default();
        let child = Command::new(tool("containerd"))
            .arg("--config")
            .arg(self.directory.join("config.toml"))
            .env("PATH", format!("{}:{system}", path.join(":")))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let client = self.client();
        let answers = async {
            while client.check().await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        let soon = tokio::time::timeout(Duration::from_secs(30), answers).await;
        soon.unwrap_or_else(|_| panic!("containerd does not answer:\n{}", self.log()));
    }

    /// Kills it; what it has started goes on.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().unwrap();
        }
    }

    /// What it said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// What `ctr` says in this namespace of it.
    pub(crate) fn ctr(&self, namespace: &str, args: &[&str]) -> String {
        let socket = self.socket();
        let mut ctr = Command::new(tool("ctr"));
        let ctr = ctr.arg("--address").arg(socket).args(["--namespace", namespace]).args(args);
        let output = ctr.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The shims of its containers, by number.
    pub(crate) fn shims(&self) -> Vec<i32> {
        let address = self.socket().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            let shim = words.next().is_some_and(|first| first.ends_with(b"containerd-shim-runc-v2"));
            if shim && words.any(|word| word == address.as_bytes()) {
                found.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
            }
        }
        found
    }

    /// Nothing of ours is in it any more, and nothing of it is left.
    pub(crate) async fn end(mut self) {
        let client = self.client();
        let empty = async {
            while !client.list().await.unwrap().is_empty() || !self.shims().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        let soon = tokio::time::timeout(Duration::from_secs(30), empty).await;
        soon.unwrap_or_else(|_| panic!("left: {:?} {:?}\n{}", self.shims(), "containers", self.log()));
        assert_eq!(self.ctr("wharfline", &["containers", "list", "--quiet"]), "");
        assert_eq!(self.ctr("wharfline", &["tasks", "list", "--quiet"]), "");
        self.kill();
        match self.runs_in {
            RunsIn::Own => unmount(RUN, UnmountFlags::DETACH).unwrap(),
            // What another one uses is not empty. The directory itself stays: with it would go what other tests have mounted
            // there in namespaces of their own.
            RunsIn::Machine => {
                for inner in ["s", "runc/wharfline", "runc"] {
                    std::fs::remove_dir(Path::new(RUN).join(inner)).ok();
                }
            }
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.child.is_some() {
            // A test failed.
            self.kill();
            for pid in self.shims().into_iter().filter_map(Pid::from_raw) {
                kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}
