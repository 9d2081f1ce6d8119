//! Who makes a request: the certificate or the token that it shows, held against what is stored.
//!
//! A node is let in while its Node carries its key, a user while its Secret carries the hash of its token.
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;
use http::{StatusCode, header};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::SemaphorePermit;

use super::access::{Identity, Role};
use super::joining::KEY;
use super::members::Membership;
use super::status::Refusal;
use super::{HangUp, Inner};
use crate::api::token::{USER_TYPE, UserToken};

/// How long somebody new waits to be looked up.
const LOOK: Duration = Duration::from_secs(2);

/// The key of a node's daemon.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeKey(String);

impl Membership for NodeKey {
    fn of(node: &Value) -> Option<Self> {
        node["metadata"]["annotations"][KEY].as_str().map(|key| Self(key.to_owned()))
    }
}

/// A user as its Secret says.
#[derive(Clone, PartialEq)]
pub(crate) struct User {
    hash: String,
    role: Role,
    expires: Timestamp,
}

impl Membership for User {
    fn of(secret: &Value) -> Option<Self> {
        let field = |name: &str| {
            let bytes = STANDARD.decode(secret["data"][name].as_str()?).ok()?;
            String::from_utf8(bytes).ok()
        };
        let user = secret["type"] == USER_TYPE && secret["metadata"].get("deletionTimestamp").is_none();
        let role = Role::of(&field("role")?)?;
        user.then_some(Self { hash: field("hash")?, role, expires: field("expires")?.parse().ok()? })
    }
}

/// The identity of a request, if it shows one; leaves in the request what ends its watches when it must go.
pub(crate) async fn identify(inner: &Inner, parts: &mut Parts) -> Result<Option<Identity>, Refusal> {
    let shown = parts.extensions.get::<Identity>().cloned();
    let (identity, member, expires) = match (shown, bearer(parts)) {
        (Some(identity), _) => {
            let leave = admit_node(inner, &identity).await?;
            (identity, leave, None)
        }
        (None, Some(token)) => {
            let (identity, leave, expires) = user(inner, &token).await?;
            (identity, Some(leave), Some(expires))
        }
        (None, None) => return Ok(None),
    };
    if member.is_some() {
        let hang_up = parts.extensions.get_or_insert_default::<HangUp>();
        (hang_up.member, hang_up.expires) = (member, expires);
    }
    Ok(Some(identity))
}

/// What the request shows as a token.
pub(crate) fn bearer(parts: &Parts) -> Option<String> {
    let given = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    given.strip_prefix("Bearer ").map(str::to_owned)
}

type Leave = tokio_util::sync::CancellationToken;

/// Who shows what nobody knows makes the store read: few may at once.
async fn turn(inner: &Inner) -> Result<SemaphorePermit<'_>, Refusal> {
    let turn = tokio::time::timeout(LOOK, inner.looking.acquire()).await;
    turn.ok().and_then(Result::ok).ok_or_else(|| Refusal::too_many(1))
}

/// A node must be one with the key that it shows.
pub(crate) async fn admit_node(inner: &Inner, identity: &Identity) -> Result<Option<Leave>, Refusal> {
    let signs = inner.options.signer.is_some();
    let (true, Some(name), Some(key), Some(nodes)) =
        (signs, identity.node_name(), &identity.key, &inner.nodes)
    else {
        return Ok(None);
    };
    let fits = |known: &NodeKey| known.0 == *key;
    let found = match nodes.known(name).filter(|(known, _)| fits(known)) {
        Some(found) => Some(found),
        None => {
            let _turn = turn(inner).await?;
            nodes.read(inner, name, fits).await?
        }
    };
    match found {
        Some((_, leave)) => Ok(Some(leave)),
        None => Err(denied(&format!(
            "node \"{name}\" is not a member with this key: it was removed, or its name given away"
        ))),
    }
}

/// The user whose token this is.
async fn user(inner: &Inner, shown: &str) -> Result<(Identity, Leave, Timestamp), Refusal> {
    let unknown =
        || denied("the token is not known here; an administrator makes another with `wharfline user create`");
    let (Ok(token), Some(users)) = (shown.parse::<UserToken>(), &inner.users) else { return Err(unknown()) };
    let hash = hash(&token.secret);
    let fits = |known: &User| equal(known.hash.as_bytes(), hash.as_bytes());
    let found = match users.known(&token.name) {
        Some(found) => Some(found).filter(|(user, _)| fits(user)),
        None => {
            let _turn = turn(inner).await?;
            users.read(inner, &token.name, fits).await?
        }
    };
    let (user, leave) = found.ok_or_else(unknown)?;
    if user.expires <= inner.now() {
        return Err(denied(&format!("the token of user \"{}\" has expired", token.name)));
    }
    Ok((Identity::person(&token.name, user.role, &hash), leave, user.expires))
}

/// SHA-256 in base 64, as secrets of tokens are kept.
pub(crate) fn hash(secret: &str) -> String {
    STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, secret.as_bytes()))
}

/// Compares in a time that tells nothing.
pub(crate) fn equal(one: &[u8], two: &[u8]) -> bool {
    one.len() == two.len() && one.iter().zip(two).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// 401 with a reason.
pub(crate) fn denied(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)
}
