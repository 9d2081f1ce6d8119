//! Reviews: what they say is what requests meet.
use http::Method;
use serde_json::{Value, json};
use wharfline::server::{Identity, Server};

use crate::server_api::*;
use crate::{SUBJECT, stranger, whole};

const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";

async fn post_as(server: &Server, path: &str, body: Value, identity: Identity) -> Answer {
    ask(server, Method::POST, path, Some(body), With { identity: Some(identity), ..With::default() }).await
}

fn may_i(spec: Value) -> Value {
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec })
}

/// Group, version, plural, and whether it lives in a namespace.
const KINDS: [(&str, &str, &str, bool); 10] = [
    ("", "v1", "secrets", true),
    ("", "v1", "nodes", false),
    ("", "v1", "events", true),
    ("", "v1", "configmaps", true),
    ("coordination.k8s.io", "v1", "leases", true),
    ("wharfline.dev", "v1alpha1", "plugins", false),
    ("wharfline.dev", "v1alpha1", "volumes", false),
    ("wharfline.dev", "v1alpha1", "allocations", true),
    ("wharfline.dev", "v1alpha1", "volumeclasses", false),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", false),
];

/// Verb, subresource, method, and whether it is of a collection.
const REQUESTS: [(&str, &str, Method, bool); 12] = [
    ("get", "", Method::GET, false),
    ("list", "", Method::GET, true),
    ("watch", "", Method::GET, true),
    ("create", "", Method::POST, true),
    ("update", "", Method::PUT, false),
    ("patch", "", Method::PATCH, false),
    ("delete", "", Method::DELETE, false),
    ("deletecollection", "", Method::DELETE, true),
    ("patch", "status", Method::PATCH, false),
    ("update", "status", Method::PUT, false),
    ("create", "status", Method::POST, false),
    ("delete", "status", Method::DELETE, false),
];

/// What a review says of a request is what becomes of the request, for everybody, every kind and every verb.
#[tokio::test]
async fn reviews_say_what_requests_meet() {
    let server = whole().await;
    let mut seen = (0, 0);
    for identity in [Identity::admin(), Identity::controllers(), Identity::node("n1"), stranger()] {
        for (group, version, plural, namespaced) in KINDS {
            for (verb, part, method, collection) in REQUESTS {
                let place = if namespaced { "namespaces/wharfline-system/" } else { "" };
                let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
                let name = if collection { "" } else { "/n1" };
                let part_of = if part.is_empty() { String::new() } else { format!("/{part}") };
                let query = if verb == "watch" { "?watch=true" } else { "" };
                let path = format!("{root}/{version}/{place}{plural}{name}{part_of}{query}");
                // A body that cannot be read: who has the right hears that, and nothing is done.
                let body = (method != Method::GET).then(|| b"[".to_vec());
                let content_type = (method == Method::PATCH).then_some("application/merge-patch+json");
                let with = With { content_type, identity: Some(identity.clone()), ..With::default() };
                let code = send(&server, method, &path, body, with).await.status().as_u16();
                let review = may_i(json!({ "resourceAttributes": {
                    "group": group, "version": version, "resource": plural, "verb": verb, "subresource": part,
                    "namespace": if namespaced { "wharfline-system" } else { "" },
                    "name": name.trim_start_matches('/'),
                } }));
                let review = post_as(&server, ACCESS, review, identity.clone()).await;
                let allowed = review.at("/status/allowed").as_bool().unwrap();
                let has_status = ["nodes", "plugins", "volumes", "allocations"].contains(&plural);
                let wanted = match code {
                    403 | 405 => false,
                    404 if part == "status" => has_status,
                    _ => true,
                };
                assert_eq!(allowed, wanted, "{} {verb} {path}: {code}, {}", identity.user, review.body);
                assert!(allowed || review.at("/status/reason").is_string());
                if allowed { seen.0 += 1 } else { seen.1 += 1 }
            }
        }
    }
    assert!(seen.0 > 100 && seen.1 > 100, "{seen:?}");
}

