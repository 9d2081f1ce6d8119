//! SelfSubjectAccessReview, SelfSubjectRulesReview and SelfSubjectReview: what may I do, and who am I?
//!
//! Each answer comes from what lets requests pass, [`handle::may`]: a review never has an opinion of its own. Nothing is
//! stored. What this server does not serve nobody may do, the administrator included.
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::access::{ADMINS, Identity, Verb};
use super::core_kinds::{open, open_object, plain};
use super::path::Path;
use super::query::{FieldValidation, Query};
use super::read::json_response;
use super::resource::{Resource, Review};
use super::route::{Part, Route, Target, parse};
use super::status::Refusal;
use super::{Inner, body, handle, schema};
use crate::api::{FieldErrors, KindDefinition};

/// The group of the reviews of rights.
pub(crate) const AUTHORIZATION: &str = "authorization.k8s.io";
/// The group of the review of the user.
pub(crate) const AUTHENTICATION: &str = "authentication.k8s.io";

/// What anybody who is known may read; a few of them anybody at all.
const OPEN_PATHS: [&str; 10] = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi/v3",
    "/openapi/v3/*",
    "/readyz",
    "/version",
];

/// The reviews as kinds.
pub(crate) fn definitions() -> [KindDefinition; 3] {
    let text = || json!({ "type": "string" });
    let selector = || json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let of_resource = json!({ "type": "object", "properties": {
        "namespace": text(), "verb": text(), "group": text(), "version": text(), "resource": text(),
        "subresource": text(), "name": text(), "fieldSelector": selector(), "labelSelector": selector(),
    } });
    let of_path = json!({ "type": "object", "properties": { "path": text(), "verb": text() } });
    let asks = json!({ "type": "object", "properties": {
        "resourceAttributes": of_resource, "nonResourceAttributes": of_path,
    } });
    let place = json!({ "type": "object", "properties": { "namespace": text() } });
    let review = |group, spec: Option<Value>, (kind, plural, singular)| {
        let mut schema = open(&[("status", open_object())]);
        if let Some(spec) = spec {
            schema["properties"]["spec"] = spec;
            schema["required"] = json!(["spec"]);
        }
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("x-kubernetes-preserve-unknown-fields");
        }
        KindDefinition { group, namespaced: false, schema, ..plain(kind, plural, singular) }
    };
    [
        review(AUTHENTICATION, None, ("SelfSubjectReview", "selfsubjectreviews", "selfsubjectreview")),
        review(
            AUTHORIZATION,
            Some(asks),
            ("SelfSubjectAccessReview", "selfsubjectaccessreviews", "selfsubjectaccessreview"),
        ),
        review(
            AUTHORIZATION,
            Some(place),
            ("SelfSubjectRulesReview", "selfsubjectrulesreviews", "selfsubjectrulesreview"),
        ),
    ]
}

/// Answers a review. Everybody who is known may ask about himself.
pub(crate) async fn answer(
    inner: &Inner,
    identity: &Identity,
    (resource, review): (&Resource, Review),
    (query, bytes): (&Query, &[u8]),
) -> Result<Response, Refusal> {
    let mut object = read(resource, query, bytes)?;
    let spec = &object["spec"];
    object["status"] = match review {
        Review::Subject => json!({ "userInfo": { "username": identity.user, "groups": identity.groups } }),
        Review::Access => match access(inner, identity, spec).await? {
            Ok(()) => json!({ "allowed": true }),
            Err(why) => json!({ "allowed": false, "reason": why }),
        },
        Review::Rules => rules(inner, identity, spec["namespace"].as_str()).await?,
    };
    Ok(json_response(StatusCode::CREATED, object.to_string()))
}

