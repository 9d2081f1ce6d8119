//! The way from a daemon to its server, which can be cut.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::client::Body;
use tower::service_fn;
use wharfline::server::{Identity, Server};

/// Clones are the same link.
#[derive(Clone, Default)]
pub struct Link(Arc<AtomicBool>);

impl Link {
    /// Every request from now on fails, as to a server that is gone. Watches that are open hear nothing of it.
    pub fn cut(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// The server is back.
    pub fn mend(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// The client of a node, over this link.
    pub fn client(&self, server: &Server, node: &str) -> kube::Client {
        let (inner, cut) = (server.client(Identity::node(node)), Arc::clone(&self.0));
        let service = service_fn(move |request: http::Request<Body>| {
            let (inner, cut) = (inner.clone(), Arc::clone(&cut));
            async move {
                if cut.load(Ordering::SeqCst) {
                    return Err::<_, kube::Error>(kube::Error::Service("the server is gone".into()));
                }
                inner.send(request).await
            }
        });
        kube::Client::new(service, "default")
    }
}
