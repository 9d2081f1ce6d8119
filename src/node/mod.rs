//! EFFECTS on this machine: the only caller of csi.
