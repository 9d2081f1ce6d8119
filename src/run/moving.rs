//! `restore` and `migrate`: what was in a file, or in an embedded store, into an empty store. No server runs meanwhile.
#![allow(clippy::print_stdout)] // they say what they did
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use futures::TryStreamExt as _;
use serde_json::Value;

use super::server::{self, EtcdTls, Place};
use super::up::prepare;
use crate::server::{KEY, LOCAL};
use crate::store::archive::{self, Entry, FillError, Reader, Summary};
use crate::store::embedded::{EmbeddedStore, Options};
use crate::store::{Rev, Store};

/// By how much the revision is raised above that of the source: so many writes may have been done behind a backup.
const RAISE: u64 = 100_000;
/// Under what name the embedded store stays after it was moved.
const MOVED: &str = "store.redb.migrated";

/// Arguments of `wharfline restore`; the data directory is a flag of every command.
#[derive(Clone, Debug, clap::Args)]
pub struct RestoreArgs {
    /// What `wharfline backup` wrote
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where to, which must be empty: `embedded`, or etcd://HOST:PORT[,HOST:PORT…]
    #[arg(long, default_value = "embedded", value_name = "STORE", value_parser = server::place)]
    pub store: Place,
    /// By how much revisions begin above the backup's: more than the writes that followed it
    #[arg(long, default_value_t = RAISE, value_name = "N")]
    pub raise: u64,
    /// How etcd is spoken to.
    #[command(flatten)]
    pub tls: EtcdTls,
}

/// Arguments of `wharfline migrate`; the data directory is a flag of every command.
#[derive(Clone, Debug, clap::Args)]
pub struct MigrateArgs {
    /// The etcd to move to, which must be empty: etcd://HOST:PORT[,HOST:PORT…]
    #[arg(long, value_name = "STORE", value_parser = server::place)]
    pub to: Place,
    /// How etcd is spoken to.
    #[command(flatten)]
    pub tls: EtcdTls,
}

/// Fills an empty store from a backup.
///
/// # Errors
/// One line that says what was in the way.
pub fn restore(args: &RestoreArgs, data_dir: &Path) -> anyhow::Result<()> {
    let file = args.file.display();
    let summary = look(&args.file).with_context(|| file.to_string())?;
    let data_dir = prepare(data_dir)?;
    blocking(async {
        super::enroll::refuse_member(&data_dir)?;
        let _lock = server::lock(&data_dir)?;
        let (store, etcd) = server::open(&args.store, &args.tls, &data_dir).await?;
        etcd.looked_at().await?;
        let entries = read(&args.file)?;
        let name = format!("backup {}", summary.sha256);
        let floor = Rev(summary.revision.0.saturating_add(args.raise));
        let term = fill(&*store, &name, entries, floor).await?;
        let end = archive::finish(&*store, term).await?;
        println!("restored {} keys of {file} at revision {end}", summary.keys);
        println!(
            "Put the pki directory of the backed up server in place (--pki-dir) before you start the server."
        );
        Ok(())
    })
}

