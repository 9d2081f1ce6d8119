//! Preparations over a machine that answers when the test says so.
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::{Notify, watch};

use super::*;
use crate::sys::containers::{Layout, NoDevice};
use crate::sys::image::{Config, Platform};
use crate::sys::kernel::DeviceId;

/// Images are unpacked when [`Fake::unpack`] says so.
#[derive(Debug)]
struct Fake {
    calls: Mutex<Vec<String>>,
    unpacked: watch::Sender<u32>,
    lack: Mutex<Option<Lack>>,
    /// What is at the path of the image.
    there: Mutex<bool>,
    /// Reading it ends with a panic.
    breaks: Mutex<bool>,
    removed: Notify,
}

fn equipment() -> Equipment {
    Equipment {
        runc: "/usr/sbin/runc".into(),
        capabilities: BTreeSet::from([0]),
        hostname: "here".into(),
        cgroups: Layout::Hybrid,
        resolv_conf: true,
        hosts: true,
    }
}

pub(in super::super) fn image(config: Config) -> Arc<Image> {
    Arc::new(Image::new(Digest::of(b"id"), config, vec!["/D/images/layers/1".into()], ()))
}

pub(in super::super) fn config() -> Config {
    Config {
        platform: Platform::here(),
        entrypoint: vec!["/entry".into()],
        cmd: Vec::new(),
        env: Vec::new(),
        working_dir: "/".into(),
        user: None,
        stop_signal: None,
        diff_ids: Vec::new(),
    }
}

pub(in super::super) fn made(oci: OciRuntime, config: Config) -> Made {
    Made { oci, devices: Vec::new(), equipment: equipment(), image: image(config), note: None }
}

impl Fake {
    fn call(&self, what: String) {
        self.calls.lock().unwrap().push(what);
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// Lets this many images in all be unpacked.
    fn unpack(&self, count: u32) {
        self.unpacked.send_replace(count);
    }
}

#[async_trait]
impl Containers for Fake {
    async fn check(&self) -> Result<Equipment, Lack> {
        self.call("check".into());
        match self.lack.lock().unwrap().clone() {
            Some(lack) => Err(lack),
            None => Ok(equipment()),
        }
    }

    async fn image(&self, archive: &Path, reference: Option<&str>) -> Result<Arc<Image>, ImageError> {
        self.call(format!("image {} {}", archive.display(), reference.unwrap_or_default()));
        self.unpacked.subscribe().wait_for(|count| *count > 0).await.unwrap();
        self.unpacked.send_modify(|count| *count -= 1);
        assert!(!std::mem::take(&mut *self.breaks.lock().unwrap()), "a number that cannot be");
        if *self.there.lock().unwrap() {
            Ok(image(config()))
        } else {
            Err(ImageError::NotFound { image: archive.to_owned() })
        }
    }

    async fn kept(&self, id: &Digest) -> Option<Arc<Image>> {
        self.call(format!("kept {id}"));
        (*id == Digest::of(b"id")).then(|| image(config()))
    }

    async fn remove_unused(&self, used: BTreeSet<PathBuf>) -> Result<usize, ImageError> {
        self.call(format!("remove all but {used:?}"));
        self.removed.notify_one();
        Ok(1)
    }

    async fn resolve(&self, path: &Path, allowed: &[PathBuf]) -> Result<PathBuf, Astray> {
        if allowed.iter().any(|root| path.starts_with(root)) {
            return Ok(Path::new("/real").join(path.strip_prefix("/").unwrap()));
        }
        Err(Astray::Outside { path: path.to_owned(), allowed: allowed.to_vec() })
    }

