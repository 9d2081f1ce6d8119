//! Several processes of one driver: which of them is asked, whatever becomes of the others.
use std::path::Path;

use serde_json::{Value, json};
use wharfline::csi::Rpc;

use crate::rig::{Rig, until};
use crate::scene::{
    allocation_of, apply, claim, class, command, condition, env, events, finish, instance, instances, kill,
    path, phase, plugin, serves, starts, told, used, user,
};
use crate::scripted::steered::{Call, Steered, now};

/// The instance that an allocation runs.
fn of(rig: &Rig, allocation: &str) -> Value {
    let of_it = |instance: &Value| instance["spec"]["allocation"]["name"] == allocation;
    rig.list("plugininstances").into_iter().find(of_it).unwrap_or_default()
}

fn is_ready(rig: &Rig, allocation: &str) -> bool {
    condition(&of(rig, allocation), "Ready")["status"] == "True"
}

/// Who was asked for a volume.
struct Made {
    by: String,
    /// When both it and its user stood in the store, by [`now`].
    wanted: u64,
    came: u64,
}

/// Has a volume made.
fn maker(rig: &Rig, driver: &Steered, name: &str) -> Made {
    let before = driver.calls_of(Rpc::CreateVolume).len();
    apply(rig, &used(name, "p"));
    let wanted = now();
    let made = || driver.calls_of(Rpc::CreateVolume).get(before).cloned();
    until(&format!("{name}: its volume is asked for"), || made().is_some());
    let Call { by, came, .. } = made().unwrap();
    Made { by, wanted, came }
}

/// A task that serves the plugin and cannot be started.
fn unstartable(name: &str, driver: &Steered) -> Value {
    let mut allocation = serves(name, "p", "Monolith", (driver, "idle"));
    let task = &mut allocation["spec"]["tasks"][0];
    task["runtime"] = json!({ "oci": { "archive": "${DATA_DIR}/image-archives/none.tar" } });
    allocation
}

/// Nothing is told of its health, for it never had any.
fn gone_before_it_was_there(rig: &Rig, driver: &Steered) {
    apply(rig, &[unstartable("early", driver)]);
    until("it cannot be started", || {
        let ready = condition(&of(rig, "early"), "Ready");
        ready["status"] == "False" && ready["message"].as_str().is_some_and(|m| !m.is_empty())
    });
    let early = of(rig, "early");
    rig.run(&["delete", "allocation", "early"]);
    assert!(
        events(rig, &early).iter().all(|(why, ..)| !why.starts_with("Plugin")),
        "{:?}",
        events(rig, &early)
    );
}

/// Ten that never answer and one that cannot be started come and go; whoever is well is asked before and after.
fn burst(rig: &Rig, driver: &Steered, round: usize) {
    let names: Vec<_> = (0..10).map(|n| format!("x{round}{n}")).collect();
    let burst: Vec<_> = names.iter().map(|name| serves(name, "p", "Monolith", (driver, "idle"))).collect();
    apply(rig, &burst);
    apply(rig, &[unstartable(&format!("y{round}"), driver)]);
    assert_eq!(maker(rig, driver, &format!("before{round}")).by, "a");
    let gone: Vec<_> =
        names.iter().map(String::as_str).chain([if round == 0 { "y0" } else { "y1" }]).collect();
    rig.run(&[&["delete", "allocation", "--wait=false"], &gone[..]].concat());
    assert_eq!(maker(rig, driver, &format!("after{round}")).by, "a");
    rig.wait_ready(&format!("allocation/before{round}"));
}

