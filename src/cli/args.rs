//! The words and flags of the commands, kubectl's wherever it has them.
#![allow(clippy::struct_excessive_bools)] // a flag is a boolean
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::api::quantity;

/// Apart from a command's own flags in its help.
const EVERYWHERE: &str = "Options of every command";

/// Flags of every command that speaks to the API.
#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// The kubeconfig to use
    #[arg(long, global = true, env = "WHARFLINE_KUBECONFIG", value_name = "FILE", help_heading = EVERYWHERE)]
    pub kubeconfig: Option<PathBuf>,
    /// The data directory of `up`, `server` or `node`, and where the other commands look for a kubeconfig
    #[arg(
        long,
        global = true,
        env = "WHARFLINE_DATA_DIR",
        value_name = "DIR",
        default_value = "/var/lib/wharfline",
        help_heading = EVERYWHERE
    )]
    pub data_dir: PathBuf,
    /// The namespace
    #[arg(short, long, global = true, value_name = "NAMESPACE", help_heading = EVERYWHERE)]
    pub namespace: Option<String>,
}

/// The commands that speak to the API.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Create or change the objects of files
    Apply(Apply),
    /// List objects, or show some
    Get(Get),
    /// Show all there is to know of an object: conditions, last CSI calls, events
    Describe(Describe),
    /// Delete objects and wait until they are gone
    Delete(Delete),
    /// Wait until something holds of objects
    Wait(Wait),
    /// List events
    Events(Events),
    /// Show what an allocation's tasks or a plugin wrote, on the node where it runs
    Logs(Logs),
    /// Explain why an object is not ready
    Why(Why),
    /// Change fields of an object
    Patch(Patch),
    /// Set and remove labels
    Label(Pairs),
    /// Set and remove annotations
    Annotate(Pairs),
    /// Set and remove taints of nodes: by one it is said that a machine is off
    Taint(Taint),
    /// Place nothing new on nodes
    Cordon(Nodes),
    /// Place new allocations on nodes again, drained ones too
    Uncordon(Nodes),
    /// End what runs on nodes, but for plugins, place it anew, and wait until it has left
    Drain(Drain),
    /// Compare the backends' volumes with those that are known here, and make one known
    Volume(Volume),
    /// Tell which blocks of a snapshot hold something, or changed since an earlier one
    Snapshot(SnapshotArgs),
    /// Let machines join as nodes
    Token(Token),
    /// Give people and programs access of their own, with a role
    User(User),
    /// Write the whole store into a file, while the server runs
    Backup(Backup),
    /// List the kinds that the server has
    ApiResources(ApiResources),
    /// Show the versions of this program and of the server
    Version(Version),
}

/// `snapshot`.
#[derive(Debug, Clone, Args)]
pub struct SnapshotArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// What is done with snapshots.
#[derive(Debug, Clone, Subcommand)]
pub enum SnapshotCommand {
    /// Print which bytes of a block volume's snapshot hold something, or changed since an earlier one; asked of the plugin by
    /// the daemon of this machine, as root
    Blocks(Blocks),
    /// Make a Snapshot of one that a backend has: it is kept there, whatever becomes of the object
    Adopt(AdoptSnapshot),
    /// Make a Snapshot of a claim while what writes to it holds still: it goes on as soon as the snapshot is cut
    Take(TakeSnapshot),
}

/// `snapshot take`.
#[derive(Debug, Clone, Args)]
pub struct TakeSnapshot {
    /// The Snapshot's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The claim, in the same namespace
    #[arg(long, value_name = "CLAIM")]
    pub claim: String,
    /// The class with the parameters and the Secret for it; that of the claim when it is not given
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// A command for the shell of this machine that has what writes hold still, such as `fsfreeze -f PATH`
    #[arg(long, value_name = "COMMAND", requires = "thaw")]
    pub freeze: Option<String>,
    /// The one that has it go on: run as soon as the snapshot is cut, and however else this ends
    #[arg(long, value_name = "COMMAND", requires = "freeze")]
    pub thaw: Option<String>,
    /// How long each command may take, and the cut: what is not cut by then is deleted
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
}

