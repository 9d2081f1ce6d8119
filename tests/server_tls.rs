//! The server behind real TLS: who gets in, who may do what, and what lies on the disk.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
    pub(crate) mod server_tls;
}

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use http::Method;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use support::server_api::*;
use support::server_tls::Tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharfline::api::{VolumeClass, definitions};
use wharfline::server::{Identity, Limits, Pki, PkiError, Server};

#[tokio::test]
async fn nobody_gets_in_without_a_certificate() {
    let tls = Tls::start(vec![gadget()]).await;
    for path in ["/healthz", "/livez", "/readyz?verbose", "/version"] {
        assert_eq!(tls.raw(None, ("GET", path)).await.unwrap().0, 200, "{path}");
    }
    for path in [
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/test.dev",
        "/openapi/v3",
        "/openapi/v2",
        "/metrics",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/secrets/a",
        "/apis/test.dev/v1/gadgets?watch=true",
        "/apis/test.dev/v1/namespaces/default/gadgets/a/status",
        "/healthz/x",
        "//healthz",
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let (code, body) = tls.raw(None, (method, path)).await.unwrap();
            assert_eq!(code, 401, "{method} {path}");
            let status: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("Unauthorized")));
        }
    }
    tls.stop().await;
}

#[tokio::test]
async fn only_certificates_of_the_own_client_authority_are_taken() {
    let tls = Tls::start(vec![gadget()]).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let now = jiff::Timestamp::now();
    let other = Pki::load_or_create(elsewhere.path(), now, &|bytes| bytes.fill(1)).unwrap();
    assert_ne!(other.ca_hash(), tls.pki.ca_hash());
    let list = ("GET", "/api/v1/namespaces");
    let admin = tls.pki.issue_admin().unwrap();
    assert_eq!(tls.raw(Some(&admin), list).await.unwrap().0, 200);
    let stranger = other.issue_admin().unwrap();
    assert!(tls.raw(Some(&stranger), list).await.is_err(), "another cluster's admin");
    assert!(tls.raw(Some(&stranger), ("GET", "/healthz")).await.is_err());
    // Long expired: made by the right authority at another time.
    let past = "2000-01-01T00:00:00Z".parse().unwrap();
    let old = Pki::load_or_create(&tls.directory.path().join("pki"), past, &|_| {}).unwrap();
    assert!(tls.raw(Some(&old.issue_admin().unwrap()), list).await.is_err(), "expired");
    tls.stop().await;
}

#[tokio::test]
async fn a_kubeconfig_is_all_that_a_client_needs() {
    let tls = Tls::start(definitions()).await;
    let path = tls.kubeconfig();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let kubeconfig = Kubeconfig::read_from(&path).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();
    assert_eq!(client.apiserver_version().await.unwrap().major, "1");
    let classes: Api<VolumeClass> = Api::all(client);
    let class = json!({
        "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass",
        "metadata": { "name": "fast" }, "spec": { "plugin": "dir" }
    });
    let class: VolumeClass = serde_json::from_value(class).unwrap();
    classes.create(&PostParams::default(), &class).await.unwrap();
    assert_eq!(classes.list(&ListParams::default()).await.unwrap().items.len(), 1);
    // An open watch does not keep the server from stopping.
    let watch = classes.watch(&WatchParams::default(), "0").await.unwrap();
    let mut watch = std::pin::pin!(watch);
    assert!(futures::StreamExt::next(&mut watch).await.is_some());
    let begin = std::time::Instant::now();
    tls.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(3), "the watch was ended, not waited for");
    assert!(futures::StreamExt::next(&mut watch).await.is_none_or(|event| event.is_err()));
}

#[tokio::test]
async fn a_node_with_its_own_key_is_signed_for_its_name_alone() {
    let tls = Tls::start(definitions()).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "wharfline:admin");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "wharfline:admins");
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let certificate = tls.pki.sign_node("n1", &request, jiff::Timestamp::now()).unwrap();
    let node = wharfline::server::Issued { certificate, key: key.serialize_pem() };
    let read = ("GET", "/apis/wharfline.dev/v1alpha1/volumes?fieldSelector=status.controller.nodeName%3Dn1");
    assert_eq!(tls.raw(Some(&node), read).await.unwrap().0, 200);
    let secrets = ("GET", "/api/v1/namespaces/default/secrets");
    let (code, body) = tls.raw(Some(&node), secrets).await.unwrap();
    assert!(code == 403 && body.contains("system:node:n1"), "the subject is ours: {body}");
    for name in ["", "../x", "N1", "a/b"] {
        assert!(
            matches!(
                tls.pki.sign_node(name, &request, jiff::Timestamp::now()),
                Err(PkiError::NodeName { .. })
            ),
            "{name}"
        );
    }
    assert!(tls.pki.sign_node("n1", "no request", jiff::Timestamp::now()).is_err());
    tls.stop().await;
}

