//! Which files make an image: the documents of an OCI image layout, or of `docker save`.
//!
//! Reads and checks documents; unpacks nothing.
use super::config::{Config, Platform};
use super::digest::Digest;
use super::error::ImageError;
use super::source::{Source, not_an_image};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::collections::{BTreeMap, BTreeSet};

/// The most layers; what overlayfs and `docker` take is near.
const LAYERS: usize = 127;
/// How many indexes may lie within one another.
const NESTED: usize = 4;

const INDEXES: &[&str] =
    &["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFESTS: &[&str] =
    &["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIGS: &[&str] =
    &["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYER_TYPES: &[&str] = &[
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];

/// The files of one image.
pub(crate) struct Found {
    /// The digest of the configuration, by which an image is known.
    pub(crate) id: Digest,
    pub(crate) config: Config,
    /// The bytes that it was read from, of which `id` is the digest.
    pub(crate) document: Vec<u8>,
    /// Lowest first.
    pub(crate) layers: Vec<Layer>,
}

/// One layer.
#[derive(Clone)]
pub(crate) struct Layer {
    /// The file.
    pub(crate) name: String,
    /// Digest and size of the file; `docker save` does not tell.
    pub(crate) blob: Option<(Digest, u64)>,
    /// The digest of what is in the file, uncompressed.
    pub(crate) diff_id: Digest,
}

#[derive(Deserialize)]
struct Version {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
    // A document that could be read as both is made to be read differently by different people.
    #[serde(default)]
    config: Option<IgnoredAny>,
    #[serde(default)]
    layers: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Option<IgnoredAny>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    platform: Option<Platform>,
}

/// One image of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Finds the image of this name for this machine, or the only one.
pub(crate) fn find(source: &Source, reference: Option<&str>, here: &Platform) -> Result<Found, ImageError> {
    // `docker save` writes both today; the layout tells more.
    let found = if source.file("oci-layout")?.is_some() && source.file("index.json")?.is_some() {
        in_layout(source, reference, here)?
    } else if source.file("manifest.json")?.is_some() {
        in_saved(source, reference)?
    } else {
        let names = source.names();
        let has = if names.is_empty() { "is empty".to_owned() } else { format!("has {}", shortened(&names)) };
        return Err(not_an_image(&source.path, &has));
    };
    let platform = &found.config.platform;
    if here.rank(platform).is_none() {
        let there = vec![platform.to_string()];
        return Err(ImageError::OtherPlatform { image: source.path.clone(), wanted: here.clone(), there });
    }
    Ok(found)
}

fn shortened(names: &[String]) -> String {
    let shown: Vec<_> = names.iter().take(8).map(|name| format!("`{}`", name.escape_default())).collect();
    if names.len() > shown.len() { shown.join(", ") + " and more" } else { shown.join(", ") }
}

fn in_layout(source: &Source, reference: Option<&str>, here: &Platform) -> Result<Found, ImageError> {
    let version: Version = document(source, "oci-layout")?;
    if version.version.split('.').next() != Some("1") {
        let (at, value) = (source.at("oci-layout"), format!("`{}`", version.version.escape_default()));
        return Err(ImageError::BadField { at, field: "imageLayoutVersion", value, wanted: "1.0.0" });
    }
    let index = indexed(source, "index.json", document(source, "index.json")?)?;
    let mut chosen = choose(source, named(source, index, reference)?, here)?;
    let mut way = "index.json".to_owned();
    for _ in 0..NESTED {
        let name = blob_name(&chosen.digest);
        let content = verified(source, &chosen, &way)?;
        if MANIFESTS.contains(&chosen.media_type.as_str()) {
            return from_manifest(source, &name, parsed(source, &name, &content)?);
        }
        let index = indexed(source, &name, parsed(source, &name, &content)?)?;
        (chosen, way) = (choose(source, index, here)?, name);
    }
    let value = format!("more than {NESTED} deep");
    Err(ImageError::BadField { at: source.at(&way), field: "the index", value, wanted: "one of images" })
}

/// What in an index may be an image; signatures, attestations and the like are passed over.
fn indexed(source: &Source, name: &str, index: Index) -> Result<Vec<Descriptor>, ImageError> {
    if index.config.is_some() || index.layers.is_some() {
        return Err(two_faced(source, name));
    }
    let is_image = |one: &Descriptor| {
        let attests = |notes: &BTreeMap<String, String>| notes.contains_key("vnd.docker.reference.type");
        let known =
            INDEXES.contains(&one.media_type.as_str()) || MANIFESTS.contains(&one.media_type.as_str());
        known && !one.annotations.as_ref().is_some_and(attests)
    };
    match index.manifests.first() {
        Some(first) if !index.manifests.iter().any(is_image) => {
            let media_type = first.media_type.clone();
            Err(ImageError::MediaType { at: source.at(name), media_type, wanted: "image or index" })
        }
        Some(_) => Ok(index.manifests.into_iter().filter(is_image).collect()),
        None => Err(not_an_image(&source.path, "has no image in its index")),
    }
}

fn two_faced(source: &Source, name: &str) -> ImageError {
    let value = "both an index and a manifest".to_owned();
    ImageError::BadField { at: source.at(name), field: "the document", value, wanted: "one of the two" }
}

fn names_of(one: &Descriptor) -> impl Iterator<Item = &String> {
    // The second is what `docker save` and containerd write: the whole name, where the first is the tag alone.
    let keys = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
    keys.into_iter().filter_map(|key| one.annotations.as_ref()?.get(key))
}

/// Those of this name. Without a name all, if they are one image.
fn named(
    source: &Source,
    all: Vec<Descriptor>,
    reference: Option<&str>,
) -> Result<Vec<Descriptor>, ImageError> {
    let names = || all.iter().flat_map(names_of).cloned().collect::<BTreeSet<_>>().into_iter().collect();
    let Some(wanted) = reference else {
        let labels: BTreeSet<_> = all.iter().map(|one| names_of(one).last()).collect();
        let digests: BTreeSet<_> = all.iter().map(|one| &one.digest).collect();
        if labels.len() > 1 && digests.len() > 1 {
            return Err(ImageError::Ambiguous { image: source.path.clone(), there: names() });
        }
        return Ok(all);
    };
    let digest = wanted.rsplit('@').next().and_then(|text| text.parse::<Digest>().ok());
    let fits = |one: &Descriptor| match &digest {
        Some(digest) => one.digest == *digest,
        None => names_of(one).any(|name| is_same(name, wanted)),
    };
    let found: Vec<_> = all.iter().filter(|one| fits(one)).cloned().collect();
    if found.is_empty() {
        let (image, wanted) = (source.path.clone(), wanted.to_owned());
        return Err(ImageError::NoSuchReference { image, wanted, there: names() });
    }
    Ok(found)
}

/// The one that runs best here. One that does not say for what it is counts only when it is alone.
fn choose(source: &Source, all: Vec<Descriptor>, here: &Platform) -> Result<Descriptor, ImageError> {
    let rank = |one: &Descriptor| one.platform.as_ref().and_then(|platform| here.rank(platform));
    let fitting = all.iter().filter_map(|one| Some((rank(one)?, one)));
    if let Some((_, best)) = fitting.min_by_key(|(rank, _)| *rank) {
        return Ok(best.clone());
    }
    let silent: BTreeMap<_, _> =
        all.iter().filter(|one| one.platform.is_none()).map(|one| (&one.digest, one)).collect();
    match (silent.len(), silent.into_values().next()) {
        (1, Some(one)) => Ok(one.clone()),
        (0, _) => {
            let said: BTreeSet<_> =
                all.iter().filter_map(|one| Some(one.platform.as_ref()?.to_string())).collect();
            let (image, there) = (source.path.clone(), said.into_iter().collect());
            Err(ImageError::OtherPlatform { image, wanted: here.clone(), there })
        }
        _ => {
            let there = all.iter().map(|one| one.digest.to_string()).collect();
            Err(ImageError::Ambiguous { image: source.path.clone(), there })
        }
    }
}

fn from_manifest(source: &Source, name: &str, manifest: Manifest) -> Result<Found, ImageError> {
    if manifest.manifests.is_some() {
        return Err(two_faced(source, name));
    }
    if !CONFIGS.contains(&manifest.config.media_type.as_str()) {
        let (at, media_type) = (source.at(name), manifest.config.media_type);
        return Err(ImageError::MediaType { at, media_type, wanted: "configuration of an image" });
    }
    let content = verified(source, &manifest.config, name)?;
    let config = Config::parse(&source.at(&blob_name(&manifest.config.digest)), &content)?;
    let mut layers = Vec::new();
    counted(source, name, manifest.layers.len(), &config)?;
    for (layer, diff_id) in manifest.layers.into_iter().zip(&config.diff_ids) {
        let name = blob_name(&layer.digest);
        let rest = LAYER_TYPES.iter().find_map(|known| layer.media_type.strip_prefix(known));
        match rest {
            Some("" | "+gzip" | ".gzip") => {}
            Some("+zstd" | ".zstd") => {
                return Err(ImageError::Compression { at: source.at(&name), format: "zstd" });
            }
            _ => {
                let (at, media_type) = (source.at(&name), layer.media_type);
                return Err(ImageError::MediaType { at, media_type, wanted: "layer" });
            }
        }
        layers.push(Layer { name, blob: Some((layer.digest, layer.size)), diff_id: diff_id.clone() });
    }
    Ok(Found { id: manifest.config.digest, config, document: content, layers })
}

fn counted(source: &Source, name: &str, layers: usize, config: &Config) -> Result<(), ImageError> {
    let bad = |wanted| {
        let (at, value) = (source.at(name), layers.to_string());
        Err(ImageError::BadField { at, field: "the number of layers", value, wanted })
    };
    match layers {
        0 => bad("1 at least"),
        count if count > LAYERS => bad("127 at most"),
        count if count != config.diff_ids.len() => bad("that of diff_ids in the configuration"),
        _ => Ok(()),
    }
}

fn in_saved(source: &Source, reference: Option<&str>) -> Result<Found, ImageError> {
    let all: Vec<Saved> = document(source, "manifest.json")?;
    let tags = |one: &Saved| one.repo_tags.clone().unwrap_or_default();
    let there = || all.iter().flat_map(tags).collect::<Vec<_>>();
    let image = source.path.clone();
    let chosen = match (reference, all.as_slice()) {
        (None, [one]) => one,
        (None, []) => return Err(not_an_image(&image, "has no image in its manifest.json")),
        (None, _) => return Err(ImageError::Ambiguous { image, there: there() }),
        (Some(wanted), _) => {
            let fits = |one: &&Saved| tags(one).iter().any(|tag| is_same(tag, wanted));
            let missing = || ImageError::NoSuchReference { image, wanted: wanted.to_owned(), there: there() };
            all.iter().find(fits).ok_or_else(missing)?
        }
    };
    let missing = |name: &str| {
        let by = "manifest.json".to_owned();
        ImageError::MissingBlob { at: source.at(name), by }
    };
    let content = source.document(&chosen.config)?.ok_or_else(|| missing(&chosen.config))?;
    let id = Digest::of(&content);
    // The file is mostly named after its digest.
    let stem = chosen.config.trim_end_matches(".json").rsplit('/').next().and_then(Digest::from_hex);
    if let Some(wanted) = stem.filter(|wanted| *wanted != id) {
        return Err(ImageError::WrongDigest { at: source.at(&chosen.config), wanted, found: id });
    }
    let config = Config::parse(&source.at(&chosen.config), &content)?;
    counted(source, "manifest.json", chosen.layers.len(), &config)?;
    let layer = |(name, diff_id): (&String, &Digest)| {
        let (name, diff_id) = (name.clone(), diff_id.clone());
        Layer { name, blob: None, diff_id }
    };
    let layers = chosen.layers.iter().zip(&config.diff_ids).map(layer).collect();
    Ok(Found { id, config, document: content, layers })
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// The content of a document that is what it should be.
fn verified(source: &Source, wanted: &Descriptor, by: &str) -> Result<Vec<u8>, ImageError> {
    let name = blob_name(&wanted.digest);
    let missing = || ImageError::MissingBlob { at: source.at(&name), by: by.to_owned() };
    let content = source.document(&name)?.ok_or_else(missing)?;
    let (at, size) = (source.at(&name), content.len() as u64);
    if size != wanted.size {
        return Err(ImageError::WrongSize { at, wanted: wanted.size, found: size });
    }
    let found = Digest::of(&content);
    if found != wanted.digest {
        return Err(ImageError::WrongDigest { at, wanted: wanted.digest.clone(), found });
    }
    Ok(content)
}

fn document<T: DeserializeOwned>(source: &Source, name: &str) -> Result<T, ImageError> {
    let missing = || not_an_image(&source.path, &format!("has no file `{name}`"));
    parsed(source, name, &source.document(name)?.ok_or_else(missing)?)
}

fn parsed<T: DeserializeOwned>(source: &Source, name: &str, content: &[u8]) -> Result<T, ImageError> {
    let bad = |error| ImageError::BadDocument { at: source.at(name), source: error };
    serde_json::from_slice(content).map_err(bad)
}

/// Whether two names are of the same image, written short or in full.
fn is_same(one: &str, other: &str) -> bool {
    one == other || in_full(one) == in_full(other)
}

fn in_full(name: &str) -> String {
    let hosted = |host: &str| host.contains(['.', ':']) || host == "localhost";
    let with_host = match name.split_once('/') {
        Some((host, _)) if hosted(host) => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    };
    let last = with_host.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { with_host } else { with_host + ":latest" }
}
