//! STORAGE: revisioned keys.