/// Moves an embedded store to etcd.
///
/// # Errors
/// One line that says what was in the way.
pub fn migrate(args: &MigrateArgs, data_dir: &Path) -> anyhow::Result<()> {
    let Place::Etcd(members) = &args.to else {
        return Err(anyhow!("--to: write etcd://HOST:PORT[,HOST:PORT…]"));
    };
    let (here, moved) = (data_dir.join("store.redb"), data_dir.join(MOVED));
    if !here.exists() && !moved.exists() {
        return Err(anyhow!("there is no embedded store in {}", data_dir.display()));
    }
    let data_dir = prepare(data_dir)?;
    blocking(async {
        let _lock = server::lock(&data_dir)?;
        if !here.exists() {
            // It was interrupted behind the point where the old store is put aside.
            put_aside(&data_dir)?;
        }
        let source = EmbeddedStore::open(if here.exists() { &here } else { &moved }, Options::default())
            .with_context(|| format!("data directory {}", data_dir.display()))?;
        if source.get(archive::UNFINISHED).await?.0.is_some() {
            return Err(anyhow!(
                "the embedded store itself was not filled to its end; run that restore again"
            ));
        }
        let (store, etcd) = server::open(&args.to, &args.tls, &data_dir).await?;
        etcd.looked_at().await?;
        let at = source.revision().await?;
        let pages: Vec<Vec<Entry>> = archive::entries(&source, at).try_collect().await?;
        let mut node = None;
        let entries: Vec<Entry> =
            pages.into_iter().flatten().map(|entry| given_up(entry, &mut node)).collect();
        let keys = entries.len();
        // Its place tells one embedded store from another, its revision whether it was written since an attempt before.
        let name = format!("store {} {} {at}", here.display(), super::up::host_name());
        let entries = entries.into_iter().map(Ok);
        let term = fill(&*store, &name, entries, Rev(at.0.saturating_add(1000))).await?;
        drop(source);
        // No server takes the one any more before the other is whole.
        put_aside(&data_dir)?;
        archive::finish(&*store, term).await?;
        let _old = std::fs::remove_file(data_dir.join("kubeconfig"));
        println!("moved {keys} keys to etcd; the embedded store stays as {}", data_dir.join(MOVED).display());
        println!("Next, with a directory of its own for the server:");
        let (data, members) = (data_dir.display(), members.join(","));
        println!("  wharfline server --data-dir SERVER_DIR --pki-dir {data}/pki --store etcd://{members}");
        if let Some(node) = node {
            println!("  wharfline --data-dir SERVER_DIR token create --node {node}");
            println!(
                "  wharfline node --data-dir {data} --name {node} --server https://127.0.0.1:7443 --token TOKEN"
            );
        }
        Ok(())
    })
}

fn blocking<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    super::log();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(work)
}

/// Gives the embedded store its name of a store that was moved, and goes on with that where it was interrupted.
fn put_aside(data_dir: &Path) -> anyhow::Result<()> {
    for end in ["", ".wal"] {
        let (from, to) = (data_dir.join(format!("store.redb{end}")), data_dir.join(format!("{MOVED}{end}")));
        if from.exists() {
            std::fs::rename(&from, &to).with_context(|| from.display().to_string())?;
        }
    }
    Ok(())
}

async fn fill(
    store: &dyn Store,
    name: &str,
    entries: impl Iterator<Item = Result<Entry, FillError>> + Send,
    floor: Rev,
) -> anyhow::Result<Rev> {
    let full = |error: FillError| match error {
        FillError::NotEmpty => anyhow!(
            "the store is not empty; only an empty one is filled, or one that was begun from the same state"
        ),
        other => anyhow!(other),
    };
    let term = archive::begin(store, name, floor).await.map_err(full)?;
    archive::fill(store, term, entries).await?;
    Ok(term)
}

/// The node of this machine will be a process of its own, with a key: its name waits for that.
fn given_up(entry: Entry, node: &mut Option<String>) -> Entry {
    let Some(name) = entry.key.strip_prefix(b"/wharfline/core/nodes/".as_slice()) else { return entry };
    let Ok(mut object) = serde_json::from_slice::<Value>(&entry.value) else { return entry };
    let Some(annotations) = object["metadata"]["annotations"].as_object_mut() else { return entry };
    if annotations.get(KEY).is_none_or(|key| key != LOCAL) {
        return entry;
    }
    annotations.remove(KEY);
    *node = Some(String::from_utf8_lossy(name).into_owned());
    Entry { key: entry.key, value: object.to_string().into() }
}

/// Reads a file to its end and says what it holds.
fn look(path: &Path) -> anyhow::Result<Summary> {
    let mut reader = Reader::default();
    for line in lines(path)? {
        reader.line(&line?)?;
    }
    Ok(reader.summary()?)
}

/// The entries of a file that was looked at.
fn read(path: &Path) -> anyhow::Result<impl Iterator<Item = Result<Entry, FillError>> + Send + use<>> {
    let mut reader = Reader::default();
    let source = |error: &dyn std::fmt::Display| FillError::Source(error.to_string());
    Ok(lines(path)?.filter_map(move |line| {
        let line = match line {
            Ok(line) => line,
            Err(error) => return Some(Err(source(&error))),
        };
        reader.line(&line).map_err(|error| source(&error)).transpose()
    }))
}

fn lines(path: &Path) -> anyhow::Result<impl Iterator<Item = std::io::Result<Vec<u8>>> + Send + use<>> {
    let mut file = BufReader::new(std::fs::File::open(path)?);
    Ok(std::iter::from_fn(move || {
        let mut line = Vec::new();
        match file.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    }))
}
