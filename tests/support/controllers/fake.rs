//! A node daemon played by the test: it writes the statuses that a daemon writes, and keeps a ledger of what would have
//! happened to volumes. The ledger itself refuses what must never happen.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bench::{Seen, ask, key_of, path_of};

/// How a daemon behaves. Everything may be changed while it runs.
#[derive(Debug, Clone)]
pub(crate) struct Behaviour {
    /// It renews its lease and does anything at all.
    pub(crate) alive: bool,
    /// Its boot id.
    pub(crate) boot: String,
    /// The runtimes that it lists.
    pub(crate) runtimes: Vec<&'static str>,
    /// It stops tasks and unpublishes.
    pub(crate) unpublishes: bool,
    /// It reports that nothing is left.
    pub(crate) releases: bool,
    /// Whether it lets go of what nobody can want there any more before it is asked to.
    pub(crate) by_itself: bool,
    /// As host it creates volumes.
    pub(crate) creates: bool,
    /// As host it deletes them.
    pub(crate) deletes: bool,
    /// What its plugin calls every volume that it makes; empty where each has a handle of its own.
    pub(crate) one_volume: &'static str,
    /// As host it has no room for volumes that are asked for at these nodes.
    pub(crate) no_room: Vec<&'static str>,
    /// As host it makes no volume of more bytes; 0 = of any size.
    pub(crate) largest: i64,
    /// For how many bytes its plugin instances say that there is room at these nodes' places; elsewhere for very many.
    pub(crate) rooms: Vec<(&'static str, i64)>,
    /// As host it detaches.
    pub(crate) detaches: bool,
    /// Its plugin instances are healthy.
    pub(crate) healthy: bool,
    /// The word in the environment of its plugin instances of which none is healthy.
    pub(crate) poison: &'static str,
    /// The reason that is told for an instance that is not Ready.
    pub(crate) unready: &'static str,
    /// What its plugin instances can do.
    pub(crate) capabilities: Vec<&'static str>,
    /// Its drivers end soon after each start, and are well in between.
    pub(crate) unsteady: bool,
    /// What the environment of an instance has that ends soon after each start, though it is well now.
    pub(crate) shaky: &'static str,
    /// How many volumes its plugin instances take.
    pub(crate) max_volumes: i64,
    /// What its plugin instances call the node; made from its name when empty.
    pub(crate) node_id: String,
    /// The driver that its plugin instances are of.
    pub(crate) driver: &'static str,
    /// As host it expands what is asked for, and the nodes have to go on.
    pub(crate) expands: bool,
    /// As a node it does.
    pub(crate) node_expands: bool,
    /// As host it gives volumes the attributes that they shall have.
    pub(crate) modifies: bool,
    /// As host it takes snapshots.
    pub(crate) takes: bool,
    /// What its plugin calls every snapshot, or group of them; empty where each has a handle of its own.
    pub(crate) one_handle: &'static str,
    /// As host it lets go when it is asked to.
    pub(crate) lets_go: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            alive: true,
            boot: "boot-1".to_owned(),
            runtimes: vec!["external", "process"],
            unpublishes: true,
            releases: true,
            by_itself: true,
            creates: true,
            deletes: true,
            one_volume: "",
            no_room: Vec::new(),
            largest: 0,
            rooms: Vec::new(),
            detaches: true,
            healthy: true,
            poison: "",
            unready: "Probed",
            capabilities: DIR.to_vec(),
            unsteady: false,
            shaky: "",
            max_volumes: 0,
            node_id: String::new(),
            driver: "fake.csi",
            expands: true,
            node_expands: true,
            modifies: true,
            takes: true,
            one_handle: "",
            lets_go: false,
        }
    }
}

const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// A driver of directories: no attach, no stage, local to its node.
pub(crate) const DIR: &[&str] = &[
    "plugin/CONTROLLER_SERVICE",
    "plugin/VOLUME_ACCESSIBILITY_CONSTRAINTS",
    "controller/CREATE_DELETE_VOLUME",
];
/// A driver that attaches and stages.
pub(crate) const DISK: &[&str] = &[
    "plugin/CONTROLLER_SERVICE",
    "controller/CREATE_DELETE_VOLUME",
    "controller/PUBLISH_UNPUBLISH_VOLUME",
    "node/STAGE_UNSTAGE_VOLUME",
];

