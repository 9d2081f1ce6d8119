//! What `wharfline down` is given for the store that it makes for itself: plugins that have to run once more, for what they brought up
//! nobody else takes down.
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

use crate::cli::manifest::{self, Document};
use crate::node::journal::{Entry, Journal};
use crate::sys::files::Files;

/// Of what kinds there may be, and whether they are in a namespace.
const KINDS: [(&str, bool); 4] =
    [("Plugin", false), ("Allocation", true), ("ConfigMap", true), ("Secret", true)];
/// The name that the writes carry.
const MANAGER: &str = "wharfline-down";
/// Between two looks at what is up.
const AWHILE: Duration = Duration::from_millis(50);

/// What the files say.
#[derive(Debug, Default)]
pub(super) struct Given(Vec<Document>);

impl Given {
    /// Reads the files.
    ///
    /// # Errors
    /// When one cannot be read, is no manifest, or has what is of no use here: says which, and where.
    pub(super) fn read(files: &[PathBuf]) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for file in files {
            all.extend(Self::of_file(file).context("--apply")?);
        }
        Ok(Self(all))
    }

    fn of_file(file: &Path) -> anyhow::Result<Vec<Document>> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).context(name.clone())?;
        let documents = manifest::parse(&text, &name)?;
        for Document { object, origin } in &documents {
            let kind = object["kind"].as_str().unwrap_or_default();
            if !KINDS.iter().any(|(known, _)| *known == kind) {
                let known = KINDS.map(|(known, _)| known).join(", ");
                return Err(anyhow!("{origin}: kind: \"{kind}\" is of no use here; there may be {known}"));
            }
            if object["metadata"]["name"].as_str().is_none_or(str::is_empty) {
                return Err(anyhow!("{origin}: metadata.name: is missing"));
            }
        }
        Ok(documents)
    }

    /// What is given is for a store that is made for it.
    ///
    /// # Errors
    /// When there is anything.
    pub(super) fn refuse_beside_a_store(&self) -> anyhow::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        Err(anyhow!(
            "--apply: this machine has a store of its own: `wharfline up`, `wharfline apply`, and come back"
        ))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies all of it.
    ///
    /// # Errors
    /// What the server says to it, with the place where it stands.
    async fn apply(&self, client: &Client) -> anyhow::Result<()> {
        for Document { object, origin } in &self.0 {
            let object: DynamicObject = serde_json::from_value(object.clone()).context(origin.clone())?;
            let types = object.types.clone().unwrap_or_default();
            let kind = GroupVersionKind::try_from(&types).context(origin.clone())?;
            let resource = ApiResource::from_gvk(&kind);
            let namespaced = KINDS.iter().any(|(known, namespaced)| *known == kind.kind && *namespaced);
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            let api: Api<DynamicObject> = if namespaced {
                Api::namespaced_with(client.clone(), namespace, &resource)
            } else {
                Api::all_with(client.clone(), &resource)
            };
            let name = object.metadata.name.clone().unwrap_or_default();
            let parameters = PatchParams::apply(MANAGER).force();
            api.patch(&name, &parameters, &Patch::Apply(&object)).await.context(origin.clone())?;
        }
        Ok(())
    }

    /// Applies all of it, and waits until nothing is up here any more that the journal has of its plugins.
    ///
    /// # Errors
    /// What the server says to it, with the place where it stands.
    pub(super) async fn work(
        &self,
        client: &Client,
        files: &dyn Files,
        journal: &Path,
    ) -> anyhow::Result<()> {
        self.apply(client).await?;
        let mut again = tokio::time::interval(AWHILE);
        loop {
            again.tick().await;
            // While it is being written it may not be read to its end.
            let Ok(entries) = Journal::entries(files, journal).await else { continue };
            let up =
                |entry: &Entry| matches!(entry, Entry::Attachment(volume) if self.serves(&volume.plugin));
            if !entries.iter().any(up) {
                return Ok(());
            }
        }
    }

    /// Whether it has a Plugin of this name, or an allocation that serves one.
    fn serves(&self, plugin: &str) -> bool {
        let serves = |task: &serde_json::Value| task["csiPlugin"]["pluginName"] == plugin;
        self.0.iter().any(|Document { object, .. }| {
            let named = object["kind"] == "Plugin" && object["metadata"]["name"] == plugin;
            named || object["spec"]["tasks"].as_array().is_some_and(|tasks| tasks.iter().any(serves))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_no_use_is_refused_with_its_place() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("it.yaml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Given::read(std::slice::from_ref(&file)).map_err(|error| format!("{error:#}"))
        };
        let plugin = "apiVersion: wharfline.dev/v1alpha1\nkind: Plugin\nmetadata: {name: nfs}\n";
        let given = read(plugin).unwrap();
        assert!(given.serves("nfs") && !given.serves("smb") && !given.is_empty());
        let app = "kind: Allocation\nmetadata: {name: a}\nspec: {tasks: [{csiPlugin: {pluginName: smb}}]}\n";
        assert!(read(app).unwrap().serves("smb"));
        for (text, why) in [
            (
                format!("{plugin}---\nkind: Node\nmetadata: {{name: n1}}\n"),
                "it.yaml:5: kind: \"Node\" is of no use",
            ),
            ("kind: Plugin\n".to_owned(), "it.yaml:1: metadata.name: is missing"),
            ("kind: [".to_owned(), "--apply: "),
        ] {
            let said = read(&text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let missing = Given::read(&[place.path().join("none")]).unwrap_err();
        assert!(format!("{missing:#}").contains("none: "), "{missing:#}");
    }
}
