//! EFFECTS on objects, on kube-runtime; makes no CSI call.
