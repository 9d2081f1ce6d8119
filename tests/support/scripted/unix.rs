//! One instance on a unix socket.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::backend::{Backend, Site};
use super::serve::serve;

struct Serving {
    down: CancellationToken,
    task: JoinHandle<()>,
}

/// A running instance. Its backend lives on when it is stopped; dropping it stops it.
pub struct Scripted {
    /// The storage system behind it.
    pub backend: Arc<Backend>,
    /// Who it is.
    pub site: Site,
    socket: PathBuf,
    serving: Option<Serving>,
}

impl Scripted {
    /// An instance that is not running yet.
    pub fn new(backend: &Arc<Backend>, site: Site, socket: impl Into<PathBuf>) -> Self {
        backend.add_node(&site);
        Self { backend: Arc::clone(backend), site, socket: socket.into(), serving: None }
    }

    /// An instance that serves at `socket`.
    pub fn start(backend: &Arc<Backend>, site: Site, socket: impl Into<PathBuf>) -> Self {
        let mut scripted = Self::new(backend, site, socket);
        scripted.serve();
        scripted
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts serving; a socket left by an earlier run is replaced.
    pub fn serve(&mut self) {
        assert!(self.serving.is_none(), "it is running");
        match fs::remove_file(&self.socket) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("{}: {error}", self.socket.display()),
        }
        let listener = UnixListener::bind(&self.socket).expect("the socket can be bound");
        let down = CancellationToken::new();
        let task = tokio::spawn(serve(Arc::clone(&self.backend), self.site.clone(), listener, down.clone()));
        self.serving = Some(Serving { down, task });
    }

    /// Ends it as SIGKILL would: every connection breaks, and the socket stays behind, dead.
    pub async fn kill(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.down.cancel();
            serving.task.await.expect("serving does not panic");
        }
    }

    /// Ends it in order: the socket is removed.
    pub async fn stop(&mut self) {
        self.kill().await;
        fs::remove_file(&self.socket).expect("the socket was there");
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.down.cancel();
        }
    }
}
