//! Mounts and paths.
use crate::support::{Dead, Host, Propagation, soon, table};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use wharfline::sys::kernel::{
    Access, DeviceId, FileKind, KernelError, MountId, MountRow, PathFacts, Prepared, Present, Removed,
};
use wharfline::sys::path::{HostPath, Place, TreePath};
use wharfline::sys::real::{Pool, RealBinds, RealKernel, parse_mountinfo};
use wharfline::sys::{Binds, Kernel};

fn tree(components: &[&str]) -> TreePath {
    TreePath::new(components.iter().copied()).unwrap()
}

async fn present(kernel: &RealKernel, place: impl Into<Place>) -> Present {
    match kernel.mount_facts(&place.into()).await.unwrap() {
        PathFacts::Present(present) => present,
        PathFacts::Absent { missing } => panic!("{missing} components are missing"),
    }
}

fn tmpfs(at: &Path) {
    mount("none", at, "tmpfs", MountFlags::empty(), None).unwrap();
}

/// A mounted volume at `vol/target`.
async fn volume(kernel: &RealKernel) -> (TreePath, Present) {
    kernel.prepare_tree().await.unwrap();
    let path = tree(&["vol", "target"]);
    kernel.make_dir(&path).await.unwrap();
    tmpfs(&kernel.absolute(&path.clone().into()));
    let seen = present(kernel, path.clone()).await;
    (path, seen)
}

async fn unmount(kernel: &RealKernel, path: &TreePath) {
    let seen = present(kernel, path.clone()).await;
    kernel.unmount(&path.clone().into(), seen.mount.unwrap().id).await.unwrap();
}

