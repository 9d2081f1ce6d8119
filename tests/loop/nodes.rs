//! A controller and nodes apart, on one data directory: what each may do, and what only the other can allow.
use std::fs;

use tonic::Code;

use crate::rig::{self, Access, Backend, Context, Driver, How, MIB, block, ext4, refused, stage};

fn of(mode: &str) -> How<'_> {
    How { mode, ..Default::default() }
}

struct Fleet {
    controller: Driver,
    a: Driver,
    b: Driver,
    /// Last: a test that fails takes its directory away after the drivers on it.
    backend: Backend,
}

impl Fleet {
    fn new() -> Self {
        let backend = Backend::new();
        let controller = backend.start("control", of("controller"));
        let a = backend.start("node-a", of("node"));
        let b = backend.start("node-b", of("node"));
        Self { controller, a, b, backend }
    }

    async fn end(self) {
        for driver in [self.controller, self.a, self.b] {
            driver.stop().await;
        }
        self.backend.assert_nothing_left();
    }
}

#[tokio::test]
async fn what_one_node_wrote_the_next_one_reads() {
    let backend = Backend::new();
    let controller = backend.start("control", of("controller"));
    let id = controller.volume("web", 16 * MIB, &ext4()).await;
    // The controller was first, and knows a node once that has started.
    for unknown in ["node-a", "control", "no-node", "../nodes/node-a", "."] {
        let result = controller.attach(&id, unknown, &ext4()).await;
        assert_eq!(refused(result, "is not known"), Code::NotFound, "{unknown}");
    }
    let a = backend.start("node-a", of("node"));
    let b = backend.start("node-b", of("node"));
    assert_eq!(refused(controller.unstage(&id, &backend.staging("x")).await, ""), Code::Unimplemented);
    assert_eq!(refused(a.delete(&id).await, ""), Code::Unimplemented);
    let target = backend.target("web");
    let mut last = String::new();
    for driver in [&a, &b, &a] {
        let context = controller.attach(&id, &driver.node, &ext4()).await.unwrap();
        assert_eq!(controller.list().await, [(id.clone(), vec![driver.node.clone()])]);
        let staging = backend.staging(&driver.node);
        let staged = stage(&id, &context, &staging, &ext4());
        driver.stage(staged.clone()).await.unwrap();
        driver.publish(rig::publish(&staged, &target)).await.unwrap();
        if !last.is_empty() {
            assert_eq!(fs::read_to_string(target.join("by")).unwrap(), last);
        }
        last.push_str(&driver.node);
        fs::write(target.join("by"), &last).unwrap();
        for other in [&a, &b].into_iter().filter(|other| other.node != driver.node) {
            let result = controller.attach(&id, &other.node, &ext4()).await;
            let about = format!("attached to node {}", driver.node);
            assert_eq!(refused(result, &about), Code::FailedPrecondition);
            let result = other.stage(stage(&id, &context, &backend.staging(&other.node), &ext4())).await;
            assert_eq!(refused(result, "is not attached to node"), Code::FailedPrecondition);
            // Nor does the other one's teardown touch it.
            other.unstage(&id, &staging).await.unwrap_or_default();
        }
        assert_eq!(refused(controller.delete(&id).await, &driver.node), Code::FailedPrecondition);
        driver.unpublish(&id, &target).await.unwrap();
        driver.unstaged(&id, &staging).await;
        controller.detach(&id, &driver.node).await.unwrap();
    }
    controller.delete(&id).await.unwrap();
    for driver in [controller, a, b] {
        driver.stop().await;
    }
    backend.assert_nothing_left();
}

