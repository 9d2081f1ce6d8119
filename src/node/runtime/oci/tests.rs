//! What a shim is told of a container.
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::super::VolumeAt as At;
use super::super::preparations::Grants;
use super::super::preparations::tests::{config, made};
use super::*;
use crate::api::plugin::Role;
use crate::plan::container::{Document, PluginPart, Trust};
use crate::sys::image::User;
use crate::sys::kernel::DeviceId;
use crate::sys::process::ContainerShare;
use crate::sys::real::{Pool, RealFiles, RealProcesses};

fn oci() -> Oci {
    // Nobody asks them anything here.
    let pool = Pool::new(1, Duration::from_secs(1));
    let (processes, files) = (RealProcesses::new(pool.clone()), RealFiles::new(pool));
    let shimmed =
        Shimmed::new(Arc::new(processes), Arc::new(files), Path::new("/D"), Path::new("/run/w/abc"));
    let grants = Grants { image_dirs: Vec::new(), bind_paths: Vec::new(), trust: Trust::Confined };
    Oci::new(shimmed, None, Path::new("/run/w/abc"), grants)
}

fn task(oci: serde_json::Value) -> Task {
    let resources = json!({ "limits": { "memory": "64Mi" } });
    let task = json!({ "name": "main", "runtime": { "oci": oci }, "resources": resources });
    serde_json::from_value(task).unwrap()
}

fn order<'a>(place: &'a Place, task: &'a Task) -> Order<'a> {
    Order {
        place,
        name: "default/app".into(),
        task,
        variables: [("NODE_NAME", "n1".to_owned())].into(),
        env: BTreeMap::from([("A".to_owned(), "b=c".to_owned())]),
        grace: Duration::from_secs(3),
        volumes: Vec::new(),
        plugin: None,
    }
}

fn document(spec: &TaskSpec) -> Document {
    serde_json::from_str(&spec.container.as_ref().unwrap().document).unwrap()
}

#[test]
fn a_shim_is_told_the_container_and_where_it_is_made() {
    let task = task(json!({ "archive": "/i", "args": ["${NODE_NAME}", "$HOME"], "groups": ["disk"] }));
    let place = Place::new(Path::new("/D"), "u1", "main");
    let at = |path: &str, block, device| At { path: path.into(), read_only: block, block, device };
    let device = Some(DeviceId { major: 7, minor: 3 });
    let order = Order {
        volumes: vec![at("/data", false, None), at("/dev/disk", true, device)],
        ..order(&place, &task)
    };
    let mut image = config();
    image.user = Some(User { user: "app".into(), group: Some("web".into()) });
    image.stop_signal = Some(3);
    let spec = oci().spec(&order, &made(task.runtime.oci.clone().unwrap(), image)).unwrap();
    assert_eq!(spec.argv, ["/entry", "n1", "$HOME"]);
    assert_eq!(spec.env, BTreeMap::new(), "it is not kept twice");
    for variable in ["A=b=c", "NODE_NAME=n1"] {
        assert!(document(&spec).process.env.iter().any(|one| one == variable), "{variable}");
    }
    assert_eq!((spec.cwd.to_str(), spec.grace_ms, spec.private_mounts), (Some("/"), 3000, true));
    assert!(spec.hide.is_empty());
    let cgroup = spec.cgroup.as_ref().unwrap();
    assert_eq!((cgroup.path.as_str(), cgroup.limits.any()), ("/wharfline/abc/u1.main", false));
    let identity = spec.identity.as_ref().unwrap();
    assert_eq!((identity.user.as_str(), &identity.groups[..]), ("app:web", &["disk".to_owned()][..]));
    assert!(identity.add.is_empty() && identity.drop.is_empty(), "the document says it");
    let mounts: Vec<_> =
        spec.mounts.iter().map(|m| (m.path.to_str().unwrap(), m.read_only, m.block)).collect();
    assert_eq!(mounts, [("/data", false, false), ("/dev/disk", true, true)]);

    let container = spec.container.as_ref().unwrap();
    assert_eq!((container.id.as_str(), container.stop_signal), ("u1.main", 3));
    assert_eq!(
        (container.runc.to_str(), container.root.to_str()),
        (Some("/usr/sbin/runc"), Some("/run/w/abc/runc"))
    );
    assert_eq!(container.layers, [PathBuf::from("/D/images/layers/1")]);
    let document = document(&spec);
    assert_eq!(document.root.path, "/D/tasks/u1.main/stage/rootfs");
    assert_eq!(document.linux.cgroups_path, "/wharfline/abc/u1.main");
    assert_eq!(document.linux.resources.memory.as_ref().unwrap().limit, 64 << 20);
    let rule = document.linux.resources.devices.iter().find(|rule| rule.major == Some(7)).unwrap();
    assert_eq!((rule.minor, rule.access.as_str()), (Some(3), "r"));
    assert_eq!(document.hostname, "here");
    assert_eq!(document.annotations["dev.wharfline.allocation"], "default/app");
}

