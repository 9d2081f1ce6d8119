//! The answers that come as a stream: which blocks of a snapshot hold something, or have changed.
//!
//! ```text
//! opened --part--> opened --clean end--> complete
//!           \--silence, deadline, error, fault--> interrupted: resume_at says where the question goes on
//! ```
//!
//! A part is read when it is asked for, and no more than a window of bytes lies here unread. Each stream has a connection
//! of its own: one that is read slowly would fill the window of the others' connection. While it lasts, its snapshots are
//! not deleted; nothing else waits for it.
use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codec::{CompressionEncoding, Streaming};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::check::{Blocks, Sequence, blocks::Part};
use super::confided::Told;
use super::failure::Failure;
use super::line::Line;
use super::plugin::{Admitted, Plugin, Terms};
use super::rpc::{Rpc, Streamed};
use super::witness;

/// The largest part read.
const MAX_PART: usize = 4 * 1024 * 1024;

/// Under what terms a stream is read.
#[derive(Clone, Debug)]
pub struct StreamTerms {
    /// As for any call; the deadline is for all of it.
    pub terms: Terms,
    /// How long the plugin may say nothing while it is listened to.
    pub silence: Duration,
}

/// A stream that did not come to its end. What came before is good, unless [`resume_at`](Self::resume_at) is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct Interrupted {
    /// What happened.
    pub failure: Failure,
    /// The `starting_offset` with which the same question goes on: after the last byte that was told. None when the stream
    /// contradicted itself: then nothing of it is to be used.
    pub resume_at: Option<i64>,
}

/// An answer that comes part by part. Dropped before its end it is given up.
pub struct BlockStream {
    rpc: Rpc,
    silence: Duration,
    sequence: Sequence,
    state: State,
}

enum State {
    Open(Open),
    Complete,
    Interrupted(Interrupted),
}

/// What a stream holds while it lasts. In this order it is let go: the plugin sees the end, it is reported, the next call
/// about the snapshot begins.
struct Open {
    next: Box<dyn Parts>,
    _line: Line,
    told: Told,
    carried: bool,
    until: Instant,
    deadline: Duration,
    admitted: Admitted,
}

/// The parts of either call.
trait Parts: Send {
    /// The next one; none after a clean end that the plugin itself has confirmed.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Part>, Ending>>;
}

/// How the parts ended.
enum Ending {
    Status(Status),
    Unconfirmed,
}

struct Incoming<P> {
    parts: Streaming<P>,
    /// The status came with the headers.
    confirmed: bool,
}

impl<P: Into<Part> + Send + 'static> Parts for Incoming<P> {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Part>, Ending>> {
        Box::pin(async {
            if let Some(part) = self.parts.message().await.map_err(Ending::Status)? {
                return Ok(Some(part.into()));
            }
            let trailers = self.parts.trailers().await.map_err(Ending::Status)?;
            let confirmed = self.confirmed
                || trailers.is_some_and(|trailers| witness::peer_code(&trailers) == Some(Code::Ok));
            if confirmed { Ok(None) } else { Err(Ending::Unconfirmed) }
        })
    }
}

impl fmt::Debug for BlockStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockStream").field("rpc", &self.rpc).finish_non_exhaustive()
    }
}

impl BlockStream {
    /// The next part; none at the end of a complete answer, and nothing else is one. Once interrupted it stays so.
    pub async fn next(&mut self) -> Result<Option<Blocks>, Interrupted> {
        let open = match &mut self.state {
            State::Open(open) => open,
            State::Complete => return Ok(None),
            State::Interrupted(interrupted) => return Err(interrupted.clone()),
        };
        let left = open.until.saturating_duration_since(Instant::now());
        let failure = match tokio::time::timeout(left.min(self.silence), open.next.next()).await {
            Ok(Ok(Some(part))) => match self.sequence.take(part) {
                Ok(blocks) => return Ok(Some(blocks)),
                Err(fault) => open.told.of_answer(Failure::unusable(self.rpc, &fault)),
            },
            Ok(Ok(None)) => {
                effect!("{}: answered", self.rpc.name());
                open.admitted.call.end(Ok(()));
                self.state = State::Complete;
                return Ok(None);
            }
            Ok(Err(Ending::Status(status))) => {
                Failure::from_status(self.rpc, &status, &open.told).of_request(open.carried)
            }
            Ok(Err(Ending::Unconfirmed)) => Failure::unconfirmed(self.rpc),
            Err(_) if left <= self.silence => Failure::deadline(self.rpc, open.deadline),
            Err(_) => Failure::silent(self.rpc, self.silence),
        };
        open.admitted.call.end(Err(&failure));
        let resume_at = failure.breach.is_none().then(|| self.sequence.resume_at());
        let interrupted = Interrupted { failure, resume_at };
        self.state = State::Interrupted(interrupted.clone());
        Err(interrupted)
    }

    /// The `starting_offset` with which the same question would go on now.
    pub fn resume_at(&self) -> i64 {
        self.sequence.resume_at()
    }
}

impl Plugin {
    /// Begins a stream, which was asked for from `offset` with at most `most` blocks in a part.
    pub(crate) async fn open<Q>(
        &self,
        request: Q,
        (offset, most): (i64, i32),
        StreamTerms { terms, silence }: StreamTerms,
    ) -> Result<BlockStream, Interrupted>
    where
        Q: Streamed,
        Q::Part: Into<Part>,
    {
        let sequence = Sequence::new(offset, most);
        let interrupted = |failure| Interrupted { failure, resume_at: Some(offset) };
        let mut admitted = self.admit(&request, &terms).await.map_err(interrupted)?;
        let line = self.line_apart();
        let carried = request.secrets().is_some_and(|secrets| !secrets.is_empty());
        let told = self.tell(request.secrets());
        effect!("{}", Q::RPC.name());
        let deadline = terms.deadline;
        let until = Instant::now() + deadline;
        let opening = tokio::time::timeout(silence.min(deadline), begin(&line, request, deadline));
        let failure = match opening.await {
            Ok(Ok(next)) => {
                let open = Open { next, _line: line, told, carried, until, deadline, admitted };
                return Ok(BlockStream { rpc: Q::RPC, silence, sequence, state: State::Open(open) });
            }
            Ok(Err(status)) => Failure::from_status(Q::RPC, &status, &told).of_request(carried),
            Err(_) if deadline <= silence => Failure::deadline(Q::RPC, deadline),
            Err(_) => Failure::silent(Q::RPC, silence),
        };
        admitted.call.end(Err(&failure));
        Err(interrupted(failure))
    }
}

/// Sends the request and waits for the head of its answer.
async fn begin<Q>(line: &Line, request: Q, deadline: Duration) -> Result<Box<dyn Parts>, Status>
where
    Q: Streamed,
    Q::Part: Into<Part>,
{
    let mut request = Request::new(request);
    request.set_timeout(deadline);
    let mut client = Grpc::new(line.channel())
        .max_decoding_message_size(MAX_PART)
        .accept_compressed(CompressionEncoding::Gzip);
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let codec = ProstCodec::<Q, Q::Part>::default();
    let path = PathAndQuery::from_static(Q::RPC.path());
    let answer = client.server_streaming(request, path, codec).await?;
    let confirmed = witness::peer_code(answer.metadata()) == Some(Code::Ok);
    Ok(Box::new(Incoming { parts: answer.into_inner(), confirmed }))
}
