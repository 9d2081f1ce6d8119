//! The Kubernetes API over the store.
