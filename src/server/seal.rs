//! Sealing of values before they reach the store: AES-256-GCM, bound to the storage key of the object.
//!
//! Knows no objects. The sealed form is a header (magic, id of the key, nonce) and the ciphertext with its tag.
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest;

/// Marks a sealed value and its version; no JSON begins so.
const MAGIC: &[u8; 4] = b"WFS\x01";
const ID_LEN: usize = 8;
const HEADER_LEN: usize = MAGIC.len() + ID_LEN + NONCE_LEN;
const KEY_LEN: usize = 32;

/// Why a sealed value could not be made or opened, or a key file not be used.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The value was sealed with another key.
    #[error("sealed with key {found}, this server has key {ours}")]
    OtherKey {
        /// Id of the key that sealed the value.
        found: String,
        /// Id of our key.
        ours: String,
    },
    /// The value is damaged or stands under another key than it was sealed for.
    #[error("the sealed value is damaged or was moved")]
    Damaged,
    /// The value is not sealed, though it must be.
    #[error("the value is not sealed")]
    NotSealed,
    /// The key file cannot be read or written.
    #[error("sealing key file {path}")]
    KeyFile {
        /// Where the file is.
        path: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The key file does not hold a key.
    #[error("sealing key file {path} does not hold a key of {KEY_LEN} bytes")]
    KeyLength {
        /// Where the file is.
        path: String,
    },
}

/// The key that seals values at rest. It has no `Debug`: it is secret.
#[derive(Clone)]
pub struct SealingKey {
    id: [u8; ID_LEN],
    key: std::sync::Arc<LessSafeKey>,
}

impl SealingKey {
    /// A key from its bytes.
    pub fn new(bytes: &[u8; KEY_LEN]) -> Self {
        let mut id = [0; ID_LEN];
        id.copy_from_slice(&digest::digest(&digest::SHA256, bytes).as_ref()[..ID_LEN]);
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("the length is that of the algorithm");
        Self { id, key: std::sync::Arc::new(LessSafeKey::new(key)) }
    }

    /// Reads the key file, or makes it (0600) from `random` when there is none.
    pub fn load_or_create(path: &Path, random: &dyn Fn(&mut [u8])) -> Result<Self, SealError> {
        let failed = |source| SealError::KeyFile { path: path.display().to_string(), source };
        match std::fs::read(path) {
            Ok(bytes) => {
                let bytes: [u8; KEY_LEN] = bytes
                    .try_into()
                    .map_err(|_| SealError::KeyLength { path: path.display().to_string() })?;
                Ok(Self::new(&bytes))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut bytes = [0; KEY_LEN];
                random(&mut bytes);
                let mut file = std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)
                    .map_err(failed)?;
                file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
                Ok(Self::new(&bytes))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The key's id, which is no secret.
    pub fn id(&self) -> String {
        hex(&self.id)
    }

    /// Seals a value for the storage key `place`. `nonce` must be random and never used twice.
    pub(crate) fn seal(&self, place: &str, nonce: [u8; NONCE_LEN], value: &[u8]) -> Vec<u8> {
        let mut cipher = value.to_vec();
        let aad = Aad::from(place.as_bytes());
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut cipher)
            .expect("a value is far below the algorithm's limit");
        let mut sealed = Vec::with_capacity(HEADER_LEN + cipher.len());
        sealed.extend_from_slice(MAGIC);
        sealed.extend_from_slice(&self.id);
        sealed.extend_from_slice(&nonce);
        sealed.append(&mut cipher);
        sealed
    }

    /// Opens a value sealed for the storage key `place`.
    pub(crate) fn open(&self, place: &str, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let rest = sealed.strip_prefix(MAGIC).ok_or(SealError::NotSealed)?;
        let (id, rest) = rest.split_at_checked(ID_LEN).ok_or(SealError::Damaged)?;
        if id != self.id {
            return Err(SealError::OtherKey { found: hex(id), ours: self.id() });
        }
        let (nonce, cipher) = rest.split_at_checked(NONCE_LEN).ok_or(SealError::Damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Damaged)?;
        let mut value = cipher.to_vec();
        let plain = self
            .key
            .open_in_place(nonce, Aad::from(place.as_bytes()), &mut value)
            .map_err(|_| SealError::Damaged)?
            .len();
        value.truncate(plain);
        Ok(value)
    }
}

/// Bytes in lower case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::{SealError, SealingKey};

    #[test]
    fn a_sealed_value_opens_only_with_its_key_in_its_place_undamaged() {
        let key = SealingKey::new(&[7; 32]);
        let mut sealed = key.seal("/a", [1; 12], b"canary");
        assert!(!sealed.windows(6).any(|window| window == b"canary"));
        assert_eq!(key.open("/a", &sealed).unwrap(), b"canary");
        assert!(matches!(key.open("/b", &sealed), Err(SealError::Damaged)));
        let other = SealingKey::new(&[8; 32]).open("/a", &sealed);
        assert!(matches!(other, Err(SealError::OtherKey { .. })));
        assert!(matches!(key.open("/a", b"{}"), Err(SealError::NotSealed)));
        assert!(matches!(key.open("/a", &sealed[..20]), Err(SealError::Damaged)));
        *sealed.last_mut().unwrap() ^= 1;
        assert!(matches!(key.open("/a", &sealed), Err(SealError::Damaged)));
    }

    #[test]
    fn the_key_file_is_made_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let made = SealingKey::load_or_create(&path, &|bytes| bytes.fill(3)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = SealingKey::load_or_create(&path, &|_| panic!("there is a key")).unwrap();
        assert_eq!(made.id(), read.id());
        std::fs::write(&path, b"short").unwrap();
        assert!(matches!(SealingKey::load_or_create(&path, &|_| {}), Err(SealError::KeyLength { .. })));
    }
}
