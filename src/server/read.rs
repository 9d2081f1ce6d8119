//! get and list.
use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::Inner;
use super::access::Identity;
use super::mirror::Part;
use super::objects::{Objects, Stored, text, versioned};
use super::query::{Form, Query, Version};
use super::resource::{Nature, Resource};
use super::rights;
use super::route::Target;
use super::selector::Selector;
use super::status::Refusal;
use super::table::{self, RowObject};
use crate::store::Rev;

/// How many keys are read from the store at once.
const PAGE: usize = 500;

/// How many objects after a page are counted, at most, where they have to be read for it.
const COUNTED: usize = 2_000;

/// The header by which a client takes what the store held last for an answer.
const LAST_KNOWN: &str = "wharfline-last-known";

/// Whether who asks takes what the store held last for an answer while it is lost, and may be given it: a person at a command
/// line, who is told so. Not a program, which would act on it; not a node; and not whose token may have been taken away
/// meanwhile.
pub(crate) fn takes_last_known(identity: &Identity, parts: &Parts) -> bool {
    let says = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let asks =
        says(LAST_KNOWN).is_some() || says("user-agent").is_some_and(|agent| agent.starts_with("kubectl/"));
    let certain = !identity.is_internal()
        && identity.node_name().is_none()
        && !parts.headers.contains_key(header::AUTHORIZATION);
    asks && certain
}

/// One object or a collection, as the request names a name or none. Who takes what the store held last is told that, and that
/// it is so, while the store cannot be reached.
pub(crate) async fn answer(
    inner: &Inner,
    last: Option<&Objects>,
    (target, query, form): (&Target, &Query, Form),
) -> Result<Response, Refusal> {
    let read = async |objects| match target.name {
        Some(_) => get((inner, objects), target, query, form).await,
        None => list((inner, objects), target, query, form).await,
    };
    let away = match read(&inner.objects).await {
        Err(refusal) if refusal.code == StatusCode::SERVICE_UNAVAILABLE => refusal,
        answer => return answer,
    };
    let Some(last) = last else { return Err(away) };
    let Ok(rev) = last.revision().await else { return Err(away) };
    // That there was none says little: it may be there by now.
    let Ok(mut answer) = read(last).await else { return Err(away) };
    let warning = format!(
        "299 - \"the store cannot be reached; this is what it held at revision {rev}, and may have changed since\""
    );
    if let Ok(warning) = HeaderValue::from_str(&warning) {
        answer.headers_mut().append(header::WARNING, warning);
    }
    Ok(answer)
}

/// A JSON answer.
pub(crate) fn json_response(code: StatusCode, bytes: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(bytes.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// One object that was just stored, in the form asked for.
pub(crate) fn stored_response(
    inner: &Inner,
    resource: &Resource,
    (stored, object): (&Stored, Value),
    (code, form, query): (StatusCode, Form, &Query),
) -> Result<Response, Refusal> {
    match form {
        // It was encoded for the store.
        Form::Whole => Ok(json_response(code, stored.json(resource)?)),
        Form::Metadata | Form::Table => {
            let object = versioned(object, stored.rev);
            Ok(object_response(inner, resource, object, (code, form, query)))
        }
    }
}

/// One object in the form asked for.
pub(crate) fn object_response(
    inner: &Inner,
    resource: &Resource,
    object: Value,
    (code, form, query): (StatusCode, Form, &Query),
) -> Response {
    let body = match form {
        Form::Whole => text(&object),
        Form::Metadata => text(&table::bare(&object)),
        Form::Table => {
            let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
            let how = (RowObject::of(query.include_object.as_deref()), inner.now());
            text(&table::table(resource, [object], &metadata, how))
        }
    };
    json_response(code, body)
}

/// One object.
async fn get(
    (inner, objects): (&Inner, &Objects),
    target: &Target,
    query: &Query,
    form: Form,
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let name = target.name.as_deref().unwrap_or_default();
    let key = resource.key(target.namespace.as_deref(), name);
    if let Some(asked) = query.version_number()? {
        not_older(asked, objects.revision().await?)?;
    }
    let found = objects.get(resource, &key).await?;
    let stored = found.ok_or_else(|| Refusal::not_found(resource.subject(name)))?;
    if let Some(node) = &query.node {
        rights::of_object(node, resource, &stored.value(resource)?)?;
    }
    match form {
        Form::Whole => Ok(json_response(StatusCode::OK, stored.json(resource)?)),
        Form::Table | Form::Metadata => {
            let how = (StatusCode::OK, form, query);
            Ok(object_response(inner, resource, stored.value(resource)?, how))
        }
    }
}

fn not_older(asked: u64, current: Rev) -> Result<(), Refusal> {
    if asked > current.0 { Err(Refusal::too_large_version(asked, current.0)) } else { Ok(()) }
}

/// What a list found.
pub(crate) struct Listing {
    /// The selected objects in key order.
    pub(crate) items: Vec<Stored>,
    /// The revision at which they were so.
    pub(crate) rev: Rev,
    /// What follows, if anything does.
    pub(crate) next: Option<Next>,
}

/// What follows after a page.
pub(crate) struct Next {
    /// Where the next page begins, for the client to carry.
    token: String,
    /// How many objects follow; none where a selector would have to look at them, or there are too many to count.
    remaining: Option<usize>,
}

/// Where a page of a list begins, as the client carries it.
struct Token {
    /// The revision of the first page; none goes on from the newest state.
    rev: Option<u64>,
    /// The last key told, without the prefix of the range.
    start: String,
}

impl Token {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD
            .encode(json!({ "v": "wharfline/v1", "rv": self.rev, "start": self.start }).to_string())
    }

    fn decode(text: &str) -> Result<Self, Refusal> {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let token: Value = serde_json::from_slice(&bytes).ok()?;
            let start = token["start"].as_str().filter(|_| token["v"] == "wharfline/v1")?;
            Some(Self { rev: token["rv"].as_u64(), start: start.to_owned() })
        };
        read()
            .ok_or_else(|| Refusal::bad_request("continue key is not valid: it is not one of this server's"))
    }
}

