//! How a machine becomes a node: tokens, certificates, and the name that stays with its first key.
//!
//! A token is a Secret in the system namespace that holds the hash of what its owner knows. It serves one node: once used
//! it answers only to the key that used it, so that a joiner whose answer was lost may ask again. The Node object carries
//! the hash of its daemon's key; a person who takes that annotation off lets another machine have the name.
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Deserialize;
use serde_json::json;

use super::access::{ADMINS, Identity, SYSTEM};
use super::identify::{admit_node, bearer, denied, equal, hash};
use super::read::json_response;
use super::status::Refusal;
use super::{Server, body, hex, random_bytes};
use crate::api::NodeAgent;
use crate::api::node_agent::NodeAgentSpec;
use crate::api::token::{JoinToken, bearer_parts};
use crate::api::validate::is_subdomain;

/// The annotation of a Node with the hash of its daemon's key.
pub const KEY: &str = "wharfline.dev/key";
/// What stands there for a daemon in the server's own process, which needs no key.
pub const LOCAL: &str = "local";
/// The type of their Secrets.
const TOKEN_TYPE: &str = "wharfline.dev/join-token";
/// How long a token lasts when nothing is said of it.
const USUAL_LIFE: Duration = Duration::from_secs(3600);
/// The longest that a token may last.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 86_400);
/// The longest request for a certificate.
const LONGEST_REQUEST: usize = 16 << 10;
/// The longest name of a node.
const LONGEST_NAME: usize = 63;
/// A name that the leader of the controllers uses.
const TAKEN: &str = "controllers.wharfline.dev";

/// What is asked of a new token.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wish {
    /// How many seconds it lasts.
    ttl_seconds: Option<u64>,
    /// The only node that may use it.
    node: Option<String>,
}

/// Makes a token, for an administrator.
pub(crate) async fn token(
    server: &Server,
    parts: &Parts,
    identity: &Identity,
    body: axum::body::Body,
) -> Result<Response, Refusal> {
    if parts.method != Method::POST {
        return Err(Refusal::method_not_allowed());
    }
    if !identity.is_in(ADMINS) {
        let message = format!("User \"{}\" cannot create join tokens", identity.user);
        return Err(Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message));
    }
    let Some(signer) = &server.inner.options.signer else { return Err(Refusal::no_route()) };
    let bytes = body::read_within(body, LONGEST_REQUEST).await?;
    let wish = if bytes.is_empty() { Wish::default() } else { read_wish(&bytes)? };
    let life = wish.ttl_seconds.map_or(USUAL_LIFE, Duration::from_secs);
    if life.is_zero() || life > LONGEST_LIFE {
        let message = format!("ttlSeconds: must be 1 to {}", LONGEST_LIFE.as_secs());
        return Err(Refusal::bad_request(message));
    }
    if let Some(node) = &wish.node {
        check_name(node)?;
    }
    let random = &server.inner.options.random;
    let token = JoinToken {
        authority: signer.ca_hash(),
        id: hex(&random_bytes::<5>(random)),
        secret: hex(&random_bytes::<20>(random)),
    };
    let expires = server.inner.now() + life;
    let mut data = json!({ "hash": hash(&token.secret), "expires": expires.to_string() });
    if let Some(node) = &wish.node {
        data["node"] = json!(node);
    }
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": secret_name(&token.id) }, "type": TOKEN_TYPE, "stringData": data,
    }))
    .map_err(|error| Refusal::internal(error.to_string()))?;
    secrets(server).create(&PostParams::default(), &secret).await.map_err(passed_on)?;
    sweep(server).await;
    let answer = json!({ "token": token.to_string(), "expires": expires.to_string() });
    Ok(json_response(StatusCode::CREATED, answer.to_string()))
}

/// Takes tokens away that have expired.
async fn sweep(server: &Server) {
    let secrets = secrets(server);
    let tokens = ListParams::default().fields(&format!("type={TOKEN_TYPE}"));
    let Ok(all) = secrets.list(&tokens).await else { return };
    for token in all {
        let expires =
            token.data.as_ref().and_then(|data| String::from_utf8(data.get("expires")?.0.clone()).ok());
        let expires = expires.and_then(|text| text.parse::<Timestamp>().ok());
        if expires.is_none_or(|expires| expires <= server.inner.now()) {
            let _gone = secrets.delete(&token.name_any(), &DeleteParams::default()).await;
        }
    }
}

fn read_wish(bytes: &[u8]) -> Result<Wish, Refusal> {
    let value = body::json(bytes)?;
    serde_json::from_value(value).map_err(|error| Refusal::bad_request(format!("the body: {error}")))
}

