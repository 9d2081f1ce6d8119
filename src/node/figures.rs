//! What this node tells of itself in figures, in the text format of Prometheus: how full volumes are, how they are, which
//! plugins are well, and how long their calls took (`tally`). From memory alone: who asks makes no call of a plugin and no path call, and waits for nobody.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock, Weak};

use kube::ResourceExt;

use super::context::Node;
use super::journal::Entry;
use super::mounts::Measured;
use super::mounts::health::publication_trouble;
use crate::api::volume::Figures as Amounts;
use crate::plan::mount::Level;
use crate::plan::usage::State;

/// Of one daemon: made before it, and empty until it knows its machine.
#[derive(Debug, Clone, Default)]
pub struct Figures(Arc<OnceLock<Weak<Node>>>);

/// Who is told what Kubernetes calls these figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Names of our own.
    Own,
    /// Those of the kubelet beside them, `kubelet_volume_stats_*`, so that dashboards made for it work.
    AndKubelets,
}

/// Labels of one line, and its value.
type Line = (String, u64);

/// One volume here.
struct Volume {
    labels: String,
    kubelets: String,
    measured: Measured,
}

impl Figures {
    /// Whose figures these are.
    pub(super) fn of(&self, node: &Arc<Node>) {
        // A daemon has its own.
        let _second = self.0.set(Arc::downgrade(node));
    }

    /// Everything as text; nothing when the daemon has not begun or has ended.
    pub fn text(&self, names: Names) -> String {
        let Some(node) = self.0.get().and_then(Weak::upgrade) else { return String::new() };
        let mut text = String::new();
        of_volumes(&mut text, &volumes(&node), names);
        of_plugins(&mut text, &node);
        of_mounts(&mut text, &node);
        node.tally.write(&mut text, &node.options.name);
        text
    }
}

fn gauge(text: &mut String, name: &str, help: &str, lines: impl IntoIterator<Item = Line>) {
    let mut lines = lines.into_iter().peekable();
    if lines.peek().is_none() {
        return;
    }
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n");
    for (labels, value) in lines {
        let _ = writeln!(text, "{name}{{{labels}}} {value}");
    }
}

/// Labels as they are written, with what ends one escaped.
pub(super) fn labels(of: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    of.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect::<Vec<_>>().join(",")
}

fn volumes(node: &Node) -> Vec<Volume> {
    let mut volumes = Vec::new();
    for entry in node.journal.attachments() {
        let Some(measured) = node.usages.get(&entry.uid) else { continue };
        let object = node.caches.attachments.of(&entry.volume);
        let object = object.into_iter().find(|object| object.uid().as_ref() == Some(&entry.uid));
        let claim = object.as_ref().map(|object| &object.spec.claim);
        let (namespace, name) =
            claim.map_or(("", ""), |claim| (claim.namespace.as_str(), claim.name.as_str()));
        volumes.push(Volume {
            labels: labels(&[
                ("namespace", namespace),
                ("claim", name),
                ("volume", &entry.volume),
                ("plugin", &entry.plugin),
                ("node", &node.options.name),
            ]),
            kubelets: labels(&[("namespace", namespace), ("persistentvolumeclaim", name)]),
            measured,
        });
    }
    volumes.sort_by(|one, other| one.labels.cmp(&other.labels));
    volumes
}

