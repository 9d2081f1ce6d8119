//! What a driver says of itself, or does not say: where that is told, and what waits for it.
use serde_json::{Value, json};
use wharfline::csi::Rpc;

use crate::rig::{Rig, until};
use crate::scene::{
    allocation_of, apply, class, condition, events, finish, instance, instances, phase, plugin, serves,
    starts, told, used,
};
use crate::scripted::steered::Steered;

/// A driver that is not ready to be used.
struct Case {
    plugin: &'static str,
    /// What it says of itself.
    says: Value,
    /// A call that it always fails.
    fails: Option<(Rpc, i32)>,
    /// The reason that is told, and what its message says.
    reason: &'static str,
    message: &'static str,
    /// How far it has come: connected, probed.
    come: [&'static str; 2],
    /// The capabilities once it is as it should be, and says nothing else of them.
    mended: Value,
}

fn cases() -> Vec<Case> {
    let case = |plugin, says, reason, message, come| Case {
        plugin,
        says,
        fails: None,
        reason,
        message,
        come,
        mended: json!({}),
    };
    let failing = |fails, of: Case| Case { fails: Some(fails), ..of };
    let probed = ["True", "True"];
    vec![
        case("late", json!({ "listens": "behind late" }), "NoSocket", "nothing is there yet", ["False"; 2]),
        Case {
            // With what nobody has heard of: of three services, and of both lists.
            mended: json!({ "services": [1, 4242], "controller": [1, 2, 77, 4], "node": [99, 1] }),
            ..case("starting", json!({ "ready": false }), "Starting", "not ready yet", ["True", "False"])
        },
        case("nameless", json!({ "name": "" }), "IllegalPluginName", "must be corrected", probed),
        case("misnamed", json!({ "name": "under_score/slash" }), "IllegalPluginName", "under_score", probed),
        case("nodeless", json!({ "nodeId": "" }), "IllegalNodeID", "must be corrected", probed),
        failing((Rpc::NodeGetInfo, 13), case("info", json!({}), "NodeGetInfoFailed", "INTERNAL", probed)),
        failing(
            (Rpc::GetPluginInfo, 14),
            case("who", json!({}), "GetPluginInfoFailed", "UNAVAILABLE", probed),
        ),
    ]
}

/// Scenarios A1, A3, A4, A5, A21, B112, Q3, Q4, Q5, Q6.
/// Each is asked on, is started once, gets no call about a volume before it is ready, and is used as soon as it is.
#[test]
fn what_is_wrong_with_a_driver_is_told_and_its_users_wait_until_it_is_right() {
    let all: Vec<_> = cases().into_iter().map(|case| (case, Steered::new())).collect();
    let mut rig = Rig::new();
    rig.up();
    let mut objects = Vec::new();
    for (case, driver) in &all {
        driver.profile("it", &case.says);
        if let Some((rpc, code)) = case.fails {
            driver.next(rpc, &json!({ "fail": code, "forever": true }));
        }
        objects.extend([
            plugin(case.plugin, driver, "it", &json!({ "healthTimeout": "120s" })),
            class(case.plugin),
        ]);
        objects.extend(used(case.plugin, case.plugin));
    }
    apply(&rig, &objects);
    let mut known = Vec::new();
    for (Case { plugin, reason, message, come, .. }, driver) in &all {
        let is = |kind: &str, status: &str| {
            let condition = condition(&instance(&rig, plugin), kind);
            let why = condition["message"].as_str().unwrap_or_default();
            condition["status"] == status
                && (status == "True" || condition["reason"] == *reason && why.contains(message))
        };
        until(&format!("{plugin}: it is told"), || {
            is("Connected", come[0])
                && is("Probed", come[1])
                && is("Fingerprinted", "False")
                && is("Ready", "False")
        });
        let waits = |rig: &Rig| rig.run(&["why", &format!("allocation/{plugin}")]);
        until(&format!("{plugin}: its user says for what it waits"), || waits(&rig).contains(plugin));
        assert_eq!(driver.order(), Vec::<String>::new(), "{plugin}: no call about a volume");
        assert_ne!(phase(&rig, plugin), "Failed");
        assert_eq!(rig.get("plugin", plugin)["status"]["nodes"], json!({ "healthy": 0, "expected": 1 }));
        known.push(instance(&rig, plugin)["metadata"]["uid"].clone());
    }
    for (case, driver) in &all {
        driver.profile("it", &case.mended);
        driver.open("late");
        if let Some((rpc, _)) = case.fails {
            assert!(driver.calls_of(rpc).len() > 1, "{}: it is asked on", case.plugin);
            driver.honest(rpc);
        }
    }
    for ((Case { plugin, .. }, driver), known) in all.iter().zip(known) {
        rig.wait_ready(&format!("plugin/{plugin}"));
        rig.wait_ready(&format!("allocation/{plugin}"));
        let instance = instance(&rig, plugin);
        assert_eq!(instance["metadata"]["uid"], known, "{plugin}: it stayed registered");
        assert_eq!(allocation_of(&rig, &instance)["status"]["tasks"][0]["restarts"].as_u64().unwrap_or(0), 0);
        until("it was told once that it is well", || told(&rig, &instance, "PluginHealthy") == 1);
        until("its user runs", || starts(&rig, plugin) == 1);
        assert_eq!(driver.calls_of(Rpc::CreateVolume).len(), 1);
    }
    let exactly = [
        "plugin/CONTROLLER_SERVICE",
        "controller/CREATE_DELETE_VOLUME",
        "controller/PUBLISH_UNPUBLISH_VOLUME",
        "controller/GET_CAPACITY",
        "node/STAGE_UNSTAGE_VOLUME",
    ];
    let mut told: Vec<_> =
        serde_json::from_value::<Vec<String>>(instance(&rig, "starting")["status"]["capabilities"].clone())
            .unwrap();
    told.sort();
    let mut exactly = exactly.to_vec();
    exactly.sort_unstable();
    assert_eq!(told, exactly);
    finish(rig, &all.iter().map(|(_, driver)| driver).collect::<Vec<_>>());
}

/// Scenarios A2, A12. One event for all its tries; and who never registered is taken out without a word.
#[test]
fn a_driver_that_never_answers_is_started_again_and_what_it_lacked_is_told() {
    let cases = [
        ("absent", json!({ "listens": "never" }), ["its socket did not answer", "nothing is there yet"]),
        (
            "silent",
            json!({ "listens": "silent" }),
            ["it took the connection and did not answer", "started again"],
        ),
        ("hangs", json!({}), ["it took the connection and did not answer", "started again"]),
        ("starts", json!({ "ready": false }), ["Probe did not say ready", "not ready yet"]),
    ];
    let all: Vec<_> = cases.into_iter().map(|case| (case, Steered::new())).collect();
    let mut rig = Rig::new();
    rig.up();
    let mut objects = Vec::new();
    for ((plugin, says, _), driver) in &all {
        driver.profile("it", says);
        if *plugin == "hangs" {
            driver.next(Rpc::Probe, &json!({ "hang": "never", "forever": true }));
        }
        objects.push(self::plugin(plugin, driver, "it", &json!({ "healthTimeout": "1s" })));
    }
    apply(&rig, &objects);
    for ((plugin, _, message), driver) in &all {
        let restarts = || {
            let status = allocation_of(&rig, &instance(&rig, plugin))["status"].clone();
            status["tasks"][0]["restarts"].as_u64().unwrap_or(0)
        };
        until(&format!("{plugin} is started again, and again"), || restarts() >= 2);
        // The next try says again what it lacks.
        let of_time = |of: &Value| condition(of, "Ready")["reason"] == "HealthTimeout";
        until(&format!("{plugin}: that it took too long"), || of_time(&instance(&rig, plugin)));
        let instance = instance(&rig, plugin);
        let told: Vec<_> = events(&rig, &instance);
        let of_it: Vec<_> = told.iter().filter(|(reason, ..)| reason == "HealthTimeout").collect();
        assert_eq!(of_it.len(), 1, "{plugin}: {told:?}");
        let said = &of_it[0].1;
        let within = "within 1 s";
        assert!(said.contains(within) && message.iter().all(|part| said.contains(part)), "{plugin}: {said}");
        assert_eq!(of_it[0].2, 1, "{plugin}: {told:?}");
        assert!(!told.iter().any(|(reason, ..)| reason == "PluginHealthy"), "{told:?}");
        if *plugin == "hangs" {
            let mut pids: Vec<_> = driver.calls_of(Rpc::Probe).into_iter().map(|call| call.process).collect();
            pids.dedup();
            assert!(pids.len() >= 2, "another process each time: {pids:?}");
        }
        rig.run(&["delete", "plugin", plugin]);
        assert!(instances(&rig, plugin).is_empty());
        let said = events(&rig, &instance);
        assert!(!said.iter().any(|(reason, ..)| reason == "PluginUnhealthy"), "{plugin}: {said:?}");
    }
    let drivers: Vec<_> = all.iter().map(|(_, driver)| driver).collect();
    drivers.iter().filter(|driver| !driver.calls().is_empty()).for_each(|driver| {
        if driver.path().join("answers/Probe").exists() {
            driver.honest(Rpc::Probe);
        }
    });
    finish(rig, &drivers);
}

/// Scenarios A7, A8, A18.
#[test]
fn plugins_come_and_go_with_the_tasks_that_serve_them_each_in_its_role() {
    let driver = Steered::new();
    let mut rig = Rig::new();
    rig.up();
    driver.profile("it", &json!({ "ready": false }));
    let counts = |plugin: &str| {
        let status = rig.get("plugin", plugin)["status"].clone();
        let of = |role: &str| (status[role]["healthy"].clone(), status[role]["expected"].clone());
        let number = |(a, b): (Value, Value)| (a.as_u64().unwrap_or(0), b.as_u64().unwrap_or(0));
        (number(of("controllers")), number(of("nodes")))
    };
    let is_there = |plugin: &str| rig.list("plugins").iter().any(|p| p["metadata"]["name"] == plugin);

    // Who was never well makes no Plugin; who is well does.
    apply(&rig, &[serves("both", "whole", "Monolith", (&driver, "it"))]);
    until("it answers", || condition(&instance(&rig, "whole"), "Ready")["reason"] == "Starting");
    assert!(!is_there("whole"));
    driver.profile("it", &json!({}));
    until("there is a Plugin", || is_there("whole"));
    rig.wait_ready("plugin/whole");
    assert_eq!(rig.get("plugin", "whole")["status"]["undeclaredFrom"], "default");
    assert_eq!(counts("whole"), ((1, 1), (1, 1)));

    // Of both roles one goes, the other stays.
    apply(&rig, &[serves("both", "whole", "Node", (&driver, "it"))]);
    until("it serves its node alone", || counts("whole") == ((0, 0), (1, 1)));
    rig.wait_ready("plugin/whole");

    // Two tasks in one role each, of one plugin.
    apply(
        &rig,
        &[
            serves("controls", "halves", "Controller", (&driver, "it")),
            serves("nodes", "halves", "Node", (&driver, "it")),
        ],
    );
    until("both serve", || is_there("halves") && counts("halves") == ((1, 1), (1, 1)));
    let other =
        |rig: &Rig| instances(rig, "halves").into_iter().find(|i| i["spec"]["role"] == "Node").unwrap();
    let before = other(&rig);
    rig.run(&["delete", "allocation", "controls"]);
    until("one is left", || counts("halves") == ((0, 0), (1, 1)));
    assert_eq!(other(&rig)["metadata"]["uid"], before["metadata"]["uid"]);
    rig.wait_ready("plugin/halves");

    // With the last one its Plugin goes.
    rig.run(&["delete", "allocation", "nodes", "both"]);
    until("no Plugin is left", || rig.list("plugins").is_empty());
    assert_eq!(rig.list("plugininstances"), Vec::<Value>::new());
    finish(rig, &[&driver]);
}
