//! Which of several candidates runs the controllers.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharfline::controllers::{Candidate, LEASE, Options};
use wharfline::server::{Identity, Server};
use wharfline::store::embedded::{EmbeddedStore, MemoryDisk};

use crate::support::server_api::options;

const LASTS: Duration = Duration::from_secs(10);

/// Who leads, and whether ever two did at once.
#[derive(Default)]
struct Throne {
    sitting: AtomicUsize,
    most: AtomicUsize,
    reigns: Mutex<Vec<(&'static str, Instant)>>,
}

struct Runner {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

async fn server() -> Server {
    let store = EmbeddedStore::inline(MemoryDisk::default(), wharfline::store::embedded::Options::default());
    let server = Server::new(Arc::new(store.unwrap()), wharfline::api::definitions(), options());
    server.bootstrap().await.unwrap();
    server
}

fn candidate(server: &Server, me: &'static str, throne: &Arc<Throne>) -> Runner {
    let client = server.client(Identity::controllers());
    let (stop, throne) = (CancellationToken::new(), Arc::clone(throne));
    let candidate = Candidate::new(client, me.to_owned(), Options::default(), LASTS);
    let task = tokio::spawn({
        let stop = stop.clone();
        async move {
            let reign = |(), ending: CancellationToken| {
                let throne = Arc::clone(&throne);
                async move {
                    throne.reigns.lock().unwrap().push((me, Instant::now()));
                    let sitting = throne.sitting.fetch_add(1, Ordering::SeqCst) + 1;
                    throne.most.fetch_max(sitting, Ordering::SeqCst);
                    let _rises = Rises(&throne);
                    ending.cancelled().await;
                    Ok::<(), std::io::Error>(())
                }
            };
            candidate.run(stop, |_| async { Ok::<(), String>(()) }, reign).await.unwrap();
        }
    });
    Runner { stop, task }
}

/// Gets up, however the reign ends.
struct Rises<'a>(&'a Throne);

impl Drop for Rises<'_> {
    fn drop(&mut self) {
        self.0.sitting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Throne {
    async fn reigns(&self, count: usize) -> (&'static str, Instant) {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(last) = self.reigns.lock().unwrap().get(count - 1) {
                return *last;
            }
            assert!(Instant::now() < end, "there is no reign {count}");
            let _passed = tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_another_follows_it() {
    let server = server().await;
    let throne = Arc::new(Throne::default());
    let mut one = candidate(&server, "one", &throne);
    assert_eq!(throne.reigns(1).await.0, "one");
    let two = candidate(&server, "two", &throne);
    // For many leases nothing changes.
    let _passed = tokio::time::timeout(LASTS * 20, std::future::pending::<()>()).await;
    assert_eq!(throne.reigns.lock().unwrap().len(), 1);

    // It dies without a word: the lease has to run out.
    let died = Instant::now();
    one.task.abort();
    let _aborted = (&mut one.task).await;
    let (who, when) = throne.reigns(2).await;
    assert_eq!(who, "two");
    let gap = when - died;
    assert!((LASTS * 3 / 4..LASTS + Duration::from_secs(2)).contains(&gap), "{gap:?}");

    // It is stopped: the next one need not wait.
    let three = candidate(&server, "three", &throne);
    let _passed = tokio::time::timeout(LASTS, std::future::pending::<()>()).await;
    let stopped = Instant::now();
    two.stop.cancel();
    two.task.await.unwrap();
    let (who, when) = throne.reigns(3).await;
    assert_eq!(who, "three");
    assert!(when - stopped < Duration::from_secs(1), "{:?}", when - stopped);

    // A person takes the lease away: whoever held it stops, and one of them leads again.
    let leases: Api<Lease> = Api::namespaced(server.client(Identity::admin()), "wharfline-system");
    let taken = json!({ "spec": { "holderIdentity": "nobody-known" } });
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(&taken)).await.unwrap();
    assert_eq!(throne.reigns(4).await.0, "three");
    leases.delete(LEASE, &DeleteParams::default()).await.unwrap();
    assert_eq!(throne.reigns(5).await.0, "three");
    three.stop.cancel();
    three.task.await.unwrap();
    assert_eq!(throne.most.load(Ordering::SeqCst), 1, "two led at once");
}
