//! One table for each part of the document, and every combination of what changes many parts at once.
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::api::runtime::{Capabilities, HostPath, Propagation};

/// What a [`Wanted`] borrows, with the least that makes a container.
#[derive(Clone)]
struct Parts {
    oci: OciRuntime,
    command: Vec<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    image: ImageSays,
    limits: Limits,
    volumes: Vec<VolumeAt>,
    devices: Vec<Device>,
    plugin: Option<PluginPart>,
    machine: MachineSays,
}

impl Parts {
    fn new() -> Self {
        let image =
            ImageSays { entrypoint: list(&["/entry"]), working_dir: "/".into(), ..ImageSays::default() };
        Self {
            oci: OciRuntime::default(),
            command: Vec::new(),
            args: Vec::new(),
            env: BTreeMap::new(),
            image,
            limits: Limits::default(),
            volumes: Vec::new(),
            devices: Vec::new(),
            plugin: None,
            machine: MachineSays {
                capabilities: Capability::all().filter(|one| one.name() != "SYS_RESOURCE").collect(),
                hostname: "here".into(),
                cgroups: Cgroups::V1,
                resolv_conf: true,
                hosts: true,
            },
        }
    }

    fn made(&self) -> Result<Container, Fault> {
        container(&Wanted {
            oci: &self.oci,
            command: &self.command,
            args: &self.args,
            env: &self.env,
            image: &self.image,
            limits: self.limits,
            volumes: &self.volumes,
            devices: &self.devices,
            plugin: self.plugin.as_ref(),
            machine: &self.machine,
            owner: Owner { node: "n1", allocation: "default/app", task: "main" },
            stage: "/D/stage",
            cgroup: "/wharfline/h/u.main",
        })
    }

    fn document(&self) -> Document {
        self.made().unwrap().document
    }
}

/// The container of the least parts after a change.
fn with(change: impl FnOnce(&mut Parts)) -> Container {
    let mut parts = Parts::new();
    change(&mut parts);
    parts.made().unwrap()
}

fn fault(change: impl FnOnce(&mut Parts)) -> String {
    let mut parts = Parts::new();
    change(&mut parts);
    parts.made().unwrap_err().to_string()
}

fn list(words: &[&str]) -> Vec<String> {
    owned(words)
}

fn plugin(role: Role) -> PluginPart {
    PluginPart {
        role,
        socket_directory: "/run/w/abc".into(),
        mount_dir: String::new(),
        tree: "/var/lib/w/tree".into(),
        stage_publish_base_dir: String::new(),
    }
}

fn filesystem(path: &str, read_only: bool) -> VolumeAt {
    VolumeAt { path: path.into(), read_only, kind: VolumeKind::Filesystem }
}

fn block(path: &str, read_only: bool) -> VolumeAt {
    VolumeAt { path: path.into(), read_only, kind: VolumeKind::Block { major: 7, minor: 3 } }
}

fn fuse() -> Device {
    Device {
        path: "/dev/fuse".into(),
        r#type: "c".into(),
        major: 10,
        minor: 229,
        file_mode: 0o666,
        uid: 0,
        gid: 0,
    }
}

fn host_path(path: &str, at: &str, propagation: Propagation) -> HostPath {
    HostPath { path: path.into(), mount_path: at.into(), read_only: false, propagation }
}

