//! One request from its identity to its answer.
use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::access::{Identity, Verb, authorize};
use super::query::{Query, accepted};
use super::read::json_response;
use super::route::{Route, Target, parse};
use super::status::Refusal;
use super::{HangUp, Server, apply, body, delete, discovery, joining, read, rights, watch, write};

/// Answers a request; a panic on the way is a 500 for this request alone.
pub(crate) async fn answer(server: Server, request: Request) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    match AssertUnwindSafe(dispatch(server, request)).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(refusal)) => {
            tracing::debug!(%method, path, code = refusal.code.as_u16(), message = refusal.message, "refused");
            refusal.into_response()
        }
        Err(_) => {
            tracing::error!(%method, path, "a request panicked");
            Refusal::internal("the server failed on this request").into_response()
        }
    }
}

async fn dispatch(server: Server, request: Request) -> Result<Response, Refusal> {
    let inner = &server.inner;
    let (mut parts, body) = request.into_parts();
    let route = parse(&inner.registry, parts.uri.path());
    let shown = parts.extensions.get::<Identity>().cloned();
    let identity = match (shown, &route) {
        (_, Route::Health) => return health(&server, &parts),
        (_, Route::Version) => return get_only(&parts, version),
        (shown, Route::Certificate(name)) => {
            return joining::certificate(&server, &parts, shown.as_ref(), name, body).await;
        }
        (Some(identity), _) => identity,
        (None, _) => return Err(Refusal::unauthorized()),
    };
    let signs = inner.options.signer.is_some();
    if let (true, Some(name), Some(key)) = (signs, identity.node_name(), &identity.key) {
        let leave = inner.members.admit(inner, name, key).await?;
        parts.extensions.get_or_insert_default::<HangUp>().member = Some(leave);
    }
    let aggregated = discovery::wants_aggregated(&parts.headers);
    match route {
        Route::Health | Route::Version | Route::Certificate(_) | Route::Nothing => Err(Refusal::no_route()),
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

fn health(server: &Server, parts: &Parts) -> Result<Response, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let waits = parts.uri.path().starts_with("/readyz") && !server.inner.hub.follows();
    if waits {
        return Err(Refusal::unavailable("the server does not follow its store"));
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], "ok").into_response())
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

async fn objects(
    server: &Server,
    identity: &Identity,
    (parts, body): (&Parts, axum::body::Body),
    target: &Target,
) -> Result<Response, Refusal> {
    let inner = &server.inner;
    let mut query = Query::parse(&parts.uri)?;
    query.node = identity.node_name().map(str::to_owned);
    let verb = Verb::of(&parts.method, target.name.is_some(), query.watch);
    let verb = verb.ok_or_else(Refusal::method_not_allowed)?;
    authorize(identity, verb, target)?;
    if let Some(node) = &query.node {
        rights::of_request(inner, node, (verb, target, &query)).await?;
    }
    let form = accepted(&parts.headers)?;
    match verb {
        Verb::Get => return read::get(inner, target, &query, form).await,
        Verb::List => return read::list(inner, target, &query, form).await,
        Verb::Watch => {
            let hang_up = parts.extensions.get::<HangUp>().cloned().unwrap_or_default();
            return watch::start(server, target, &query, form, hang_up).await;
        }
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {}
    }
    let bytes = body::read(body).await?;
    let kind =
        parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    query.name_writer(identity, &parts.headers);
    if verb == Verb::Patch && apply::is_apply(kind) {
        // Whoever applies to what is not there makes it.
        query.barred = authorize(identity, Verb::Create, target).err();
    }
    let asked = (&query, form);
    match verb {
        Verb::Create => {
            only_json(kind)?;
            write::create(inner, target, asked, &bytes).await
        }
        Verb::Update => {
            only_json(kind)?;
            write::update(inner, target, asked, &bytes).await
        }
        Verb::Patch => write::patch(inner, target, asked, (kind, bytes)).await,
        Verb::Delete if target.part == super::route::Part::Main => {
            delete::one(inner, target, asked, &bytes).await
        }
        Verb::DeleteCollection => delete::many(inner, target, &query, &bytes).await,
        Verb::Delete | Verb::Get | Verb::List | Verb::Watch => Err(Refusal::method_not_allowed()),
    }
}

/// Objects are taken as JSON; a request without a type is taken as JSON too.
fn only_json(content_type: &str) -> Result<(), Refusal> {
    match content_type.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" | "*/*" => Ok(()),
        other => {
            let message = format!("bodies of type {other} are not taken here; send application/json");
            Err(Refusal::unsupported_media_type(message))
        }
    }
}
