//! Images made by hand: layers from a list of entries, put together as an OCI image layout or as `docker save` does.
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use wharfline::sys::image::{Digest, Platform};

/// One entry of a layer.
#[derive(Clone)]
pub struct Entry {
    pub kind: u8,
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub mode: u32,
    pub owner: (u64, u64),
    pub mtime: u64,
    pub content: Vec<u8>,
    /// Records of an extended header before it.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    fn new(kind: u8, path: &str, mode: u32) -> Self {
        Self {
            kind,
            path: path.into(),
            link: Vec::new(),
            mode,
            owner: (0, 0),
            mtime: 1_000_000_000,
            content: Vec::new(),
            extended: Vec::new(),
        }
    }

    pub fn file(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { content: content.into(), ..Self::new(b'0', path, 0o644) }
    }

    /// A program.
    pub fn program(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { mode: 0o755, ..Self::file(path, content) }
    }

    pub fn directory(path: &str) -> Self {
        Self::new(b'5', path, 0o755)
    }

    pub fn symlink(path: &str, target: &str) -> Self {
        Self { link: target.into(), ..Self::new(b'2', path, 0o777) }
    }

    pub fn hard_link(path: &str, target: &str) -> Self {
        Self { link: target.into(), ..Self::new(b'1', path, 0o644) }
    }

    pub fn other(kind: u8, path: &str) -> Self {
        Self::new(kind, path, 0o600)
    }

    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    #[must_use]
    pub fn owner(self, user: u64, group: u64) -> Self {
        Self { owner: (user, group), ..self }
    }

    #[must_use]
    pub fn extended(mut self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        self.extended.push((key.into(), value.into()));
        self
    }

    #[must_use]
    pub fn xattr(self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.extended(&format!("SCHILY.xattr.{name}"), value)
    }

    /// The blocks of it.
    pub fn blocks(&self) -> Vec<u8> {
        let mut extended = self.extended.clone();
        let mut path = self.path.as_slice();
        if path.len() > 100 {
            extended.push((b"path".to_vec(), self.path.clone()));
            path = b"long";
        }
        let mut link = self.link.as_slice();
        if link.len() > 100 {
            extended.push((b"linkpath".to_vec(), self.link.clone()));
            link = b"long";
        }
        let mut blocks = Vec::new();
        if !extended.is_empty() {
            let records: Vec<_> = extended.iter().map(|(key, value)| record(key, value)).collect();
            blocks = Entry { kind: b'x', ..Self::file("extended", records.concat()) }.blocks();
        }
        let mut header = tar::Header::new_ustar();
        {
            let old = header.as_old_mut();
            old.name[..path.len()].copy_from_slice(path);
            old.linkname[..link.len()].copy_from_slice(link);
            old.linkflag = [self.kind];
        }
        header.set_mode(self.mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(self.mtime);
        header.set_size(self.content.len() as u64);
        header.set_cksum();
        blocks.extend_from_slice(header.as_bytes());
        blocks.extend_from_slice(&self.content);
        blocks.resize(blocks.len().next_multiple_of(512), 0);
        blocks
    }
}

/// One record of an extended header; its length counts its own digits.
pub fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let bare = key.len() + value.len() + 3; // a space, an equals sign, a newline
    let length = (bare..bare + 20).find(|length| length.to_string().len() + bare == *length).unwrap();
    let mut record = format!("{length} ").into_bytes();
    record.extend_from_slice(key);
    record.push(b'=');
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}

/// The entries as an archive.
pub fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut archive = entries.iter().map(Entry::blocks).collect::<Vec<_>>().concat();
    archive.resize(archive.len() + 1024, 0);
    archive
}

pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// An image to be put into some form.
#[derive(Clone)]
pub struct Picture {
    /// Archives, lowest first.
    pub layers: Vec<Vec<u8>>,
    /// The part of the configuration that says how to run it.
    pub config: Value,
    pub platform: Platform,
    pub compressed: bool,
}

impl Picture {
    pub fn new(layers: impl IntoIterator<Item = Vec<Entry>>) -> Self {
        let layers = layers.into_iter().map(|entries| archive(&entries)).collect();
        Self { layers, config: json!({}), platform: Platform::here(), compressed: false }
    }

    pub fn diff_ids(&self) -> Vec<Digest> {
        self.layers.iter().map(|layer| Digest::of(layer)).collect()
    }

    /// The whole configuration.
    pub fn document(&self) -> Value {
        let diff_ids: Vec<_> = self.diff_ids().iter().map(ToString::to_string).collect();
        json!({
            "os": self.platform.os, "architecture": self.platform.architecture, "variant": self.platform.variant,
            "config": self.config, "rootfs": {"type": "layers", "diff_ids": diff_ids},
        })
    }
}

/// The files of an image, by their paths.
#[derive(Clone, Default)]
pub struct Files(pub BTreeMap<String, Vec<u8>>);

pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const NAME: &str = "org.opencontainers.image.ref.name";

