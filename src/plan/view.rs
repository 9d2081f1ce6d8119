//! Where a driver sees the node's tree of volumes, and so which paths it is told.
//!
//! A path in a request is one in the driver's own root. A container may have the tree at another path than the node; then
//! that is its view. Each instance is told its own, whoever staged: another path is not there for it. What people are
//! told are the node's paths.
use std::path::{Path, PathBuf};

use crate::api::allocation::CsiPlugin;

/// The view of a task that serves a plugin: where it has the tree; none where that is the node's path, and of one that
/// has no tree.
pub fn of(plugin: &CsiPlugin) -> Option<PathBuf> {
    let named = plugin.stage_publish_base_dir.as_str();
    (plugin.role.node() && !named.is_empty()).then(|| PathBuf::from(plain(named)))
}

/// The path that an instance is told of what lies beneath the tree of the node.
pub fn told(tree: &Path, view: Option<&Path>, beneath: &Path) -> PathBuf {
    view.unwrap_or(tree).join(beneath)
}

/// Equal for equal paths.
pub(super) fn plain(path: &str) -> String {
    parts(path).flat_map(|part| ["/", part]).collect()
}

/// The names of an absolute path.
pub(super) fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !matches!(*part, "" | "."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::plugin::Role;

    fn driver(role: Role, base: &str) -> CsiPlugin {
        CsiPlugin {
            plugin_name: "p".to_owned(),
            role,
            mount_dir: "/sock".to_owned(),
            stage_publish_base_dir: base.to_owned(),
            health_timeout: None,
        }
    }

    #[test]
    fn a_driver_is_told_the_paths_that_it_has() {
        for (role, base, view, wanted) in [
            (Role::Node, "", None, "/var/lib/w/volumes/staging/a1"),
            (Role::Node, "/csi", Some("/csi"), "/csi/staging/a1"),
            (Role::Monolith, "/csi", Some("/csi"), "/csi/staging/a1"),
            (Role::Monolith, "//csi/./data/", Some("/csi/data"), "/csi/data/staging/a1"),
            // It has no tree, and is told no path.
            (Role::Controller, "/csi", None, "/var/lib/w/volumes/staging/a1"),
        ] {
            let found = of(&driver(role, base));
            assert_eq!(found.as_deref(), view.map(Path::new), "{role:?} {base}");
            let tree = Path::new("/var/lib/w/volumes");
            let told = told(tree, found.as_deref(), Path::new("staging/a1"));
            assert_eq!(told, Path::new(wanted), "{role:?} {base}");
        }
    }
}
