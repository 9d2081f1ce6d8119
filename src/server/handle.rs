//! One request from its identity to its answer.
use std::fmt::Write;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::access::{ADMINS, CONTROLLERS, Identity, Verb, authorize};
use super::audit::{Asked, Ended};
use super::fixed::UNCHANGEABLE;
use super::identify::identify;
use super::lead::Term;
use super::metrics::Present;
use super::query::{Query, accepted};
use super::read::json_response;
use super::resource::Nature;
use super::route::{Part, Route, Target, parse};
use super::seats::width;
use super::status::Refusal;
use super::{
    HangUp, Inner, Server, apply, backup, body, delete, discovery, joining, protobuf, read, reviews, rights,
    watch, write, yaml,
};
use crate::api::meta::{AsSeen, Unrenewed, WithEnd, WithStatus, WithUid};

/// Answers a request. A write from outside is carried through and noted although its client hangs up meanwhile.
pub(crate) async fn answer(server: Server, request: Request) -> Response {
    let outside = request.extensions().get::<SocketAddr>().is_some();
    if !outside || request.method() == Method::GET {
        return answer_here(server, request).await;
    }
    match tokio::spawn(answer_here(server, request)).await {
        Ok(response) => response,
        Err(_) => Refusal::unavailable("the server closes").into_response(),
    }
}

/// Answers a request; a panic on the way is a 500 for this request alone.
async fn answer_here(server: Server, request: Request) -> Response {
    let inner = Arc::clone(&server.inner);
    let (parts, body) = request.into_parts();
    let route = parse(&inner.registry, parts.uri.path());
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    let asked = inner.options.audit.as_ref().map(|_| Asked::of(&parts, &route, inner.now()));
    let mut who = parts.extensions.get::<Identity>().cloned();
    let dispatched = AssertUnwindSafe(dispatch(server, (parts, body), route, &mut who));
    let answer = dispatched.catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(%method, path, "a request panicked");
        Err(Refusal::internal("the server failed on this request"))
    });
    if let (Some(asked), Some(sink)) = (asked, &inner.options.audit) {
        let ended = match &answer {
            Ok(response) => Ended::Answered(response.status()),
            Err(refusal) => Ended::Refused(refusal),
        };
        let stamp = || (inner.stamp().uid, inner.now());
        let heard = who.is_some() || inner.strangers.may_be_noted(inner.now());
        let line = if heard { asked.line(who.as_ref(), &ended, stamp) } else { None };
        if let Some(line) = line {
            sink(line);
        }
    }
    answer.unwrap_or_else(|refusal| {
        tracing::debug!(%method, path, code = refusal.code.as_u16(), message = refusal.message, "refused");
        refusal.into_response()
    })
}

/// Answers; leaves in `who` the identity that was made out.
async fn dispatch(
    server: Server,
    (mut parts, body): (Parts, axum::body::Body),
    route: Route,
    who: &mut Option<Identity>,
) -> Result<Response, Refusal> {
    let inner = &server.inner;
    match &route {
        Route::Health => return health(&server, &parts),
        Route::Version => return get_only(&parts, version),
        Route::Certificate(name) => {
            return joining::certificate(&server, &parts, who.as_ref(), name, body).await;
        }
        _ => {}
    }
    *who = identify(inner, &mut parts).await?;
    let identity = who.clone().ok_or_else(Refusal::unauthorized)?;
    let aggregated = discovery::wants_aggregated(&parts.headers);
    match route {
        Route::Health | Route::Version | Route::Certificate(_) | Route::Nothing => Err(Refusal::no_route()),
        Route::Authorities => authorities(&server, &parts),
        Route::Metrics => metrics(&server, &parts, &identity).await,
        Route::Backup => backup::send(&server, &parts, &identity).await,
        Route::Tokens => joining::token(&server, &parts, &identity, body).await,
        Route::CoreVersions | Route::Groups if aggregated => {
            let core = matches!(route, Route::CoreVersions);
            let mut response = get_only(&parts, || discovery::aggregated(&inner.registry, core))?;
            let kind = HeaderValue::from_static(discovery::AGGREGATED);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            Ok(response)
        }
        Route::CoreVersions => get_only(&parts, discovery::core_versions),
        Route::Groups => get_only(&parts, || discovery::groups(&inner.registry)),
        Route::Group(group) => {
            let value = discovery::group(&inner.registry, &group)?;
            get_only(&parts, || value)
        }
        Route::Resources(group, version) => {
            let value = discovery::resources(&inner.registry, &group, &version)?;
            get_only(&parts, || value)
        }
        Route::OpenApiIndex => get_only(&parts, || inner.documents.index(&inner.registry)),
        Route::OpenApi(group, version) => open_api(&server, &parts, &group, &version),
        Route::Object(target) => objects(&server, &identity, (&parts, body), &target).await,
    }
}

