//! What kubectl asked, as files: one per case, each request with the parts of its answer that matter.
//!
//! Uids and revisions that a request took from an earlier answer are kept as `{{INDEX:POINTER}}` and taken from the
//! answer of the replay.
use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::stage::{self, Ask};

/// Something that happens while kubectl watches.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Meanwhile {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// One request and its answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Exchange {
    pub(crate) method: String,
    pub(crate) path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) accept: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    /// JSON as it is, anything else as a text of base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<Value>,
    pub(crate) code: u16,
    pub(crate) answer_type: String,
    /// The parts of the answer that matter; of a watch, those of each line.
    pub(crate) answer: Value,
    /// The whole answer while recording.
    #[serde(skip)]
    pub(crate) whole: Vec<u8>,
}

/// One case.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) commands: Vec<String>,
    #[serde(default)]
    pub(crate) kubectl: String,
    /// What happens once the first watch is open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) meanwhile: Vec<Meanwhile>,
    pub(crate) exchanges: Vec<Exchange>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kubectl_cases")
}

/// Every recording by the name of its case.
pub(crate) fn all() -> Vec<(String, Recorded)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let recorded = serde_json::from_slice(&fs::read(&path).unwrap());
        found.push((name.clone(), recorded.unwrap_or_else(|e| panic!("{name}: {e}"))));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Keeps a case.
pub(crate) fn write(name: &str, kubectl: &str, mut recorded: Recorded) {
    kubectl.clone_into(&mut recorded.kubectl);
    let mut known: Vec<(String, String)> = Vec::new();
    for index in 0..recorded.exchanges.len() {
        let exchange = &mut recorded.exchanges[index];
        for (value, place) in known.iter().rev() {
            name_values(exchange, value, place);
        }
        exchange.answer = parts_of(exchange);
        if let Ok(answer) = serde_json::from_slice::<Value>(&exchange.whole) {
            values(&answer, &format!("{index}:"), &mut known);
        }
    }
    let text = serde_json::to_string_pretty(&recorded).unwrap();
    fs::create_dir_all(folder()).unwrap();
    fs::write(folder().join(format!("{name}.json")), format!("{text}\n")).unwrap();
}

/// Every uid, revision and token in an answer with its place.
fn values(answer: &Value, place: &str, known: &mut Vec<(String, String)>) {
    match answer {
        Value::Object(fields) => {
            for (name, value) in fields {
                let place = format!("{place}/{name}");
                match value.as_str() {
                    Some(text) if matches!(name.as_str(), "uid" | "resourceVersion" | "continue") => {
                        known.push((format!("{name}={text}"), place));
                    }
                    _ => values(value, &place, known),
                }
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                values(value, &format!("{place}/{index}"), known);
            }
        }
        _ => {}
    }
}

/// Puts the place of a value where the request carries the value.
fn name_values(exchange: &mut Exchange, value: &str, place: &str) {
    let mark = format!("{{{{{place}}}}}");
    let (name, text) = value.split_once('=').unwrap();
    let split = exchange.path.split_once('?').map(|(path, query)| (path.to_owned(), query.to_owned()));
    if let Some((path, query)) = split {
        let parts = query.split('&').map(|part| match part.split_once('=') {
            Some((key, given)) if key == name && given == text => format!("{key}={mark}"),
            _ if name == "uid" && part.contains(text) => part.replace(text, &mark),
            _ => part.to_owned(),
        });
        exchange.path = format!("{path}?{}", parts.collect::<Vec<_>>().join("&"));
    }
    if let Some(body) = &mut exchange.body {
        name_in(body, (name, text), &mark);
    }
}

fn name_in(body: &mut Value, (name, text): (&str, &str), mark: &str) {
    match body {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                if key == name && value == text {
                    *value = Value::from(mark);
                } else {
                    name_in(value, (name, text), mark);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| name_in(item, (name, text), mark)),
        _ => {}
    }
}

/// The text with the values of this run.
fn filled(text: &str, answers: &[Value]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, more)) = rest.split_once("{{") {
        let (mark, after) = more.split_once("}}").unwrap();
        let (index, pointer) = mark.split_once(':').unwrap();
        let answer: &Value = &answers[index.parse::<usize>().unwrap()];
        let value = answer.pointer(pointer).and_then(Value::as_str);
        out.push_str(before);
        out.push_str(value.unwrap_or_else(|| panic!("no {mark} in {answer}")));
        rest = after;
    }
    out + rest
}

/// What of an answer is compared.
pub(crate) fn parts_of(exchange: &Exchange) -> Value {
    if exchange.path.contains("watch=true") && exchange.code == 200 {
        let lines = exchange.whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        return lines.filter(|line| line["type"] != "BOOKMARK").map(|line| line_parts(&line)).collect();
    }
    match serde_json::from_slice(&exchange.whole) {
        Ok(answer) => parts(&answer),
        Err(_) => Value::from(String::from_utf8_lossy(&exchange.whole).into_owned()),
    }
}

fn line_parts(line: &Value) -> Value {
    json!({ "type": line["type"], "object": parts(&line["object"]) })
}