#[test]
fn a_block_volume_without_a_device_is_no_container() {
    let task = task(json!({ "archive": "/i" }));
    let place = Place::new(Path::new("/D"), "u1", "main");
    let volume = At { path: "/dev/x".into(), read_only: false, block: true, device: None };
    let order = Order { volumes: vec![volume], ..order(&place, &task) };
    let error = oci().spec(&order, &made(task.runtime.oci.clone().unwrap(), config())).unwrap_err();
    assert!(error.to_string().contains("/dev/x"), "{error}");
}

/// Obligation CO-PLUG-01.
#[test]
fn a_driver_is_told_its_socket_as_its_container_shows_it() {
    for (mount_dir, inside) in [("", "/run/w/abc/s1"), ("/csi", "/csi"), ("/csi/", "/csi")] {
        let mut task = task(json!({ "archive": "/i", "args": ["${CSI_ENDPOINT}"] }));
        let plugin = json!({ "pluginName": "p", "role": "Node", "mountDir": mount_dir });
        task.csi_plugin = Some(serde_json::from_value(plugin).unwrap());
        let endpoint = oci().endpoint(&task, Path::new("/run/w/abc/s1/csi.sock"));
        assert_eq!(endpoint, format!("unix://{inside}/csi.sock"));
        let place = Place::new(Path::new("/D"), "u1", "main");
        let mut order = order(&place, &task);
        order.variables.insert("CSI_ENDPOINT", endpoint.clone());
        order.env.insert("CSI_ENDPOINT".into(), endpoint.clone());
        order.plugin = Some(PluginPart {
            role: Role::Node,
            socket_directory: "/run/w/abc/s1".into(),
            mount_dir: mount_dir.into(),
            tree: "/D/volumes".into(),
            stage_publish_base_dir: String::new(),
        });
        let mut made = made(task.runtime.oci.clone().unwrap(), config());
        // A driver mounts.
        made.equipment.capabilities.insert(21);
        let spec = oci().spec(&order, &made).unwrap();
        let variable = format!("CSI_ENDPOINT={endpoint}");
        assert!(document(&spec).process.env.contains(&variable));
        assert_eq!(spec.argv[1], endpoint);
        let tree = ContainerShare { path: "/D/volumes".into(), both_ways: true, resolved: false };
        assert_eq!(spec.container.as_ref().unwrap().shares, [tree]);
        let mounts = document(&spec).mounts;
        let at = |path: &str| mounts.iter().find(|m| m.destination == path).unwrap().source.clone();
        assert_eq!(at(inside), "/run/w/abc/s1");
        assert_eq!(at("/D/volumes"), "/D/tasks/u1.main/stage/s/0");
    }
}

#[tokio::test]
async fn without_containers_none_is_started() {
    let (oci, task) = (oci(), task(json!({ "archive": "/i" })));
    let place = Place::new(Path::new("/D"), "u1", "main");
    assert_eq!((oci.lack(), oci.look().await), (Some(Lack::Absent), Some(Lack::Absent)));
    assert!(matches!(oci.readiness(&place, (&task, false)), Readiness::Unusable(Obstacle::Missing, _)));
    let refused = oci.start(&order(&place, &task), Vec::new()).await.unwrap_err();
    assert!(matches!(refused, RuntimeError::Unprepared), "{refused}");
    assert!(oci.list().await.unwrap().is_empty(), "the runtime process lists what is there");
}
