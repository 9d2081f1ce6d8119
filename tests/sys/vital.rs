//! Whether what is mounted is alive, and that mounts came or went.
use crate::fuse::Fuse;
use crate::support::{Dead as Mute, Host, soon};
use futures::{FutureExt, StreamExt};
use rustix::mount::{MountFlags, UnmountFlags, mount};
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use wharfline::sys::Kernel;
use wharfline::sys::kernel::{Checked, Dead, KernelError, PathFacts};
use wharfline::sys::path::{Place, TreePath};
use wharfline::sys::real::RealKernel;

async fn made(kernel: &RealKernel, name: &str) -> Place {
    let path = TreePath::new([name]).unwrap();
    kernel.make_dir(&path).await.unwrap();
    Place::Tree(path)
}

/// A host with a prepared tree, asked in both ways.
async fn both(old: bool) -> (Host, RealKernel) {
    let host = Host::new();
    let kernel = if old { host.kernel().without_statmount() } else { host.kernel() };
    kernel.prepare_tree().await.unwrap();
    (host, kernel)
}

/// The server said that attributes may be kept for an hour, and somebody has just asked for them.
#[tokio::test]
async fn a_fuse_mount_is_dead_at_the_end_of_its_server() {
    for old in [false, true] {
        let (_host, kernel) = both(old).await;
        let place = made(&kernel, "fuse").await;
        let at = kernel.absolute(&place);
        let mut fuse = Fuse::mount(&at);
        assert_eq!(std::fs::read(at.join(crate::fuse::FILE.0)).unwrap(), crate::fuse::FILE.1);
        assert!(std::fs::metadata(&at).unwrap().is_dir());
        let facts = kernel.mount_facts(&place).await.unwrap();
        assert_eq!(kernel.check_mount(&place).await.unwrap(), Checked::Alive(facts.clone()));
        fuse.kill();
        assert_eq!(kernel.check_mount(&place).await.unwrap(), Checked::Dead(Dead::NoServer), "old: {old}");
        let id = facts.mount().unwrap().id;
        let asked = HashSet::from([id]);
        let there = kernel.mounts_among(&asked).await.unwrap();
        assert_eq!(there, (!old).then(|| asked.clone()), "it is mounted still");
        fuse.finish();
        let Checked::Alive(facts) = kernel.check_mount(&place).await.unwrap() else { panic!("unmounted") };
        assert!(matches!(facts, PathFacts::Present(_)) && facts.mount().is_none());
        let there = kernel.mounts_among(&asked).await.unwrap();
        assert_eq!(there, (!old).then(HashSet::new), "it is gone");
        kernel.undo_tree().await.unwrap();
    }
}

#[tokio::test]
async fn what_does_not_answer_holds_up_no_other_look_and_no_other_call() {
    let (_host, kernel) = both(false).await;
    let mut mute = Vec::new();
    // More than one call of any kind could take a thread for.
    for n in 0..20 {
        let place = made(&kernel, &format!("mute-{n}")).await;
        mute.push((Mute::mount(&kernel.absolute(&place)), place));
    }
    let lives = made(&kernel, "lives").await;
    let mut one = Box::pin(kernel.check_mount(&mute[0].1));
    assert!(one.as_mut().now_or_never().is_none(), "it is asked");
    assert!(matches!(soon(kernel.check_mount(&lives)).await.unwrap(), Checked::Alive(_)));
    assert!(one.as_mut().now_or_never().is_none(), "the other look was there first");
    let rest: Vec<_> = mute[1..].iter().map(|(_, place)| kernel.check_mount(place)).collect();
    let mut rest = Box::pin(futures::future::join_all(rest));
    assert!(rest.as_mut().now_or_never().is_none());
    soon(kernel.mount_facts(&lives)).await.unwrap();
    assert!(rest.as_mut().now_or_never().is_none(), "a call that is no look has threads of its own");
    assert!(matches!(soon(one).await, Err(KernelError::Hung { .. })));
    let silent = |found: &Result<Checked, _>| {
        matches!(found, Err(KernelError::Hung { .. } | KernelError::Overloaded { .. }))
    };
    assert!(soon(rest).await.iter().all(silent));
    assert!(matches!(soon(kernel.check_mount(&lives)).await.unwrap(), Checked::Alive(_)), "nor afterwards");
    for (server, place) in mute {
        drop(server);
        rustix::mount::unmount(kernel.absolute(&place), UnmountFlags::DETACH).unwrap();
    }
    // The looks that hung end with their servers, on threads of their own, and hold what they asked until then.
    let undone = async {
        while let Err(error) = kernel.undo_tree().await {
            assert!(matches!(error, KernelError::InUse { .. }), "{error:?}");
        }
    };
    soon(undone).await;
}