/// Scenarios A9, A10, A11, A12, A13, R3, R4.
/// One serves, with a call that hangs, through a burst of twenty that come and go and that never answer.
#[test]
fn whoever_comes_and_goes_the_newest_that_is_well_serves() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up();
    for (name, says) in
        [("a", json!({})), ("b", json!({})), ("last", json!({})), ("idle", json!({ "listens": "never" }))]
    {
        driver.profile(name, &says);
    }
    gone_before_it_was_there(&rig, &driver);
    apply(&rig, &[serves("a", "p", "Monolith", (&driver, "a")), class("p")]);
    until("it serves", || is_ready(&rig, "a"));
    until("that is told", || told(&rig, &of(&rig, "a"), "PluginHealthy") == 1);
    driver.next(Rpc::NodeStageVolume, &json!({ "hang": "stage" }));
    assert_eq!(maker(&rig, &driver, "held").by, "a");
    let staging = || driver.calls_of(Rpc::NodeStageVolume).first().cloned();
    until("its call hangs", || staging().is_some());
    let known = of(&rig, "a");

    for round in 0..2 {
        burst(&rig, &driver, round);
    }
    until("all of them are gone", || instances(&rig, "p").len() == 1);
    let a = of(&rig, "a");
    assert_eq!(a["metadata"]["resourceVersion"], known["metadata"]["resourceVersion"], "{a}");
    let said = events(&rig, &a);
    assert!(matches!(&said[..], [(why, _, 1)] if why == "PluginHealthy"), "{said:?}");
    assert_eq!(staging().unwrap().over, None, "it still hangs");

    // A newer one serves, and what hangs ends where it was asked.
    apply(&rig, &[serves("b", "p", "Monolith", (&driver, "b"))]);
    until("both are well", || is_ready(&rig, "b"));
    assert_eq!(maker(&rig, &driver, "by-b").by, "b");
    driver.open("stage");
    rig.wait_ready("allocation/held");
    let held = staging().unwrap();
    assert_eq!((held.by.as_str(), held.over.unwrap().1.as_str()), ("a", "Ok"));
    assert_eq!(
        driver.calls_of(Rpc::NodeStageVolume).iter().filter(|call| call.volume == held.volume).count(),
        1
    );

    // It dies and does not come back: the older one is asked within a second.
    driver.profile("b", &json!({ "listens": "never" }));
    kill(&rig, &allocation_of(&rig, &of(&rig, "b")));
    let next = maker(&rig, &driver, "by-a");
    assert_eq!(next.by, "a");
    assert!(
        next.came < next.wanted + 1000,
        "{} ms after it was wanted",
        next.came.saturating_sub(next.wanted)
    );
    assert_eq!(told(&rig, &of(&rig, "a"), "PluginHealthy"), 1, "it was well all the time");

    // The one that came last serves, and goes on when the others leave.
    apply(&rig, &[serves("last", "p", "Monolith", (&driver, "last"))]);
    until("it is well", || is_ready(&rig, "last"));
    assert_eq!(maker(&rig, &driver, "by-last").by, "last");
    rig.run(&["delete", "allocation", "a", "b"]);
    assert_eq!(maker(&rig, &driver, "alone").by, "last");
    rig.wait_ready("allocation/alone");
    let mut ran: Vec<_> = driver.calls().into_iter().map(|call| (call.by, call.process)).collect();
    ran.sort();
    ran.dedup();
    assert_eq!(
        ran.iter().map(|(by, _)| by.as_str()).collect::<Vec<_>>(),
        ["a", "b", "last"],
        "one process each"
    );
    finish(rig, &[&driver]);
}

