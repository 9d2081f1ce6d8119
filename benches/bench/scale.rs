//! B10: what one whole life of a volume writes, in writes and in bytes of the objects that are written; B12: what a
//! publication costs where there are many mounts already, against the same driver's calls by a small client there.
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use serde_json::json;

use super::plugin::Plugin;
use super::raw::Raw;
use super::report::{Report, Row, Target, median, ms};
use super::stack::{Stack, World};

/// Lives of which the writes are counted.
const LIVES: usize = 40;
/// How many mounts there are beside, and how many publications are measured at each.
const MOUNTS: [usize; 3] = [10, 1_000, 10_000];
const AT_EACH: usize = 30;

/// Versions of the objects of these kinds that a watch showed, and their bytes.
struct Counted {
    seen: Arc<Mutex<(usize, usize)>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Counted {
    fn follow(client: &kube::Client) -> Self {
        let kinds = [
            ("VolumeClaim", "volumeclaims"),
            ("Volume", "volumes"),
            ("VolumeAttachment", "volumeattachments"),
            ("Allocation", "allocations"),
        ];
        let seen = Arc::<Mutex<(usize, usize)>>::default();
        let follow = |(kind, plural)| {
            let resource = ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("wharfline.dev", "v1alpha1", kind),
                plural,
            );
            let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
                while let Some(event) = events.next().await {
                    if let Ok(Event::Apply(object)) = event {
                        let bytes = serde_json::to_vec(&object).unwrap().len();
                        let mut seen = seen.lock().unwrap();
                        *seen = (seen.0 + 1, seen.1 + bytes);
                    }
                }
            })
        };
        let tasks = kinds.into_iter().map(follow).collect();
        Self { seen, tasks }
    }

    fn so_far(&self) -> (usize, usize) {
        *self.seen.lock().unwrap()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// B10.
pub(crate) async fn written(report: &mut Report) {
    let plugin = Plugin::start("quick");
    let (stack, world) = Stack::with_plugin(&plugin).await;
    let counted = Counted::follow(&world.client);
    published(&world, "warm").await;
    let revision = || async {
        let list = world.claims.list(&kube::api::ListParams::default()).await.unwrap();
        list.metadata.resource_version.unwrap().parse::<u64>().unwrap()
    };
    let (before, written) = (counted.so_far(), revision().await);
    for n in 0..LIVES {
        published(&world, &format!("b10-{n}")).await;
    }
    let (after, written) = (counted.so_far(), revision().await - written);
    stack.end();
    let per_life = |all: f64| all / LIVES as f64;
    let kilobytes = per_life((after.1 - before.1) as f64) / 1e3;
    let versions = per_life((after.0 - before.0) as f64);
    // Deletions, leases and events are writes, too; a watch shows of a deletion no new version.
    report.add(Row {
        target: Some(Target::Value(18.0)),
        more: json!({ "lives": LIVES, "versionsSeen": versions }),
        ..Row::new("B10", "writes per whole life, deletions included", "", vec![per_life(written as f64)])
    });
    report.add(Row {
        target: Some(Target::Value(24.0)),
        ..Row::new("B10", "JSON of the objects written per life", "kB", vec![kilobytes])
    });
}

/// A volume from its claim to its end; how long it took until it was published, in milliseconds.
async fn published(world: &World, name: &str) -> f64 {
    let names = [name.to_owned()];
    world.allocation(name, &names).await;
    world.claim(name).await;
    let start = Instant::now();
    let end = world.published.all_are(&names, &1).await;
    let took = ms(end.duration_since(start));
    world.clear(&names, &names).await;
    took
}

/// So many mounts that are nobody's.
struct Crowd(tempfile::TempDir);

impl Crowd {
    fn of(mounts: usize) -> Self {
        let place = tempfile::Builder::new().prefix("wfm").tempdir_in("/var/tmp").unwrap();
        mount("crowd", place.path(), "tmpfs", MountFlags::empty(), None).unwrap();
        mount_change(place.path(), MountPropagationFlags::PRIVATE).unwrap();
        let from = place.path().join("from");
        std::fs::create_dir(&from).unwrap();
        for n in 1..mounts {
            let at = place.path().join(n.to_string());
            std::fs::create_dir(&at).unwrap();
            mount_bind(&from, &at).unwrap();
        }
        Self(place)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // All that is mounted in it goes with it.
        let _ = unmount(self.0.path() as &Path, UnmountFlags::DETACH);
    }
}

/// B12.
pub(crate) async fn among_mounts(report: &mut Report) {
    let raw = Raw::new("quick").await;
    let plugin = Plugin::start("quick");
    let (stack, world) = Stack::with_plugin(&plugin).await;
    let (mut floors, mut ours) = (Vec::new(), Vec::new());
    for mounts in MOUNTS {
        let crowd = Crowd::of(mounts);
        let (mut calls, mut whole) = (Vec::new(), Vec::new());
        for n in 0..AT_EACH {
            let name = format!("m-{mounts}-{n}");
            raw.create(&name).await;
            let start = Instant::now();
            raw.up(&name).await;
            calls.push(ms(start.elapsed()));
            raw.down(&name);
            whole.push(published(&world, &name).await);
        }
        drop(crowd);
        floors.push(median(&calls));
        ours.push(median(&whole));
    }
    stack.end();
    let grown = |of: &[f64]| (of[of.len() - 1] - of[0]).max(1e-3);
    report.add(Row {
        floor: Some(grown(&floors)),
        target: Some(Target::Ratio(3.0)),
        more: json!({ "mounts": MOUNTS, "rawMs": floors, "oursMs": ours }),
        ..Row::new("B12", "what a publication costs more with 10,000 mounts", "ms", vec![grown(&ours)])
    });
    report.add(Row {
        floor: floors.last().copied(),
        ..Row::new(
            "B12",
            "one claim to published, with 10,000 mounts",
            "ms",
            ours.last().copied().into_iter().collect(),
        )
    });
}
