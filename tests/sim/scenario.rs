//! Seventy objects are applied, used and deleted while things go wrong; then everything is well, and must come to rest.
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::checks;
use crate::cluster::{Cluster, NODES};
use crate::faults::{AWAY, Faults};
use crate::people::Wish;
use crate::universe::{CrashAt, below, chance, pick};

const OURS: &str = "/apis/wharfline.dev/v1alpha1";
/// L1: by when everything is as wanted once nothing goes wrong any more.
const CONVERGED: Duration = Duration::from_secs(120);
/// L1: and then nothing is written for so long.
const QUIET: Duration = Duration::from_secs(60);

/// Of so many runs one changes its plugins.
const CHANGES: u64 = 3;

/// A look at everything costs more than a step: it is taken at each fifth.
const WHOLE_LOOK: u32 = 5;

/// By when nobody uses any more what was taken from him, once nothing goes wrong.
const GIVEN_UP: Duration = Duration::from_secs(15);

/// When a node goes away for long, in runs where one does: it is host of volumes by then.
const LEAVES: Duration = Duration::from_secs(9);

/// How a run ended well.
#[derive(Debug)]
pub struct Report {
    pub simulated: Duration,
    pub up_after: Duration,
    pub away_after: Duration,
}

/// One thing that people apply.
#[derive(Clone, Debug)]
pub struct Manifest {
    collection: String,
    object: Value,
}

impl Manifest {
    fn new(collection: &str, kind: &str, name: &str, spec: Value) -> Self {
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": kind,
            "metadata": { "name": name }, "spec": spec });
        Self { collection: format!("{OURS}/{collection}"), object }
    }

    fn namespaced(collection: &str, kind: &str, name: &str, spec: Value) -> Self {
        Self::new(&format!("namespaces/default/{collection}"), kind, name, spec)
    }

    pub fn create(&self) -> Wish {
        Wish::Create { collection: self.collection.clone(), object: self.object.clone() }
    }

    /// A plugin's processes are to be started with another word in their environment.
    fn change(&self, word: &str) -> Wish {
        let mut spec = self.object["spec"].clone();
        spec["instances"][0]["env"] = json!({ "VERSION": word });
        Wish::Change { path: self.path(), spec }
    }

    /// A claim is to be larger, with other attributes.
    fn grow(&self) -> Wish {
        let mut spec = self.object["spec"].clone();
        spec["resources"] = json!({ "requests": { "storage": "2Mi" } });
        spec["volumeAttributesClassName"] = json!("fast");
        Wish::Change { path: self.path(), spec }
    }

    pub fn delete(&self) -> Wish {
        Wish::Delete { path: self.path() }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.object["metadata"]["name"].as_str().unwrap_or_default())
    }
}

/// Every RPC ends soon, so that a run does.
fn deadlines() -> Value {
    let all = wharfline::csi::Rpc::ALL.iter().map(|rpc| (rpc.name().to_owned(), json!("5s")));
    Value::Object(all.collect())
}

pub fn plugin(name: &str, scope: &str) -> Manifest {
    let instances = json!([{ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
        "runtime": { "process": { "command": ["plugin", name] } } }]);
    Manifest::new(
        "plugins",
        "Plugin",
        name,
        json!({ "controllerScope": scope, "instances": instances, "deadlines": deadlines() }),
    )
}

pub fn class(name: &str, plugin: &str, mode: &str) -> Manifest {
    Manifest::new(
        "volumeclasses",
        "VolumeClass",
        name,
        json!({ "plugin": plugin, "reclaimPolicy": "Delete", "volumeBindingMode": mode,
            "allowVolumeExpansion": plugin == "alpha" }),
    )
}

/// What volumes of alpha can have.
fn attributes(name: &str) -> Manifest {
    let spec = json!({ "plugin": "alpha", "parameters": { "tier": name } });
    Manifest::new("volumeattributesclasses", "VolumeAttributesClass", name, spec)
}

pub fn claim(name: &str, class: &str, mode: &str) -> Manifest {
    Manifest::namespaced(
        "volumeclaims",
        "VolumeClaim",
        name,
        json!({ "volumeClassName": class, "accessModes": [mode], "resources": { "requests": { "storage": "1Mi" } } }),
    )
}

