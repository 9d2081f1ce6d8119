//! What people do: they apply and delete, and ask again until they are told that it is done.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use serde_json::Value;
use tokio::sync::Notify;

use crate::network;
use crate::universe::Universe;

/// One wish.
#[derive(Clone, Debug)]
pub enum Wish {
    Create { collection: String, object: Value },
    Delete { path: String },
}

/// Wishes and how many of them are done.
#[derive(Default)]
pub struct Desk {
    queue: Mutex<VecDeque<Wish>>,
    open: Mutex<usize>,
    came: Notify,
}

impl Desk {
    pub fn ask(&self, wish: Wish) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(wish);
        self.came.notify_one();
    }

    /// Wishes that nobody has acknowledged yet.
    pub fn open(&self) -> usize {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The software of the people's host.
pub async fn host(universe: Arc<Universe>, desk: Arc<Desk>) -> turmoil::Result {
    let client = network::client(&universe, network::PEOPLE, "admin");
    loop {
        let next = desk.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(wish) = next else {
            desk.came.notified().await;
            continue;
        };
        let (client, desk, universe) = (client.clone(), Arc::clone(&desk), Arc::clone(&universe));
        tokio::spawn(async move {
            while !fulfilled(&client, &wish).await {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            universe.note(&format!("people: done: {wish:.60?}"));
            *desk.open.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        });
    }
}

/// Whether the API has acknowledged it. Each try has a deadline: an answer may never come.
async fn fulfilled(client: &kube::Client, wish: &Wish) -> bool {
    let once = tokio::time::timeout(Duration::from_secs(5), attempt(client, wish));
    once.await.unwrap_or(false)
}

async fn attempt(client: &kube::Client, wish: &Wish) -> bool {
    match wish {
        Wish::Create { collection, object } => {
            let made = ask(client, "POST", collection, Some(object)).await;
            if made != 409 {
                return made == 200 || made == 201;
            }
            // There already: ours, from a try whose answer was lost, or an older one that is on its way out.
            let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
            let request = Request::get(&path).body(Vec::new()).expect("a path");
            let there = client.request::<Value>(request).await;
            there.is_ok_and(|there| there.pointer("/metadata/deletionTimestamp").is_none())
        }
        Wish::Delete { path } => matches!(ask(client, "DELETE", path, None).await, 200 | 202 | 404),
    }
}

async fn ask(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> u16 {
    let bytes = body.map(|b| serde_json::to_vec(b).expect("an object")).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(bytes).expect("a request");
    match client.request::<Value>(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(_) => 0,
    }
}