/// Scenarios A16, A53, B111, B116.
/// A call that was under way ends with the former one; the next one takes down what that mounted.
#[test]
fn another_version_takes_over_with_its_capabilities_and_no_mount_is_touched() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up();
    driver.profile("v1", &json!({ "version": "1.0.0", "maxVolumes": 5, "topology": { "zone": "a" } }));
    driver.profile(
        "v2",
        &json!({ "version": "2.0.0", "maxVolumes": 7, "topology": { "zone": "a", "rack": "r1" },
        "controller": [1, 2, 3], "node": [1, 2, 5] }),
    );
    apply(
        &rig,
        &[plugin("p", &driver, "v1", &json!({})), class("p"), claim("c", "p", "SingleNodeMultiWriter")],
    );
    rig.wait_ready("plugin/p");
    apply(&rig, &[user("one", "c"), user("two", "c")]);
    for name in ["one", "two"] {
        rig.wait_ready(&format!("allocation/{name}"));
    }
    let before = instance(&rig, "p");
    assert_eq!(rig.get("plugin", "p")["status"]["provider"]["version"], "1.0.0");
    driver.next(Rpc::NodePublishVolume, &json!({ "hang": "old" }));
    apply(&rig, &[user("three", "c")]);
    let third = || driver.calls_of(Rpc::NodePublishVolume).get(2).cloned();
    until("its call is under way", || third().is_some());
    let (mounts, calls) = (rig.mounts(), driver.order().len());

    apply(&rig, &[plugin("p", &driver, "v2", &json!({}))]);
    let newer = |rig: &Rig| {
        let mut all = instances(rig, "p");
        all.retain(|i| {
            i["status"]["provider"]["version"] == "2.0.0" && condition(i, "Ready")["status"] == "True"
        });
        all.pop().unwrap_or_default()
    };
    until("the new one is well", || newer(&rig).is_object());
    assert_eq!(third().unwrap().over, None);
    driver.open("old");
    until("the change is through", || condition(&rig.get("plugin", "p"), "Updated")["status"] == "True");
    until("one is left", || instances(&rig, "p").len() == 1);
    rig.wait_ready("plugin/p");
    rig.wait_ready("allocation/three");
    let third = third().unwrap();
    assert_eq!((third.by.as_str(), third.over.unwrap().1.as_str()), ("v1", "Ok"));

    let after = instance(&rig, "p");
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"], "another task, with a socket of its own");
    let status = &after["status"];
    assert_eq!(
        (&status["maxVolumes"], &status["topology"]),
        (&json!(7), &json!({ "rack": "r1", "zone": "a" }))
    );
    let can = |of: &Value, word: &str| of["capabilities"].as_array().unwrap().iter().any(|c| c == word);
    let whole = rig.get("plugin", "p")["status"].clone();
    assert_eq!(whole["provider"]["version"], "2.0.0");
    for (word, now) in [
        ("node/GET_VOLUME_STATS", true),
        ("controller/LIST_VOLUMES", true),
        ("controller/GET_CAPACITY", false),
    ] {
        assert_eq!((can(status, word), can(&whole, word)), (now, now), "{word}: {whole}");
    }
    assert_eq!(driver.order()[calls..], Vec::<String>::new()[..], "no call was made for it");
    assert!(mounts.iter().all(|mount| rig.mounts().contains(mount)), "a mount was touched");

    // One leaves: the new one takes down what the former one mounted, and nothing else.
    let target = path(&rig, "one");
    rig.run(&["delete", "allocation", "one"]);
    let down = driver.calls_of(Rpc::NodeUnpublishVolume).pop().unwrap();
    assert_eq!((down.by.as_str(), &down.path), ("v2", &target));
    assert_eq!(driver.order()[calls..], ["NodeUnpublishVolume"]);
    for name in ["two", "three"] {
        assert_eq!((phase(&rig, name).as_str(), starts(&rig, name)), ("Running", 1));
        assert!(rig.mounts().iter().any(|mount| mount.ends_with(&path(&rig, name))));
    }
    finish(rig, &[&driver]);
}

/// Scenario A15.
/// Somebody else listens at the path that the journal names: of another boot it is not asked.
#[test]
fn after_a_boot_no_socket_of_before_is_asked_and_the_next_process_serves() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up_on_machine("boot-0");
    driver.profile("it", &json!({}));
    apply(&rig, &[plugin("p", &driver, "it", &json!({})), class("p")]);
    apply(&rig, &used("u", "p"));
    rig.wait_ready("allocation/u");
    let runs = || std::fs::read_to_string(driver.path().join("volumes/backend-0001/u")).unwrap_or_default();
    until("it runs", || runs().lines().count() == 1);
    let first = driver.calls();
    let sockets = wharfline::run::machine::run_dir(rig.data.path());
    let socket = std::fs::read_dir(&sockets).unwrap().flatten().map(|entry| entry.path().join("csi.sock"));
    let socket = socket.into_iter().find(|path| path.exists()).expect("the driver's socket");

    // Its power goes off.
    rig.kill();
    until("nobody is left", || std::os::unix::net::UnixStream::connect(&socket).is_err());
    std::fs::remove_file(&socket).unwrap();
    let trap = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    trap.set_nonblocking(true).unwrap();
    rig.up_on_machine("boot-1");
    rig.wait_ready("plugin/p");
    rig.wait_ready("allocation/u");
    until("it runs again", || runs().lines().count() == 2);
    let asked = trap.accept();
    assert!(asked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it was asked");
    let since = driver.calls().split_off(first.len());
    assert_eq!(since[0].rpc, "Probe");
    assert!(since.iter().all(|call| call.process == since[0].process && call.process != first[0].process));
    let about: Vec<_> =
        since.iter().filter(|call| !call.volume.is_empty()).map(|call| call.rpc.as_str()).collect();
    assert_eq!(about, ["NodeStageVolume", "NodePublishVolume"], "what a boot takes away, and no more");
    let phase = phase(&rig, "u");
    assert_eq!(phase, "Running");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    driver.assert_clean();
    rig.assert_nothing_left();
}

