//! What a shim is told of its unit, and what is told of a machine without systemd.
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::node::runtime::Shimmed;
use crate::sys::cgroup::Limits;
use crate::sys::process::Identity;
use crate::sys::real::{Pool, RealFiles, RealProcesses};

/// A manager that says what a test wants.
#[derive(Debug)]
struct Says(Mutex<Option<Lack>>);

#[async_trait]
impl Units for Says {
    async fn check(&self) -> Result<(), Lack> {
        self.0.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

fn systemd(units: Option<Arc<dyn Units>>) -> Systemd {
    let pool = Pool::new(1, Duration::from_secs(1));
    let (processes, files) = (RealProcesses::new(pool.clone()), RealFiles::new(pool));
    let shimmed =
        Shimmed::new(Arc::new(processes), Arc::new(files), Path::new("/D"), Path::new("/run/w/abc"));
    Systemd::new(Process::new(shimmed, vec!["/D".into()]), units)
}

#[test]
fn a_shim_is_told_its_unit_and_has_no_cgroup_of_its_own() {
    let block = json!({ "command": ["a", "${NODE_NAME}"], "user": "nobody", "workingDir": "/srv" });
    let of = |runtime: &str, limits: serde_json::Value| -> Task {
        serde_json::from_value(json!({ "name": "main", "runtime": { runtime: block },
            "resources": { "limits": limits } }))
        .unwrap()
    };
    let limits = json!({ "memory": "64Mi", "cpu": "500m", "pids": "9" });
    let (unlimited, limited) = (of("systemd", json!({})), of("systemd", limits));
    let place = Place::new(Path::new("/D"), "u1", "main");
    let order = |task| Order {
        place: &place,
        name: "shop/app".into(),
        task,
        variables: [("NODE_NAME", "n1".to_owned())].into(),
        env: [].into(),
        grace: Duration::from_secs(3),
        volumes: Vec::new(),
        plugin: None,
    };
    let spec = systemd(None).spec(&order(&limited));
    let unit = spec.unit.unwrap();
    assert_eq!(unit.name, "wharfline-abc-u1-main.scope");
    assert_eq!(unit.description, "Wharfline task main of allocation shop/app on node n1");
    assert_eq!((unit.slice.as_str(), unit.stop_after_ms), ("wharfline.slice", 13_000));
    let wanted = Limits { memory_bytes: Some(64 << 20), cpu_millis: Some(500), pids: Some(9) };
    assert_eq!(unit.limits, wanted);
    assert_eq!((spec.cgroup, spec.argv), (None, vec!["a".to_owned(), "n1".to_owned()]));
    // All else is as another word in the manifest has it.
    let (here, there) = (of("process", json!({})), systemd(None));
    let process = there.process.spec(&order(&here));
    let spec = there.spec(&order(&unlimited));
    assert_eq!(spec.identity, Some(Identity { user: "nobody".to_owned(), ..Identity::default() }));
    assert_eq!(TaskSpec { unit: None, ..spec }, process);
}

#[tokio::test]
async fn without_systemd_a_task_waits_and_a_manager_that_is_away_is_asked_again() {
    let (place, task) = (
        Place::new(Path::new("/D"), "u1", "main"),
        serde_json::from_value::<Task>(json!({ "name": "main", "runtime": {} })).unwrap(),
    );
    let without = systemd(None);
    let Readiness::Unusable(Obstacle::Missing, why) = without.readiness(&place, (&task, false)) else {
        panic!("{:?}", without.readiness(&place, (&task, false)))
    };
    assert_eq!(why, "systemd is not PID 1 of this machine");
    let lack = without.look().await.unwrap();
    assert_eq!((lack.may_end(), without.lack()), (false, Some(lack)));

    let away = Lack::Manager { said: "no".to_owned() };
    let manager = Arc::new(Says(Mutex::new(Some(away.clone()))));
    let with = systemd(Some(manager.clone()));
    assert_eq!((with.lack(), with.readiness(&place, (&task, false))), (None, Readiness::Ready));
    assert_eq!(with.look().await, Some(away.clone()));
    assert!(away.may_end());
    assert_eq!(
        (with.lack(), with.readiness(&place, (&task, false))),
        (Some(away), Readiness::Ready),
        "a start may do better"
    );
    *manager.0.lock().unwrap() = None;
    assert_eq!((with.look().await, with.lack()), (None, None));
}