fn read(resource: &Resource, query: &Query, bytes: &[u8]) -> Result<Value, Refusal> {
    let mut object = body::json(bytes)?;
    let kind = &resource.kind;
    let expected = [("apiVersion", resource.api_version.as_str()), ("kind", kind.kind)];
    for (field, expected) in expected {
        match object[field].as_str() {
            Some(given) if given == expected => {}
            given => {
                let given = given.unwrap_or_default();
                let message = format!("the {field} in the data ({given}) is not the expected {expected}");
                return Err(Refusal::bad_request(message));
            }
        }
    }
    let mut unknown = Vec::new();
    schema::shape(&mut object, &resource.rule, &Path::Root, &mut unknown);
    if let (FieldValidation::Strict, Some(first)) = (query.field_validation, unknown.first()) {
        return Err(Refusal::bad_request(format!("strict decoding error: {first}")));
    }
    let mut faults = FieldErrors::new();
    schema::check(&object, &resource.rule, &Path::Root, &mut faults);
    let asks = ["resourceAttributes", "nonResourceAttributes"];
    if resource.nature == super::resource::Nature::Review(Review::Access)
        && asks.iter().filter(|field| object["spec"][**field].is_object()).count() != 1
    {
        let message =
            "Invalid value: exactly one of resourceAttributes and nonResourceAttributes must be given";
        faults.invalid("spec", message);
    }
    if faults.is_empty() {
        Ok(object)
    } else {
        Err(Refusal::invalid(resource.subject_by_kind(""), &faults.into_vec()))
    }
}

/// A right, or why there is none.
type Verdict = Result<(), String>;

async fn access(inner: &Inner, identity: &Identity, spec: &Value) -> Result<Verdict, Refusal> {
    let wish = &spec["resourceAttributes"];
    if !wish.is_object() {
        return Ok(path_access(inner, identity, &spec["nonResourceAttributes"]));
    }
    let text = |field: &str| wish[field].as_str().filter(|text| !text.is_empty());
    let (group, plural) = (text("group").unwrap_or_default(), text("resource").unwrap_or_default());
    let fits = |wanted: &str, found: &str| wanted == "*" || wanted == found;
    let version = text("version").unwrap_or("*");
    let meant = |r: &&Arc<Resource>| {
        let kind = &r.kind;
        fits(group, kind.group) && fits(plural, kind.plural) && fits(version, kind.version)
    };
    let resources: Vec<_> = inner.registry.all().iter().filter(meant).collect();
    let part = match text("subresource") {
        None | Some("*") => Some(Part::Main),
        Some("status") => Some(Part::Status),
        Some(_) => None,
    };
    let (Some(part), false) = (part, resources.is_empty()) else {
        return Ok(Err("this server serves no such resource".to_owned()));
    };
    let verb = text("verb").unwrap_or_default();
    let mut query = Query { node: identity.node_name().map(str::to_owned), ..Query::default() };
    query.field_selector = selector(&wish["fieldSelector"]);
    for resource in resources {
        let wanted: Vec<Verb> =
            resource.verbs(part).iter().filter(|known| fits(verb, known.as_str())).copied().collect();
        // A star speaks of what there is; who names a resource and a verb asks about these.
        if wanted.is_empty() && plural != "*" {
            return Ok(Err(format!("this server does not {verb} {plural} for anybody")));
        }
        let namespace = text("namespace").filter(|_| resource.kind.namespaced).map(str::to_owned);
        let name = text("name").map(str::to_owned);
        let target = Target { resource: Arc::clone(resource), namespace, name, part };
        for verb in wanted {
            if let Err(why) = verdict(inner, identity, (verb, &target, &query)).await? {
                return Ok(Err(why));
            }
        }
    }
    Ok(Ok(()))
}

/// What the requests themselves are asked. An error that is no refusal of the right is passed on.
async fn verdict(
    inner: &Inner,
    identity: &Identity,
    request: (Verb, &Target, &Query),
) -> Result<Verdict, Refusal> {
    match handle::may(inner, identity, request).await {
        Ok(()) => Ok(Ok(())),
        Err(refusal) if refusal.code == StatusCode::FORBIDDEN => Ok(Err(refusal.message)),
        Err(refusal) => Err(refusal),
    }
}

