//! Every write of the controllers: one request each, with a deadline, noted in the ledger.
use std::fmt::Debug;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cache::{Cache, Kind, name_of};
use super::ledger::Ledger;

/// How long one request to the API may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(15);
/// The name that our writes carry.
pub(crate) const MANAGER: &str = "wharfline-controllers";

/// Why a write did not happen, by what to do next.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Somebody wrote first, or it is there already: the cache will show that and wake us.
    #[error("somebody else wrote first")]
    Conflict,
    /// The object is gone: the cache will show that.
    #[error("the object is gone")]
    Gone,
    /// The same was written a moment ago and another unsaid it: look again after so long.
    #[error("it was said a moment ago, and another unsaid it")]
    Unsaid(Duration),
    /// The API refused it: try again later.
    #[error("refused with {reason} ({code}): {message}")]
    Refused {
        /// The HTTP code.
        code: u16,
        /// The API's word for it.
        reason: String,
        /// Its sentence.
        message: String,
    },
    /// No answer: whether it happened will be seen in the cache.
    #[error("no answer from the API: {0}")]
    NoAnswer(String),
}

impl Failure {
    /// The cause that back-off belongs to.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Conflict => "Conflict".to_owned(),
            Self::Gone => "Gone".to_owned(),
            Self::Unsaid(_) => "Unsaid".to_owned(),
            Self::Refused { reason, code, .. } => format!("{reason}/{code}"),
            Self::NoAnswer(_) => "NoAnswer".to_owned(),
        }
    }
}

/// The writing end of the API.
#[derive(Clone)]
pub(crate) struct Write {
    client: Client,
}

/// An object that can be written.
pub(crate) trait Writable: Kind + Serialize {}
impl<K: Kind + Serialize> Writable for K {}

type Sent = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

impl Write {
    /// Writes through this client.
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates an object, and returns it as the server has it. What more the server has to know, `tell` adds to the request.
    pub(crate) async fn create<K: Writable>(
        &self,
        to: (&Cache<K>, &Ledger),
        object: &K,
        tell: impl FnOnce(&mut http::Extensions),
    ) -> Result<K, Failure> {
        let mut request = path(object).create(&PostParams::default(), bytes(object)?);
        if let Ok(request) = &mut request {
            tell(request.extensions_mut());
        }
        self.noted(to, request).await
    }

    /// Merges `patch` into an object, under its status or not. What more the server has to know, `tell` adds to the request.
    pub(crate) async fn merge<K: Writable>(
        &self,
        to: (&Cache<K>, &Ledger),
        object: &K,
        (patch, tell): (Value, impl FnOnce(&mut http::Extensions)),
    ) -> Result<K, Failure> {
        let of_status = patch.get("status").is_some();
        let (at, name, params) = (path(object), object.name_any(), PatchParams::default());
        let body = Patch::Merge(patch);
        let mut request = if of_status {
            at.patch_subresource("status", &name, &params, &body)
        } else {
            at.patch(&name, &params, &body)
        };
        if let Ok(request) = &mut request {
            tell(request.extensions_mut());
        }
        self.noted(to, request).await
    }

    /// Replaces the status; a conflict unless nobody wrote since `object` was read, or what `tell` adds is not so.
    pub(crate) async fn replace_status<K: Writable>(
        &self,
        to: (&Cache<K>, &Ledger),
        object: &K,
        tell: impl FnOnce(&mut http::Extensions),
    ) -> Result<K, Failure> {
        let mut request = path(object).replace_subresource(
            "status",
            &object.name_any(),
            &PostParams::default(),
            bytes(object)?,
        );
        if let Ok(request) = &mut request {
            tell(request.extensions_mut());
        }
        self.noted(to, request).await
    }