/// A process that says in a file, by the clock of the calls, when it begins and when it is asked to end.
fn told_of(who: &str, command: &str, log: &Path) -> Value {
    let says =
        |what: &str| format!("read up rest < /proc/uptime; echo {what} {who} $up >> {}", log.display());
    let (begins, ends) = (says("begins"), says("ends"));
    let script = format!("{begins}; trap '{ends}; kill $P 2> /dev/null' TERM; {command} & P=$!; wait; wait");
    json!(["/bin/sh", "-c", script])
}

/// This binary as a driver that is [`told_of`].
fn told_of_driver(who: &str, log: &Path) -> Value {
    let words: Vec<String> = serde_json::from_value(command()).unwrap();
    told_of(who, &words.join(" "), log)
}

/// What was told, in hundredths of a second, and the file is gone.
fn what_was_told(log: &Path) -> Vec<(String, u64)> {
    let all = std::fs::read_to_string(log).unwrap();
    std::fs::remove_file(log).unwrap();
    let line = |line: &str| {
        let (what, at) = line.rsplit_once(' ').unwrap();
        (what.to_owned(), at.replace('.', "").parse().unwrap())
    };
    all.lines().map(line).collect()
}

/// Scenario A19.
/// What uses volumes ends first, then what mounts them, and last what attaches and deletes them.
#[test]
fn down_ends_users_then_drivers_of_nodes_and_last_those_of_controllers() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up();
    driver.profile("it", &json!({}));
    let log = rig.data.path().with_extension("told");
    let entry = |name: &str, role: &str, placement: Value| {
        json!({ "name": name, "role": role, "placement": placement, "env": env(&driver, "it"),
            "runtime": { "process": { "command": told_of_driver(name, &log) } } })
    };
    let mut apart = plugin("p", &driver, "it", &json!({}));
    apart["spec"]["instances"] = json!([
        entry("node", "Node", json!({ "everyNode": {} })),
        entry("controller", "Controller", json!({ "replicas": 1 })),
    ]);
    let mut pair = used("u", "p");
    pair[1]["spec"]["tasks"][0]["runtime"]["process"]["command"] = told_of("user", "sleep infinity", &log);
    apply(&rig, &[apart, class("p")]);
    apply(&rig, &pair);
    rig.wait_ready("allocation/u");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();

    let mut ends = what_was_told(&log);
    ends.retain(|(what, _)| what.starts_with("ends"));
    let whose: Vec<_> = ends.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(whose, ["ends user", "ends node", "ends controller"]);
    let [user, node, controller] = [0, 1, 2].map(|at: usize| ends[at].1);
    let over = |call: &Call| call.over.as_ref().unwrap().0 / 10;
    let unpublished = &driver.calls_of(Rpc::NodeUnpublishVolume)[0];
    assert!(user <= unpublished.came / 10, "nothing is taken from under it");
    assert!(over(&driver.calls_of(Rpc::NodeUnstageVolume)[0]) <= node);
    assert!(over(&driver.calls_of(Rpc::DeleteVolume)[0]) <= controller);
    let detached = &driver.calls_of(Rpc::ControllerUnpublishVolume)[0];
    assert_ne!(unpublished.process, detached.process, "they are apart");
    driver.assert_clean();
    rig.assert_nothing_left();
    // Somebody who did not hear that all is down asks once more: nothing is begun for it.
    for again in [&["down", "--delete-volumes"][..], &["down", "--delete-volumes"], &["down"]] {
        assert_eq!(rig.run(again).trim_end(), "down");
        assert!(!log.exists(), "a driver began");
    }
    rig.assert_nothing_left();
}

