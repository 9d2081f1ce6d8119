//! Paths: what a request's path asks for.
use std::sync::Arc;

use super::resource::{Registry, Resource};

/// Which part of an object a request speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole object.
    Main,
    /// Its status alone.
    Status,
}

/// One object or one collection of a resource.
#[derive(Clone)]
pub(crate) struct Target {
    /// The resource.
    pub(crate) resource: Arc<Resource>,
    /// The namespace; none for cluster-scoped objects and for lists over all namespaces.
    pub(crate) namespace: Option<String>,
    /// The object's name; none for collections.
    pub(crate) name: Option<String>,
    /// The part.
    pub(crate) part: Part,
}

/// What a path asks for.
#[derive(Clone)]
pub(crate) enum Route {
    /// `/healthz`, `/livez`, `/readyz`.
    Health,
    /// `/version`.
    Version,
    /// `/cacerts`.
    Authorities,
    /// `/metrics`.
    Metrics,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    Resources(String, String),
    /// `/openapi/v3`.
    OpenApiIndex,
    /// `/openapi/v3/…` for one group and version.
    OpenApi(String, String),
    /// `/bootstrap/v1/tokens`.
    Tokens,
    /// `/bootstrap/v1/backup`.
    Backup,
    /// `/bootstrap/v1/nodes/NAME/certificate`.
    Certificate(String),
    /// Objects.
    Object(Target),
    /// Nothing is served here.
    Nothing,
}

/// Reads a path.
pub(crate) fn parse(registry: &Registry, path: &str) -> Route {
    let Some(segments) = segments(path) else { return Route::Nothing };
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["healthz" | "livez" | "readyz"] => Route::Health,
        ["version"] => Route::Version,
        ["cacerts"] => Route::Authorities,
        ["metrics"] => Route::Metrics,
        ["bootstrap", "v1", "tokens"] => Route::Tokens,
        ["bootstrap", "v1", "backup"] => Route::Backup,
        ["bootstrap", "v1", "nodes", name, "certificate"] => Route::Certificate((*name).to_owned()),
        ["api"] => Route::CoreVersions,
        ["apis"] => Route::Groups,
        ["apis", group] => Route::Group((*group).to_owned()),
        ["openapi", "v3"] => Route::OpenApiIndex,
        ["openapi", "v3", "api", version] => Route::OpenApi(String::new(), (*version).to_owned()),
        ["openapi", "v3", "apis", group, version] => {
            Route::OpenApi((*group).to_owned(), (*version).to_owned())
        }
        ["api", version] => Route::Resources(String::new(), (*version).to_owned()),
        ["apis", group, version] => Route::Resources((*group).to_owned(), (*version).to_owned()),
        ["api", version, rest @ ..] => object(registry, "", version, rest),
        ["apis", group, version, rest @ ..] => object(registry, group, version, rest),
        _ => Route::Nothing,
    }
}

fn object(registry: &Registry, group: &str, version: &str, rest: &[&str]) -> Route {
    let (namespace, rest) = match rest {
        ["namespaces", namespace, plural, more @ ..] if *plural != "status" => {
            (Some((*namespace).to_owned()), [&[*plural], more].concat())
        }
        rest => (None, rest.to_vec()),
    };
    let (plural, name, part) = match rest.as_slice() {
        [plural] => (*plural, None, Part::Main),
        [plural, name] => (*plural, Some((*name).to_owned()), Part::Main),
        [plural, name, "status"] => (*plural, Some((*name).to_owned()), Part::Status),
        _ => return Route::Nothing,
    };
    let Some(resource) = registry.find(group, version, plural) else { return Route::Nothing };
    let kind = &resource.kind;
    let scoped = match (kind.namespaced, &namespace, &name) {
        (true, None, Some(_)) | (false, Some(_), _) => false,
        (true | false, _, _) => true,
    };
    if !scoped || (part == Part::Status && !kind.has_status) {
        return Route::Nothing;
    }
    Route::Object(Target { resource: Arc::clone(resource), namespace, name, part })
}

/// The segments of a path with percent escapes taken back; none if an escape is broken or a segment is empty.
fn segments(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix('/')?;
    path.strip_suffix('/').unwrap_or(path).split('/').map(decoded).collect()
}

fn decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |b: Option<u8>| char::from(b?).to_digit(16);
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    // A slash or a NUL that was escaped would change which key is meant.
    (!text.is_empty() && !text.contains(['/', '\0']) && text != "." && text != "..").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::{Part, Registry, Route, parse};

    fn spoken(path: &str) -> String {
        match parse(&Registry::new(Vec::new()), path) {
            Route::Health => "health".to_owned(),
            Route::Version => "version".to_owned(),
            Route::Authorities => "authorities".to_owned(),
            Route::Metrics => "metrics".to_owned(),
            Route::CoreVersions => "core".to_owned(),
            Route::Groups => "groups".to_owned(),
            Route::Group(group) => format!("group {group}"),
            Route::Resources(group, version) => format!("resources {group} {version}"),
            Route::OpenApiIndex => "openapi".to_owned(),
            Route::OpenApi(group, version) => format!("openapi {group} {version}"),
            Route::Object(target) => format!(
                "{} {} {} {}",
                target.resource.kind.plural,
                target.namespace.as_deref().unwrap_or("-"),
                target.name.as_deref().unwrap_or("-"),
                if target.part == Part::Status { "status" } else { "main" }
            ),
            Route::Tokens => "tokens".to_owned(),
            Route::Backup => "backup".to_owned(),
            Route::Certificate(name) => format!("certificate {name}"),
            Route::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn paths_lead_where_kubernetes_leads_them() {
        for (path, expected) in [
            ("/readyz", "health"),
            ("/api", "core"),
            ("/cacerts", "authorities"),
            ("/metrics", "metrics"),
            ("/metrics/x", "nothing"),
            (
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b",
                "customresourcedefinitions - a.b main",
            ),
            ("/apis/coordination.k8s.io", "group coordination.k8s.io"),
            ("/api/v1", "resources  v1"),
            ("/openapi/v3/apis/events.k8s.io/v1", "openapi events.k8s.io v1"),
            ("/api/v1/namespaces", "namespaces - - main"),
            ("/api/v1/namespaces/a", "namespaces - a main"),
            ("/api/v1/namespaces/a/secrets", "secrets a - main"),
            ("/api/v1/namespaces/a/secrets/b", "secrets a b main"),
            ("/api/v1/secrets", "secrets - - main"),
            ("/api/v1/nodes/n/status", "nodes - n status"),
            ("/api/v1/nodes/n%2d1", "nodes - n-1 main"),
            ("/api/v1/secrets/b", "nothing"),
            ("/api/v1/namespaces/a/nodes/n", "nothing"),
            ("/api/v1/namespaces/a/secrets/b/status", "nothing"),
            ("/api/v1/namespaces/a/secrets/b%2Fc", "nothing"),
            ("/api/v1/namespaces/a//b", "nothing"),
            ("/api/v1/namespaces/../secrets/b", "nothing"),
            ("/api/v1/pods", "nothing"),
            ("/", "nothing"),
        ] {
            assert_eq!(spoken(path), expected, "{path}");
        }
    }
}
