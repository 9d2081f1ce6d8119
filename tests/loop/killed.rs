//! The driver killed before and after everything it does: called again, it goes on; told to take down, it leaves nothing.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use tonic::Status;
use wharfline::csi::proto::VolumeCapability;

use crate::rig::{self, Access, Backend, Driver, How, MIB, block, ext4, stage};

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
    driver.unstage(id, &backend.staging("web")).await?;
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
                } else if let Some(id) = &seen.volume {
                    down(&backend, &driver, id).await.unwrap_or_else(|status| {
                        panic!("killed at {at}, and then not taken down: {status:?}");
                    });
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
