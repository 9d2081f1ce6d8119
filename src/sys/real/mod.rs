//! The real kernel behind the traits of [`crate::sys`].
