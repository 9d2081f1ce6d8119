//! The built-in CSI drivers.
