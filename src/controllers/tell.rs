//! Events: what a person should read about an object that another process owns the status of.
//!
//! Said once per object and sentence, and again once the event is gone and the sentence still holds. Never waited for: an
//! event that cannot be written is lost.
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use tokio::time::Instant;

use super::cache::Name;
use super::context::Context;
use super::write::{DEADLINE, MANAGER};
use crate::api::meta::ObjectRef;

/// How many sentences are remembered; past that all are forgotten, and said again if they still hold.
const REMEMBERED: usize = 4096;
/// How long after it was said an event may be unseen. Later it is gone: deleted by somebody, or removed for its age.
const UNSEEN: Duration = Duration::from_secs(60);

/// The writer of events.
pub(crate) struct Teller {
    client: Client,
    said: Mutex<HashMap<(String, String), Said>>,
}

/// The event of a sentence.
struct Said {
    event: Name,
    at: Instant,
}

impl Teller {
    /// Writes through this client.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, said: Mutex::default() }
    }

    /// Whether a sentence is to be said, as this event.
    fn is_new(&self, (uid, sentence): (&str, &str), event: &Name, seen: impl Fn(&Name) -> bool) -> bool {
        let (now, key) = (Instant::now(), (uid.to_owned(), sentence.to_owned()));
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let stands = |said: &Said| now.duration_since(said.at) < UNSEEN || seen(&said.event);
        if said.get(&key).is_some_and(stands) {
            return false;
        }
        if said.len() >= REMEMBERED {
            said.clear();
        }
        said.insert(key, Said { event: event.clone(), at: now });
        true
    }
}

impl Context {
    /// Tells one sentence about an object.
    pub(crate) async fn tell<K: Resource<DynamicType = ()>>(
        &self,
        about: &ObjectRef,
        reason: &str,
        sentence: &str,
    ) {
        let now = Timestamp::now();
        let namespace = Some(about.namespace.clone()).filter(|n| !n.is_empty());
        // Those about an object of the whole cluster are where Kubernetes has them.
        let home = namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = (home, format!("{}.{:x}", about.name, now.as_nanosecond()));
        let seen = |event: &Name| self.world.events.get(event).is_some();
        if !self.teller().is_new((&about.uid, sentence), &name, seen) {
            return;
        }
        let (home, name) = name;
        let event = Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(home.clone()), ..ObjectMeta::default() },
            event_time: Some(MicroTime(now)),
            regarding: Some(ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                namespace,
                name: Some(about.name.clone()),
                uid: Some(about.uid.clone()),
                ..ObjectReference::default()
            }),
            type_: Some("Warning".to_owned()),
            reason: Some(reason.to_owned()),
            action: Some("Waiting".to_owned()),
            note: Some(sentence.to_owned()),
            reporting_controller: Some(MANAGER.to_owned()),
            reporting_instance: Some(MANAGER.to_owned()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.teller().client.clone(), &home);
        match tokio::time::timeout(DEADLINE, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(name = about.name, %error, "event not written"),
            Err(_) => tracing::warn!(name = about.name, "event not written in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teller() -> Teller {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nobody is asked"))
        });
        Teller::new(Client::new(nobody, "default"))
    }

    fn event(name: &str) -> Name {
        ("default".to_owned(), name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_sentence_is_said_again_once_its_event_is_gone() {
        let teller = teller();
        let said = ("uid", "no node has room");
        let is_new = |name: &str, there: &str| teller.is_new(said, &event(name), |e| *e == event(there));
        assert!(is_new("a", ""));
        assert!(!is_new("b", ""), "it is not seen yet");
        tokio::time::advance(UNSEEN).await;
        assert!(!is_new("c", "a"), "it is there");
        assert!(is_new("d", ""), "somebody deleted it");
        tokio::time::advance(UNSEEN).await;
        assert!(!is_new("e", "d"), "the new one is there");
        assert!(teller.is_new(("uid", "another sentence"), &event("f"), |_| true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_is_remembered_up_to_a_bound() {
        let teller = teller();
        for i in 0..=REMEMBERED {
            assert!(teller.is_new(("uid", &i.to_string()), &event("a"), |_| true));
        }
        assert_eq!(teller.said.lock().unwrap().len(), 1);
    }
}
