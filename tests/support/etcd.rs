//! Real etcd, started by a test on free ports of loopback and ended with it.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, reason = "a test that cannot go on fails")]
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wharfline::store::etcd::{EtcdStore, Options};
use wharfline::store::{Rev, Store};

#[path = "ports.rs"]
mod ports;

pub(crate) use ports::Port;

/// How long etcd may take to come up, or to elect another leader.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long to wait between two looks.
const LOOK: Duration = Duration::from_millis(20);

struct Member {
    name: String,
    client: Port,
    peer: Port,
    child: Option<Child>,
}

/// A cluster of etcd.
pub(crate) struct Etcd {
    directory: tempfile::TempDir,
    members: Vec<Member>,
    state: &'static str,
    /// Between two heartbeats of the leader, and the silence after which another one is elected; in milliseconds.
    pace: [&'static str; 2],
}

fn binary() -> PathBuf {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|path| path.join("etcd")).find(|file| file.is_file());
    found.expect("etcd is on the path: `make test` installs it")
}

impl Etcd {
    /// A cluster of so many members, ready to be written to. One whose leader is killed soon has another one.
    pub(crate) async fn start(members: usize) -> Self {
        // Faster than a wide network would allow.
        Self::at_pace(members, ["20", "200"]).await
    }

    /// The same for who kills no leader: a machine that is busy with something else elects none either.
    pub(crate) async fn calm(members: usize) -> Self {
        Self::at_pace(members, ["50", "1000"]).await
    }

    async fn at_pace(members: usize, pace: [&'static str; 2]) -> Self {
        // In memory where there is such a place: what is tested is etcd's word, not this disk.
        let shared = std::path::Path::new("/dev/shm");
        let place = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let directory = tempfile::Builder::new().prefix("wfe").tempdir_in(place).unwrap();
        let members = (0..members).map(|n| Member {
            name: format!("m{n}"),
            client: Port::take(),
            peer: Port::take(),
            child: None,
        });
        let mut etcd = Self { directory, members: members.collect(), state: "new", pace };
        for n in 0..etcd.members.len() {
            etcd.run(n);
        }
        etcd.state = "existing";
        etcd.ready().await;
        etcd
    }

    /// Keeps what the only member holds.
    pub(crate) fn backup(&self) -> PathBuf {
        let file = self.directory.path().join("backup");
        self.etcdctl(&["snapshot", "save", file.to_str().unwrap()]);
        file
    }

    /// Puts the only member back to a backup, at the same address.
    pub(crate) async fn restore(&mut self, backup: &std::path::Path) {
        self.kill(0);
        let data = self.directory.path().join(&self.members[0].name);
        std::fs::remove_dir_all(&data).unwrap();
        let peer = format!("http://127.0.0.1:{}", self.members[0].peer.number());
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(backup)
            .arg("--data-dir")
            .arg(&data)
            .args(["--name", "m0", "--initial-cluster", &format!("m0={peer}")])
            .args(["--initial-cluster-token", "restored", "--initial-advertise-peer-urls", &peer])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        self.run(0);
        self.ready().await;
    }

    /// Starts a member, anew or again.
    pub(crate) fn run(&mut self, n: usize) {
        let urls: Vec<_> =
            self.members.iter().map(|m| format!("{}=http://127.0.0.1:{}", m.name, m.peer.number())).collect();
        let member = &mut self.members[n];
        let url = |port: &Port| format!("http://127.0.0.1:{}", port.number());
        let (client, peer) = (url(&member.client), url(&member.peer));
        let log = std::fs::File::create(self.directory.path().join(format!("{}.log", member.name))).unwrap();
        let child = Command::new(binary())
            .args(["--name", &member.name])
            .arg("--data-dir")
            .arg(self.directory.path().join(&member.name))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &urls.join(","), "--initial-cluster-state", self.state])
            .args(["--heartbeat-interval", self.pace[0], "--election-timeout", self.pace[1]])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        member.child = Some(child);
    }

    /// `HOST:PORT` of every member.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.client.number())).collect()
    }

    /// A store over all members.
    pub(crate) async fn store(&self) -> EtcdStore {
        self.store_under(b"/suite").await
    }

    /// A store over all members whose keys begin with `root`.
    pub(crate) async fn store_under(&self, root: &[u8]) -> EtcdStore {
        let options = Options { endpoints: self.endpoints(), root: root.to_vec(), tls: None };
        EtcdStore::connect(options).await.unwrap()
    }

    /// Waits until the cluster can be written to.
    pub(crate) async fn ready(&mut self) -> Rev {
        let store = self.store().await;
        let asked = async {
            loop {
                let ended = |member: &mut Member| member.child.as_mut()?.try_wait().unwrap();
                if let Some(code) = self.members.iter_mut().find_map(ended) {
                    panic!("etcd ended with {code}: {}", self.logs());
                }
                if let Ok(Ok(rev)) = tokio::time::timeout(Duration::from_secs(1), store.revision()).await {
                    return rev;
                }
                let _passed = tokio::time::timeout(LOOK, std::future::pending::<()>()).await;
            }
        };
        let Ok(rev) = tokio::time::timeout(DEADLINE, asked).await else {
            panic!("etcd is not ready: {}", self.logs());
        };
        rev
    }

    /// Which member leads.
    pub(crate) async fn leader(&self) -> usize {
        for (n, member) in self.members.iter().enumerate() {
            if member.child.is_none() {
                continue;
            }
            let endpoint = format!("127.0.0.1:{}", member.client.number());
            let client = etcd_client::Client::connect([endpoint], None).await.unwrap();
            let status = client.maintenance_client().status().await.unwrap();
            if status.leader() == status.header().unwrap().member_id() {
                return n;
            }
        }
        panic!("nobody leads");
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.members[n].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// What a client that knows nothing of us sees: runs etcdctl.
    pub(crate) fn etcdctl(&self, arguments: &[&str]) -> String {
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints().join(",")])
            .args(arguments)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// A directory that goes with the cluster.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    fn logs(&self) -> String {
        let log = |member: &Member| {
            let text = std::fs::read_to_string(self.directory.path().join(format!("{}.log", member.name)));
            let text = text.unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(5).collect();
            format!("{}:\n{}", member.name, lines.join("\n"))
        };
        self.members.iter().map(log).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
    }
}
