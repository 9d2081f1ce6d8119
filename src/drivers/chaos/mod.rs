//! A driver that misbehaves on command: it stands before any other one and does to calls what a script says.
//!
//! Whatever gRPC it is passes through, with its metadata, deadlines, cancellations and streams; what is CSI's is known
//! by the contract, so that rules can name volumes and lie about answers. Of each call a line is written. What a script
//! says is a value ([`script`]), which rule takes a call is a decision ([`rules`]); the rest is here to carry it out.
mod account;
mod call;
mod child;
mod contract;
mod fault;
mod proxy;
mod relay;
mod rules;
mod script;
mod wire;

use std::ffi::OsString;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc;

pub use child::ChildError;
pub use proxy::ServeError;
pub use script::{Script, ScriptError};

use super::endpoint::{Endpoint, EndpointError, socket_path};
use child::Launch;
use contract::Contract;
use proxy::{Proxy, Shared};
use rules::Rules;

/// What it is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where callers connect.
    pub endpoint: String,
    /// The driver's socket. Without one, `command` gets a socket of its own.
    pub driver: Option<String>,
    /// What starts the driver; empty: it runs already.
    pub command: Vec<OsString>,
    /// What is done to which calls.
    pub script: Script,
    /// Where chance begins.
    pub seed: u64,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Neither a socket nor a command.
    #[error("there is no driver; name its socket with --driver, or its command behind --")]
    NoDriver,
    /// Its own socket.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The driver's.
    #[error("--driver")]
    Driver(#[source] EndpointError),
    /// Both are the same.
    #[error("--endpoint and --driver name one socket; callers and the driver each need their own")]
    OneSocket,
    /// The driver did not start.
    #[error("the driver did not start")]
    Child(#[from] ChildError),
    /// The build was broken.
    #[error("the contract of CSI cannot be read")]
    Contract(#[from] prost::DecodeError),
}

/// An instance that listens, before a driver that does.
#[derive(Debug)]
pub struct Server(Proxy);

impl Server {
    /// Starts the driver, if it is to be started, and listens once that does.
    ///
    /// # Errors
    /// See [`StartError`]; nothing listens then.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let outer = socket_path(&settings.endpoint)?;
        let driver = settings.driver.as_deref().map(socket_path).transpose().map_err(StartError::Driver)?;
        if driver.as_ref() == Some(&outer) {
            return Err(StartError::OneSocket);
        }
        let contract = Contract::read()?;
        let (driver, launch) = match (driver, settings.command.as_slice()) {
            (None, []) => return Err(StartError::NoDriver),
            (Some(driver), []) => (driver, None),
            (driver, command) => {
                let launch = Launch::new(command, &outer, driver)?;
                (launch.socket.clone(), Some(launch))
            }
        };
        let companion = match &launch {
            Some(launch) => Some(launch.start().await?),
            None => None,
        };
        tracing::info!(rules = settings.script.len(), seed = settings.seed, "the script");
        let endpoint = Endpoint::bind(&outer)?;
        let shared = Arc::new(Shared::new(contract, driver, Rules::new(settings.script, settings.seed)));
        Ok(Self(Proxy { endpoint, shared, launch, companion }))
    }

    /// Serves until `stop` is ready: then the driver, if it was started here, is asked to end, and calls under way may end
    /// for five seconds. A script that comes by `scripts`, with its seed, takes the place of the one before.
    ///
    /// # Errors
    /// When the driver that was started ends by itself, or the socket fails.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        scripts: mpsc::Receiver<(Script, u64)>,
    ) -> Result<(), ServeError> {
        self.0.run(stop, scripts).await
    }
}
