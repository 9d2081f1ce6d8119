//! What is mounted in a container, and in which order.
//!
//! What every container has comes first, then what is asked for by its depth, so that nothing hides what lies beneath it.
//! What is asked for at the path of something that every container has, such as /dev/shm, replaces it.
use super::defaults::{CGROUP, Fixed, HOST_DEV, HOSTS, LENT, PROC, RESOLV_CONF, SMALL_DEV, SYS};
use super::{Fault, Mount, PluginPart, Share, VolumeKind, Wanted, owned};
use crate::api::runtime::{HostPath, Network, Propagation};
use crate::plan::view::{parts, plain};

/// A mount that is asked for, and what it is in a sentence.
struct Asked {
    what: &'static str,
    mount: Mount,
}

impl Asked {
    /// What is mounted in it is mounted on the node, too.
    fn is_open(&self) -> bool {
        self.mount.options.iter().any(|option| option == "rshared")
    }
}

/// The mounts in their order, and what is shared with the host.
pub(super) fn mounts(wanted: &Wanted<'_>) -> Result<(Vec<Mount>, Vec<Share>), Fault> {
    let mut shares = Vec::new();
    let mut asked: Vec<Asked> = wanted.volumes.iter().enumerate().map(|(i, _)| volume(wanted, i)).collect();
    if let Some(plugin) = wanted.plugin {
        asked.extend(of_plugin(plugin, wanted.stage, &mut shares));
    }
    asked.extend(wanted.oci.host_paths.iter().map(|host| host_path(host, wanted.stage, &mut shares)));
    no_two_at_one_path(&asked, wanted)?;
    asked.sort_by_key(|asked| parts(&asked.mount.destination).count());
    let replaced = |mount: &Mount| asked.iter().any(|asked| asked.mount.destination == mount.destination);
    let mut all = fixed(wanted);
    all.retain(|mount| !replaced(mount));
    all.extend(asked.into_iter().map(|asked| asked.mount));
    Ok((all, shares))
}

/// `CSI_ENDPOINT` as the driver is told it.
pub(super) fn endpoint(plugin: &PluginPart) -> String {
    format!("unix://{}/csi.sock", inside(&plugin.mount_dir, &plugin.socket_directory))
}

/// What every container has.
fn fixed(wanted: &Wanted<'_>) -> Vec<Mount> {
    let oci = wanted.oci;
    let fixed = |Fixed(destination, kind, source, options): &Fixed| Mount {
        destination: (*destination).to_owned(),
        r#type: (*kind).to_owned(),
        source: (*source).to_owned(),
        options: owned(options),
    };
    let mut sys = fixed(&SYS);
    // A driver of disks finds those that are new by writing there; who is privileged may mount it anew anyway.
    if !oci.privileged {
        sys.options.push("ro".to_owned());
    }
    let devices = if oci.host_devices { HOST_DEV } else { SMALL_DEV };
    let lent = match oci.network {
        Network::Host => [(RESOLV_CONF, wanted.machine.resolv_conf), (HOSTS, wanted.machine.hosts)],
        Network::None => [(RESOLV_CONF, false), (HOSTS, false)],
    };
    let lent =
        lent.into_iter().filter(|(_, there)| *there).map(|(file, _)| bind(file, file.to_owned(), LENT));
    let own = [fixed(&PROC)].into_iter().chain(devices.iter().map(fixed)).chain([sys, fixed(&CGROUP)]);
    own.chain(lent).collect()
}

/// Every flag stands beside `ro`: runc's second mount, which makes it read-only, drops those that are not listed.
fn volume(wanted: &Wanted<'_>, index: usize) -> Asked {
    let volume = &wanted.volumes[index];
    let options: &[&str] = match volume.kind {
        VolumeKind::Filesystem => &["rbind", "rprivate", "nosuid", "nodev"],
        VolumeKind::Block { .. } => &["bind", "rprivate", "nosuid"],
    };
    let mut mount = bind(&volume.path, format!("{}/v/{index}", wanted.stage), options);
    if volume.read_only {
        mount.options.push("ro".to_owned());
    }
    Asked { what: "a volume", mount }
}

/// The socket's directory is the container's view alone; what a driver mounts in the tree has to reach the host.
fn of_plugin(plugin: &PluginPart, stage: &str, shares: &mut Vec<Share>) -> Vec<Asked> {
    let socket = inside(&plugin.mount_dir, &plugin.socket_directory);
    let socket = bind(&socket, plugin.socket_directory.clone(), &["rbind", "rprivate"]);
    let mut all = vec![Asked { what: "the plugin's socket", mount: socket }];
    if plugin.role.node() {
        let tree = inside(&plugin.stage_publish_base_dir, &plugin.tree);
        let tree_of_host = Share { path: plugin.tree.clone(), both_ways: true, resolved: false };
        let source = share(tree_of_host, stage, shares);
        let mount = bind(&tree, source, &["rbind", "rshared"]);
        all.push(Asked { what: "the plugin's staging and publish paths", mount });
    }
    all
}

fn host_path(host: &HostPath, stage: &str, shares: &mut Vec<Share>) -> Asked {
    let (both_ways, options) = match host.propagation {
        Propagation::None => (false, ["rbind", "rprivate"]),
        Propagation::HostToContainer => (false, ["rbind", "rslave"]),
        Propagation::Bidirectional => (true, ["rbind", "rshared"]),
    };
    let source = share(Share { path: host.path.clone(), both_ways, resolved: true }, stage, shares);
    let mut mount = bind(&host.mount_path, source, &options);
    if host.read_only {
        // Whatever is mounted beneath it on the node comes with it, and `ro` would be of the topmost mount alone.
        mount.options.extend(owned(&["rnosuid", "rnodev", "rro"]));
    }
    Asked { what: "a path of the node", mount }
}

/// Where the copy of a path of the host lies.
fn share(share: Share, stage: &str, shares: &mut Vec<Share>) -> String {
    shares.push(share);
    format!("{stage}/s/{}", shares.len() - 1)
}

fn no_two_at_one_path(asked: &[Asked], wanted: &Wanted<'_>) -> Result<(), Fault> {
    let taken = |path: &str, by, what| Err(Fault::Taken { path: path.to_owned(), by, what });
    for (i, one) in asked.iter().enumerate() {
        let path = &one.mount.destination;
        if let Some(first) = asked[..i].iter().find(|first| first.mount.destination == *path) {
            return taken(path, first.what, one.what);
        }
        let above = |open: &&Asked| {
            open.mount.destination != *path && lies_at_or_below(path, &open.mount.destination)
        };
        if let Some(open) = asked.iter().filter(|asked| asked.is_open()).find(above) {
            let at = open.mount.destination.clone();
            return Err(Fault::Reaches { path: path.clone(), what: one.what, at, open: open.what });
        }
        // The node would be made in what is mounted there.
        if wanted.devices.iter().any(|node| lies_at_or_below(&node.path, path)) {
            return taken(path, "a device", one.what);
        }
    }
    Ok(())
}

fn lies_at_or_below(path: &str, above: &str) -> bool {
    let mut path = parts(path);
    parts(above).all(|part| path.next() == Some(part))
}

fn bind(destination: &str, source: String, options: &[&str]) -> Mount {
    let destination = plain(destination);
    Mount { destination, r#type: "bind".to_owned(), source, options: owned(options) }
}

/// Where something of the host is in the container: there too, unless another place is named.
fn inside(named: &str, host: &str) -> String {
    plain(if named.is_empty() { host } else { named })
}