/// Obligation CO-PLUG-10.
/// Scenario Q9.
#[tokio::test]
async fn the_tree_is_shared_with_a_child_namespace() {
    for (propagation, old) in
        [(Propagation::Private, false), (Propagation::Shared, false), (Propagation::Shared, true)]
    {
        let host = Host::with_root(propagation);
        let kernel = if old { host.kernel().without_statmount() } else { host.kernel() };
        assert_eq!(kernel.facts().await.unwrap().statmount, !old);
        assert_eq!(kernel.prepare_tree().await.unwrap(), Prepared::Made);
        assert_eq!(kernel.prepare_tree().await.unwrap(), Prepared::Found);
        let mode = std::fs::metadata(kernel.tree()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        let path = tree(&["a1", "globalmount"]);
        kernel.make_dir(&path).await.unwrap();
        let target = kernel.absolute(&path.clone().into());
        let ours = host.data.to_str().unwrap().to_owned();
        let rows = || table().into_iter().filter(|row| row.contains(&ours)).count();
        let before = rows();

        // As a plugin in a namespace of its own would.
        let script = format!("mount -t tmpfs none {}", target.display());
        let args = ["-m", "--propagation", "unchanged", "sh", "-c", &script];
        assert!(Command::new("unshare").args(args).status().unwrap().success());
        let seen = present(&kernel, path.clone()).await;
        assert_eq!(seen.mount.as_ref().unwrap().magic, 0x0102_1994, "tmpfs");
        assert_eq!(rows(), before + 1, "once, not again beneath the tree");

        assert!(matches!(kernel.undo_tree().await, Err(KernelError::InUse { .. })));
        unmount(&kernel, &path).await;
        kernel.undo_tree().await.unwrap();
        kernel.undo_tree().await.unwrap();
        host.assert_clean();
        assert!(target.exists(), "undoing removes no directory");
    }
}

#[tokio::test]
async fn a_file_system_of_the_operators_own_is_left_when_the_tree_is_undone() {
    let host = Host::new();
    let kernel = host.kernel();
    std::fs::create_dir(kernel.tree()).unwrap();
    tmpfs(kernel.tree());
    let ours = kernel.tree().to_str().unwrap().to_owned();
    let rows = || table().into_iter().filter(|row| row.contains(&ours)).collect::<Vec<_>>();
    let before = rows();
    assert_eq!(kernel.prepare_tree().await.unwrap(), Prepared::Made);
    assert_eq!(kernel.prepare_tree().await.unwrap(), Prepared::Found);
    kernel.undo_tree().await.unwrap();
    assert_eq!(rows(), before);
    kernel.undo_tree().await.unwrap();
    assert_eq!(rows(), before);
    rustix::mount::unmount(kernel.tree(), rustix::mount::UnmountFlags::empty()).unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn without_the_capability_the_error_says_so() {
    let host = Host::new();
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.remove(rustix::thread::CapabilitySet::SYS_ADMIN);
    rustix::thread::set_capabilities(None, sets).unwrap();
    let kernel = host.kernel();
    assert!(matches!(kernel.prepare_tree().await, Err(KernelError::MayNotMount)));
    let facts = kernel.facts().await.unwrap();
    assert!(!facts.may_mount);
    assert_eq!(facts.boot_id.len(), 36);
    assert!(facts.release.contains('.'), "{}", facts.release);
}

fn by_mountinfo() -> Vec<MountRow> {
    parse_mountinfo(&std::fs::read("/proc/thread-self/mountinfo").unwrap()).unwrap()
}

#[tokio::test]
async fn facts_and_table_agree_with_mountinfo() {
    let host = Host::new();
    let kernel = host.kernel();
    kernel.prepare_tree().await.unwrap();
    let names = ["plain", "tmpfs", "bind", "readonly"];
    for name in names {
        kernel.make_dir(&tree(&[name])).await.unwrap();
    }
    let at = |name: &str| kernel.absolute(&tree(&[name]).into());
    std::fs::create_dir(host.data.join("a b\n#\\")).unwrap();
    tmpfs(&at("tmpfs"));
    mount_bind(host.data.join("a b\n#\\"), at("bind")).unwrap();
    mount("none", at("readonly"), "tmpfs", MountFlags::RDONLY, None).unwrap();
    std::fs::write(at("block"), "").unwrap();
    mount_bind("/dev/loop0", at("block")).unwrap();

    let old = kernel.clone().without_statmount();
    let info = by_mountinfo();
    for name in ["tmpfs", "bind", "readonly", "block"] {
        let row = info.iter().find(|row| row.mount_point == at(name)).unwrap();
        let seen = present(&kernel, tree(&[name])).await.mount.unwrap();
        assert_eq!((seen.device, seen.read_only), (row.device, row.read_only), "{name}");
        assert_eq!(seen.fs_type.as_deref(), Some(row.fs_type.as_str()), "{name}");
        assert_eq!(seen.root.as_deref().map(Path::new), Some(row.root.as_path()), "{name}");
        let plain = present(&old, tree(&[name])).await.mount.unwrap();
        assert_eq!((plain.id, plain.device, plain.read_only), (row.id, row.device, row.read_only), "{name}");
        assert_eq!(plain.magic, seen.magic, "{name}");
    }
    assert_eq!(present(&kernel, tree(&["plain"])).await.mount, None);
    assert_eq!(
        present(&kernel, tree(&["block"])).await.kind,
        FileKind::Block(DeviceId { major: 7, minor: 0 })
    );
    let absent = kernel.mount_facts(&tree(&["plain", "x", "y"]).into()).await.unwrap();
    assert_eq!(absent, PathFacts::Absent { missing: 2 });

    let key = |row: &MountRow| {
        (
            row.mount_point.clone(),
            row.root.clone(),
            row.fs_type.clone(),
            row.source.clone(),
            row.device,
            row.read_only,
            (row.peer_group, row.master),
        )
    };
    let sorted = |rows: &[MountRow]| {
        let mut keys: Vec<_> = rows.iter().map(key).collect();
        keys.sort();
        keys
    };
    let listed = kernel.mount_table().await.unwrap();
    assert_eq!(sorted(&listed), sorted(&info));
    assert_eq!(sorted(&old.mount_table().await.unwrap()), sorted(&info));
    let row = listed.iter().find(|row| row.mount_point == at("tmpfs")).unwrap();
    assert_eq!(Some(row.id), present(&kernel, tree(&["tmpfs"])).await.mount.map(|mount| mount.id));
    let parent = listed.iter().find(|other| other.id == row.parent).unwrap();
    assert_eq!(parent.mount_point, kernel.tree());

    for name in ["tmpfs", "bind", "readonly", "block"] {
        unmount(&kernel, &tree(&[name])).await;
    }
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_table_of_thousands_is_read_whole() {
    let host = Host::new();
    let kernel = host.kernel();
    kernel.prepare_tree().await.unwrap();
    for n in 0..1200 {
        let path = tree(&[&format!("m{n}")]);
        kernel.make_dir(&path).await.unwrap();
        tmpfs(&kernel.absolute(&path.into()));
    }
    let expected = by_mountinfo().len();
    assert_eq!(kernel.mount_table().await.unwrap().len(), expected);
    assert_eq!(kernel.clone().without_statmount().mount_table().await.unwrap().len(), expected);
    rustix::mount::unmount(kernel.tree(), rustix::mount::UnmountFlags::DETACH).unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn only_what_is_empty_and_no_mount_point_is_removed() {
    let host = Host::new();
    let kernel = host.kernel();
    let (path, seen) = volume(&kernel).await;
    let absolute = |path: &TreePath| kernel.absolute(&path.clone().into());
    assert!(matches!(kernel.remove(&path).await, Err(KernelError::IsMountPoint { .. })));
    let other = MountId(seen.mount.as_ref().unwrap().id.0 + 1);
    let changed = kernel.unmount(&path.clone().into(), other).await;
    assert!(matches!(changed, Err(KernelError::Changed { .. })));
    let user = std::fs::File::create(absolute(&path).join("open")).unwrap();
    let id = seen.mount.unwrap().id;
    assert!(matches!(kernel.unmount(&path.clone().into(), id).await, Err(KernelError::InUse { .. })));
    drop(user);
    kernel.unmount(&path.clone().into(), id).await.unwrap();
    kernel.unmount(&path.clone().into(), id).await.unwrap();

    let parent = path.parent().unwrap();
    assert!(matches!(kernel.remove(&parent).await, Err(KernelError::NotEmpty { .. })));
    assert_eq!(kernel.remove(&path).await.unwrap(), Removed::Removed);
    assert_eq!(kernel.remove(&path).await.unwrap(), Removed::Absent);
    std::fs::write(absolute(&path), "content").unwrap();
    assert!(matches!(kernel.remove(&path).await, Err(KernelError::NotEmpty { .. })));
    std::fs::write(absolute(&path), "").unwrap();
    assert_eq!(kernel.remove(&path).await.unwrap(), Removed::Removed);

    symlink("/etc", absolute(&path)).unwrap();
    assert!(matches!(kernel.remove(&path).await, Err(KernelError::Occupied { .. })));
    assert_eq!(present(&kernel, path.clone()).await.kind, FileKind::Other);
    let through = path.join("ssl").unwrap();
    for result in [kernel.make_dir(&through).await, kernel.remove(&through).await.map(drop)] {
        assert!(matches!(result, Err(KernelError::Outside { .. })), "{result:?}");
    }
    assert!(kernel.list(&parent).await.unwrap().is_empty(), "a link is not listed");
    std::fs::remove_file(absolute(&path)).unwrap();
    std::fs::write(absolute(&parent).join("NOT OURS"), "").unwrap();
    kernel.make_dir(&path).await.unwrap();
    assert_eq!(kernel.list(&parent).await.unwrap(), ["target"]);
    assert!(kernel.list(&tree(&["no-such"])).await.unwrap().is_empty());
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_clone_is_made_of_what_was_verified_only() {
    let host = Host::new();
    let kernel = host.kernel();
    let (path, verified) = volume(&kernel).await;
    drop(kernel.clone_mount(&path, &verified).await.unwrap());
    let target = kernel.absolute(&path.clone().into());
    tmpfs(&target);
    let changed = kernel.clone_mount(&path, &verified).await;
    assert!(matches!(changed, Err(KernelError::Changed { .. })), "{changed:?}");
    unmount(&kernel, &path).await;
    drop(kernel.clone_mount(&path, &verified).await.unwrap());
    unmount(&kernel, &path).await;
    let bare = present(&kernel, path.clone()).await;
    for verified in [verified, bare] {
        let changed = kernel.clone_mount(&path, &verified).await;
        assert!(matches!(changed, Err(KernelError::Changed { .. })), "{changed:?}");
    }
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_publication_at_a_host_path_comes_and_goes_whole() {
    let host = Host::new();
    let kernel = host.kernel();
    let (path, verified) = volume(&kernel).await;
    let allowed = host.data.join("srv");
    std::fs::create_dir(&allowed).unwrap();
    let at = HostPath::new(&allowed, &allowed.join("app/data")).unwrap();
    let absent = kernel.mount_facts(&at.clone().into()).await.unwrap();
    assert_eq!(absent, PathFacts::Absent { missing: 2 });

    let publish = || kernel.publish_at_host(&path, &verified, &at, Access::ReadOnly);
    publish().await.unwrap();
    let before = table();
    publish().await.unwrap();
    assert_eq!(table(), before, "a second time changes nothing");
    let info = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = info.lines().find(|line| line.contains("srv/app/data")).unwrap();
    assert!(line.contains(" ro,nosuid,nodev"), "{line}");
    std::fs::write(kernel.absolute(&path.clone().into()).join("seen"), "yes").unwrap();
    assert_eq!(std::fs::read_to_string(at.absolute().join("seen")).unwrap(), "yes");

    std::fs::write(allowed.join("app/theirs"), "").unwrap();
    kernel.unpublish_at_host(&at, &verified, 2).await.unwrap();
    assert!(!at.absolute().exists() && allowed.join("app/theirs").exists());
    kernel.unpublish_at_host(&at, &verified, 2).await.unwrap();
    std::fs::remove_file(allowed.join("app/theirs")).unwrap();
    kernel.unpublish_at_host(&at, &verified, 2).await.unwrap();
    assert!(!allowed.join("app").exists() && allowed.exists());

    // What is somebody else's stays: content, a mount, a link.
    std::fs::create_dir_all(at.absolute()).unwrap();
    std::fs::write(at.absolute().join("theirs"), "").unwrap();
    assert!(matches!(publish().await, Err(KernelError::Occupied { .. })));
    std::fs::remove_file(at.absolute().join("theirs")).unwrap();
    tmpfs(&at.absolute());
    assert!(matches!(publish().await, Err(KernelError::Occupied { .. })));
    // Nothing of ours is there, so nothing has to be undone.
    let before = table();
    kernel.unpublish_at_host(&at, &verified, 1).await.unwrap();
    assert_eq!(table(), before);
    rustix::mount::unmount(at.absolute(), rustix::mount::UnmountFlags::empty()).unwrap();
    // Beneath another one's mount ours is still there.
    publish().await.unwrap();
    tmpfs(&at.absolute());
    let changed = kernel.unpublish_at_host(&at, &verified, 0).await;
    assert!(matches!(changed, Err(KernelError::Changed { .. })), "{changed:?}");
    rustix::mount::unmount(at.absolute(), rustix::mount::UnmountFlags::empty()).unwrap();
    kernel.unpublish_at_host(&at, &verified, 0).await.unwrap();
    std::fs::remove_dir(at.absolute()).unwrap();
    symlink("/etc", at.absolute()).unwrap();
    assert!(publish().await.is_err());
    assert!(
        present(&kernel, HostPath::new(Path::new("/etc"), Path::new("/etc/ssl")).unwrap())
            .await
            .mount
            .is_none()
    );

    unmount(&kernel, &path).await;
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

/// Volumes that are directories of one file system which has no device: tmpfs, overlay, an export of NFS.
#[tokio::test]
async fn one_directory_of_a_file_system_is_not_another_one() {
    for old in [false, true] {
        let host = Host::new();
        let kernel = if old { host.kernel().without_statmount() } else { host.kernel() };
        kernel.prepare_tree().await.unwrap();
        let (export, allowed) = (host.data.join("export"), host.data.join("srv"));
        for directory in [&export, &allowed] {
            std::fs::create_dir(directory).unwrap();
        }
        tmpfs(&export);
        let mut volumes = Vec::new();
        for name in ["a", "b"] {
            std::fs::create_dir(export.join(name)).unwrap();
            let path = tree(&["vol", name]);
            kernel.make_dir(&path).await.unwrap();
            mount_bind(export.join(name), kernel.absolute(&path.clone().into())).unwrap();
            let seen = present(&kernel, path.clone()).await;
            volumes.push((path, seen));
        }
        let [(a, seen_a), (b, seen_b)] = &volumes[..] else { unreachable!() };
        assert!(seen_a.shows(seen_a) && !seen_a.shows(seen_b), "old: {old}");
        let at = HostPath::new(&allowed, &allowed.join("data")).unwrap();
        kernel.publish_at_host(a, seen_a, &at, Access::ReadWrite).await.unwrap();
        kernel.publish_at_host(a, seen_a, &at, Access::ReadWrite).await.unwrap();
        let before = table();
        let taken = kernel.publish_at_host(b, seen_b, &at, Access::ReadWrite).await;
        assert!(matches!(taken, Err(KernelError::Occupied { .. })), "old: {old}: {taken:?}");
        kernel.unpublish_at_host(&at, seen_b, 0).await.unwrap();
        assert_eq!(table(), before, "old: {old}: another volume was unmounted");
        kernel.unpublish_at_host(&at, seen_a, 1).await.unwrap();
        assert!(!at.absolute().exists());
        for path in [a, b] {
            unmount(&kernel, path).await;
        }
        rustix::mount::unmount(&export, rustix::mount::UnmountFlags::empty()).unwrap();
        kernel.undo_tree().await.unwrap();
        host.assert_clean();
    }
}

/// The race of a path that is checked by name and used by name: an attacker swaps a directory on the way with a
/// link that leads out, as fast as the machine can, while publications are made through it.
#[tokio::test]
async fn no_swap_of_a_link_makes_a_mount_outside() {
    const ATTEMPTS: u32 = 1_500;
    let host = Host::new();
    let kernel = host.kernel();
    let (path, verified) = volume(&kernel).await;
    let allowed = host.data.join("alloc");
    let outside = host.data.join("outside");
    for directory in [allowed.join("vol/target"), outside.join("target")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    symlink(&outside, allowed.join("link")).unwrap();
    let at = HostPath::new(&allowed, &allowed.join("vol/target")).unwrap();

    let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let attacker = {
        let (stop, swaps, allowed) = (Arc::clone(&stop), Arc::clone(&swaps), allowed.clone());
        std::thread::spawn(move || {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            let (one, other) = (allowed.join("vol"), allowed.join("link"));
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let is_mounted = |path: &Path| std::fs::metadata(path).map(|m| std::os::unix::fs::MetadataExt::dev(&m));
    let bare = is_mounted(&outside.join("target")).unwrap();
    let (mut inside, mut refused, mut escaped) = (0, 0, 0);
    for _ in 0..ATTEMPTS {
        match kernel.publish_at_host(&path, &verified, &at, Access::ReadWrite).await {
            Ok(()) => inside += 1,
            Err(_) => refused += 1,
        }
        escaped += u32::from(is_mounted(&outside.join("target")).unwrap() != bare);
        // Whichever name it has now; none is mounted when it was refused.
        while inside > 0 && kernel.unpublish_at_host(&at, &verified, 0).await.is_err() {}
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert_eq!(escaped, 0, "mounted outside");
    let swaps = swaps.load(Ordering::Relaxed);
    assert!(inside > 0 && refused > 0 && swaps > 1000, "no race: {inside} {refused} {swaps}");
    unmount(&kernel, &path).await;
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_path_that_hangs_is_said_to_hang_and_delays_no_other() {
    let host = Host::new();
    let kernel = RealKernel::open(&host.data, Pool::new(4, Duration::from_millis(200))).unwrap();
    kernel.prepare_tree().await.unwrap();
    for name in ["dead", "alive"] {
        kernel.make_dir(&tree(&[name])).await.unwrap();
    }
    let dead = Dead::mount(&kernel.absolute(&tree(&["dead"]).into()));
    let beneath = Place::from(tree(&["dead", "x"]));
    let hung = soon(kernel.mount_facts(&beneath)).await;
    assert!(matches!(hung, Err(KernelError::Hung { .. })), "{hung:?}");
    for _ in 0..20 {
        // Answered at once from here on, so that one dead volume takes one thread.
        assert!(matches!(kernel.mount_facts(&beneath).await, Err(KernelError::Hung { .. })));
    }
    assert!(present(&kernel, tree(&["alive"])).await.mount.is_none());
    drop(dead);
    while matches!(kernel.mount_facts(&beneath).await, Err(KernelError::Hung { .. })) {
        tokio::task::yield_now().await;
    }
    let target = kernel.absolute(&tree(&["dead"]).into());
    rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH).unwrap();
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn binds_for_drivers_show_in_peers_and_read_only_holds() {
    let host = Host::new();
    let binds = RealBinds::new(host.pool.clone());
    let (source, shared) = (host.data.join("source"), host.data.join("shared"));
    for directory in [&source, &shared] {
        std::fs::create_dir(directory).unwrap();
    }
    tmpfs(&shared);
    mount_change(&shared, MountPropagationFlags::SHARED).unwrap();
    let target = shared.join("target");
    assert_eq!(binds.path_facts(&target.join("x")).await.unwrap(), PathFacts::Absent { missing: 2 });
    assert!(matches!(
        binds.bind(&source, &target, Access::ReadWrite).await,
        Err(KernelError::NotFound { .. })
    ));
    std::fs::create_dir(&target).unwrap();
    assert!(!binds.unbind(&target).await.unwrap());

    binds.bind(&source, &target, Access::ReadWrite).await.unwrap();
    std::fs::write(target.join("file"), "x").unwrap();
    assert!(source.join("file").exists());
    let info = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert!(info.lines().any(|line| line.contains("shared/target") && line.contains("shared:")), "{info}");
    assert!(binds.path_facts(&target).await.unwrap().mount().is_some());
    assert!(binds.unbind(&target).await.unwrap());
    assert!(!binds.unbind(&target).await.unwrap());

    binds.bind(&source, &target, Access::ReadOnly).await.unwrap();
    let refused = std::fs::write(target.join("other"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    std::fs::write(source.join("other"), "the mount alone refuses").unwrap();
    assert!(binds.unbind(&target).await.unwrap());

    std::fs::write(shared.join("file"), "").unwrap();
    let kinds = binds.bind(&source, &shared.join("file"), Access::ReadWrite).await;
    assert!(matches!(kinds, Err(KernelError::Occupied { .. })), "{kinds:?}");
    symlink(&source, shared.join("link")).unwrap();
    let link = binds.bind(&source, &shared.join("link"), Access::ReadWrite).await;
    assert!(matches!(link, Err(KernelError::Occupied { .. })), "{link:?}");
    rustix::mount::unmount(&shared, rustix::mount::UnmountFlags::empty()).unwrap();
    host.assert_clean();
}