    async fn device(&self, path: &Path) -> Result<DeviceNode, NoDevice> {
        match path.to_str() {
            Some("/dev/fuse") => {
                let id = DeviceId { major: 10, minor: 229 };
                Ok(DeviceNode { block: false, id, mode: 0o666, owner: (0, 6) })
            }
            _ => Err(NoDevice::Other { path: path.to_owned() }),
        }
    }
}

struct Bench {
    machine: Arc<Fake>,
    preparations: Preparations,
    place: Place,
    woken: Arc<Notify>,
}

fn grants(trust: Trust) -> Grants {
    Grants { image_dirs: vec!["/images".into()], bind_paths: vec!["/lib".into()], trust }
}

impl Bench {
    fn new(trust: Trust) -> Self {
        let machine = Arc::new(Fake {
            calls: Mutex::default(),
            unpacked: watch::Sender::new(0),
            lack: Mutex::default(),
            there: Mutex::new(true),
            breaks: Mutex::new(false),
            removed: Notify::new(),
        });
        Self {
            preparations: Preparations::new(machine.clone(), grants(trust)),
            machine,
            place: Place::new(Path::new("/D"), "u1", "main"),
            woken: Arc::default(),
        }
    }

    fn begin(&self, oci: serde_json::Value) {
        self.begin_after(oci, None);
    }

    /// It was started once from an image of this content.
    fn begin_after(&self, oci: serde_json::Value, former: Option<&[u8]>) {
        let woken = Arc::clone(&self.woken);
        let wake: Wake = Arc::new(move || woken.notify_one());
        let (oci, former) = (serde_json::from_value(oci).unwrap(), former.map(Digest::of));
        self.preparations.begin(&self.place, Wanting { oci, whose: Whose::Workload, former, by: None }, wake);
    }

    fn readiness(&self) -> Readiness {
        self.preparations.readiness(&self.place, None, Whose::Workload)
    }

