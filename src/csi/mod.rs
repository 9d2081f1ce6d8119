//! PROTOCOL: one CSI plugin on one socket.
