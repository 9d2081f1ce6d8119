//! Which kubeconfig is used, and the client made of it.
//!
//! Order: `--kubeconfig`, `WHARFLINE_KUBECONFIG`, the data directory's file when it can be read, the file in the
//! home directory. kubectl's own file is never used unasked.
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::args::Options;
use super::failure::{Failure, chain};
use super::servers;

/// Where a kubeconfig may be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// `--kubeconfig` or its variable: used or failed on, never passed over.
    pub(crate) named: Option<PathBuf>,
    /// The data directory.
    pub(crate) data_dir: PathBuf,
    /// The home directory.
    pub(crate) home: Option<PathBuf>,
}

impl Places {
    /// The places for these options.
    pub(crate) fn of(options: &Options) -> Self {
        let (named, data_dir) = (options.kubeconfig.clone(), options.data_dir.clone());
        Self { named, data_dir, home: std::env::home_dir() }
    }

    /// The file to use: the named one, else the first that can be opened.
    pub(crate) fn choose(&self) -> Result<PathBuf, Failure> {
        if let Some(named) = &self.named {
            return Ok(named.clone());
        }
        let usual = self.usual();
        if let Some(found) = usual.iter().find(|path| std::fs::File::open(path).is_ok()) {
            return Ok(found.clone());
        }
        let mut failure = Failure::failed("no kubeconfig was found");
        for path in &usual {
            failure = failure.because(format!("{} {}", path.display(), trouble(path)));
        }
        Err(failure.try_this(
            "start `wharfline up`, run as the user that it runs as, or name a file with --kubeconfig or WHARFLINE_KUBECONFIG",
        ))
    }

    fn usual(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.data_dir.join("kubeconfig")];
        paths.extend(self.home.iter().map(|home| home.join(".config/wharfline/kubeconfig")));
        paths
    }
}

fn trouble(path: &Path) -> String {
    match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        Err(error) => format!("cannot be read: {error}"),
        Ok(_) => "cannot be read".to_owned(),
    }
}

/// A client of the server that the file names, and the namespace that its context names.
pub(crate) async fn client(path: &Path) -> Result<Client, Failure> {
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        Failure::failed(format!("the kubeconfig {} cannot be used", path.display())).because(chain(error))
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|e| unusable(&e))?;
    let proxied =
        kubeconfig.clusters.iter().any(|c| c.cluster.as_ref().is_some_and(|c| c.proxy_url.is_some()));
    let others = servers::others(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|e| unusable(&e))?;
    if !proxied {
        // A proxy of the environment is for the world outside, not for the server named here.
        config.proxy_url = None;
    }
    // kube would repeat what it was told not to (504: the write may have been done), and wait in silence.
    config.default_retry = false;
    config.connect_timeout = Some(std::time::Duration::from_secs(5));
    let mut configs = vec![config.clone()];
    for url in others {
        let url = url.parse().map_err(|error: http::uri::InvalidUri| unusable(&error))?;
        let mut other = config.clone();
        other.cluster_url = url;
        configs.push(other);
    }
    let clients: Result<Vec<Client>, _> = configs.into_iter().map(Client::try_from).collect();
    let mut clients = clients.map_err(|e| unusable(&e))?;
    Ok(if clients.len() > 1 { servers::several(clients) } else { clients.remove(0) })
}

/// A kubeconfig for another user of the server that the file names, all in one.
pub(crate) fn for_user(path: &Path, name: &str, token: &str) -> Result<Value, Failure> {
    let unusable = |why: String| {
        Failure::failed(format!("the kubeconfig {} cannot be used", path.display())).because(why)
    };
    let own = Kubeconfig::read_from(path).map_err(|error| unusable(chain(&error)))?;
    let current = own.current_context.unwrap_or_default();
    let context = own.contexts.into_iter().find(|context| context.name == current);
    let wanted = context.and_then(|context| context.context).map(|context| context.cluster);
    let cluster = own.clusters.into_iter().find(|cluster| Some(&cluster.name) == wanted.as_ref());
    let mut cluster = cluster
        .and_then(|cluster| cluster.cluster)
        .ok_or_else(|| unusable("its current context names no cluster".to_owned()))?;
    if let Some(file) = cluster.certificate_authority.take() {
        let pem = std::fs::read(&file).map_err(|error| unusable(format!("{file}: {error}")))?;
        cluster.certificate_authority_data = Some(STANDARD.encode(pem));
    }
    let cluster = serde_json::to_value(cluster).map_err(|error| unusable(error.to_string()))?;
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "wharfline", "cluster": cluster }],
        "users": [{ "name": name, "user": { "token": token } }],
        "contexts": [{
            "name": "wharfline",
            "context": { "cluster": "wharfline", "user": name, "namespace": "default" },
        }],
        "current-context": "wharfline",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_readable_file_wins_and_a_named_one_always() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        let home = dir.path().join("home");
        let mut places = Places { named: None, data_dir: data_dir.clone(), home: Some(home.clone()) };

        let failure = places.choose().unwrap_err();
        assert_eq!(failure.why.len(), 2, "{failure}");
        assert!(failure.why.iter().all(|why| why.ends_with("does not exist")), "{failure}");

        // kubectl's own file is not looked at.
        std::fs::create_dir_all(home.join(".kube")).unwrap();
        std::fs::write(home.join(".kube/config"), "").unwrap();
        assert!(places.choose().is_err());

        std::fs::create_dir_all(home.join(".config/wharfline")).unwrap();
        std::fs::write(home.join(".config/wharfline/kubeconfig"), "").unwrap();
        assert_eq!(places.choose(), Ok(home.join(".config/wharfline/kubeconfig")));

        std::fs::create_dir_all(&data_dir).unwrap();
        std::fs::write(data_dir.join("kubeconfig"), "").unwrap();
        assert_eq!(places.choose(), Ok(data_dir.join("kubeconfig")));

        places.named = Some(PathBuf::from("/nowhere"));
        assert_eq!(places.choose(), Ok(PathBuf::from("/nowhere")));
    }
}
