//! Publications at paths of the host. One path is one volume's: none lies in another, whoever asks for it.
use std::path::Path;

use super::super::context::{Key, Node};
use super::super::journal::{Entry, HostPublication, PublicationEntry, publication_key};
use super::unit::{Unit, User};
use super::{FOREIGN_MOUNT, Trouble};
use crate::plan::Reason;
use crate::sys::kernel::{Access, KernelError, PathFacts, Present};
use crate::sys::path::{HostPath, Place, TreePath};

/// One at a time is entered into the journal, so that no two that overlap are.
const TURN: &str = "paths of the host";

/// The place on the host that an allocation asks for, if it asks; an error in words if this node does not allow it.
pub fn allowed_host_path(node: &Node, path: &str) -> Result<Option<HostPath>, String> {
    if path.is_empty() {
        return Ok(None);
    }
    let wanted = std::path::Path::new(path);
    for own in [&node.options.data_dir, &node.options.run_dir] {
        if wanted.starts_with(own) || own.starts_with(wanted) {
            let own = own.display();
            return Err(format!(
                "hostPath {path} would cover or lie in {own}, which is the daemon's own; choose another"
            ));
        }
    }
    let allowed = node.options.host_paths.iter().filter_map(|allowed| HostPath::new(allowed, wanted).ok());
    match allowed.max_by_key(|h| h.allowed().as_os_str().len()) {
        Some(path) => Ok(Some(path)),
        None => {
            let list: Vec<_> = node.options.host_paths.iter().map(|p| p.display().to_string()).collect();
            let list = list.join(", ");
            Err(format!(
                "hostPath {path} is not beneath one that this node allows: {list}; `up --host-path` allows others"
            ))
        }
    }
}

/// Whether what is mounted at one of the paths would lie in, or cover, the other.
fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Has those looked at that may wait for a path of the host.
pub(super) fn wake_for(node: &Node, path: &Path) {
    for attachment in node.caches.attachments.all() {
        let users = attachment.spec.allocations.iter().filter_map(|uid| node.caches.allocations.one(uid));
        let waits = |path_of: &String| !path_of.is_empty() && overlap(Path::new(path_of), path);
        if users.into_iter().any(|user| user.spec.volumes.iter().any(|volume| waits(&volume.host_path))) {
            node.queue.wake(Key::Mount(attachment.spec.volume.clone()));
        }
    }
}

impl Unit {
    /// Nobody else may have the path, or one in it or above it: the kernel would mount one volume over the other, or in it.
    pub(super) fn free_at_host(&self, node: &Node, user: &User, wanted: &HostPath) -> Result<(), Trouble> {
        // It has it already, or may have.
        if user.entry.as_ref().is_some_and(|entry| entry.host.is_some()) {
            return Ok(());
        }
        let (own, wanted) = (publication_key(&self.uid, &user.allocation.uid, &user.name), wanted.absolute());
        let taken = node.journal.look(|all| {
            all.iter().filter(|(key, _)| **key != own).find_map(|(_, entry)| match entry {
                Entry::Publication(entry) => {
                    let host = entry.host.as_ref().filter(|host| overlap(&host.path, &wanted))?;
                    Some((host.path.clone(), entry.allocation.clone()))
                }
                Entry::Attachment(_)
                | Entry::Task(_)
                | Entry::Create(_)
                | Entry::Asked(_)
                | Entry::Store(_) => None,
            })
        });
        match taken {
            None => Ok(()),
            Some((taken, holder)) => Err(Trouble::Wait(Reason::HostPathTaken {
                path: wanted.to_string_lossy().into_owned(),
                taken: taken.to_string_lossy().into_owned(),
                holder: format!("{}/{}", holder.namespace, holder.name),
            })),
        }
    }

    pub(super) async fn publish_at_host(
        &self,
        node: &Node,
        user: &User,
        (target, verified, host): (&TreePath, &Present, &HostPath),
        entry: &mut PublicationEntry,
    ) -> Result<(), Trouble> {
        let before = match node.machine.kernel.mount_facts(&Place::Host(host.clone())).await {
            Err(KernelError::NotFound { .. }) => return Err(missing(host)),
            other => other?,
        };
        let former = entry.host.clone();
        let made = match before {
            PathFacts::Absent { missing } => missing,
            PathFacts::Present(_) => former.as_ref().map_or(0, |h| h.made),
        };
        let turn = node.turns.take(TURN).await;
        self.free_at_host(node, user, host)?;
        entry.host =
            Some(HostPublication { allowed: host.allowed().to_owned(), path: host.absolute(), made });
        entry.verified = Some(verified.clone());
        // Written before the mount is made: a crash between the two must not leave one that nobody knows.
        node.journal.put(Entry::Publication(entry.clone())).await?;
        drop(turn);
        let access = if entry.read_only { Access::ReadOnly } else { Access::ReadWrite };
        match node.machine.kernel.publish_at_host(target, verified, host, access).await {
            Ok(()) => Ok(()),
            // Somebody else's from before: nothing of it is ours, and others may have the path once they let go.
            Err(KernelError::Occupied { .. }) if former.is_none() && made == 0 => {
                entry.host = None;
                node.journal.put(Entry::Publication(entry.clone())).await?;
                // Somebody may have seen the claim meanwhile, and waits for its end.
                wake_for(node, &host.absolute());
                Err(occupied(host))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn unpublish_at_host(
        &self,
        node: &Node,
        entry: &PublicationEntry,
        target: &TreePath,
    ) -> Result<(), Trouble> {
        let Some(host) = &entry.host else { return Ok(()) };
        let verified = match &entry.verified {
            Some(verified) => verified.clone(),
            // The journal was lost: what is at the target now is what was mounted at the host.
            None => match node.machine.kernel.mount_facts(&Place::Tree(target.clone())).await? {
                PathFacts::Present(present) => present,
                PathFacts::Absent { .. } => return Ok(()),
            },
        };
        let place = HostPath::new(&host.allowed, &host.path)?;
        match node.machine.kernel.unpublish_at_host(&place, &verified, host.made).await {
            Err(KernelError::Changed { path }) => Err(covered(&path)),
            answer => Ok(answer?),
        }
    }
}

/// What a node allows is not made by it: a disk that belongs there may not be mounted yet.
fn missing(host: &HostPath) -> Trouble {
    let (path, allowed) = (host.absolute(), host.allowed());
    let message = format!(
        "hostPath {}: this node allows what is beneath {}, which is not there; make it, or mount what belongs there: it is \
         tried again by itself",
        path.display(),
        allowed.display()
    );
    Trouble::Kernel("HostPathMissing", message)
}

/// What was there before Wharfline came is not covered.
fn occupied(host: &HostPath) -> Trouble {
    let message = format!(
        "hostPath {}: there is something already: other content, another mount, or no directory; empty it, or choose another \
         path: it is tried again by itself",
        host.absolute().display()
    );
    Trouble::Kernel("HostPathOccupied", message)
}

/// Somebody mounted something else over a volume at its path on the host. It is theirs to unmount.
fn covered(path: &Path) -> Trouble {
    let message = format!(
        "something else is mounted over the volume at {}: unmount it there; the volume is unmounted from there then",
        path.display()
    );
    Trouble::Kernel(FOREIGN_MOUNT, message)
}
