//! Images: which files make one, what of it is checked, and its layers on this machine.
#[path = "image/layers.rs"]
mod layers;
#[path = "../support/image.rs"]
#[allow(dead_code, unreachable_pub, reason = "each binary uses its own part of it")]
pub(crate) mod made;

use made::{CONFIG, Entry, Files, LAYER, MANIFEST, NAME, Picture, blob, gzip};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use wharfline::sys::image::{Config, Digest, Image, ImageError, Images, Limits, Platform, User};

/// A directory for one test, with its images and what they are made from.
struct Shed {
    directory: tempfile::TempDir,
    images: Images,
}

impl Shed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let images = Images::open(&directory.path().join("images")).unwrap();
        Self { directory, images }
    }

    fn limited(limits: Limits) -> Self {
        let Self { directory, images } = Self::new();
        Self { directory, images: images.with_limits(limits) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts the files there as a layout.
    fn put(&self, files: &Files) -> PathBuf {
        let path = self.path("image");
        std::fs::remove_dir_all(&path).ok();
        files.write(&path);
        path
    }

    fn add(&self, files: &Files, reference: Option<&str>) -> Result<Image, ImageError> {
        self.images.add(&self.put(files), reference)
    }

    fn add_archive(&self, archive: &[u8], reference: Option<&str>) -> Result<Image, ImageError> {
        let path = self.path("image.tar");
        std::fs::write(&path, archive).unwrap();
        self.images.add(&path, reference)
    }

    /// The layers on disk. Nothing half done lies beside them.
    fn there(&self) -> BTreeSet<Digest> {
        assert_eq!(names(&self.path("images/tmp")), [""; 0]);
        names(&self.path("images/layers")).iter().map(|name| Digest::from_hex(name).unwrap()).collect()
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The error and its causes.
fn said<T>(result: Result<T, ImageError>) -> String {
    let error = result.err().expect("it is refused");
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[track_caller]
fn assert_says<T>(result: Result<T, ImageError>, wanted: &[&str]) {
    let text = said(result);
    for part in wanted {
        assert!(text.contains(part), "wanted: {part}\n  said: {text}");
    }
}

fn small() -> Picture {
    let bottom = vec![Entry::directory("etc"), Entry::file("etc/name", "bottom")];
    let mut picture = Picture::new([bottom, vec![Entry::program("run", "#!/bin/sh\n")]]);
    picture.config = json!({"Cmd": ["/run"]});
    picture
}

#[test]
fn an_image_is_read_from_a_layout_from_a_tar_of_one_and_from_what_docker_saves() {
    let (plain, mut compressed) = (small(), small());
    compressed.compressed = true;
    let mut both = Files::layout(&[(&plain, "latest")]);
    both.0.extend(Files::saved(&[(&plain, &["one:latest"])]).0);
    let mut squeezed = Files::saved(&[(&plain, &["one:1"])]);
    for (_, content) in squeezed.0.iter_mut().filter(|(name, _)| name.ends_with("/layer.tar")) {
        *content = gzip(content);
    }
    for (what, files) in [
        ("layout", Files::layout(&[(&plain, "")])),
        ("compressed layout", Files::layout(&[(&compressed, "one")])),
        ("saved", Files::saved(&[(&plain, &["one:1"])])),
        ("saved without a tag", Files::saved(&[(&plain, &[])])),
        ("saved and compressed", squeezed),
        ("both", both),
    ] {
        let shed = Shed::new();
        let image = shed.add(&files, None).unwrap();
        assert_eq!(
            (&image.layers, &image.config.cmd),
            (&plain.diff_ids(), &vec!["/run".to_owned()]),
            "{what}"
        );
        let read =
            |layer: usize, name| std::fs::read(shed.images.layer(&image.layers[layer]).join(name)).unwrap();
        assert_eq!(
            (read(0, "etc/name"), read(1, "run")),
            (b"bottom".to_vec(), b"#!/bin/sh\n".to_vec()),
            "{what}"
        );
        let id = Digest::of(&serde_json::to_vec(&plain.document()).unwrap());
        assert_eq!(image.id, id, "{what}");

        let shed = Shed::new();
        let image = shed.add_archive(&files.archive(), None).unwrap();
        assert_eq!(
            (&image.layers, shed.there().len(), image.id),
            (&plain.diff_ids(), 2, id),
            "{what} as a tar"
        );
    }
}

#[test]
fn what_old_versions_of_docker_save_linked_is_found() {
    let same = vec![Entry::file("a", "a")];
    let picture = Picture::new([same.clone(), vec![Entry::file("b", "b")], same]);
    let files = Files::saved(&[(&picture, &["one"])]);
    let mut manifest: Value = serde_json::from_slice(&files.0["manifest.json"]).unwrap();
    manifest[0]["Layers"][2] = "third/layer.tar".into();
    let first = manifest[0]["Layers"][0].as_str().unwrap().to_owned();
    for link in [
        Entry::symlink("third/layer.tar", &format!("../{first}")),
        Entry::hard_link("third/layer.tar", &format!("./{first}")),
    ] {
        let mut entries = vec![link];
        for (name, content) in files.0.iter().filter(|(name, _)| *name != "manifest.json") {
            entries.push(Entry::file(&format!("./{name}"), content.clone()));
        }
        entries.push(Entry::file("manifest.json", serde_json::to_vec(&manifest).unwrap()));
        let shed = Shed::new();
        let image = shed.add_archive(&made::archive(&entries), None).unwrap();
        // The lower one of two equal layers shows nothing, and overlayfs refuses the same directory twice.
        assert_eq!(image.layers, picture.diff_ids()[1..]);
    }
    // Links that lead around in a circle or out of the archive lead to nothing.
    let circle =
        [Entry::symlink("manifest.json", "index.json"), Entry::symlink("index.json", "manifest.json")];
    assert_says(Shed::new().add_archive(&made::archive(&circle), None), &["not an image", "`index.json`"]);
    let out = [Entry::symlink("manifest.json", "../../../etc/passwd")];
    assert_says(Shed::new().add_archive(&made::archive(&out), None), &["not an image"]);
}

#[test]
fn what_is_no_image_is_refused_with_what_is_there_instead() {
    let shed = Shed::new();
    assert_says(
        shed.images.add(&shed.path("none"), None),
        &["none: there is no such file", "put the image there"],
    );
    let fifo = shed.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert_says(shed.images.add(&fifo, None), &["fifo: not an image", "neither a directory nor a file"]);
    std::fs::create_dir(shed.path("empty")).unwrap();
    assert_says(shed.images.add(&shed.path("empty"), None), &["index.json", "it is empty"]);
    assert_says(shed.add_archive(b"", None), &["it is empty"]);
    assert_says(shed.add_archive(&[7; 5000], None), &["neither a directory nor a tar"]);
    assert_says(shed.add_archive(b"hello", None), &["the archive", "ends in the middle"]);
    let saved = Files::saved(&[(&small(), &["one"])]).archive();
    assert_says(shed.add_archive(&gzip(&saved), None), &["compressed with gzip", "decompress it first"]);
    assert_says(shed.add_archive(b"\x28\xb5\x2f\xfd....", None), &["compressed with zstd"]);
    let root = made::archive(&[Entry::directory("bin"), Entry::file("etc/x", "")]);
    assert_says(shed.add_archive(&root, None), &["image.tar: not an image", "has `bin`, `etc`"]);
    let long = made::archive(&[Entry::file(&"long/".repeat(2000), "")]);
    assert_says(shed.add_archive(&long, None), &["too long or too deep"]);
    let many: Vec<_> = (0..10_001).map(|n| Entry::file(&n.to_string(), "")).collect();
    assert_says(shed.add_archive(&made::archive(&many), None), &["more than the limit of members"]);
    // Cut off in the content of a member, and in headers.
    for (cut, entry) in
        [(saved.len() - 1024 - 300, "manifest.json"), (saved.len() - 1024 - 600, ""), (100, "")]
    {
        let wanted = ["image.tar: the archive", entry, "ends in the middle", "make it anew"];
        assert_says(shed.add_archive(&saved[..cut], None), &wanted);
    }

    let layout = Files::layout(&[(&small(), "")]);
    for (name, content, wanted) in [
        ("oci-layout", &b"{}"[..], "imageLayoutVersion"),
        ("oci-layout", br#"{"imageLayoutVersion": "2.0.0"}"#, "`2.0.0`"),
        ("oci-layout", b"\xff", "oci-layout: not the JSON that it should be"),
        ("index.json", b"[]", "index.json: not the JSON that it should be"),
        ("index.json", br#"{"manifests": []}"#, "no image in its index"),
        ("index.json", &vec![b' '; (4 << 20) + 1], "4 MiB at most"),
    ] {
        let mut files = layout.clone();
        files.0.insert(name.to_owned(), content.to_vec());
        assert_says(shed.add(&files, None), &[wanted]);
    }
    let mut empty = Files::default();
    empty.0.insert("manifest.json".to_owned(), b"[]".to_vec());
    assert_says(shed.add(&empty, None), &["no image in its manifest.json"]);
    assert_eq!(shed.there(), BTreeSet::new());
}

#[test]
fn other_things_in_a_layout_are_no_images() {
    let shed = Shed::new();
    let (mut files, picture) = (Files::default(), small());
    let descriptor =
        |media_type: &str| json!({"mediaType": media_type, "digest": Digest::of(b"").to_string(), "size": 0});
    files.set_index(&[descriptor("application/vnd.in-toto+json")]);
    assert_says(shed.add(&files, None), &["index.json", "`application/vnd.in-toto+json`"]);

    // A chart has a manifest like an image, with another configuration.
    let config = files.add("application/vnd.cncf.helm.config.v1+json", b"{}");
    let chart = files.add_manifest(&json!({"config": config, "layers": []}));
    files.set_index(&[chart]);
    assert_says(shed.add(&files, None), &["helm.config", "no configuration of an image"]);

    // An attestation beside the image, as buildkit leaves it, is passed over.
    let mut attestation = files.add_manifest(&json!({"config": config, "layers": []}));
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    let image = files.add_image(&picture);
    files.set_index(&[attestation, image.clone()]);
    assert_eq!(shed.add(&files, None).unwrap().layers, picture.diff_ids());

    // A document that is both is read as one thing by some and as another by others.
    let name = blob(&image["digest"].as_str().unwrap().parse().unwrap());
    let mut document: Value = serde_json::from_slice(&files.0[&name]).unwrap();
    document["manifests"] = json!([]);
    let both = files.add_manifest(&document);
    files.set_index(&[both]);
    assert_says(shed.add(&files, None), &["both an index and a manifest"]);
    document["manifests"] = json!([image]);
    files.0.insert("index.json".to_owned(), serde_json::to_vec(&document).unwrap());
    assert_says(shed.add(&files, None), &["index.json", "both an index and a manifest"]);
}

#[test]
fn the_number_of_layers_is_that_of_the_configuration_and_bounded() {
    let shed = Shed::new();
    let (mut files, mut picture) = (Files::default(), small());
    let config = |files: &mut Files, picture: &Picture| {
        files.add(CONFIG, &serde_json::to_vec(&picture.document()).unwrap())
    };
    let whole = config(&mut files, &picture);
    let layer = files.add(LAYER, &picture.layers[0]);
    for (layers, wanted) in
        [(vec![], "1 at least"), (vec![layer.clone()], "diff_ids"), (vec![layer; 128], "127 at most")]
    {
        let manifest = files.add_manifest(&json!({"config": whole, "layers": layers}));
        files.set_index(&[manifest]);
        assert_says(shed.add(&files, None), &["the number of layers", wanted]);
    }
    picture.layers.pop();
    let mut saved = Files::saved(&[(&picture, &["one"])]);
    let manifest = String::from_utf8(saved.0["manifest.json"].clone()).unwrap();
    saved.0.insert(
        "manifest.json".to_owned(),
        manifest.replace("\"Layers\":[", "\"Layers\":[\"x\",").into_bytes(),
    );
    assert_says(shed.add(&saved, None), &["manifest.json: the number of layers is 2", "diff_ids"]);
}

#[test]
fn an_image_is_chosen_by_its_name() {
    let shed = Shed::new();
    let (one, mut two) = (small(), small());
    two.config = json!({"Cmd": ["/two"]});
    let cmd = |image: Result<Image, ImageError>| image.unwrap().config.cmd[0].clone();

    let mut layout = Files::layout(&[(&one, "docker.io/library/one:latest"), (&two, "example.com/two:2")]);
    for (name, wanted) in [
        ("docker.io/library/one:latest", "/run"),
        ("one", "/run"),
        ("library/one:latest", "/run"),
        ("example.com/two:2", "/two"),
    ] {
        assert_eq!(cmd(shed.add(&layout, Some(name))), wanted, "{name}");
    }
    let there = "docker.io/library/one:latest, example.com/two:2";
    for name in ["two", "one:1", "example.com/two", ""] {
        assert_says(shed.add(&layout, Some(name)), &["image: has no image", there]);
    }
    assert_says(shed.add(&layout, None), &["has several images: say which of", there]);

    // By digest, and by the whole name that stands beside a tag.
    let (first, mut second) = (layout.add_image(&one), layout.add_image(&two));
    let digest = second["digest"].as_str().unwrap().to_owned();
    assert_eq!(cmd(shed.add(&layout, Some(&digest))), "/two");
    assert_eq!(cmd(shed.add(&layout, Some(&format!("example.com/two@{digest}")))), "/two");
    second["annotations"] = json!({NAME: "2", "io.containerd.image.name": "docker.io/library/two:2"});
    layout.set_index(&[first.clone(), second.clone()]);
    assert_eq!(cmd(shed.add(&layout, Some("two:2"))), "/two");
    // Two names of one image are no choice.
    let mut again = first.clone();
    again["annotations"] = json!({NAME: "other"});
    layout.set_index(&[first, again]);
    assert_eq!(cmd(shed.add(&layout, None)), "/run");

    let saved = Files::saved(&[(&one, &["one:1", "one:latest"]), (&two, &["example.com/two:2"])]);
    assert_eq!(cmd(shed.add(&saved, Some("one"))), "/run");
    assert_eq!(cmd(shed.add(&saved, Some("example.com/two:2"))), "/two");
    assert_says(
        shed.add(&saved, Some("three")),
        &["no image `three`", "one:1, one:latest, example.com/two:2"],
    );
    assert_says(shed.add(&saved, None), &["has several images"]);
}

fn platform(architecture: &str, variant: &str) -> Platform {
    Platform { os: "linux".into(), architecture: architecture.into(), variant: variant.into() }
}

#[test]
fn the_image_for_this_machine_is_chosen() {
    let Shed { directory, images } = Shed::new();
    let shed = Shed { directory, images: images.with_platform(platform("arm", "v7")) };
    let mut files = Files::default();
    let mut descriptors = Vec::new();
    for (architecture, variant) in [("amd64", ""), ("arm", "v7"), ("arm", "v5"), ("arm", "v8")] {
        let mut picture = small();
        picture.platform = platform(architecture, variant);
        picture.config = json!({"Cmd": [picture.platform.to_string()]});
        let mut descriptor = files.add_image(&picture);
        descriptor["platform"] = json!({"os": "linux", "architecture": architecture, "variant": variant});
        descriptors.push(descriptor);
    }
    let cmd = |files: &Files| shed.add(files, None).map(|image| image.config.cmd[0].clone());
    files.set_index(&descriptors);
    assert_eq!(cmd(&files).unwrap(), "linux/arm/v7");
    let nested = files.add_index(&descriptors);
    files.set_index(&[nested]);
    assert_eq!(cmd(&files).unwrap(), "linux/arm/v7");
    files.set_index(&descriptors[2..]);
    assert_eq!(cmd(&files).unwrap(), "linux/arm/v5");
    files.set_index(&[descriptors[0].clone(), descriptors[3].clone()]);
    assert_says(
        cmd(&files),
        &["is for linux/amd64, linux/arm/v8, and this machine is linux/arm/v7", "get the image"],
    );

    // What the index does not tell, the configuration does.
    descriptors[0].as_object_mut().unwrap().remove("platform");
    files.set_index(&descriptors[..1]);
    assert_says(cmd(&files), &["is for linux/amd64, and this machine is linux/arm/v7"]);
    let mut silent = descriptors[1].clone();
    silent.as_object_mut().unwrap().remove("platform");
    files.set_index(&[silent, descriptors[0].clone()]);
    assert_says(cmd(&files), &["has several images: say which of sha256:"]);
    let foreign = Files::saved(&[(&small(), &["one"])]);
    assert_says(cmd(&foreign), &[&format!("is for {}", Platform::here())]);

    // Indexes within indexes, without an end.
    let mut deep = files.add_index(&descriptors);
    for _ in 0..6 {
        deep = files.add_index(&[deep]);
    }
    files.set_index(&[deep]);
    assert_says(cmd(&files), &["more than 4 deep"]);
}

#[test]
fn a_variant_runs_on_itself_and_on_newer_ones() {
    for (here, other, runs) in [
        (platform("amd64", ""), platform("amd64", "v1"), true),
        (platform("amd64", ""), platform("amd64", "v3"), false),
        (platform("amd64", "v3"), platform("amd64", "v3"), true),
        (platform("arm64", "v8"), platform("arm64", ""), true),
        (platform("arm64", "v8"), platform("arm64", "v9"), false),
        (platform("arm", "v6"), platform("arm", "v7"), false),
        (platform("arm", "v6"), platform("arm", "v5"), true),
        (platform("s390x", ""), platform("s390x", ""), true),
        (platform("amd64", ""), Platform { os: "windows".into(), ..platform("amd64", "") }, false),
        (platform("amd64", ""), Platform::default(), false),
    ] {
        assert_eq!(here.rank(&other).is_some(), runs, "{other} on {here}");
    }
    assert_eq!(Platform::here().rank(&Platform::here()), Some(0));
}

#[test]
fn a_blob_that_is_not_what_was_promised_is_refused_and_leaves_nothing() {
    for compressed in [false, true] {
        let mut picture = small();
        picture.compressed = compressed;
        let files = Files::layout(&[(&picture, "")]);
        let blobs: Vec<_> = files.0.keys().filter(|name| name.starts_with("blobs/")).collect();
        assert_eq!(blobs.len(), 4);
        for name in blobs {
            let shed = Shed::new();
            let mut bad = files.clone();
            bad.0.remove(name);
            assert_says(
                shed.add(&bad, None),
                &[name.as_str(), "is not there, though", "make the image anew"],
            );
            // One byte changed, at the end and in the middle; then one more; then cut off.
            for place in [1, 2] {
                let mut bad = files.clone();
                let content = bad.0.get_mut(name).unwrap();
                let at = content.len() / place - 1;
                content[at] ^= 1;
                assert_says(shed.add(&bad, None), &[name.as_str(), "has the digest", "should have sha256:"]);
            }
            let mut bad = files.clone();
            bad.0.get_mut(name).unwrap().push(0);
            assert_says(shed.add(&bad, None), &[name.as_str(), "bytes and should have"]);
            bad.0.get_mut(name).unwrap().truncate(100);
            assert_says(shed.add(&bad, None), &[name.as_str(), "has 100 bytes and should have"]);
            assert!(shed.there().len() <= 1, "the other layer at most");
        }
    }
}

#[test]
fn a_layer_that_is_not_the_one_of_the_configuration_is_refused() {
    let (shed, picture) = (Shed::new(), small());
    let files = Files::saved(&[(&picture, &["one"])]);
    let names: Vec<_> = files.0.keys().filter(|name| name.ends_with("layer.tar")).cloned().collect();
    let other = made::archive(&[Entry::file("other", "")]);
    for name in &names {
        let mut files = files.clone();
        files.0.insert(name.clone(), other.clone());
        assert_says(
            shed.add(&files, None),
            &[name, "uncompressed: has the digest", &Digest::of(&other).to_string()],
        );
        files.0.remove(name);
        assert_says(shed.add(&files, None), &[name, "is not there"]);
    }
    // The configuration itself is named after its digest.
    let mut changed = files.clone();
    let is_config = |name: &&String| !name.contains('/') && *name != "manifest.json";
    let config = changed.0.keys().find(is_config).unwrap().clone();
    changed.0.get_mut(&config).unwrap().push(b' ');
    assert_says(shed.add(&changed, None), &[&config, "has the digest"]);
    // A layer whose bytes are as promised, but not those of the configuration.
    let shed = Shed::new();
    let mut files = Files::default();
    let config = files.add(CONFIG, &serde_json::to_vec(&picture.document()).unwrap());
    let (first, second) = (files.add(LAYER, &picture.layers[0]), files.add(LAYER, &other));
    let manifest = files
        .add(MANIFEST, &serde_json::to_vec(&json!({"config": config, "layers": [first, second]})).unwrap());
    files.set_index(&[manifest]);
    assert_says(
        shed.add(&files, None),
        &["uncompressed: has the digest", &picture.diff_ids()[1].to_string()],
    );
    assert_eq!(shed.there(), BTreeSet::new());
}

#[test]
fn gzip_in_several_pieces_is_read_and_other_compression_is_refused() {
    let picture = small();
    let with_layers = |media_type: &str, squeeze: &dyn Fn(&[u8]) -> Vec<u8>| {
        let mut files = Files::default();
        let config = files.add(CONFIG, &serde_json::to_vec(&picture.document()).unwrap());
        let layers: Vec<_> =
            picture.layers.iter().map(|layer| files.add(media_type, &squeeze(layer))).collect();
        let manifest = files.add_manifest(&json!({"config": config, "layers": layers}));
        files.set_index(&[manifest]);
        Shed::new().add(&files, None).map(|image| image.layers)
    };
    let pieces = |layer: &[u8]| layer.chunks(700).flat_map(gzip).collect::<Vec<_>>();
    assert_eq!(with_layers(&format!("{LAYER}+gzip"), &pieces).unwrap(), picture.diff_ids());
    assert_eq!(
        with_layers("application/vnd.docker.image.rootfs.diff.tar.gzip", &gzip).unwrap(),
        picture.diff_ids()
    );
    // The type says one thing, the bytes another.
    assert_eq!(with_layers(LAYER, &gzip).unwrap(), picture.diff_ids());
    let zstd = |_: &[u8]| b"\x28\xb5\x2f\xfd\x00".to_vec();
    for media_type in [LAYER.to_owned(), format!("{LAYER}+zstd")] {
        assert_says(
            with_layers(&media_type, &zstd),
            &["blobs/sha256/", "compressed with zstd", "gzip or uncompressed"],
        );
    }
    let xz = |_: &[u8]| b"\xfd7zXZ\0\0".to_vec();
    assert_says(with_layers(LAYER, &xz), &["compressed with xz"]);
    for media_type in [format!("{LAYER}+gzip+encrypted"), "text/plain".to_owned()] {
        assert_says(with_layers(&media_type, &gzip), &[&media_type, "no layer that can be run"]);
    }
    let cut = |layer: &[u8]| gzip(layer)[..40].to_vec();
    assert_says(with_layers(LAYER, &cut), &["blobs/sha256/", "make it anew"]);
}

#[test]
fn a_configuration_says_how_to_run_the_image() {
    let config = |config: Value| {
        let mut picture = small();
        picture.config = config;
        Shed::new().add(&Files::layout(&[(&picture, "")]), None).map(|image| image.config)
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let full = config(json!({
        "Entrypoint": ["/bin/driver", "--verbose"], "Cmd": ["--endpoint", "x"], "Env": ["PATH=/bin:/sbin", "EMPTY=", "A=b=c"],
        "WorkingDir": "/data", "User": "65532:staff", "StopSignal": "SIGRTMIN+3", "Labels": {"any": "thing"},
    }));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let wanted = Config {
        platform: Platform::here(),
        entrypoint: words(&["/bin/driver", "--verbose"]),
        cmd: words(&["--endpoint", "x"]),
        env: vec![pair("PATH", "/bin:/sbin"), pair("EMPTY", ""), pair("A", "b=c")],
        working_dir: "/data".to_owned(),
        user: Some(User { user: "65532".to_owned(), group: Some("staff".to_owned()) }),
        stop_signal: Some(37),
        diff_ids: small().diff_ids(),
    };
    assert_eq!(full.unwrap(), wanted);
    let bare = Config {
        entrypoint: vec![],
        cmd: vec![],
        env: vec![],
        working_dir: "/".to_owned(),
        user: None,
        stop_signal: None,
        ..wanted
    };
    for nothing in [
        json!({}),
        Value::Null,
        json!({"Entrypoint": null, "Cmd": null, "Env": null, "WorkingDir": "", "User": "", "StopSignal": ""}),
    ] {
        assert_eq!(config(nothing.clone()).unwrap(), bare, "{nothing}");
    }
    let signal = |text: &str| config(json!({"StopSignal": text})).unwrap().stop_signal;
    let signals = ["SIGTERM", "int", "9", "SIGRTMAX-1", "sigquit", "RTMAX"].map(signal);
    assert_eq!(signals, [15, 2, 9, 63, 3, 64].map(Some));
    for (bad, wanted) in [
        (json!({"Env": ["PATH"]}), "config.Env is `PATH`, and should be NAME=VALUE"),
        (json!({"Env": ["=x"]}), "config.Env"),
        (json!({"Env": ["A=\u{0}"]}), "config.Env"),
        (json!({"Cmd": ["a\u{0}b"]}), "config.Cmd"),
        (json!({"Entrypoint": "sh"}), "not the JSON"),
        (json!({"WorkingDir": "data"}), "config.WorkingDir"),
        (json!({"WorkingDir": "/dev/../proc/self/fd/7"}), "config.WorkingDir"),
        (json!({"User": ":staff"}), "config.User"),
        (json!({"User": "a:b:c"}), "config.User"),
        (json!({"StopSignal": "SIGNAL"}), "config.StopSignal is `SIGNAL`"),
        (json!({"StopSignal": "65"}), "config.StopSignal"),
        (json!({"StopSignal": "SIGRTMIN+31"}), "config.StopSignal"),
    ] {
        assert_says(config(bad), &[wanted]);
    }
    let mut document = small().document();
    document["rootfs"]["type"] = "squashfs".into();
    let mut files = Files::default();
    let config = files.add(CONFIG, &serde_json::to_vec(&document).unwrap());
    let manifest = files.add_manifest(&json!({"config": config, "layers": []}));
    files.set_index(&[manifest]);
    assert_says(Shed::new().add(&files, None), &["rootfs.type is `squashfs`"]);
}

#[test]
fn a_layer_is_unpacked_once_and_shared() {
    let (shed, picture) = (Shed::new(), small());
    let first = shed.add(&Files::layout(&[(&picture, "")]), None).unwrap();
    let inode = |layer: &Digest| shed.images.layer(layer).metadata().unwrap().ino();
    let before = inode(&first.layers[0]);
    // Another image with the same lower layer, whose file is not even there.
    let mut other = picture.clone();
    other.layers[1] = made::archive(&[Entry::file("other", "")]);
    let mut files = Files::layout(&[(&other, "")]);
    files.0.remove(&blob(&other.diff_ids()[0])).unwrap();
    let second = shed.add(&files, None).unwrap();
    assert_eq!((inode(&second.layers[0]), shed.there().len()), (before, 3));
    assert_eq!(shed.path("images").metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn two_that_want_the_same_layers_at_once_get_the_same() {
    let (shed, picture) = (Shed::new(), small());
    let path = shed.put(&Files::layout(&[(&picture, "")]));
    let all: Vec<_> = std::thread::scope(|scope| {
        let add = || shed.images.add(&path, None).unwrap().layers;
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(add)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|layers| *layers == picture.diff_ids()));
    assert_eq!(shed.there().len(), 2);
}

#[test]
fn what_a_crash_left_is_removed_and_a_directory_has_one_user() {
    let shed = Shed::new();
    let root = shed.path("images");
    assert_says(Images::open(&root), &["images: in use by another process"]);
    let image = shed.add(&Files::layout(&[(&small(), "")]), None).unwrap();
    std::fs::create_dir_all(root.join("tmp/7/half")).unwrap();
    let Shed { directory, images } = shed;
    drop((images, image));
    let images = Images::open(&root).unwrap();
    let shed = Shed { directory, images };
    assert_eq!(shed.there().len(), 2);
}

#[test]
fn layers_go_when_nobody_uses_them() {
    let (shed, picture) = (Shed::new(), small());
    let files = Files::layout(&[(&picture, "")]);
    let image = shed.add(&files, None).unwrap();
    let again = shed.add(&files, None).unwrap();
    let (all, none) = (BTreeSet::from_iter(picture.diff_ids()), BTreeSet::new());
    assert_eq!(shed.images.remove_unused(&none).unwrap(), [], "someone has it in hand");
    drop(image);
    assert_eq!(shed.images.remove_unused(&none).unwrap(), [], "someone still has");
    drop(again);
    assert_eq!(shed.images.remove_unused(&all).unwrap(), []);
    assert_eq!(shed.there(), all);
    let [kept, gone] = picture.diff_ids().try_into().unwrap();
    assert_eq!(shed.images.remove_unused(&BTreeSet::from([kept.clone()])).unwrap(), [gone]);
    assert_eq!(shed.there(), BTreeSet::from([kept.clone()]));
    assert_eq!(shed.images.remove_unused(&none).unwrap(), [kept]);
    assert_eq!(shed.there(), none);
    assert_eq!(shed.add(&files, None).unwrap().layers, picture.diff_ids());
}

#[test]
fn a_link_in_a_layout_leads_nowhere() {
    let (shed, picture) = (Shed::new(), small());
    let path = shed.put(&Files::layout(&[(&picture, "")]));
    let layer = path.join(blob(&picture.diff_ids()[0]));
    std::fs::rename(&layer, shed.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(shed.path("elsewhere"), &layer).unwrap();
    assert_says(
        shed.images.add(&path, None),
        &[picture.diff_ids()[0].hex(), "it is a link", "leads elsewhere"],
    );
    // Nor does a pipe make anybody wait.
    std::fs::remove_file(&layer).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &layer, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert_says(shed.images.add(&path, None), &["is not there"]);
    // A name in a document that leads out of the directory.
    let mut files = Files::saved(&[(&picture, &["one"])]);
    let manifest = json!([{"Config": "../../etc/passwd", "RepoTags": null, "Layers": []}]);
    files.0.insert("manifest.json".to_owned(), serde_json::to_vec(&manifest).unwrap());
    assert_says(shed.add(&files, None), &["../../etc/passwd: it is a link or a path that leads elsewhere"]);
    assert_says(shed.add_archive(&files.archive(), None), &["../../etc/passwd: is not there"]);
}
