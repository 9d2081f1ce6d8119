//! The commands that speak to the API.
pub mod age;
pub mod failure;
pub mod kinds;
pub mod manifest;
pub mod merge;
pub mod table;