    /// Why it failed.
    async fn refused(&self, oci: serde_json::Value) -> (Obstacle, String) {
        self.begin(oci);
        self.woken.notified().await;
        self.preparations.outcome(&self.place).unwrap().unwrap_err()
    }
}

fn plain() -> serde_json::Value {
    json!({ "archive": "/images/a.tar", "image": "app:1" })
}

async fn until_called(machine: &Fake, what: &str) {
    while !machine.calls.lock().unwrap().iter().any(|call| call.starts_with(what)) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_image_and_it_serves_one_start() {
    let bench = Bench::new(Trust::Confined);
    assert_eq!(bench.readiness(), Readiness::Unprepared);
    bench.begin(plain());
    assert_eq!(bench.readiness(), Readiness::Preparing);
    until_called(&bench.machine, "image").await;
    bench.begin(plain());
    assert_eq!((bench.readiness(), bench.preparations.outcome(&bench.place)), (Readiness::Preparing, None));
    assert!(bench.preparations.take(&bench.place).is_none(), "not before it is there");

    bench.machine.unpack(1);
    bench.woken.notified().await;
    assert_eq!(bench.machine.calls(), ["check", "image /real/images/a.tar app:1"], "asked twice, done once");
    assert_eq!(bench.readiness(), Readiness::Ready);
    assert_eq!(bench.preparations.outcome(&bench.place), Some(Ok(None)));
    assert_eq!(bench.preparations.outcome(&bench.place), None, "told once");
    assert_eq!(bench.preparations.image(&bench.place), None, "nothing was started from it");

    let image = bench.preparations.take(&bench.place).unwrap().image;
    assert!(bench.preparations.take(&bench.place).is_none());
    assert_eq!(bench.readiness(), Readiness::Unprepared, "the next start looks again");
    assert_eq!(bench.preparations.image(&bench.place), Some(Digest::of(b"id").to_string()));
    // The image is held while the next one is prepared.
    bench.begin(plain());
    assert!(Arc::strong_count(&image) > 1);
    bench.preparations.collect(BTreeSet::new());
    assert!(!bench.preparations.owes());
    bench.preparations.let_go("u1", false);
    assert!(bench.preparations.owes());
    assert_eq!(Arc::strong_count(&image), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_once_when_nobody_wants_its_end() {
    let bench = Bench::new(Trust::Confined);
    bench.begin(plain());
    until_called(&bench.machine, "image").await;
    bench.preparations.let_go("other", false);
    assert_eq!(bench.readiness(), Readiness::Preparing);
    bench.preparations.let_go("u1", false);
    assert_eq!(bench.readiness(), Readiness::Unprepared);
    // The next one does not get what was made for the former.
    bench.begin(plain());
    bench.machine.unpack(1);
    bench.woken.notified().await;
    assert_eq!(bench.readiness(), Readiness::Ready);
    tokio::time::timeout(Duration::from_secs(1), bench.woken.notified()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn what_failed_says_why_and_may_be_tried_again() {
    let bench = Bench::new(Trust::Confined);
    *bench.machine.lack.lock().unwrap() = Some(Lack::Overlay);
    let (obstacle, why) = bench.refused(plain()).await;
    assert_eq!((obstacle, why.contains("overlay")), (Obstacle::Missing, true), "{why}");
    assert_eq!(bench.preparations.lack(), Some(Lack::Overlay));
    assert_eq!(bench.machine.calls(), ["check"]);
    *bench.machine.lack.lock().unwrap() = None;

    *bench.machine.there.lock().unwrap() = false;
    bench.machine.unpack(2);
    let (obstacle, why) = bench.refused(plain()).await;
    assert_eq!((obstacle, why.contains("put the image there")), (Obstacle::Image, true), "{why}");
    assert_eq!(bench.readiness(), Readiness::Failed(obstacle, why));
    assert_eq!(bench.preparations.lack(), None);

    *bench.machine.there.lock().unwrap() = true;
    bench.begin(plain());
    bench.woken.notified().await;
    assert_eq!(bench.readiness(), Readiness::Ready);
}

/// Else the reason would change with each try of one that is tried again and again.
#[tokio::test(start_paused = true)]
async fn what_failed_last_is_known_while_it_is_tried_again() {
    let bench = Bench::new(Trust::Confined);
    *bench.machine.there.lock().unwrap() = false;
    bench.machine.unpack(1);
    let (obstacle, why) = bench.refused(plain()).await;
    bench.begin(plain());
    until_called(&bench.machine, "image").await;
    assert_eq!(bench.readiness(), Readiness::Retrying(obstacle, why));
    *bench.machine.there.lock().unwrap() = true;
    bench.machine.unpack(1);
    bench.woken.notified().await;
    assert_eq!(bench.readiness(), Readiness::Ready);
    // Of what was made nothing of that is left.
    bench.preparations.take(&bench.place).unwrap();
    bench.begin(plain());
    assert_eq!(bench.readiness(), Readiness::Preparing);
}

#[tokio::test(start_paused = true)]
async fn without_its_archive_it_is_started_from_what_it_ran_from() {
    let bench = Bench::new(Trust::Confined);
    *bench.machine.there.lock().unwrap() = false;
    bench.machine.unpack(4);
    // Never started; or its layers are not there any more.
    for former in [None, Some(b"other".as_slice())] {
        bench.begin_after(plain(), former);
        bench.woken.notified().await;
        let (obstacle, why) = bench.preparations.outcome(&bench.place).unwrap().unwrap_err();
        assert_eq!((obstacle, why.contains("put the image there")), (Obstacle::Image, true), "{why}");
    }
    bench.begin_after(plain(), Some(b"id"));
    bench.woken.notified().await;
    let note = bench.preparations.outcome(&bench.place).unwrap().unwrap().unwrap();
    let id = Digest::of(b"id").to_string();
    assert_eq!(note, format!("there is no /images/a.tar any more: its last image, {id}, is unpacked still"));
    assert_eq!(bench.preparations.next_image(&bench.place), Some(id));
    bench.preparations.take(&bench.place).unwrap();
    assert_eq!(bench.preparations.next_image(&bench.place), None);
    // One that is there counts, be it another one by now.
    *bench.machine.there.lock().unwrap() = true;
    bench.machine.calls();
    bench.begin_after(plain(), Some(b"other"));
    bench.woken.notified().await;
    assert_eq!(bench.preparations.outcome(&bench.place), Some(Ok(None)));
    assert!(!bench.machine.calls().iter().any(|call| call.starts_with("kept")));
}

/// Nobody else would end the wait.
#[tokio::test(start_paused = true)]
async fn a_panic_is_told_and_tried_again() {
    let bench = Bench::new(Trust::Confined);
    *bench.machine.breaks.lock().unwrap() = true;
    bench.machine.unpack(2);
    let (obstacle, why) = bench.refused(plain()).await;
    assert_eq!(obstacle, Obstacle::Image);
    assert_eq!(why, "a fault of wharfline's own broke off reading the image: a number that cannot be");
    bench.begin(plain());
    bench.woken.notified().await;
    assert_eq!(bench.readiness(), Readiness::Ready);
}

#[tokio::test(start_paused = true)]
async fn what_the_node_does_not_allow_is_refused_before_anything_is_read() {
    let bench = Bench::new(Trust::Confined);
    for (oci, named, at_once) in [
        (json!({ "archive": "/images/a", "privileged": true }), "privileged", true),
        (json!({ "archive": "/images/a", "devices": ["/dev/fuse"] }), "devices", true),
        (json!({ "archive": "/etc/shadow" }), "archive: /etc/shadow is not beneath /images", false),
        (
            json!({ "archive": "/images/a", "hostPaths": [{ "path": "/etc", "mountPath": "/e" }] }),
            "hostPaths[0].path: /etc is not beneath /lib",
            false,
        ),
    ] {
        // Without a look at the machine, and so without another one.
        let asked: OciRuntime = serde_json::from_value(oci.clone()).unwrap();
        let known = bench.preparations.readiness(&bench.place, Some(&asked), Whose::Workload);
        match known {
            Readiness::Unusable(Obstacle::NotAllowed, why) => {
                assert!(at_once && why.contains(named), "{why}");
            }
            other => assert!(!at_once, "{other:?}"),
        }
        let (obstacle, why) = bench.refused(oci).await;
        assert_eq!((obstacle, why.contains(named)), (Obstacle::NotAllowed, true), "{why}");
        assert!(!bench.machine.calls().iter().any(|call| call.starts_with("image")), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn paths_and_devices_are_those_of_the_machine() {
    let bench = Bench::new(Trust::Privileged);
    bench.machine.unpack(1);
    let paths = json!([{ "path": "/lib/modules", "mountPath": "/m" }]);
    bench.begin(json!({ "archive": "/images/a", "devices": ["/dev/fuse"], "hostPaths": paths }));
    bench.woken.notified().await;
    let made = bench.preparations.take(&bench.place).unwrap();
    assert_eq!(made.oci.host_paths[0].path, "/real/lib/modules");
    let node = &made.devices[0];
    assert_eq!(
        (node.path.as_str(), node.r#type.as_str(), node.major, node.minor),
        ("/dev/fuse", "c", 10, 229)
    );
    assert_eq!((node.file_mode, node.uid, node.gid), (0o666, 0, 6));
    let (obstacle, why) = bench.refused(json!({ "archive": "/images/a", "devices": ["/dev/x"] })).await;
    assert_eq!((obstacle, why.as_str()), (Obstacle::Image, "devices: /dev/x is no device"));
}

#[tokio::test(start_paused = true)]
async fn layers_go_beside_whoever_asks_and_the_end_waits_for_nothing() {
    let bench = Bench::new(Trust::Confined);
    bench.preparations.collect(BTreeSet::from(["/D/images/layers/1".into()]));
    bench.machine.removed.notified().await;
    assert_eq!(bench.machine.calls(), [r#"remove all but {"/D/images/layers/1"}"#]);
    bench.begin(plain());
    until_called(&bench.machine, "image").await;
    tokio::time::timeout(Duration::from_secs(1), bench.preparations.join()).await.unwrap();
}
