//! Connections: each caller's has one of its own to the driver, and they end together.
//!
//! ```text
//! starting --the driver listens--> serving --crash--> starting
//!                                     |--the driver ends by itself--> over
//!                                     '--told to stop--> stopping --the driver has ended, the calls too--> over
//! ```
//!
//! While a driver is started anew, callers wait where the kernel holds them. So they see what they would see of a driver
//! that dies and comes back, but for the refusals in between.
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::OptionFuture;
use hyper::{client, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::Way;
use super::child::{ChildError, Launch};
use super::contract::Contract;
use super::rules::{Asked, Rules, Taken};
use super::script::Script;
use crate::drivers::authority::AnyAuthority;
use crate::drivers::endpoint::Endpoint;
use crate::sys::real::companion::Companion;

/// Texts of errors travel in headers; above the limit of a peer the code is lost as well.
const LONGEST_HEADERS: u32 = 1024 * 1024;
/// How long calls under way may take to end after the order to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Why it stops before it is told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The runtime does not take the socket, or no connection can be taken.
    #[error("cannot serve on the socket")]
    Socket(#[from] std::io::Error),
    /// The driver behind it ended by itself.
    #[error("the driver ended by itself, with {0}")]
    DriverEnded(ExitStatus),
    /// It could not be started again.
    #[error("the driver did not come back after a crash")]
    Driver(#[from] ChildError),
}

/// What all calls share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) contract: Contract,
    pub(super) driver: PathBuf,
    rules: Mutex<Rules>,
    crash: Notify,
}

impl Shared {
    pub(super) fn new(contract: Contract, driver: PathBuf, rules: Rules) -> Self {
        Self { contract, driver, rules: Mutex::new(rules), crash: Notify::new() }
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rule that takes a call.
    pub(super) fn take(&self, method: &str, known: bool, ids: &[String]) -> Option<Taken> {
        self.rules().take(Asked { method, known, ids })
    }

    /// Has the driver killed and all connections cut.
    pub(super) fn crash(&self) {
        self.crash.notify_one();
    }
}

/// What serves.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) endpoint: Endpoint,
    pub(super) shared: Arc<Shared>,
    pub(super) launch: Option<Launch>,
    pub(super) companion: Option<Companion>,
}

impl Proxy {
    /// Serves until `stop` is ready. Of scripts that come meanwhile the last one holds, with its calls counted anew.
    pub(super) async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        mut scripts: mpsc::Receiver<(Script, u64)>,
    ) -> Result<(), ServeError> {
        let listener = UnixListener::from_std(self.endpoint.listener()?)?;
        tracing::info!(socket = %self.endpoint.path().display(), driver = %self.shared.driver.display(), "listening");
        let connections = Connections::default();
        let mut stop = pin!(stop);
        loop {
            let companion = OptionFuture::from(self.companion.as_mut().map(Companion::ended));
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = self.shared.crash.notified() => {
                    if !self.restart(&connections, stop.as_mut()).await? {
                        return Ok(());
                    }
                }
                Some(status) = companion => return Err(ServeError::DriverEnded(status?)),
                Some((script, seed)) = scripts.recv() => {
                    tracing::info!(rules = script.len(), seed, "a script was read anew");
                    *self.shared.rules() = Rules::new(script, seed);
                }
                accepted = listener.accept() => connections.begin(&self.shared, accepted?.0),
            }
        }
        // Nobody else comes.
        drop(listener);
        drop(self.endpoint);
        connections.closing.cancel();
        if let Some(companion) = &mut self.companion {
            companion.tell(Signal::TERM)?;
            companion.ended().await?;
        }
        connections.end().await;
        Ok(())
    }

    /// Kills the driver, cuts all connections, and waits until it listens again; false when told to stop meanwhile.
    async fn restart(
        &mut self,
        connections: &Connections,
        stop: impl Future<Output = ()>,
    ) -> Result<bool, ServeError> {
        if let Some(mut companion) = self.companion.take() {
            let status = companion.kill()?;
            tracing::info!(%status, "the driver was killed, by a script");
        }
        connections.cut();
        let Some(launch) = &self.launch else { return Ok(true) };
        tokio::select! {
            () = stop => Ok(false),
            started = launch.start() => {
                self.companion = Some(started?);
                tracing::info!("the driver was started again");
                Ok(true)
            }
        }
    }
}

/// All connections.
#[derive(Debug, Default)]
struct Connections {
    open: TaskTracker,
    /// Cuts those that are open.
    all: Mutex<CancellationToken>,
    /// Lets each end when its calls have.
    closing: CancellationToken,
}

impl Connections {
    fn all(&self) -> MutexGuard<'_, CancellationToken> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, shared: &Arc<Shared>, caller: UnixStream) {
        let (cut, closing) = (self.all().child_token(), self.closing.clone());
        self.open.spawn(pair(Arc::clone(shared), caller, cut, closing));
    }

    fn cut(&self) {
        std::mem::take(&mut *self.all()).cancel();
    }

    /// Waits until all have ended, and cuts those that do not.
    async fn end(&self) {
        self.open.close();
        if tokio::time::timeout(DRAIN, self.open.wait()).await.is_err() {
            tracing::warn!("calls were still under way at the end");
            self.cut();
            self.open.wait().await;
        }
    }
}

/// One caller's connection and the driver's, to the end of both.
async fn pair(shared: Arc<Shared>, caller: UnixStream, cut: CancellationToken, closing: CancellationToken) {
    let driver = match UnixStream::connect(&shared.driver).await {
        Ok(driver) => driver,
        Err(error) => {
            // The caller sees what it would see of the driver: nobody is there.
            tracing::warn!(driver = %shared.driver.display(), %error, "the driver cannot be reached");
            return;
        }
    };
    let mut handshake = client::conn::http2::Builder::new(TokioExecutor::new());
    handshake.max_header_list_size(LONGEST_HEADERS);
    let Ok((sender, connection)) = handshake.handshake(TokioIo::new(driver)).await else { return };
    let over = cut.child_token();
    let way = Way { shared, driver: sender, cut: cut.clone(), over: over.clone() };
    let service = hyper::service::service_fn(move |request| way.clone().answer(request));
    let mut serving = server::conn::http2::Builder::new(TokioExecutor::new());
    serving.max_header_list_size(LONGEST_HEADERS).auto_date_header(false);
    let mut serving = pin!(serving.serve_connection(TokioIo::new(AnyAuthority::new(caller)), service));
    let mut connection = pin!(connection);
    let (mut driver_is_there, mut open) = (true, true);
    loop {
        tokio::select! {
            biased;
            () = cut.cancelled() => break,
            _left = serving.as_mut() => break,
            // What it has answered before goes through still; calls without an answer cut the connection.
            _gone = connection.as_mut(), if driver_is_there => {
                driver_is_there = false;
                serving.as_mut().graceful_shutdown();
            }
            () = closing.cancelled(), if open => {
                open = false;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
    over.cancel();
}