pub fn allocation(name: &str, claims: &[&str], command: &str) -> Manifest {
    let volumes: Vec<_> = claims.iter().map(|c| json!({ "name": c, "claimName": c })).collect();
    let mounts: Vec<_> = claims.iter().map(|c| json!({ "name": c, "mountPath": format!("/{c}") })).collect();
    let policy = if command == "finish" { "OnFailure" } else { "Always" };
    let tasks = match command {
        "" => json!([]),
        command => {
            json!([{ "name": "task", "restartPolicy": policy, "stopGracePeriod": "2s", "volumeMounts": mounts,
            "runtime": { "process": { "command": [command] } } }])
        }
    };
    let spec = json!({ "volumes": volumes, "tasks": tasks, "onNodeLost": "Rebind" });
    Manifest::namespaced("allocations", "Allocation", name, spec)
}

/// A claim that is filled from another, or from a snapshot.
fn filled(name: &str, class: &str, field: &str, source: &str) -> Manifest {
    let mut claim = claim(name, class, "SingleNodeWriter");
    claim.object["spec"]["dataSource"] = json!({ field: source });
    claim
}

fn snapshot(name: &str, claim: &str) -> Manifest {
    Manifest::namespaced("snapshots", "Snapshot", name, json!({ "source": { "claimName": claim } }))
}

/// One of the claims with this label, at one moment.
fn group(name: &str) -> Manifest {
    Manifest::namespaced(
        "snapshots",
        "Snapshot",
        name,
        json!({ "source": { "selector": { "matchLabels": { "pictured": "together" } } } }),
    )
}

/// Four snapshots and one of two claims, and four claims that are filled: two of them have a user. All are of alpha.
fn pictures() -> Vec<Manifest> {
    let mut all = vec![
        filled("filled-0", "class-0", "snapshotName", "snap-0"),
        filled("filled-1", "class-1", "snapshotName", "snap-1"),
        filled("filled-2", "class-0", "claimName", "claim-4"),
        filled("filled-3", "class-1", "claimName", "claim-1"),
    ];
    for (n, of) in ["claim-0", "claim-1", "claim-4", "filled-2"].into_iter().enumerate() {
        all.push(snapshot(&format!("snap-{n}"), of));
    }
    all.push(group("group"));
    for n in [1, 3] {
        all.push(allocation(&format!("filled-{n}"), &[&format!("filled-{n}")], "run"));
    }
    all
}

/// Three claims without users, of which alpha takes any two for one while it has the volume of one. The second one is never used.
fn twins() -> Vec<Manifest> {
    let mut class = class("twins", "alpha", "Immediate");
    class.object["spec"]["parameters"] = json!({ "one": "twin" });
    let claims = (0..3).map(|n| claim(&format!("twin-{n}"), "twins", "SingleNodeWriter"));
    claims.chain([class]).collect()
}

/// How many claims have users.
const USED: usize = 15;

/// The claims of the users beyond the first of each: two are shared, before three there is a queue.
const MORE: [usize; 7] = [0, 1, 2, 2, 3, 3, 4];

/// The users that only read: the second one of claim 0, and of claim 3.
const READERS: [usize; 2] = [USED, USED + 4];

/// The claims of which there is a picture of one moment.
const TOGETHER: [usize; 2] = [1, 4];

/// Whether a claim may become larger, and other: one of alpha's that nothing is made of.
fn may_grow(manifest: &Manifest) -> bool {
    let name = manifest.object["metadata"]["name"].as_str().unwrap_or_default();
    !["claim-0", "claim-1", "claim-4"].contains(&name)
        && manifest.object["spec"]["volumeAttributesClassName"] == "slow"
}