fn get_only(parts: &Parts, value: impl FnOnce() -> Value) -> Result<Response, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    Ok(json_response(StatusCode::OK, value().to_string()))
}

fn text(code: StatusCode, kind: &'static str, text: String) -> Response {
    (code, [(header::CONTENT_TYPE, kind)], text).into_response()
}

fn health(server: &Server, parts: &Parts) -> Result<Response, Refusal> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    if parts.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let asked = parts.uri.path().trim_matches('/');
    let mut checks = vec![("ping", true)];
    if asked == "readyz" {
        checks.push(("store-followed", server.inner.hub.follows()));
    }
    let good = checks.iter().all(|(_, good)| *good);
    let verbose =
        parts.uri.query().is_some_and(|query| query.split('&').any(|part| part.starts_with("verbose")));
    if !verbose {
        let good = if good { Ok("ok".to_owned()) } else { Err("the server does not follow its store") };
        return good.map(|ok| text(StatusCode::OK, PLAIN, ok)).map_err(Refusal::unavailable);
    }
    let mut lines: String = checks
        .iter()
        .map(|(name, good)| if *good { format!("[+]{name} ok\n") } else { format!("[-]{name} failed\n") })
        .collect();
    let _ = writeln!(lines, "{asked} check {}", if good { "passed" } else { "failed" });
    let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok(text(code, PLAIN, lines))
}

/// The authority that signs what servers show, in PEM. Everybody who connects is shown it anyway; who fetches it here
/// must hold it against the hash in his token before he believes it.
fn authorities(server: &Server, parts: &Parts) -> Result<Response, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let signer = server.inner.options.signer.as_ref().ok_or_else(Refusal::no_route)?;
    Ok(text(StatusCode::OK, "application/x-pem-file", signer.ca_pem().to_owned()))
}

async fn metrics(server: &Server, parts: &Parts, identity: &Identity) -> Result<Response, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    if !identity.is_in(ADMINS) {
        let message = format!("User \"{}\" cannot get path \"/metrics\"", identity.user);
        return Err(Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message));
    }
    let inner = &server.inner;
    let present = Present {
        watches: inner.watches.held(),
        revision: inner.objects.revision().await.ok(),
        follows: inner.hub.follows(),
    };
    Ok(text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", inner.metrics.text(&present)))
}

