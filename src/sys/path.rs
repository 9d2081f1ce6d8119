//! Paths that cannot leave the place they were made for.
//!
//! Ids that come from objects or plugins never become path components: callers hash them first. A [`TreePath`]
//! is checked when it is made, so that nothing later has to ask.
use std::path::{Path, PathBuf};

/// Longest component, in bytes. Hashes of ours have 64 hexadecimal digits at most.
const COMPONENT: usize = 64;
/// Most components of a [`TreePath`].
const DEPTH: usize = 8;

/// A path beneath the daemon's own tree of volumes: components of `a-z`, `0-9` and `-`, relative, never `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreePath(Vec<String>);

/// Why a path was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// The component is empty, too long, or has a character outside the alphabet.
    #[error("`{0}` is no component of the tree: 1 to 64 of a-z, 0-9 and -")]
    Component(String),
    /// More components than the tree has levels.
    #[error("more than {DEPTH} components")]
    TooDeep,
    /// The path is not absolute, has `.` or `..` in it, or is not longer than the directory that allows it.
    #[error("`{0}` is not an absolute path without `.` and `..` beneath an allowed directory")]
    NotBeneath(PathBuf),
}

impl TreePath {
    /// The tree itself.
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// A path of these components, outermost first.
    pub fn new<I>(components: I) -> Result<Self, BadPath>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        components.into_iter().try_fold(Self::root(), |path, component| path.join(component))
    }

    /// This path with one more component.
    pub fn join(&self, component: impl Into<String>) -> Result<Self, BadPath> {
        let component = component.into();
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if component.is_empty() || component.len() > COMPONENT || !component.bytes().all(allowed) {
            return Err(BadPath::Component(component));
        }
        if self.0.len() == DEPTH {
            return Err(BadPath::TooDeep);
        }
        let mut components = self.0.clone();
        components.push(component);
        Ok(Self(components))
    }

    /// The directory that holds this one; `None` for the tree itself.
    pub fn parent(&self) -> Option<Self> {
        let (_, rest) = self.0.split_last()?;
        Some(Self(rest.to_vec()))
    }

    /// The components, outermost first.
    pub fn components(&self) -> &[String] {
        &self.0
    }

    /// As a relative path; `.` for the tree itself.
    pub fn relative(&self) -> PathBuf {
        if self.0.is_empty() { PathBuf::from(".") } else { self.0.iter().collect() }
    }
}

impl std::fmt::Display for TreePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

/// A path beneath a directory that the node's operator allows for publications.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPath {
    allowed: PathBuf,
    beneath: PathBuf,
}

impl HostPath {
    /// `path` must be absolute, without `.` and `..`, and longer than `allowed`. What lies there is checked only
    /// when it is opened: no symbolic link is followed beneath `allowed`.
    pub fn new(allowed: &Path, path: &Path) -> Result<Self, BadPath> {
        use std::path::Component;
        let bad = || BadPath::NotBeneath(path.to_owned());
        // The text decides too: `components` drops `.` and doubled slashes without a word.
        if path.as_os_str().as_encoded_bytes().split(|&byte| byte == b'/').any(|part| part == b".") {
            return Err(bad());
        }
        let beneath = path.strip_prefix(allowed).map_err(|_| bad())?;
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !allowed.is_absolute() || beneath.as_os_str().is_empty() || !beneath.components().all(plain) {
            return Err(bad());
        }
        Ok(Self { allowed: allowed.to_owned(), beneath: beneath.components().collect() })
    }

    /// The directory that the operator allows.
    pub fn allowed(&self) -> &Path {
        &self.allowed
    }

    /// The rest, relative to it.
    pub fn beneath(&self) -> &Path {
        &self.beneath
    }

    /// The whole path.
    pub fn absolute(&self) -> PathBuf {
        self.allowed.join(&self.beneath)
    }
}

/// Where something is or shall be mounted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// Beneath the daemon's own tree.
    Tree(TreePath),
    /// Beneath a directory that the operator allows.
    Host(HostPath),
}

impl From<TreePath> for Place {
    fn from(path: TreePath) -> Self {
        Self::Tree(path)
    }
}

impl From<HostPath> for Place {
    fn from(path: HostPath) -> Self {
        Self::Host(path)
    }
}

/// A directory within a volume, as a person names it: `app/data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    parts: Vec<String>,
    make: bool,
}

impl SubPath {
    /// Whether what is missing is made. Refused are empty parts, `.` and `..`.
    pub fn new(path: &str, make: bool) -> Result<Self, BadPath> {
        let parts: Vec<String> = path.split('/').map(str::to_owned).collect();
        match parts.iter().find(|part| matches!(part.as_str(), "" | "." | "..") || part.contains('\0')) {
            Some(bad) => Err(BadPath::Component(bad.clone())),
            None => Ok(Self { parts, make }),
        }
    }

    /// Its parts, outermost first.
    pub fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Whether what is missing is made.
    pub fn makes(&self) -> bool {
        self.make
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_path_is_made_of_the_alphabet_alone() {
        assert_eq!(TreePath::new(["ab-1", "x"]).unwrap().to_string(), "ab-1/x");
        assert_eq!(TreePath::new(["ab", "x"]).unwrap().parent(), Some(TreePath::new(["ab"]).unwrap()));
        assert_eq!(TreePath::root().relative(), Path::new("."));
        for bad in ["", ".", "..", "a/b", "A", "a_b", "é", "a\0", &"a".repeat(65)] {
            assert_eq!(TreePath::new([bad]), Err(BadPath::Component(bad.to_owned())), "{bad:?}");
        }
        assert_eq!(TreePath::new(["a"; 9]), Err(BadPath::TooDeep));
    }

    #[test]
    fn a_host_path_lies_beneath_its_directory() {
        let path = HostPath::new(Path::new("/srv"), Path::new("/srv//a/b")).unwrap();
        assert_eq!(path.absolute(), Path::new("/srv/a/b"));
        for bad in
            ["/srv", "/srv/", "srv/a", "/srv/../etc", "/srv/a/../../etc", "/srvx/a", "/srv/./a", "/srv/a/."]
        {
            assert!(HostPath::new(Path::new("/srv"), Path::new(bad)).is_err(), "{bad}");
        }
        assert!(HostPath::new(Path::new("srv"), Path::new("srv/a")).is_err());
    }
}