/// The one mount there, as `source options`.
fn mount_at(document: &Document, destination: &str) -> String {
    let all: Vec<_> = document.mounts.iter().filter(|mount| mount.destination == destination).collect();
    assert_eq!(all.len(), 1, "{destination}: {all:?}");
    format!("{} {} {}", all[0].r#type, all[0].source, all[0].options.join(","))
}

fn destinations(document: &Document) -> Vec<&str> {
    document.mounts.iter().map(|mount| mount.destination.as_str()).collect()
}

#[test]
fn the_command_is_the_tasks_else_the_images() {
    let none: &[&str] = &[];
    for (entrypoint, cmd, command, args, wanted) in [
        (&["/e"][..], &["c"][..], none, none, &["/e", "c"][..]),
        (&["/e", "-x"], &["c"], none, &["a", "b"], &["/e", "-x", "a", "b"]),
        (&["/e"], &["c"], &["/mine", "-y"], none, &["/mine", "-y"]),
        (&["/e"], &["c"], &["/mine"], &["a"], &["/mine", "a"]),
        (none, &["/c", "d"], none, none, &["/c", "d"]),
        (none, none, &["/mine"], none, &["/mine"]),
        (none, none, none, &["/a"], &["/a"]),
    ] {
        let made = with(|p| {
            p.image.entrypoint = list(entrypoint);
            p.image.cmd = list(cmd);
            (p.command, p.args) = (list(command), list(args));
        });
        assert_eq!(made.document.process.args, wanted, "{entrypoint:?} {cmd:?} {command:?} {args:?}");
    }
    let sentence = "the image names no program; give the task a command";
    assert_eq!(fault(|p| p.image.entrypoint.clear()), sentence);
    assert_eq!(fault(|p| p.image.entrypoint = list(&[""])), sentence);
}

/// Obligation CO-PLUG-07.
#[test]
fn who_says_a_variable_later_replaces_it_in_its_place() {
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let (image, task) = (&[("A", "1"), ("B", "2")][..], &[("B", "3"), ("C", "4")][..]);
    for (image, task, is_plugin, wanted) in [
        (&[][..], &[][..], false, &[path, "NODE_NAME=n1"][..]),
        (image, &[], false, &[path, "A=1", "B=2", "NODE_NAME=n1"]),
        (image, task, false, &[path, "A=1", "B=3", "NODE_NAME=n1", "C=4"]),
        (&[("PATH", "/x")], &[], false, &["PATH=/x", "NODE_NAME=n1"]),
        (&[("NODE_NAME", "x"), ("A", "1")], &[], false, &[path, "NODE_NAME=n1", "A=1"]),
        (&[("A", "1"), ("A", "2")], &[], false, &[path, "A=2", "NODE_NAME=n1"]),
        (&[], &[("NODE_NAME", "mine"), ("PATH", "/y")], false, &["PATH=/y", "NODE_NAME=mine"]),
        (
            &[("CSI_ENDPOINT", "x")],
            &[],
            true,
            &[path, "CSI_ENDPOINT=unix:///run/w/abc/csi.sock", "NODE_NAME=n1"],
        ),
    ] {
        let made = with(|p| {
            p.image.env = image.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            p.env = task.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            p.plugin = is_plugin.then(|| plugin(Role::Node));
        });
        assert_eq!(made.document.process.env, wanted, "{image:?} {task:?}");
    }
    let secret = with(|p| p.env = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]));
    let shown = format!("{secret:?}");
    assert!(shown.contains("TOKEN") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn it_starts_where_the_task_says_else_where_the_image_says() {
    for (task, image, wanted) in [("/t", "/i", "/t"), ("", "/i", "/i"), ("", "", "/")] {
        let made = with(|p| {
            p.oci.working_dir = task.into();
            p.image.working_dir = image.into();
        });
        assert_eq!(made.document.process.cwd, wanted);
    }
}

#[test]
fn the_user_is_named_and_left_to_be_looked_up() {
    let image = |user: &str, group: Option<&str>| Some((user.to_owned(), group.map(str::to_owned)));
    for (task, of_image, user, group) in [
        ("", None, None, None),
        ("", image("web", None), Some("web"), None),
        ("", image("web", Some("7")), Some("web"), Some("7")),
        ("app", image("web", Some("7")), Some("app"), None),
        ("app:disk", image("web", None), Some("app"), Some("disk")),
        ("0", image("web", None), Some("0"), None),
    ] {
        let made = with(|p| {
            p.oci.user = task.into();
            p.oci.groups = list(&["disk", "5"]);
            p.image.user = of_image.clone();
        });
        let wanted = UserWanted {
            user: user.map(str::to_owned),
            group: group.map(str::to_owned),
            groups: list(&["disk", "5"]),
        };
        assert_eq!(made.user, wanted, "{task:?} {of_image:?}");
        assert_eq!(serde_json::to_value(&made.document.process.user).unwrap(), json!({ "umask": 0o022 }));
    }
}

const USUAL: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SYS_CHROOT",
    "MKNOD",
    "AUDIT_WRITE",
    "SETFCAP",
];

