//! The commands that speak to the API.
