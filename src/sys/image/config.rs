//! What an image says of how it wants to be run, and for which machine it is.
use super::digest::Digest;
use super::error::{At, ImageError};
use serde::Deserialize;
use std::fmt;
use std::path::{Component, Path};

/// Operating system, architecture and variant, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// Such as `linux`.
    pub os: String,
    /// Such as `amd64`.
    pub architecture: String,
    /// Such as `v7`; mostly empty.
    pub variant: String,
}

impl Platform {
    /// This machine.
    pub fn here() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "x86" => ("386", ""),
            "aarch64" => ("arm64", "v8"),
            "arm" => ("arm", "v7"),
            "powerpc64" if cfg!(target_endian = "little") => ("ppc64le", ""),
            "powerpc64" => ("ppc64", ""),
            "loongarch64" => ("loong64", ""),
            other => (other, ""),
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// How well something for `other` runs here: the lower the better, none for not at all.
    pub fn rank(&self, other: &Self) -> Option<usize> {
        if (&self.os, &self.architecture) != (&other.os, &other.architecture) {
            return None;
        }
        // Older ones of the same architecture run too; newer ones may want instructions that are not there.
        let older: &[&str] = match (self.architecture.as_str(), self.variant.as_str()) {
            ("amd64", _) => &["", "v1"],
            ("arm64", _) => &["v8", ""],
            ("arm", "v7" | "") => &["v7", "v6", "v5", ""],
            ("arm", "v6") => &["v6", "v5", ""],
            _ => &[""],
        };
        if self.variant == other.variant {
            return Some(0);
        }
        older.iter().position(|variant| *variant == other.variant).map(|at| at + 1)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}

/// As whom the image wants to run. Names are looked up in the container's own files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// A name or a number.
    pub user: String,
    /// A name or a number, if it says one.
    pub group: Option<String>,
}

/// What an image says of how it wants to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// For which machine it is.
    pub platform: Platform,
    /// The program and its first arguments; empty when the image has none.
    pub entrypoint: Vec<String>,
    /// The arguments, or the whole command without an entry point.
    pub cmd: Vec<String>,
    /// Variables, in the image's order.
    pub env: Vec<(String, String)>,
    /// An absolute path; `/` when the image says nothing.
    pub working_dir: String,
    /// None: root.
    pub user: Option<User>,
    /// The number of the signal that asks it to end; none: SIGTERM.
    pub stop_signal: Option<i32>,
    /// The digests of the uncompressed layers, lowest first.
    pub diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(flatten)]
    platform: Platform,
    #[serde(default)]
    config: Option<Section>,
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Section {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct RootFs {
    r#type: String,
    diff_ids: Vec<Digest>,
}

impl Config {
    /// Reads the document; `at` is for messages.
    pub(crate) fn parse(at: &At, content: &[u8]) -> Result<Self, ImageError> {
        let document: Document = serde_json::from_slice(content)
            .map_err(|source| ImageError::BadDocument { at: at.clone(), source })?;
        let bad = |field, value: &str, wanted| {
            let value = format!("`{}`", value.escape_default());
            ImageError::BadField { at: at.clone(), field, value, wanted }
        };
        if document.rootfs.r#type != "layers" {
            return Err(bad("rootfs.type", &document.rootfs.r#type, "`layers`"));
        }
        let section = document.config.unwrap_or_default();
        let command = |field, words: Option<Vec<String>>| {
            let words = words.unwrap_or_default();
            let nul = words.iter().find(|word| word.contains('\0'));
            nul.map_or(Ok(()), |word| Err(bad(field, word, "words without a NUL"))).map(|()| words)
        };
        let variable = |text: String| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !text.contains('\0') => {
                Ok((name.to_owned(), value.to_owned()))
            }
            _ => Err(bad("config.Env", &text, "NAME=VALUE")),
        };
        let set = |text: Option<String>| text.filter(|text| !text.is_empty());
        let working_dir = set(section.working_dir).unwrap_or_else(|| "/".to_owned());
        // One that goes back up could come out in /proc, at what runc holds open (CVE-2024-21626).
        let goes_up = Path::new(&working_dir).components().any(|part| part == Component::ParentDir);
        if !working_dir.starts_with('/') || working_dir.contains('\0') || goes_up {
            return Err(bad("config.WorkingDir", &working_dir, "an absolute path without `..`"));
        }
        let user = set(section.user).map(|text| {
            user(&text).ok_or_else(|| bad("config.User", &text, "USER or USER:GROUP, by name or number"))
        });
        let signal = set(section.stop_signal).map(|text| {
            signal(&text).ok_or_else(|| bad("config.StopSignal", &text, "a signal by name or number"))
        });
        Ok(Self {
            platform: document.platform,
            entrypoint: command("config.Entrypoint", section.entrypoint)?,
            cmd: command("config.Cmd", section.cmd)?,
            env: section.env.unwrap_or_default().into_iter().map(variable).collect::<Result<_, _>>()?,
            working_dir,
            user: user.transpose()?,
            stop_signal: signal.transpose()?,
            diff_ids: document.rootfs.diff_ids,
        })
    }
}

fn user(text: &str) -> Option<User> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let plain = |name: &str| !name.is_empty() && !name.contains([':', '\0', '\n', '/']);
    let all = plain(user) && group.is_none_or(plain);
    all.then(|| User { user: user.to_owned(), group: group.map(str::to_owned) })
}

/// Linux's signals from 1 on.
const SIGNALS: &[&str] = &[
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
/// As the C libraries see them: they keep the first ones to themselves.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

fn signal(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return Some(number).filter(|number| (1..=64).contains(number));
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let real_time = match name {
        "RTMIN" => Some(*REAL_TIME.start()),
        "RTMAX" => Some(*REAL_TIME.end()),
        _ => None,
    };
    let above = name.strip_prefix("RTMIN+").and_then(|more| more.parse::<u8>().ok());
    let below = name.strip_prefix("RTMAX-").and_then(|less| less.parse::<u8>().ok());
    let counted = above
        .map(|more| REAL_TIME.start() + i32::from(more))
        .or(below.map(|less| REAL_TIME.end() - i32::from(less)));
    let named = || (1..).zip(SIGNALS).find(|(_, known)| **known == name).map(|(number, _)| number);
    real_time.or(counted.filter(|number| REAL_TIME.contains(number))).or_else(named)
}