#[tokio::test]
async fn nothing_is_staged_without_the_context_of_its_attachment() {
    let fleet = Fleet::new();
    let (controller, a) = (&fleet.controller, &fleet.a);
    let id = controller.volume("web", 16 * MIB, &ext4()).await;
    let other = controller.volume("other", 16 * MIB, &ext4()).await;
    let staging = fleet.backend.staging("web");
    let with = |context: &Context| stage(&id, context, &staging, &ext4());
    let unattached: Context =
        [("attachment".into(), "0".repeat(32)), ("image".into(), format!("volumes/{id}/image"))].into();
    assert_eq!(refused(a.stage(with(&unattached)).await, "is not attached"), Code::FailedPrecondition);
    let stale = controller.attach(&id, "node-a", &ext4()).await.unwrap();
    controller.detach(&id, "node-a").await.unwrap();
    assert_eq!(refused(a.stage(with(&stale)).await, "is not attached"), Code::FailedPrecondition);
    let good = controller.attach(&id, "node-a", &ext4()).await.unwrap();
    assert_ne!(good, stale);
    let others = controller.attach(&other, "node-a", &ext4()).await.unwrap();
    let without = |key: &str| {
        let mut context = good.clone();
        context.remove(key);
        context
    };
    let mut mixed = good.clone();
    mixed.insert("image".into(), others["image"].clone());
    for (about, code, context) in [
        ("publish_context", Code::InvalidArgument, Context::new()),
        ("publish_context", Code::InvalidArgument, without("attachment")),
        ("publish_context", Code::InvalidArgument, without("image")),
        ("another volume", Code::InvalidArgument, mixed),
        ("that attachment is over", Code::FailedPrecondition, stale.clone()),
        ("that attachment is over", Code::FailedPrecondition, others),
    ] {
        assert_eq!(refused(a.stage(with(&context)).await, about), code, "{context:?}");
        assert_eq!((fleet.backend.devices(), fleet.backend.mounts()), (vec![], vec![]), "{context:?}");
    }
    a.stage(with(&good)).await.unwrap();
    // The same for a publication, and for an attachment that ended while it was staged.
    let target = fleet.backend.target("web");
    for (context, code) in
        [(Context::new(), Code::InvalidArgument), (stale.clone(), Code::FailedPrecondition)]
    {
        let result = a.publish(rig::publish(&with(&context), &target)).await;
        assert_eq!(refused(result, ""), code, "{context:?}");
    }
    controller.detach(&id, "node-a").await.unwrap();
    assert_eq!(refused(a.stage(with(&good)).await, "is not attached"), Code::FailedPrecondition);
    let late = a.publish(rig::publish(&with(&good), &target)).await;
    assert_eq!(refused(late, "is not attached"), Code::FailedPrecondition);
    a.unstaged(&id, &staging).await;
    for volume in [&id, &other] {
        controller.detach(volume, "").await.unwrap();
        controller.delete(volume).await.unwrap();
    }
    fleet.end().await;
}

/// Who fences a node ends its attachment, not its mount: the kernel of this one machine keeps the next node out.
#[tokio::test]
async fn a_node_that_was_fenced_keeps_the_next_one_from_staging() {
    let fleet = Fleet::new();
    let (controller, a, b) = (&fleet.controller, &fleet.a, &fleet.b);
    let id = controller.volume("web", 16 * MIB, &ext4()).await;
    let first = controller.attach(&id, "node-a", &ext4()).await.unwrap();
    let (there, here) = (fleet.backend.staging("a"), fleet.backend.staging("b"));
    a.stage(stage(&id, &first, &there, &ext4())).await.unwrap();
    controller.detach(&id, "node-a").await.unwrap();
    assert_eq!(refused(controller.delete(&id).await, "shows it"), Code::FailedPrecondition);
    let second = controller.attach(&id, "node-b", &ext4()).await.unwrap();
    let staged = stage(&id, &second, &here, &ext4());
    assert_eq!(refused(b.stage(staged.clone()).await, "another attachment"), Code::FailedPrecondition);
    assert_eq!(fleet.backend.devices().len(), 1, "a second device over one file system");
    // Not even back on the first node: what is mounted there is of before.
    controller.detach(&id, "node-b").await.unwrap();
    let third = controller.attach(&id, "node-a", &ext4()).await.unwrap();
    let again = a.stage(stage(&id, &third, &there, &ext4())).await;
    assert_eq!(refused(again, "another attachment"), Code::FailedPrecondition);
    b.unstaged(&id, &here).await;
    assert_eq!(fleet.backend.devices().len(), 1, "another node took it away");
    a.unstaged(&id, &there).await;
    a.stage(stage(&id, &third, &there, &ext4())).await.unwrap();
    a.unstaged(&id, &there).await;
    controller.detach(&id, "node-a").await.unwrap();
    controller.delete(&id).await.unwrap();
    fleet.end().await;
}

