//! An answer that is passed on while it comes: that of a stream, of a call of another service, or of one that no rule
//! takes. What is injected into it comes behind its first part.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use super::account::{Account, code_in};
use super::call::Broken;
use super::script::Plan;
use super::wire;

/// What becomes of an answer once its first part was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The rest of it is passed on as well.
    Rest,
    /// It ends with another status.
    Status,
    /// Nothing more comes.
    Silence,
    /// The caller's connection ends; whoever is waited for sees to it.
    Cut,
}

/// What is done to it.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) then: Then,
    /// With which status it ends then.
    pub(super) status: Option<Status>,
    /// Whose lies are told, about the answer of which call.
    pub(super) lies: Option<(Arc<Plan>, String)>,
}

/// The answer on its way.
pub(super) struct Relay {
    incoming: Incoming,
    change: Change,
    /// Called once, when the connection shall end.
    end: Option<Box<dyn FnOnce() + Send>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    account: Account,
    /// A message that is not whole yet.
    held: BytesMut,
    at: At,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Passing,
    /// The first part is through: now what is injected.
    Due,
    Over,
}

impl Relay {
    /// Passes on `incoming`. With [`Then::Cut`], `end` is called behind the first part.
    pub(super) fn new(
        incoming: Incoming,
        change: Change,
        end: impl FnOnce() + Send + 'static,
        cut: WaitForCancellationFutureOwned,
        account: Account,
    ) -> Self {
        let (cut, held) = (Box::pin(cut), BytesMut::new());
        Self { incoming, change, end: Some(Box::new(end)), cut, account, held, at: At::Passing }
    }

    /// The next part as the caller gets it; none while a message is not whole.
    fn told(&mut self, part: Bytes) -> Option<Bytes> {
        let Some((plan, method)) = &self.change.lies else { return Some(part) };
        self.held.extend_from_slice(&part);
        let mut told = Vec::new();
        while let Some((message, rest)) = wire::first_message(&self.held) {
            let lie = plan.lies().tell(method, message).unwrap_or_else(|| message.to_vec());
            told.extend(wire::framed(&lie));
            let through = self.held.len() - rest.len();
            drop(self.held.split_to(through));
        }
        (!told.is_empty()).then(|| told.into())
    }

    /// The trailers as the caller gets them.
    fn ending(&mut self, trailers: HeaderMap) -> Frame<Bytes> {
        let code = code_in(&trailers);
        self.account.driver(code);
        self.account.caller(code);
        self.at = At::Over;
        Frame::trailers(trailers)
    }

    fn injected(&mut self) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.change.then {
            Then::Rest | Then::Silence => Poll::Pending,
            Then::Status => {
                self.at = At::Over;
                let status = self.change.status.take().unwrap_or_else(|| Status::unknown(""));
                self.account.caller(Some(status.code()));
                let mut trailers = HeaderMap::new();
                // It is ours: plain text and no metadata.
                let _ = status.add_header(&mut trailers);
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Then::Cut => {
                if let Some(end) = self.end.take() {
                    end();
                }
                Poll::Pending // the cut ends it
            }
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        if this.cut.as_mut().poll(context).is_ready() {
            this.at = At::Over;
            return Poll::Ready(Some(Err(Broken::Cut)));
        }
        loop {
            match this.at {
                At::Over => return Poll::Ready(None),
                At::Due => return this.injected(),
                At::Passing => {}
            }
            let frame = match ready!(Pin::new(&mut this.incoming).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    this.account.driver_failed();
                    return Poll::Ready(Some(Err(Broken::Driver(error))));
                }
                None => {
                    this.at = At::Over;
                    this.account.driver(None);
                    this.account.caller(None);
                    return Poll::Ready(None);
                }
            };
            let due = this.change.then != Then::Rest;
            match frame.into_data() {
                Ok(part) => {
                    if let Some(part) = this.told(part) {
                        this.at = if due { At::Due } else { At::Passing };
                        return Poll::Ready(Some(Ok(Frame::data(part))));
                    }
                }
                Err(frame) => {
                    let Ok(trailers) = frame.into_trailers() else { continue };
                    if due {
                        this.account.driver(code_in(&trailers));
                        this.at = At::Due;
                    } else {
                        return Poll::Ready(Some(Ok(this.ending(trailers))));
                    }
                }
            }
        }
    }
}
