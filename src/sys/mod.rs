//! What the kernel is asked; the only place with `unsafe`.
