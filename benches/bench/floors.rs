//! What this machine itself needs: the disk, the kernel, sockets, processes.
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::raw::Raw;
use super::report::median;

/// How long each floor is measured.
const EACH: Duration = Duration::from_secs(4);
/// What one durable write of an object carries.
const OBJECT: usize = 2300;

/// The floors, in microseconds.
pub(crate) struct Floors {
    /// One append of an object and fdatasync.
    pub(crate) fdatasync: f64,
    /// One etcd put of 1 KiB by one client, where there is an etcd.
    pub(crate) etcd_put: Option<f64>,
    /// One bind mount.
    pub(crate) bind: f64,
    /// One unary gRPC over a unix socket between two processes.
    pub(crate) grpc: f64,
    /// One way of 1 KiB over a loopback connection, to a task that waits: a watch event.
    pub(crate) hop: f64,
    /// Start and end of one process.
    pub(crate) spawn: f64,
    /// How much of the machine was busy while nothing was measured.
    pub(crate) foreign: f64,
}

impl Floors {
    /// Measures all.
    pub(crate) async fn measure() -> Self {
        let foreign = foreign().await;
        let directory = tempfile::Builder::new().prefix("wff").tempdir_in("/var/tmp").unwrap();
        Self {
            foreign,
            fdatasync: fdatasync(directory.path()),
            etcd_put: etcd_put(directory.path()).await,
            bind: bind(directory.path()),
            grpc: grpc().await,
            hop: hop().await,
            spawn: repeat(|| {
                let quiet = Command::new("/bin/true").stdin(Stdio::null()).status();
                assert!(quiet.unwrap().success());
            }),
        }
    }

    /// One durable write of an object: etcd's where there is one, else this disk's.
    pub(crate) fn put(&self) -> f64 {
        self.etcd_put.unwrap_or(self.fdatasync)
    }

    fn list(&self) -> Vec<(&'static str, f64)> {
        let mut all = vec![
            ("append 2.3 KB + fdatasync", self.fdatasync),
            ("bind mount", self.bind),
            ("unix gRPC, two processes", self.grpc),
            ("hop over loopback", self.hop),
            ("start of a process", self.spawn),
        ];
        all.extend(self.etcd_put.map(|put| ("etcd put 1 KiB", put)));
        all
    }

    /// The largest change of any floor, as a part of it.
    pub(crate) fn drift(&self, later: &Self) -> f64 {
        let pairs = self.list().into_iter().zip(later.list());
        pairs.map(|((_, a), (_, b))| (a - b).abs() / a.min(b)).fold(0.0, f64::max)
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "unit": "us", "fdatasync": self.fdatasync, "etcdPut": self.etcd_put, "bindMount": self.bind,
            "unixGrpc": self.grpc, "hop": self.hop, "spawn": self.spawn, "foreignCpu": self.foreign })
    }
}

impl fmt::Display for Floors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.list() {
            writeln!(f, "floor {name:<30} {value:>8.1} us")?;
        }
        if self.etcd_put.is_none() {
            writeln!(f, "floor {:<30} not there: no etcd on PATH", "etcd put")?;
        }
        writeln!(f, "floor {:<30} {:>8.1} %", "other work on this machine", self.foreign * 100.0)
    }
}

/// The median time of `work`, in microseconds.
fn repeat(mut work: impl FnMut()) -> f64 {
    let (end, mut times) = (Instant::now() + EACH, Vec::new());
    while Instant::now() < end {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(&times)
}

fn fdatasync(directory: &std::path::Path) -> f64 {
    let mut file = File::create(directory.join("appended")).unwrap();
    let object = [7; OBJECT];
    repeat(|| {
        file.write_all(&object).unwrap();
        rustix::fs::fdatasync(&file).unwrap();
    })
}

fn bind(directory: &std::path::Path) -> f64 {
    let (from, to) = (directory.join("from"), directory.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    let (end, mut times) = (Instant::now() + EACH, Vec::new());
    while Instant::now() < end {
        let start = Instant::now();
        rustix::mount::mount_bind(&from, &to).unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
        // Not counted: it waits for the kernel's readers.
        rustix::mount::unmount(&to, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    median(&times)
}

async fn grpc() -> f64 {
    let raw = Raw::new("quick").await;
    let (end, mut times) = (Instant::now() + EACH, Vec::new());
    while Instant::now() < end {
        let start = Instant::now();
        raw.ask().await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(&times)
}

/// Half of a round trip.
async fn hop() -> f64 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut here = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut there, _) = listener.accept().await.unwrap();
    here.set_nodelay(true).unwrap();
    there.set_nodelay(true).unwrap();
    let echo = tokio::spawn(async move {
        let mut bytes = [0; 1024];
        while there.read_exact(&mut bytes).await.is_ok() {
            there.write_all(&bytes).await.unwrap();
        }
    });
    let (end, mut times, mut bytes) = (Instant::now() + EACH, Vec::new(), [7; 1024]);
    while Instant::now() < end {
        let start = Instant::now();
        here.write_all(&bytes).await.unwrap();
        here.read_exact(&mut bytes).await.unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    drop(here);
    echo.await.unwrap();
    median(&times)
}

/// Puts of one client over one connection that is there already.
async fn etcd_put(directory: &std::path::Path) -> Option<f64> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Put {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }
    let paths = std::env::var_os("PATH")?;
    let etcd = std::env::split_paths(&paths).map(|path| path.join("etcd")).find(|file| file.is_file())?;
    let mut child = Command::new(etcd)
        .arg("--data-dir")
        .arg(directory.join("etcd"))
        .args(["--listen-client-urls", "http://127.0.0.1:23799", "--advertise-client-urls"])
        .args(["http://127.0.0.1:23799", "--listen-peer-urls", "http://127.0.0.1:23809"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:23799").connect_lazy();
    let mut client = tonic::client::Grpc::new(channel);
    let mut put = async || {
        client.ready().await.ok()?;
        let request = tonic::Request::new(Put { key: b"x".to_vec(), value: vec![7; 1024] });
        let path = http::uri::PathAndQuery::from_static("/etcdserverpb.KV/Put");
        // What it answers is not read.
        let codec = tonic_prost::ProstCodec::<Put, ()>::default();
        client.unary(request, path, codec).await.ok()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while put().await.is_none() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (end, mut times) = (Instant::now() + EACH, Vec::new());
    while Instant::now() < end {
        let start = Instant::now();
        if put().await.is_some() {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    // It is ours, and has nothing to save.
    let _ = child.kill();
    let _ = child.wait();
    (!times.is_empty()).then(|| median(&times))
}

/// How much of all processors was busy over a moment in which this program did nothing.
async fn foreign() -> f64 {
    let read = || {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let line = stat.lines().next().unwrap();
        let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
        let idle = ticks[3] + ticks[4];
        (ticks.iter().take(8).sum::<f64>(), idle)
    };
    let before = read();
    tokio::time::sleep(EACH).await;
    let after = read();
    1.0 - (after.1 - before.1) / (after.0 - before.0)
}