/// Two plugins, sixteen classes, twenty-two claims (seven of them without a user) and twenty-two allocations; and what is made
/// of claims. Where the nodes of some are chosen beforehand, they come back to the node that lost them.
fn seventy(pinned: bool) -> Vec<Manifest> {
    let mut all = pictures();
    all.extend(twins());
    all.extend([plugin("alpha", "Cluster"), plugin("beta", "Node"), attributes("slow"), attributes("fast")]);
    for n in 0..14 {
        let (plugin, mode) = CLASSES[n % CLASSES.len()];
        all.push(class(&format!("class-{n}"), plugin, mode));
    }
    for n in 0..USED + MORE.len() {
        // Two claims have their users side by side, three one after the other. Those modes are alpha's alone, but for
        // one.
        let (mode, sorts) = match n {
            0 => pick(&[("MultiNodeMultiWriter", 2), ("MultiNodeSingleWriter", 2)]),
            1 => ("SingleNodeMultiWriter", 2),
            2 => ("SingleNodeSingleWriter", 2),
            3 => pick(&[("SingleNodeSingleWriter", 2), ("MultiNodeSingleWriter", 2)]),
            4 => ("SingleNodeWriter", 2),
            _ => pick(&[("SingleNodeWriter", 3), ("SingleNodeWriter", 3), ("SingleNodeSingleWriter", 2)]),
        };
        let sort = usize::try_from(below(sorts)).unwrap();
        let class = 3 * usize::try_from(below(4)).unwrap() + sort;
        let mut claim = claim(&format!("claim-{n}"), &format!("class-{class}"), mode);
        if CLASSES[sort].0 == "alpha" {
            claim.object["spec"]["volumeAttributesClassName"] = json!("slow");
        }
        if TOGETHER.contains(&n) {
            claim.object["metadata"]["labels"] = json!({ "pictured": "together" });
        }
        all.push(claim);
    }
    for (n, of) in (0..USED).chain(MORE).enumerate() {
        let queue = (2..=4).contains(&of);
        let command = if queue { "finish" } else { pick(&["run", "run", "run", "finish", ""]) };
        let mut one = allocation(&format!("alloc-{n}"), &[&format!("claim-{of}")], command);
        // Of these claims one user writes, or two do one after the other, and one reads beside it.
        if READERS.contains(&n) {
            one.object["spec"]["volumes"][0]["readOnly"] = json!(true);
        }
        match of {
            // Each user on a node of its own: their attachments are made side by side.
            0 => one.object["spec"]["nodeName"] = json!(if n == 0 { "node-a" } else { "node-c" }),
            // Both users of a volume for one node: elsewhere the second would wait for the first, and rightly.
            1 => one.object["spec"]["nodeName"] = json!("node-b"),
            _ if pinned && chance(500) => one.object["spec"]["nodeName"] = json!(pick(&NODES)),
            _ => {}
        }
        all.push(one);
    }
    all
}

/// The three sorts of classes.
const CLASSES: [(&str, &str); 3] =
    [("alpha", "Immediate"), ("alpha", "WaitForFirstConsumer"), ("beta", "WaitForFirstConsumer")];

fn shuffled(mut of: Vec<Manifest>) -> Vec<Manifest> {
    for at in (1..of.len()).rev() {
        let other = usize::try_from(below(at as u64 + 1)).unwrap();
        of.swap(at, other);
    }
    of
}

/// The cluster, its faults, and the times.
pub struct Run {
    pub cluster: Cluster,
    faults: Faults,
    /// Plugins get other specs while volumes are in use.
    changes: bool,
    /// Nothing goes wrong in it.
    calm: bool,
    /// Since when nothing goes wrong any more, if so.
    healed: Option<Duration>,
    steps: u32,
}

impl Run {
    pub fn new(cluster: Cluster, seed: u64) -> Self {
        let faults = Faults::new(seed, cluster.etcd.is_some());
        Self { cluster, faults, changes: seed.is_multiple_of(CHANGES), calm: false, healed: None, steps: 0 }
    }

    pub fn kinds(&self) -> String {
        self.faults.describe()
    }

    fn step(&mut self) -> Result<(), String> {
        self.faults.step(&mut self.cluster);
        self.cluster.step()?;
        self.steps += 1;
        if !self.steps.is_multiple_of(WHOLE_LOOK) {
            return Ok(());
        }
        if self.calm {
            checks::held_too_long(&self.cluster.universe.look())?;
        }
        if self.healed.is_some_and(|healed| self.cluster.now() > healed + GIVEN_UP) {
            checks::let_in(&self.cluster.universe.look())?;
        }
        Ok(())
    }

    fn heal(&mut self) {
        self.faults.heal(&mut self.cluster);
        self.healed = Some(self.cluster.now());
    }

