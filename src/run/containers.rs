//! What the containers of a node may have, as `up` and `node` are told.
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::node::Grants;
use crate::plan::container::Trust;

/// Arguments of `wharfline up` and `wharfline node`.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Beneath which directories the images of containers lie; may be given several times; image-archives in the data
    /// directory when not given
    #[arg(long = "image-dir", value_name = "DIR")]
    pub image_dirs: Vec<PathBuf>,
    /// Beneath which directories lies what containers may be given with hostPaths; may be given several times; nothing when
    /// not given
    #[arg(long = "bind-path", value_name = "DIR")]
    pub bind_paths: Vec<PathBuf>,
    /// Allow containers what reaches beyond them: privileged, hostPid, hostDevices, devices, and capabilities that
    /// containers do not usually have
    #[arg(long)]
    pub allow_privileged: bool,
    /// How tasks may be run here; may be given several times; all of them when not given. What a task of the runtime
    /// process may do is not limited by the flags for containers
    #[arg(long = "runtime", value_name = "NAME", value_parser = RUNTIMES)]
    pub runtimes: Vec<String>,
}

/// How tasks may be run.
const RUNTIMES: [&str; 3] = ["external", "process", "oci"];

impl Args {
    /// The words of the runtimes that may be used.
    pub(super) fn usable(&self) -> Vec<String> {
        if self.runtimes.is_empty() { RUNTIMES.map(str::to_owned).to_vec() } else { self.runtimes.clone() }
    }

    /// What that allows.
    ///
    /// # Errors
    /// A path that is not absolute.
    pub(super) fn grants(&self, data_dir: &Path) -> anyhow::Result<Grants> {
        for (flag, paths) in [("--image-dir", &self.image_dirs), ("--bind-path", &self.bind_paths)] {
            if let Some(path) = paths.iter().find(|path| !path.is_absolute()) {
                return Err(anyhow!("{flag} {}: must be an absolute path", path.display()));
            }
        }
        let mut grants = Grants::usual(data_dir);
        if !self.image_dirs.is_empty() {
            grants.image_dirs.clone_from(&self.image_dirs);
        }
        grants.bind_paths.clone_from(&self.bind_paths);
        if self.allow_privileged {
            grants.trust = Trust::Privileged;
        }
        Ok(grants)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        containers: Args,
    }

    #[test]
    fn nothing_is_allowed_that_is_not_said() {
        let told = |flags: &[&str]| {
            let all = ["x"].iter().chain(flags);
            Command::parse_from(all).containers.grants(Path::new("/D"))
        };
        let usual = told(&[]).unwrap();
        assert_eq!(usual, Grants::usual(Path::new("/D")));
        assert_eq!(
            (usual.image_dirs, usual.trust),
            (vec![PathBuf::from("/D/image-archives")], Trust::Confined)
        );
        let more =
            told(&["--image-dir", "/a", "--image-dir", "/b", "--bind-path", "/c", "--allow-privileged"]);
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let expected =
            Grants { image_dirs: paths(&["/a", "/b"]), bind_paths: paths(&["/c"]), trust: Trust::Privileged };
        assert_eq!(more.unwrap(), expected);
        for flags in [["--image-dir", "a"], ["--bind-path", "../c"]] {
            assert!(told(&flags).unwrap_err().to_string().contains(flags[0]));
        }
    }
}
