//! What is made for an examination, and how it is taken away again: by the record alone, in mirror order, whatever happened.
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::examiner::Examiner;
use crate::csi::{Failure, Origin, Rpc, proto};

/// How often something is asked to be undone, and how often where no answer comes.
const TRIES: u32 = 5;
const UNHEARD: u32 = 2;
/// After so many in a row of which nothing was heard the driver is taken for one that hangs, or is gone.
const GIVEN_UP: u32 = 2;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(500);

/// What was made, or may have been: it is noted before the call that makes it.
#[derive(Debug, Clone)]
pub(super) enum Debt {
    /// A volume, by its request; its id once that is known.
    Volume(Box<proto::CreateVolumeRequest>, Option<String>),
    /// A snapshot, likewise.
    Snapshot(proto::CreateSnapshotRequest, Option<String>),
    /// A volume on this node.
    Attached(proto::ControllerUnpublishVolumeRequest),
    Staged(proto::NodeUnstageVolumeRequest),
    Published(proto::NodeUnpublishVolumeRequest),
}

impl Debt {
    /// The volume that it is of, or that it uses; nothing while its id is not known.
    fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(_, id) => id.as_deref(),
            Self::Snapshot(..) => None,
            Self::Attached(request) => Some(&request.volume_id),
            Self::Staged(request) => Some(&request.volume_id),
            Self::Published(request) => Some(&request.volume_id),
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Volume(request, id) => {
                format!("the volume {} ({})", request.name, id.as_deref().unwrap_or("its id is not known"))
            }
            Self::Snapshot(request, id) => {
                format!("the snapshot {} ({})", request.name, id.as_deref().unwrap_or("its id is not known"))
            }
            Self::Attached(request) => format!("{} attached to {}", request.volume_id, request.node_id),
            Self::Staged(request) => {
                format!("{} staged at {}", request.volume_id, request.staging_target_path)
            }
            Self::Published(request) => format!("{} published at {}", request.volume_id, request.target_path),
        }
    }
}

impl Examiner {
    /// Takes away all that is owed, the last first. What stays has a line in `left`, and so has what is beneath it: a volume that may still be
    /// used is not taken away.
    pub(super) async fn clean(&mut self) {
        let (mut unheard, mut used) = (0, BTreeSet::new());
        // It is owed until it is paid: whoever is interrupted here begins with it again.
        while let Some(debt) = self.debts.last().cloned() {
            if unheard >= GIVEN_UP {
                return self.leave("not tried: the driver does not answer");
            }
            if debt.volume().is_some_and(|volume| used.contains(volume)) {
                self.paid();
                self.left.push(format!("{}: not tried: it may be used still", debt.words()));
                continue;
            }
            let failure = self.settle(&debt).await.err();
            used.extend(failure.as_ref().and(debt.volume()).map(str::to_owned));
            unheard = if failure.as_ref().is_some_and(is_unheard) { unheard + 1 } else { 0 };
            self.paid();
            self.left.extend(failure.map(|failure| format!("{}: {failure}", debt.words())));
        }
    }

    /// Leaves all that is owed, and says so.
    pub(super) fn leave(&mut self, why: &str) {
        while let Some(debt) = self.debts.pop() {
            self.left.push(format!("{}: {why}", debt.words()));
        }
    }

    async fn settle(&mut self, debt: &Debt) -> Result<(), Failure> {
        let mut attempt = 1;
        loop {
            let Err(failure) = self.pay(debt).await else { return Ok(()) };
            let tries = if is_unheard(&failure) { UNHEARD } else { TRIES };
            if attempt >= tries {
                return Err(failure);
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(super) async fn pay(&mut self, debt: &Debt) -> Result<(), Failure> {
        let (plugin, deadline) = (&self.plugin, self.deadline);
        let secrets = self.secrets.clone();
        match debt {
            Debt::Published(request) => {
                plugin.node_unpublish_volume(request.clone(), deadline).await.map(drop)
            }
            Debt::Staged(request) => plugin.node_unstage_volume(request.clone(), deadline).await.map(drop),
            Debt::Attached(request) => {
                plugin.controller_unpublish_volume(request.clone(), deadline).await.map(drop)
            }
            Debt::Snapshot(request, id) => {
                let snapshot_id = match id {
                    Some(id) => id.clone(),
                    // A failure says nothing of what it left. Asked for again, it says its id; what is refused is not there.
                    None => match plugin.create_snapshot(request.clone(), deadline).await {
                        Ok(snapshot) => snapshot.snapshot_id,
                        Err(failure) if failure.is_uncertain() => return Err(failure),
                        Err(_) => return Ok(()),
                    },
                };
                let request = proto::DeleteSnapshotRequest { snapshot_id, secrets };
                plugin.delete_snapshot(request, deadline).await.map(drop)
            }
            Debt::Volume(request, id) => {
                let volume_id = match id {
                    Some(id) => id.clone(),
                    None => match plugin.create_volume((**request).clone(), deadline).await {
                        Ok(volume) => volume.volume_id,
                        Err(failure) if failure.is_uncertain() => return Err(failure),
                        Err(_) => return Ok(()),
                    },
                };
                let request = proto::DeleteVolumeRequest { volume_id: volume_id.clone(), secrets };
                plugin.delete_volume(request, deadline).await?;
                self.deleted.insert(volume_id);
                Ok(())
            }
        }
    }

    /// Of what a driver says that it has deleted, what it lists still is left. One that lists nothing cannot be told from one that lies.
    pub(super) async fn look_for_deleted(&mut self) {
        if self.has(Rpc::ListVolumes).is_err() || self.deleted.is_empty() {
            return;
        }
        let Ok(there) = self.all_volumes().await else { return };
        let left = self.deleted.intersection(&there);
        let left =
            left.map(|id| format!("the volume {id}: its deletion was answered with OK, and it is listed"));
        self.left.extend(left);
    }

    /// An answer that names another volume or snapshot than the one that is noted last: it was made as well.
    pub(super) fn owe_beneath(&mut self, other: Debt) {
        let at = self.debts.len().saturating_sub(1);
        self.debts.insert(at, other);
    }

    /// What was owed last is done.
    pub(super) fn paid(&mut self) {
        self.debts.pop();
    }
}

/// Whether the driver said nothing of it: it hangs, or is not there.
fn is_unheard(failure: &Failure) -> bool {
    failure.origin == Origin::Local
}

/// The directories where a volume is used. Removed when they are empty, and never otherwise.
#[derive(Debug)]
pub(super) struct Scratch {
    root: PathBuf,
}

impl Scratch {
    /// Makes them beneath `parent`.
    pub(super) fn new(parent: &Path, token: &str) -> io::Result<Self> {
        let root = parent.join(format!("wharfline-probe-{token}"));
        std::fs::DirBuilder::new().mode(0o750).create(&root)?;
        let scratch = Self { root };
        std::fs::DirBuilder::new().mode(0o750).create(scratch.staging())?;
        Ok(scratch)
    }

    /// Where a volume is staged.
    pub(super) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// Where it is published; the driver makes it.
    pub(super) fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// Where it is not published, or must not be.
    pub(super) fn second(&self) -> PathBuf {
        self.root.join("second")
    }

    /// Takes them away. What cannot be removed holds something.
    pub(super) fn remove(self) -> Result<(), String> {
        let gone = |path: &Path| match std::fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("{}: {error}", path.display()))
            }
            _ => Ok(()),
        };
        gone(&self.target())
            .and_then(|()| gone(&self.second()))
            .and_then(|()| gone(&self.staging()))
            .and_then(|()| gone(&self.root))
    }
}
