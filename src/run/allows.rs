//! What a node allows: by its file, and by the flags of `up` and `node`, which go before it.
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use serde::Deserialize;
use serde_json::Value;

use super::join::HOST_PATHS;
use crate::cli::manifest;
use crate::csi::UnixConnector;
use crate::node::Grants;
use crate::plan::container::Trust;
use crate::sys::containerd::SOCKET;

/// The node's file in the data directory.
const FILE: &str = "node.yaml";
/// What its document says that it is.
const KIND: (&str, &str) = ("wharfline.dev/v1alpha1", "NodeConfiguration");
/// How tasks may be run: a container that is not privileged has less than a process of the host.
pub(super) const RUNTIMES: [&str; 5] = ["external", "process", "systemd", "oci", "containerd"];

/// Arguments of `wharfline up` and `wharfline node`. What is not given is as the node's file says; what either of them calls
/// privileged is.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// What this node allows, as a file; node.yaml in the data directory when not given, if there is one. The flags below go
    /// before it
    #[arg(long, value_name = "FILE")]
    pub node_config: Option<PathBuf>,
    /// Beneath which directories an allocation's hostPath may publish a volume; may be given several times; /srv, /mnt and
    /// /run/wharfline when not given
    #[arg(long = "host-path", value_name = "DIR")]
    pub host_paths: Vec<PathBuf>,
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

/// What the node allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allows {
    /// Beneath which directories volumes may be published on the host.
    pub host_paths: Vec<PathBuf>,
    /// What containers may have.
    pub containers: Grants,
    /// The words of the runtimes that may be used.
    pub runtimes: Vec<String>,
    /// The socket of the node's containerd, be it there or not.
    pub containerd: PathBuf,
}

/// What the node's file holds beside what it is. A field that is not there is as without a file; an empty list allows
/// nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Configuration {
    runtimes: Option<Vec<String>>,
    host_paths: Option<Vec<PathBuf>>,
    image_dirs: Option<Vec<PathBuf>>,
    bind_paths: Option<Vec<PathBuf>>,
    allow_privileged: bool,
    containerd_socket: Option<PathBuf>,
}

impl Args {
    /// What the node's file and the flags allow together.
    ///
    /// # Errors
    /// A path that is not absolute, a runtime that there is not, a file that cannot be read, that says something else than a
    /// node's file may, or that others than its owner may write.
    pub(super) fn allows(&self, data_dir: &Path) -> anyhow::Result<Allows> {
        let (file, said) = self.configuration(data_dir)?;
        let usual = Grants::usual(data_dir);
        let runtimes = choose("--runtime", &self.runtimes, ("runtimes", said.runtimes), &file);
        let known = RUNTIMES.join(", ");
        if let Some((runtimes, source)) = &runtimes
            && let Some(other) = runtimes.iter().find(|word| !RUNTIMES.contains(&word.as_str()))
        {
            return Err(anyhow!("{source}: there is no runtime \"{other}\"; there are {known}"));
        }
        let paths = |flag, given: &Vec<PathBuf>, said, usual: Vec<PathBuf>| {
            let Some((paths, source)) = choose(flag, given, said, &file) else { return Ok(usual) };
            let wrong = paths.iter().find(|path| !path.is_absolute() || path.parent().is_none());
            match wrong {
                Some(path) => Err(anyhow!("{source}: {} must be an absolute path below /", path.display())),
                None => Ok(paths),
            }
        };
        let host_paths = HOST_PATHS.iter().map(PathBuf::from).collect();
        let containerd = said.containerd_socket.unwrap_or_else(|| SOCKET.into());
        if let Err(error) = UnixConnector::new(&containerd) {
            return Err(anyhow!("{file}: containerdSocket: {error}"));
        }
        let trusted = self.allow_privileged || said.allow_privileged;
        Ok(Allows {
            host_paths: paths("--host-path", &self.host_paths, ("hostPaths", said.host_paths), host_paths)?,
            runtimes: runtimes.map_or_else(|| RUNTIMES.map(str::to_owned).to_vec(), |(words, _)| words),
            containerd,
            containers: Grants {
                image_dirs: paths(
                    "--image-dir",
                    &self.image_dirs,
                    ("imageDirs", said.image_dirs),
                    usual.image_dirs,
                )?,
                bind_paths: paths(
                    "--bind-path",
                    &self.bind_paths,
                    ("bindPaths", said.bind_paths),
                    usual.bind_paths,
                )?,
                trust: if trusted { Trust::Privileged } else { usual.trust },
            },
        })
    }