#[tokio::test]
async fn keys_are_kept_private_and_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pki");
    let now = jiff::Timestamp::now();
    let first = Pki::load_or_create(&path, now, &|bytes| bytes.fill(2)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        files.push(entry.file_name().into_string().unwrap());
    }
    files.sort();
    let expected = ["client-ca.crt", "client-ca.key", "sealing.key", "serving-ca.crt", "serving-ca.key"];
    assert_eq!(files, expected);
    let again = Pki::load_or_create(&path, now, &|_| panic!("there is a key")).unwrap();
    assert_eq!((again.ca_pem(), again.ca_hash()), (first.ca_pem(), first.ca_hash()));
    assert_eq!(again.sealing().id(), first.sealing().id());
    std::fs::remove_file(path.join("client-ca.key")).unwrap();
    let broken = Pki::load_or_create(&path, now, &|_| {});
    assert!(matches!(broken, Err(PkiError::KeyMissing { .. })), "never made anew beside its certificate");
}

#[tokio::test]
async fn a_connection_serves_many_requests_and_broken_ones_end_it() {
    let tls = Tls::start(vec![gadget()]).await;
    let admin = tls.pki.issue_admin().unwrap();
    let mut stream = tls.connect(Some(&admin)).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(buffer[..read].starts_with(b"HTTP/1.1 200"));
    }
    stream.write_all(b"NONSENSE\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.starts_with(b"HTTP/1.1 400"));
    tls.stop().await;
}

/// Whether a connection is served.
async fn serves(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> bool {
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut buffer = [0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer)).await.unwrap();
    asked.is_ok() && read.is_ok_and(|read| buffer[..read].starts_with(b"HTTP/1.1 200"))
}

/// A connection, however many of this address are just being greeted.
async fn connected(
    tls: &Tls,
    client: Option<&wharfline::server::Issued>,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let end = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        match tls.connect(client).await {
            Ok(stream) => return stream,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
    }
}

#[tokio::test]
async fn nobody_can_take_all_connections() {
    let limits = Limits { connections: 64, connections_each: 2, ..Limits::default() };
    let tls = Tls::limited(vec![gadget()], limits).await;
    let admin = tls.pki.issue_admin().unwrap();
    let mut held = Vec::new();
    // First those who show nothing, from the same address: they take no place of those who do.
    for client in [None, Some(&admin)] {
        for _ in 0..2 {
            let mut stream = connected(&tls, client).await;
            assert!(serves(&mut stream).await);
            held.push(stream);
        }
        let mut third = connected(&tls, client).await;
        assert!(!serves(&mut third).await, "a third of one");
    }
    drop(held);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let open = tls.connect(Some(&admin)).await;
        if let Ok(mut stream) = open
            && serves(&mut stream).await
        {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "what was closed still counts");
    }
    tls.stop().await;
}