fn parts(answer: &Value) -> Value {
    let names = |list: &Value| -> Value {
        list.as_array().into_iter().flatten().map(|item| item["metadata"]["name"].clone()).collect()
    };
    let kind = answer["kind"].as_str().unwrap_or_default();
    match kind {
        "" if answer.get("gitVersion").is_some() => {
            json!({ "major": answer["major"], "minor": answer["minor"] })
        }
        // A document, or the list of them.
        "" => {
            json!({ "fields": answer.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()) })
        }
        "APIGroupDiscoveryList" => json!({ "kind": kind, "groups": names(&answer["items"]) }),
        "Table" => {
            let column = |column: &Value| column["name"].clone();
            let columns: Value =
                answer["columnDefinitions"].as_array().into_iter().flatten().map(column).collect();
            let cells = |row: &Value| row["cells"].clone();
            let rows: Value = answer["rows"].as_array().into_iter().flatten().map(cells).collect();
            let remaining = &answer["metadata"]["remainingItemCount"];
            json!({ "kind": kind, "columns": columns, "rows": rows, "remaining": remaining })
        }
        "Status" => {
            let field = |name: &str| (name.to_owned(), answer[name].clone());
            Value::Object(["kind", "status", "reason", "code", "message"].map(field).into_iter().collect())
        }
        "SelfSubjectRulesReview" => json!({ "kind": kind, "incomplete": answer["status"]["incomplete"] }),
        "CustomResourceDefinition" => json!({
            "kind": kind, "name": answer["metadata"]["name"], "status": answer["status"]["conditions"],
        }),
        _ if kind.ends_with("List") => json!({ "kind": kind, "names": names(&answer["items"]) }),
        _ => object_parts(answer),
    }
}

/// An object without what the server alone knows.
fn object_parts(object: &Value) -> Value {
    let mut object = object.clone();
    let kept = ["name", "namespace", "labels", "finalizers", "generation", "deletionTimestamp"];
    let metadata: Map<String, Value> = kept
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), object["metadata"].get(name)?.clone())))
        .collect();
    object["metadata"] = Value::Object(metadata);
    object
}

/// Asks again what was asked, and demands the answers that were given.
pub(crate) async fn replay(name: &str, recorded: &Recorded) {
    let server = stage::server().await;
    let mut answers: Vec<Value> = Vec::new();
    let mut meanwhile = Some(&recorded.meanwhile);
    for (index, exchange) in recorded.exchanges.iter().enumerate() {
        let place = format!("{name}, request {index}: {} {}", exchange.method, exchange.path);
        let response = stage::ask(&server, request(exchange, &answers)).await;
        assert_eq!(response.status().as_u16(), exchange.code, "{place}");
        let kind = response.headers().get("content-type").map_or("", |kind| kind.to_str().unwrap());
        assert_eq!(kind, exchange.answer_type, "{place}");
        let mut seen = exchange.clone();
        if exchange.path.contains("watch=true") && exchange.code == 200 {
            for step in meanwhile.take().into_iter().flatten() {
                happen(&server, step).await;
            }
            let wanted = exchange.answer.as_array().map_or(0, Vec::len);
            let lines = lines(response, wanted).await;
            let lines: Value = lines.iter().map(line_parts).collect();
            assert_eq!(lines, exchange.answer, "{place}");
            answers.push(Value::Null);
            continue;
        }
        seen.whole = axum::body::to_bytes(response.into_body(), 64 << 20).await.unwrap().to_vec();
        let got = parts_of(&seen);
        assert_eq!(got, exchange.answer, "{place}\n got {got:#}\n not {:#}", exchange.answer);
        answers.push(serde_json::from_slice(&seen.whole).unwrap_or_default());
    }
    server.shutdown().await;
}

fn request(exchange: &Exchange, answers: &[Value]) -> Ask {
    let binary = exchange.content_type.as_deref() == Some("application/vnd.kubernetes.protobuf");
    let body = match &exchange.body {
        None => Vec::new(),
        Some(Value::String(text)) if binary => STANDARD.decode(text).unwrap(),
        Some(body) => filled(&body.to_string(), answers).into_bytes(),
    };
    Ask {
        method: exchange.method.parse().unwrap(),
        path: filled(&exchange.path, answers),
        accept: exchange.accept.clone(),
        content_type: exchange.content_type.clone(),
        body,
    }
}

/// The next lines of a watch that are no bookmarks.
async fn lines(response: http::Response<axum::body::Body>, count: usize) -> Vec<Value> {
    let mut stream = response.into_body().into_data_stream();
    let (mut found, mut rest) = (Vec::new(), Vec::new());
    while found.len() < count {
        let chunk = tokio::time::timeout(std::time::Duration::from_secs(10), stream.next());
        let Some(chunk) = chunk.await.expect("the watch is silent") else { return found };
        rest.extend(chunk.unwrap());
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let line: Value = serde_json::from_slice(&line).unwrap();
            if line["type"] != "BOOKMARK" {
                found.push(line);
            }
        }
    }
    found.truncate(count);
    found
}

/// Does what happens while kubectl watches.
pub(crate) async fn happen(server: &wharfline::server::Server, step: &Meanwhile) {
    let patch = (step.method == "PATCH").then(|| "application/merge-patch+json".to_owned());
    let ask = Ask {
        method: step.method.parse::<Method>().unwrap(),
        path: step.path.clone(),
        content_type: patch,
        body: if step.body.is_null() { Vec::new() } else { step.body.to_string().into_bytes() },
        ..Ask::default()
    };
    let code = stage::ask(server, ask).await.status();
    assert!(code.is_success(), "{} {}: {code}", step.method, step.path);
}
