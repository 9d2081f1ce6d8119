//! The directory of an instance's socket: waited at until the socket is there, and watched for another one in its place.
//!
//! A kernel that gives no watch costs nobody anything but a moment: the path is looked at once a second instead.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;

use super::super::context::{AtSocket, Node, SocketId};
use crate::sys::watch::{DirEvent, WatchError};

/// Between two looks at a directory that cannot be watched.
const LOOK: Duration = Duration::from_secs(1);

/// The directory of an instance's socket, watched from before it was connected to: a socket that takes the place of
/// the one whose answers are known is never missed.
pub(super) struct Doorway {
    pub(super) name: String,
    /// Another socket came, and who listens there is not yet asked.
    pub(super) renewed: bool,
    pub(super) changes: BoxStream<'static, DirEvent>,
    /// Events were lost, and which socket is there now is not yet looked at.
    lost: bool,
    /// Which socket was there when the watch began, where that is known.
    socket: Option<SocketId>,
}

impl Doorway {
    pub(super) async fn watch(node: &Arc<Node>, socket: &Path) -> Self {
        let directory = socket.parent().unwrap_or(Path::new("/"));
        let name = socket.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut there = None;
        let changes = match node.machine.watches.changes(directory).await {
            Ok(changes) => {
                there = node.machine.dial.which(socket).await;
                changes
            }
            Err(WatchError::Gone { .. }) => next_socket(node, socket),
            Err(error @ WatchError::Refused { .. }) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "another socket in the place of a plugin's is seen late: no watch");
                once_watched(node, socket)
            }
        };
        Self { name, renewed: false, changes, lost: false, socket: there }
    }

    /// Returns when another socket came to the path. Nothing is lost where that is not waited for to its end.
    pub(super) async fn renews(&mut self, node: &Arc<Node>, socket: &Path) {
        loop {
            if self.lost && self.is_another(node, socket).await {
                break;
            }
            self.lost = false;
            match self.changes.next().await {
                Some(DirEvent::Appeared(new)) if new == self.name => break,
                Some(DirEvent::Overflow) => self.lost = true,
                Some(DirEvent::Gone) | None => self.changes = next_socket(node, socket),
                Some(DirEvent::Appeared(_) | DirEvent::Vanished(_) | DirEvent::Written(_)) => {}
            }
        }
        (self.renewed, self.lost) = (true, false);
    }

    /// Whether another socket may be at the path, where events were lost. None at all is none yet.
    pub(super) async fn is_another(&mut self, node: &Node, socket: &Path) -> bool {
        // In two steps: what is told meanwhile is for one task alone, and cannot be lent across the wait.
        let now = node.machine.dial.which(socket).await;
        self.differs(now)
    }

    fn differs(&self, now: Option<SocketId>) -> bool {
        self.socket.is_none() || now.is_some_and(|now| self.socket != Some(now))
    }

    /// Whether another socket came up to now, when the next doorway is there.
    pub(super) fn replaced(mut self, next: &Self) -> bool {
        let mut seen = Vec::new();
        while let Some(event) = self.changes.next().now_or_never().flatten() {
            seen.push(event);
        }
        let lost = self.lost && self.differs(next.socket);
        lost || seen.into_iter().any(|event| match event {
            DirEvent::Appeared(new) => new == self.name,
            // It may have been among those that were lost.
            DirEvent::Overflow => self.differs(next.socket),
            DirEvent::Vanished(_) | DirEvent::Written(_) | DirEvent::Gone => false,
        })
    }
}

/// Tells of the next socket at a path whose directory is not there, or is another by now.
pub(super) fn next_socket(node: &Arc<Node>, socket: &Path) -> BoxStream<'static, DirEvent> {
    let (node, socket) = (Arc::clone(node), socket.to_owned());
    let come = async move {
        wait_for_socket(&node, &socket, &watch::Sender::new(None)).await;
        DirEvent::Appeared(socket.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default())
    };
    futures::stream::once(come).chain(futures::stream::pending()).boxed()
}

/// What happens in the directory of a socket from when the kernel gives a watch for it; what came before that was lost.
fn once_watched(node: &Arc<Node>, socket: &Path) -> BoxStream<'static, DirEvent> {
    let (node, socket) = (Arc::clone(node), socket.to_owned());
    let begin = async move {
        loop {
            tokio::time::sleep(LOOK).await;
            match node.machine.watches.changes(socket.parent().unwrap_or(Path::new("/"))).await {
                Ok(changes) => return changes,
                Err(WatchError::Gone { .. }) => return next_socket(&node, &socket),
                Err(WatchError::Refused { .. }) => {}
            }
        }
    };
    let lost = |changes| futures::stream::iter([DirEvent::Overflow]).chain(changes);
    futures::stream::once(begin).flat_map(lost).boxed()
}

/// Returns when something is at the path of a socket. `refused`: why nobody tells of it, for as long as that is so.
pub(super) async fn wait_for_socket(node: &Node, socket: &Path, refused: &watch::Sender<Option<String>>) {
    // From the root downwards: any part of the way may be missing still.
    let mut directory = PathBuf::from("/");
    let names: Vec<_> =
        socket.components().skip(1).map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    let mut at = names.len().saturating_sub(1);
    // The usual case first: the directory is there and only the socket is missing.
    directory.extend(&names[..at]);
    loop {
        let appeared = appeared(node, &directory, &names[at], refused).await;
        match appeared {
            Ok(()) if at + 1 == names.len() => return,
            Ok(()) => {
                directory.push(&names[at]);
                at += 1;
            }
            Err(WatchError::Gone { .. }) if at > 0 => {
                directory.pop();
                at -= 1;
            }
            Err(error) => {
                if node.machine.dial.look(socket).await != AtSocket::Nothing {
                    return;
                }
                let why = std::error::Error::source(&error).unwrap_or(&error).to_string();
                if refused.send_replace(Some(why)).is_none() {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "a plugin's socket is looked for again and again: no watch");
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Returns when a name is in a directory. Once the kernel gives a watch again, `refused` says so before that is over.
async fn appeared(
    node: &Node,
    directory: &Path,
    name: &str,
    refused: &watch::Sender<Option<String>>,
) -> Result<(), WatchError> {
    let was = refused.borrow().is_some();
    if was {
        let _begun = node.machine.watches.changes(directory).await?;
        refused.send_replace(None);
    }
    node.machine.watches.appeared(directory, name).await
}
