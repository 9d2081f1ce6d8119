//! One call: what the script does to it, and what is passed on.
//!
//! ```text
//! asked -> which rule? -> delay -> instead / hang / crash: over, the driver never sees it
//!                            '---> driver (once or twice) -> lost / crash / another answer / a lie / the answer
//! ```
//!
//! Headers, metadata, deadlines (`grpc-timeout`) and details of a status pass as they are. A caller that leaves is left:
//! the driver sees its call cancelled.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response, header, request, response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::account::{Account, code_in};
use super::contract::Method;
use super::proxy::Shared;
use super::relay::{Change, Relay, Then};
use super::rules::Taken;
use super::script::{End, Lies, Loss, Moment, Plan, Repeat};
use super::wire;

/// The longest request that is looked into, and the longest answer that is held back.
const LONGEST: usize = 64 * 1024 * 1024;
/// How long after a failed call it may be seen that it was the driver's connection that ended, and not the call alone.
const NOTICE: Duration = Duration::from_millis(100);

/// How long the first part of an answer has to get out before its connection is cut.
const FLUSH: Duration = Duration::from_millis(50);

/// What is sent, either way.
pub(super) type Sent = UnsyncBoxBody<Bytes, Broken>;

/// Why nothing more is said to a caller.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// Its connection ends.
    #[error("the connection is cut")]
    Cut,
    /// What the driver answers is longer than can be held back.
    #[error("the answer is too long to be held back")]
    TooLong,
    /// The driver broke the call off; the caller's is broken off the same way.
    #[error(transparent)]
    Driver(#[from] hyper::Error),
}

/// A caller's connection, and the driver's that belongs to it.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) shared: Arc<Shared>,
    pub(super) driver: SendRequest<Sent>,
    /// Cuts both.
    pub(super) cut: CancellationToken,
    /// Both have ended, cut or not.
    pub(super) over: CancellationToken,
}

/// A whole answer of the driver's.
struct Answer {
    head: response::Parts,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

impl Answer {
    fn code(&self) -> Option<Code> {
        code_in(self.trailers.as_ref().unwrap_or(&self.head.headers))
    }

