//! Leadership: of several servers one runs the controllers.
//!
//! The lease keeps two from leading by their clocks, and a term, which its holder begins in the store, by revisions: what the
//! one before writes from then on is refused.
use std::future::Future;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::Options;
use crate::plan::lead::{Seen, Step, leads_for, next, period};

/// The lease's name. No node can have it.
pub const LEASE: &str = "controllers.wharfline.dev";
/// Between two tries to renew after one failed.
const AGAIN: Duration = Duration::from_millis(500);

/// One that wants to lead.
pub struct Candidate {
    leases: Api<Lease>,
    me: String,
    options: Options,
    lasts: Duration,
}

impl Candidate {
    /// A candidate of this name, which no other may have. `lasts` is how long nobody leads after a leader died.
    pub fn new(client: Client, me: String, options: Options, lasts: Duration) -> Self {
        Self { leases: Api::namespaced(client, &options.system_namespace), me, options, lasts }
    }

    /// Runs `work` whenever it leads, with what `begin` made of its term, until `stop` or until `work` ends by itself. A
    /// term is known by the version that its lease had when it was taken, which is above all before it. The work is told to
    /// stop when the leadership is lost, and has ended when another may begin.
    pub async fn run<B, R, X, T, E, F>(
        &self,
        stop: CancellationToken,
        mut begin: impl FnMut(u64) -> B,
        mut work: impl FnMut(R, CancellationToken) -> F,
    ) -> Result<(), E>
    where
        B: Future<Output = Result<R, X>>,
        X: std::fmt::Display,
        F: Future<Output = Result<T, E>>,
    {
        loop {
            let Some(won) = stop.run_until_cancelled(self.win()).await else { return Ok(()) };
            let turn = won.lease.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0);
            let Some(left) = leads_for(self.lasts, won.renewed.elapsed()) else { continue };
            let reign = match tokio::time::timeout(left, begin(turn)).await {
                Ok(Ok(reign)) => reign,
                failed => {
                    let why = match failed {
                        Ok(Err(error)) => error.to_string(),
                        _ => "no answer in time".to_owned(),
                    };
                    tracing::warn!(
                        me = self.me,
                        why,
                        "has the lease of the controllers, but its term did not begin"
                    );
                    if stop.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
                        let _given_back = tokio::time::timeout(AGAIN, self.give_back(won.lease)).await;
                        return Ok(());
                    }
                    continue;
                }
            };
            tracing::info!(me = self.me, "leads the controllers");
            let ending = stop.child_token();
            let working = work(reign, ending.clone());
            tokio::pin!(working);
            let mut held = won;
            let ended = tokio::select! {
                ended = &mut working => ended,
                () = self.keep(&mut held) => {
                    tracing::warn!(me = self.me, "leads the controllers no longer");
                    ending.cancel();
                    working.await?;
                    continue;
                }
                // The work is told by the same token.
                () = stop.cancelled() => working.await,
            };
            // Whoever follows need not wait.
            let _given_back = tokio::time::timeout(AGAIN, self.give_back(held.lease)).await;
            return ended.map(drop);
        }
    }

    /// Waits until the lease is ours.
    async fn win(&self) -> Held {
        let mut news = watch_object(self.leases.clone(), LEASE).boxed();
        let mut view = View { lease: None, since: Instant::now() };
        if !self.look(&mut news, &mut view).await {
            tokio::time::sleep(AGAIN).await;
        }
        loop {
            let seen = view.seen(self.lasts);
            let wait = match next(&self.me, seen.as_ref()) {
                Step::Wait(left) => left,
                Step::Make | Step::Take => {
                    let sent = Instant::now();
                    match self.enter(view.lease.clone()).await {
                        Ok(lease) => return Held { lease, renewed: sent },
                        Err(error) => {
                            tracing::debug!(error = &error as &dyn std::error::Error, "lease not taken");
                        }
                    }
                    AGAIN
                }
            };
            let _news_or_time = tokio::time::timeout(wait, self.look(&mut news, &mut view)).await;
        }
    }

    /// Takes the next news of the lease; whether there was any.
    async fn look(
        &self,
        news: &mut (impl Stream<Item = Result<Option<Lease>, watcher::Error>> + Unpin),
        view: &mut View,
    ) -> bool {
        match news.next().await {
            Some(Ok(lease)) => {
                let version = |lease: &Option<Lease>| lease.as_ref().and_then(ResourceExt::resource_version);
                if version(&lease) != version(&view.lease) {
                    *view = View { lease, since: Instant::now() };
                }
                true
            }
            Some(Err(_)) | None => {
                // The watch tries again by itself; it must not do so at once, for ever.
                tokio::time::sleep(AGAIN).await;
                false
            }
        }
    }

    /// Enters us as the holder of a lease that is as seen.
    async fn enter(&self, seen: Option<Lease>) -> Result<Lease, kube::Error> {
        let now = MicroTime((self.options.now)());
        let before = seen.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let again = before.holder_identity.as_deref() == Some(self.me.as_str());
        let transitions = before.lease_transitions.unwrap_or(0) + i32::from(!again);
        let spec = LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(self.lasts.as_secs()).ok(),
            acquire_time: if again { before.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..before
        };
        self.write(seen, spec).await
    }

    async fn write(&self, seen: Option<Lease>, spec: LeaseSpec) -> Result<Lease, kube::Error> {
        let parameters = PostParams::default();
        match seen {
            Some(mut lease) => {
                lease.spec = Some(spec);
                self.leases.replace(LEASE, &parameters, &lease).await
            }
            None => {
                let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
                self.leases.create(&parameters, &Lease { metadata, spec: Some(spec) }).await
            }
        }
    }

    /// Renews until that fails for too long, or another holds it.
    async fn keep(&self, held: &mut Held) {
        let mut pause = period(self.lasts);
        loop {
            let Some(left) = leads_for(self.lasts, held.renewed.elapsed()) else { return };
            tokio::time::sleep(pause.min(left)).await;
            let Some(left) = leads_for(self.lasts, held.renewed.elapsed()) else { return };
            let sent = Instant::now();
            let renewed = tokio::time::timeout(left, self.enter(Some(held.lease.clone()))).await;
            pause = match renewed {
                Ok(Ok(lease)) => {
                    *held = Held { lease, renewed: sent };
                    period(self.lasts)
                }
                // Somebody wrote it: another holder, or a renewal of ours of which we were not told.
                Ok(Err(kube::Error::Api(status))) if status.code == 409 || status.code == 404 => {
                    let Some(left) = leads_for(self.lasts, held.renewed.elapsed()) else { return };
                    match tokio::time::timeout(left, self.leases.get_opt(LEASE)).await {
                        Ok(Ok(Some(lease))) if holder(&lease) == self.me => held.lease = lease,
                        Ok(Ok(_)) => return,
                        Ok(Err(_)) | Err(_) => {}
                    }
                    AGAIN
                }
                Ok(Err(_)) | Err(_) => AGAIN,
            };
        }
    }

    async fn give_back(&self, lease: Lease) {
        let nobodys = |lease: &Lease| LeaseSpec {
            holder_identity: Some(String::new()),
            ..lease.spec.clone().unwrap_or_default()
        };
        let spec = nobodys(&lease);
        if self.write(Some(lease), spec).await.is_ok() {
            return;
        }
        // A renewal of ours may have been on its way.
        if let Ok(Some(lease)) = self.leases.get_opt(LEASE).await
            && holder(&lease) == self.me
        {
            let spec = nobodys(&lease);
            if let Err(error) = self.write(Some(lease), spec).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "lease not given back");
            }
        }
    }
}

/// The lease while it is ours.
struct Held {
    lease: Lease,
    /// When the renewal was asked for that stands.
    renewed: Instant,
}

/// The lease as seen, and since when.
struct View {
    lease: Option<Lease>,
    since: Instant,
}

impl View {
    fn seen(&self, usual: Duration) -> Option<Seen> {
        let lease = self.lease.as_ref()?;
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        // What it says is believed where it is short: nobody keeps the others out for years.
        let lasts = seconds.and_then(|s| u64::try_from(s).ok()).map_or(usual, Duration::from_secs).min(usual);
        Some(Seen { holder: holder(lease), lasts, unchanged: self.since.elapsed() })
    }
}

fn holder(lease: &Lease) -> String {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default()
}
