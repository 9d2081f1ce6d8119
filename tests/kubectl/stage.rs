//! The server that every case begins with: the same objects each time, on a clock that stands.
use axum::body::Body;
use http::{Method, Request, Response, header};
use serde_json::{Value, json};
use tower::ServiceExt;
use wharfline::api::definitions;
use wharfline::server::{Identity, Server};

use crate::server_api::{GADGETS, gadget, options, read, store};

/// One request to the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) accept: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// Answers a request of the administrator.
pub(crate) async fn ask(server: &Server, ask: Ask) -> Response<Body> {
    let mut request = Request::builder().method(ask.method).uri(&ask.path);
    let headers = [(header::ACCEPT, ask.accept), (header::CONTENT_TYPE, ask.content_type)];
    for (name, value) in headers.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))) {
        request = request.header(name, value);
    }
    let request = request.extension(Identity::admin()).body(Body::from(ask.body)).unwrap();
    server.router().oneshot(request).await.unwrap()
}

/// A new server with the stage's objects.
pub(crate) async fn server() -> Server {
    let mut kinds = definitions();
    kinds.push(gadget());
    let server = Server::new(store(), kinds, options());
    server.bootstrap().await.unwrap();
    let class =
        json!({ "metadata": { "name": "dir" }, "spec": { "plugin": "dir", "reclaimPolicy": "Delete" } });
    make(&server, "/apis/wharfline.dev/v1alpha1/volumeclasses", class).await;
    let a = json!({
        "metadata": { "name": "a", "labels": { "app": "x" } }, "spec": { "plugin": "dir", "nodeName": "n1" },
    });
    let made = make(&server, GADGETS, a).await;
    make(&server, GADGETS, json!({ "metadata": { "name": "b" }, "spec": { "plugin": "dir", "size": 3 } }))
        .await;
    make(&server, "/api/v1/nodes", json!({ "metadata": { "name": "n1" } })).await;
    let settings = json!({ "metadata": { "name": "settings" }, "data": { "colour": "blue" } });
    make(&server, "/api/v1/namespaces/default/configmaps", settings).await;
    let secret = json!({ "metadata": { "name": "token" }, "stringData": { "password": "open" } });
    make(&server, "/api/v1/namespaces/default/secrets", secret).await;
    let event = json!({
        "metadata": { "name": "a.1" }, "note": "the gadget was made", "reason": "Made", "type": "Normal",
        "regarding": { "kind": "Gadget", "name": "a", "namespace": "default", "apiVersion": "test.dev/v1",
            "uid": made["metadata"]["uid"] },
        "reportingController": "test", "reportingInstance": "one", "eventTime": "2024-05-01T09:59:00.000000Z",
    });
    make(&server, "/apis/events.k8s.io/v1/namespaces/default/events", event).await;
    server
}

async fn make(server: &Server, path: &str, object: Value) -> Value {
    let post = Ask {
        method: Method::POST,
        path: path.to_owned(),
        body: object.to_string().into_bytes(),
        ..Ask::default()
    };
    let answer = read(ask(server, post).await).await;
    assert_eq!(answer.code, 201, "{path}: {}", answer.body);
    answer.body
}
