//! What is formatted and what never is; programs that fail, hang or die half-way.
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

use tonic::Code;

use crate::rig::{self, Access, Backend, Context, Driver, How, MIB, XFS, ext4, mount, refused, stage};

/// A directory with a `mkfs.ext4` of this content, before all others on the path.
fn instead(backend: &Backend, script: &str) -> OsString {
    let directory = backend.path("bin");
    fs::create_dir_all(&directory).unwrap();
    let program = directory.join("mkfs.ext4");
    fs::write(&program, format!("#!/bin/sh\nfor image; do :; done\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut path = directory.into_os_string();
    path.push(":");
    path.push(rig::programs());
    path
}

fn with_path(backend: &Backend, path: OsString) -> Driver {
    backend.start("node-a", How { variables: vec![("PATH", path)], ..Default::default() })
}

/// From attached to nothing.
async fn end(backend: Backend, driver: Driver, id: &str) {
    let staging = backend.staging("web");
    driver.unstaged(id, &staging).await;
    driver.detach(id, "node-a").await.unwrap();
    driver.delete(id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

async fn attached(driver: &Driver) -> (String, Context) {
    let id = driver.volume("web", 16 * MIB, &ext4()).await;
    let context = driver.attach(&id, "node-a", &ext4()).await.unwrap();
    (id, context)
}

fn is_blank(image: &Path) -> bool {
    fs::read(image).unwrap().iter().all(|&byte| byte == 0)
}

#[tokio::test]
async fn a_program_that_fails_leaves_a_blank_volume() {
    let backend = Backend::new();
    let script =
        "head -c 100000 /dev/urandom | dd of=\"$image\" conv=notrunc 2>/dev/null; echo no luck >&2; exit 7";
    let failing = instead(&backend, script);
    let driver = with_path(&backend, failing);
    let (id, context) = attached(&driver).await;
    let staged = stage(&id, &context, &backend.staging("web"), &ext4());
    let failed = driver.stage(staged.clone()).await;
    assert_eq!(refused(failed, "mkfs.ext4: exit status: 7: no luck"), Code::Internal);
    driver.stop().await;
    let driver = with_path(&backend, instead(&backend, "exit 0"));
    assert_eq!(refused(driver.stage(staged.clone()).await, "it left no ext4"), Code::Internal);
    assert!(is_blank(&backend.image(&id)));
    assert_eq!((backend.devices(), backend.mounts()), (vec![], vec![]));
    driver.stop().await;
    let driver = with_path(&backend, backend.path("empty").into_os_string());
    assert_eq!(refused(driver.stage(staged.clone()).await, "mkfs.ext4: it is in none of"), Code::Internal);
    driver.stop().await;
    let driver = backend.all();
    driver.stage(staged).await.unwrap();
    end(backend, driver, &id).await;
}

#[tokio::test]
async fn a_program_that_was_cut_short_with_its_driver_is_started_again() {
    let backend = Backend::new();
    let (half, pid) = (backend.path("half"), backend.path("pid"));
    let script = format!(
        "head -c 300000 /dev/urandom | dd of=\"$image\" conv=notrunc 2>/dev/null\necho $$ > {}\n: > {}\nexec sleep 1000",
        pid.display(),
        half.display()
    );
    let driver = with_path(&backend, instead(&backend, &script));
    let (id, context) = attached(&driver).await;
    let staged = stage(&id, &context, &backend.staging("web"), &ext4());
    let mut node = driver.nodes();
    let request = staged.clone();
    let call = tokio::spawn(async move { node.node_stage_volume(request).await });
    let done = half.clone();
    tokio::task::spawn_blocking(move || rig::until("half of it is made", || done.exists())).await.unwrap();
    // One volume, one call at a time.
    assert_eq!(refused(driver.stage(staged.clone()).await, "still at work"), Code::Aborted);
    assert_eq!(refused(driver.unstage(&id, &backend.staging("web")).await, "still at work"), Code::Aborted);
    driver.kill();
    assert!(call.await.unwrap().is_err());
    // What the driver started ends with it.
    let program = fs::read_to_string(&pid).unwrap();
    let stat = format!("/proc/{}/stat", program.trim());
    rig::until("the program ends", || {
        fs::read_to_string(&stat).map_or(true, |line| !line.contains("sleep") || line.contains(") Z "))
    });
    assert!(is_blank(&backend.image(&id)), "half a file system is in the volume");
    let driver = backend.all();
    driver.stage(staged).await.unwrap();
    assert!(!backend.image(&id).with_extension("new").exists());
    end(backend, driver, &id).await;
}

#[tokio::test]
async fn what_is_not_blank_is_never_formatted() {
    let backend = Backend::new();
    let driver = backend.all();
    let (id, context) = attached(&driver).await;
    let image = backend.image(&id);
    let staged = stage(&id, &context, &backend.staging("web"), &ext4());
    for (at, bytes, about) in [
        (0, &b"LUKS\xba\xbe"[..], "a LUKS container"),
        (65_600, b"_BHRfS_M", "btrfs"),
        (4086, b"SWAPSPACE2", "swap space"),
        (0, b"XFSB", "holds xfs, not ext4"),
        (12_345_678, b"x", "data of an unknown kind"),
    ] {
        let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
        file.write_at(bytes, at).unwrap();
        let before = fs::read(&image).unwrap();
        assert_eq!(refused(driver.stage(staged.clone()).await, about), Code::FailedPrecondition);
        assert!(fs::read(&image).unwrap() == before, "{about}: it was written to");
        assert_eq!((backend.devices(), backend.mounts()), (vec![], vec![]), "{about}");
        file.write_at(&vec![0; bytes.len()], at).unwrap();
    }
    // Zeros that take room are blank too.
    driver.stage(staged).await.unwrap();
    end(backend, driver, &id).await;
}

#[tokio::test]
async fn a_file_system_of_another_kind_is_not_mounted() {
    let backend = Backend::new();
    let driver = backend.all();
    let xfs = mount(Access::SingleNodeWriter, "xfs", &[]);
    let id = driver.volume("web", XFS, &xfs).await;
    let staging = backend.staging("web");
    let context = driver.attach(&id, "node-a", &xfs).await.unwrap();
    driver.stage(stage(&id, &context, &staging, &xfs)).await.unwrap();
    fs::write(staging.join("kept"), "kept").unwrap();
    driver.unstaged(&id, &staging).await;
    driver.detach(&id, "node-a").await.unwrap();
    let context = driver.attach(&id, "node-a", &ext4()).await.unwrap();
    let result = driver.stage(stage(&id, &context, &staging, &ext4())).await;
    assert_eq!(refused(result, "holds xfs, not ext4"), Code::FailedPrecondition);
    driver.detach(&id, "node-a").await.unwrap();
    // With none named, it is mounted as what it is.
    let any = mount(Access::SingleNodeReaderOnly, "", &[]);
    let context = driver.attach(&id, "node-a", &any).await.unwrap();
    driver.stage(stage(&id, &context, &staging, &any)).await.unwrap();
    assert_eq!(fs::read_to_string(staging.join("kept")).unwrap(), "kept");
    assert!(fs::write(staging.join("kept"), "x").is_err(), "it is attached read-only");
    end(backend, driver, &id).await;
}

#[tokio::test]
async fn a_blank_volume_that_may_not_be_written_cannot_be_formatted() {
    let backend = Backend::new();
    let driver = backend.all();
    let reader = mount(Access::SingleNodeReaderOnly, "ext4", &[]);
    let id = driver.volume("web", 16 * MIB, &reader).await;
    let context = driver.attach(&id, "node-a", &reader).await.unwrap();
    let result = driver.stage(stage(&id, &context, &backend.staging("web"), &reader)).await;
    assert_eq!(refused(result, "cannot be formatted"), Code::FailedPrecondition);
    assert!(is_blank(&backend.image(&id)));
    end(backend, driver, &id).await;
}

#[tokio::test]
async fn a_damaged_file_system_says_so() {
    let backend = Backend::new();
    let driver = backend.all();
    let (id, context) = attached(&driver).await;
    let staging = backend.staging("web");
    let staged = stage(&id, &context, &staging, &ext4());
    driver.stage(staged.clone()).await.unwrap();
    driver.unstaged(&id, &staging).await;
    let image = fs::OpenOptions::new().write(true).open(backend.image(&id)).unwrap();
    // All of the superblock but its magic number.
    image.write_at(&[0xff; 50], 1024).unwrap();
    let result = driver.stage(staged).await;
    assert_eq!(refused(result, "cannot mount the file system of"), Code::Internal);
    assert_eq!((backend.devices(), backend.mounts()), (vec![], vec![]));
    end(backend, driver, &id).await;
}