#[tokio::test]
async fn reviews_answer_each_question() {
    let server = whole().await;
    let of = async |identity: Identity, spec: Value| {
        let answer = post_as(&server, ACCESS, may_i(spec), identity).await;
        assert_eq!(answer.code, 201, "{:?}", answer.body);
        answer.at("/status/allowed").as_bool().unwrap()
    };
    let resource = |verb: &str, group: &str, resource: &str| json!({ "resourceAttributes": { "verb": verb, "group": group, "resource": resource } });
    let path = |verb: &str, path: &str| json!({ "nonResourceAttributes": { "verb": verb, "path": path } });
    for (identity, spec, wanted) in [
        (Identity::admin(), resource("*", "*", "*"), true),
        (Identity::node("n1"), resource("*", "*", "*"), false),
        (stranger(), resource("*", "*", "*"), false),
        (Identity::admin(), resource("get", "", "pods"), false),
        (Identity::admin(), resource("frob", "", "secrets"), false),
        (Identity::admin(), resource("create", "apiextensions.k8s.io", "customresourcedefinitions"), false),
        (stranger(), resource("create", "authorization.k8s.io", "selfsubjectaccessreviews"), true),
        (Identity::admin(), path("get", "/metrics"), true),
        (stranger(), path("get", "/metrics"), false),
        (stranger(), path("get", "/openapi/v3"), true),
        (stranger(), path("get", "/nothing"), false),
    ] {
        assert_eq!(of(identity.clone(), spec.clone()).await, wanted, "{} {spec}", identity.user);
    }
    // A node lists what names it, and must say so.
    for (fields, wanted) in [
        (Value::Null, false),
        (json!({ "rawSelector": "spec.nodeName=n1" }), true),
        (json!({ "rawSelector": "spec.nodeName=n2" }), false),
        (json!({ "requirements": [{ "key": "spec.nodeName", "operator": "In", "values": ["n1"] }] }), true),
        (
            json!({ "requirements": [{ "key": "spec.nodeName", "operator": "In", "values": ["n1", "n2"] }] }),
            false,
        ),
    ] {
        let mut spec = resource("list", "wharfline.dev", "volumeattachments");
        spec["resourceAttributes"]["fieldSelector"] = fields.clone();
        assert_eq!(of(Identity::node("n1"), spec).await, wanted, "{fields}");
    }
    let rules = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": { "namespace": "default" } });
    let admin = post(&server, RULES, rules.clone()).await;
    let text = admin.at("/status/resourceRules").to_string();
    assert!(text.contains("\"gadgets\"") && text.contains("\"gadgets/status\""), "{text}");
    assert_eq!(admin.at("/status/incomplete"), false);
    let node = post_as(&server, RULES, rules.clone(), Identity::node("n1")).await;
    assert_eq!(node.at("/status/incomplete"), true);
    let nobody = post_as(&server, RULES, rules, stranger()).await;
    let reviews: Vec<&Value> = nobody.at("/status/resourceRules").as_array().unwrap().iter().collect();
    assert!(reviews.iter().all(|rule| rule["verbs"] == json!(["create"])), "{reviews:?}");
    let who = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let me = post_as(&server, SUBJECT, who, Identity::node("n1")).await;
    let wanted = json!({ "username": "system:node:n1", "groups": ["system:nodes"] });
    assert_eq!(me.at("/status/userInfo"), &wanted);
}

#[tokio::test]
async fn malformed_reviews_are_refused_and_none_is_stored() {
    let f = fixture().await;
    let before = f.writes().await;
    let both = json!({ "resourceAttributes": { "verb": "get" }, "nonResourceAttributes": { "verb": "get" } });
    for (body, wanted) in [
        (may_i(json!({})), (422, "Invalid")),
        (may_i(both), (422, "Invalid")),
        (may_i(json!({ "resourceAttributes": { "verb": 7 } })), (422, "Invalid")),
        (json!({ "apiVersion": "v1", "kind": "SelfSubjectAccessReview" }), (400, "BadRequest")),
        (json!([]), (400, "BadRequest")),
    ] {
        assert_eq!(post(&f.server, ACCESS, body.clone()).await.refusal(), wanted, "{body}");
    }
    let slip = may_i(json!({ "resourceAttributes": { "verb": "get", "resourc": "x" } }));
    let strict = post(&f.server, &format!("{ACCESS}?fieldValidation=Strict"), slip).await;
    assert!(
        strict.message().contains("unknown field \"spec.resourceAttributes.resourc\""),
        "{}",
        strict.message()
    );
    assert_eq!(get(&f.server, ACCESS).await.code, 405);
    assert_eq!(delete(&f.server, &format!("{ACCESS}/x"), None).await.code, 405);
    assert_eq!(f.writes().await, before);
}
