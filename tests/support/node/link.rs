//! The way from a daemon to its server, which can be cut.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kube::client::Body;
use tower::service_fn;
use wharfline::server::{Identity, Server};

use crate::support::scripted::Gate;

/// Clones are the same link.
#[derive(Clone, Default)]
pub struct Link {
    all: Arc<AtomicBool>,
    leases: Arc<AtomicBool>,
    withheld: Arc<Mutex<Option<&'static str>>>,
    held: Arc<Mutex<Option<(&'static str, Gate)>>>,
    requests: Arc<AtomicUsize>,
    events: Arc<AtomicUsize>,
    patches: Arc<Mutex<HashMap<String, usize>>>,
}

impl Link {
    /// Every request from now on fails, as to a server that is gone. Watches that are open hear nothing of it.
    pub fn cut(&self) {
        self.all.store(true, Ordering::SeqCst);
    }

    /// Only leases cannot be renewed.
    pub fn cut_leases(&self) {
        self.leases.store(true, Ordering::SeqCst);
    }

    /// Only what is asked of this kind fails, by its plural.
    pub fn withhold(&self, plural: &'static str) {
        *self.withheld.lock().unwrap() = Some(plural);
    }

    /// The next patch of this path is on its way until the gate opens.
    pub fn hold(&self, path: &'static str, gate: &Gate) {
        *self.held.lock().unwrap() = Some((path, gate.clone()));
    }

    /// The server is back.
    pub fn mend(&self) {
        *self.withheld.lock().unwrap() = None;
        self.all.store(false, Ordering::SeqCst);
        self.leases.store(false, Ordering::SeqCst);
    }

    /// How many requests were made over it, leases left out.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// The same, events left out: some are of the time that something takes.
    pub fn requests_but_events(&self) -> usize {
        self.requests() - self.events.load(Ordering::SeqCst)
    }

    /// How many requests patched this path.
    pub fn patches(&self, path: &str) -> usize {
        self.patches.lock().unwrap().get(path).copied().unwrap_or_default()
    }

    /// The client of a node, over this link.
    pub fn client(&self, server: &Server, node: &str) -> kube::Client {
        let (inner, link) = (server.client(Identity::node(node)), self.clone());
        let service = service_fn(move |request: http::Request<Body>| {
            let (inner, link) = (inner.clone(), link.clone());
            async move {
                let lease = request.uri().path().contains("/leases");
                link.requests.fetch_add(usize::from(!lease), Ordering::SeqCst);
                let event = request.uri().path().contains("/events");
                link.events.fetch_add(usize::from(event), Ordering::SeqCst);
                if request.method() == http::Method::PATCH {
                    let held = {
                        let mut held = link.held.lock().unwrap();
                        held.take_if(|(path, _)| request.uri().path().ends_with(*path))
                    };
                    *link.patches.lock().unwrap().entry(request.uri().path().to_owned()).or_default() += 1;
                    if let Some((_, gate)) = held {
                        gate.passed().await;
                    }
                }
                let withheld = *link.withheld.lock().unwrap();
                let withheld = withheld.is_some_and(|plural| request.uri().path().contains(plural));
                if withheld || link.all.load(Ordering::SeqCst) || lease && link.leases.load(Ordering::SeqCst)
                {
                    return Err::<_, kube::Error>(kube::Error::Service("the server is gone".into()));
                }
                inner.send(request).await
            }
        });
        kube::Client::new(service, "default")
    }
}
