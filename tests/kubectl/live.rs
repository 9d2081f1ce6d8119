//! The real kubectl against the stage, over plain HTTP on a loopback port, with everything that it asks written down.
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use wharfline::server::Server;

use crate::cases::{Case, End, Line};
use crate::recording::{Exchange, Meanwhile, Recorded, happen};
use crate::stage::{self, Ask};

/// The version of the kubectl on the path, if there is one.
pub(crate) fn version() -> Option<String> {
    let output = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: Value = serde_json::from_slice(&output.stdout).ok()?;
    version.pointer("/clientVersion/gitVersion").and_then(Value::as_str).map(str::to_owned)
}

/// What is written down, and what is still to happen.
struct Ear {
    server: Server,
    heard: Mutex<Vec<Exchange>>,
    meanwhile: Mutex<Option<Vec<Meanwhile>>>,
}

/// Runs the commands of a case and holds what they say against what they should: what they asked, or what was wrong.
pub(crate) async fn run(case: &Case) -> Result<Recorded, String> {
    let meanwhile: Vec<Meanwhile> = case
        .meanwhile
        .iter()
        .map(|(method, path, body)| Meanwhile {
            method: (*method).to_owned(),
            path: (*path).to_owned(),
            body: if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() },
        })
        .collect();
    let ear = Arc::new(Ear {
        server: stage::server().await,
        heard: Mutex::default(),
        meanwhile: Mutex::new(Some(meanwhile.clone())),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(serve(listener, Arc::clone(&ear)));
    let home = tempfile::tempdir().unwrap();
    let mut commands = Vec::new();
    for line in case.lines {
        commands.push(format!("kubectl {}", line.command));
        let (name, line, path) = (case.name, *line, home.path().to_owned());
        let said = tokio::task::spawn_blocking(move || say(name, &line, (&path, port))).await.unwrap();
        if let Err(fault) = said {
            let heard = ear.heard.lock().unwrap();
            let last = heard.iter().rev().find(|exchange| exchange.code >= 400);
            let refused = last.map(|exchange| {
                let answer = String::from_utf8_lossy(&exchange.whole);
                format!("\nlast refusal: {} {}: {answer}", exchange.method, exchange.path)
            });
            return Err(format!("{fault}{}", refused.unwrap_or_default()));
        }
    }
    serving.abort();
    ear.server.shutdown().await;
    let exchanges = std::mem::take(&mut *ear.heard.lock().unwrap());
    Ok(Recorded { commands, kubectl: String::new(), meanwhile, exchanges })
}

/// Runs one command to its end.
fn say(name: &str, line: &Line, (home, port): (&Path, u16)) -> Result<(), String> {
    let kubeconfig = home.join("kubeconfig");
    let config = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\ncurrent-context: c\n"
    );
    std::fs::write(&kubeconfig, config).unwrap();
    // What is stopped must be the child itself; what ends by itself may hang.
    let mut command = match line.end {
        End::Stopped(_) => Command::new("kubectl"),
        End::Exits(_) => {
            let mut command = Command::new("timeout");
            command.args(["60", "kubectl"]);
            command
        }
    };
    command.arg("--cache-dir").arg(home.join("cache"));
    command.args(line.command.split_whitespace());
    command.env("HOME", home).env("KUBECONFIG", &kubeconfig).current_dir(home);
    let editor = home.join("editor");
    std::fs::write(&editor, "sed -i 's/size: 1/size: 5/' \"$1\"").unwrap();
    command.env("KUBE_EDITOR", format!("sh {}", editor.display()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(line.input.as_bytes()).unwrap();
    let (code, said) = match line.end {
        End::Exits(_) => {
            let output = child.wait_with_output().unwrap();
            (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
        }
        End::Stopped(most) => (None, first_lines(child, most, line.says)),
    };
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let place = format!("{name}: kubectl {}\n{said}", line.command);
    match line.end {
        End::Exits(wanted) if code != Some(wanted) => return Err(format!("ended with {code:?}: {place}")),
        End::Exits(_) | End::Stopped(_) => {}
    }
    match line.says.iter().find(|part| !words.contains(**part)) {
        Some(part) => Err(format!("{part:?} is not in what it said: {place}")),
        None => Ok(()),
    }
}

/// What a command that goes on for ever says until it has said all that is wanted, or so many lines.
fn first_lines(mut child: Child, most: usize, wanted: &[&str]) -> String {
    let output = BufReader::new(child.stdout.take().unwrap());
    let (mut said, mut words) = (Vec::new(), String::new());
    for line in output.lines().take(most).map(Result::unwrap) {
        words.extend(line.split_whitespace().flat_map(|word| [word, " "]));
        said.push(line);
        if wanted.iter().all(|part| words.contains(part)) {
            break;
        }
    }
    child.kill().unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    child.wait().unwrap();
    said.join("\n") + &errors
}

async fn serve(listener: TcpListener, ear: Arc<Ear>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let ear = Arc::clone(&ear);
        let service = hyper::service::service_fn(move |request| hear(Arc::clone(&ear), request));
        let http = hyper::server::conn::http1::Builder::new();
        connections.spawn(http.serve_connection(TokioIo::new(stream), service));
    }
}

/// Answers a request as the server does, and writes both down.
async fn hear(ear: Arc<Ear>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(Body::new(body), 1 << 21).await.unwrap();
    let text =
        |name| parts.headers.get(name).map(|value: &http::HeaderValue| value.to_str().unwrap().to_owned());
    let (accept, content_type) = (text(header::ACCEPT), text(header::CONTENT_TYPE));
    let sent = (!bytes.is_empty())
        .then(|| serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::from(STANDARD.encode(&bytes))));
    let path = parts.uri.path_and_query().unwrap().to_string();
    let ask = Ask {
        method: parts.method.clone(),
        path: path.clone(),
        accept: accept.clone(),
        content_type: content_type.clone(),
        body: bytes.to_vec(),
    };
    let (head, body) = stage::ask(&ear.server, ask).await.into_parts();
    let kind = head.headers.get(header::CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap()).to_owned();
    let watches = path.contains("watch=true");
    let exchange = Exchange {
        method: parts.method.to_string(),
        path,
        accept,
        content_type,
        body: sent,
        code: head.status.as_u16(),
        answer_type: kind,
        answer: Value::Null,
        whole: Vec::new(),
    };
    let index = {
        let mut heard = ear.heard.lock().unwrap();
        heard.push(exchange);
        heard.len() - 1
    };
    let note = move |ear: &Ear, chunk: &[u8]| ear.heard.lock().unwrap()[index].whole.extend_from_slice(chunk);
    if !watches {
        let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
        note(&ear, &bytes);
        return Ok(Response::from_parts(head, Body::from(bytes)));
    }
    let steps = ear.meanwhile.lock().unwrap().take();
    for step in steps.into_iter().flatten() {
        happen(&ear.server, &step).await;
    }
    let lines = body.into_data_stream().inspect(move |chunk| note(&ear, chunk.as_ref().unwrap()));
    Ok(Response::from_parts(head, Body::from_stream(lines)))
}