/// What would have happened to volumes.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    calls: Vec<String>,
    exists: BTreeSet<String>,
    /// Those that are there while they are published.
    ephemeral: BTreeSet<String>,
    attached: BTreeSet<(String, String)>,
    published: BTreeMap<(String, String), BTreeSet<String>>,
    /// Nodes that are surely off.
    off: BTreeSet<String>,
}

impl Ledger {
    /// Every call in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().calls.clone()
    }

    /// The calls of one sort.
    pub(crate) fn count(&self, verb: &str) -> usize {
        self.calls().iter().filter(|call| call.split(' ').next() == Some(verb)).count()
    }

    /// From here on this node is off, and whatever it had is no danger.
    pub(crate) fn power_off(&self, node: &str) {
        let mut book = self.0.lock().unwrap();
        book.off.insert(node.to_owned());
        book.published.retain(|(_, n), _| n != node);
    }

    /// The node runs again.
    pub(crate) fn power_on(&self, node: &str) {
        self.0.lock().unwrap().off.remove(node);
    }

    /// The backend has this volume.
    pub(crate) fn create(&self, volume: &str) {
        let mut book = self.0.lock().unwrap();
        if book.exists.insert(volume.to_owned()) {
            book.calls.push(format!("create {volume}"));
        }
    }

    /// It is asked once more for one that it may have.
    fn again(&self, volume: &str) {
        self.0.lock().unwrap().calls.push(format!("again {volume}"));
    }

    /// It has this one, filled from another, which must be there.
    fn fill(&self, volume: &str, from: &str) {
        let book = self.0.lock().unwrap();
        let there = book.exists.contains(volume) || book.exists.contains(from);
        assert!(there, "{volume} is filled from {from}, which does not exist");
        drop(book);
        self.create(volume);
    }

    fn delete(&self, volume: &str) {
        let mut book = self.0.lock().unwrap();
        assert!(
            !book.published.keys().any(|(v, _)| v == volume),
            "{volume} is deleted while it is published"
        );
        assert!(!book.attached.iter().any(|(v, _)| v == volume), "{volume} is deleted while it is attached");
        if book.exists.remove(volume) {
            book.calls.push(format!("delete {volume}"));
        }
    }

    fn attach(&self, volume: &str, node: &str, single: bool) {
        let mut book = self.0.lock().unwrap();
        if book.attached.insert((volume.to_owned(), node.to_owned())) {
            let nodes: Vec<_> = book.attached.iter().filter(|(v, _)| v == volume).collect();
            assert!(!single || nodes.len() == 1, "{volume} is attached to two nodes: {nodes:?}");
            book.calls.push(format!("attach {volume} {node}"));
        }
    }

    fn detach(&self, volume: &str, node: &str) {
        let mut book = self.0.lock().unwrap();
        let key = (volume.to_owned(), node.to_owned());
        assert!(
            !book.published.contains_key(&key),
            "{volume} is detached from {node} while it is published there"
        );
        if book.attached.remove(&key) {
            book.calls.push(format!("detach {volume} {node}"));
        }
    }

    fn publish(&self, volume: &str, node: &str, user: &str, (single, ephemeral): (bool, bool)) {
        let mut book = self.0.lock().unwrap();
        if ephemeral {
            book.ephemeral.insert(volume.to_owned());
            book.exists.insert(volume.to_owned());
        }
        assert!(book.exists.contains(volume), "{volume} is published and does not exist");
        let users = book.published.entry((volume.to_owned(), node.to_owned())).or_default();
        if users.insert(user.to_owned()) {
            let nodes: Vec<_> = book.published.keys().filter(|(v, _)| v == volume).cloned().collect();
            assert!(!single || nodes.len() == 1, "{volume} is published on two nodes: {nodes:?}");
            book.calls.push(format!("publish {volume} {node} {user}"));
        }
    }

    fn unpublish(&self, volume: &str, node: &str, user: &str) {
        let mut book = self.0.lock().unwrap();
        let key = (volume.to_owned(), node.to_owned());
        let Some(users) = book.published.get_mut(&key) else { return };
        let there = users.remove(user);
        if users.is_empty() {
            book.published.remove(&key);
        }
        if book.ephemeral.contains(volume) && !book.published.keys().any(|(v, _)| v == volume) {
            book.exists.remove(volume);
        }
        if there {
            book.calls.push(format!("unpublish {volume} {node} {user}"));
        }
    }

    fn users(&self, volume: &str, node: &str) -> BTreeSet<String> {
        let key = (volume.to_owned(), node.to_owned());
        self.0.lock().unwrap().published.get(&key).cloned().unwrap_or_default()
    }

    /// Whether anything is left of any volume.
    pub(crate) fn is_empty(&self) -> bool {
        let book = self.0.lock().unwrap();
        book.exists.is_empty() && book.attached.is_empty() && book.published.is_empty()
    }

    /// What must hold at the end of every test.
    pub(crate) fn check_end(&self) {
        let book = self.0.lock().unwrap();
        for (volume, node) in book.published.keys() {
            assert!(book.exists.contains(volume), "{volume} is published on {node} and does not exist");
        }
    }
}

