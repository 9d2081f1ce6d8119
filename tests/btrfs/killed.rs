//! The driver killed before and after everything it does: called again, it goes on; told to remove, it leaves nothing.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use tonic::Status;

use crate::rig::{Backend, Driver, MIB, create, from_snapshot, from_volume};

/// The handle of a volume that is there while it is published.
const EPHEMERAL: &str = "csi-1";

/// A volume, published, grown, an ephemeral one beside it, a snapshot of it, volumes from both; then all of it removed.
async fn walk(backend: &Backend, driver: &Driver) -> Result<(), Status> {
    let id = driver.create(create("web", 16 * MIB)).await?.volume_id;
    let target = backend.target("web");
    driver.publish(&id, &target).await?;
    fs::write(target.join("file"), "x").unwrap();
    driver.publish_ephemeral(EPHEMERAL, &backend.target(EPHEMERAL)).await?;
    driver.expand(&id, 32 * MIB).await?;
    let snapshot = driver.snapshot(&id, "snap").await?.snapshot_id;
    driver.create(from_snapshot(&snapshot, create("restored", 0))).await?;
    driver.create(from_volume(&id, create("clone", 64 * MIB))).await?;
    down(backend, driver).await
}

/// Removes what is listed. What is in no list must not be there.
async fn down(backend: &Backend, driver: &Driver) -> Result<(), Status> {
    for id in driver.volumes().await {
        driver.unpublish(&id, &backend.target("web")).await.or_else(|status| {
            // It is another one's.
            if status.code() == tonic::Code::FailedPrecondition { Ok(()) } else { Err(status) }
        })?;
    }
    driver.unpublish(EPHEMERAL, &backend.target(EPHEMERAL)).await?;
    for id in driver.volumes().await {
        driver.delete(&id).await?;
    }
    for id in driver.snapshots().await {
        driver.delete_snapshot(&id).await?;
    }
    Ok(())
}

async fn effects(backend: &Backend) -> BTreeMap<String, u32> {
    let file = backend.path("effects");
    let driver = backend.start_with(vec![("WHARFLINE_EFFECTS", OsString::from(&file))]);
    walk(backend, &driver).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn at_everything_it_does() {
    killed_everywhere(Backend::new()).await;
}

#[tokio::test]
async fn the_driver_dir_at_everything_it_does() {
    killed_everywhere(Backend::of_dir()).await;
}

async fn killed_everywhere(backend: Backend) {
    let effects = effects(&backend).await;
    assert!(effects.len() >= 12, "{effects:?}");
    for (effect, count) in effects {
        for nth in 1..=count {
            for go_on in [true, false] {
                let at = format!("{effect}#{nth}");
                let mut driver = backend.start_with(vec![("WHARFLINE_KILL_AT", OsString::from(&at))]);
                assert!(walk(&backend, &driver).await.is_err(), "{at} never came");
                driver.killed();
                let driver = backend.start();
                let told = if go_on { walk(&backend, &driver).await } else { down(&backend, &driver).await };
                told.unwrap_or_else(|status| panic!("killed at {at}, and then: {status:?}"));
                driver.stop().await;
                backend.assert_nothing_left();
            }
        }
    }
}
