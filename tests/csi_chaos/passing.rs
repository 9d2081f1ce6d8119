//! What passes through: any gRPC, whole.
use std::convert::Infallible;
use std::path::Path;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use wharfline::csi::{Code, Origin, Rpc};

use crate::rig::{Chaos, LONG, Rig, SHORT, until_async};
use crate::support::scripted::requests::{create, delete};
use crate::support::scripted::{Answer, Canary, Config, End, Gate, Scripted, Site};

/// A server of a service that nobody knows: it sends back what comes, frame by frame, and then a status with details.
fn echo(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                let (head, body) = request.into_parts();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("7"));
                trailers.insert("grpc-message", HeaderValue::from_static("not%20you"));
                trailers.insert("grpc-status-details-bin", HeaderValue::from_static("AQID"));
                let last = futures::stream::once(async move { Ok(Frame::trailers(trailers)) });
                let mut answer = Response::new(StreamBody::new(
                    body.into_data_stream().map(|part| part.map(Frame::data)).chain(last),
                ));
                for name in ["x-ask-bin", "grpc-timeout", "content-type", "te"] {
                    if let Some(value) = head.headers.get(name) {
                        let echoed = if name == "te" { "x-te" } else { name };
                        answer.headers_mut().insert(echoed, value.clone());
                    }
                }
                Ok::<_, Infallible>(answer)
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
}

