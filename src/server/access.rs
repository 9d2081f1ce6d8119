//! Who asks, and whether they may.
//!
//! Decides from the identity, the verb and the target alone; it reads no object.
use http::Method;

use super::route::{Part, Target};
use super::status::Refusal;

/// Group of the administrators.
pub const ADMINS: &str = "wharfline:admins";
/// Group of the controllers.
pub const CONTROLLERS: &str = "wharfline:controllers";
/// Group of the node daemons.
pub const NODES: &str = "system:nodes";

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user, such as `system:node:n1`.
    pub user: String,
    /// The groups that decide what the user may do.
    pub groups: Vec<String>,
    /// SHA-256 of the key of the certificate that was shown, in hexadecimal; none within the process.
    pub key: Option<String>,
}

impl Identity {
    /// The local administrator.
    pub fn admin() -> Self {
        Self { user: "wharfline:admin".to_owned(), groups: vec![ADMINS.to_owned()], key: None }
    }

    /// The controllers.
    pub fn controllers() -> Self {
        Self { user: "wharfline:controllers".to_owned(), groups: vec![CONTROLLERS.to_owned()], key: None }
    }

    /// The daemon of the node with this name.
    pub fn node(name: &str) -> Self {
        Self { user: format!("system:node:{name}"), groups: vec![NODES.to_owned()], key: None }
    }

    /// The same, known by this key.
    #[must_use]
    pub fn with_key(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }

    /// The node whose daemon this is.
    pub(crate) fn node_name(&self) -> Option<&str> {
        if self.is_in(NODES) { self.user.strip_prefix("system:node:") } else { None }
    }

    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// What a request does, in the words of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// The verb of a method on a target.
    pub(crate) fn of(method: &Method, named: bool, watch: bool) -> Option<Self> {
        match (method, named) {
            (&Method::GET, _) if watch => Some(Self::Watch),
            (&Method::GET, true) => Some(Self::Get),
            (&Method::GET, false) => Some(Self::List),
            (&Method::POST, false) => Some(Self::Create),
            (&Method::PUT, true) => Some(Self::Update),
            (&Method::PATCH, true) => Some(Self::Patch),
            (&Method::DELETE, true) => Some(Self::Delete),
            (&Method::DELETE, false) => Some(Self::DeleteCollection),
            _ => None,
        }
    }

    /// The word on the wire.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// Lets the request pass or says why not.
pub(crate) fn authorize(identity: &Identity, verb: Verb, target: &Target) -> Result<(), Refusal> {
    let may = identity.is_in(ADMINS)
        || identity.is_in(CONTROLLERS)
        // What a node may is decided object by object, in `rights`.
        || identity.node_name().is_some();
    if may {
        return Ok(());
    }
    let kind = &target.resource.kind;
    let part = if target.part == Part::Status { "/status" } else { "" };
    let place = match &target.namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User \"{}\" cannot {} resource \"{}{part}\" in API group \"{}\" {place}",
        identity.user,
        verb.as_str(),
        kind.plural,
        kind.group
    );
    Err(Refusal::forbidden(target.resource.subject(target.name.as_deref().unwrap_or_default()), &why))
}
