//! The annotations and taints by which one process tells another what it decided.

/// The annotation of a core Node that `wharfline down` sets and `up` clears.
pub const STOPPED: &str = "wharfline.dev/stopped";
/// The annotation of a Plugin that nobody declared: the namespace whose task serves it.
pub const UNDECLARED_FROM: &str = "wharfline.dev/undeclared-from";
/// The label that a plugin's own allocations carry; a hash where the name is longer than a label may be.
pub const PLUGIN_LABEL: &str = "wharfline.dev/plugin";
/// The annotation of such an allocation with the plugin's whole name.
pub const PLUGIN_NAME: &str = "wharfline.dev/plugin-name";
