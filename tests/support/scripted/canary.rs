//! A secret that must appear nowhere: put it into requests, then search everything that was written.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A unique secret value.
#[derive(Clone)]
pub struct Canary {
    value: String,
}

impl Default for Canary {
    fn default() -> Self {
        Self { value: format!("canary-{}", uuid::Uuid::new_v4()) }
    }
}

impl Canary {
    /// A new one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value itself.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The `secrets` of a request.
    pub fn secrets(&self) -> BTreeMap<String, String> {
        [("password".to_owned(), self.value.clone())].into()
    }

    /// Whether `bytes` hold it.
    pub fn is_in(&self, bytes: impl AsRef<[u8]>) -> bool {
        bytes.as_ref().windows(self.value.len()).any(|window| window == self.value.as_bytes())
    }

    /// Panics if `text` holds it; `what` says where the text is from.
    pub fn assert_absent(&self, what: &str, text: impl AsRef<[u8]>) {
        assert!(!self.is_in(text), "the canary secret is in {what}");
    }

    /// Panics if a file beneath `dir` holds it. Links are not followed.
    pub fn assert_absent_beneath(&self, dir: &Path) {
        for entry in fs::read_dir(dir).expect("the directory is there") {
            let entry = entry.expect("the directory can be read");
            let kind = entry.file_type().expect("the entry has a type");
            if kind.is_dir() {
                self.assert_absent_beneath(&entry.path());
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).expect("the file can be read");
                self.assert_absent(&entry.path().display().to_string(), bytes);
            }
        }
    }
}
