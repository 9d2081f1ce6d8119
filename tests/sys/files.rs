//! Durable files, locks and watches.
use crate::support::{Dead, Host, soon};
use futures::StreamExt;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use wharfline::sys::files::FileError;
use wharfline::sys::real::{Pool, RealFiles, RealWatches};
use wharfline::sys::watch::{DirEvent, WatchError};
use wharfline::sys::{Files, Watches};

fn pool() -> Pool {
    Pool::new(4, Duration::from_secs(20))
}

#[tokio::test]
async fn what_is_appended_is_there_when_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/journal");
    let files = RealFiles::new(pool());
    assert_eq!(files.read(&path).await.unwrap(), None);
    let mut journal = files.open_append(&path).await.unwrap();
    journal.append(b"one,".to_vec()).await.unwrap();
    journal.append(b"two,".to_vec()).await.unwrap();
    journal.sync().await.unwrap();
    assert_eq!(journal.read_all().await.unwrap(), b"one,two,");
    journal.append(b"three".to_vec()).await.unwrap();
    drop(journal);

    let mut journal = files.open_append(&path).await.unwrap();
    assert_eq!(journal.read_all().await.unwrap(), b"one,two,three");
    journal.replace_atomically(b"all:".to_vec()).await.unwrap();
    journal.append(b"four".to_vec()).await.unwrap();
    assert_eq!(journal.read_all().await.unwrap(), b"all:four");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing temporary is left");
}

#[tokio::test]
async fn appending_goes_on_where_the_content_ends_and_seldom_makes_the_file_longer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let files = RealFiles::new(pool());
    let (mut content, mut lengths) = (Vec::new(), std::collections::BTreeSet::new());
    for round in 0..4 {
        let mut journal = files.open_append(&path).await.unwrap();
        assert_eq!(journal.read_all().await.unwrap(), content);
        for n in 0..100 {
            // A zero within is content.
            let mut piece = vec![0; 400];
            piece.push(b'0' + u8::try_from((round + n) % 10).unwrap());
            content.extend_from_slice(&piece);
            journal.append_durably(piece).await.unwrap();
            lengths.insert(path.metadata().unwrap().len());
        }
    }
    let mut file = std::fs::read(&path).unwrap();
    assert!(file[content.len()..].iter().all(|byte| *byte == 0));
    file.truncate(content.len());
    assert_eq!(file, content);
    assert!(lengths.len() <= 4, "{lengths:?}");
}

#[tokio::test]
async fn a_file_is_replaced_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("incarnation");
    let files = RealFiles::new(pool());
    for content in [b"a".to_vec(), b"bc".to_vec()] {
        files.replace(&path, content.clone()).await.unwrap();
        assert_eq!(files.read(&path).await.unwrap().unwrap(), content);
    }
    std::fs::create_dir(directory.path().join("taken")).unwrap();
    let error = files.replace(&directory.path().join("taken"), vec![1]).await.unwrap_err();
    assert!(matches!(error, FileError::Io { action: "replace", .. }), "{error}");
}

#[tokio::test]
async fn a_second_lock_is_refused_until_the_first_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    let files = RealFiles::new(pool());
    let first = files.lock(&path).await.unwrap();
    assert!(matches!(files.lock(&path).await, Err(FileError::Locked { .. })));
    drop(first);
    files.lock(&path).await.unwrap();
}

#[tokio::test]
async fn a_name_is_seen_when_it_appears_and_when_it_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().to_owned(), directory.path().join("csi.sock"));
    let watches = RealWatches::new(pool());
    let waiting = tokio::spawn({
        let (watches, path) = (watches.clone(), path.clone());
        async move { watches.appeared(&path, "csi.sock").await }
    });
    std::fs::write(path.join("other"), "").unwrap();
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    soon(waiting).await.unwrap().unwrap();
    soon(watches.appeared(&path, "csi.sock")).await.unwrap();

    let gone = tokio::spawn({
        let (watches, path) = (watches.clone(), path.clone());
        async move { watches.appeared(&path, "never").await }
    });
    tokio::task::yield_now().await;
    drop((listener, directory));
    assert!(matches!(soon(gone).await.unwrap(), Err(WatchError::Gone { .. })));
    assert!(matches!(watches.changes(&path).await.err(), Some(WatchError::Gone { .. })));
}

#[tokio::test]
async fn what_happens_in_a_directory_comes_in_order_and_ends_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let mut changes = RealWatches::new(pool()).changes(&path).await.unwrap();
    std::fs::write(path.join("a"), "x").unwrap();
    std::fs::rename(path.join("a"), path.join("b")).unwrap();
    std::fs::remove_file(path.join("b")).unwrap();
    drop(directory);
    let name = |name: &str| name.to_owned();
    let expected = [
        DirEvent::Appeared(name("a")),
        DirEvent::Written(name("a")),
        DirEvent::Vanished(name("a")),
        DirEvent::Appeared(name("b")),
        DirEvent::Vanished(name("b")),
        DirEvent::Gone,
    ];
    let seen: Vec<DirEvent> = soon(changes.by_ref().collect()).await;
    assert_eq!(seen, expected);
}

