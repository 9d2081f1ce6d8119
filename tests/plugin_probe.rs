//! `wharfline plugin probe` against the built-in drivers, which pass, and against scripted ones with a fault each. Root is
//! needed.
#![allow(clippy::unwrap_used)] // helpers of tests count as tests
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::scripted::{Answer, Ask, Backend, Config, Effects, Scripted, Site, mounts_beneath};
use wharfline::csi::{Code, Rpc, proto};

const WHARFLINE: &str = env!("CARGO_BIN_EXE_wharfline");
const LONG: Duration = Duration::from_secs(60);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::yield_now();
    }
}

fn probe(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(WHARFLINE);
    command.args(["plugin", "probe"]).arg(socket).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What the command ended with and said.
async fn run(socket: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = probe(socket, &[arguments, &["-o", "json"]].concat());
    let output: Output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let card = serde_json::from_str(&text);
    (
        output.status.code(),
        card.unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&output.stderr))),
    )
}

/// The checks that came out so: call and case.
fn of(card: &Value, verdict: &str) -> Vec<String> {
    let all = card["checks"].as_array().unwrap().iter().filter(|check| check["verdict"] == verdict);
    let words = |check: &Value| {
        format!("{} {}", check["call"].as_str().unwrap(), check["case"].as_str().unwrap()).trim().to_owned()
    };
    all.map(words).collect()
}

fn seen<'a>(card: &'a Value, call: &str, case: &str) -> &'a str {
    let all = card["checks"].as_array().unwrap();
    let one = all.iter().find(|check| check["call"] == call && check["case"] == case);
    one.unwrap_or_else(|| panic!("{call} {case}: {card:#}"))["seen"].as_str().unwrap()
}

/// A built-in driver as a process.
struct Driver {
    child: Child,
    dir: tempfile::TempDir,
}

impl Driver {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("probe").tempdir_in("/var/tmp").unwrap();
        let mut command = Command::new(WHARFLINE);
        command
            .args(["csi", name, "--node-id", "n1", "--data-dir"])
            .arg(dir.path().join("data"))
            .args(arguments);
        command.env("CSI_ENDPOINT", format!("unix://{}/csi.sock", dir.path().display()));
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        // Where `make test` puts what makes file systems.
        let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin:/usr/sbin:/sbin");
        command.env("PATH", format!("{}:{tools}", std::env::var("PATH").unwrap_or_default()));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let driver = Self { child, dir };
        until("it listens", || std::os::unix::net::UnixStream::connect(driver.socket()).is_ok());
        driver
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    fn scratch(&self) -> String {
        self.dir.path().display().to_string()
    }