    fn into_response(self) -> Response<Sent> {
        let data = (!self.body.is_empty()).then(|| Ok(Frame::data(self.body)));
        let trailers = self.trailers.map(|trailers| Ok(Frame::trailers(trailers)));
        Response::from_parts(self.head, frames(data.into_iter().chain(trailers)))
    }
}

fn frames(all: impl IntoIterator<Item = Result<Frame<Bytes>, Broken>>) -> Sent {
    let all: Vec<_> = all.into_iter().collect();
    if all.is_empty() {
        // A status in headers has to end the stream with them; clients look for it behind the body otherwise.
        return Empty::new().map_err(|never| match never {}).boxed_unsync();
    }
    StreamBody::new(stream::iter(all)).boxed_unsync()
}

/// A status and nothing else.
fn status(code: Code, message: &str) -> Response<Sent> {
    Status::new(code, message)
        .into_http::<Full<Bytes>>()
        .map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

/// An OK with this message.
fn ok(message: &[u8]) -> Response<Sent> {
    let trailers = HeaderMap::from_iter([(
        header::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    let mut response =
        Response::new(frames([Ok(Frame::data(wire::framed(message).into())), Ok(Frame::trailers(trailers))]));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

impl Way {
    /// Answers one request.
    ///
    /// # Errors
    /// [`Broken`]: the stream is reset, or the connection ends.
    pub(super) async fn answer(self, request: Request<Incoming>) -> Result<Response<Sent>, Broken> {
        let over = self.over.clone();
        tokio::select! {
            biased;
            // Calls run in tasks of their own, which the end of a connection does not end by itself.
            () = over.cancelled() => Err(Broken::Cut),
            answered = self.handle(request) => answered,
        }
    }

    async fn handle(self, request: Request<Incoming>) -> Result<Response<Sent>, Broken> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().trim_start_matches('/').to_owned();
        let shared = Arc::clone(&self.shared);
        let known = shared.contract.method(&path);
        let mut account =
            Account::begin(known.map_or(path.as_str(), |method| method.name.as_str()), &self.cut);
        let Some(method) = known else {
            // Another service's: it may ask in parts, too, and they pass as they come.
            return self.pass_on(&head, body.map_err(Broken::from).boxed_unsync(), &path, account).await;
        };
        let body = match Limited::new(body, LONGEST).collect().await {
            Ok(whole) => whole.to_bytes(),
            Err(_) => return Ok(status(Code::ResourceExhausted, "the request is too large, or broke off")),
        };
        let ids = wire::first_message(&body).map(|(message, _)| method.subjects(message)).unwrap_or_default();
        account.about(&ids);
        let Some(taken) = self.shared.take(&path, true, &ids) else {
            let response = noted(self.forward(&head, whole(&body)).await, &mut account)?;
            return Ok(self.relay(response, None, &path, account));
        };
        account.taken(taken.rule, taken.plan.words());
        let asked = Asked { head: &head, body: &body, path: &path, method };
        self.by_plan(&asked, taken.plan, account).await
    }

    /// A call of a service that is none of CSI's.
    async fn pass_on(
        self,
        head: &request::Parts,
        body: Sent,
        path: &str,
        mut account: Account,
    ) -> Result<Response<Sent>, Broken> {
        let Some(Taken { rule, plan }) = self.shared.take(path, false, &[]) else {
            let response = noted(self.forward(head, body).await, &mut account)?;
            return Ok(self.relay(response, None, path, account));
        };
        account.taken(rule, plan.words());
        if let Some(over) = self.before(&plan, path, &mut account).await? {
            return Ok(over);
        }
        let response = noted(self.forward(head, body).await, &mut account)?;
        self.injected(response, &plan, path, account).await
    }

    async fn by_plan(
        self,
        asked: &Asked<'_>,
        plan: Arc<Plan>,
        mut account: Account,
    ) -> Result<Response<Sent>, Broken> {
        if let Some(over) = self.before(&plan, asked.path, &mut account).await? {
            return Ok(over);
        }
        if asked.method.streams {
            if plan.repeat.is_some() {
                answered(self.deliver(asked).await, &mut account)?;
            }
            let response = noted(self.forward(asked.head, whole(asked.body)).await, &mut account)?;
            return self.injected(response, &plan, asked.path, account).await;
        }
        let answer = match plan.repeat {
            None => answered(self.deliver(asked).await, &mut account)?,
            Some(Repeat::After) => {
                answered(self.deliver(asked).await, &mut account)?;
                answered(self.deliver(asked).await, &mut account)?
            }
            Some(Repeat::AtOnce) => {
                let (first, second) = tokio::join!(self.deliver(asked), self.deliver(asked));
                let first = answered(first, &mut account);
                answered(second, &mut account)?;
                first?
            }
        };
        pause(plan.delay_answer).await;
        self.after(answer, &plan, asked.path, &mut account).await
    }

    /// What is done before the driver gets the call: its end, if it never does.
    async fn before(
        &self,
        plan: &Plan,
        path: &str,
        account: &mut Account,
    ) -> Result<Option<Response<Sent>>, Broken> {
        pause(plan.delay).await;
        match &plan.end {
            End::Instead(Code::Ok, _, lies) => {
                account.caller(Some(Code::Ok));
                Ok(Some(ok(&lies.tell(path, &[]).unwrap_or_default())))
            }
            End::Instead(code, message, _) => {
                account.caller(Some(*code));
                Ok(Some(status(*code, message)))
            }
            End::Hang => std::future::pending().await,
            End::Crash(Moment::Before) => self.crash().await,
            End::Honest | End::Lost(..) | End::Answered(..) | End::Crash(Moment::After) | End::Lie(_) => {
                Ok(None)
            }
        }
    }

    /// What is done when the driver has answered.
    async fn after(
        &self,
        answer: Answer,
        plan: &Plan,
        path: &str,
        account: &mut Account,
    ) -> Result<Response<Sent>, Broken> {
        match &plan.end {
            End::Lost(Loss::Unavailable, message) => {
                account.caller(Some(Code::Unavailable));
                Ok(status(Code::Unavailable, message))
            }
            End::Lost(Loss::Cut, _) => {
                self.cut.cancel();
                std::future::pending().await
            }
            End::Lost(Loss::Silence, _) => std::future::pending().await,
            End::Answered(code, message) => {
                account.caller(Some(*code));
                Ok(status(*code, message))
            }
            End::Crash(_) => self.crash().await,
            End::Lie(lies) => {
                account.caller(answer.code());
                Ok(lied(answer, lies, path).into_response())
            }
            End::Honest | End::Instead(..) | End::Hang => {
                account.caller(answer.code());
                Ok(answer.into_response())
            }
        }
    }

    /// The same of an answer that is passed on while it comes.
    async fn injected(
        self,
        response: Response<Incoming>,
        plan: &Arc<Plan>,
        path: &str,
        mut account: Account,
    ) -> Result<Response<Sent>, Broken> {
        pause(plan.delay_answer).await;
        if code_in(response.headers()).is_none() {
            return Ok(self.relay(response, Some(plan), path, account));
        }
        // It is a status and nothing else.
        let (head, _) = response.into_parts();
        let answer = Answer { head, body: Bytes::new(), trailers: None };
        account.driver(answer.code());
        self.after(answer, plan, path, &mut account).await
    }

    fn relay(
        &self,
        response: Response<Incoming>,
        plan: Option<&Arc<Plan>>,
        path: &str,
        mut account: Account,
    ) -> Response<Sent> {
        let (head, incoming) = response.into_parts();
        if let (Some(code), None) = (code_in(&head.headers), plan) {
            account.driver(Some(code));
            account.caller(Some(code));
            return Answer { head, body: Bytes::new(), trailers: None }.into_response();
        }
        let mut change = Change { then: Then::Rest, status: None, lies: None };
        match plan.map(|plan| &plan.end) {
            None | Some(End::Honest | End::Instead(..) | End::Hang) => {}
            Some(End::Lost(Loss::Unavailable, message)) => {
                change.then = Then::Status;
                change.status = Some(Status::unavailable(message));
            }
            Some(End::Lost(Loss::Cut, _) | End::Crash(_)) => change.then = Then::Cut,
            Some(End::Lost(Loss::Silence, _)) => change.then = Then::Silence,
            Some(End::Answered(code, message)) => {
                change.then = Then::Status;
                change.status = Some(Status::new(*code, message));
            }
            Some(End::Lie(_)) => change.lies = plan.map(|plan| (Arc::clone(plan), path.to_owned())),
        }
        let crashes = matches!(plan.map(|plan| &plan.end), Some(End::Crash(_)));
        let (shared, cut) = (Arc::clone(&self.shared), self.cut.clone());
        let end = move || {
            tokio::spawn(async move {
                // What was passed on before is on its way first.
                tokio::time::sleep(FLUSH).await;
                if crashes { shared.crash() } else { cut.cancel() }
            });
        };
        let relay = Relay::new(incoming, change, end, self.over.clone().cancelled_owned(), account);
        Response::from_parts(head, relay.boxed_unsync())
    }

    /// The driver's process ends, and all connections with it.
    async fn crash<T>(&self) -> T {
        self.shared.crash();
        std::future::pending().await
    }

    /// Gives the call to the driver and waits for all of its answer.
    async fn deliver(&self, asked: &Asked<'_>) -> Result<Answer, Broken> {
        let (head, incoming) = self.forward(asked.head, whole(asked.body)).await?.into_parts();
        match Limited::new(incoming, LONGEST).collect().await {
            Ok(all) => {
                let trailers = all.trailers().cloned();
                Ok(Answer { head, body: all.to_bytes(), trailers })
            }
            Err(error) => match error.downcast::<hyper::Error>() {
                Ok(error) => Err(self.broke_off(*error).await),
                Err(_) => Err(Broken::TooLong),
            },
        }
    }

    /// Gives the call to the driver.
    async fn forward(&self, head: &request::Parts, body: Sent) -> Result<Response<Incoming>, Broken> {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        // A socket has no host, and some drivers' libraries take nothing else for one.
        let uri = http::Uri::builder().scheme("http").authority("localhost");
        let asked = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        if let Ok(uri) = uri.path_and_query(asked).build() {
            *request.uri_mut() = uri;
        }
        *request.headers_mut() = head.headers.clone();
        // A compressed answer could not be looked into.
        request.headers_mut().remove("grpc-accept-encoding");
        let mut driver = self.driver.clone();
        let sent = async {
            driver.ready().await?;
            driver.send_request(request).await
        };
        match sent.await {
            Ok(response) => Ok(response),
            Err(error) => Err(self.broke_off(error).await),
        }
    }

    /// How a call that the driver broke off ends for its caller: with the connection, if that of the driver has ended.
    async fn broke_off(&self, error: hyper::Error) -> Broken {
        let ended = tokio::time::timeout(NOTICE, self.over.cancelled());
        if self.driver.is_closed() || ended.await.is_ok() || self.driver.is_closed() {
            self.cut.cancel();
            return Broken::Cut;
        }
        Broken::Driver(error)
    }
}

/// Notes that the driver did not answer, if it did not.
fn noted<T>(done: Result<T, Broken>, account: &mut Account) -> Result<T, Broken> {
    if done.is_err() {
        account.driver_failed();
    }
    done
}

/// Notes what the driver answered.
fn answered(done: Result<Answer, Broken>, account: &mut Account) -> Result<Answer, Broken> {
    let answer = noted(done, account)?;
    account.driver(answer.code());
    Ok(answer)
}

/// A whole request.
struct Asked<'a> {
    head: &'a request::Parts,
    body: &'a Bytes,
    path: &'a str,
    method: &'a Method,
}

fn whole(body: &Bytes) -> Sent {
    Full::new(body.clone()).map_err(|never| match never {}).boxed_unsync()
}

async fn pause(time: Duration) {
    if time != Duration::ZERO {
        tokio::time::sleep(time).await;
    }
}

/// The answer with the lie in it, if it is one that can be lied about.
fn lied(mut answer: Answer, lies: &Lies, path: &str) -> Answer {
    if answer.code() == Some(Code::Ok)
        && let Some((message, _)) = wire::first_message(&answer.body)
        && let Some(told) = lies.tell(path, message)
    {
        answer.head.headers.remove(header::CONTENT_LENGTH);
        answer.body = wire::framed(&told).into();
    }
    answer
}