/// The watches of this process by the inodes that they are of: how many instances of inotify have them, and how many there
/// are.
fn kept(inodes: &[u64]) -> (usize, usize) {
    let own = |line: &&str| {
        let inode = line.split(' ').find_map(|word| word.strip_prefix("ino:"));
        let inode = inode.and_then(|inode| u64::from_str_radix(inode, 16).ok());
        line.starts_with("inotify ") && inode.is_some_and(|inode| inodes.contains(&inode))
    };
    let all = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let of_each =
        all.filter_map(|fd| std::fs::read_to_string(fd.path()).ok()).map(|t| t.lines().filter(own).count());
    let counts: Vec<_> = of_each.filter(|count| *count > 0).collect();
    (counts.len(), counts.iter().sum())
}

/// Of instances one user may have 128, in all programs together.
#[tokio::test]
async fn all_directories_are_watched_with_one_instance_and_each_is_told_its_own() {
    let parent = tempfile::tempdir().unwrap();
    let watches = RealWatches::new(pool());
    let paths: Vec<_> = (0..200).map(|n| parent.path().join(n.to_string())).collect();
    let mut all = Vec::new();
    for path in &paths {
        std::fs::create_dir(path).unwrap();
        all.push(watches.changes(path).await.unwrap());
    }
    let inodes: Vec<_> =
        paths.iter().map(|path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap())).collect();
    assert_eq!(kept(&inodes), (1, 200));
    // Who comes later is told nothing of before.
    std::fs::create_dir(paths[7].join("before")).unwrap();
    let mut later = watches.clone().changes(&paths[7]).await.unwrap();
    let appeared = |name: &str| Some(DirEvent::Appeared(name.to_owned()));
    for (n, path) in paths.iter().enumerate() {
        std::fs::create_dir(path.join(format!("in-{n}"))).unwrap();
    }
    assert_eq!(soon(later.next()).await, appeared("in-7"));
    assert_eq!(soon(all[7].next()).await, appeared("before"));
    for (n, events) in all.iter_mut().enumerate() {
        assert_eq!(soon(events.next()).await, appeared(&format!("in-{n}")));
    }
    // Who goes takes nobody along, and a directory that nobody watches costs nothing.
    let first = all.remove(7);
    drop((first, all));
    assert_eq!(kept(&inodes), (1, 1));
    std::fs::create_dir(paths[7].join("after")).unwrap();
    assert_eq!(soon(later.next()).await, appeared("after"));
    // At another path it is the same directory, and another watch.
    let moved = parent.path().join("moved");
    std::fs::rename(&paths[7], &moved).unwrap();
    let mut anew = watches.changes(&moved).await.unwrap();
    assert_eq!((soon(later.next()).await, soon(later.next()).await), (Some(DirEvent::Gone), None));
    drop(later);
    std::fs::create_dir(moved.join("there")).unwrap();
    assert_eq!(soon(anew.next()).await, appeared("there"));
    drop(anew);
    assert_eq!(kept(&inodes), (0, 0));
}

/// The call for a path that hangs has no answer, and keeps nobody from giving back what is watched no more.
#[tokio::test]
async fn a_watch_that_hangs_keeps_no_other_one() {
    let host = Host::new();
    let (dead, alive) = (host.data.join("dead"), host.data.join("alive"));
    for path in [&dead, &alive] {
        std::fs::create_dir(path).unwrap();
    }
    let server = Dead::mount(&dead);
    let watches = RealWatches::new(Pool::new(4, Duration::from_millis(200)));
    let hung = soon(watches.changes(&dead.join("x"))).await.err();
    assert!(matches!(hung, Some(WatchError::Refused { .. })), "{hung:?}");
    let inode = [std::os::unix::fs::MetadataExt::ino(&alive.metadata().unwrap())];
    for n in 0..3 {
        let mut changes = watches.changes(&alive).await.unwrap();
        assert_eq!(kept(&inode), (1, 1));
        std::fs::create_dir(alive.join(n.to_string())).unwrap();
        assert_eq!(soon(changes.next()).await, Some(DirEvent::Appeared(n.to_string())));
        drop(changes);
        assert_eq!(kept(&inode), (0, 0), "it is watched for nobody");
    }
    drop(server);
    rustix::mount::unmount(&dead, rustix::mount::UnmountFlags::DETACH).unwrap();
    host.assert_clean();
}
