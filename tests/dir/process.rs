//! `wharfline csi dir` as a command: its arguments, its start, its end.
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wharfline::drivers::dir::{Mode, NAME, Server, Settings, StartError};
use wharfline::drivers::endpoint::EndpointError;
use wharfline::run::csi::{Args, Driver};

use crate::rig::Rig;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    csi: Args,
}

fn parse(arguments: &[&str]) -> Result<wharfline::run::csi::CommonArgs, clap::Error> {
    let all = ["csi", "dir"].iter().chain(arguments);
    Command::try_parse_from(all).map(|command| match command.csi.driver {
        Driver::Dir(arguments) => arguments,
        other @ (Driver::Loop(_) | Driver::Btrfs(_) | Driver::Chaos(_)) => panic!("{other:?}"),
    })
}

#[test]
fn arguments_of_the_contract() {
    let given = ["--endpoint", "unix:///run/x.sock", "--node-id", "n1", "--data-dir", "/var/lib/x"];
    let parsed = parse(&given).unwrap();
    assert_eq!(parsed.endpoint, "unix:///run/x.sock");
    assert_eq!((parsed.node_id.as_str(), parsed.data_dir.as_path()), ("n1", Path::new("/var/lib/x")));
    assert_eq!(parsed.mode, Mode::All);
    for (word, mode) in [("controller", Mode::Controller), ("node", Mode::Node), ("all", Mode::All)] {
        assert_eq!(parse(&[&given[..], &["--mode", word]].concat()).unwrap().mode, mode);
    }
    assert!(parse(&[&given[..], &["--mode", "both"]].concat()).is_err());
    assert!(parse(&given[..4]).is_err(), "a data directory is needed");
    let help = <Command as clap::CommandFactory>::command();
    let dir = help.find_subcommand("dir").unwrap();
    let env = |name: &str| dir.get_arguments().find(|one| one.get_id() == name).and_then(clap::Arg::get_env);
    assert_eq!(env("endpoint"), Some("CSI_ENDPOINT".as_ref()));
    assert_eq!(env("node_id"), Some("NODE_NAME".as_ref()));
}

#[test]
fn it_ends_on_sigterm_and_takes_its_socket_along() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("csi.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap()); // what a killed one leaves
    let endpoint = format!("unix://{}", socket.display());
    let data = root.path().join("a/D");
    let arguments =
        parse(&["--endpoint", &endpoint, "--node-id", "n1", "--data-dir", data.to_str().unwrap()]).unwrap();
    let process = std::thread::spawn(|| wharfline::run::csi::main(Args { driver: Driver::Dir(arguments) }));
    let deadline = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < deadline && !process.is_finished(), "it does not listen");
        std::thread::yield_now();
    }
    for private in [&socket, &data, &data.join("volumes")] {
        let mode = std::fs::metadata(private).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} is open to others: {mode:o}", private.display());
    }
    // It listens, so it has taken the signal over, and this process survives it.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
    process.join().unwrap().unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_start_that_cannot_be_says_why() {
    let root = tempfile::tempdir().unwrap();
    let settings = |endpoint: &str, node_id: &str, data_dir: &str| Settings {
        endpoint: endpoint.replace("ROOT", root.path().to_str().unwrap()),
        node_id: node_id.to_owned(),
        data_dir: root.path().join(data_dir),
        mode: Mode::All,
    };
    let start = |settings: &Settings| Server::bind(settings).unwrap_err();
    std::fs::write(root.path().join("file"), "").unwrap();
    let no_id = start(&settings("unix://ROOT/a.sock", "", "D"));
    assert!(matches!(no_id, StartError::NodeId(_)));
    let form = start(&settings("tcp://127.0.0.1:1", "n", "D"));
    assert!(matches!(form, StartError::Endpoint(EndpointError::Form(_))));
    let parent = start(&settings("unix://ROOT/no/a.sock", "n", "D"));
    assert!(matches!(parent, StartError::Endpoint(EndpointError::NoParent { .. })));
    let data = start(&settings("unix://ROOT/a.sock", "n", "file"));
    assert!(matches!(data, StartError::Data(_)), "{data:?}");
    let running = Server::bind(&settings("unix://ROOT/a.sock", "n", "D")).unwrap();
    let twice = start(&settings("unix://ROOT/a.sock", "n", "D"));
    assert!(matches!(twice, StartError::Endpoint(EndpointError::InUse { .. })));
    drop(running);
    Server::bind(&settings("unix://ROOT/a.sock", "n", "D")).unwrap();
}

/// What gRPC for Python, Java and Swift sends: the socket's own path as `:authority`.
#[tokio::test]
async fn a_client_that_calls_the_socket_by_its_path_is_answered() {
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags, 0, 0, 0, u8::from(kind != 4)]);
        frame.extend_from_slice(payload);
        frame
    };
    let rig = Rig::new();
    // The name of the field from HPACK's table, or spelled out as gRPC's C core does.
    let (listed, spelled) = (&b"\x41"[..], &b"\x40\x0a:authority"[..]);
    let path = "tmp%2Fcsi%2Fcsi.sock";
    for (name, authority) in
        [(listed, path), (spelled, path), (listed, "/tmp/csi/csi.sock"), (spelled, "localhost")]
    {
        let mut headers = vec![0x83, 0x86]; // POST, http
        let fields =
            [(name, authority), (b"\x44", "/csi.v1.Identity/GetPluginInfo"), (b"\x5f", "application/grpc")];
        for (field, value) in fields {
            headers.extend(field);
            headers.push(u8::try_from(value.len()).unwrap());
            headers.extend(value.as_bytes());
        }
        headers.extend(b"\x40\x02te\x08trailers");
        let request = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            frame(4, 0, b"").as_slice(),
            frame(1, 4, &headers).as_slice(),
            frame(0, 1, &[0; 5]).as_slice(),
        ]
        .concat();
        let mut client = tokio::net::UnixStream::connect(rig.path("csi.sock")).await.unwrap();
        client.write_all(&request).await.unwrap();
        let mut answer = Vec::new();
        let answered = async {
            while !answer.windows(NAME.len()).any(|bytes| bytes == NAME.as_bytes()) {
                assert!(client.read_buf(&mut answer).await.unwrap() > 0, "{authority}: it hung up");
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), answered).await;
        assert!(waited.is_ok(), "{authority}: no answer");
    }
    rig.finish().await;
}
