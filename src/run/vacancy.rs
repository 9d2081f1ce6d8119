//! What a daemon has for itself alone, a store or a port. One that was killed has it for a moment longer, and whoever is
//! started in its place, by a person or by systemd, is not sent away for that.
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::node::{self, Looked, Machine};
use crate::store::embedded::OpenError;

/// How long one that was killed may take to be gone: its last threads may be writing.
const GONE: Duration = Duration::from_secs(1);
/// Between two looks.
const AWHILE: Duration = Duration::from_millis(20);

/// Another server has the data directory.
#[derive(Debug, thiserror::Error)]
#[error("another server runs on {}", .0.display())]
pub(super) struct Occupied(pub(super) std::path::PathBuf);

/// Takes something, and waits for it as long as one that was killed could have it.
///
/// # Errors
/// Those of `take`.
pub(super) async fn once_vacant<T>(mut take: impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let end = Instant::now() + GONE;
    loop {
        match take().await {
            Err(error) if is_taken(&error) && Instant::now() < end => tokio::time::sleep(AWHILE).await,
            taken => return taken,
        }
    }
}

/// Whether another process has it.
fn is_taken(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let port = cause.downcast_ref().is_some_and(|e: &io::Error| e.kind() == io::ErrorKind::AddrInUse);
        let store = matches!(cause.downcast_ref(), Some(OpenError::InUse { .. }));
        let node = matches!(cause.downcast_ref(), Some(node::Error::InUse(_)));
        port || store || node || cause.is::<Occupied>()
    })
}

/// Listens on an address; `flag` gives another one.
pub(super) async fn listen(at: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let bind = async || {
        let refused = || format!("cannot listen on {at}; give another address with {flag}");
        TcpListener::bind(at).await.with_context(refused)
    };
    once_vacant(bind).await
}

/// Looks at the machine, once no other daemon has it.
pub(super) async fn look(machine: Machine, options: node::Options) -> anyhow::Result<Looked> {
    once_vacant(async || Ok(Looked::at(machine.clone(), options.clone()).await?)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[tokio::test(start_paused = true)]
    async fn what_another_one_has_is_waited_for_as_long_as_it_could_be_going() {
        let taken = || anyhow::Error::from(OpenError::InUse { path: "/d".into() });
        let (began, mut tries) = (Instant::now(), 0);
        let later = once_vacant(async || {
            tries += 1;
            if tries < 5 { Err(taken().context("data directory")) } else { Ok(()) }
        });
        later.await.unwrap();
        assert_eq!((tries, began.elapsed()), (5, AWHILE * 4));
        let never = once_vacant(async || Err::<(), _>(taken())).await.unwrap_err();
        assert_eq!(never.to_string(), "/d is in use by another process");
        assert!(began.elapsed() <= AWHILE * 5 + GONE, "{:?}", began.elapsed());
        // Anything else is nothing to wait for.
        let (began, mut tries) = (Instant::now(), 0);
        let broken = once_vacant(async || {
            tries += 1;
            Err::<(), _>(anyhow!("no room"))
        });
        assert_eq!(broken.await.unwrap_err().to_string(), "no room");
        assert_eq!((tries, began.elapsed()), (1, Duration::ZERO));
    }

    #[tokio::test]
    async fn a_port_and_a_directory_can_be_had_again() {
        let one = listen("127.0.0.1:0".parse().unwrap(), "--listen").await.unwrap();
        let at = one.local_addr().unwrap();
        let error = TcpListener::bind(at).await.unwrap_err();
        assert!(is_taken(&anyhow::Error::from(error).context("x")), "a port");
        assert!(is_taken(&Occupied("/d".into()).into()), "a server's directory");
        let two = listen(at, "--listen");
        let (two, ()) = tokio::join!(two, async { drop(one) });
        assert_eq!(two.unwrap().local_addr().unwrap(), at);
    }
}