/// Scenario B54.
#[tokio::test]
async fn a_node_has_a_limit_that_holds_across_restarts() {
    let backend = Backend::new();
    let limited = |limit| How { limit: Some(limit), ..Default::default() };
    let driver = backend.start("node-a", limited(2));
    let mut ids = Vec::new();
    for name in ["one", "two", "three"] {
        ids.push(driver.volume(name, 4 * MIB, &ext4()).await);
    }
    // Together: the count and the attachment are one step.
    let capability = ext4();
    let attaches = ids.iter().map(|id| driver.attach(id, "node-a", &capability));
    let results = futures::future::join_all(attaches).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 2, "{results:?}");
    let left_out = ids[results.iter().position(Result::is_err).unwrap()].clone();
    driver.kill();
    let driver = backend.start("node-a", limited(2));
    for result in
        [results.into_iter().find(Result::is_err).unwrap(), driver.attach(&left_out, "node-a", &ext4()).await]
    {
        assert_eq!(refused(result, "has 2 volumes"), Code::ResourceExhausted);
    }
    let attached = ids.iter().find(|id| **id != left_out).unwrap();
    driver.attach(attached, "node-a", &ext4()).await.unwrap(); // there already
    driver.detach(attached, "node-a").await.unwrap();
    driver.attach(&left_out, "node-a", &ext4()).await.unwrap();
    driver.stop().await;
    let driver = backend.start("node-a", limited(3));
    driver.attach(attached, "node-a", &ext4()).await.unwrap();
    for id in ids {
        driver.detach(&id, "node-a").await.unwrap();
        driver.delete(&id).await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn what_differs_is_refused_and_what_is_gone_is_gone() {
    let backend = Backend::new();
    let driver = backend.all();
    let id = driver.volume("web", 16 * MIB, &ext4()).await;
    let context = driver.attach(&id, "node-a", &ext4()).await.unwrap();
    let read_only = rig::mount(Access::SingleNodeReaderOnly, "ext4", &[]);
    for (about, request) in [
        ("volume_capability", rig::attach(&id, "node-a", &read_only)),
        ("volume_capability", rig::attach(&id, "node-a", &block(Access::SingleNodeWriter))),
        ("readonly", {
            let mut request = rig::attach(&id, "node-a", &ext4());
            request.readonly = true;
            request
        }),
    ] {
        let result = driver.controller().controller_publish_volume(request).await;
        assert_eq!(refused(result, about), Code::AlreadyExists);
    }
    let (staging, elsewhere) = (backend.staging("web"), backend.staging("elsewhere"));
    let staged = stage(&id, &context, &staging, &ext4());
    for (about, other) in [
        ("access_mode", read_only),
        ("access_type", block(Access::SingleNodeWriter)),
        ("fs_type", rig::mount(Access::SingleNodeWriter, "xfs", &[])),
    ] {
        let result = driver.stage(stage(&id, &context, &staging, &other)).await;
        assert_eq!(refused(result, about), Code::FailedPrecondition);
    }
    let target = backend.target("web");
    let early = driver.publish(rig::publish(&staged, &target)).await;
    assert_eq!(refused(early, "is not staged"), Code::FailedPrecondition);
    driver.stage(staged.clone()).await.unwrap();
    let other_flags = rig::mount(Access::SingleNodeWriter, "ext4", &["noatime"]);
    let result = driver.stage(stage(&id, &context, &staging, &other_flags)).await;
    assert_eq!(refused(result, "volume_capability"), Code::AlreadyExists);
    let twice = driver.stage(stage(&id, &context, &elsewhere, &ext4())).await;
    assert_eq!(refused(twice, "staged at"), Code::FailedPrecondition);
    assert_eq!(refused(driver.unstage(&id, &elsewhere).await, "mounted at"), Code::FailedPrecondition);
    let unstaged = driver.publish(rig::publish(&stage(&id, &context, &elsewhere, &ext4()), &target)).await;
    assert_eq!(refused(unstaged, "is not staged"), Code::FailedPrecondition);
    let mut no_path = rig::publish(&staged, &target);
    no_path.staging_target_path.clear();
    assert_eq!(refused(driver.publish(no_path).await, "staging_target_path"), Code::FailedPrecondition);
    driver.publish(rig::publish(&staged, &target)).await.unwrap();
    let second = driver.publish(rig::publish(&staged, &backend.target("second"))).await;
    assert_eq!(refused(second, "published at"), Code::FailedPrecondition);
    let changed = driver.publish(rig::read_only(rig::publish(&staged, &target))).await;
    assert_eq!(refused(changed, "readonly"), Code::AlreadyExists);
    assert!(!backend.target("second").exists());

    // Unmounted by hand: the next stage and publish put it back, and teardown finds nothing to do.
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
    rustix::mount::unmount(&staging, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(backend.devices().is_empty(), "the device outlived its mount");
    driver.stage(staged.clone()).await.unwrap();
    driver.publish(rig::publish(&staged, &target)).await.unwrap();
    // The records of the volume and of the stage lost: the kernel knows.
    fs::remove_file(backend.data().join(format!("nodes/node-a/{id}.json"))).unwrap();
    fs::create_dir(backend.path("lost")).unwrap();
    fs::rename(backend.data().join("volumes").join(&id), backend.path("lost").join(&id)).unwrap();
    driver.unpublish(&id, &target).await.unwrap();
    driver.unstaged(&id, &staging).await;
    assert_eq!((backend.devices(), backend.mounts()), (vec![], vec![]));
    driver.stop().await;
    backend.assert_nothing_left();
}