    fn until(&mut self, end: Duration) -> Result<(), String> {
        while self.cluster.now() < end {
            self.step()?;
        }
        Ok(())
    }

    /// Wishes, spread over a time.
    fn wish(&mut self, wishes: Vec<Wish>, over: Duration) -> Result<(), String> {
        let start = self.cluster.now();
        let count = u32::try_from(wishes.len()).unwrap().max(1);
        for (n, wish) in (0..).zip(wishes) {
            self.until(start + over / count * n)?;
            self.cluster.desk.ask(wish);
        }
        self.until(start + over)
    }

    /// Waits until nothing is amiss, which `amiss` lists: the first so many of it.
    pub fn settle(
        &mut self,
        what: &str,
        amiss: impl Fn(&Cluster, usize) -> Vec<String>,
    ) -> Result<Duration, String> {
        let start = self.cluster.now();
        loop {
            self.step()?;
            if !self.steps.is_multiple_of(WHOLE_LOOK) {
                continue;
            }
            if amiss(&self.cluster, 1).is_empty() {
                return Ok(self.cluster.now().saturating_sub(start));
            }
            if self.cluster.now() > start + CONVERGED {
                let left = amiss(&self.cluster, usize::MAX);
                return Err(format!("L1: {what}: not after {CONVERGED:?}:\n{}", left.join("\n")));
            }
        }
    }

    /// Nothing is written while nothing happens.
    pub fn quiet(&mut self, how_long: Duration) -> Result<(), String> {
        let before = self.cluster.universe.look().writes;
        self.until(self.cluster.now() + how_long)?;
        let inner = self.cluster.universe.look();
        if inner.writes == before {
            return Ok(());
        }
        let line = |(at, what, object): &(Duration, String, Option<Arc<Value>>)| {
            let status = object.as_ref().map(|o| o["status"].to_string()).unwrap_or_default();
            format!("{at:?} {what} {status}")
        };
        let lines = inner.last_writes.iter().map(line).collect::<Vec<_>>().join("\n");
        Err(format!("L1: {} writes while nothing happened:\n{lines}", inner.writes - before))
    }

    /// One claim's whole life, with one process killed at its effect `crash` (from 1) if that is given. Returns the
    /// effects of the life.
    pub fn life(&mut self, crash: Option<u64>) -> Result<Vec<String>, String> {
        let manifests = [
            plugin("alpha", "Cluster"),
            class("class", "alpha", "WaitForFirstConsumer"),
            claim("claim", "class", "SingleNodeWriter"),
            allocation("alloc", &["claim"], "run"),
        ];
        // What the cluster does to come up is no part of it.
        self.until(Duration::from_secs(2))?;
        {
            let mut inner = self.cluster.universe.look();
            inner.effects = Some(Vec::new());
            inner.crash_at = crash.map(|left| CrashAt { host: None, left });
        }
        for manifest in &manifests {
            self.cluster.desk.ask(manifest.create());
        }
        self.settle("it runs", |cluster, most| match cluster.desk.open() {
            0 => checks::unmet(&cluster.universe.look(), most),
            open => vec![format!("{open} wishes are open")],
        })?;
        // Whoever is killed late is back by now, and touches nothing.
        self.until(self.cluster.now() + Duration::from_secs(3))?;
        for manifest in &manifests {
            self.cluster.desk.ask(manifest.delete());
        }
        self.settle("it is gone", |cluster, most| match cluster.desk.open() {
            0 => checks::leftovers(&cluster.universe.look(), &cluster.backends).take(most).collect(),
            open => vec![format!("{open} wishes are open")],
        })?;
        let effects = self.cluster.universe.look().effects.take().unwrap_or_default();
        checks::once(&self.cluster.universe.look(), &self.cluster.backends["alpha"], crash.is_some())?;
        Ok(effects)
    }

    /// Nothing is left of what was taken from a node: from here on nothing is excused by that, but for what has been.
    fn excuse_no_more(&self) {
        let mut inner = self.cluster.universe.look();
        for backend in self.cluster.backends.values() {
            backend.forgive(|violation| checks::after_a_fence(&inner, violation));
            backend.unfence();
        }
        inner.nodes.values_mut().for_each(|node| node.fenced = false);
    }