/// The field selector of a question; a requirement is understood where it names one value.
fn selector(given: &Value) -> Option<String> {
    if let Some(raw) = given["rawSelector"].as_str().filter(|raw| !raw.is_empty()) {
        return Some(raw.to_owned());
    }
    let parts = given["requirements"].as_array()?.iter().filter_map(|requirement| {
        let values = requirement["values"].as_array()?;
        let one = (requirement["operator"] == "In" && values.len() == 1).then(|| values[0].as_str())??;
        Some(format!("{}={one}", requirement["key"].as_str()?))
    });
    Some(parts.collect::<Vec<_>>().join(",")).filter(|all| !all.is_empty())
}

fn path_access(inner: &Inner, identity: &Identity, wish: &Value) -> Verdict {
    let (path, verb) = (wish["path"].as_str().unwrap_or_default(), wish["verb"].as_str().unwrap_or_default());
    let admin = identity.is_in(ADMINS);
    let may = match (parse(&inner.registry, path), verb) {
        _ if path == "*" => admin,
        (Route::Metrics | Route::Backup, "get" | "*") => admin,
        (Route::Tokens, "post" | "*") => admin && inner.options.signer.is_some(),
        (
            Route::Health
            | Route::Version
            | Route::Authorities
            | Route::CoreVersions
            | Route::Groups
            | Route::Group(_)
            | Route::Resources(..)
            | Route::OpenApiIndex
            | Route::OpenApi(..),
            "get",
        ) => true,
        _ => false,
    };
    if may { Ok(()) } else { Err(format!("User \"{}\" cannot {verb} path \"{path}\"", identity.user)) }
}

/// Every right in a namespace that can be told without an object; those of nodes hang on what the objects say.
async fn rules(inner: &Inner, identity: &Identity, namespace: Option<&str>) -> Result<Value, Refusal> {
    let query = Query { node: identity.node_name().map(str::to_owned), ..Query::default() };
    let mut found: BTreeMap<(&str, Vec<&str>), Vec<String>> = BTreeMap::new();
    for resource in inner.registry.all() {
        let namespace = namespace.filter(|_| resource.kind.namespaced).map(str::to_owned);
        for part in [Part::Main, Part::Status] {
            let of_part = resource.verbs(part);
            let path = match part {
                Part::Main => resource.kind.plural.to_owned(),
                Part::Status => format!("{}/status", resource.kind.plural),
            };
            let target =
                Target { resource: Arc::clone(resource), namespace: namespace.clone(), name: None, part };
            let mut verbs = Vec::new();
            for verb in of_part {
                if verdict(inner, identity, (*verb, &target, &query)).await?.is_ok() {
                    verbs.push(verb.as_str());
                }
            }
            if !verbs.is_empty() {
                found.entry((resource.kind.group, verbs)).or_default().push(path);
            }
        }
    }
    let of_resources: Vec<Value> = found
        .into_iter()
        .map(|((group, verbs), resources)| json!({ "verbs": verbs, "apiGroups": [group], "resources": resources }))
        .collect();
    let mut paths = vec![json!({ "verbs": ["get"], "nonResourceURLs": OPEN_PATHS })];
    if identity.is_in(ADMINS) {
        paths.push(json!({ "verbs": ["get"], "nonResourceURLs": ["/metrics", "/bootstrap/v1/backup"] }));
        paths.push(json!({ "verbs": [Method::POST.as_str().to_lowercase()], "nonResourceURLs": ["/bootstrap/v1/tokens"] }));
    }
    let node = identity.node_name().is_some();
    let mut status = json!({ "resourceRules": of_resources, "nonResourceRules": paths, "incomplete": node });
    if node {
        status["evaluationError"] = json!(
            "a node may read what names it and write its part of that, which a list of rules cannot say"
        );
    }
    Ok(status)
}