/// One figure of each volume: what it is called after the prefix, by us and by the kubelet, and in words.
type Figure = (&'static str, &'static str, &'static str, fn(&Measured) -> Option<i64>);

fn bytes(of: &Measured) -> Option<Amounts> {
    of.usage.bytes
}

fn inodes(of: &Measured) -> Option<Amounts> {
    of.usage.inodes
}

const FIGURES: [Figure; 6] = [
    ("capacity_bytes", "capacity_bytes", "What the volume has, as its users see it.", |of| {
        Some(bytes(of)?.total)
    }),
    ("used_bytes", "used_bytes", "What is used of it.", |of| bytes(of)?.used),
    ("available_bytes", "available_bytes", "What may be used still.", |of| bytes(of)?.available),
    ("inodes", "inodes", "Inodes of the volume.", |of| Some(inodes(of)?.total)),
    ("inodes_used", "inodes_used", "Inodes that are used.", |of| inodes(of)?.used),
    ("inodes_free", "inodes_free", "Inodes that may be used still.", |of| inodes(of)?.available),
];

fn of_volumes(text: &mut String, volumes: &[Volume], names: Names) {
    let each = |value: fn(&Measured) -> Option<i64>, label: fn(&Volume) -> &String| {
        volumes.iter().filter_map(move |volume| {
            Some((label(volume).clone(), u64::try_from(value(&volume.measured)?).unwrap_or_default()))
        })
    };
    for (own, kubelets, help, value) in FIGURES {
        gauge(text, &format!("wharfline_volume_{own}"), help, each(value, |volume| &volume.labels));
        if names == Names::AndKubelets {
            let name = format!("kubelet_volume_stats_{kubelets}");
            gauge(text, &name, help, each(value, |volume| &volume.kubelets));
        }
    }
    let well = volumes.iter().filter_map(|volume| match volume.measured.state.as_ref()? {
        State::Well => Some((volume.labels.clone(), 1)),
        State::Abnormal(_) => Some((volume.labels.clone(), 0)),
        State::Unknown(..) => None,
    });
    gauge(
        text,
        "wharfline_volume_healthy",
        "1 while its plugin says that the volume is well, 0 while it says that it is not.",
        well,
    );
}

fn of_plugins(text: &mut String, node: &Node) {
    let mut lines: Vec<Line> = Vec::new();
    for (key, instance) in node.registry.everything() {
        let labels = labels(&[
            ("plugin", &instance.plugin),
            ("role", &format!("{:?}", instance.role)),
            ("allocation", &key.allocation),
            ("task", &key.task),
            ("node", &node.options.name),
        ]);
        lines.push((labels, u64::from(instance.progress.healthy_since.is_some())));
    }
    gauge(text, "wharfline_plugin_up", "1 while the instance of the plugin may be called.", lines);
}

fn of_mounts(text: &mut String, node: &Node) {
    let up = |all: &BTreeMap<String, Entry>| {
        let publications = all.values().filter_map(Entry::as_publication);
        publications.filter(|entry| entry.level == Level::Up).cloned().collect::<Vec<_>>()
    };
    let all = node.journal.look(up);
    let unwell = all.iter().filter(|entry| publication_trouble(node, entry).is_some()).count();
    let label = labels(&[("node", &node.options.name)]);
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let (up, unwell) = (number(all.len()), number(unwell));
    gauge(text, "wharfline_mounts", "Volumes that are published to a user.", [(label.clone(), up)]);
    gauge(text, "wharfline_mounts_unhealthy", "Of those, whose mount is not well.", [(label, unwell)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::volume::VolumeUsage;

    fn volume(name: &str, usage: VolumeUsage, state: Option<State>) -> Volume {
        Volume {
            labels: labels(&[("claim", name)]),
            kubelets: labels(&[("persistentvolumeclaim", name)]),
            measured: Measured { usage, state, ..Measured::default() },
        }
    }

    #[test]
    fn a_volume_is_told_as_far_as_it_is_known() {
        let amounts = |total, used, available| Some(Amounts { total, used, available });
        let usage = VolumeUsage {
            bytes: amounts(100, Some(40), Some(55)),
            inodes: amounts(10, None, None),
            ..VolumeUsage::default()
        };
        let volumes = [
            volume("a", usage, Some(State::Well)),
            volume("b\"\n", VolumeUsage::default(), Some(State::Abnormal("broken".to_owned()))),
            volume("c", VolumeUsage::default(), None),
        ];
        let mut text = String::new();
        of_volumes(&mut text, &volumes, Names::Own);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "wharfline_volume_capacity_bytes{claim=\"a\"} 100",
                "wharfline_volume_used_bytes{claim=\"a\"} 40",
                "wharfline_volume_available_bytes{claim=\"a\"} 55",
                "wharfline_volume_inodes{claim=\"a\"} 10",
                "wharfline_volume_healthy{claim=\"a\"} 1",
                "wharfline_volume_healthy{claim=\"b\\\"\\n\"} 0",
            ]
        );
        let mut text = String::new();
        of_volumes(&mut text, &volumes, Names::AndKubelets);
        assert!(
            text.contains("\nkubelet_volume_stats_used_bytes{persistentvolumeclaim=\"a\"} 40\n"),
            "{text}"
        );
    }

    #[test]
    fn without_a_daemon_there_is_nothing() {
        assert_eq!(Figures::default().text(Names::AndKubelets), "");
    }
}
