//! What a machine has for containers, on a real one.
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use wharfline::sys::Containers;
use wharfline::sys::image::{Digest, ImageError};
use wharfline::sys::real::RealContainers;

use crate::image::made::{Entry, Files, Picture};

struct Shed {
    directory: tempfile::TempDir,
    containers: RealContainers,
}

impl Shed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let containers = RealContainers::new(directory.path());
        Self { directory, containers }
    }

    /// An image of one file, saved.
    fn save(&self, content: &str) -> PathBuf {
        let path = self.directory.path().join("image.tar");
        let picture = Picture::new([vec![Entry::file("file", content)]]);
        // Another file, as whoever replaces one makes it.
        let new = path.with_extension("new");
        std::fs::write(&new, Files::saved(&[(&picture, &["app:1"])]).archive()).unwrap();
        std::fs::rename(new, &path).unwrap();
        path
    }
}

#[tokio::test]
async fn an_image_is_read_once_for_as_long_as_it_is_held_and_has_not_changed() {
    let shed = Shed::new();
    let path = shed.save("first");
    assert!(!shed.directory.path().join("images").exists(), "nobody asked for an image yet");
    let (one, other) =
        tokio::join!(shed.containers.image(&path, None), shed.containers.image(&path, Some("app:1")),);
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.id.clone(), one.layers.clone()), (other.id.clone(), other.layers.clone()));
    assert_eq!(std::fs::read_to_string(one.layers[0].join("file")).unwrap(), "first");
    let again = shed.containers.image(&path, None).await.unwrap();
    assert!(Arc::ptr_eq(&one, &again));
    drop(other);

    shed.save("second");
    let changed = shed.containers.image(&path, None).await.unwrap();
    assert_ne!((changed.id.clone(), changed.layers.clone()), (one.id.clone(), one.layers.clone()));
    // What is held stays, and what a task is known to run from.
    assert_eq!(shed.containers.remove_unused(BTreeSet::new()).await.unwrap(), 0);
    let first = one.layers[0].clone();
    drop((one, again));
    assert_eq!(shed.containers.remove_unused(BTreeSet::from([first.clone()])).await.unwrap(), 0);
    assert!(first.exists());
    assert_eq!(shed.containers.remove_unused(BTreeSet::new()).await.unwrap(), 1);
    assert!(!first.exists() && changed.layers[0].exists());

    std::fs::remove_file(&path).unwrap();
    let missing = shed.containers.image(&path, None).await.unwrap_err();
    assert!(matches!(missing, ImageError::NotFound { .. }), "{missing}");
}

/// What is wrong with an image is so until something of it changes: it is not read whole again each minute.
#[tokio::test]
async fn a_bad_image_is_read_once_for_as_long_as_it_has_not_changed() {
    let shed = Shed::new();
    let path = shed.directory.path().join("image.tar");
    let known = |error: ImageError| match error {
        ImageError::Known(error) => error,
        other => panic!("{other}"),
    };
    std::fs::write(&path, "no image").unwrap();
    let first = known(shed.containers.image(&path, None).await.unwrap_err());
    assert!(first.to_string().contains("the image cannot be used"), "{first}");
    let again = known(shed.containers.image(&path, None).await.unwrap_err());
    assert!(Arc::ptr_eq(&first, &again), "it is remembered");
    let other = shed.containers.image(&path, Some("app:1")).await.unwrap_err();
    assert!(!Arc::ptr_eq(&first, &known(other)), "of another image in it nothing is known");
    shed.save("content");
    let image = shed.containers.image(&path, None).await.unwrap();
    assert!(path.exists() && image.layers[0].exists());
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(shed.containers.image(&path, None).await, Err(ImageError::NotFound { .. })));
}

/// A layout that is copied: its index may be there before its blobs.
#[tokio::test]
async fn a_layout_is_read_again_when_any_of_its_blobs_has_changed() {
    let shed = Shed::new();
    let path = shed.directory.path().join("layout");
    let picture = Picture::new([vec![Entry::file("file", "content")]]);
    Files::layout(&[(&picture, "app:1")]).write(&path);
    let blobs = path.join("blobs/sha256");
    let largest = |a: &std::fs::DirEntry| a.metadata().unwrap().len();
    let layer = std::fs::read_dir(&blobs).unwrap().flatten().max_by_key(largest).unwrap().path();
    let whole = std::fs::read(&layer).unwrap();
    std::fs::remove_file(&layer).unwrap();
    let missing = shed.containers.image(&path, None).await.unwrap_err();
    assert!(missing.to_string().contains("is not there, though"), "{missing}");
    std::fs::write(&layer, &whole[..whole.len() / 2]).unwrap();
    let short = shed.containers.image(&path, None).await.unwrap_err();
    assert!(short.to_string().contains("cut off or changed"), "{short}");
    std::fs::write(&layer, &whole).unwrap();
    shed.containers.image(&path, None).await.unwrap();
}

#[tokio::test]
async fn an_image_is_whole_without_its_archive_for_as_long_as_its_layers_are_there() {
    let shed = Shed::new();
    let path = shed.save("content");
    let image = shed.containers.image(&path, None).await.unwrap();
    let (id, config, layers) = (image.id.clone(), image.config.clone(), image.layers.clone());
    std::fs::remove_file(&path).unwrap();
    drop(image);
    // Another daemon, too.
    let directory = shed.directory;
    drop(shed.containers);
    let containers = RealContainers::new(directory.path());
    let kept = containers.kept(&id).await.unwrap();
    assert_eq!((&kept.id, &kept.config, &kept.layers), (&id, &config, &layers));
    assert_eq!(containers.remove_unused(BTreeSet::new()).await.unwrap(), 0, "it is held");
    assert!(containers.kept(&Digest::of(b"another")).await.is_none());
    drop(kept);
    assert_eq!(containers.remove_unused(BTreeSet::new()).await.unwrap(), 1);
    assert!(containers.kept(&id).await.is_none());
    let documents = directory.path().join("images/images");
    assert_eq!(std::fs::read_dir(&documents).unwrap().count(), 0, "nor is its configuration kept");

    // What is not what it was is not used.
    let shed = Shed { directory, containers };
    let path = shed.save("content");
    drop(shed.containers.image(&path, None).await.unwrap());
    std::fs::write(documents.join(id.hex()), "{}").unwrap();
    assert!(shed.containers.kept(&id).await.is_none());
    drop(shed.containers.image(&path, None).await.unwrap());
    assert!(shed.containers.kept(&id).await.is_some(), "it is kept anew with the next start");
}

#[tokio::test]
async fn nothing_is_made_where_nothing_was_unpacked() {
    let shed = Shed::new();
    assert_eq!(shed.containers.remove_unused(BTreeSet::new()).await.unwrap(), 0);
    assert_eq!(std::fs::read_dir(shed.directory.path()).unwrap().count(), 0);
}

/// It is in `PATH`: `tools/fetch-runc` puts it there for tests.
#[tokio::test]
async fn runc_is_there() {
    let found = Shed::new().containers.check().await.unwrap();
    assert!(found.runc.metadata().unwrap().permissions().mode() & 0o111 != 0);
    assert!(found.capabilities.contains(&21), "tests of sys need root: {found:?}");
}