/// Signs the key of a node: of a new one that has a token, or of one that has a certificate to be renewed.
pub(crate) async fn certificate(
    server: &Server,
    parts: &Parts,
    identity: Option<&Identity>,
    name: &str,
    body: axum::body::Body,
) -> Result<Response, Refusal> {
    if parts.method != Method::POST {
        return Err(Refusal::method_not_allowed());
    }
    let Some(signer) = &server.inner.options.signer else { return Err(Refusal::no_route()) };
    // Who shows nothing is not listened to.
    let renews =
        identity.filter(|identity| **identity == Identity::node(name).with_key(identity.key.clone()));
    let bearer = bearer(parts);
    if renews.is_none() && bearer.is_none() {
        return Err(denied("a join token is needed here"));
    }
    check_name(name)?;
    if let Some(identity) = renews {
        admit_node(&server.inner, identity).await?;
    }
    // Few at once, and what is shown is looked at before what is sent is read.
    let _turn = server.inner.joining.try_acquire().map_err(|_| Refusal::too_many(1))?;
    let shown = match renews {
        Some(_) => None,
        None => {
            let shown = bearer.as_deref().and_then(bearer_parts).ok_or_else(unknown_token)?;
            Some((shown, redeem(server, shown, name).await?))
        }
    };
    let bytes = body::read_within(body, LONGEST_REQUEST).await?;
    let unread = || Refusal::bad_request("the body must be a certificate request, as PEM");
    let request = std::str::from_utf8(&bytes).map_err(|_| unread())?;
    let key = signer.requested_key(request).map_err(|error| Refusal::bad_request(error.to_string()))?;
    match shown {
        None if renews.and_then(|identity| identity.key.as_deref()) != Some(&key) => return Err(taken(name)),
        None => drop(bind(server, name, &key, false).await?),
        Some((shown, token)) => {
            enter(server, (shown, token), (name, &key)).await?;
            tracing::info!(node = name, "joined");
        }
    }
    let now = server.inner.now();
    let signed =
        signer.sign_node(name, request, now).map_err(|error| Refusal::internal(error.to_string()))?;
    let mut response = signed.into_response();
    let kind = HeaderValue::from_static("application/x-pem-file");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Takes a node with a token and a key in.
async fn enter(
    server: &Server,
    (shown, token): ((&str, &str), Token),
    (name, key): (&str, &str),
) -> Result<(), Refusal> {
    let used_by = format!("{name} {key}");
    match token {
        // What it made may have been deleted since: a used token makes nothing.
        Token::Used(by) if by == used_by => bind(server, name, key, false).await.map(drop),
        Token::Used(by) => Err(used(&by)),
        Token::Unused(secret) => {
            let made = bind(server, name, key, true).await?;
            let Err(refusal) = consume(server, *secret, &used_by).await else { return Ok(()) };
            // Another was faster with it; if that was this one's own first try, all is well.
            let again = redeem(server, shown, name).await;
            if again.is_ok_and(|again| matches!(again, Token::Used(by) if by == used_by)) {
                return Ok(());
            }
            if made {
                let _gone = nodes(server).delete(name, &DeleteParams::default()).await;
            }
            Err(refusal)
        }
    }
}

/// A token that is known and good for a node.
enum Token {
    /// Nobody has used it.
    Unused(Box<Secret>),
    /// By whom it was used: name and hash of the key.
    Used(String),
}

/// Checks a token.
async fn redeem(server: &Server, (id, secret): (&str, &str), name: &str) -> Result<Token, Refusal> {
    let found = secrets(server).get_opt(&secret_name(id)).await.map_err(passed_on)?;
    let found = found.filter(|found| found.type_.as_deref() == Some(TOKEN_TYPE)).ok_or_else(unknown_token)?;
    let field = |field: &str| {
        let data = found.data.as_ref()?.get(field)?;
        String::from_utf8(data.0.clone()).ok()
    };
    if !equal(field("hash").unwrap_or_default().as_bytes(), hash(secret).as_bytes()) {
        return Err(unknown_token());
    }
    let expires = field("expires").and_then(|text| text.parse::<Timestamp>().ok());
    if expires.is_none_or(|expires| expires <= server.inner.now()) {
        return Err(denied("the join token has expired; get another with `wharfline token create`"));
    }
    if let Some(node) = field("node").filter(|node| node != name) {
        return Err(denied(&format!("the join token is for node \"{node}\" alone")));
    }
    Ok(field("usedBy").map_or_else(|| Token::Unused(Box::new(found)), Token::Used))
}

fn used(by: &str) -> Refusal {
    let node = by.split(' ').next().unwrap_or_default();
    denied(&format!("the join token was used by node \"{node}\"; get another with `wharfline token create`"))
}

async fn consume(server: &Server, mut found: Secret, used_by: &str) -> Result<(), Refusal> {
    let name = found.name_any();
    let data = found.data.get_or_insert_default();
    data.insert("usedBy".to_owned(), k8s_openapi::ByteString(used_by.as_bytes().to_vec()));
    secrets(server).replace(&name, &PostParams::default(), &found).await.map(drop).map_err(passed_on)
}

/// Sees to it that the Node is there and is this key's; whether it was made. Without `makes` it has to be already.
async fn bind(server: &Server, name: &str, key: &str, makes: bool) -> Result<bool, Refusal> {
    let nodes = nodes(server);
    let mut made = false;
    let annotations = [(KEY.to_owned(), key.to_owned())].into();
    let metadata = || ObjectMeta {
        name: Some(name.to_owned()),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    match nodes.get_opt(name).await.map_err(passed_on)? {
        None if makes => {
            let node = Node { metadata: metadata(), ..Node::default() };
            nodes.create(&PostParams::default(), &node).await.map_err(passed_on)?;
            made = true;
        }
        None => return Err(removed(name)),
        // Who has the name is a member until the Node is gone, and its daemon has to be there to take down what is up.
        Some(node)
            if node.metadata.deletion_timestamp.is_some()
                && node.annotations().get(KEY).is_none_or(|bound| bound != key) =>
        {
            let message = format!("node \"{name}\" is being deleted; wait until it is gone");
            return Err(Refusal::new(StatusCode::CONFLICT, "Conflict", message));
        }
        Some(node) => match node.annotations().get(KEY) {
            Some(bound) if bound == key => {}
            Some(_) => return Err(taken(name)),
            None if !makes => return Err(removed(name)),
            None => {
                let patch = json!({ "metadata": {
                    "annotations": { KEY: key }, "resourceVersion": node.metadata.resource_version,
                } });
                let parameters = PatchParams::default();
                nodes.patch(name, &parameters, &Patch::Merge(&patch)).await.map_err(passed_on)?;
            }
        },
    }
    if made {
        // Of an earlier machine of the name: its lease would make this one wait until it has run out.
        let leases: Api<Lease> = Api::namespaced(client(server), SYSTEM);
        let _gone = leases.delete(name, &DeleteParams::default()).await;
    }
    let agents: Api<NodeAgent> = Api::all(client(server));
    // What it says goes with the Node.
    let node = nodes.get(name).await.map_err(passed_on)?;
    let owner_references = node.owner_ref(&()).map(|owner| vec![owner]);
    let metadata = ObjectMeta { name: Some(name.to_owned()), owner_references, ..ObjectMeta::default() };
    let agent = NodeAgent { metadata, spec: NodeAgentSpec {}, status: None };
    match agents.create(&PostParams::default(), &agent).await {
        Ok(_) => Ok(made),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(made),
        Err(error) => Err(passed_on(error)),
    }
}

fn client(server: &Server) -> Client {
    server.client(Identity::controllers())
}

fn secrets(server: &Server) -> Api<Secret> {
    Api::namespaced(client(server), SYSTEM)
}

fn nodes(server: &Server) -> Api<Node> {
    Api::all(client(server))
}

fn secret_name(id: &str) -> String {
    format!("join-{id}")
}

/// A name that a node can have.
fn check_name(name: &str) -> Result<(), Refusal> {
    if is_subdomain(name, LONGEST_NAME) && name != TAKEN {
        return Ok(());
    }
    let message = format!("\"{name}\" is no node name: 1 to {LONGEST_NAME} of a-z, 0-9, '-' and '.'");
    Err(Refusal::bad_request(message))
}

fn unknown_token() -> Refusal {
    denied("the join token is not known here; get one with `wharfline token create`")
}

fn taken(name: &str) -> Refusal {
    let message = format!(
        "node \"{name}\" belongs to another machine's key; choose another --name, or let this one have it with \
         `wharfline annotate node/{name} {KEY}-`"
    );
    Refusal::new(StatusCode::CONFLICT, "Conflict", message)
}

fn removed(name: &str) -> Refusal {
    denied(&format!("node \"{name}\" was removed; join again with a new token"))
}

/// What the API itself answered to us.
fn passed_on(error: kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => {
            let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            match code {
                StatusCode::CONFLICT => Refusal::new(code, "Conflict", status.message),
                StatusCode::SERVICE_UNAVAILABLE => Refusal::unavailable(status.message),
                _ => Refusal::internal(status.message),
            }
        }
        other => Refusal::internal(other.to_string()),
    }
}