/// `snapshot adopt`.
#[derive(Debug, Clone, Args)]
pub struct AdoptSnapshot {
    /// The plugin's id for it, as `volume audit` shows it
    #[arg(value_name = "HANDLE")]
    pub handle: String,
    /// The plugin
    #[arg(long, value_name = "PLUGIN")]
    pub plugin: String,
    /// The Snapshot's name; made from the handle when it is not given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// With `controllerScope: Node`, the node that has it; needed where several have one of that id
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// The class with the Secret for it
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// How long the plugin is waited for
    #[arg(long, default_value = "2m", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
    /// Only try
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub dry_run: DryRun,
}

/// `snapshot blocks`.
#[derive(Debug, Clone, Args)]
pub struct Blocks {
    /// The snapshot
    #[arg(value_name = "SNAPSHOT")]
    pub name: String,
    /// An earlier snapshot of the same volume: only what changed since then is printed
    #[arg(long, value_name = "SNAPSHOT")]
    pub since: Option<String>,
    /// Of a snapshot of several volumes, the claim of the one that is meant
    #[arg(long, value_name = "CLAIM")]
    pub claim: Option<String>,
    /// Begin at this byte: what broke goes on there
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub from: i64,
    /// json, one block a line and at the end whether that was all; a table when not given
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
}

/// `volume`.
#[derive(Debug, Clone, Args)]
pub struct Volume {
    /// What to do.
    #[command(subcommand)]
    pub command: VolumeCommand,
}

/// What is done with the volumes of backends.
#[derive(Debug, Clone, Subcommand)]
pub enum VolumeCommand {
    /// Ask plugins for what their backends have, and name all that does not fit with what is known here; changes nothing
    Audit(Audit),
    /// Make a Volume of one that a backend has: it is kept there, whatever becomes of the object
    Adopt(Adopt),
}

/// `volume audit`.
#[derive(Debug, Clone, Args)]
pub struct Audit {
    /// The plugins; all of them when none is named
    #[arg(value_name = "PLUGIN")]
    pub plugins: Vec<String>,
    /// How long answers are waited for, at each of two looks
    #[arg(long, default_value = "2m", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
    /// json
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
}

/// `volume adopt`.
#[derive(Debug, Clone, Args)]
pub struct Adopt {
    /// The plugin's id for it, as `volume audit` shows it
    #[arg(value_name = "HANDLE")]
    pub handle: String,
    /// The plugin
    #[arg(long, value_name = "PLUGIN")]
    pub plugin: String,
    /// The Volume's name; made from the handle when it is not given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// With `controllerScope: Node`, the node that has it; needed where several have one of that id
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// How it may be used, SingleNodeWriter when it is not given; may be given several times
    #[arg(long = "mode", value_name = "MODE")]
    pub modes: Vec<String>,
    /// It is used as a device, without a file system
    #[arg(long)]
    pub block: bool,
    /// A claim to make for it, in the namespace
    #[arg(long, value_name = "NAME")]
    pub claim: Option<String>,
    /// How long the plugin is waited for
    #[arg(long, default_value = "2m", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
    /// Only try
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub dry_run: DryRun,
}