impl Files {
    /// An OCI image layout of images, each with a name if that is not empty.
    pub fn layout(images: &[(&Picture, &str)]) -> Self {
        let mut files = Self::default();
        let named = |(picture, name): &(&Picture, &str)| {
            let mut descriptor = files.add_image(picture);
            if !name.is_empty() {
                descriptor["annotations"] = json!({ NAME: name });
            }
            descriptor
        };
        let descriptors: Vec<_> = images.iter().map(named).collect();
        files.set_index(&descriptors);
        files
    }

    /// What `docker save` writes of images, each with its tags.
    pub fn saved(images: &[(&Picture, &[&str])]) -> Self {
        let mut files = Self::default();
        let mut all = Vec::new();
        for (picture, tags) in images {
            let document = serde_json::to_vec(&picture.document()).unwrap();
            let config = format!("{}.json", Digest::of(&document).hex());
            let mut layers = Vec::new();
            for layer in &picture.layers {
                let name = format!("{}/layer.tar", Digest::of(layer).hex());
                files.0.insert(name.clone(), layer.clone());
                layers.push(name);
            }
            files.0.insert(config.clone(), document);
            all.push(json!({"Config": config, "RepoTags": tags, "Layers": layers}));
        }
        files.0.insert("manifest.json".to_owned(), serde_json::to_vec(&all).unwrap());
        files
    }

    /// Makes the files an image layout with this index.
    pub fn set_index(&mut self, descriptors: &[Value]) {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": descriptors});
        self.0.insert("index.json".to_owned(), serde_json::to_vec(&index).unwrap());
        self.0.insert("oci-layout".to_owned(), br#"{"imageLayoutVersion": "1.0.0"}"#.to_vec());
    }

    /// Adds an index, and says what it is.
    pub fn add_index(&mut self, descriptors: &[Value]) -> Value {
        self.add(INDEX, &serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": descriptors})).unwrap())
    }

    /// Adds the blobs of an image, and says what its manifest is.
    pub fn add_image(&mut self, picture: &Picture) -> Value {
        let config = self.add(CONFIG, &serde_json::to_vec(&picture.document()).unwrap());
        let layers: Vec<_> =
            picture.layers.iter().map(|layer| self.add_layer(layer, picture.compressed)).collect();
        self.add_manifest(&json!({"schemaVersion": 2, "config": config, "layers": layers}))
    }

    pub fn add_manifest(&mut self, manifest: &Value) -> Value {
        self.add(MANIFEST, &serde_json::to_vec(manifest).unwrap())
    }

    fn add_layer(&mut self, layer: &[u8], compressed: bool) -> Value {
        if compressed { self.add(&format!("{LAYER}+gzip"), &gzip(layer)) } else { self.add(LAYER, layer) }
    }

    /// Adds a blob, and says what it is.
    pub fn add(&mut self, media_type: &str, content: &[u8]) -> Value {
        let digest = Digest::of(content);
        self.0.insert(blob(&digest), content.to_vec());
        json!({"mediaType": media_type, "digest": digest.to_string(), "size": content.len()})
    }

    /// Writes the files beneath a directory.
    pub fn write(&self, directory: &Path) {
        for (name, content) in &self.0 {
            let path = directory.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    /// The files as an archive.
    pub fn archive(&self) -> Vec<u8> {
        let entries: Vec<_> =
            self.0.iter().map(|(name, content)| Entry::file(name, content.clone())).collect();
        archive(&entries)
    }
}

/// Where a layout keeps what has this digest.
pub fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// An image with a shell and the usual small programs: a static busybox, which `tools/fetch-runc` puts where this looks
/// first.
pub fn busybox() -> Picture {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/busybox");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let elsewhere = std::env::split_paths(&path).map(|directory| directory.join("busybox"));
    let program = [fetched].into_iter().chain(elsewhere).find(|program| program.is_file());
    let program = program.expect("a static busybox: run tools/fetch-runc");
    let listed = std::process::Command::new(&program).arg("--list").output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    let directories = ["bin", "dev", "etc", "proc", "root", "run", "sys", "var"].map(Entry::directory);
    let mut entries = directories.to_vec();
    entries.push(Entry::symlink("var/run", "/run"));
    entries.push(Entry::directory("tmp").mode(0o1777));
    entries.push(Entry::file("etc/passwd", PASSWD));
    entries.push(Entry::file("etc/group", GROUP));
    entries.push(Entry::program("bin/busybox", std::fs::read(&program).unwrap()));
    let applets = names.lines().filter(|name| *name != "busybox" && !name.contains('/'));
    entries.extend(applets.map(|name| Entry::symlink(&format!("bin/{name}"), "busybox")));
    Picture { config: json!({ "Cmd": ["/bin/sh"] }), ..Picture::new([entries]) }
}

/// Who is known in [`busybox`].
const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\ndaemon:x:1:\nlp:x:7:\nnogroup:x:65534:\n";

/// Writes [`busybox`] as one file, as `docker save` does.
pub fn save_busybox(file: &Path) {
    let image = busybox();
    std::fs::write(file, Files::saved(&[(&image, &["busybox:test"])]).archive()).unwrap();
}
