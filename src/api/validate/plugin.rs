//! Faults of a Plugin.
use serde_json::Value;

use super::super::field::{FieldError, FieldErrors};
use super::super::{plugin, quantity};
use super::mounts::{mounts, one_view};
use super::runtime::{driver_is_root, driver_paths, env, health_timeout, own_endpoint, resources, runtime};
use super::{check_duration, entries, is_subdomain, list, names, one_of, text};

/// Faults of a Plugin.
pub fn plugin(new: &Value, _: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    names(&mut faults, "spec.instances", &spec["instances"]);
    for (i, instance) in list(&spec["instances"]).enumerate() {
        let path = format!("spec.instances[{i}]");
        runtime(&mut faults, &format!("{path}.runtime"), &instance["runtime"]);
        one_of(
            &mut faults,
            &format!("{path}.placement"),
            &instance["placement"],
            &["everyNode", "nodeSelector", "replicas"],
            false,
        );
        if instance["placement"]["replicas"].as_u64() > Some(plugin::MOST_REPLICAS.into()) {
            let message = format!("must be at most {}: a node has one of them", plugin::MOST_REPLICAS);
            faults.invalid(format!("{path}.placement.replicas"), message);
        }
        resources(&mut faults, &path, instance);
        env(&mut faults, &path, instance);
        driver_paths(&mut faults, &path, instance, &instance["runtime"]);
        mounts(&mut faults, &path, instance, "");
        health_timeout(&mut faults, &format!("{path}.healthTimeout"), &instance["healthTimeout"]);
        driver_is_root(&mut faults, &path, instance);
        own_endpoint(&mut faults, &path, instance);
    }
    one_view(&mut faults, "spec.instances", &spec["instances"]);
    update_strategy(&mut faults, &spec["updateStrategy"]);
    for field in ["attachesPerNode", "attaches"] {
        if spec["concurrency"][field] == 0 {
            let message = "nothing could ever be attached; leave it out or give 1 or more";
            faults.invalid(format!("spec.concurrency.{field}"), message);
        }
    }
    for (i, namespace) in list(&spec["allowInstancesFrom"]).enumerate() {
        if !is_subdomain(text(namespace), 63) {
            let message = format!("\"{}\" cannot be the name of a namespace", text(namespace));
            faults.invalid(format!("spec.allowInstancesFrom[{i}]"), message);
        }
    }
    for (rpc, value) in entries(&spec["deadlines"]) {
        let path = format!("spec.deadlines[{rpc}]");
        if !plugin::RPCS.contains(&rpc.as_str()) {
            faults.invalid(&path, format!("\"{rpc}\" is no call of CSI, such as NodePublishVolume"));
            continue;
        }
        check_duration(&mut faults, &path, value);
        let own = value.as_str().and_then(quantity::duration).unwrap_or_default();
        if !rpc.starts_with("Node") && own > plugin::LONGEST_CONTROLLER_CALL {
            faults.invalid(
                &path,
                "must be at most 2m: a host that went silent is waited for no longer than that",
            );
        }
    }
    faults.into_vec()
}