fn done(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// An ext4 on a loop device, which goes with its mount.
fn ext4(image: &Path, at: &Path) {
    std::fs::File::create(image).unwrap().set_len(16 << 20).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    done("mkfs.ext4", &["-q", image]);
    done("mount", &["-o", "loop", image, at]);
}

/// A mounted loop device cannot be taken away (LOOP_CLR_FD waits for the unmount): one without a size is as near as it gets.
#[tokio::test]
async fn a_file_system_whose_device_has_no_size_any_more_is_dead() {
    let (host, kernel) = both(false).await;
    let place = made(&kernel, "disk").await;
    let (image, at) = (host.data.join("image"), kernel.absolute(&place));
    ext4(&image, &at);
    assert!(matches!(kernel.check_mount(&place).await.unwrap(), Checked::Alive(_)));
    let device = done("losetup", &["-n", "-O", "NAME", "-j", image.to_str().unwrap()]);
    std::fs::File::options().write(true).open(&image).unwrap().set_len(0).unwrap();
    done("losetup", &["-c", &device]);
    assert_eq!(kernel.check_mount(&place).await.unwrap(), Checked::Dead(Dead::NoDevice));
    done("umount", &[at.to_str().unwrap()]);
    kernel.undo_tree().await.unwrap();
}

/// Its mount holds what has no name any more, in which nothing can be made.
#[tokio::test]
async fn a_directory_that_was_deleted_beneath_its_mount_is_dead() {
    for old in [false, true] {
        let (host, kernel) = both(old).await;
        let place = made(&kernel, "bound").await;
        let (at, from) = (kernel.absolute(&place), host.data.join("from"));
        std::fs::create_dir(&from).unwrap();
        rustix::mount::mount_bind(&from, &at).unwrap();
        assert!(matches!(kernel.check_mount(&place).await.unwrap(), Checked::Alive(_)));
        std::fs::remove_dir(&from).unwrap();
        assert_eq!(kernel.check_mount(&place).await.unwrap(), Checked::Dead(Dead::Deleted), "old: {old}");
        rustix::mount::unmount(&at, UnmountFlags::empty()).unwrap();
        kernel.undo_tree().await.unwrap();
    }
}

/// What the kernel does to a file system when its device is pulled out. ext4 goes on to answer from memory.
#[tokio::test]
async fn a_file_system_that_was_shut_down_is_dead() {
    let (host, kernel) = both(false).await;
    let place = made(&kernel, "disk").await;
    let at = kernel.absolute(&place);
    ext4(&host.data.join("image"), &at);
    let file = at.join("file");
    std::fs::write(&file, "x").unwrap();
    // FS_IOC_SHUTDOWN without a flush, by a language that every Debian has.
    let shutdown =
        "open(F, '<', $ARGV[0]) or die; $mode = pack('L', 2); ioctl(F, 0x8004587d, $mode) or die $!";
    done("perl", &["-e", shutdown, file.to_str().unwrap()]);
    assert!(std::fs::metadata(&at).is_ok() && rustix::fs::statfs(&at).is_ok(), "it hides it well");
    assert_eq!(kernel.check_mount(&place).await.unwrap(), Checked::Dead(Dead::NoDevice));
    done("umount", &[at.to_str().unwrap()]);
    kernel.undo_tree().await.unwrap();
}

#[tokio::test]
async fn mounts_that_come_and_go_are_told_and_nothing_else_is() {
    let (_host, kernel) = both(false).await;
    let place = made(&kernel, "any").await;
    let at = kernel.absolute(&place);
    let mut changes = kernel.mount_changes().await.unwrap();
    kernel.make_dir(&TreePath::new(["no", "mount"]).unwrap()).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(changes.next().now_or_never(), None);
    for _ in 0..2 {
        mount("none", &at, "tmpfs", MountFlags::empty(), None).unwrap();
        assert_eq!(soon(changes.next()).await, Some(()));
        rustix::mount::unmount(&at, UnmountFlags::empty()).unwrap();
        assert_eq!(soon(changes.next()).await, Some(()));
        tokio::task::yield_now().await;
        assert_eq!(changes.next().now_or_never(), None, "each is told once");
    }
    kernel.undo_tree().await.unwrap();
}