    /// Asks for the end of this very object.
    pub(crate) async fn delete<K: Kind>(
        &self,
        to: (&Cache<K>, &Ledger),
        object: &K,
        params: DeleteParams,
    ) -> Result<(), Failure> {
        let resource_version = params.preconditions.as_ref().and_then(|p| p.resource_version.clone());
        let preconditions = Some(Preconditions { uid: object.uid(), resource_version });
        let params = DeleteParams { preconditions, ..params };
        let request = path(object).delete(&object.name_any(), &params);
        match self.send::<Value>(request).await {
            Ok(answer) => {
                // A Status means that it is gone; else it stays for its finalizers.
                match serde_json::from_value::<K>(answer) {
                    Ok(left) if left.meta().deletion_timestamp.is_some() => to.1.wrote(to.0, &left),
                    Ok(_) | Err(_) => to.1.ended(to.0, name_of(object)),
                }
                Ok(())
            }
            // Its last state may be in the cache yet.
            Err(Failure::Gone) => {
                let name = name_of(object);
                if to.0.get(&name).is_some_and(|seen| seen.uid() == object.uid()) {
                    to.1.ended(to.0, name);
                }
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Removes a finalizer; a conflict unless nobody wrote since `object` was read.
    pub(crate) async fn release<K: Kind>(
        &self,
        to: (&Cache<K>, &Ledger),
        object: &K,
        (finalizer, tell): (&str, impl FnOnce(&mut http::Extensions)),
    ) -> Result<(), Failure> {
        let left: Vec<_> = object.finalizers().iter().filter(|f| *f != finalizer).collect();
        let patch = json!([
            { "op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version() },
            { "op": "replace", "path": "/metadata/finalizers", "value": left },
        ]);
        let patch: json_patch::Patch =
            serde_json::from_value(patch).map_err(|e| Failure::NoAnswer(e.to_string()))?;
        let params = PatchParams::default();
        let mut request = path(object).patch(&object.name_any(), &params, &Patch::Json::<()>(patch));
        if let Ok(request) = &mut request {
            tell(request.extensions_mut());
        }
        match self.send::<Value>(request).await {
            Ok(_) if left.is_empty() => {
                to.1.ended(to.0, name_of(object));
                Ok(())
            }
            Ok(_) | Err(Failure::Gone) => Ok(()),
            // A failed test is answered with 422, which here means nothing but a newer version.
            Err(Failure::Refused { code: 422, .. }) => Err(Failure::Conflict),
            Err(failure) => Err(failure),
        }
    }

    /// Reads an object from the API itself, for the few decisions that no cache may take.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        name: &str,
    ) -> Result<Option<T>, Failure> {
        let request = Request::new(path).get(name, &kube::api::GetParams::default());
        match self.send(request).await {
            Ok(object) => Ok(Some(object)),
            Err(Failure::Gone) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn noted<K: Kind>(&self, to: (&Cache<K>, &Ledger), request: Sent) -> Result<K, Failure> {
        let object: K = self.send(request).await?;
        if object.meta().deletion_timestamp.is_some() && object.finalizers().is_empty() {
            to.1.ended(to.0, name_of(&object));
        } else {
            to.1.wrote(to.0, &object);
        }
        Ok(object)
    }

    async fn send<T: DeserializeOwned>(&self, request: Sent) -> Result<T, Failure> {
        let request = request.map_err(|e| Failure::NoAnswer(e.to_string()))?;
        match tokio::time::timeout(DEADLINE, self.client.request::<T>(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(match status.code {
                409 => Failure::Conflict,
                404 => Failure::Gone,
                code => Failure::Refused { code, reason: status.reason, message: status.message },
            }),
            Ok(Err(error)) => Err(Failure::NoAnswer(error.to_string())),
            Err(_) => Err(Failure::NoAnswer(format!("none within {DEADLINE:?}"))),
        }
    }
}

fn bytes<T: Serialize + Debug>(object: &T) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(object).map_err(|e| Failure::NoAnswer(e.to_string()))
}

fn path<K: Resource<DynamicType = ()>>(object: &K) -> Request {
    Request::new(K::url_path(&(), object.meta().namespace.as_deref()))
}
