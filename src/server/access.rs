//! Who asks, and whether they may.
//!
//! Decides from the identity, the verb and the target alone; it reads no object.
use http::Method;

use super::resource::{Nature, Resource};
use super::route::{Part, Target};
use super::status::Refusal;

/// The namespace of what the system keeps for itself: join tokens, users, leases, the allocations of plugins.
pub(crate) const SYSTEM: &str = "wharfline-system";

/// Group of the administrators: they may do everything.
pub const ADMINS: &str = "wharfline:admins";
/// Group of those who see everything but Secrets, and write what is in namespaces, Secrets too, but not in the system's.
pub const EDITORS: &str = "wharfline:editors";
/// Group of those who see everything but Secrets.
pub const VIEWERS: &str = "wharfline:viewers";
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
    /// What proved it: SHA-256 of the key of the certificate that was shown, in hexadecimal, or the hash of a token;
    /// none within the process.
    pub key: Option<String>,
}

/// What a person may do: the words of `user create --role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    View,
    Edit,
    Admin,
}

impl Role {
    /// The role that a word means.
    pub(crate) fn of(word: &str) -> Option<Self> {
        match word {
            "view" => Some(Self::View),
            "edit" => Some(Self::Edit),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::View => VIEWERS,
            Self::Edit => EDITORS,
            Self::Admin => ADMINS,
        }
    }

    /// Whether the role has the right to this; `system` says whether it touches the system's namespace, as a list over
    /// all namespaces does.
    fn may(self, verb: Verb, resource: &Resource, part: Part, system: bool) -> bool {
        let secret = resource.nature == Nature::Secret;
        let reads = matches!(verb, Verb::Get | Verb::List | Verb::Watch);
        match self {
            Self::Admin => true,
            Self::View => reads && !secret,
            Self::Edit if reads && !secret => true,
            Self::Edit => resource.kind.namespaced && !system && part == Part::Main,
        }
    }
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

    /// A person with a role, known by a token.
    pub(crate) fn person(name: &str, role: Role, token: &str) -> Self {
        Self { user: name.to_owned(), groups: vec![role.group().to_owned()], key: Some(token.to_owned()) }
    }

    /// The roles of a person.
    pub(crate) fn roles(&self) -> impl Iterator<Item = Role> {
        [Role::View, Role::Edit, Role::Admin].into_iter().filter(|role| self.is_in(role.group()))
    }

    /// Whether this is a part of the server's own process.
    pub(crate) fn is_internal(&self) -> bool {
        self.key.is_none()
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

/// Whether an identity has the right to this at all. What a node may is decided object by object beyond that, in `rights`.
pub(crate) fn may(
    identity: &Identity,
    verb: Verb,
    (resource, part): (&Resource, Part),
    namespace: Option<&str>,
) -> bool {
    let system = namespace.is_none_or(|namespace| namespace == SYSTEM);
    identity.is_in(CONTROLLERS)
        || identity.node_name().is_some()
        || identity.roles().any(|role| role.may(verb, resource, part, system))
}

/// Lets the request pass or says why not.
pub(crate) fn authorize(identity: &Identity, verb: Verb, target: &Target) -> Result<(), Refusal> {
    let namespace = target.namespace.as_deref();
    if may(identity, verb, (&target.resource, target.part), namespace) {
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
