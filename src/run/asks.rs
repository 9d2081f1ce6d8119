//! What people on this machine ask the daemon itself, over a socket in its data directory that root alone can reach.
use std::convert::Infallible;
use std::future::pending;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::StreamExt as _;
use tokio::net::UnixListener;
use tokio_stream::wrappers::ReceiverStream;

use crate::api::blocks::{Line, PATH, Question, SOCKET};
use crate::node::Blocks;

/// The largest question: it has two objects of the server's.
const LARGEST: usize = 16 << 20;

/// A listener for questions. Dropped, its socket goes.
pub(super) struct Asks {
    listener: UnixListener,
    blocks: Blocks,
    socket: Socket,
}

struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Asks {
    /// Listens in the data directory of a daemon, which must have it for itself by now: what is there is left by an earlier
    /// one. However long the directory's path is, that of a socket is short.
    pub(super) fn listen(data_dir: &Path, blocks: Blocks) -> anyhow::Result<Self> {
        let path = data_dir.join(SOCKET);
        let listen = || {
            let directory = std::fs::File::open(data_dir)?;
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
        };
        let listener = listen().with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Self { listener, blocks, socket: Socket(path) })
    }

    /// Answers whoever asks. Never returns; dropped, it stops.
    pub(super) async fn serve(self) {
        let Self { listener, blocks, socket: _socket } = self;
        let blocks = move |Json(question): Json<Question>| answer(blocks.clone(), question);
        let served = axum::serve(
            listener,
            Router::new().route(PATH, post(blocks)).layer(DefaultBodyLimit::max(LARGEST)),
        )
        .await;
        if let Err(error) = served {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "nothing is answered on this machine any more"
            );
        }
        pending::<()>().await;
    }
}

async fn answer(blocks: Blocks, question: Question) -> Response {
    match blocks.ask(question).await {
        Ok(lines) => {
            let text = ReceiverStream::new(lines).map(|line| Ok::<_, Infallible>(text(&line)));
            ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(text)).into_response()
        }
        Err(refusal) => (StatusCode::UNPROCESSABLE_ENTITY, Json(refusal)).into_response(),
    }
}

/// One line. Plain numbers and texts always have a form.
fn text(line: &Line) -> Bytes {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