/// A collection in the form asked for.
async fn list(
    (inner, objects): (&Inner, &Objects),
    target: &Target,
    query: &Query,
    form: Form,
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let listing = find(objects, target, query).await?;
    let mut metadata = json!({ "resourceVersion": listing.rev.to_string() });
    if let Some(next) = listing.next {
        metadata["continue"] = Value::from(next.token);
        if let Some(remaining) = next.remaining {
            metadata["remainingItemCount"] = Value::from(remaining);
        }
    }
    let values = || listing.items.iter().map(|stored| stored.value(resource)).collect::<Result<Vec<_>, _>>();
    let bytes = match form {
        Form::Whole => whole_list(resource, &listing.items, &metadata)?,
        Form::Metadata => table::bare_list(values()?, &metadata).to_string().into_bytes(),
        Form::Table => {
            let how = (RowObject::of(query.include_object.as_deref()), inner.now());
            table::table(resource, values()?, &metadata, how).to_string().into_bytes()
        }
    };
    Ok(json_response(StatusCode::OK, bytes))
}

/// A list put together from the stored bytes, without parsing them.
pub(crate) fn whole_list(
    resource: &Resource,
    items: &[Stored],
    metadata: &Value,
) -> Result<Vec<u8>, Refusal> {
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        resource.kind.kind, resource.api_version
    );
    let mut bytes = head.into_bytes();
    for (index, stored) in items.iter().enumerate() {
        if index > 0 {
            bytes.push(b',');
        }
        bytes.extend_from_slice(&stored.json(resource)?);
    }
    bytes.extend_from_slice(b"]}");
    Ok(bytes)
}

/// Where a list begins.
#[derive(Default)]
struct Begin {
    /// Behind this key.
    after: Option<Bytes>,
    /// At this revision, else now.
    at: Option<Rev>,
    /// Not before this revision.
    floor: Option<u64>,
}

/// Where a list of a range is to begin.
fn beginning(query: &Query, range: &str) -> Result<Begin, Refusal> {
    match &query.continue_token {
        Some(_) if query.version_match.is_some() || query.send_initial_events.is_some() => {
            query.list_version()?;
            Err(Refusal::bad_request("these options are not allowed when using continue"))
        }
        Some(_) if query.version_number()?.is_some() => {
            let message = "specifying resource version is not allowed when using continue";
            Err(Refusal::bad_request(message))
        }
        Some(token) => {
            let token = Token::decode(token)?;
            let after = Bytes::from(format!("{range}{}", token.start));
            Ok(Begin { after: Some(after), at: token.rev.map(Rev), floor: None })
        }
        None => match query.list_version()? {
            Version::Newest => Ok(Begin::default()),
            Version::NotOlderThan(rev) => Ok(Begin { floor: Some(rev), ..Begin::default() }),
            Version::Exact(rev) => Ok(Begin { at: Some(Rev(rev)), ..Begin::default() }),
        },
    }
}

/// So many objects are looked at before others get their turn.
const AT_ONCE: usize = 256;