/// The version of Kubernetes whose manners we keep, with our own behind it.
fn version() -> Value {
    json!({
        "major": "1",
        "minor": "32",
        "gitVersion": concat!("v1.32.0+wharfline.", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn open_api(server: &Server, parts: &Parts, group: &str, version: &str) -> Result<Response, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let document =
        server.inner.documents.get(&server.inner.registry, group, version).ok_or_else(Refusal::no_route)?;
    let tag = format!("\"{}\"", document.hash);
    let known =
        parts.headers.get(header::IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        json_response(StatusCode::OK, document.bytes.clone())
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok(response)
}

/// Whether somebody may make such a request, as far as that can be told before an object is read. Requests and the
/// reviews, which speak of requests, both ask here.
pub(crate) async fn may(
    inner: &Inner,
    identity: &Identity,
    (verb, target, query): (Verb, &Target, &Query),
) -> Result<(), Refusal> {
    if matches!(target.resource.nature, Nature::Review(_)) {
        return Ok(());
    }
    authorize(identity, verb, target)?;
    match &query.node {
        Some(node) => rights::of_request(inner, node, (verb, target, query)).await,
        None => Ok(()),
    }
}

async fn objects(
    server: &Server,
    identity: &Identity,
    (parts, body): (&Parts, axum::body::Body),
    target: &Target,
) -> Result<Response, Refusal> {
    let inner = &server.inner;
    let started = tokio::time::Instant::now();
    let mut query = Query::parse(&parts.uri)?;
    query.node = identity.node_name().map(str::to_owned);
    let whole = identity.is_in(ADMINS) || identity.is_in(CONTROLLERS);
    query.confined = (!whole).then(|| identity.user.clone());
    query.term = parts.extensions.get::<Term>().map(|term| term.0);
    query.with_status = identity.is_in(CONTROLLERS) && parts.extensions.get::<WithStatus>().is_some();
    query.with_end = identity.is_in(CONTROLLERS) && parts.extensions.get::<WithEnd>().is_some();
    query.also = parts.extensions.get::<Unrenewed>().and_then(|lease| inner.unwritten(lease));
    if identity.is_in(CONTROLLERS) {
        if let Some(seen) = parts.extensions.get::<AsSeen>() {
            let what = || Refusal::bad_request(format!("there is no kind \"{}\" to go by", seen.plural));
            query.also = Some(inner.as_seen(seen).ok_or_else(what)?);
        }
        query.uid = parts.extensions.get::<WithUid>().map(|uid| uid.0.clone());
    }
    let verb = Verb::of(&parts.method, target.name.is_some(), query.watch);
    let verb = verb.ok_or_else(Refusal::method_not_allowed)?;
    query.name_writer(identity, &parts.headers);
    if verb == Verb::Patch && apply::is_apply(content_type(parts)) {
        // Whoever applies to what is not there makes it.
        query.barred = authorize(identity, Verb::Create, target).err();
    }
    let done = carry_out(server, identity, (parts, body), (verb, target, &query)).await;
    let code = match &done {
        Ok(response) => response.status(),
        Err(refusal) => refusal.code,
    };
    inner.metrics.note((verb, target), code.as_u16(), started.elapsed());
    done
}

fn content_type(parts: &Parts) -> &str {
    parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

async fn carry_out(
    server: &Server,
    identity: &Identity,
    (parts, body): (&Parts, axum::body::Body),
    (verb, target, query): (Verb, &Target, &Query),
) -> Result<Response, Refusal> {
    let inner = &server.inner;
    let resource = &target.resource;
    if !resource.verbs(target.part).contains(&verb) {
        let mut refusal = Refusal::method_not_allowed();
        if resource.nature == Nature::Definition {
            UNCHANGEABLE.clone_into(&mut refusal.message);
        }
        return Err(refusal.about(resource.subject(target.name.as_deref().unwrap_or_default())));
    }
    may(inner, identity, (verb, target, query)).await?;
    let form = accepted(&parts.headers)?;
    let reads = matches!(verb, Verb::Get | Verb::List | Verb::Watch);
    let counted = !identity.is_internal();
    // Who sends slowly takes no seat meanwhile; what is sent has its place in memory before it comes.
    let mut place = None;
    if !reads && counted {
        let bodies = if identity.node_name().is_some() { &inner.node_bodies } else { &inner.bodies };
        place = Some(bodies.take(&identity.user, body::places(&body)).await?);
    }
    let bytes = if reads { Bytes::new() } else { body::read(body).await? };
    let mut seat = None;
    if counted {
        seat = Some(inner.seats.take(&identity.user, width(verb)).await?);
        // Whoever was taken out while this waited is not served any more.
        if parts.extensions.get::<HangUp>().is_some_and(HangUp::is_out) {
            return Err(Refusal::unauthorized());
        }
    }
    let _held = (place, seat);
    match verb {
        Verb::Get | Verb::List => {
            let last = read::takes_last_known(identity, parts).then_some(inner.last.as_ref()).flatten();
            return read::answer(inner, last, (target, query, form)).await;
        }
        Verb::Watch => {
            let hang_up = parts.extensions.get::<HangUp>().cloned().unwrap_or_default();
            let watched = watch::Watched { target, query, form };
            return watch::start(server, identity, watched, hang_up).await;
        }
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {}
    }
    let kind = content_type(parts);
    let asked = (query, form);
    match (verb, resource.nature) {
        (Verb::Patch, _) => return write::patch(inner, target, asked, (kind, bytes)).await,
        (Verb::Create, Nature::Review(review)) => {
            let bytes = as_json(kind, bytes)?;
            return reviews::answer(inner, identity, (resource, review), (query, &bytes)).await;
        }
        _ => {}
    }
    // An empty body of a deletion is no YAML and no protobuf, whatever its type says.
    let bytes = if bytes.is_empty() { bytes } else { as_json(kind, bytes)? };
    match verb {
        Verb::Create => write::create(inner, target, asked, &bytes).await,
        Verb::Update => write::update(inner, target, asked, &bytes).await,
        Verb::Delete if target.part == Part::Main => delete::one(inner, target, asked, &bytes).await,
        Verb::DeleteCollection => delete::many(inner, target, query, &bytes).await,
        Verb::Delete | Verb::Get | Verb::List | Verb::Watch | Verb::Patch => {
            Err(Refusal::method_not_allowed())
        }
    }
}

/// A body as JSON, whatever of the three types it came in; a request without a type is taken as JSON.
fn as_json(content_type: &str, bytes: Bytes) -> Result<Bytes, Refusal> {
    match content_type.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" | "*/*" => Ok(bytes),
        "application/yaml" => Ok(Bytes::from(yaml::read(&bytes)?.to_string())),
        "application/vnd.kubernetes.protobuf" => Ok(Bytes::from(protobuf::read(&bytes)?.to_string())),
        other => {
            let message = format!(
                "bodies of type {other} are not taken here; send application/json or application/yaml, or, for the \
                 kinds that kubectl sends so, application/vnd.kubernetes.protobuf"
            );
            Err(Refusal::unsupported_media_type(message))
        }
    }
}
