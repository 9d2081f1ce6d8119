//! `wharfline plugin`: what can be said of a driver without an orchestrator.
mod beyond;
mod card;
mod examiner;
mod harmless;
mod life;
mod scratch;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use crate::api::quantity;
use crate::cli::manifest;
use crate::csi::{Alpha, Capabilities, Plugin, PluginOptions, UnixConnector};
use crate::sys::Random as _;
use crate::sys::random::RealRandom;
use card::Card;
use examiner::{Examiner, Here};
use scratch::Scratch;

/// So many letters of a token are enough to tell one examination from another.
const TOKEN: usize = 12;

/// Arguments of `wharfline plugin`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What is done with a driver.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Examine any driver: what it says, and whether it answers as CSI wants. Asks for nothing that it should do, unless told
    /// to exercise it
    Probe(Probe),
}

/// `plugin probe`.
#[derive(Clone, Debug, clap::Args)]
pub struct Probe {
    /// The driver's socket: a path, or unix:///path/to.sock
    #[arg(value_name = "SOCKET")]
    pub socket: String,
    /// Make a volume, use it here, copy it and take everything away again; needs root where the driver mounts
    #[arg(long)]
    pub exercise: bool,
    /// A parameter of the volumes that are made; may be given several times
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    pub parameters: Vec<(String, String)>,
    /// An attribute that volumes can be given, for drivers with MODIFY_VOLUME; may be given several times
    #[arg(long = "mutable-parameter", value_name = "KEY=VALUE", value_parser = pair)]
    pub mutable_parameters: Vec<(String, String)>,
    /// Attach as many volumes as the node says that it takes, and one more
    #[arg(long, requires = "exercise")]
    pub attach_limit: bool,
    /// A YAML or JSON file with the secrets that go with each call: keys and texts
    #[arg(long, value_name = "FILE")]
    pub secrets_file: Option<PathBuf>,
    /// The size of the volumes that are made
    #[arg(long, default_value = "64Mi", value_name = "SIZE", value_parser = size)]
    pub size: i64,
    /// The file system of the volumes that are made; the driver's own choice without it
    #[arg(long, value_name = "NAME")]
    pub fs_type: Option<String>,
    /// Make and use block volumes
    #[arg(long, conflicts_with = "fs_type")]
    pub block: bool,
    /// Where volumes are used: a directory that the driver sees under the same path
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub scratch_dir: PathBuf,
    /// How long each call may take
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = time)]
    pub timeout: Duration,
    /// In another form than a table
    #[arg(short, long, value_enum, value_name = "FORM")]
    pub output: Option<Form>,
}

/// How a card is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For programs.
    Json,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn size(text: &str) -> Result<i64, String> {
    let bytes = quantity::bytes(text).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "write a size such as 64Mi or 1Gi".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = quantity::duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "write a time such as 30s or 2m".to_owned())
}

/// Runs the command: exit code 0 when no check failed.
pub fn main(args: &Args) -> ExitCode {
    let Command::Probe(probe) = &args.command;
    match examined(probe) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => super::report(Err(error)),
    }
}

/// Whether all went well. The card is printed whatever came of it.
fn examined(probe: &Probe) -> anyhow::Result<bool> {
    let secrets = probe.secrets_file.as_deref().map(secrets).transpose()?.unwrap_or_default();
    let path = probe.socket.strip_prefix("unix://").unwrap_or(&probe.socket);
    let path = std::path::absolute(path).with_context(|| format!("no path: {path}"))?;
    let options = PluginOptions { alpha: Alpha::On, ..PluginOptions::default() };
    let plugin = Plugin::new(UnixConnector::new(path)?, options);
    let mut token = RealRandom.token();
    token.truncate(TOKEN);
    let mut examiner = Examiner {
        plugin,
        deadline: probe.timeout,
        card: Card::default(),
        can: Capabilities::default(),
        here: Here::default(),
        node: None,
        parameters: probe.parameters.iter().cloned().collect(),
        mutable: probe.mutable_parameters.iter().cloned().collect(),
        secrets,
        fs_type: probe.fs_type.clone().unwrap_or_default(),
        block: probe.block,
        exercise: probe.exercise,
        to_the_limit: probe.attach_limit,
        token,
        debts: Vec::new(),
        left: Vec::new(),
        deleted: BTreeSet::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let whole = runtime.block_on(examine(&mut examiner, probe));
    let card = &examiner.card;
    let mut out = std::io::stdout().lock();
    match probe.output {
        Some(Form::Json) => writeln!(out, "{:#}", card.to_json())?,
        None => write!(out, "{card}")?,
    }
    whole.map(|whole| whole && card.failed() == 0)
}

/// Everything, or what there was time for: false when it was told to end.
async fn examine(examiner: &mut Examiner, probe: &Probe) -> anyhow::Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let scratch = if probe.exercise {
        let made = Scratch::new(&probe.scratch_dir, &examiner.token);
        Some(made.with_context(|| format!("no directory beneath {}", probe.scratch_dir.display()))?)
    } else {
        None
    };
    let asking = async {
        if !examiner.identity().await {
            return;
        }
        examiner.harmless().await;
        if let Some(scratch) = &scratch {
            examiner.life(probe.size, scratch).await;
            // A life that broke off is taken away before anything else is put there.
            examiner.clean().await;
            if examiner.left.is_empty() {
                examiner.beyond(probe.size, scratch).await;
            }
        }
    };
    let whole = tokio::select! {
        () = asking => true,
        _ = interrupt.recv() => false,
        _ = terminate.recv() => false,
    };
    if let Some(scratch) = scratch {
        let told = || {
            let word = "taking away what was made; interrupt once more to leave it where it is";
            writeln!(std::io::stderr(), "{word}")
        };
        let mut once = !whole;
        if once {
            told()?;
        }
        let stopped = {
            let cleaning = examiner.clean();
            tokio::pin!(cleaning);
            loop {
                tokio::select! {
                    () = &mut cleaning => break false,
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                // The first one ends what is asked; where all was asked already, it says what a second one would do.
                if std::mem::replace(&mut once, true) {
                    break true;
                }
                told()?;
            }
        };
        if stopped {
            examiner.leave("not taken away: interrupted");
        } else {
            examiner.look_for_deleted().await;
        }
        examiner.left.extend(scratch.remove().err());
        examiner.cleaned();
    }
    anyhow::ensure!(whole || probe.exercise, "interrupted");
    Ok(whole)
}

/// Keys and texts of a file.
fn secrets(file: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| format!("{name} cannot be read"))?;
    // Not with what stands in it: that is secret.
    let unread = |_| {
        anyhow::anyhow!(
            "{name}: it cannot be read as YAML: write keys and texts in quotes, such as user: \"admin\""
        )
    };
    let value = manifest::parse_value(&text, &name).map_err(unread)?;
    let pairs =
        value.as_object().with_context(|| format!("{name}: write keys and texts, such as user: admin"))?;
    let one = |(key, value): (&String, &serde_json::Value)| {
        let text = value.as_str().with_context(|| format!("{name}: {key}: write a text in quotes"))?;
        Ok((key.clone(), text.to_owned()))
    };
    pairs.iter().map(one).collect()
}