fn update_strategy(faults: &mut FieldErrors, strategy: &Value) {
    let (surge, unavailable) = (&strategy["maxSurge"], &strategy["maxUnavailable"]);
    check_duration(faults, "spec.updateStrategy.minHealthyTime", &strategy["minHealthyTime"]);
    let given = |value: &Value| value.as_u64().is_some_and(|nodes| nodes > 0);
    if given(surge) && given(unavailable) {
        let message = "is for drivers of which a node can run one only; give this or maxSurge, not both";
        faults.invalid("spec.updateStrategy.maxUnavailable", message);
    }
    if *surge == 0 && !given(unavailable) {
        let message = "nothing could ever be replaced; give maxSurge or maxUnavailable of 1 or more";
        faults.invalid("spec.updateStrategy.maxSurge", message);
    } else if *unavailable == 0 && !given(surge) {
        let message = "nothing could ever be replaced; leave it out or give 1 or more";
        faults.invalid("spec.updateStrategy.maxUnavailable", message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn replicas_have_a_bound() {
        for (replicas, faulty) in [(0, false), (1000, false), (1001, true), (u32::MAX, true)] {
            let spec = json!({ "spec": { "instances": [{ "name": "all", "role": "Node",
                "runtime": { "process": { "command": ["d"] } }, "placement": { "replicas": replicas } }] } });
            let faults = plugin(&spec, None);
            let named = faults.iter().any(|fault| fault.path == "spec.instances[0].placement.replicas");
            assert_eq!(named, faulty, "{replicas}: {faults:?}");
        }
    }

    use super::super::paths;
    use super::*;

    /// Obligation CO-PLUG-02.
    #[test]
    fn a_socket_path_has_a_length() {
        let of = |path: String| {
            json!({ "spec": { "instances": [
            { "name": "a", "role": "Node", "runtime": { "external": { "socket": path } } }] } })
        };
        assert!(plugin(&of(format!("/{}", "x".repeat(106))), None).is_empty());
        assert_eq!(
            paths(&plugin(&of(format!("/{}", "x".repeat(107))), None)),
            ["spec.instances[0].runtime.external.socket"]
        );
        assert_eq!(plugin(&of("tcp://1.2.3.4:5".into()), None).len(), 1);
    }

    /// One that is never ready in time would be ended and started again for ever.
    #[test]
    fn a_driver_has_some_time_to_be_ready() {
        for (timeout, paths_of) in [
            ("0s", vec!["spec.instances[0].healthTimeout"]),
            ("99ms", vec!["spec.instances[0].healthTimeout"]),
            ("100ms", vec![]),
            ("10m", vec![]),
        ] {
            let instance = json!({ "name": "a", "role": "Node", "healthTimeout": timeout,
                "runtime": { "process": { "command": ["x"] } } });
            let faults = plugin(&json!({ "spec": { "instances": [instance] } }), None);
            assert_eq!(paths(&faults), paths_of, "{timeout}");
        }
    }

    #[test]
    fn what_is_no_call_and_no_namespace_is_named() {
        let spec = json!({ "deadlines": { "NodeFooVolume": "3s", "NodePublishVolume": "3s" },
            "allowInstancesFrom": ["shop", "", "*"] });
        let faults = plugin(&json!({ "spec": spec }), None);
        let expected =
            ["spec.allowInstancesFrom[1]", "spec.allowInstancesFrom[2]", "spec.deadlines[NodeFooVolume]"];
        assert_eq!(paths(&faults), expected);
    }

    /// Obligation CO-PLUG-01.
    #[test]
    fn a_driver_listens_where_it_is_told_to() {
        let own = &["spec.instances[0].env.CSI_ENDPOINT"][..];
        for (endpoint, wanted) in [
            ("unix:///x.sock", own),
            ("/x.sock", own),
            ("${CSI_SOCKET}.other", own),
            ("$${CSI_SOCKET}", own),
            ("${CSI_SOCKET}", &[]),
            ("unix:${CSI_SOCKET}", &[]),
        ] {
            let instance = json!({ "name": "a", "role": "Node", "env": { "CSI_ENDPOINT": endpoint },
                "runtime": { "process": { "command": ["x"] } } });
            let faults = plugin(&json!({ "spec": { "instances": [instance] } }), None);
            assert_eq!(paths(&faults), wanted, "{endpoint}");
        }
    }

    #[test]
    fn a_driver_runs_as_root() {
        for runtime in ["process", "systemd"] {
            for (field, value) in [("user", json!("nobody")), ("groups", json!(["disk"]))] {
                let instance = json!({ "name": "a", "role": "Node",
                    "runtime": { runtime: { "command": ["x"], field: value } } });
                let faults = plugin(&json!({ "spec": { "instances": [instance] } }), None);
                assert_eq!(paths(&faults), [format!("spec.instances[0].runtime.{runtime}.{field}")]);
            }
        }
    }

    #[test]
    fn the_entries_of_one_plugin_have_one_view() {
        let container = json!({ "oci": { "archive": "/a.tar" } });
        let process = json!({ "process": { "command": ["x"] } });
        let external = json!({ "external": { "socket": "/s" } });
        let of_first = |said: &str| {
            format!(
                "views of one plugin must be equal: instances[0] has {said}, and either may be asked to take down what \
                 the other has mounted"
            )
        };
        let second = "spec.instances[1].stagePublishBaseDir";
        for (first, runtime, role, base, wanted) in [
            ("/csi", &container, "Node", "/csi", None),
            ("/csi", &container, "Node", "//csi/.", None),
            ("/csi", &container, "Monolith", "/data", Some(of_first("\"/csi\""))),
            ("/csi", &container, "Node", "", Some(of_first("\"/csi\""))),
            ("/csi", &process, "Node", "", Some(of_first("\"/csi\""))),
            ("/csi", &external, "Node", "", Some(of_first("\"/csi\""))),
            ("", &container, "Node", "/csi", Some(of_first("none"))),
            ("", &process, "Node", "", None),
            // It has no tree.
            ("/csi", &container, "Controller", "", None),
        ] {
            let instances = json!([
                { "name": "a", "role": "Monolith", "runtime": container, "stagePublishBaseDir": first },
                { "name": "b", "role": role, "runtime": runtime, "stagePublishBaseDir": base }]);
            let faults = plugin(&json!({ "spec": { "instances": instances } }), None);
            let found: Vec<_> = faults.iter().map(|f| (f.path.as_str(), f.message.clone())).collect();
            let wanted: Vec<_> = wanted.into_iter().map(|message| (second, message)).collect();
            assert_eq!(found, wanted, "{first:?} {role} {base:?} {runtime}");
        }
    }

    #[test]
    fn what_is_replaced_is_one_of_the_two_and_never_nothing() {
        let (surge, unavailable) = ("spec.updateStrategy.maxSurge", "spec.updateStrategy.maxUnavailable");
        for (strategy, paths_of) in [
            (json!(null), vec![]),
            (json!({}), vec![]),
            (json!({ "maxSurge": 2 }), vec![]),
            (json!({ "minHealthyTime": "1m" }), vec![]),
            (json!({ "minHealthyTime": "0s" }), vec![]),
            (json!({ "minHealthyTime": "soon" }), vec!["spec.updateStrategy.minHealthyTime"]),
            (json!({ "maxUnavailable": 2 }), vec![]),
            (json!({ "maxSurge": 0, "maxUnavailable": 2 }), vec![]),
            (json!({ "maxSurge": 1, "maxUnavailable": 0 }), vec![]),
            (json!({ "maxSurge": 1, "maxUnavailable": 1 }), vec![unavailable]),
            (json!({ "maxSurge": 0 }), vec![surge]),
            (json!({ "maxUnavailable": 0 }), vec![unavailable]),
            (json!({ "maxSurge": 0, "maxUnavailable": 0 }), vec![surge]),
        ] {
            let object = json!({ "spec": { "updateStrategy": strategy } });
            assert_eq!(paths(&plugin(&object, None)), paths_of, "{strategy}");
        }
    }

    #[test]
    fn of_some_calls_at_a_time_there_is_one_at_least() {
        let with = |concurrency| json!({ "spec": { "concurrency": concurrency } });
        for (given, wanted) in [
            (json!({}), vec![]),
            (json!({ "attachesPerNode": 1, "attaches": 1 }), vec![]),
            (json!({ "attachesPerNode": 0, "attaches": 4 }), vec!["spec.concurrency.attachesPerNode"]),
            (json!({ "attaches": 0 }), vec!["spec.concurrency.attaches"]),
        ] {
            assert_eq!(paths(&plugin(&with(given.clone()), None)), wanted, "{given}");
        }
    }

    #[test]
    fn a_controller_call_is_not_waited_for_longer_than_a_silent_host() {
        let with = |rpc: &str, limit: &str| json!({ "spec": { "deadlines": { rpc: limit } } });
        for (rpc, limit, paths_of) in [
            ("CreateVolume", "2m", vec![]),
            ("CreateVolume", "121s", vec!["spec.deadlines[CreateVolume]"]),
            ("NodeStageVolume", "10m", vec![]),
            ("NodeStageVolume", "soon", vec!["spec.deadlines[NodeStageVolume]"]),
        ] {
            assert_eq!(paths(&plugin(&with(rpc, limit), None)), paths_of, "{rpc}: {limit}");
        }
    }
}
