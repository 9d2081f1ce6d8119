//! Durable files, locks and watches.
use crate::support::soon;
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