fn changed(add: &[&str], drop: &[&str]) -> Capabilities {
    Capabilities { add: list(add), drop: list(drop) }
}

/// The sets, which are three times the same and twice the same.
fn sets(made: &Container) -> (BTreeSet<String>, BTreeSet<String>) {
    let sets = &made.document.process.capabilities;
    assert!(sets.bounding == sets.effective && sets.bounding == sets.permitted, "{sets:?}");
    assert_eq!(sets.inheritable, sets.ambient);
    (sets.bounding.iter().cloned().collect(), sets.ambient.iter().cloned().collect())
}

fn caps(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("CAP_{name}")).collect()
}

/// Obligation CO-PLUG-09.
#[test]
fn capabilities_are_the_usual_ones_less_those_dropped_with_those_added() {
    let usual = caps(USUAL);
    let and = |more: &[&str]| usual.union(&caps(more)).cloned().collect::<BTreeSet<_>>();
    let without = |less: &[&str]| usual.difference(&caps(less)).cloned().collect::<BTreeSet<_>>();
    let machine: BTreeSet<_> =
        Parts::new().machine.capabilities.iter().map(|one| format!("CAP_{one}")).collect();
    let none = BTreeSet::new();
    for (change, role, wanted) in [
        (changed(&[], &[]), None, usual.clone()),
        (changed(&[], &[]), Some(Role::Controller), usual.clone()),
        (changed(&[], &[]), Some(Role::Node), and(&["SYS_ADMIN"])),
        (changed(&[], &[]), Some(Role::Monolith), and(&["SYS_ADMIN"])),
        (changed(&[], &["ALL"]), Some(Role::Node), none.clone()),
        (changed(&["NET_ADMIN"], &[]), None, and(&["NET_ADMIN"])),
        (changed(&[], &["KILL", "MKNOD"]), None, without(&["KILL", "MKNOD"])),
        (changed(&["KILL"], &["KILL"]), None, usual.clone()),
        (changed(&["KILL"], &["ALL"]), None, caps(&["KILL"])),
        (changed(&["ALL"], &["ALL"]), None, machine.clone()),
    ] {
        let made = |user: &str| {
            with(|p| {
                p.oci.capabilities = change.clone();
                p.oci.user = user.into();
                p.plugin = role.map(plugin);
            })
        };
        for root in ["", "0", "00", "root", "root:disk"] {
            assert_eq!(sets(&made(root)), (wanted.clone(), none.clone()), "{change:?} {role:?} {root:?}");
        }
        let added = if change.add == ["ALL"] {
            machine.clone()
        } else {
            caps(&change.add.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(sets(&made("1000")), (wanted, added), "{change:?} {role:?}");
    }
    let privileged = with(|p| p.oci.privileged = true);
    assert_eq!(sets(&privileged).0, machine);
}

/// Obligation CO-PLUG-09.
#[test]
fn no_capability_is_given_that_the_machine_lacks() {
    let lacks =
        |p: &mut Parts, names: &[&str]| p.machine.capabilities.retain(|one| !names.contains(&one.name()));
    let made = with(|p| lacks(p, &["MKNOD", "NET_RAW"]));
    let wanted: BTreeSet<_> = caps(USUAL).difference(&caps(&["MKNOD", "NET_RAW"])).cloned().collect();
    assert_eq!(sets(&made).0, wanted);
    let said = |name: &str| {
        format!("this node cannot give away the capability {name}; leave it out or use another node")
    };
    for privileged in [false, true] {
        let asked = fault(|p| {
            p.oci.privileged = privileged;
            p.oci.capabilities = changed(&["KILL", "SYS_RESOURCE"], &[]);
        });
        assert_eq!(asked, said("SYS_RESOURCE"));
    }
    let mounts = fault(|p| {
        lacks(p, &["SYS_ADMIN"]);
        p.plugin = Some(plugin(Role::Node));
    });
    assert_eq!(mounts, said("SYS_ADMIN"));
    let dropped = with(|p| {
        lacks(p, &["SYS_ADMIN"]);
        p.plugin = Some(plugin(Role::Node));
        p.oci.capabilities = changed(&[], &["ALL"]);
    });
    assert_eq!(sets(&dropped).0, BTreeSet::new());
}

#[test]
fn what_is_left_out_stays_as_runc_has_it() {
    let document = serde_json::to_value(Parts::new().document()).unwrap();
    let process = &document["process"];
    assert_eq!(process["noNewPrivileges"], false);
    for absent in ["rlimits", "oomScoreAdj", "apparmorProfile", "selinuxLabel", "terminal"] {
        assert_eq!(process[absent], Value::Null, "{absent}");
    }
    assert_eq!(document["linux"]["seccomp"], Value::Null);
    assert_eq!(document["hooks"], Value::Null);
}

#[test]
fn the_root_is_made_on_the_stage() {
    for readonly in [false, true] {
        let made = with(|p| p.oci.read_only_root = readonly);
        assert_eq!(made.document.root, Root { path: "/D/stage/rootfs".into(), readonly });
    }
}

#[test]
fn namespaces_are_its_own_unless_it_asks_for_the_nodes() {
    for (host_pid, network, cgroups, wanted) in [
        (false, Network::Host, Cgroups::V1, "mount ipc uts pid"),
        (false, Network::Host, Cgroups::Hybrid, "mount ipc uts pid"),
        (false, Network::Host, Cgroups::V2, "mount ipc uts pid cgroup"),
        (false, Network::None, Cgroups::V1, "mount ipc uts pid network"),
        (true, Network::Host, Cgroups::V1, "mount ipc uts"),
        (true, Network::None, Cgroups::V2, "mount ipc uts network cgroup"),
    ] {
        let made = with(|p| {
            (p.oci.host_pid, p.oci.network, p.machine.cgroups) = (host_pid, network, cgroups);
        });
        let kinds: Vec<_> = made.document.linux.namespaces.iter().map(|one| one.r#type.as_str()).collect();
        assert_eq!(kinds.join(" "), wanted);
        assert_eq!(made.document.hostname, "here");
    }
}

/// Obligation CO-PLUG-12.
#[test]
fn every_container_has_its_own_file_systems() {
    let small = ["/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys", "/sys/fs/cgroup"];
    let none = |p: &mut Parts| p.oci.network = Network::None;
    let made = with(none).document;
    assert_eq!(destinations(&made), small);
    for (destination, wanted) in [
        ("/proc", "proc proc nosuid,noexec,nodev"),
        ("/dev", "tmpfs tmpfs nosuid,strictatime,mode=755,size=65536k"),
        ("/dev/pts", "devpts devpts nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
        ("/dev/shm", "tmpfs shm nosuid,noexec,nodev,mode=1777,size=65536k"),
        ("/dev/mqueue", "mqueue mqueue nosuid,noexec,nodev"),
        ("/sys", "sysfs sysfs nosuid,noexec,nodev,ro"),
        ("/sys/fs/cgroup", "cgroup cgroup nosuid,noexec,nodev,relatime,ro"),
    ] {
        assert_eq!(mount_at(&made, destination), wanted);
    }
    let alive = with(|p| {
        none(p);
        p.oci.host_devices = true;
    });
    assert_eq!(destinations(&alive.document), ["/proc", "/dev", "/sys", "/sys/fs/cgroup"]);
    assert_eq!(mount_at(&alive.document, "/dev"), "bind /dev rbind,rslave");
    let privileged = with(|p| p.oci.privileged = true);
    assert_eq!(mount_at(&privileged.document, "/sys"), "sysfs sysfs nosuid,noexec,nodev");
}

#[test]
fn with_the_nodes_network_it_finds_the_nodes_names() {
    for (network, resolv_conf, hosts, wanted) in [
        (Network::Host, true, true, &["/etc/resolv.conf", "/etc/hosts"][..]),
        (Network::Host, false, true, &["/etc/hosts"]),
        (Network::Host, true, false, &["/etc/resolv.conf"]),
        (Network::Host, false, false, &[]),
        (Network::None, true, true, &[]),
    ] {
        let made = with(|p| {
            p.oci.network = network;
            (p.machine.resolv_conf, p.machine.hosts) = (resolv_conf, hosts);
        });
        let files: Vec<_> =
            destinations(&made.document).into_iter().filter(|at| at.starts_with("/etc")).collect();
        assert_eq!(files, wanted);
        for file in files {
            assert_eq!(mount_at(&made.document, file), format!("bind {file} bind,rprivate,nosuid,nodev,ro"));
        }
    }
}

#[test]
fn volumes_are_bound_with_every_flag() {
    for (volume, wanted) in [
        (filesystem("/data", false), "rbind,rprivate,nosuid,nodev"),
        (filesystem("/data", true), "rbind,rprivate,nosuid,nodev,ro"),
        (block("/data", false), "bind,rprivate,nosuid"),
        (block("/data", true), "bind,rprivate,nosuid,ro"),
    ] {
        let made = with(|p| p.volumes = vec![filesystem("/first", false), volume.clone()]);
        assert_eq!(mount_at(&made.document, "/data"), format!("bind /D/stage/v/1 {wanted}"));
        assert_eq!(made.shares, []);
    }
}

/// Obligations CO-PLUG-01, CO-PLUG-10, CO-PLUG-11.
#[test]
fn a_plugin_has_its_socket_and_the_tree_that_it_mounts_in() {
    for (role, mount_dir, base, socket, tree) in [
        (Role::Node, "", "", "/run/w/abc", Some("/var/lib/w/tree")),
        (Role::Monolith, "", "", "/run/w/abc", Some("/var/lib/w/tree")),
        (Role::Controller, "", "", "/run/w/abc", None),
        (Role::Node, "/csi/", "/base", "/csi", Some("/base")),
        (Role::Controller, "/csi", "", "/csi", None),
    ] {
        let made = with(|p| {
            let views = (mount_dir.to_owned(), base.to_owned());
            p.plugin =
                Some(PluginPart { mount_dir: views.0, stage_publish_base_dir: views.1, ..plugin(role) });
        });
        assert_eq!(mount_at(&made.document, socket), "bind /run/w/abc rbind,rprivate");
        let endpoint = format!("CSI_ENDPOINT=unix://{socket}/csi.sock");
        assert!(made.document.process.env.contains(&endpoint), "{:?}", made.document.process.env);
        let shares: Vec<_> = made.shares.iter().map(|share| share.path.as_str()).collect();
        match tree {
            Some(tree) => {
                assert_eq!(mount_at(&made.document, tree), "bind /D/stage/s/0 rbind,rshared");
                assert_eq!(shares, ["/var/lib/w/tree"]);
            }
            None => assert!(shares.is_empty() && !destinations(&made.document).contains(&"/var/lib/w/tree")),
        }
    }
}

#[test]
fn paths_of_the_node_are_seen_as_they_were_asked_for() {
    for (propagation, read_only, wanted) in [
        (Propagation::None, false, "rbind,rprivate"),
        (Propagation::None, true, "rbind,rprivate,rnosuid,rnodev,rro"),
        (Propagation::HostToContainer, false, "rbind,rslave"),
        (Propagation::HostToContainer, true, "rbind,rslave,rnosuid,rnodev,rro"),
        (Propagation::Bidirectional, false, "rbind,rshared"),
        (Propagation::Bidirectional, true, "rbind,rshared,rnosuid,rnodev,rro"),
    ] {
        let made = with(|p| {
            let path = HostPath { read_only, ..host_path("/h", "/inside", propagation) };
            p.oci.host_paths = vec![path];
            p.plugin = Some(plugin(Role::Node));
        });
        assert_eq!(mount_at(&made.document, "/inside"), format!("bind /D/stage/s/1 {wanted}"));
        let both_ways = propagation == Propagation::Bidirectional;
        let asked = Share { path: "/h".to_owned(), both_ways, resolved: true };
        assert_eq!(made.shares[1..], [asked], "taken hold of as it was allowed");
    }
}

#[test]
fn what_lies_deeper_is_mounted_later() {
    let made = with(|p| {
        p.volumes = vec![filesystem("/a/b/c", false), filesystem("/z", false), filesystem("/a/b", false)];
        p.oci.host_paths = vec![
            host_path("/h", "/a", Propagation::None),
            host_path("/h", "//a/x/", Propagation::None),
            host_path("/h", "/etc", Propagation::None),
        ];
        p.plugin = Some(plugin(Role::Controller));
    });
    let all = destinations(&made.document);
    assert_eq!(all[all.len() - 7..], ["/z", "/a", "/etc", "/a/b", "/a/x", "/a/b/c", "/run/w/abc"]);
    let at = |path| all.iter().position(|other| *other == path);
    assert!(at("/etc/hosts") < at("/etc"), "nothing is made in what the task mounts: {all:?}");
}

#[test]
fn what_is_asked_for_replaces_what_every_container_has() {
    let made = with(|p| p.volumes = ["/dev/shm", "/etc//hosts"].map(|path| filesystem(path, false)).into());
    assert!(mount_at(&made.document, "/dev/shm").starts_with("bind /D/stage/v/0"));
    assert!(mount_at(&made.document, "/etc/hosts").starts_with("bind /D/stage/v/1"));
}

#[test]
fn no_two_things_are_at_one_path() {
    let path = |at| vec![host_path("/h", at, Propagation::None)];
    let two = fault(|p| {
        p.volumes = vec![filesystem("/a", false)];
        p.oci.host_paths = path("/a/");
    });
    assert_eq!(two, "/a is taken by a volume already; choose another path for a path of the node");
    let socket = fault(|p| {
        p.oci.host_paths = path("/run/w/abc");
        p.plugin = Some(plugin(Role::Node));
    });
    assert_eq!(
        socket,
        "/run/w/abc is taken by the plugin's socket already; choose another path for a path of the node"
    );
    for at in ["/dev/fuse", "/dev"] {
        let device = fault(|p| {
            p.volumes = vec![block(at, false)];
            p.devices = vec![fuse()];
        });
        assert_eq!(device, format!("{at} is taken by a device already; choose another path for a volume"));
    }
}

/// What is mounted in a tree that reaches the node is mounted there, too: only a driver's own mounts are meant to be.
#[test]
fn nothing_is_mounted_in_what_reaches_the_node() {
    let base = |base: &str| Some(PluginPart { stage_publish_base_dir: base.into(), ..plugin(Role::Node) });
    let path = |at, propagation| vec![host_path("/h", at, propagation)];
    for (host_paths, plugin, wanted) in [
        (
            path("/base/x", Propagation::None),
            base("/base"),
            "/base/x lies in /base, which is the plugin's staging and publish paths: what is mounted there reaches the node; choose another path for a path of the node",
        ),
        (
            path("/var/lib/w/tree/staging", Propagation::None),
            base(""),
            "/var/lib/w/tree/staging lies in /var/lib/w/tree, which is the plugin's staging and publish paths: what is mounted there reaches the node; choose another path for a path of the node",
        ),
        (
            path("/run", Propagation::Bidirectional),
            base("/base"),
            "/run/w/abc lies in /run, which is a path of the node: what is mounted there reaches the node; choose another path for the plugin's socket",
        ),
        (path("/", Propagation::None), base("/base"), ""),
        (path("/run", Propagation::HostToContainer), base("/run/base"), ""),
        (path("/basement", Propagation::Bidirectional), base("/base"), ""),
    ] {
        let mut parts = Parts { plugin, ..Parts::new() };
        parts.oci.host_paths = host_paths;
        let found = parts.made().err().map(|fault| fault.to_string()).unwrap_or_default();
        assert_eq!(found, wanted);
    }
}

/// Obligation CO-PLUG-10.
#[test]
fn mounts_of_the_root_are_told_only_where_something_is_shared() {
    for (propagation, role, wanted) in [
        (Propagation::None, None, None),
        (Propagation::HostToContainer, None, None),
        (Propagation::Bidirectional, None, Some("shared")),
        (Propagation::None, Some(Role::Controller), None),
        (Propagation::None, Some(Role::Node), Some("shared")),
    ] {
        let made = with(|p| {
            p.oci.host_paths = vec![host_path("/h", "/h", propagation)];
            p.oci.host_devices = true;
            p.plugin = role.map(plugin);
        });
        assert_eq!(made.document.linux.rootfs_propagation.as_deref(), wanted);
    }
}

type Change = fn(&mut Parts);

/// Obligation CO-PLUG-13.
#[test]
fn a_device_is_opened_only_as_its_rule_says() {
    let deny = json!({ "allow": false, "access": "rwm" });
    let allow = json!({ "allow": true, "access": "rwm" });
    let disk = |access| json!({ "allow": true, "type": "b", "major": 7, "minor": 3, "access": access });
    let fuse_rule = json!({ "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw" });
    let cases: [(Change, Vec<Value>, usize); 7] = [
        (|_| {}, vec![deny.clone()], 0),
        (|p| p.volumes = vec![filesystem("/a", false)], vec![deny.clone()], 0),
        (|p| p.volumes = vec![block("/dev/a", false)], vec![deny.clone(), disk("rw")], 0),
        (|p| p.volumes = vec![block("/dev/a", true)], vec![deny.clone(), disk("r")], 0),
        (|p| p.devices = vec![fuse()], vec![deny, fuse_rule], 1),
        (
            |p| {
                p.oci.host_devices = true;
                p.devices = vec![fuse()];
                p.volumes = vec![block("/a", true)];
            },
            vec![allow.clone()],
            0,
        ),
        (|p| p.oci.privileged = true, vec![allow], 0),
    ];
    for (change, wanted, nodes) in cases {
        let linux = with(change).document.linux;
        assert_eq!(serde_json::to_value(&linux.resources.devices).unwrap(), Value::from(wanted));
        assert_eq!(linux.devices, vec![fuse(); nodes]);
    }
}

#[test]
fn what_is_the_machines_is_masked_unless_it_is_privileged() {
    let linux = Parts::new().document().linux;
    for masked in ["/proc/kcore", "/proc/keys", "/proc/sched_debug", "/sys/firmware", "/proc/timer_list"] {
        assert!(linux.masked_paths.iter().any(|path| path == masked), "{masked}");
    }
    assert_eq!(
        linux.readonly_paths,
        ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
    );
    let linux = with(|p| p.oci.privileged = true).document.linux;
    assert_eq!((linux.masked_paths, linux.readonly_paths), (Vec::new(), Vec::new()));
}

/// Obligation CO-PLUG-13.
#[test]
fn limits_are_the_cgroups() {
    let limits = |memory: &str, cpu: &str, pids: &str| {
        let limits = TaskLimits { memory: memory.into(), cpu: cpu.into(), pids: pids.into() };
        with(|p| p.limits = Limits::from(&limits)).document.linux
    };
    for (memory, cpu, pids, wanted) in [
        ("", "", "", json!({})),
        ("256Mi", "", "", json!({ "memory": { "limit": 256 << 20 } })),
        ("", "500m", "", json!({ "cpu": { "quota": 50_000, "period": 100_000 } })),
        ("", "10m", "", json!({ "cpu": { "quota": 1_000, "period": 100_000 } })),
        ("", "2", "", json!({ "cpu": { "quota": 200_000, "period": 100_000 } })),
        ("", "", "200", json!({ "pids": { "limit": 200 } })),
        (
            "4Mi",
            "1",
            "1",
            json!({ "memory": { "limit": 4 << 20 }, "cpu": { "quota": 100_000, "period": 100_000 }, "pids": { "limit": 1 } }),
        ),
    ] {
        let linux = limits(memory, cpu, pids);
        assert_eq!(linux.cgroups_path, "/wharfline/h/u.main");
        let mut resources = serde_json::to_value(&linux.resources).unwrap();
        resources.as_object_mut().unwrap().remove("devices");
        assert_eq!(resources, wanted, "{memory} {cpu} {pids}");
    }
}

#[test]
fn it_says_whose_it_is_and_how_it_is_asked_to_end() {
    for (signal, wanted) in [(None, 15), (Some(3), 3), (Some(37), 37)] {
        let made = with(|p| p.image.stop_signal = signal);
        assert_eq!(made.stop_signal, wanted);
        let whose = json!({ "dev.wharfline.allocation": "default/app", "dev.wharfline.task": "main" });
        assert_eq!(serde_json::to_value(made.document.annotations).unwrap(), whose);
    }
}

/// Every combination of an image, a plugin and what opens the container.
fn combinations() -> Vec<Parts> {
    let images = [
        Parts::new().image,
        ImageSays {
            cmd: list(&["-x"]),
            env: vec![("PATH".into(), "/bin".into()), ("A".into(), String::new())],
            working_dir: "/srv".into(),
            user: Some(("web".into(), Some("7".into()))),
            stop_signal: Some(3),
            ..Parts::new().image
        },
    ];
    let own = |role| PluginPart {
        mount_dir: "/csi".into(),
        stage_publish_base_dir: "/base".into(),
        ..plugin(role)
    };
    let roles = [Role::Controller, Role::Node, Role::Monolith];
    let plugins = [None].into_iter().chain(roles.map(|r| Some(plugin(r)))).chain(roles.map(|r| Some(own(r))));
    let mut all = Vec::new();
    for plugin in plugins {
        for image in &images {
            for bits in 0..32_u8 {
                let mut parts = Parts { image: image.clone(), plugin: plugin.clone(), ..Parts::new() };
                parts.oci.privileged = bits & 1 != 0;
                parts.oci.network = if bits & 2 == 0 { Network::Host } else { Network::None };
                parts.oci.host_pid = bits & 4 != 0;
                parts.oci.host_devices = bits & 8 != 0;
                parts.oci.host_paths = vec![
                    host_path("/lib/modules", "/lib/modules", Propagation::None),
                    host_path("/dev/mapper", "/mapper", Propagation::HostToContainer),
                    host_path("/srv/h", "/shared", Propagation::Bidirectional),
                ];
                if bits & 16 != 0 {
                    parts.volumes = vec![
                        filesystem("/srv/data", true),
                        block("/disk", false),
                        filesystem("/etc/hosts", false),
                    ];
                    parts.devices = vec![fuse()];
                }
                all.push(parts);
            }
        }
    }
    all
}

/// Obligation CO-PLUG-12.
#[test]
fn every_combination_is_a_whole_document() {
    let all = combinations();
    assert_eq!(all.len(), 7 * 2 * 32);
    for parts in all {
        let made = parts.made().unwrap();
        let text = serde_json::to_string(&made.document).unwrap();
        assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), made.document);
        let mut seen = BTreeSet::new();
        for mount in &made.document.mounts {
            let at = &mount.destination;
            assert!(seen.insert(at), "{at} twice: {text}");
            let plain =
                at.starts_with('/') && at.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
            assert!(plain, "{at}: {text}");
            assert!(mount.r#type != "bind" || allowed(&parts, &made, mount), "{mount:?}: {text}");
        }
        // Nothing hides what was mounted before it.
        for (i, mount) in made.document.mounts.iter().enumerate() {
            let hidden = |earlier: &&Mount| {
                let below = earlier.destination.starts_with(&format!("{}/", mount.destination));
                below && !earlier.destination.starts_with("/etc/")
            };
            let hidden = made.document.mounts[..i].iter().find(hidden);
            assert!(hidden.is_none(), "{mount:?} hides {hidden:?}");
        }
    }
}

/// Whether a bind's source is of the stage, the plugin's socket or one that was asked for.
fn allowed(parts: &Parts, made: &Container, mount: &Mount) -> bool {
    let source = mount.source.as_str();
    let staged = (0..parts.volumes.len()).any(|i| source == format!("/D/stage/v/{i}"))
        || (0..made.shares.len()).any(|i| source == format!("/D/stage/s/{i}"));
    let socket = parts.plugin.as_ref().is_some_and(|plugin| source == plugin.socket_directory);
    let devices = parts.oci.host_devices && source == "/dev" && mount.destination == source;
    let names = parts.oci.network == Network::Host
        && ["/etc/resolv.conf", "/etc/hosts"].contains(&source)
        && mount.destination == source
        && mount.options.iter().any(|option| option == "ro");
    staged || socket || devices || names
}
