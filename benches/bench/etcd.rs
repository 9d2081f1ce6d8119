//! A real etcd on this disk, with the timers that it has by itself, and what a client of its own gets of it.
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etcd_client::Client;

/// How long etcd may take to come up.
const DEADLINE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// How many connections many writers share.
const CONNECTIONS: usize = 4;
/// What a put carries.
const OBJECT: usize = 1024;

struct Member {
    client: u16,
    peer: u16,
    child: Option<Child>,
}

/// A cluster of etcd. It goes with this value.
pub(crate) struct Etcd {
    directory: tempfile::TempDir,
    members: Vec<Member>,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Where the program is, if it is anywhere.
pub(crate) fn program() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|path| path.join("etcd")).find(|file| file.is_file())
}

impl Etcd {
    /// So many members, ready to be written to.
    pub(crate) async fn start(members: usize) -> Self {
        let directory = tempfile::Builder::new().prefix("wfe").tempdir_in("/var/tmp").unwrap();
        let member = || Member { client: free_port(), peer: free_port(), child: None };
        let mut etcd = Self { directory, members: std::iter::repeat_with(member).take(members).collect() };
        for n in 0..members {
            etcd.run(n, "new");
        }
        etcd.ready().await;
        etcd
    }

    /// Starts a member, anew or again.
    pub(crate) fn run(&mut self, n: usize, state: &str) {
        let urls: Vec<_> =
            (0..).zip(&self.members).map(|(n, m)| format!("m{n}=http://127.0.0.1:{}", m.peer)).collect();
        let member = &mut self.members[n];
        let client = format!("http://127.0.0.1:{}", member.client);
        let peer = format!("http://127.0.0.1:{}", member.peer);
        let child = Command::new(program().expect("etcd is on the path: `make bench` fetches it"))
            .args(["--name", &format!("m{n}")])
            .arg("--data-dir")
            .arg(self.directory.path().join(format!("m{n}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &urls.join(","), "--initial-cluster-state", state])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        member.child = Some(child);
    }

    /// `HOST:PORT` of every member.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect()
    }

    /// What `--store` is to be.
    pub(crate) fn store(&self) -> String {
        format!("etcd://{}", self.endpoints().join(","))
    }

    /// A client of all members.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.endpoints(), None).await.unwrap()
    }

    /// Waits until every member takes writes.
    pub(crate) async fn ready(&self) {
        let end = Instant::now() + DEADLINE;
        for endpoint in self.endpoints() {
            loop {
                let asked = async {
                    let client = Client::connect([&endpoint], None).await.ok()?;
                    client.kv_client().put("ready", "", None).await.ok()
                };
                if tokio::time::timeout(Duration::from_secs(1), asked).await.ok().flatten().is_some() {
                    break;
                }
                assert!(Instant::now() < end, "etcd is not ready");
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Which member leads.
    pub(crate) async fn leader(&self) -> usize {
        for (n, endpoint) in self.endpoints().into_iter().enumerate() {
            let Ok(client) = Client::connect([&endpoint], None).await else { continue };
            let Ok(status) = client.maintenance_client().status().await else { continue };
            if status.leader() == status.header().unwrap().member_id() {
                return n;
            }
        }
        panic!("nobody leads");
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.members[n].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The process of a member.
    pub(crate) fn pid(&self, n: usize) -> u32 {
        self.members[n].child.as_ref().unwrap().id()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
    }
}

/// What etcd itself gives its own clients.
pub(crate) struct Puts {
    /// Puts of 1 KiB in a second.
    pub(crate) rate: f64,
    /// Milliseconds within which 99 of a hundred were answered.
    pub(crate) p99: f64,
}

/// Puts of so many writers at once to an etcd of its own.
pub(crate) async fn puts(writers: usize, each: Duration) -> Puts {
    let etcd = Etcd::start(1).await;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS.min(writers) {
        clients.push(etcd.client().await.kv_client());
    }
    let counted = Arc::new(AtomicU64::new(0));
    let (start, mut tasks) = (Instant::now(), Vec::new());
    for writer in 0..writers {
        let (mut client, counted) = (clients[writer % clients.len()].clone(), Arc::clone(&counted));
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < each {
                let key = format!("k{}", counted.fetch_add(1, Ordering::Relaxed));
                let asked = Instant::now();
                client.put(key, vec![7; OBJECT], None).await.unwrap();
                times.push(asked.elapsed().as_secs_f64() * 1e3);
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    Puts { rate, p99: times[times.len() * 99 / 100] }
}
