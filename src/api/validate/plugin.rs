//! Faults of a Plugin.
use serde_json::Value;

use super::super::field::{FieldError, FieldErrors};
use super::super::{plugin, quantity};
use super::mounts::mounts;
use super::not_built::refuse_not_built;
use super::runtime::{driver_paths, resources, runtime};
use super::{check_duration, entries, list, names, one_of};

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
        resources(&mut faults, &path, instance);
        driver_paths(&mut faults, &path, instance, &instance["runtime"]);
        mounts(&mut faults, &path, instance, "");
        check_duration(&mut faults, &format!("{path}.healthTimeout"), &instance["healthTimeout"]);
        refuse_not_built(&mut faults, &path, instance);
    }
    for (rpc, value) in entries(&spec["deadlines"]) {
        let path = format!("spec.deadlines[{rpc}]");
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::paths;
    use super::*;

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
