//! Bodies in protobuf and in YAML: taken as the JSON that they mean, or refused without harm.
use http::Method;
use serde_json::json;
use wharfline::server::Server;

use crate::SUBJECT;
use crate::server_api::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn post_raw(server: &Server, path: &str, body: Vec<u8>, kind: &'static str) -> Answer {
    let with = With { content_type: Some(kind), ..With::default() };
    read(send(server, Method::POST, path, Some(body), with).await).await
}

/// One field of a protobuf message: bytes under a tag.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![tag << 3 | 2];
    let mut length = bytes.len();
    while length > 127 {
        out.push(u8::try_from(length & 127).unwrap() | 128);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend_from_slice(bytes);
    out
}

fn number(tag: u8, value: u8) -> Vec<u8> {
    vec![tag << 3, value]
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let kind = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &kind), field(2, raw)].concat()
}

fn entry(tag: u8, key: &str, value: &[u8]) -> Vec<u8> {
    field(tag, &[field(1, key.as_bytes()), field(2, value)].concat())
}

/// All that Go writes for a name: the empty fields, and a time of nothing.
fn metadata(name: &str) -> Vec<u8> {
    let owner =
        [field(1, b"Gadget"), field(3, b"a"), field(4, b"u-1"), field(5, b"test.dev/v1"), number(6, 1)];
    let parts = [
        field(1, name.as_bytes()),
        field(2, b""),
        field(3, b""),
        field(5, b""),
        field(6, b""),
        number(7, 0),
        field(8, b""),
        entry(11, "app", b"x"),
        entry(12, "note", b"y"),
        field(13, &owner.concat()),
        field(14, b"test.dev/hold"),
    ];
    field(1, &parts.concat())
}