/// One daemon.
pub(crate) struct FakeNode {
    pub(crate) name: String,
    pub(crate) client: kube::Client,
    pub(crate) seen: Seen,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) behaviour: watch::Receiver<Behaviour>,
}

type Patch = (String, Value);

impl FakeNode {
    /// Plays the daemon until it is stopped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut news = self.seen.news();
        let mut beat = tokio::time::interval(Duration::from_secs(3));
        let mut beats = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = news.changed() => if changed.is_err() { return },
                changed = self.behaviour.changed() => if changed.is_err() { return },
                _ = beat.tick() => {
                    beats += 1;
                    if self.behaviour.borrow().alive {
                        self.renew(beats).await;
                    }
                }
            }
            if !self.behaviour.borrow().alive {
                continue;
            }
            for (path, status) in self.step() {
                let patch = json!({ "status": status });
                let (code, answer) =
                    ask(&self.client, "PATCH", &format!("{path}/status"), Some(&patch)).await;
                // What it saw may be gone since, or another's.
                assert!(matches!(code, 200 | 403 | 404), "{path}: {answer}");
            }
        }
    }

    async fn renew(&self, beats: u64) {
        let leases = "/apis/coordination.k8s.io/v1/namespaces/wharfline-system/leases";
        let time = format!("2024-05-01T{:02}:{:02}:{:02}.000000Z", beats / 3600, beats / 60 % 60, beats % 60);
        let spec = json!({ "holderIdentity": self.incarnation(), "renewTime": time });
        let told = json!({ "annotations": { "wharfline.dev/boot-id": self.behaviour.borrow().boot } });
        let patch = json!({ "metadata": told, "spec": spec });
        let (code, _) = ask(&self.client, "PATCH", &format!("{leases}/{}", self.name), Some(&patch)).await;
        if code == 404 {
            let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": self.name, "namespace": "wharfline-system", "annotations": told["annotations"] },
                "spec": spec });
            let (code, answer) = ask(&self.client, "POST", leases, Some(&lease)).await;
            assert_eq!(code, 200, "{answer}");
        }
    }

    /// Who holds the lease. It is kept with the journal, from one boot to the next.
    fn incarnation(&self) -> String {
        format!("{} with its journal", self.name)
    }

    /// Everything that the daemon would write now; each patch differs from what is seen.
    fn step(&self) -> Vec<Patch> {
        let behaviour = self.behaviour.borrow().clone();
        let mut patches = Vec::new();
        let agent = self.seen.get("nodeagents", "", &self.name);
        let told = json!({ "bootId": behaviour.boot, "kernel": "6.1", "incarnation": self.incarnation(),
            "runtimes": behaviour.runtimes });
        push(&mut patches, "nodeagents", &agent, told);
        for volume in self.seen.all("volumes") {
            self.host(&behaviour, &volume, &mut patches);
        }
        for snapshot in self.seen.all("snapshots") {
            self.picture(&behaviour, &snapshot, &mut patches);
        }
        for attachment in self.seen.all("volumeattachments") {
            self.attach(&behaviour, &attachment, &mut patches);
        }
        for allocation in self.seen.all("allocations") {
            self.allocation(&behaviour, &allocation, &mut patches);
        }
        for attachment in self.seen.all("volumeattachments") {
            self.release(&behaviour, &attachment, &mut patches);
        }
        for instance in self.seen.all("plugininstances") {
            self.instance(&behaviour, &instance, &mut patches);
        }
        patches
    }

    fn host(&self, behaviour: &Behaviour, volume: &Value, patches: &mut Vec<Patch>) {
        let (spec, status, name) = (&volume["spec"], &volume["status"], text(&volume["metadata"]["name"]));
        if status["controller"]["nodeName"] != self.name.as_str() || !behaviour.creates {
            return;
        }
        let epoch = &status["controller"]["epoch"];
        if behaviour.lets_go && !epoch.is_null() && status["askedToRelease"] == *epoch {
            let said = json!({ "releasedEpoch": epoch, "observedEpoch": epoch });
            return push(patches, "volumes", volume, said);
        }
        if self.forgets("volumes", volume, patches) {
            return;
        }
        let held = status["holders"].as_array().is_some_and(|h| !h.is_empty());
        let shared = crate::bench::condition(volume, "HandleShared")["status"] == "True"
            || status["handleChecked"] != status["handle"];
        let leaving = !volume["metadata"]["deletionTimestamp"].is_null();
        let create = spec["source"]["create"].is_object();
        let some = |list: &str| status[list].as_array().is_some_and(|c| !c.is_empty());
        let copied = some("copies") || some("snapshots");
        let source = &spec["source"]["create"];
        let at =
            source["nodeName"].as_str().or(source["requisite"][0]["dir/node"].as_str()).unwrap_or_default();
        let too_large = (1..source["requiredBytes"].as_i64().unwrap_or(0)).contains(&behaviour.largest);
        let refusal = if too_large { "CreateVolumeFailed" } else { "NoRoom" };
        if !leaving && (too_large || behaviour.no_room.contains(&at)) {
            let full = json!({ "type": "Provisioned", "status": "False", "reason": refusal, "message": "as told",
                "lastTransitionTime": "2024-05-01T10:00:00.000000Z" });
            push(
                patches,
                "volumes",
                volume,
                json!({ "exists": "Down", "observedEpoch": epoch, "provisioning": full }),
            );
            return;
        }
        if !leaving {
            let content = &spec["source"]["create"]["content"];
            let pictured = content["snapshot"].is_string().then(|| format!("snap-{}", text(&content["uid"])));
            match content["volume"].as_str().map(str::to_owned).or(pictured) {
                Some(from) => self.ledger.fill(name, &from),
                None => self.ledger.create(name),
            }
            let handle = called(behaviour, volume);
            let context = if create {
                json!({ "from": self.name })
            } else {
                spec["source"]["existing"]["context"].clone()
            };
            let mut said =
                json!({ "exists": "Up", "handle": handle, "observedEpoch": epoch, "context": context });
            if let Some(first) = spec["source"]["create"]["requisite"].get(0) {
                said["topology"] = json!([first]);
            }
            grow(behaviour, volume, &mut said);
            change(behaviour, volume, &mut said);
            push(patches, "volumes", volume, said);
        } else if behaviour.deletes
            && create
            && !held
            && !shared
            && !copied
            && spec["reclaimPolicy"] != "Retain"
        {
            self.ledger.delete(name);
            push(patches, "volumes", volume, json!({ "exists": "Down", "observedEpoch": epoch }));
        }
    }

    /// What has ended with another one is asked for once more, when the controllers have seen that it is about to be.
    fn forgets(&self, plural: &str, object: &Value, patches: &mut Vec<Patch>) -> bool {
        let ended = crate::bench::condition(object, "HandleShared")["reason"] == "HandleEnded";
        if ended {
            if object["status"]["handle"].as_str().is_some_and(|handle| !handle.is_empty()) {
                self.ledger.again(text(&object["metadata"]["name"]));
            }
            // Only a Snapshot says in its status whether it is ready.
            let ready = object["status"]["ready"].is_boolean().then_some(false);
            push(patches, plural, object, json!({ "exists": "Unknown", "handle": "", "ready": ready }));
        }
        ended
    }

    fn picture(&self, behaviour: &Behaviour, snapshot: &Value, patches: &mut Vec<Patch>) {
        let (status, name) = (&snapshot["status"], text(&snapshot["metadata"]["uid"]));
        let host = &status["controller"];
        if host["nodeName"] != self.name.as_str() {
            return;
        }
        let epoch = &host["epoch"];
        if !epoch.is_null() && status["askedToRelease"] == *epoch {
            if behaviour.lets_go {
                push(
                    patches,
                    "snapshots",
                    snapshot,
                    json!({ "releasedEpoch": epoch, "observedEpoch": epoch }),
                );
            }
            return;
        }
        if behaviour.takes && self.forgets("snapshots", snapshot, patches) {
            return;
        }
        let of = &status["of"];
        let used = status["copies"].as_array().is_some_and(|c| !c.is_empty());
        let group = of["members"].as_array().cloned().unwrap_or_default();
        let cut = snapshot["spec"]["source"]["claimName"].is_string() || !group.is_empty();
        // All of its volumes are this host's, or it waits for those that are not.
        let here = |one: &Value| {
            let volume = self.seen.get("volumes", "", text(&one["volume"]));
            let status = &volume["status"];
            status["controller"]["nodeName"] == self.name.as_str() && status["askedToRelease"].is_null()
        };
        if status["ready"] != true && !group.iter().all(here) {
            return;
        }
        if snapshot["metadata"]["deletionTimestamp"].is_null() {
            let asked = json!({ "exists": "Unknown", "observedEpoch": epoch });
            if cut && status["exists"].is_null() {
                push(patches, "snapshots", snapshot, asked);
            } else if behaviour.takes && status["ready"] != true {
                for one in &group {
                    self.ledger.fill(&format!("snap-{name}"), text(&one["volume"]));
                }
                if cut && group.is_empty() {
                    self.ledger.fill(&format!("snap-{name}"), text(&of["volume"]));
                }
                let own = match behaviour.one_handle {
                    "" => format!("s-{name}"),
                    same => same.to_owned(),
                };
                let handle = snapshot["spec"]["source"]["handle"].as_str().unwrap_or(&own);
                let mut said = json!({ "exists": "Up", "handle": handle, "size": "1Gi", "ready": true,
                    "observedEpoch": epoch });
                let member = |one: &Value| {
                    let claim = text(&one["claimName"]);
                    json!({ "claimName": claim, "handle": format!("{own}/{claim}"), "size": "1Gi" })
                };
                if !group.is_empty() {
                    said["members"] = group.iter().map(member).collect();
                }
                push(patches, "snapshots", snapshot, said);
            }
        } else if cut
            && !used
            && behaviour.takes
            && crate::bench::condition(snapshot, "HandleShared")["status"] != "True"
            && status["handlesChecked"].as_array().is_some_and(|all| all.contains(&status["handle"]))
            && snapshot["spec"]["deletionPolicy"] != "Retain"
        {
            self.ledger.delete(&format!("snap-{name}"));
            push(patches, "snapshots", snapshot, json!({ "exists": "Down", "observedEpoch": epoch }));
        }
    }

    fn attach(&self, behaviour: &Behaviour, attachment: &Value, patches: &mut Vec<Patch>) {
        let (spec, status) = (&attachment["spec"], &attachment["status"]);
        if spec["host"]["nodeName"] != self.name.as_str() || spec["attachRequired"] != true {
            return;
        }
        let (volume, node) = (text(&spec["volume"]), text(&spec["nodeName"]));
        let leaving = !attachment["metadata"]["deletionTimestamp"].is_null();
        let said = |rung: &str| json!({ "controller": { "attached": rung, "epoch": spec["host"]["epoch"] } });
        let let_go = status["node"]["releasedUID"] == attachment["metadata"]["uid"] || spec["fenced"] == true;
        if !leaving && !used(spec) {
            return;
        }
        if !leaving {
            self.ledger.attach(volume, node, single(spec));
            push(patches, "volumeattachments", attachment, said("Up"));
        } else if let_go && behaviour.detaches {
            self.ledger.detach(volume, node);
            push(patches, "volumeattachments", attachment, said("Down"));
        }
    }

    fn allocation(&self, behaviour: &Behaviour, allocation: &Value, patches: &mut Vec<Patch>) {
        let (spec, status) = (&allocation["spec"], &allocation["status"]);
        let metadata = &allocation["metadata"];
        if status["nodeName"] != self.name.as_str() {
            self.clear(behaviour, text(&metadata["uid"]));
            return;
        }
        let down = self.down();
        let plugin = spec["tasks"].as_array().is_some_and(|t| t.iter().any(|t| t["csiPlugin"].is_object()));
        let over = matches!(text(&status["phase"]), "Failed" | "Complete");
        let evicted = status["evicted"] == true;
        let asked =
            !metadata["deletionTimestamp"].is_null() || spec["stop"] == true || down || over || evicted;
        let stop = asked && (!plugin || status["pluginReleased"] == true);
        let mut volumes = Vec::new();
        let mut up = true;
        for volume in spec["volumes"].as_array().into_iter().flatten() {
            let rung = self.publication(behaviour, allocation, volume, stop);
            up &= rung == "Up";
            volumes.push(json!({ "name": volume["name"], "published": rung }));
        }
        let gone = volumes.iter().all(|v| v["published"] == "Down");
        let has = |task: &Value| behaviour.runtimes.iter().any(|word| task["runtime"][*word].is_object());
        let runs = status["phase"] == "Running";
        let can = runs || spec["tasks"].as_array().is_none_or(|tasks| tasks.iter().all(has));
        let phase = match (stop, gone, up) {
            (true, _, _) if over => text(&status["phase"]),
            (true, true, _) => "Stopped",
            (true, false, _) => "Stopping",
            (false, _, true) if can => "Running",
            (false, _, true) => "Starting",
            (false, _, false) => "WaitingVolumes",
        };
        let state = if stop && gone {
            "Exited"
        } else if up && can {
            "Running"
        } else {
            "Pending"
        };
        let tasks: Vec<_> = spec["tasks"].as_array().into_iter().flatten().collect();
        let tasks: Vec<_> = tasks.iter().map(|t| json!({ "name": t["name"], "state": state })).collect();
        // It is told with the end of what lets it in, which is no more than a moment away.
        let lets_in =
            |a: &&Value| a["spec"]["allocations"].as_array().is_some_and(|a| a.contains(&metadata["uid"]));
        let attachments = self.seen.all("volumeattachments");
        let goes = |a: &Value| behaviour.by_itself && behaviour.releases && self.lets_go(&a["spec"]);
        if phase == "Stopped" && attachments.iter().filter(lets_in).any(goes) {
            return;
        }
        let mut said = json!({ "phase": phase, "volumes": volumes, "tasks": tasks });
        if evicted && phase == "Stopped" {
            let mut conditions = status["conditions"].clone();
            for one in conditions.as_array_mut().into_iter().flatten().filter(|c| c["type"] == "Ready") {
                one["reason"] = json!("Evicted");
            }
            said["conditions"] = conditions;
        }
        push(patches, "allocations", allocation, said);
    }

    /// Where one volume of an allocation stands after this step.
    fn publication(
        &self,
        behaviour: &Behaviour,
        allocation: &Value,
        volume: &Value,
        stop: bool,
    ) -> &'static str {
        let uid = text(&allocation["metadata"]["uid"]);
        let of_claim = |a: &&Value| {
            a["spec"]["claim"]["name"] == volume["claimName"]
                && a["spec"]["claim"]["namespace"] == allocation["metadata"]["namespace"]
                && a["spec"]["nodeName"] == self.name.as_str()
        };
        let attachments = self.seen.all("volumeattachments");
        let Some(attachment) = attachments.iter().find(of_claim) else { return "Down" };
        let spec = &attachment["spec"];
        let name = text(&spec["volume"]);
        let closed = !attachment["metadata"]["deletionTimestamp"].is_null();
        let listed = spec["allocations"].as_array().is_some_and(|a| a.iter().any(|a| a == uid));
        let attached =
            spec["attachRequired"] != true || attachment["status"]["controller"]["attached"] == "Up";
        if self.ledger.users(name, &self.name).contains(uid) {
            if (stop || closed) && behaviour.unpublishes {
                self.ledger.unpublish(name, &self.name, uid);
                return "Down";
            }
            return "Up";
        }
        if stop || closed || !listed || !attached {
            return "Down";
        }
        let ephemeral = spec["volumeContext"][EPHEMERAL] == "true";
        self.ledger.publish(name, &self.name, uid, (single(spec), ephemeral));
        "Up"
    }

    /// An allocation that is not ours any more, though something of it may be here.
    fn clear(&self, behaviour: &Behaviour, uid: &str) {
        for attachment in self.seen.all("volumeattachments") {
            let name = text(&attachment["spec"]["volume"]);
            if behaviour.unpublishes && self.ledger.users(name, &self.name).contains(uid) {
                self.ledger.unpublish(name, &self.name, uid);
            }
        }
    }

    fn release(&self, behaviour: &Behaviour, attachment: &Value, patches: &mut Vec<Patch>) {
        let (spec, uid) = (&attachment["spec"], &attachment["metadata"]["uid"]);
        if spec["nodeName"] != self.name.as_str() {
            return;
        }
        let volume = text(&spec["volume"]);
        let asked = !attachment["metadata"]["deletionTimestamp"].is_null();
        let goes = asked || behaviour.by_itself && self.lets_go(spec);
        if !goes {
            if used(spec) {
                let mut said = json!({ "node": { "staged": "Up" } });
                if let Some(bytes) = spec["expandBytes"].as_i64().filter(|_| behaviour.node_expands) {
                    said["node"]["expandedBytes"] = json!(bytes);
                }
                push(patches, "volumeattachments", attachment, said);
            }
        } else if behaviour.releases && self.ledger.users(volume, &self.name).is_empty() {
            let said = json!({ "node": { "staged": "Down", "closed": true, "releasedUID": uid } });
            push(patches, "volumeattachments", attachment, said);
        }
    }

    /// Whether all who were let in are being deleted, where nobody else can be.
    fn lets_go(&self, spec: &Value) -> bool {
        let all = self.seen.all("allocations");
        let ends = |uid: &Value| {
            let of_it = |a: &&Value| a["metadata"]["uid"] == *uid;
            all.iter().find(of_it).is_some_and(|a| !a["metadata"]["deletionTimestamp"].is_null())
        };
        let alone = ["SingleNodeWriter", "SingleNodeSingleWriter", "SingleNodeReaderOnly"]
            .contains(&text(&spec["capability"]["accessMode"]));
        used(spec) && alone && spec["allocations"].as_array().into_iter().flatten().all(ends)
    }

    fn instance(&self, behaviour: &Behaviour, instance: &Value, patches: &mut Vec<Patch>) {
        if instance["spec"]["nodeName"] != self.name.as_str() {
            return;
        }
        let of = &instance["spec"]["allocation"];
        let allocation = self.seen.get("allocations", text(&of["namespace"]), text(&of["name"]));
        let bad = allocation["spec"]["tasks"][0]["env"].get(behaviour.poison).is_some();
        let driver = allocation["spec"]["tasks"][0]["env"]["DRIVER"].as_str().unwrap_or(behaviour.driver);
        let of_volumes =
            self.seen.get("plugins", "", text(&instance["spec"]["plugin"]))["status"]["driverName"].clone();
        let other = of_volumes.as_str().is_some_and(|of_volumes| of_volumes != driver);
        let runs = allocation["status"]["phase"] == "Running" && behaviour.healthy && !bad && !other;
        let ready = json!({ "type": "Ready", "status": if runs { "True" } else { "False" },
            "reason": if other { "OtherDriver" } else { behaviour.unready }, "message": "as told" });
        let shaky = allocation["spec"]["tasks"][0]["env"].get(behaviour.shaky).is_some();
        let unsteady = behaviour.unsteady || shaky || bad;
        // Nothing is said of one that never was.
        let doubted = unsteady || !crate::bench::condition(instance, "Steady").is_null();
        let steady = json!({ "type": "Steady", "status": if unsteady { "False" } else { "True" },
            "reason": "as told", "message": "as told" });
        let conditions: Vec<_> =
            [Some(ready), Some(steady).filter(|_| doubted)].into_iter().flatten().collect();
        let usual = format!("id-{}", self.name);
        let node_id = if behaviour.node_id.is_empty() { &usual } else { &behaviour.node_id };
        let said = json!({ "nodeId": node_id, "maxVolumes": behaviour.max_volumes,
            "topology": { "dir/node": self.name }, "capabilities": behaviour.capabilities,
            "provider": { "name": driver, "version": "1" }, "conditions": conditions,
            "rooms": rooms(behaviour, instance) });
        push(patches, "plugininstances", instance, said);
    }

    fn down(&self) -> bool {
        self.seen.get("nodes", "", &self.name)["metadata"]["annotations"]
            .get("wharfline.dev/stopped")
            .is_some()
    }
}

