//! A Plugin whose command is wrapped by `wharfline csi chaos`: answers are lost and the driver is killed, and everything comes
//! about once all the same.
use crate::quickstart::{QUICKSTART, greeting};
use crate::rig::{Rig, until};

/// What becomes of the first call of each kind.
const SCRIPT: &str = "
seed: 1
rules:
  - {name: lost-volume, method: CreateVolume, times: 1, loseReply: Cut}
  - {name: lost-mount, method: NodePublishVolume, times: 1, loseReply: Unavailable}
  - {name: dies, method: NodeUnpublishVolume, times: 1, crash: After}
";

/// The lines of the driver's log about calls of this kind: what was injected, what the driver and the caller were told.
fn calls(log: &str, method: &str) -> Vec<String> {
    let word = format!("method=\"{method}\"");
    let told = |line: &str| {
        let after = |key: &str| {
            let rest = line.split(&format!(" {key}=\"")).nth(1)?;
            rest.split('"').next()
        };
        let of = |key| after(key).unwrap_or("-").to_owned();
        format!("{} {} {} {}", of("id"), of("rule"), of("driver"), of("caller"))
    };
    log.lines().filter(|line| line.contains(&word)).map(told).collect()
}

/// Scenario B7.
#[test]
fn lost_answers_and_a_crash_leave_one_volume_one_task_and_nothing() {
    let mut rig = Rig::new();
    rig.up();
    let script = rig.data.path().join("chaos.yaml");
    std::fs::write(&script, SCRIPT).unwrap();
    let wrapped = QUICKSTART.replace(
        "command: [wharfline, csi, dir,",
        &format!("command: [wharfline, csi, chaos, --script, {}, --, wharfline, csi, dir,", script.display()),
    );
    assert_ne!(wrapped, QUICKSTART);
    rig.apply(&wrapped);
    rig.wait_ready("allocation/hello");
    assert_eq!(greeting(&rig), "hello from wharfline\n", "the task ran once");
    assert_eq!(rig.get("volumeclaim", "data")["status"]["phase"], "Bound");
    let volumes = rig.data.path().join("drivers/dir/volumes");
    assert_eq!(
        std::fs::read_dir(&volumes).unwrap().count(),
        1,
        "the call whose answer was lost is the only one"
    );
    let volume = rig.list("volumes").remove(0);
    let name = volume["metadata"]["name"].as_str().unwrap().to_owned();
    let handle = volume["status"]["handle"].as_str().unwrap().to_owned();
    rig.run(&["delete", "allocation", "hello"]);
    rig.run(&["delete", "volumeclaim", "data"]);
    until("no volumes are left", || {
        rig.list("volumes").is_empty() && rig.list("volumeattachments").is_empty()
    });
    // Beside these a daemon may ask again for what it is not sure of.
    let log = String::from_utf8(rig.try_run(&["logs", "plugin/dir"]).stderr).unwrap();
    let told = |method: &str| calls(&log, method);
    let begins = |method: &str, first: &[String]| {
        let told = told(method);
        assert!(told.starts_with(first), "{method}: {told:#?}\n{log}");
    };
    begins("CreateVolume", &[format!("{name} lost-volume OK cut"), format!("{name} - OK OK")]);
    begins(
        "NodePublishVolume",
        &[format!("{handle} lost-mount OK UNAVAILABLE"), format!("{handle} - OK OK")],
    );
    begins("NodeUnpublishVolume", &[format!("{handle} dies OK cut"), format!("{handle} - OK OK")]);
    assert!(
        log.contains("the driver was killed, by a script") && log.contains("the driver was started again"),
        "{log}"
    );
    assert_eq!(std::fs::read_dir(&volumes).unwrap().count(), 0, "a backend volume is left");
    rig.run(&["delete", "plugin", "dir"]);
    rig.run(&["delete", "volumeclass", "dir"]);
    until("no plugins are left", || rig.list("plugins").is_empty() && rig.list("plugininstances").is_empty());
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}

/// The first volume is smaller than was asked for.
const SMALLER: &str = "
seed: 1
rules:
  - {name: smaller, method: CreateVolume, lie: {volume: {capacity_bytes: 7}}}
";

/// Scenario B3.
#[test]
fn a_volume_that_is_too_small_is_deleted_again_and_its_claim_says_why() {
    let mut rig = Rig::new();
    rig.up();
    let script = rig.data.path().join("chaos.yaml");
    std::fs::write(&script, SMALLER).unwrap();
    let wrapped = QUICKSTART.replace(
        "command: [wharfline, csi, dir,",
        &format!("command: [wharfline, csi, chaos, --script, {}, --, wharfline, csi, dir,", script.display()),
    );
    assert_ne!(wrapped, QUICKSTART);
    rig.apply(&wrapped);
    let said = |rig: &Rig| {
        let claim = rig.get("volumeclaim", "data");
        let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default();
        ready["message"].as_str().unwrap_or_default().to_owned()
    };
    until("the claim says why", || said(&rig).contains("does not fit"));
    let why = said(&rig);
    assert!(why.contains("7 bytes") && why.contains("deleted again"), "{why}");
    assert_eq!(rig.get("volumeclaim", "data")["status"]["phase"], "Pending");
    let told = rig.run(&["why", "volumeclaim/data"]);
    assert!(told.contains("does not fit"), "{told}");
    let volumes = rig.data.path().join("drivers/dir/volumes");
    assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 0, "what does not fit is left");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}
