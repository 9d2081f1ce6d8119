//! One client over several servers: what fails at one is asked of the next from then on.
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, StatusCode};
use kube::client::Body;
use tower::service_fn;

/// Clients of servers that are one cluster.
#[derive(Default)]
pub struct Servers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    clients: Vec<kube::Client>,
    current: usize,
    /// What was said of the servers last.
    told: Told,
}

/// What is to be said of the servers, on edges only.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    /// One did not answer.
    Away,
    /// This machine is no member.
    Removed,
}

impl Servers {
    /// Speaks through these from now on.
    pub fn set(&self, clients: Vec<kube::Client>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.current = 0;
        state.clients = clients;
    }

    fn current(&self) -> Option<(usize, kube::Client)> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let client = state.clients.get(state.current)?;
        Some((state.current, client.clone()))
    }

    /// Says what an answer, or that there was none, shows anew.
    fn tell(&self, answer: Result<StatusCode, String>) {
        let now = match &answer {
            Ok(StatusCode::UNAUTHORIZED) => Told::Removed,
            Ok(StatusCode::SERVICE_UNAVAILABLE) | Err(_) => Told::Away,
            Ok(_) => Told::Nothing,
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut state.told, now);
        drop(state);
        match (before, now) {
            (before, now) if before == now => {}
            (_, Told::Removed) => tracing::error!(
                "this machine is no member of its cluster any more; what runs is left as it is. To let it join again, stop \
                 this daemon and start it with a token of `wharfline token create`"
            ),
            (_, Told::Away) => {
                let why = answer.err().unwrap_or_else(|| "it cannot reach its store".to_owned());
                tracing::warn!("a server does not answer: {why}");
            }
            (_, Told::Nothing) => tracing::info!("a server answers"),
        }
    }

    /// Leaves the server that failed, unless somebody did before.
    fn leave(&self, failed: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.current == failed && !state.clients.is_empty() {
            state.current = (failed + 1) % state.clients.len();
        }
    }

    /// A client of whichever server answers. A request that failed is not repeated here: whoever made it knows whether it may
    /// be.
    pub fn client(self: &Arc<Self>) -> kube::Client {
        let servers = Arc::clone(self);
        let service = service_fn(move |request: Request<Body>| {
            let servers = Arc::clone(&servers);
            async move {
                let Some((n, client)) = servers.current() else {
                    return Err(kube::Error::Service("no server is known".into()));
                };
                // Whoever is dropped here waited too long: that server is left, too.
                let mut leaving = Leaving { servers: &servers, from: Some(n) };
                let answer = client.send(request).await;
                servers.tell(match &answer {
                    Ok(answer) => Ok(answer.status()),
                    Err(error) => Err(chain(error)),
                });
                let well = answer.as_ref().is_ok_and(|a| a.status() != StatusCode::SERVICE_UNAVAILABLE);
                if well {
                    leaving.from = None;
                }
                drop(leaving);
                answer
            }
        });
        kube::Client::new(service, "default")
    }
}

/// An error with what is beneath it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

struct Leaving<'a> {
    servers: &'a Servers,
    from: Option<usize>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(from) = self.from {
            self.servers.leave(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;

    use super::*;

    /// A server that answers with a code, or not at all, and counts.
    fn server(code: Option<u16>, asked: &Arc<AtomicUsize>) -> kube::Client {
        let asked = Arc::clone(asked);
        let service = service_fn(move |_: Request<Body>| {
            asked.fetch_add(1, Ordering::Relaxed);
            async move {
                match code {
                    Some(code) => Ok(Response::builder().status(code).body(Body::empty()).unwrap()),
                    None => Err(std::io::Error::other("refused")),
                }
            }
        });
        kube::Client::new(service, "default")
    }

    async fn ask(client: &kube::Client) -> Option<u16> {
        let request = Request::get("/x").body(Body::empty()).unwrap();
        client.send(request).await.ok().map(|answer| answer.status().as_u16())
    }

    #[tokio::test]
    async fn who_fails_is_left() {
        let counts: Vec<Arc<AtomicUsize>> = (0..3).map(|_| Arc::default()).collect();
        let servers = Arc::new(Servers::default());
        let client = servers.client();
        assert_eq!(ask(&client).await, None);
        servers.set(vec![
            server(None, &counts[0]),
            server(Some(503), &counts[1]),
            server(Some(404), &counts[2]),
        ]);
        let answers = [ask(&client).await, ask(&client).await, ask(&client).await, ask(&client).await];
        assert_eq!(answers, [None, Some(503), Some(404), Some(404)]);
        let asked: Vec<_> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(asked, [1, 1, 2]);
    }
}