    fn volumes(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("data/volumes")).unwrap().count()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for point in mounts_beneath(self.dir.path()).into_iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Everything that they have is judged, and they pass; nothing is left.
#[tokio::test]
async fn the_built_in_drivers_pass() {
    assert!(rustix::process::geteuid().is_root(), "these tests mount, which only root can");
    // An ext4 that is mounted grows only for who has CAP_SYS_RESOURCE, which is not everywhere to be had.
    let btrfs = ["--fs-type", "btrfs", "--size", "128Mi"];
    for (name, arguments, more) in [
        ("dir", &[][..], &[][..]),
        ("loop", &[], &btrfs),
        ("loop", &[], &["--block"]),
        ("loop", &["--mode", "node"], &[]),
        ("dir", &["--mode", "controller"], &[]),
    ] {
        let driver = Driver::start(name, arguments);
        let scratch = driver.scratch();
        let (code, card) = run(&driver.socket(), &[]).await;
        assert_eq!((code, of(&card, "fail")), (Some(0), Vec::new()), "{name} {arguments:?}");
        let life = [&["--exercise", "--scratch-dir", &scratch][..], more].concat();
        let (code, card) = run(&driver.socket(), &life).await;
        assert_eq!((code, of(&card, "fail")), (Some(0), Vec::new()), "{name} {arguments:?} {card:#}");
        let passed = of(&card, "pass");
        let whole = arguments.is_empty();
        for wanted in [
            ("GetPluginInfo name", true),
            ("CreateVolume without a name", whole || name == "dir"),
            ("CreateVolume volume: again", whole || name == "dir"),
            ("NodePublishVolume without a path", whole || name == "loop"),
            ("NodePublishVolume volume: it is there", whole),
            ("ControllerPublishVolume volume: again", whole && name == "loop"),
            ("NodeStageVolume volume: again", whole && name == "loop"),
            ("NodeStageVolume not reported", whole && name == "dir"),
            ("ControllerExpandVolume volume: twice its size", whole || name == "dir"),
            ("NodeGetVolumeStats volume: what it tells", whole),
            ("CreateSnapshot snapshot: again", whole || name == "dir"),
            ("CreateVolume from the snapshot: its answer", whole || name == "dir"),
            ("CreateVolume clone: again", whole || name == "dir"),
            ("DeleteVolume volume: deleted again", whole || name == "dir"),
            ("CreateVolume 128 bytes of name: made", whole || name == "dir"),
            ("ControllerPublishVolume spare: for reading, attached for writing", whole && name == "loop"),
            ("NodePublishVolume single writer: a second path", whole),
            ("NodeExpandVolume grown: on its node", whole && name == "loop"),
            ("ListVolumes once it is deleted", whole || name == "dir"),
            ("ListSnapshots in pages of two", whole || name == "dir"),
            ("nothing is left", true),
        ] {
            assert_eq!(
                passed.iter().any(|check| check == wanted.0),
                wanted.1,
                "{name} {arguments:?}: {wanted:?} {passed:#?}"
            );
        }
        if whole {
            assert_eq!(driver.volumes(), 0, "{name}");
        }
        let left: Vec<_> =
            std::fs::read_dir(driver.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(!left.iter().any(|file| file.to_str().unwrap().contains("probe")), "{left:?}");
        assert_eq!(mounts_beneath(driver.dir.path()), Vec::<PathBuf>::new());
    }
}

/// For people there is a table.
#[tokio::test]
async fn a_card_can_be_read() {
    let driver = Driver::start("dir", &[]);
    let mut command = probe(Path::new(&format!("unix://{}", driver.socket().display())), &[]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [
        "dir.csi.wharfline.dev 0.1.0\n",
        "CALL ",
        "pass   GetPluginInfo ",
        "(the plugin does not report GROUP_CONTROLLER_SERVICE)",
        " passed, 0 failed, ",
    ] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
}

/// A scripted driver that mounts, and where its volumes are used.
struct Rig {
    backend: Arc<Backend>,
    scripted: Scripted,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("probe").tempdir_in("/var/tmp").unwrap();
        let mut config = Config::everything();
        config.attributes = Some(vec!["iops".to_owned()]);
        config.max_volumes = 3;
        config.effects = Effects::Mounts(dir.path().join("effects"));
        std::fs::create_dir(dir.path().join("effects")).unwrap();
        let backend = Backend::new(config);
        let site = Site { topology: [("zone".to_owned(), "a".to_owned())].into(), ..Site::new("node-a") };
        let scripted = Scripted::start(&backend, site, dir.path().join("csi.sock"));
        Self { backend, scripted, dir }
    }

    async fn run(&self, exercise: bool) -> (Option<i32>, Value) {
        let scratch = self.dir.path().display().to_string();
        let life =
            ["--exercise", "--scratch-dir", &scratch, "--attach-limit", "--mutable-parameter", "iops=1"];
        run(self.scripted.socket(), if exercise { &life } else { &[] }).await
    }

    fn assert_nothing_left(&self) {
        assert_eq!(self.backend.left(), Vec::new());
        assert_eq!(mounts_beneath(self.dir.path()), Vec::<PathBuf>::new());
        let left: Vec<_> =
            std::fs::read_dir(self.dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert!(!left.iter().any(|file| file.to_str().unwrap().contains("probe")), "{left:?}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for point in mounts_beneath(self.dir.path()).into_iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// One fault each, and the check that finds it.
#[tokio::test]
async fn each_fault_fails_its_check() {
    use Code::{Internal, InvalidArgument, NotFound, Unimplemented};
    let none = |rpc, code| (rpc, Answer::fail(code, "no"));
    let other = proto::Volume { volume_id: "other".into(), capacity_bytes: 1 << 30, ..Default::default() };
    let other = proto::CreateVolumeResponse { volume: Some(other) };
    let refused = ["CreateVolume without a name", "CreateVolume without a capability"];
    for ((rpc, answer), failed) in [
        (
            (
                Rpc::GetPluginInfo,
                Answer::reply(&proto::GetPluginInfoResponse { name: "no_name".into(), ..Default::default() }),
            ),
            &["GetPluginInfo name", "GetPluginInfo version"][..],
        ),
        ((Rpc::Probe, Answer::reply(&proto::ProbeResponse { ready: Some(false) })), &["Probe is ready"]),
        (none(Rpc::Probe, Internal), &["Probe answers"]),
        (
            (Rpc::NodeGetInfo, Answer::raw(Vec::new())),
            &["NodeGetInfo what it says", "NodeGetInfo where it is"],
        ),
        (none(Rpc::NodeGetInfo, Internal), &["NodeGetInfo answers"]),
        (none(Rpc::NodeGetCapabilities, Internal), &["NodeGetCapabilities answers"]),
        ((Rpc::CreateVolume, Answer::reply(&other)), &refused),
        (none(Rpc::CreateVolume, Unimplemented), &refused),
        (none(Rpc::DeleteVolume, NotFound), &["DeleteVolume of a volume that is not there"]),
        (
            none(Rpc::ValidateVolumeCapabilities, InvalidArgument),
            &["ValidateVolumeCapabilities of a volume that is not there"],
        ),
        (
            none(Rpc::ListVolumes, InvalidArgument),
            &["ListVolumes a page of one", "ListVolumes without a limit", "ListVolumes a token that is none"],
        ),
        (
            none(Rpc::NodePublishVolume, NotFound),
            &[
                "NodePublishVolume without a volume",
                "NodePublishVolume without a path",
                "NodePublishVolume without a capability",
            ],
        ),
        (
            none(Rpc::NodeGetVolumeStats, InvalidArgument),
            &["NodeGetVolumeStats of a volume that is not there"],
        ),
    ] {
        let rig = Rig::new();
        rig.backend.always(rpc, answer.clone());
        let (code, card) = rig.run(false).await;
        assert_eq!(
            (code, of(&card, "fail")),
            (Some(1), failed.iter().map(|&s| s.to_owned()).collect()),
            "{rpc} {answer:?}"
        );
    }
}

/// Of volumes and snapshots that are there. The scripted driver has all that can be asked.
#[tokio::test]
async fn what_one_life_does_not_show_is_asked_as_well() {
    let rig = Rig::new();
    let (code, card) = rig.run(true).await;
    assert_eq!((code, of(&card, "fail")), (Some(0), Vec::new()), "{card:#}");
    let (passed, skipped) = (of(&card, "pass"), of(&card, "notApplicable"));
    for wanted in [
        "CreateVolume 128 bytes of name: made",
        "CreateVolume an exact size",
        "ValidateVolumeCapabilities spare: what it confirms",
        "NodeUnpublishVolume spare: never published",
        "NodeUnstageVolume spare: never staged",
        "ControllerPublishVolume spare: to a node that is not there",
        "ControllerPublishVolume spare: for reading, attached for writing",
        "ControllerPublishVolume volume 4 of 3",
        "ControllerModifyVolume with attributes: what no driver knows",
        "NodePublishVolume single writer: a second path",
        "NodeExpandVolume grown: on its node",
        "NodeGetVolumeStats volume: at a path where it is not",
        "ListVolumes once it is deleted",
        "CreateSnapshot picture-0: its name, another volume",
        "CreateSnapshot 128 bytes of name: its answer",
        "GetSnapshot one of several: what it tells",
        "ListSnapshots by a volume",
        "ListSnapshots in pages of two",
        "ListSnapshots once one is deleted",
        "GetVolumeGroupSnapshot of a group that is not there",
    ] {
        assert!(passed.iter().any(|check| check == wanted), "{wanted}: {passed:#?} {skipped:#?}");
    }
    rig.assert_nothing_left();
}

#[tokio::test]
async fn each_fault_at_what_is_there_fails_its_check() {
    let volumes = Answer::reply(&proto::ListVolumesResponse::default());
    let snapshots = Answer::reply(&proto::ListSnapshotsResponse::default());
    for ((rpc, answer), failed) in [
        (
            (Rpc::ListVolumes, volumes),
            &["ListVolumes a token that is none", "ListVolumes with a volume that was made"][..],
        ),
        (
            (Rpc::ListSnapshots, snapshots),
            &[
                "ListSnapshots a token that is none",
                "ListSnapshots by an id",
                "ListSnapshots by a volume",
                "ListSnapshots in pages of two",
                "ListSnapshots once one is deleted",
            ],
        ),
        (
            (Rpc::NodeExpandVolume, Answer::fail(Code::Internal, "no")),
            &[
                "NodeExpandVolume without a volume",
                "NodeExpandVolume without a path",
                "NodeExpandVolume of a volume that is not there",
                "NodeExpandVolume spare: without a path",
                "NodeExpandVolume grown: on its node",
            ],
        ),
    ] {
        let rig = Rig::new();
        rig.backend.always(rpc, answer);
        let (code, card) = rig.run(true).await;
        let failed: Vec<_> = failed.iter().map(|&word| word.to_owned()).collect();
        assert_eq!((code, of(&card, "fail")), (Some(1), failed), "{rpc}");
        rig.assert_nothing_left();
    }
    let rig = Rig::new();
    rig.backend.configure(|config| config.attributes = None);
    let (_, card) = rig.run(true).await;
    let wanted = [
        "CreateVolume with an attribute that no driver knows",
        "ControllerModifyVolume spare: what no driver knows",
        "ControllerModifyVolume with attributes: what no driver knows",
    ];
    assert_eq!(of(&card, "fail"), wanted);
    rig.assert_nothing_left();
}

/// What a careless driver did all the same is taken away.
#[tokio::test]
async fn what_was_not_refused_is_undone() {
    let rig = Rig::new();
    rig.backend.configure(|config| {
        config.careless = true;
        config.attributes = None;
    });
    let (code, card) = rig.run(true).await;
    assert_eq!(code, Some(1), "{card:#}");
    assert!(of(&card, "pass").contains(&"nothing is left".to_owned()));
    rig.assert_nothing_left();
}

/// By the id that it told: asked once more, a careless driver may make another one, or find something wrong.
#[tokio::test]
async fn what_was_not_refused_is_undone_by_its_own_id() {
    let rig = Rig::new();
    let made = proto::Volume { volume_id: "odd".into(), capacity_bytes: 64 << 20, ..Default::default() };
    // Two that name nothing are refused; the next one is taken.
    for _ in 0..2 {
        rig.backend.next(Rpc::CreateVolume, Answer::honest());
    }
    rig.backend.next(Rpc::CreateVolume, Answer::reply(&proto::CreateVolumeResponse { volume: Some(made) }));
    let (code, card) = rig.run(true).await;
    assert_eq!((code, of(&card, "fail").len()), (Some(1), 1), "{card:#}");
    let calls = rig.backend.calls();
    let odd =
        calls.iter().position(|call| matches!(&call.ask, Ask::DeleteVolume(of) if of.volume_id == "odd"));
    let creates =
        calls[..odd.expect("it was left")].iter().filter(|call| matches!(call.ask, Ask::CreateVolume(_)));
    assert_eq!(creates.count(), 3, "it was asked for again");
    rig.assert_nothing_left();
}

/// The driver that makes another volume at each repetition is the one that is looked for.
#[tokio::test]
async fn what_a_repetition_made_is_taken_away_as_well() {
    let rig = Rig::new();
    // Five that are to be refused, and the first of the life.
    for _ in 0..6 {
        rig.backend.next(Rpc::CreateVolume, Answer::honest());
    }
    let other = proto::Volume { volume_id: "second".into(), capacity_bytes: 64 << 20, ..Default::default() };
    rig.backend.next(Rpc::CreateVolume, Answer::reply(&proto::CreateVolumeResponse { volume: Some(other) }));
    let (code, card) = rig.run(true).await;
    assert_eq!(
        (code, of(&card, "fail")),
        (Some(1), vec!["CreateVolume volume: again".to_owned()]),
        "{card:#}"
    );
    let calls = rig.backend.calls();
    let deleted = |call: &_| matches!(call, Ask::DeleteVolume(of) if of.volume_id == "second");
    assert!(calls.iter().any(|call| deleted(&call.ask)), "the second volume was left");
    rig.assert_nothing_left();
}

/// A careless driver could take an empty id for all that it has.
#[tokio::test]
async fn nothing_is_undone_without_its_name_unless_the_driver_is_exercised() {
    let unnamed = |rig: &Rig| {
        let calls = rig.backend.calls();
        let empty = calls.iter().filter(|call| match &call.ask {
            Ask::DeleteVolume(of) => of.volume_id.is_empty(),
            Ask::DeleteSnapshot(of) => of.snapshot_id.is_empty(),
            Ask::ControllerUnpublishVolume(of) => of.volume_id.is_empty(),
            Ask::NodeUnstageVolume(of) => of.volume_id.is_empty() || of.staging_target_path.is_empty(),
            Ask::NodeUnpublishVolume(of) => of.volume_id.is_empty() || of.target_path.is_empty(),
            _ => false,
        });
        empty.count()
    };
    let rig = Rig::new();
    let (_, card) = rig.run(false).await;
    assert_eq!((of(&card, "fail"), unnamed(&rig)), (Vec::<String>::new(), 0), "{card:#}");
    assert!(rig.backend.calls().len() > 10, "it was asked");
    rig.run(true).await;
    assert!(unnamed(&rig) > 0, "it is asked when it may be");
}

/// What it has not it must not have.
#[tokio::test]
async fn a_call_that_is_not_reported_is_not_served() {
    let rig = Rig::new();
    let (_, card) = rig.run(false).await;
    assert_eq!(of(&card, "fail"), Vec::<String>::new(), "{card:#}");
    rig.backend.configure(|config| config.controller.retain(|number| *number != 3));
    rig.backend.always(Rpc::ListVolumes, Answer::raw(Vec::new()));
    let (code, card) = rig.run(false).await;
    let wanted = ["ControllerGetCapabilities capabilities that go together", "ListVolumes not reported"];
    let wanted = wanted.map(str::to_owned).to_vec();
    assert_eq!((code, of(&card, "fail")), (Some(1), wanted));
    assert_eq!(seen(&card, "ListVolumes", "not reported"), "OK");
}

/// `wharfline csi chaos` before the scripted driver.
struct Chaos(Child);

impl Chaos {
    fn start(rig: &Rig, rule: &Value) -> Self {
        Self::start_all(rig, std::slice::from_ref(rule))
    }

    fn start_all(rig: &Rig, rules: &[Value]) -> Self {
        let (script, socket) = (rig.dir.path().join("chaos.yaml"), rig.dir.path().join("chaos.sock"));
        std::fs::write(&script, serde_json::json!({ "rules": rules }).to_string()).unwrap();
        let mut command = Command::new(WHARFLINE);
        command.args(["csi", "chaos", "--endpoint"]).arg(format!("unix://{}", socket.display()));
        command.arg("--driver").arg(format!("unix://{}", rig.scripted.socket().display()));
        command.arg("--script").arg(&script).stdin(Stdio::null()).stderr(Stdio::null());
        let chaos = Self(command.spawn().unwrap());
        until("it listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        chaos
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whatever step fails, its effect made, what is there is taken away.
#[tokio::test]
async fn a_life_that_breaks_off_leaves_nothing() {
    let rig = Rig::new();
    let (code, card) = rig.run(true).await;
    assert_eq!((code, of(&card, "fail")), (Some(0), Vec::new()), "{card:#}");
    rig.assert_nothing_left();
    // By the id of a volume that is there: the questions that change nothing name none.
    for (method, id, end, failed) in [
        ("CreateVolume", "*-volume", "loseReply", "CreateVolume volume: made"),
        ("CreateVolume", "*-volume", "answerCode", "CreateVolume volume: made"),
        ("ControllerPublishVolume", "backend/*", "answerCode", "ControllerPublishVolume volume: attached"),
        ("NodeStageVolume", "backend/*", "answerCode", "NodeStageVolume volume: staged"),
        ("NodePublishVolume", "backend/*", "answerCode", "NodePublishVolume volume: published"),
        ("NodeUnpublishVolume", "backend/*", "answerCode", "NodeUnpublishVolume volume: taken off"),
        ("NodeUnstageVolume", "backend/*", "answerCode", "NodeUnstageVolume volume: unstaged"),
        (
            "ControllerUnpublishVolume",
            "backend/*",
            "answerCode",
            "ControllerUnpublishVolume volume: detached",
        ),
        ("CreateSnapshot", "*-snapshot", "answerCode", "CreateSnapshot snapshot: taken"),
        ("DeleteSnapshot", "snap*", "answerCode", "DeleteSnapshot snapshot: deleted"),
        ("DeleteVolume", "backend/*", "answerCode", "DeleteVolume from the snapshot: deleted"),
    ] {
        let rig = Rig::new();
        let word = if end == "loseReply" { "Unavailable" } else { "INTERNAL" };
        let rule = serde_json::json!({ "method": method, "id": id, "times": 1, end: word });
        let _chaos = Chaos::start(&rig, &rule);
        let scratch = rig.dir.path().display().to_string();
        let socket = rig.dir.path().join("chaos.sock");
        let (code, card) = run(&socket, &["--exercise", "--scratch-dir", &scratch]).await;
        assert_eq!((code, of(&card, "fail")), (Some(1), vec![failed.to_owned()]), "{method} {card:#}");
        assert!(of(&card, "pass").contains(&"nothing is left".to_owned()));
        rig.assert_nothing_left();
    }
}

/// So it is when a person ends it in the middle.
#[tokio::test]
async fn a_life_that_is_interrupted_leaves_nothing() {
    let rig = Rig::new();
    let rule = serde_json::json!({ "method": "NodePublishVolume", "id": "backend/*", "times": 1, "loseReply": "Silence" });
    let _chaos = Chaos::start(&rig, &rule);
    let scratch = rig.dir.path().display().to_string();
    let mut command =
        probe(&rig.dir.path().join("chaos.sock"), &["--exercise", "--scratch-dir", &scratch, "-o", "json"]);
    let child = command.spawn().unwrap();
    of_ours(&rig, Rpc::NodePublishVolume).await;
    interrupt(&child);
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let card: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(of(&card, "pass").contains(&"nothing is left".to_owned()), "{card:#}");
    rig.assert_nothing_left();
}

/// Who says that all is deleted and lists it still has left it.
#[tokio::test]
async fn what_is_deleted_by_word_alone_is_named() {
    let rig = Rig::new();
    let _chaos = Chaos::start(&rig, &serde_json::json!({ "method": "DeleteVolume", "code": "OK" }));
    let scratch = rig.dir.path().display().to_string();
    let socket = rig.dir.path().join("chaos.sock");
    let (code, card) = run(&socket, &["--exercise", "--scratch-dir", &scratch]).await;
    assert_eq!(code, Some(1));
    let left = seen(&card, "", "nothing is left");
    assert!(left.contains("its deletion was answered with OK, and it is listed"), "{left}");
}

/// A driver that says nothing any more is not waited for again and again: what is left is named.
#[tokio::test]
async fn an_end_at_a_driver_that_hangs_is_an_end() {
    let rig = Rig::new();
    let silent =
        |method: &str| serde_json::json!({ "method": method, "id": "backend/*", "loseReply": "Silence" });
    let rules = ["NodeUnpublishVolume", "NodeUnstageVolume"].map(silent);
    let _chaos = Chaos::start_all(&rig, &rules);
    let scratch = rig.dir.path().display().to_string();
    let socket = rig.dir.path().join("chaos.sock");
    let (code, card) = run(&socket, &["--exercise", "--scratch-dir", &scratch, "--timeout", "1s"]).await;
    assert_eq!(code, Some(1));
    let left = seen(&card, "", "nothing is left");
    let [published, staged, attached, volume] = left.split("; ").collect::<Vec<_>>()[..4] else {
        panic!("{left}")
    };
    assert!(published.contains("published at") && published.contains("DEADLINE_EXCEEDED"), "{left}");
    // What it may use still is not taken away beneath it.
    for word in [staged, attached, volume] {
        assert!(word.ends_with("not tried: it may be used still"), "{left}");
    }
    for rpc in [Rpc::NodeUnstageVolume, Rpc::ControllerUnpublishVolume, Rpc::DeleteVolume] {
        let ours = |volume: &str| volume.starts_with("backend/");
        assert!(!rig.backend.calls_of(rpc).iter().any(|call| call.ask.volume().is_some_and(ours)), "{rpc:?}");
    }
}

/// Where all was asked, a first interrupt cuts nothing short.
#[tokio::test]
async fn what_is_taken_away_at_the_end_is_taken_away_all_the_same() {
    let deleted = |rig: &Rig| {
        let of = rig.backend.calls_of(Rpc::DeleteVolume);
        of.iter().filter(|call| call.ask.volume().is_some_and(|id| id.starts_with("backend/"))).count()
    };
    let exercise = |rig: &Rig| {
        let scratch = rig.dir.path().display().to_string();
        let arguments = ["--exercise", "--scratch-dir", &scratch, "--timeout", "2s", "-o", "json"];
        probe(&rig.dir.path().join("chaos.sock"), &arguments).spawn().unwrap()
    };
    let end = async |child: Child| {
        let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
        let card: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(of(&card, "pass").contains(&"nothing is left".to_owned()), "{card:#}");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // The last volume is there until the end.
    let rig = Rig::new();
    let _nothing = Chaos::start_all(&rig, &[]);
    let (whole, _) = end(exercise(&rig)).await;
    let last = deleted(&rig);
    let rig = Rig::new();
    let silent = serde_json::json!({ "method": "DeleteVolume", "id": "backend/*", "after": last - 1, "times": 1,
        "loseReply": "Silence" });
    let _chaos = Chaos::start(&rig, &silent);
    let child = exercise(&rig);
    let until = Instant::now() + LONG;
    while deleted(&rig) < last {
        assert!(Instant::now() < until, "it does not come to its end");
        tokio::task::yield_now().await;
    }
    interrupt(&child);
    let (code, said) = end(child).await;
    assert_eq!((code, said.matches("interrupt once more").count()), (whole, 1), "{said}");
    rig.assert_nothing_left();
}

/// Nor by a person who has waited enough.
#[tokio::test]
async fn an_end_can_be_cut_short() {
    let rig = Rig::new();
    let silent =
        |method: &str| serde_json::json!({ "method": method, "id": "backend/*", "loseReply": "Silence" });
    let _chaos = Chaos::start_all(&rig, &["NodePublishVolume", "NodeUnpublishVolume"].map(silent));
    let scratch = rig.dir.path().display().to_string();
    let socket = rig.dir.path().join("chaos.sock");
    let child = probe(&socket, &["--exercise", "--scratch-dir", &scratch, "-o", "json"]).spawn().unwrap();
    for rpc in [Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume] {
        of_ours(&rig, rpc).await;
        interrupt(&child);
    }
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let card: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left = seen(&card, "", "nothing is left");
    assert_eq!(left.matches("not taken away: interrupted").count(), 4, "{left}");
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Until a call has come that names what was made, beside the questions that name nothing.
async fn of_ours(rig: &Rig, rpc: Rpc) {
    let came =
        || rig.backend.calls_of(rpc).iter().any(|call| call.ask.volume().unwrap().starts_with("backend/"));
    let end = Instant::now() + LONG;
    while !came() {
        assert!(Instant::now() < end, "{rpc:?} does not come");
        tokio::task::yield_now().await;
    }
}

/// What cannot be taken away is told.
#[tokio::test]
async fn what_stays_is_named() {
    let rig = Rig::new();
    let rule =
        serde_json::json!({ "method": "DeleteVolume", "id": "backend/*", "code": "FAILED_PRECONDITION" });
    let _chaos = Chaos::start(&rig, &rule);
    let scratch = rig.dir.path().display().to_string();
    let (code, card) =
        run(&rig.dir.path().join("chaos.sock"), &["--exercise", "--scratch-dir", &scratch]).await;
    assert_eq!(code, Some(1));
    let left = seen(&card, "", "nothing is left");
    assert!(left.contains("the volume wharfline-probe-") && left.contains("FAILED_PRECONDITION"), "{left}");
    assert!(!rig.backend.volumes().is_empty());
}

/// Nobody is there; a file cannot be read; a flag is wrong.
#[tokio::test]
async fn what_cannot_be_begun_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (code, card) = run(&dir.path().join("none.sock"), &[]).await;
    assert_eq!((code, of(&card, "fail")), (Some(1), vec!["GetPluginInfo answers".to_owned()]));
    assert!(seen(&card, "GetPluginInfo", "answers").starts_with("no answer: "));
    let secrets = dir.path().join("secrets.yaml");
    std::fs::write(&secrets, "password: 12345678").unwrap();
    let number = dir.path().join("number.yaml");
    std::fs::write(&number, "pin: 012345678").unwrap();
    for (arguments, code, words) in [
        (
            &["--secrets-file", secrets.to_str().unwrap()][..],
            1,
            "secrets.yaml: password: write a text in quotes",
        ),
        // What the reader of YAML says of a text has the text in it.
        (&["--secrets-file", number.to_str().unwrap()][..], 1, "number.yaml: it cannot be read as YAML"),
        (&["--secrets-file", "/no/such/file"], 1, "/no/such/file cannot be read"),
        (&["--parameter", "x"], 2, "write KEY=VALUE"),
        (&["--size", "0"], 2, "write a size such as 64Mi"),
        (&["--timeout", "0s"], 2, "write a time such as 30s"),
    ] {
        let mut command = probe(&dir.path().join("none.sock"), arguments);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(code) && text.contains(words) && !text.contains("12345678"),
            "{text}"
        );
    }
}