/// One line per role, verb and resource: what a node may do is this table and nothing else.
#[tokio::test(start_paused = true)]
#[allow(clippy::too_many_lines, reason = "a table")]
async fn a_nodes_rights_are_an_allow_list() {
    let mut kinds = definitions();
    kinds.push(gadget());
    let server = Server::new(store(), kinds, options());
    server.bootstrap().await.unwrap();
    let api = "/apis/wharfline.dev/v1alpha1";
    let volume = format!("{api}/volumes/v");
    let claims = format!("{api}/namespaces/default/volumeclaims");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/wharfline-system/leases".to_owned();
    let core = "/api/v1/namespaces/default";
    let rows: Vec<(&str, String, bool)> = vec![
        ("GET", format!("{api}/volumes"), false),
        ("GET", format!("{api}/volumes?fieldSelector=status.controller.nodeName%3Dn1"), true),
        ("GET", format!("{api}/volumes?fieldSelector=status.controller.nodeName%3Dn2"), false),
        ("GET", format!("{api}/volumes?fieldSelector=status.controller.nodeName!%3Dn1"), false),
        ("GET", format!("{api}/volumes?fieldSelector=spec.plugin%3Dn1"), false),
        ("GET", format!("{api}/volumes?watch=true&timeoutSeconds=1"), false),
        (
            "GET",
            format!(
                "{api}/volumeattachments?watch=true&timeoutSeconds=1&fieldSelector=spec.host.nodeName%3Dn1"
            ),
            true,
        ),
        (
            "GET",
            format!("{api}/allocations?watch=true&timeoutSeconds=1&fieldSelector=status.nodeName%3Dn1"),
            true,
        ),
        ("GET", format!("{api}/plugins?watch=true&timeoutSeconds=1"), true),
        ("GET", format!("{api}/volumeclasses"), false),
        ("GET", volume.clone(), true),
        ("GET", claims.clone(), false),
        ("GET", format!("{claims}/c"), true),
        ("POST", format!("{api}/volumes"), false),
        ("PUT", volume.clone(), false),
        ("PATCH", volume.clone(), false),
        ("DELETE", volume.clone(), false),
        ("DELETE", format!("{api}/volumes"), false),
        ("PATCH", format!("{volume}/status"), true),
        ("PUT", format!("{volume}/status"), true),
        ("PATCH", format!("{claims}/c/status"), false),
        ("GET", format!("{core}/secrets/s"), false),
        ("GET", format!("{core}/secrets/s?for=volumes/v"), false),
        ("GET", format!("{core}/secrets"), false),
        ("GET", "/api/v1/secrets?watch=true&timeoutSeconds=1".to_owned(), false),
        ("PATCH", format!("{core}/secrets/s"), false),
        ("GET", format!("{core}/configmaps/c"), false),
        ("GET", "/api/v1/namespaces/wharfline-system".to_owned(), true),
        ("GET", "/api/v1/namespaces".to_owned(), false),
        ("PUT", format!("{core}/configmaps/c"), false),
        ("GET", "/api/v1/nodes/n".to_owned(), true),
        ("GET", "/api/v1/nodes".to_owned(), false),
        ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1".to_owned(), true),
        ("PATCH", "/api/v1/nodes/n".to_owned(), false),
        ("PATCH", "/api/v1/nodes/n/status".to_owned(), false),
        ("POST", "/api/v1/namespaces".to_owned(), false),
        ("POST", leases.replace("wharfline-system", "default"), false),
        ("PATCH", format!("{leases}/n1"), true),
        ("PATCH", format!("{leases}/n2"), false),
        ("GET", leases.clone(), false),
        ("DELETE", format!("{leases}/n1"), false),
        ("DELETE", format!("{core}/events/e"), false),
        ("GET", GADGETS.to_owned(), false),
        ("PATCH", format!("{GADGETS}/a/status"), false),
    ];
    for (method, path, may) in rows {
        for (identity, may) in [
            (Identity::node("n1"), may),
            (Identity::admin(), true),
            (Identity::controllers(), true),
            (Identity { user: "x".to_owned(), groups: vec!["others".to_owned()], key: None }, false),
        ] {
            let with = With {
                identity: Some(identity.clone()),
                content_type: (method == "PATCH").then_some("application/merge-patch+json"),
                ..With::default()
            };
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let answer = ask(&server, method.clone(), &path, Some(json!({})), with).await;
            assert_eq!(answer.code != 403, may, "{} {method} {path}: {}", identity.user, answer.body);
        }
    }
    let discovery = With { identity: Some(Identity::node("n1")), ..With::default() };
    assert_eq!(ask(&server, Method::GET, "/apis", None, discovery).await.code, 200);
}

