//! VALUES: the kinds, conditions, names and their validation.
//!
//! Nothing here does I/O, reads a clock or knows a client. Every kind is one file; [`definitions`] lists them
//! as data, which is all that the server needs to serve them.
pub mod field;
pub mod kind;

pub use field::{FieldError, FieldErrors};
pub use kind::{Cell, Column, KindDefinition, definitions};

/// The API group of every kind of ours.
pub const GROUP: &str = "wharfline.dev";
/// The one version served.
pub const VERSION: &str = "v1alpha1";
/// `group/version`, as manifests write it.
pub const API_VERSION: &str = "wharfline.dev/v1alpha1";