/// Whether anybody was let into the attachment.
fn used(spec: &Value) -> bool {
    spec["allocations"].as_array().is_some_and(|a| !a.is_empty())
}

fn single(spec: &Value) -> bool {
    text(&spec["capability"]["accessMode"]).starts_with("SingleNode")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What is told of the room that is asked for; nothing where nothing is.
fn rooms(behaviour: &Behaviour, instance: &Value) -> Value {
    let answer = |question: &Value| {
        let at = text(&question["segments"]["dir/node"]);
        let room = behaviour.rooms.iter().find(|(node, _)| *node == at).map_or(1 << 50, |(_, bytes)| *bytes);
        json!({ "class": question["class"], "segments": question["segments"], "availableBytes": room })
    };
    let asked = instance["spec"]["rooms"].as_array();
    asked.map_or(Value::Null, |questions| questions.iter().map(answer).collect())
}

/// Adds a patch if it would change what is seen.
fn push(patches: &mut Vec<Patch>, plural: &str, object: &Value, said: Value) {
    if object.is_null() {
        return;
    }
    let mut after = object["status"].clone();
    json_patch::merge(&mut after, &said);
    if after != object["status"] {
        patches.push((path_of(&key_of(plural, object)), said));
    }
}

/// What its plugin calls a volume.
fn called(behaviour: &Behaviour, volume: &Value) -> String {
    let told = volume["status"]["handle"].as_str().filter(|handle| !handle.is_empty());
    let existing = volume["spec"]["source"]["existing"]["handle"].as_str();
    let own = match behaviour.one_volume {
        "" => format!("h-{}", text(&volume["metadata"]["name"])),
        same => same.to_owned(),
    };
    existing.or(told).map_or(own, str::to_owned)
}

/// A volume has the attributes that it was made with, until it is given others.
fn change(behaviour: &Behaviour, volume: &Value, said: &mut Value) {
    let can = behaviour.capabilities.contains(&"controller/MODIFY_VOLUME");
    let wanted = &volume["spec"]["attributes"];
    let has = &volume["status"]["modification"]["has"];
    let made_with = &volume["spec"]["source"]["create"]["attributes"];
    if has.is_null() && made_with.is_object() {
        said["modification"] = json!({ "has": made_with });
    } else if can && behaviour.modifies && wanted.is_object() && wanted != has {
        let old =
            has["parameters"].as_object().into_iter().flatten().map(|(key, _)| (key.clone(), Value::Null));
        let mut parameters: serde_json::Map<_, _> = old.collect();
        parameters.extend(wanted["parameters"].as_object().cloned().unwrap_or_default());
        said["modification"] =
            json!({ "has": { "className": wanted["className"], "parameters": parameters } });
    }
}

/// What is made has the size asked for; what is expanded, the size that the nodes go on with.
fn grow(behaviour: &Behaviour, volume: &Value, said: &mut Value) {
    let can = behaviour.capabilities.contains(&"controller/EXPAND_VOLUME");
    let source = &volume["spec"]["source"];
    let there = wharfline::api::quantity::bytes(text(&source["existing"]["capacity"])).unwrap_or(0);
    let made = source["create"]["requiredBytes"].as_i64().unwrap_or(there);
    let wanted = volume["spec"]["size"]["requiredBytes"].as_i64().unwrap_or(0);
    if !can || made == 0 {
        return;
    }
    if wanted > made && behaviour.expands {
        said["capacity"] = json!(wanted.to_string());
        said["expansion"] = json!({ "nodeBytes": wanted });
    } else if volume["status"]["capacity"].is_null() {
        said["capacity"] = json!(made.to_string());
    }
}
