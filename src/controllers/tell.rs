//! Events: what a person should read about an object that another process owns the status of.
//!
//! Said once per object and sentence, and never waited for: an event that cannot be written is lost.
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

use super::context::Context;
use super::write::{DEADLINE, MANAGER};
use crate::api::meta::ObjectRef;

/// How many sentences are remembered; past that all are forgotten, and said again if they still hold.
const REMEMBERED: usize = 4096;

/// The writer of events.
pub(crate) struct Teller {
    client: Client,
    reporter: Reporter,
    said: Mutex<HashSet<(String, String)>>,
}

impl Teller {
    /// Writes through this client.
    pub(crate) fn new(client: Client) -> Self {
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        Self { client, reporter, said: Mutex::default() }
    }

    fn is_new(&self, uid: &str, sentence: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= REMEMBERED {
            said.clear();
        }
        said.insert((uid.to_owned(), sentence.to_owned()))
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
        if !self.teller().is_new(&about.uid, sentence) {
            return;
        }
        let reference = ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            namespace: Some(about.namespace.clone()).filter(|n| !n.is_empty()),
            name: Some(about.name.clone()),
            uid: Some(about.uid.clone()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(sentence.to_owned()),
            action: "Waiting".to_owned(),
            secondary: None,
        };
        // Of events with one reason about one object a recorder makes a series, with the sentence of the first: what is said
        // anew is an event of its own.
        let recorder = Recorder::new(self.teller().client.clone(), self.teller().reporter.clone());
        let sent = recorder.publish(&event, &reference);
        match tokio::time::timeout(DEADLINE, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(name = about.name, %error, "event not written"),
            Err(_) => tracing::warn!(name = about.name, "event not written in time"),
        }
    }
}
