//! Raw block volumes: on one node and on several.
use std::fs;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use tonic::Code;

use crate::rig::{self, Access, Backend, How, MIB, block, refused, stage};

fn write(device: &Path, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(device)?;
    file.seek(std::io::SeekFrom::Start(at))?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn read(device: &Path, at: u64, count: usize) -> Vec<u8> {
    let mut file = fs::File::open(device).unwrap();
    file.seek(std::io::SeekFrom::Start(at)).unwrap();
    let mut bytes = vec![0; count];
    file.read_exact(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn a_device_has_the_size_of_its_volume_and_may_be_read_only() {
    let backend = Backend::new();
    let driver = backend.all();
    let capability = block(Access::SingleNodeMultiWriter);
    let id = driver.volume("disk", 10 * MIB + 1, &capability).await;
    let context = driver.attach(&id, "node-a", &capability).await.unwrap();
    let staging = backend.staging("disk");
    let staged = stage(&id, &context, &staging, &capability);
    driver.stage(staged.clone()).await.unwrap();
    assert!(rig::entries(&staging).is_empty());
    let (one, two) = (backend.target("one"), backend.target("two"));
    driver.publish(rig::publish(&staged, &one)).await.unwrap();
    assert!(fs::metadata(&one).unwrap().file_type().is_block_device());
    let size = fs::File::open(&one).unwrap().seek(std::io::SeekFrom::End(0)).unwrap();
    assert_eq!(size, u64::try_from(10 * MIB).unwrap() + 4096);
    write(&one, 8192, b"here").unwrap();
    driver.publish(rig::publish(&staged, &two)).await.unwrap();
    assert_eq!(read(&two, 8192, 4), b"here");
    for target in [&one, &two] {
        driver.unpublish(&id, target).await.unwrap();
    }
    driver.publish(rig::read_only(rig::publish(&staged, &one))).await.unwrap();
    let error = write(&one, 0, b"no").unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(1 | 13 | 30)), "{error}");
    assert_eq!(read(&one, 8192, 4), b"here");
    driver.unpublish(&id, &one).await.unwrap();
    driver.publish(rig::publish(&staged, &one)).await.unwrap();
    write(&one, 0, b"yes").unwrap();
    let elsewhere = driver.unstage(&id, &backend.staging("other")).await;
    assert_eq!(refused(elsewhere, "published at"), Code::FailedPrecondition);
    // While somebody has it open, by whatever node of it, it does not go, and is not forgotten.
    let number = fs::metadata(&backend.devices()[0]).unwrap().rdev();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let node = directory.path().join("of-mine");
    rustix::fs::mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR, number).unwrap();
    let held = fs::File::open(&node).unwrap();
    driver.unpublish(&id, &one).await.unwrap();
    let elsewhere = driver.unstage(&id, &backend.staging("other")).await;
    assert_eq!(refused(elsewhere, "staged at"), Code::FailedPrecondition);
    let ourselves = format!("mounted or open in process {} (", std::process::id());
    assert_eq!(refused(driver.unstage(&id, &staging).await, &ourselves), Code::Aborted);
    drop(held);
    driver.unstaged(&id, &staging).await;
    driver.detach(&id, "node-a").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

/// The next who gets the device, such as a `mount -o loop` of somebody else, would not be able to write.
#[tokio::test]
async fn a_device_that_could_only_be_read_is_left_to_others_as_it_was() {
    let backend = Backend::new();
    let driver = backend.all();
    let capability = block(Access::SingleNodeMultiWriter);
    let id = driver.volume("disk", MIB, &capability).await;
    let context = driver.attach(&id, "node-a", &capability).await.unwrap();
    let (staging, target) = (backend.staging("disk"), backend.target("one"));
    let staged = stage(&id, &context, &staging, &capability);
    driver.stage(staged.clone()).await.unwrap();
    driver.publish(rig::read_only(rig::publish(&staged, &target))).await.unwrap();
    let place = backend.devices()[0].replace("/dev/", "/sys/block/") + "/ro";
    let read_only = || fs::read_to_string(&place).unwrap();
    assert_eq!(read_only(), "1\n");
    driver.unpublish(&id, &target).await.unwrap();
    driver.unstaged(&id, &staging).await;
    assert_eq!(read_only(), "0\n");
    driver.detach(&id, "node-a").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

/// A device is one: it is written while one of those who have it may write, whoever was first, and by nobody once only
/// readers are left.
#[tokio::test]
async fn a_reader_of_a_device_is_beside_a_writer_in_either_order() {
    let backend = Backend::new();
    let driver = backend.all();
    let capability = block(Access::SingleNodeMultiWriter);
    let id = driver.volume("disk", 10 * MIB, &capability).await;
    let context = driver.attach(&id, "node-a", &capability).await.unwrap();
    let staged = stage(&id, &context, &backend.staging("disk"), &capability);
    driver.stage(staged.clone()).await.unwrap();
    let (reads, writes) = (backend.target("reads"), backend.target("writes"));
    let reader = rig::read_only(rig::publish(&staged, &reads));
    let writer = rig::publish(&staged, &writes);
    for (round, reader_first) in [(1, true), (2, false)] {
        let order = if reader_first { [&reader, &writer] } else { [&writer, &reader] };
        for asked in order {
            driver.publish(asked.clone()).await.unwrap();
            // The same again is the same.
            driver.publish(asked.clone()).await.unwrap();
        }
        write(&writes, 4096, &[round; 4]).unwrap();
        assert_eq!(read(&reads, 4096, 4), [round; 4]);
        driver.unpublish(&id, &writes).await.unwrap();
        let error = write(&reads, 0, b"no").unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(1 | 13 | 30)), "{error}");
        driver.unpublish(&id, &reads).await.unwrap();
    }
    driver.publish(reader.clone()).await.unwrap();
    assert!(write(&reads, 0, b"no").is_err(), "only readers");
    driver.unpublish(&id, &reads).await.unwrap();
    driver.unstaged(&id, &backend.staging("disk")).await;
    driver.detach(&id, "node-a").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn several_nodes_share_a_disk_in_the_modes_made_for_it() {
    let backend = Backend::new();
    let of = |mode| How { mode, ..Default::default() };
    let controller = backend.start("control", of("controller"));
    let (a, b) = (backend.start("node-a", of("node")), backend.start("node-b", of("node")));
    for mode in [Access::MultiNodeMultiWriter, Access::MultiNodeSingleWriter, Access::MultiNodeReaderOnly] {
        let capability = block(mode);
        let id = controller.volume(mode.as_str_name(), 4 * MIB, &capability).await;
        fs::write(backend.image(&id), vec![b'z'; 4 << 20]).unwrap();
        let mut paths = Vec::new();
        for driver in [&a, &b] {
            let mut request = rig::attach(&id, &driver.node, &capability);
            if mode == Access::MultiNodeSingleWriter && driver.node == "node-b" {
                let second = controller.attach(&id, "node-b", &capability).await;
                assert_eq!(refused(second, "node-a"), Code::FailedPrecondition, "a second writer");
                request.readonly = true;
            }
            let context = controller.controller().controller_publish_volume(request).await;
            let context = context.unwrap().into_inner().publish_context;
            let staging = backend.staging(&driver.node);
            let staged = stage(&id, &context, &staging, &capability);
            driver.stage(staged.clone()).await.unwrap();
            let target = backend.target(&driver.node);
            let reads = mode == Access::MultiNodeReaderOnly
                || (mode == Access::MultiNodeSingleWriter && driver.node == "node-b");
            let published = rig::publish(&staged, &target);
            if reads && mode == Access::MultiNodeSingleWriter {
                let writing = driver.publish(published.clone()).await;
                assert_eq!(refused(writing, "attached read-only"), Code::FailedPrecondition);
            }
            driver.publish(if reads { rig::read_only(published) } else { published }).await.unwrap();
            assert_eq!(write(&target, 4096, driver.node.as_bytes()).is_err(), reads, "{mode:?}");
            paths.push((driver, staging, target));
        }
        assert_eq!(backend.devices().len(), 2);
        let expected: &[u8] = match mode {
            Access::MultiNodeMultiWriter => b"node-b",
            Access::MultiNodeSingleWriter => b"node-a",
            _ => b"zzzzzz",
        };
        // Node b has read nothing of it before, so nothing old is in its cache.
        assert_eq!(read(&paths[1].2, 4096, 6), expected, "{mode:?}");
        for (driver, staging, target) in paths {
            driver.unpublish(&id, &target).await.unwrap();
            driver.unstaged(&id, &staging).await;
            controller.detach(&id, &driver.node).await.unwrap();
        }
        controller.delete(&id).await.unwrap();
    }
    for driver in [controller, a, b] {
        driver.stop().await;
    }
    backend.assert_nothing_left();
}

/// Whoever has a device open when it is taken away keeps it for so long; who is about to let go, as an ended process is whose copy of
/// the mount went last, is waited for.
#[tokio::test]
async fn who_is_about_to_let_go_of_a_device_is_waited_for() {
    let backend = Backend::new();
    let driver = backend.all();
    let capability = block(Access::SingleNodeWriter);
    let id = driver.volume("web", 16 * MIB, &capability).await;
    let context = driver.attach(&id, "node-a", &capability).await.unwrap();
    let staging = backend.staging("s");
    driver.stage(rig::stage(&id, &context, &staging, &capability)).await.unwrap();
    let devices = backend.devices();
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    let held = fs::File::open(device).unwrap();
    let name = Path::new(device).file_name().unwrap().to_owned();
    // From then on it goes with its last user.
    let goes = Path::new("/sys/block").join(name).join("loop/autoclear");
    let holder = std::thread::spawn(move || {
        rig::until("it is taken away", || fs::read_to_string(&goes).is_ok_and(|word| word.trim() == "1"));
        drop(held);
    });
    driver.unstage(&id, &staging).await.unwrap();
    holder.join().unwrap();
    assert_eq!(backend.devices(), [""; 0]);
    driver.detach(&id, "node-a").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}