/// The same with objects that are there: of each, the node reaches what names it.
#[tokio::test(start_paused = true)]
#[allow(clippy::too_many_lines, reason = "tables")]
async fn a_node_reaches_what_names_it_and_nothing_else() {
    let server = Server::new(store(), definitions(), options());
    server.bootstrap().await.unwrap();
    let admin = || With { identity: Some(Identity::admin()), ..With::default() };
    let api = "/apis/wharfline.dev/v1alpha1";
    let (core, system) = ("/api/v1/namespaces/default", "/api/v1/namespaces/wharfline-system");
    let make = async |path: String, object: Value| {
        let answer = ask(&server, Method::POST, &path, Some(object), admin()).await;
        assert_eq!(answer.code, 201, "{path}: {}", answer.body);
    };
    let patch = async |who: Identity, path: String, change: Value| {
        let with = With {
            identity: Some(who),
            content_type: Some("application/merge-patch+json"),
            ..With::default()
        };
        ask(&server, Method::PATCH, &path, Some(change), with).await.code
    };
    for name in ["s", "t"] {
        make(format!("{core}/secrets"), json!({ "metadata": { "name": name }, "stringData": { "k": "v" } }))
            .await;
    }
    let capability = json!({ "accessMode": "SingleNodeWriter", "mount": {} });
    for (name, node) in [("v", "n1"), ("w", "n2")] {
        let secrets = json!({ "provision": { "name": "s", "namespace": "default" } });
        make(
            format!("{api}/volumes"),
            json!({ "metadata": { "name": name }, "spec": {
            "plugin": "p", "accessModes": ["SingleNodeWriter"], "secrets": secrets,
            "source": { "existing": { "handle": name } } } }),
        )
        .await;
        let status = json!({ "status": { "controller": { "nodeName": node, "epoch": 1 } } });
        assert_eq!(patch(Identity::controllers(), format!("{api}/volumes/{name}/status"), status).await, 200);
        let secrets = json!({ "nodeStage": { "name": "t", "namespace": "default" } });
        make(format!("{api}/volumeattachments"), json!({ "metadata": { "name": name }, "spec": {
            "volume": name, "volumeUid": "u", "claim": { "namespace": "default", "name": "c", "uid": "u" },
            "nodeName": node, "host": { "nodeName": "n2", "epoch": 1 }, "attachRequired": true, "stageRequired": true,
            "plugin": "p", "handle": name, "capability": capability, "secrets": secrets } }))
        .await;
    }
    let get = async |path: String| {
        let with = With { identity: Some(Identity::node("n1")), ..With::default() };
        ask(&server, Method::GET, &path, None, with).await.code
    };
    for (path, code) in [
        (format!("{api}/volumes/v"), 200),
        (format!("{api}/volumes/w"), 403),
        (format!("{api}/volumes/x"), 404),
        (format!("{api}/volumeattachments/v"), 200),
        (format!("{api}/volumeattachments/w"), 403),
        (format!("{core}/secrets/s?for=volumes/v"), 200),
        (format!("{core}/secrets/s?for=volumes/w"), 403),
        (format!("{core}/secrets/t?for=volumes/v"), 403),
        (format!("{core}/secrets/t?for=volumeattachments/v"), 200),
        (format!("{core}/secrets/t?for=volumeattachments/w"), 403),
        (format!("{core}/secrets/s?for=volumeattachments/v"), 403),
        (format!("{core}/secrets/s?for=plugins/v"), 403),
        (format!("{system}/secrets/s?for=volumes/v"), 403),
    ] {
        assert_eq!(get(path.clone()).await, code, "{path}");
    }
    let node = || Identity::node("n1");
    let stop = json!({ "status": { "controller": { "nodeName": "n2", "epoch": 2 } } });
    for (path, change, code) in [
        ("volumes/v", json!({ "status": { "capacity": "1Mi", "observedEpoch": 1 } }), 200),
        ("volumes/v", stop.clone(), 403),
        ("volumes/v", json!({ "status": { "holders": [] } }), 403),
        ("volumes/w", json!({ "status": { "capacity": "1Mi" } }), 403),
        ("volumeattachments/v", json!({ "status": { "node": { "staged": "Up" } } }), 200),
        ("volumeattachments/v", json!({ "status": { "controller": { "attached": "Up", "epoch": 1 } } }), 403),
        ("volumeattachments/w", json!({ "status": { "node": { "staged": "Up" } } }), 403),
    ] {
        let told = patch(node(), format!("{api}/{path}/status"), change.clone()).await;
        assert_eq!(told, code, "{path} {change}");
    }
    // It reports as itself, and of nobody else's reports makes its own.
    let event = |name: &str, who: &str| {
        json!({ "metadata": { "name": name }, "reportingInstance": who, "reportingController": "x", "reason": "R",
            "action": "A", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
            "regarding": { "kind": "Volume", "name": "v" } })
    };
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    make(events.to_owned(), event("theirs", "n2")).await;
    for (who, code) in [("n2", 403), ("n1", 201)] {
        let with = With { identity: Some(node()), ..With::default() };
        let answer = ask(&server, Method::POST, events, Some(event("mine", who)), with).await;
        assert_eq!(answer.code, code, "{}", answer.body);
    }
    assert_eq!(patch(node(), format!("{events}/mine"), json!({ "note": "x" })).await, 200);
    let steal = json!({ "reportingInstance": "n1" });
    assert_eq!(patch(node(), format!("{events}/theirs"), steal).await, 403);
    let lease = |name: &str| json!({ "metadata": { "name": name }, "spec": {} });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/wharfline-system/leases";
    for (name, code) in [("n2", 403), ("n1", 201)] {
        let with = With { identity: Some(node()), ..With::default() };
        assert_eq!(ask(&server, Method::POST, leases, Some(lease(name)), with).await.code, code, "{name}");
    }
}

#[tokio::test]
async fn clients_of_one_process_are_who_their_constructor_says() {
    let server = Server::new(store(), definitions(), options());
    server.bootstrap().await.unwrap();
    let classes: Api<VolumeClass> = Api::all(server.client(Identity::node("n1")));
    let refused = classes.patch("x", &PatchParams::default(), &Patch::Merge(json!({}))).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));
}
