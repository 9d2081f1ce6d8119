//! Digests, and readers that make them on the way.
use ring::digest::{Context, SHA256};
use serde::Deserialize;
use std::fmt;
use std::io::{self, Read};

/// A sha256 digest. Its digits are a safe file name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest(String);

/// Text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no digest: `sha256:` and 64 hexadecimal digits in lower case")]
pub struct BadDigest(String);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_raw(ring::digest::digest(&SHA256, bytes).as_ref())
    }

    /// The digest with these digits, if they are such.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == 64 && hex.bytes().all(digit)).then(|| Self(hex.to_owned()))
    }

    /// Its 64 hexadecimal digits.
    pub fn hex(&self) -> &str {
        &self.0
    }

    fn from_raw(raw: &[u8]) -> Self {
        Self(raw.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl std::str::FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        text.strip_prefix("sha256:").and_then(Self::from_hex).ok_or_else(|| BadDigest(text.to_owned()))
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        text.parse()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Passes bytes on, and keeps the digest of what it passed.
pub(crate) struct Hashing<R> {
    inner: R,
    context: Context,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, context: Context::new(&SHA256) }
    }

    /// The digest of all there is, with what nobody read yet.
    pub(crate) fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.so_far())
    }

    /// The digest of what was read.
    pub(crate) fn so_far(self) -> Digest {
        Digest::from_raw(self.context.finish().as_ref())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.context.update(&into[..count]);
        Ok(count)
    }
}