    /// The whole life of seventy objects.
    pub fn seventy(&mut self, calm: bool, quiet: bool) -> Result<Report, String> {
        let manifests = shuffled(seventy(self.faults.mistaken()));
        let time = Duration::from_secs;
        self.calm = calm;
        if !calm {
            self.faults.plan(4 + below(16), Duration::ZERO, time(14));
        }
        let away = !calm && self.faults.away(LEAVES, time(14));
        self.wish(manifests.iter().map(Manifest::create).collect(), time(8))?;
        // Some change their minds.
        let fickle: Vec<_> = manifests
            .iter()
            .filter(|m| {
                let fickle = ["allocations", "snapshots"].iter().any(|of| m.collection.ends_with(of));
                fickle && chance(200) || m.path().contains("/twin-") && chance(400)
            })
            .cloned()
            .collect();
        let plugins: Vec<_> =
            manifests.iter().filter(|m| self.changes && m.collection.ends_with("/plugins")).collect();
        let change = |word| plugins.iter().map(move |plugin| plugin.change(word));
        let grown = manifests.iter().filter(|m| may_grow(m) && chance(300)).map(Manifest::grow);
        let taken =
            manifests.iter().filter(|m| !calm && m.collection.ends_with("/volumeclaims") && chance(60));
        let taken = taken.map(|m| Wish::TakeAway { claim: m.path() });
        let asked = fickle.iter().map(Manifest::delete).chain(change("1")).chain(grown).chain(taken);
        self.wish(asked.collect(), time(2))?;
        self.wish(fickle.iter().map(Manifest::create).chain(change("2")).collect(), time(4))?;
        if away {
            self.until(LEAVES + AWAY)?;
        }
        self.heal();
        let up_after = self.settle("everything runs", |cluster, most| {
            if cluster.desk.open() > 0 {
                return vec![format!("{} wishes are open", cluster.desk.open())];
            }
            let mut amiss = checks::unmet(&cluster.universe.look(), most);
            amiss.extend(checks::let_in(&cluster.universe.look()).err());
            amiss
        })?;
        self.excuse_no_more();
        if quiet {
            // A driver that has died again and again is called steady once it has been well for a minute: that is news.
            self.settle("every driver is steady", |cluster, most| {
                checks::unsteady(&cluster.universe.look()).take(most).collect()
            })?;
            // A watch that a fault has left deaf is given up after fifteen seconds, and what it missed is then told. How much
            // room there is after the last volume was made is asked within a heartbeat.
            self.until(self.cluster.now() + time(40))?;
            self.quiet(QUIET)?;
        }
        let now = self.cluster.now();
        if !calm {
            self.healed = None;
            self.faults.plan(4 + below(16), now, now + time(10));
        }
        self.wish(ends(shuffled(manifests), calm), time(10))?;
        self.heal();
        let away_after = self.settle("everything is gone", |cluster, most| {
            if cluster.desk.open() > 0 {
                return vec![format!("{} wishes are open", cluster.desk.open())];
            }
            checks::leftovers(&cluster.universe.look(), &cluster.backends).take(most).collect()
        })?;
        if calm && away_after > time(15) {
            return Err(format!("L7: it took {away_after:?} until everything was gone"));
        }
        Ok(Report { simulated: self.cluster.now(), up_after, away_after })
    }
}

/// How people have everything deleted.
fn ends(manifests: Vec<Manifest>, calm: bool) -> Vec<Wish> {
    let mut ends: Vec<Wish> = Vec::new();
    for manifest in manifests {
        let claim = !calm && manifest.collection.ends_with("/volumeclaims");
        // Some delete the volume beside its claim, a while before or after; who has it, or is made of it, is waited for all the same.
        if claim && chance(300) {
            let at = usize::try_from(below(ends.len() as u64 + 1)).unwrap();
            ends.insert(at, Wish::DeleteVolumeOf { claim: manifest.path() });
        }
        // Some want to keep what is in it a moment later, too late perhaps.
        if claim && !manifest.path().contains("/twin-") && chance(250) {
            ends.push(Wish::KeepVolumeOf { claim: manifest.path() });
        }
        ends.push(manifest.delete());
    }
    ends
}
