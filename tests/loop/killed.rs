//! The driver killed before and after everything it does: called again, it goes on; told to take down, it leaves nothing.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use tonic::Status;
use wharfline::csi::proto::VolumeCapability;

use crate::rig::{self, Access, BTRFS, Backend, Driver, How, MIB, block, ext4, mount, stage};

/// What the caller has been answered so far.
#[derive(Default)]
struct Seen {
    volume: Option<String>,
    context: Option<rig::Context>,
}

/// The whole way up, then down, until a call is not answered. Each step that was answered is made again the next time, as
/// an orchestrator may.
async fn walk(
    backend: &Backend,
    driver: &Driver,
    capability: &VolumeCapability,
    seen: &mut Seen,
) -> Result<(), Status> {
    let id = driver.create(rig::create("web", 16 * MIB, capability)).await?.volume_id;
    seen.volume = Some(id.clone());
    let context = driver.attach(&id, "node-a", capability).await?;
    seen.context = Some(context.clone());
    let (staging, target) = (backend.staging("web"), backend.target("web"));
    let staged = stage(&id, &context, &staging, capability);
    driver.stage(staged.clone()).await?;
    driver.publish(rig::publish(&staged, &target)).await?;
    down(backend, driver, &id).await
}

async fn down(backend: &Backend, driver: &Driver, id: &str) -> Result<(), Status> {
    driver.unpublish(id, &backend.target("web")).await?;
    driver.try_unstaged(id, &backend.staging("web")).await?;
    driver.detach(id, "node-a").await?;
    driver.delete(id).await
}

/// Every effect of a walk without a fault, with how often it came.
async fn effects(capability: &VolumeCapability) -> BTreeMap<String, u32> {
    let backend = Backend::new();
    let file = backend.path("effects");
    let variables = vec![("WHARFLINE_EFFECTS", OsString::from(&file))];
    let driver = backend.start("node-a", How { variables, ..Default::default() });
    walk(&backend, &driver, capability, &mut Seen::default()).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

async fn killed_everywhere(capability: VolumeCapability, least: usize) {
    let effects = effects(&capability).await;
    assert!(effects.len() >= least, "{effects:?}");
    for (effect, count) in effects {
        for nth in 1..=count {
            let at = format!("{effect}#{nth}");
            for go_on in [true, false] {
                let backend = Backend::new();
                let variables = vec![("WHARFLINE_KILL_AT", OsString::from(&at))];
                let mut driver = backend.start("node-a", How { variables, ..Default::default() });
                let mut seen = Seen::default();
                let result = walk(&backend, &driver, &capability, &mut seen).await;
                assert!(result.is_err(), "{at} never came");
                driver.killed();
                let driver = backend.all();
                if go_on {
                    walk(&backend, &driver, &capability, &mut seen).await.unwrap_or_else(|status| {
                        panic!("killed at {at}, and then: {status:?}");
                    });
                } else {
                    // One that the caller was not told of is there, or is not, and then in nobody's list.
                    let listed = driver.list().await.into_iter().map(|(id, _)| id);
                    for id in seen.volume.into_iter().chain(listed).collect::<std::collections::BTreeSet<_>>()
                    {
                        down(&backend, &driver, &id).await.unwrap_or_else(|status| {
                            panic!("killed at {at}, and then not taken down: {status:?}");
                        });
                    }
                }
                driver.stop().await;
                backend.assert_nothing_left();
            }
        }
    }
}

#[tokio::test]
async fn with_a_file_system() {
    killed_everywhere(ext4(), 13).await;
}

#[tokio::test]
async fn with_a_raw_device() {
    killed_everywhere(block(Access::SingleNodeWriter), 10).await;
}

/// A volume in use that grows, a snapshot of it, a larger volume from that, a clone; then all of it removed.
async fn walk_of_copies(backend: &Backend, driver: &Driver) -> Result<(), Status> {
    let btrfs = mount(Access::SingleNodeWriter, "btrfs", &[]);
    let id = driver.create(rig::create("web", BTRFS, &btrfs)).await?.volume_id;
    let context = driver.attach(&id, "node-a", &btrfs).await?;
    let (staging, target) = (backend.staging("web"), backend.target("web"));
    let staged = stage(&id, &context, &staging, &btrfs);
    driver.stage(staged.clone()).await?;
    driver.publish(rig::publish(&staged, &target)).await?;
    fs::write(target.join("file"), "x").unwrap();
    driver.expand(&id, 2 * BTRFS).await?;
    driver.expand_here(&id, &target, 0).await?;
    let snapshot = driver.snapshot(&id, "snap").await?.snapshot_id;
    // Nobody waits any more.
    fs::write(target.join("file"), "y").unwrap();
    let from = |source, name, bytes| rig::from(source, rig::create(name, bytes, &btrfs));
    driver.create(from(rig::of_snapshot(&snapshot), "restored", 3 * BTRFS)).await?;
    driver.create(from(rig::of_volume(&id), "clone", 0)).await?;
    down_of_copies(backend, driver).await
}

/// Removes what is listed. What is in no list must not be there.
async fn down_of_copies(backend: &Backend, driver: &Driver) -> Result<(), Status> {
    for (id, nodes) in driver.list().await {
        if !nodes.is_empty() {
            driver.unpublish(&id, &backend.target("web")).await?;
            driver.try_unstaged(&id, &backend.staging("web")).await?;
            driver.detach(&id, "node-a").await?;
        }
        driver.delete(&id).await?;
    }
    for id in driver.snapshots().await {
        driver.delete_snapshot(&id).await?;
    }
    Ok(())
}

#[tokio::test]
async fn with_copies() {
    let backend = Backend::new();
    let file = backend.path("effects");
    let variables = vec![("WHARFLINE_EFFECTS", OsString::from(&file))];
    let driver = backend.start("node-a", How { variables, ..Default::default() });
    walk_of_copies(&backend, &driver).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
    let mut effects = BTreeMap::<_, u32>::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        *effects.entry(line.to_owned()).or_default() += 1;
    }
    for needed in
        ["csi copy: frozen", "csi expand: recorded", "csi node expand: device", "csi make snapshot: whole"]
    {
        assert!(effects.contains_key(needed), "{needed} is not in {effects:?}");
    }
    // The others are in the walks above.
    effects.retain(|effect, _| {
        ["copy", "expand", "make", "image", "delete"].iter().any(|of| effect.contains(of))
    });
    for (effect, count) in effects {
        for nth in 1..=count {
            for go_on in [true, false] {
                let at = format!("{effect}#{nth}");
                let variables = vec![("WHARFLINE_KILL_AT", OsString::from(&at))];
                let mut driver = backend.start("node-a", How { variables, ..Default::default() });
                assert!(walk_of_copies(&backend, &driver).await.is_err(), "{at} never came");
                driver.killed();
                let driver = backend.all();
                let told = if go_on {
                    walk_of_copies(&backend, &driver).await
                } else {
                    down_of_copies(&backend, &driver).await
                };
                told.unwrap_or_else(|status| panic!("killed at {at}, and then: {status:?}"));
                driver.stop().await;
                backend.assert_nothing_left();
            }
        }
    }
}
