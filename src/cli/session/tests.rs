//! The way over the wire with a server that answers from a script.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::cli::failure::Exit;
use crate::cli::kinds::tests::{discovery, kinds};
use crate::cli::wire::content;

/// A client that notes each request and gives the next answer of the script.
struct Script {
    asked: Arc<Mutex<Vec<String>>>,
    client: Client,
}

fn script(answers: Vec<Response<String>>) -> Script {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let answers = Mutex::new(VecDeque::from(answers));
    let service = tower::service_fn(move |request: Request<Body>| {
        noted.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
        let answer = answers.lock().unwrap().pop_front();
        async move {
            let answer = answer.ok_or_else(|| std::io::Error::other("connection refused"))?;
            Ok::<_, std::io::Error>(answer.map(http_body_util::Full::<bytes::Bytes>::from))
        }
    });
    Script { asked, client: Client::new(service, "default") }
}

fn answer(code: u16, body: impl std::fmt::Display) -> Response<String> {
    Response::builder().status(code).body(body.to_string()).unwrap()
}

fn list(version: &str, items: &Value) -> Response<String> {
    answer(200, json!({ "metadata": { "resourceVersion": version }, "items": items }))
}

fn watch(events: &[Value]) -> Response<String> {
    answer(200, events.iter().map(|event| format!("{event}\n")).collect::<String>())
}

fn event(kind: &str, version: &str, phase: &str) -> Value {
    json!({ "type": kind, "object": { "metadata": { "resourceVersion": version }, "phase": phase } })
}

fn claim() -> Item {
    let resource = kinds().find("vc").unwrap().clone();
    Item { resource, namespace: "default".into(), name: "a".into(), object: Value::Null }
}

const PATH: &str = "GET /apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims";

async fn until_bound(script: &Script) -> Result<String, Failure> {
    follow(&Wire::new(script.client.clone()), &claim(), |seen| {
        let phase = seen.and_then(|seen| seen["phase"].as_str());
        phase.filter(|phase| *phase != "Pending").map(str::to_owned)
    })
    .await
}

fn watched(version: &str) -> String {
    format!(
        "{PATH}?fieldSelector=metadata.name%3Da&resourceVersion={version}&watch=true&allowWatchBookmarks=true&timeoutSeconds=300"
    )
}

#[tokio::test(start_paused = true)]
async fn following_goes_on_where_a_watch_ended() {
    let pending = json!([{ "metadata": {}, "phase": "Pending" }]);
    let script = script(vec![
        list("5", &pending),
        watch(&[event("MODIFIED", "6", "Pending"), event("BOOKMARK", "8", "")]),
        watch(&[]),
        watch(&[event("MODIFIED", "9", "Bound")]),
    ]);
    assert_eq!(until_bound(&script).await.as_deref(), Ok("Bound"));
    let listed = format!("{PATH}?limit=500&fieldSelector=metadata.name%3Da");
    assert_eq!(*script.asked.lock().unwrap(), [listed, watched("5"), watched("8"), watched("8")]);
}

#[tokio::test(start_paused = true)]
async fn following_lists_again_once_the_version_is_gone() {
    let gone = json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" } });
    let script = script(vec![
        list("5", &json!([])),
        watch(&[gone]),
        list("90", &json!([{ "metadata": {}, "phase": "Lost" }])),
    ]);
    assert_eq!(until_bound(&script).await.as_deref(), Ok("Lost"));
    assert_eq!(script.asked.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn other_errors_in_a_watch_end_it() {
    let denied = json!({ "type": "ERROR", "object": { "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no" } });
    let script = script(vec![list("5", &json!([])), watch(&[denied])]);
    let failure = until_bound(&script).await.unwrap_err();
    assert_eq!((failure.exit, failure.what.as_str()), (Exit::Failed, "no"));
}

#[tokio::test]
async fn a_server_that_goes_away_is_unreachable() {
    let script = script(vec![list("5", &json!([]))]);
    let failure = until_bound(&script).await.unwrap_err();
    assert_eq!(failure.exit, Exit::Unreachable);
    assert_eq!(failure.why, ["connection refused"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_unreachable() {
    let silent =
        tower::service_fn(|_: Request<Body>| std::future::pending::<std::io::Result<Response<Body>>>());
    let wire = Wire::new(Client::new(silent, "default"));
    let failure = wire.get("/version", Form::Object).await.unwrap_err();
    assert_eq!((failure.exit, failure.why), (Exit::Unreachable, vec!["no answer within 30 s".to_owned()]));
}

#[tokio::test]
async fn pages_become_one_list() {
    let page =
        |items: Value, more: &str| answer(200, json!({ "metadata": { "continue": more }, "items": items }));
    let script = script(vec![page(json!([1, 2]), "a/b"), page(json!([3]), "")]);
    let whole = Wire::new(script.client.clone()).list("/api/v1/nodes", &[], Form::Table).await.unwrap();
    assert_eq!(whole["items"], json!([1, 2, 3]));
    let asked = ["GET /api/v1/nodes?limit=500", "GET /api/v1/nodes?limit=500&continue=a%2Fb"];
    assert_eq!(*script.asked.lock().unwrap(), asked);
}

#[tokio::test]
async fn answers_are_read_with_their_warnings_and_refusals() {
    let mut warned = answer(200, "{}");
    warned.headers_mut().append("warning", "299 - \"unknown field \\\"spec.x\\\"\"".parse().unwrap());
    let html = answer(502, "<html>bad gateway</html>");
    let script = script(vec![warned, html, answer(200, "no json")]);
    let wire = Wire::new(script.client.clone());
    let body = json!({});
    let sent = wire.send(Method::POST, "/x", Some((content::JSON, &body)), Form::Object).await.unwrap();
    assert_eq!(sent.warnings, ["unknown field \"spec.x\""]);
    let failure = wire.get("/x", Form::Object).await.unwrap_err();
    assert_eq!((failure.exit, failure.what.as_str()), (Exit::Failed, "<html>bad gateway</html>"));
    let failure = wire.get("/x", Form::Object).await.unwrap_err();
    assert_eq!(failure.what, "the server's answer could not be read");
}

#[tokio::test]
async fn words_become_targets() {
    let (core, groups) = discovery();
    let both = vec![answer(200, core), answer(200, groups)];
    let script = script(both);
    let terminal = Terminal { input: &mut std::io::empty(), out: &mut Vec::new(), err: &mut Vec::new() };
    let mut session = Session::new(script.client.clone(), terminal, &Options::default());
    for (words, wanted) in [
        (&["vc"][..], Ok("volumeclaim")),
        (&["vc,vol"], Ok("volumeclaim volume")),
        (&["vc", "a", "b"], Ok("volumeclaim/a volumeclaim/b")),
        (&["vc/a", "plug/b"], Ok("volumeclaim/a plugin/b")),
        (&["vc/a", "b"], Err(Exit::Usage)),
        (&["vc/a/b"], Err(Exit::Usage)),
        (&["vc/"], Err(Exit::Usage)),
        (&["pods/a"], Err(Exit::NotFound)),
        (&[], Err(Exit::Usage)),
    ] {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let found = session.targets(&words).await.map_err(|failure| failure.exit);
        let shown = found.map(|targets| {
            let label = |t: &Target| {
                t.name.as_ref().map_or(t.resource.singular.clone(), |name| t.resource.label(name))
            };
            targets.iter().map(label).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(shown, wanted.map(str::to_owned), "{words:?}");
    }
    // The kinds were asked for once.
    assert_eq!(*script.asked.lock().unwrap(), ["GET /api", "GET /apis"]);
}