/// Reads the objects that a list asks for.
pub(crate) async fn find(objects: &Objects, target: &Target, query: &Query) -> Result<Listing, Refusal> {
    let resource = &target.resource;
    let range = resource.range(target.namespace.as_deref());
    let selector = Selector::parse(
        query.label_selector.as_deref(),
        query.field_selector.as_deref(),
        resource.kind.selectable,
    )?;
    let Begin { mut after, mut at, floor } = beginning(query, &range)?;
    let limit = query.limit.unwrap_or(usize::MAX);
    let mut items = Vec::new();
    // One answer of the store costs it no more than to say where it is.
    let mut held = if selector.is_empty() && limit <= PAGE {
        None
    } else {
        objects.held(&Part { range: &range, after: after.as_deref(), limit: usize::MAX }, at).await?
    };
    // Of what is held most is passed over without being parsed.
    let hint = selector.hint().filter(|_| held.is_some() && resource.nature == Nature::Plain);
    loop {
        let size = if selector.is_empty() { PAGE.min(limit - items.len()) } else { PAGE };
        let page = match held.take() {
            Some(page) => Ok(page),
            None => objects.page(&range, after.as_deref(), size, at).await,
        };
        let page = page.map_err(|refusal| with_fresh_token(refusal, at, after.as_deref(), &range))?;
        if let Some(floor) = floor {
            not_older(floor, page.rev)?;
        }
        let (count, mut taken) = (page.kvs.len(), 0);
        for kv in &page.kvs {
            if items.len() == limit {
                break;
            }
            taken += 1;
            if taken % AT_ONCE == 0 {
                // Others have something to do, too.
                tokio::task::yield_now().await;
            }
            if hint.as_ref().is_some_and(|hint| !hint.may_be_in(&kv.value)) {
                continue;
            }
            let stored = objects.open(resource, kv)?;
            if selector.is_empty() || selector.matches(&stored.traits(resource)?) {
                items.push(stored);
            }
        }
        let more = page.more || taken < count;
        let last = taken.checked_sub(1).map(|index| page.kvs[index].key.clone());
        if !more || items.len() == limit {
            let next = match last.filter(|_| more) {
                Some(key) => {
                    let start = String::from_utf8_lossy(&key[range.len()..]).into_owned();
                    let token = Token { rev: Some(page.rev.0), start }.encode();
                    let remaining = match page.left {
                        _ if !selector.is_empty() => None,
                        Some(left) => Some(left + count - taken),
                        None => remaining(objects, &range, (key, page.rev)).await?,
                    };
                    Some(Next { token, remaining })
                }
                None => None,
            };
            return Ok(Listing { items, rev: page.rev, next });
        }
        (after, at) = (last, Some(page.rev));
    }
}

/// How many objects of the range follow after this one; none if they are more than are counted.
async fn remaining(
    objects: &Objects,
    range: &str,
    (mut after, rev): (Bytes, Rev),
) -> Result<Option<usize>, Refusal> {
    let mut count = 0;
    while count < COUNTED {
        let page = objects.page(range, Some(&after), PAGE, Some(rev)).await?;
        count += page.kvs.len();
        match page.kvs.last() {
            Some(last) if page.more => after = last.key.clone(),
            Some(_) | None => return Ok(Some(count)),
        }
    }
    Ok(None)
}

/// An expired page can be gone on from, though not consistently: the token says how. Names the revision asked.
fn with_fresh_token(mut refusal: Refusal, at: Option<Rev>, after: Option<&[u8]>, range: &str) -> Refusal {
    if refusal.code == StatusCode::GONE
        && let Some(after) = after
    {
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of \
         the results, inconsistently"
            .clone_into(&mut refusal.message);
        let start = String::from_utf8_lossy(&after[range.len()..]).into_owned();
        refusal.details.fresh_continue = Some(Token { rev: None, start }.encode());
    }
    if refusal.code == StatusCode::GATEWAY_TIMEOUT
        && let Some(at) = at
    {
        refusal.message = refusal.message.replacen(": 0,", &format!(": {at},"), 1);
    }
    refusal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_people_who_are_certain_are_told_what_was() {
        let key = || Some("k".to_owned());
        let person = Identity::admin().with_key(key());
        let kubectl = ("user-agent", "kubectl/v1.32.4 (linux/amd64)");
        for (who, headers, expected) in [
            (&person, vec![kubectl], true),
            (&person, vec![(LAST_KNOWN, "yes")], true),
            (&person, vec![("user-agent", "kube.rs/4 kubectl/1")], false),
            (&person, vec![], false),
            (&person, vec![kubectl, ("authorization", "Bearer t")], false),
            (&Identity::node("n").with_key(key()), vec![kubectl], false),
            (&Identity::controllers(), vec![kubectl, (LAST_KNOWN, "yes")], false),
        ] {
            let mut request = http::Request::get("/x");
            for (name, value) in &headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(takes_last_known(who, &parts), expected, "{} {headers:?}", who.user);
        }
    }
}
