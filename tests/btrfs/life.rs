//! Subvolumes as volumes: their limit, how it grows, snapshots, clones, and what is told of them.
use std::fs;
use std::io::Write as _;
use std::path::Path;

use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_usage::Unit;

use crate::rig::{self, Backend, MIB, create, from_snapshot, from_volume, refused};

/// EDQUOT
const OVER_QUOTA: Option<i32> = Some(122);

/// Writes so many bytes to a file, and has them counted. Random ones: nothing makes less of them.
fn fill(path: &Path, mib: usize) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    let mut bytes = vec![0; 1 << 20];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    for _ in 0..mib {
        file.write_all(&bytes)?;
    }
    file.sync_all()
}

#[tokio::test]
async fn a_size_is_enforced_and_grows_while_it_is_used() {
    let backend = Backend::new();
    let driver = backend.start();
    let made = driver.create(create("web", 32 * MIB)).await.unwrap();
    assert_eq!(made.capacity_bytes, 32 * MIB);
    assert_eq!(driver.create(create("web", 32 * MIB)).await.unwrap(), made);
    let (id, target) = (made.volume_id.as_str(), backend.target("web"));
    for _ in 0..2 {
        driver.publish(id, &target).await.unwrap();
    }
    fill(&target.join("first"), 20).unwrap();
    assert_eq!(fill(&target.join("second"), 20).unwrap_err().raw_os_error(), OVER_QUOTA);
    fs::remove_file(target.join("second")).unwrap();
    for _ in 0..2 {
        assert_eq!(driver.expand(id, 64 * MIB).await.unwrap(), 64 * MIB);
    }
    fill(&target.join("second"), 20).unwrap();
    backend.sync();
    let stats = driver.stats(id, &target).await.unwrap();
    let [bytes] = stats.as_slice() else { panic!("{stats:?}") };
    assert_eq!((bytes.total, bytes.unit()), (64 * MIB, Unit::Bytes));
    assert!((40 * MIB..42 * MIB).contains(&bytes.used), "{bytes:?}");
    assert_eq!(bytes.available, bytes.total - bytes.used);

    // All of it is there again after a kill, the limit too.
    driver.kill();
    let driver = backend.start();
    driver.publish(id, &target).await.unwrap();
    assert_eq!(fill(&target.join("third"), 40).unwrap_err().raw_os_error(), OVER_QUOTA);
    assert_eq!(driver.expand(id, MIB).await.unwrap(), 64 * MIB, "it never shrinks");
    assert_eq!(refused(driver.delete(id).await, "mounted at"), Code::FailedPrecondition);
    driver.unpublish(id, &target).await.unwrap();
    for _ in 0..2 {
        driver.delete(id).await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn a_snapshot_is_of_one_moment_and_a_volume_from_it_is_its_own() {
    let backend = Backend::new();
    let driver = backend.start();
    let id = driver.create(create("web", 64 * MIB)).await.unwrap().volume_id;
    let target = backend.target("web");
    driver.publish(&id, &target).await.unwrap();
    fill(&target.join("large"), 30).unwrap();
    fs::write(target.join("file"), "at the snapshot").unwrap();
    let snapshot = driver.snapshot(&id, "snap").await.unwrap();
    assert_eq!((snapshot.size_bytes, snapshot.ready_to_use), (64 * MIB, true));
    assert_eq!(driver.snapshot(&id, "snap").await.unwrap(), snapshot);
    fs::write(target.join("file"), "later").unwrap();
    let kept = backend.data_dir().join("snapshots").join(&snapshot.snapshot_id).join("data");
    assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "at the snapshot");
    assert_eq!(fs::write(kept.join("file"), "x").unwrap_err().raw_os_error(), Some(30), "EROFS");

    let from = |name, bytes| from_snapshot(&snapshot.snapshot_id, create(name, bytes));
    let same = driver.create(from("same", 0)).await.unwrap();
    assert_eq!(same.capacity_bytes, 64 * MIB);
    let larger = driver.create(from("larger", 128 * MIB)).await.unwrap();
    let clone = driver.create(from_volume(&id, create("clone", 0))).await.unwrap();
    for (volume, name, text) in [
        (&same, "same", "at the snapshot"),
        (&larger, "larger", "at the snapshot"),
        (&clone, "clone", "later"),
    ] {
        let target = backend.target(name);
        driver.publish(&volume.volume_id, &target).await.unwrap();
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), text, "{name}");
        // What it shares with others counts in full, for each.
        let filled = fill(&target.join("more"), 50);
        if name == "larger" {
            filled.unwrap();
        } else {
            assert_eq!(filled.unwrap_err().raw_os_error(), OVER_QUOTA, "{name}");
        }
        driver.unpublish(&volume.volume_id, &target).await.unwrap();
    }
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "later");
    driver.unpublish(&id, &target).await.unwrap();
    driver.delete(&id).await.unwrap();
    assert_eq!(
        driver.snapshots().await,
        std::slice::from_ref(&snapshot.snapshot_id),
        "it outlives its volume"
    );
    let again = driver.create(from("again", 0)).await.unwrap();
    for _ in 0..2 {
        driver.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    }
    for volume in [same, larger, clone, again] {
        driver.delete(&volume.volume_id).await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn subvolumes_that_a_user_made_go_with_the_volume() {
    let backend = Backend::new();
    let driver = backend.start();
    let id = driver.create(create("web", 0)).await.unwrap().volume_id;
    // With the driver's own means: a volume of another driver whose data directory is in this one.
    let inner = |at: &Path| {
        let server = wharfline::drivers::btrfs::Server::bind(&wharfline::drivers::btrfs::Settings {
            endpoint: format!("unix://{}", backend.path("inner.sock").display()),
            node_id: "inner".into(),
            data_dir: at.to_owned(),
            mode: wharfline::drivers::btrfs::Mode::All,
        });
        server.unwrap()
    };
    let make = async |at: &Path| {
        let server = inner(at);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        let socket = backend.path("inner.sock");
        let connector = tower::service_fn(move |_: http::Uri| {
            let socket = socket.clone();
            async move {
                let stream = tokio::net::UnixStream::connect(socket).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
            }
        });
        let channel = tonic::transport::Endpoint::from_static("http://localhost");
        let channel = channel.connect_with_connector_lazy(connector);
        let mut client = proto::controller_client::ControllerClient::new(channel);
        let made = client.create_volume(create("inner", 0)).await.unwrap().into_inner().volume.unwrap();
        drop(client);
        let _ = stop.send(());
        running.await.unwrap().unwrap();
        at.join("volumes").join(made.volume_id).join("data")
    };
    let first = make(&backend.data(&id).join("D")).await;
    let second = make(&first.join("D")).await;
    fs::write(second.join("file"), "deep").unwrap();
    let snapshot = driver.snapshot(&id, "snap").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn what_is_promised_is_never_more_than_what_is_free() {
    let backend = Backend::new();
    let driver = backend.start();
    let available = async || {
        let answer = driver.controller().get_capacity(proto::GetCapacityRequest::default()).await;
        answer.unwrap().into_inner().available_capacity
    };
    let before = available().await;
    let id = driver.create(create("a", 512 * MIB)).await.unwrap().volume_id;
    let after = available().await;
    assert!((before - 516 * MIB..=before - 508 * MIB).contains(&after), "{before} {after}");
    // What it has written is not promised twice.
    fill(&backend.data(&id).join("file"), 100).unwrap();
    backend.sync();
    let written = available().await;
    assert!((after - 64 * MIB..=after + 4 * MIB).contains(&written), "{after} {written}");
    let second = driver.create(create("b", 2048 * MIB - 1)).await;
    assert_eq!(refused(second, "promised"), Code::ResourceExhausted);
    assert_eq!(refused(driver.create(create("b", 4096 * MIB)).await, "in all"), Code::OutOfRange);
    assert_eq!(refused(driver.expand(&id, 2000 * MIB).await, "promised"), Code::ResourceExhausted);
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn what_it_says_of_itself() {
    let backend = Backend::new();
    let driver = backend.start();
    let info = driver.identity().get_plugin_info(proto::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, wharfline::drivers::btrfs::NAME);
    let node = driver.node().node_get_info(proto::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(node.node_id, rig::NODE);
    let key = wharfline::drivers::btrfs::TOPOLOGY_KEY.to_owned();
    assert_eq!(node.accessible_topology.unwrap().segments, [(key, rig::NODE.to_owned())].into());
    driver.stop().await;
    backend.assert_nothing_left();
}