/// Metadata both ways, the deadline, a stream in both directions, the status with its details.
#[tokio::test]
async fn a_service_that_nobody_knows_passes_frame_by_frame() {
    let dir = tempfile::tempdir().unwrap();
    echo(&dir.path().join("driver.sock"));
    let script = json!({ "rules": [{ "method": "vendor.Extra/Refused", "code": "UNAUTHENTICATED" }] });
    let chaos = Chaos::start_in(dir, &script, &["--driver", "unix://ROOT/driver.sock"]);
    let stream = UnixStream::connect(chaos.socket()).await.unwrap();
    let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = handshake.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (frames, body) = mpsc::unbounded_channel::<Result<Frame<Bytes>, Infallible>>();
    let ask = |path: &str, body| {
        Request::post(format!("http://localhost/{path}"))
            .header("te", "trailers")
            .header("content-type", "application/grpc+vendor")
            .header("grpc-timeout", "5S")
            .header("x-ask-bin", "AAEC")
            .body(body)
            .unwrap()
    };
    let body = StreamBody::new(UnboundedReceiverStream::new(body));
    let answer = sender.send_request(ask("vendor.Extra/Talk", body)).await.unwrap();
    let (head, mut body) = answer.into_parts();
    for (name, value) in [
        ("x-ask-bin", "AAEC"),
        ("grpc-timeout", "5S"),
        ("content-type", "application/grpc+vendor"),
        ("x-te", "trailers"),
    ] {
        assert_eq!(head.headers.get(name).unwrap(), value, "{name}");
    }
    // Each part comes back before the next one is sent.
    for word in ["one", "two"] {
        frames.send(Ok(Frame::data(Bytes::from(word)))).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), word);
    }
    drop(frames);
    let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    for (name, value) in
        [("grpc-status", "7"), ("grpc-message", "not%20you"), ("grpc-status-details-bin", "AQID")]
    {
        assert_eq!(trailers.get(name).unwrap(), value, "{name}");
    }
    assert!(body.frame().await.is_none());
    let line = chaos.line("vendor.Extra/Talk").await;
    assert!(line.contains(r#"driver="PERMISSION_DENIED" caller="PERMISSION_DENIED""#), "{line}");
    let (frames, body) = mpsc::unbounded_channel();
    drop(frames);
    let body = StreamBody::new(UnboundedReceiverStream::new(body));
    let refused = sender.send_request(ask("vendor.Extra/Refused", body)).await.unwrap();
    assert_eq!(refused.headers().get("grpc-status").unwrap(), "16");
    assert!(refused.body().is_end_stream(), "a status in headers ends the stream");
}

/// The deadline is told to the driver, and that it has passed.
#[tokio::test]
async fn a_caller_that_gives_up_is_seen_to_by_the_driver() {
    let rig = Rig::new(&json!({}));
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    let failure = rig.plugin.create_volume(create("pvc-1"), SHORT).await.unwrap_err();
    assert_eq!((failure.code, failure.origin), (Code::DeadlineExceeded, Origin::Local));
    let call = || rig.backend.calls_of(Rpc::CreateVolume).remove(0);
    until_async("the driver knows", || call().ended.map(|(_, end)| end) == Some(End::Left)).await;
    assert_eq!(call().timeout.as_deref(), Some("200000u"), "the deadline as it was sent");
    assert_eq!(call().authority, "localhost");
    let line = rig.chaos.line("CreateVolume").await;
    assert!(
        line.contains(r#"driver="not asked" caller="left""#) || line.contains(r#"caller="left""#),
        "{line}"
    );
}

#[tokio::test]
async fn what_is_broken_stays_broken_the_same_way() {
    let rig = Rig::new(&json!({}));
    let direct = crate::rig::plugin(rig.scripted.socket());
    for answer in [
        Answer::fail(Code::NotFound, "100 % gone: ä"),
        Answer::fail_with_number(99, "odd"),
        Answer::broken_details(Code::Internal, "x"),
        Answer::garbage(),
        Answer::no_status(),
        Answer::http(502),
        Answer::oversize(1 << 30),
        Answer::fail(Code::Internal, "x".repeat(100_000)),
        Answer::cut(),
    ] {
        let mut told = Vec::new();
        for plugin in [&direct, &rig.plugin] {
            rig.backend.next(Rpc::DeleteVolume, answer.clone());
            let failure = plugin.delete_volume(delete("v"), LONG).await.unwrap_err();
            told.push((
                failure.code,
                failure.origin,
                failure.message.len() > 1000 || failure.message.contains("gone: ä"),
            ));
        }
        assert_eq!(told[0], told[1], "{answer:?}");
    }
    rig.backend.configure(|config: &mut Config| config.gzip = true);
    rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap();
}

/// Each caller's connection is one of the driver's, and ends with it.
#[tokio::test]
async fn a_driver_that_goes_and_comes_back_is_seen_to() {
    let mut rig = Rig::new(&json!({}));
    rig.plugin.probe(LONG).await.unwrap();
    let ends = *rig.plugin.ends().borrow();
    rig.scripted.kill().await;
    let mut seen = rig.plugin.ends();
    let waited = tokio::time::timeout(LONG, seen.wait_for(|now| *now > ends)).await;
    assert!(waited.unwrap().is_ok(), "the caller's connection ends with the driver's");
    let failure = rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap_err();
    assert_eq!((failure.code, failure.origin), (Code::Unavailable, Origin::Local));
    rig.scripted = Scripted::start(&rig.backend, Site::new("node-a"), rig.scripted.socket());
    rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap();
    assert_eq!(rig.backend.calls_of(Rpc::CreateVolume).len(), 1);
    assert!(rig.chaos.log().contains("the driver cannot be reached"), "{}", rig.chaos.log());
}

/// Neither what a request holds nor what an error says is written, whatever becomes of the call.
#[tokio::test]
async fn no_secret_is_written() {
    let script = json!({ "rules": [
        { "method": "CreateVolume", "times": 1, "lie": { "volume": { "volume_id": "other" } } },
        { "method": "CreateVolume", "times": 1, "loseReply": "Cut" },
        { "method": "CreateVolume", "times": 1, "repeat": "After" },
    ] });
    let rig = Rig::new(&script);
    let canary = Canary::new();
    for _ in 0..5 {
        let mut request = create("pvc-1");
        request.secrets = canary.secrets();
        request.parameters = canary.secrets();
        let _ = rig.plugin.create_volume(request, LONG).await;
        rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::Internal, canary.value()));
    }
    until_async("all are told of", || rig.chaos.calls().len() == 5).await;
    assert!(
        rig.backend
            .calls_of(Rpc::CreateVolume)
            .iter()
            .all(|call| format!("{:?}", call.ask).contains("redacted"))
    );
    canary.assert_absent("the log", rig.chaos.log());
}