/// Scenario A16.
/// A driver of which a node can run one only: the former one has ended before the next one begins, the mounts stay, and one
/// that never gets well is held until the former spec is back.
#[test]
fn with_max_unavailable_the_former_process_ends_before_the_next_one_begins() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up();
    for version in ["v1", "v2"] {
        driver.profile(version, &json!({ "version": version }));
    }
    driver.profile("deaf", &json!({ "listens": "never" }));
    let log = rig.data.path().with_extension("told");
    let of = |version: &str| {
        let runtime = json!({ "runtime": { "process": { "command": told_of_driver(version, &log) } },
            "healthTimeout": "1s" });
        let mut plugin = plugin("p", &driver, version, &runtime);
        plugin["spec"]["updateStrategy"] = json!({ "maxUnavailable": 1 });
        plugin
    };
    let updated = |rig: &Rig| condition(&rig.get("plugin", "p"), "Updated");
    let changed_to = |rig: &Rig, version: &str| {
        until(&format!("it is {version}"), || {
            rig.get("plugin", "p")["status"]["provider"]["version"] == version
                && updated(rig)["status"] == "True"
        });
        rig.wait_ready("plugin/p");
    };
    apply(&rig, &[of("v1"), class("p")]);
    apply(&rig, &used("u", "p"));
    rig.wait_ready("allocation/u");
    until("it runs", || starts(&rig, "u") == 1);
    let (mounts, calls) = (rig.mounts(), driver.order());
    apply(&rig, &[of("v2")]);
    changed_to(&rig, "v2");
    apply(&rig, &[of("deaf")]);
    until("it is held", || updated(&rig)["reason"] == "UpdateHeld");
    assert_eq!((phase(&rig, "u").as_str(), starts(&rig, "u")), ("Running", 1));
    apply(&rig, &[of("v2")]);
    until("what was is back", || condition(&rig.get("plugin", "p"), "Ready")["status"] == "True");
    changed_to(&rig, "v2");
    assert_eq!((rig.mounts(), driver.order()), (mounts, calls), "nothing of the volume was touched");
    assert_eq!((phase(&rig, "u").as_str(), starts(&rig, "u")), ("Running", 1));
    finish(rig, &[&driver]);

    let told = what_was_told(&log);
    let mut running: Vec<&str> = Vec::new();
    for (what, _) in &told {
        match what.split_once(' ').unwrap() {
            ("begins", who) => {
                // One that is not well is killed after its grace, or ended, and started again.
                running.retain(|other| *other != who);
                assert!(running.is_empty(), "{who} beside {running:?}: {told:?}");
                running.push(who);
            }
            (_, who) => running.retain(|other| *other != who),
        }
    }
    let begun = |who: &str| told.iter().filter(|(what, _)| *what == format!("begins {who}")).count();
    assert_eq!((begun("v1"), begun("v2")), (1, 2), "{told:?}");
}

/// A declared Plugin takes instances from the namespaces that it names; another one is asked who it is, and about no volume.
#[test]
fn an_instance_of_a_namespace_that_a_plugin_does_not_name_is_asked_about_no_volume() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up();
    driver.profile("it", &json!({}));
    let declared = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": "p" },
        "spec": { "allowInstancesFrom": ["elsewhere"] } });
    apply(&rig, &[declared, class("p"), serves("own", "p", "Monolith", (&driver, "it"))]);
    apply(&rig, &used("u", "p"));
    let refused = |rig: &Rig| {
        rig.get("allocation", "own")["status"]["pluginRefused"].as_str().unwrap_or_default().to_owned()
    };
    until("it says so", || refused(&rig).contains("takes no instances from namespace \"default\""));
    until("its user waits", || rig.run(&["why", "allocation/u"]).contains("plugin/p"));
    assert_eq!((instances(&rig, "p").len(), driver.order()), (0, Vec::new()));
    rig.run(&["patch", "plugin", "p", "-p", r#"{"spec":{"allowInstancesFrom":["elsewhere","default"]}}"#]);
    rig.wait_ready("allocation/u");
    assert_eq!(refused(&rig), "");
    let first = driver.order();
    assert_eq!(first[0], "CreateVolume");
    // What is revoked serves on while a volume needs it, and says so; then it goes, and who comes next waits.
    rig.run(&["patch", "plugin", "p", "-p", r#"{"spec":{"allowInstancesFrom":[]}}"#]);
    let own = rig.get("allocation", "own");
    until("it stays for a volume", || {
        events(&rig, &own)
            .iter()
            .any(|(reason, note, _)| reason == "InstanceStays" && note.contains("any more"))
    });
    assert_eq!((instances(&rig, "p").len(), phase(&rig, "u")), (1, "Running".to_owned()));
    assert_eq!(driver.order(), first);
    rig.run(&["delete", "allocation/u", "volumeclaim/u"]);
    until("it is revoked", || !refused(&rig).is_empty() && instances(&rig, "p").is_empty());
    let all = driver.order();
    assert_eq!(all.last().map(String::as_str), Some("DeleteVolume"));
    apply(&rig, &used("late", "p"));
    until("the next one waits", || rig.run(&["why", "allocation/late"]).contains("plugin/p"));
    assert_eq!(driver.order(), all);
    rig.run(&["patch", "plugin", "p", "-p", r#"{"spec":{"allowInstancesFrom":["default"]}}"#]);
    rig.wait_ready("allocation/late");
    finish(rig, &[&driver]);
}