    /// The node's file as it was named, and what it says; nothing if there is none and none was named.
    fn configuration(&self, data_dir: &Path) -> anyhow::Result<(String, Configuration)> {
        let path = self.node_config.clone().unwrap_or_else(|| data_dir.join(FILE));
        let name = path.display().to_string();
        // A link that leads nowhere is a file that cannot be read.
        let absent =
            std::fs::symlink_metadata(&path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        if absent && self.node_config.is_none() {
            return Ok((name, Configuration::default()));
        }
        let text = read(&path).with_context(|| format!("the node's file {name}"))?;
        let mut object = manifest::parse_value(&text, &name)?;
        let Value::Object(fields) = &mut object else {
            return Err(anyhow!("{name}: must be an object of kind {}", KIND.1));
        };
        for (field, wanted) in [("apiVersion", KIND.0), ("kind", KIND.1)] {
            let said = fields.remove(field).unwrap_or_default();
            if said != wanted {
                return Err(anyhow!("{name}: {field} is {said}; it must be \"{wanted}\""));
            }
        }
        if let Some((field, _)) = fields.iter().find(|(_, value)| value.is_null()) {
            let advice = "leave it out for what is usual, or write [] for nothing at all";
            return Err(anyhow!("{name}: {field} has no value; {advice}"));
        }
        let said = serde_path_to_error::deserialize(object)
            .map_err(|error| anyhow!("{name}: {}: {}", error.path(), error.inner()))?;
        Ok((name, said))
    }
}

/// The file's text, if root alone says what is in it.
fn read(path: &Path) -> anyhow::Result<String> {
    // A pipe in its place is not waited for.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(anyhow!("is no regular file"));
    }
    if found.uid() != 0 && found.uid() != rustix::process::geteuid().as_raw() {
        return Err(anyhow!(
            "belongs to another user than root, and says what root does here; chown it to root"
        ));
    }
    if found.mode() & 0o022 != 0 {
        return Err(anyhow!(
            "others than its owner may write it, and it says what root does here; chmod go-w it"
        ));
    }
    let mut text = String::new();
    file.take(manifest::MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// What a flag says, else what the file says, and who said it.
fn choose<T: Clone>(
    flag: &str,
    given: &[T],
    (field, said): (&str, Option<Vec<T>>),
    file: &str,
) -> Option<(Vec<T>, String)> {
    match (given.is_empty(), said) {
        (false, _) => Some((given.to_vec(), flag.to_owned())),
        (true, Some(said)) => Some((said, format!("{file}: {field}"))),
        (true, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        allows: Args,
    }

    fn told(data_dir: &Path, flags: &[&str]) -> anyhow::Result<Allows> {
        Command::parse_from(["x"].iter().chain(flags)).allows.allows(data_dir)
    }

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    /// A data directory whose node.yaml is this.
    fn with(text: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, format!("apiVersion: {}\nkind: {}\n{text}", KIND.0, KIND.1)).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        directory
    }

    #[test]
    fn nothing_is_allowed_that_is_not_said() {
        let usual = told(Path::new("/D"), &[]).unwrap();
        assert_eq!(usual.containers, Grants::usual(Path::new("/D")));
        assert_eq!(usual.containers.image_dirs, paths(&["/D/image-archives"]));
        assert_eq!((usual.containers.bind_paths, usual.containers.trust), (vec![], Trust::Confined));
        assert_eq!(usual.containerd, Path::new(SOCKET));
        assert_eq!((usual.runtimes.len(), usual.host_paths), (RUNTIMES.len(), paths(&HOST_PATHS)));
    }

    #[test]
    fn a_flag_goes_before_the_file_field_by_field() {
        let all = "runtimes: [process]\nhostPaths: [/a, /b]\nimageDirs: [/c]\nbindPaths: [/d]\nallowPrivileged: true\ncontainerdSocket: /c/c.sock\n";
        let by_file = Allows {
            host_paths: paths(&["/a", "/b"]),
            containers: Grants {
                image_dirs: paths(&["/c"]),
                bind_paths: paths(&["/d"]),
                trust: Trust::Privileged,
            },
            runtimes: vec!["process".to_owned()],
            containerd: "/c/c.sock".into(),
        };
        let file = with(all);
        assert_eq!(told(file.path(), &[]).unwrap(), by_file);
        let other = with("");
        let named = file.path().join(FILE);
        assert_eq!(told(other.path(), &["--node-config", named.to_str().unwrap()]).unwrap(), by_file);
        let flags = ["--host-path", "/x", "--image-dir", "/y", "--bind-path", "/z", "--runtime", "oci"];
        let by_flags = Allows {
            host_paths: paths(&["/x"]),
            containers: Grants {
                image_dirs: paths(&["/y"]),
                bind_paths: paths(&["/z"]),
                trust: Trust::Privileged,
            },
            runtimes: vec!["oci".to_owned()],
            containerd: "/c/c.sock".into(),
        };
        assert_eq!(told(file.path(), &flags).unwrap(), by_flags);
        let confined = told(other.path(), &flags).unwrap();
        assert_eq!(confined.containers.trust, Trust::Confined);
        assert_eq!(told(other.path(), &["--allow-privileged"]).unwrap().containers.trust, Trust::Privileged);
        // What is said to be empty is empty.
        let none = told(with("runtimes: []\nhostPaths: []\nimageDirs: []\n").path(), &[]).unwrap();
        assert_eq!((none.runtimes, none.host_paths, none.containers.image_dirs), (vec![], vec![], vec![]));
    }

    #[test]
    fn what_is_wrong_is_named_and_nothing_is_taken_for_granted() {
        for (text, names) in [
            ("hostPath: [/a]", &["node.yaml", "hostPath", "hostPaths"][..]),
            ("hostPaths: /a", &["node.yaml", "hostPaths"]),
            ("hostPaths: [a]", &["node.yaml: hostPaths", "a must be an absolute path"]),
            ("bindPaths: [/]", &["node.yaml: bindPaths", "/ must be an absolute path below /"]),
            (
                "runtimes: [docker]",
                &["node.yaml: runtimes", "docker", "external, process, systemd, oci, containerd"],
            ),
            ("allowPrivileged: maybe", &["node.yaml", "allowPrivileged"]),
            ("runtimes: [process", &["node.yaml"]),
            ("containerdSocket: c.sock", &["node.yaml: containerdSocket", "c.sock", "not absolute"]),
            ("runtimes:\n  # - process\n", &["node.yaml: runtimes has no value", "[]"]),
        ] {
            let error = format!("{:#}", told(with(text).path(), &[]).unwrap_err());
            assert!(names.iter().all(|name| error.contains(name)), "{text}: {error}");
        }
        for flags in [["--image-dir", "a"], ["--bind-path", "../c"], ["--host-path", "/"]] {
            let error = told(Path::new("/D"), &flags).unwrap_err().to_string();
            assert!(error.contains(flags[0]), "{error}");
        }
        let missing = told(Path::new("/D"), &["--node-config", "/no/such.yaml"]).unwrap_err();
        assert!(format!("{missing:#}").contains("/no/such.yaml"), "{missing:#}");
        let file = with("");
        std::fs::write(file.path().join(FILE), "kind: Pod\napiVersion: v1\n").unwrap();
        let error = told(file.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("apiVersion is \"v1\"; it must be \"wharfline.dev/v1alpha1\""), "{error}");
    }

    #[test]
    fn a_file_that_anybody_may_write_says_nothing() {
        let file = with("");
        for (mode, taken) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path().join(FILE), permissions).unwrap();
            let answer = told(file.path(), &[]);
            assert_eq!(answer.is_ok(), taken, "{mode:o}: {answer:?}");
        }
        // What is there and cannot be read is no leave to do as without a file.
        let path = file.path().join(FILE);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/no/such/file", &path).unwrap();
        assert!(told(file.path(), &[]).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(told(file.path(), &[]).is_ok());
        let directory = file.path().to_str().unwrap();
        assert!(told(file.path(), &["--node-config", directory]).is_err());
    }
}