/// `token`.
#[derive(Debug, Clone, Args)]
pub struct Token {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// What is done with join tokens.
#[derive(Debug, Clone, Subcommand)]
pub enum TokenCommand {
    /// Print a token with which one machine can join: `wharfline node --server URL --token TOKEN`
    Create {
        /// How long it can be used
        #[arg(long, default_value = "1h", value_parser = duration, value_name = "TIME")]
        ttl: Duration,
        /// The only node that can use it
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

/// `backup`.
#[derive(Debug, Clone, Args)]
pub struct Backup {
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: String,
}

/// `user`.
#[derive(Debug, Clone, Args)]
pub struct User {
    /// What to do.
    #[command(subcommand)]
    pub command: UserCommand,
}

/// What is done with users.
#[derive(Debug, Clone, Subcommand)]
pub enum UserCommand {
    /// Print a kubeconfig for a new user
    Create {
        /// Its name, of a-z, 0-9 and '-'
        #[arg(value_name = "NAME")]
        name: String,
        /// What it may do: view sees all but Secrets; edit also writes what is in namespaces, but not in
        /// wharfline-system; admin does everything
        #[arg(long, value_enum, value_name = "ROLE")]
        role: Role,
        /// How long it may
        #[arg(long, default_value = "2160h", value_parser = duration, value_name = "TIME")]
        ttl: Duration,
    },
    /// List the users
    List,
    /// Take a user's access away, at once
    Delete {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Read all but Secrets.
    View,
    /// Also write what is in namespaces other than the system's, Secrets too.
    Edit,
    /// Everything.
    Admin,
}

impl Role {
    /// As it is stored.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Edit => "edit",
            Self::Admin => "admin",
        }
    }
}

/// Files with manifests.
#[derive(Debug, Clone, Default, Args)]
pub struct Files {
    /// A file, a directory, or - for standard input; may be given several times
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub files: Vec<String>,
    /// Directories inside directories too
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// What to select.
#[derive(Debug, Clone, Default, Args)]
pub struct Selection {
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Objects with these labels, such as `app=shop,tier!=test`
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Objects with these fields, such as `spec.nodeName=a`
    #[arg(long, value_name = "FIELDS")]
    pub field_selector: Option<String>,
}

impl Selection {
    /// Whether it selects by what objects are like.
    pub fn selects(&self) -> bool {
        self.selector.is_some() || self.field_selector.is_some()
    }
}

/// Whether and where a change is only tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// The change is made.
    None,
    /// Nothing is sent.
    Client,
    /// The server checks everything and stores nothing.
    Server,
}

/// `apply`.
#[derive(Debug, Clone, Args)]
pub struct Apply {
    /// The files.
    #[command(flatten)]
    pub files: Files,
    /// Only try
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub dry_run: DryRun,
    /// Let the server merge, by field owner
    #[arg(long)]
    pub server_side: bool,
    /// With --server-side: take over fields that others own
    #[arg(long, requires = "server_side")]
    pub force_conflicts: bool,
    /// With --server-side: the owner's name
    #[arg(long, default_value = "wharfline", value_name = "NAME")]
    pub field_manager: String,
    /// json, yaml or name
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
}

/// `get`.
#[derive(Debug, Clone, Default, Args)]
pub struct Get {
    /// KIND[,KIND] [NAME…] or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    pub targets: Vec<String>,
    /// What to select.
    #[command(flatten)]
    pub selection: Selection,
    /// Then show every change
    #[arg(short, long)]
    pub watch: bool,
    /// Show changes only
    #[arg(long)]
    pub watch_only: bool,
    /// With a watch: a first column with ADDED, MODIFIED or DELETED
    #[arg(long)]
    pub output_watch_events: bool,
    /// wide, json, yaml, name, jsonpath=…, custom-columns=…
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
    /// A last column with the labels
    #[arg(long)]
    pub show_labels: bool,
    /// Sort by a field, such as .metadata.creationTimestamp
    #[arg(long, value_name = "JSONPATH")]
    pub sort_by: Option<String>,
    /// No headings
    #[arg(long)]
    pub no_headers: bool,
    /// Objects that do not exist are no failure
    #[arg(long)]
    pub ignore_not_found: bool,
}

/// `describe`.
#[derive(Debug, Clone, Args)]
pub struct Describe {
    /// KIND [NAME…] or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    pub targets: Vec<String>,
    /// What to select.
    #[command(flatten)]
    pub selection: Selection,
}

/// What becomes of what an object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cascade {
    /// Deleted after it.
    Background,
    /// Deleted before it.
    Foreground,
    /// Kept.
    Orphan,
}

impl Cascade {
    pub(crate) fn policy(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

/// `delete`.
#[derive(Debug, Clone, Args)]
pub struct Delete {
    /// KIND NAME… or KIND/NAME…
    #[arg(value_name = "WHAT")]
    pub targets: Vec<String>,
    /// The files.
    #[command(flatten)]
    pub files: Files,
    /// What to select.
    #[command(flatten)]
    pub selection: Selection,
    /// Every object of the kind
    #[arg(long)]
    pub all: bool,
    /// Wait until they are gone
    #[arg(long, default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait, such as 2m; 0 = for ever
    #[arg(long, default_value = "0", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
    /// Objects that do not exist are no failure; so it is with --all and selectors anyhow
    #[arg(long)]
    pub ignore_not_found: bool,
    /// What becomes of what they own
    #[arg(long, value_enum, default_value = "background")]
    pub cascade: Cascade,
    /// Only try
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub dry_run: DryRun,
    /// name
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
}

/// `wait`.
#[derive(Debug, Clone, Args)]
pub struct Wait {
    /// KIND NAME… or KIND/NAME…
    #[arg(value_name = "WHAT")]
    pub targets: Vec<String>,
    /// The files.
    #[command(flatten)]
    pub files: Files,
    /// What to select.
    #[command(flatten)]
    pub selection: Selection,
    /// Every object of the kind
    #[arg(long)]
    pub all: bool,
    /// condition=NAME[=VALUE], jsonpath=PATH[=VALUE], delete or create
    #[arg(long = "for", required = true, value_name = "WHAT")]
    pub goal: String,
    /// How long to wait, such as 2m; 0 = look once
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
}

/// `events`.
#[derive(Debug, Clone, Args)]
pub struct Events {
    /// Events of one object only
    #[arg(long = "for", value_name = "KIND/NAME")]
    pub of: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Then show new ones as they come
    #[arg(short, long)]
    pub watch: bool,
    /// Only of these types, such as Warning
    #[arg(long, value_delimiter = ',', value_name = "TYPES")]
    pub types: Vec<String>,
    /// No headings
    #[arg(long)]
    pub no_headers: bool,
    /// json or yaml
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
}

/// `logs`.
#[derive(Debug, Clone, Args)]
pub struct Logs {
    /// ALLOCATION[/TASK], with or without its kind in front, or plugin/NAME for its newest instance on this machine
    #[arg(value_name = "ALLOCATION")]
    pub target: String,
    /// Show what is written from now on as well
    #[arg(short, long)]
    pub follow: bool,
    /// Only so many of the last lines
    #[arg(long, value_name = "LINES")]
    pub tail: Option<usize>,
    /// Only one of the two streams
    #[arg(long, value_enum, value_name = "STREAM")]
    pub stream: Option<Stream>,
}

/// One of the two streams that a task writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// `why`.
#[derive(Debug, Clone, Args)]
pub struct Why {
    /// KIND/NAME… or KIND NAME…
    #[arg(required = true, value_name = "WHAT")]
    pub targets: Vec<String>,
}

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PatchType {
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
}

/// `patch`.
#[derive(Debug, Clone, Args)]
pub struct Patch {
    /// KIND/NAME or KIND NAME
    #[arg(required = true, num_args = 1..=2, value_name = "WHAT")]
    pub target: Vec<String>,
    /// The patch, JSON or YAML
    #[arg(short, long, required_unless_present = "patch_file", value_name = "PATCH")]
    pub patch: Option<String>,
    /// A file with the patch
    #[arg(long, conflicts_with = "patch", value_name = "FILE")]
    pub patch_file: Option<String>,
    /// How it is written
    #[arg(long = "type", value_enum, default_value = "merge")]
    pub kind: PatchType,
    /// A subresource, such as status
    #[arg(long, value_name = "NAME")]
    pub subresource: Option<String>,
    /// Only try
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub dry_run: DryRun,
}

/// `label` and `annotate`.
#[derive(Debug, Clone, Args)]
pub struct Pairs {
    /// KIND/NAME or KIND NAME, then KEY=VALUE to set and KEY- to remove
    #[arg(required = true, num_args = 1.., value_name = "WHAT")]
    pub words: Vec<String>,
    /// Change values that are there
    #[arg(long)]
    pub overwrite: bool,
}

/// `taint`.
#[derive(Debug, Clone, Args)]
pub struct Taint {
    /// node NAME or node/NAME, then KEY=VALUE:EFFECT to set, and KEY:EFFECT- or KEY- to remove
    #[arg(required = true, num_args = 1.., value_name = "WHAT")]
    pub words: Vec<String>,
    /// Change values that are there
    #[arg(long)]
    pub overwrite: bool,
}

/// `cordon` and `uncordon`.
#[derive(Debug, Clone, Args)]
pub struct Nodes {
    /// The nodes
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
}

/// `drain`.
#[derive(Debug, Clone, Args)]
pub struct Drain {
    /// The nodes
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
    /// How long to wait, such as 2m; 0 = look once
    #[arg(long, default_value = "2m", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
}

/// `api-resources`.
#[derive(Debug, Clone, Args)]
pub struct ApiResources {
    /// No headings
    #[arg(long)]
    pub no_headers: bool,
    /// name
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
}

/// `version`.
#[derive(Debug, Clone, Args)]
pub struct Version {
    /// This program only
    #[arg(long)]
    pub client: bool,
    /// json or yaml
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<String>,
}

/// `30s`, `2m`, `1h30m`, or `0`.
fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        text => quantity::duration(text).ok_or_else(|| "write a time such as 30s, 2m or 1h30m".to_owned()),
    }
}