#[tokio::test]
async fn typed_creates_are_taken_in_protobuf() {
    let f = fixture().await;
    let taint = [field(1, b"k"), field(2, b"v"), field(3, b"NoExecute"), field(4, &[8, 64])].concat();
    for (path, kind, rest, wanted) in [
        ("/api/v1/namespaces", "Namespace", field(2, &[]), json!({ "kind": "Namespace" })),
        (
            "/api/v1/namespaces/default/secrets",
            "Secret",
            [entry(2, "a", b"\x00\xFF"), field(3, b"test.dev/x"), entry(4, "b", b"plain"), number(5, 1)]
                .concat(),
            json!({ "type": "test.dev/x", "immutable": true, "data": { "a": "AP8=", "b": "cGxhaW4=" } }),
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            "ConfigMap",
            [entry(2, "k", b"v"), entry(3, "b", b"\xFF"), number(4, 0)].concat(),
            json!({ "data": { "k": "v" }, "binaryData": { "b": "/w==" }, "immutable": false }),
        ),
        (
            "/api/v1/nodes",
            "Node",
            field(2, &[field(3, b"p"), number(4, 1), field(5, &taint), field(7, b"10.0.0.0/8")].concat()),
            json!({ "spec": { "providerID": "p", "unschedulable": true, "podCIDRs": ["10.0.0.0/8"],
                "taints": [{ "key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "1970-01-01T00:01:04Z" }] } }),
        ),
    ] {
        let body = envelope("v1", kind, &[metadata("p1"), rest].concat());
        let made = post_raw(&f.server, path, body, PROTOBUF).await;
        assert_eq!(made.code, 201, "{kind}: {}", made.body);
        for (name, value) in wanted.as_object().unwrap() {
            assert_eq!(&made.body[name], value, "{kind} {name}");
        }
        assert_eq!(
            (made.at("/metadata/name"), made.at("/metadata/labels")),
            (&json!("p1"), &json!({ "app": "x" }))
        );
        assert_eq!(made.at("/metadata/annotations"), &json!({ "note": "y" }), "{kind}");
        let owner = json!([{ "apiVersion": "test.dev/v1", "kind": "Gadget", "name": "a", "uid": "u-1", "controller": true }]);
        assert_eq!(made.at("/metadata/ownerReferences"), &owner);
        assert!(made.at("/metadata/finalizers").to_string().contains("test.dev/hold"));
        assert_eq!(made.at("/metadata/creationTimestamp"), "2024-05-01T10:00:00Z");
        assert_eq!(made.at("/metadata/generation"), 1);
    }
}

#[tokio::test]
async fn replaces_options_and_reviews_are_taken_in_protobuf() {
    let f = fixture().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let metadata = || field(1, &field(1, b"p1"));
    let body = envelope("v1", "ConfigMap", &[metadata(), entry(2, "k", b"v")].concat());
    assert_eq!(post_raw(&f.server, path, body, PROTOBUF).await.code, 201);
    let body = envelope("v1", "ConfigMap", &[metadata(), entry(2, "k", b"w")].concat());
    let with = With { content_type: Some(PROTOBUF), ..With::default() };
    let put = read(send(&f.server, Method::PUT, &format!("{path}/p1"), Some(body), with.clone()).await).await;
    assert_eq!((put.code, put.at("/data/k")), (200, &json!("w")));
    let options =
        envelope("v1", "DeleteOptions", &[field(2, &field(1, b"other")), field(4, b"Foreground")].concat());
    let refused =
        read(send(&f.server, Method::DELETE, &format!("{path}/p1"), Some(options), with.clone()).await).await;
    assert_eq!(refused.refusal(), (409, "Conflict"));
    let options = envelope("v1", "DeleteOptions", &field(4, b"Foreground"));
    let marked =
        read(send(&f.server, Method::DELETE, &format!("{path}/p1"), Some(options), with).await).await;
    assert_eq!(marked.code, 202);
    assert!(marked.at("/metadata/finalizers").to_string().contains("foregroundDeletion"));
    let who = envelope("authentication.k8s.io/v1", "SelfSubjectReview", &[]);
    let me = post_raw(&f.server, SUBJECT, who, PROTOBUF).await;
    assert_eq!(me.at("/status/userInfo/username"), "wharfline:admin");
}

#[tokio::test]
async fn protobuf_that_is_none_is_refused_and_does_no_harm() {
    let f = fixture().await;
    let before = f.writes().await;
    let path = "/api/v1/namespaces";
    let good = envelope("v1", "Namespace", &field(1, &field(1, b"p")));
    let encoded = [good.clone(), field(3, b"gzip")].concat();
    for (what, body, code, said) in [
        ("nothing", Vec::new(), 400, "JSON"),
        ("JSON", b"{}".to_vec(), 400, "k8s"),
        ("no envelope", b"k8s\0\xFF\xFF".to_vec(), 400, "envelope"),
        ("cut short", good[..good.len() - 1].to_vec(), 400, "envelope"),
        ("no message", envelope("v1", "Namespace", &[0xFF]), 400, "Namespace"),
        ("a number for a text", envelope("v1", "Namespace", &field(1, &number(1, 7))), 400, "name"),
        ("a name that is no text", envelope("v1", "Namespace", &field(1, &field(1, b"\xFF"))), 400, "name"),
        ("another kind", envelope("v1", "Pod", b""), 415, "Pod"),
        ("no kind", envelope("", "", b""), 415, ""),
        ("an encoding", encoded, 415, "gzip"),
        ("a kind of another place", envelope("v1", "Secret", &field(1, &field(1, b"p"))), 400, "Secret"),
    ] {
        let refused = post_raw(&f.server, path, body, PROTOBUF).await;
        assert_eq!(refused.code, code, "{what}: {}", refused.body);
        assert!(refused.message().contains(said), "{what}: {}", refused.message());
    }
    let nested =
        (0..20_000).fold(Vec::new(), |inner, _| if inner.len() < 60_000 { field(1, &inner) } else { inner });
    assert_eq!(post_raw(&f.server, path, envelope("v1", "Namespace", &nested), PROTOBUF).await.code, 400);
    assert_eq!(f.writes().await, before);
    // What every place in a body may turn into by one flipped byte: an answer, never a panic.
    for at in 0..good.len() {
        let mut body = good.clone();
        body[at] ^= 0x55;
        let code = post_raw(&f.server, path, body, PROTOBUF).await.code;
        assert!([201, 400, 409, 415, 422].contains(&code), "byte {at}: {code}");
    }
}

#[tokio::test]
async fn yaml_bodies_are_taken_as_json_is() {
    let f = fixture().await;
    let yaml =
        b"apiVersion: test.dev/v1\nkind: Gadget\nmetadata:\n  name: yam\nspec: {plugin: dir, size: 4}\n"
            .to_vec();
    let made = post_raw(&f.server, GADGETS, yaml.clone(), "application/yaml").await;
    assert_eq!((made.code, made.at("/spec/size")), (201, &json!(4)));
    let text = String::from_utf8(yaml).unwrap();
    let version = made.at("/metadata/resourceVersion").as_str().unwrap();
    let text = text
        .replace("name: yam", &format!("name: yam\n  resourceVersion: \"{version}\""))
        .replace("size: 4", "size: 5");
    let with = With { content_type: Some("application/yaml; charset=utf-8"), ..With::default() };
    let put =
        read(send(&f.server, Method::PUT, &format!("{GADGETS}/yam"), Some(text.into()), with).await).await;
    assert_eq!((put.code, put.at("/spec/size")), (200, &json!(5)), "{}", put.body);
    let before = f.writes().await;
    let aliases = format!("a: &a [1]\nb: [{}]\n", "*a,".repeat(30_000));
    for bad in ["a: [", "a: 1\na: 2", "a: 1\n---\nb: 1", "", &"[".repeat(70_000), &aliases] {
        let refused = post_raw(&f.server, GADGETS, bad.into(), "application/yaml").await;
        assert_eq!(refused.refusal(), (400, "BadRequest"), "{bad:.20}");
    }
    let slip = b"kind: Gadget\nmetadata: {name: z}\nspec: {plugin: dir, sise: 4}\n".to_vec();
    let refused =
        post_raw(&f.server, &format!("{GADGETS}?fieldValidation=Strict"), slip, "application/yaml").await;
    assert!(refused.message().contains("unknown field \"spec.sise\""), "{}", refused.message());
    assert_eq!(f.writes().await, before);
}
