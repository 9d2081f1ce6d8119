//! EFFECTS on objects: the controllers, on kube-runtime's watchers and stores. They make no CSI call and hold no truth of
//! their own.
//!
//! One watcher per kind fills one cache; a change wakes the controllers that it concerns (`wake`), each of which looks
//! at one object at a time in four moves: gather from the caches, plan (in [`crate::plan`]), carry out one write, record.
//!
//! | file | writes |
//! |---|---|
//! | `plugins` | the plugins' allocations and PluginInstances, Plugin status, `pluginReleased` |
//! | `nodes` | core Node status |
//! | `claims` | Volumes of claims, claim status |
//! | `placement` | `nodeName` of allocations, `selectedNode` of claims or the Volume with it |
//! | `volumes` | a volume's host, phase and conditions |
//! | `snapshots` | what a snapshot is of, its host and conditions, and what is filled from it |
//! | `schedules` | Snapshots that are taken by the clock, a schedule's status |
//! | `holders` | a volume's holders, its attachments |
//! | `attachments` | an attachment's host, its fence, its end |
//! | `allocations` | the end of allocations; what becomes of those of a lost node; the claims that they bring along |
//! | `garbage` | deletes what nobody else does |
mod allocations;
mod attachments;
mod cache;
mod claims;
mod context;
mod drive;
mod expansions;
mod facts;
mod garbage;
mod groups;
mod holders;
mod hosts;
mod lead;
mod ledger;
mod modifications;
mod names;
mod nodes;
mod placement;
mod plugins;
mod queue;
mod schedules;
mod snapshots;
mod sources;
mod tell;
mod templates;
mod volumes;
mod wake;
mod watch;
mod world;
mod write;

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use kube::{Api, Client};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

pub use context::{Options, SYSTEM_NAMESPACE};
pub use lead::{Candidate, LEASE};

use context::Context;
use drive::drive;
use watch::watch;
use world::{World, Writers};

/// Why the controllers ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A task that runs for ever came to an end.
    #[error("the task \"{0}\" ended by itself")]
    Ended(&'static str),
    /// A task panicked.
    #[error("a task of the controllers panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

type Tasks = JoinSet<&'static str>;

/// Runs every controller until `shutdown` is ready. Every task that it starts has ended when it returns.
///
/// Boxed, so that it is compiled here once and not again in every program that runs it.
pub fn run(
    client: Client,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(until(client, options, Box::pin(shutdown)))
}

async fn until(client: Client, options: Options, shutdown: BoxFuture<'static, ()>) -> Result<(), Error> {
    let (world, writers) = World::new();
    let context = Arc::new(Context::new(world, client.clone(), options));
    let mut tasks = Tasks::new();
    let lists = watch_all(&mut tasks, &context, writers, &client);
    let result = tokio::select! {
        () = shutdown => Ok(()),
        error = supervise(&mut tasks, &context, lists) => Err(error),
    };
    tasks.shutdown().await;
    result
}

/// Starts the controllers after the first list of every kind, then waits for a task that ends.
async fn supervise(tasks: &mut Tasks, context: &Arc<Context>, lists: Vec<oneshot::Receiver<()>>) -> Error {
    let all = futures::future::join_all(lists);
    tokio::select! {
        // The one place that waits for the stores. An error is a watcher that ended, which the other arm reports.
        listed = all => {
            if listed.iter().all(Result::is_ok) {
                start(tasks, context);
            }
        }
        error = first_end(tasks) => return error,
    }
    first_end(tasks).await
}

async fn first_end(tasks: &mut Tasks) -> Error {
    match tasks.join_next().await {
        Some(Ok(name)) => Error::Ended(name),
        Some(Err(error)) => Error::Panicked(error),
        None => Error::Ended("all"),
    }
}

fn watch_all(
    tasks: &mut Tasks,
    context: &Arc<Context>,
    writers: Writers,
    client: &Client,
) -> Vec<oneshot::Receiver<()>> {
    let mut lists = Vec::new();
    macro_rules! watch_kind {
        ($field:ident) => {
            let (ready, listed) = oneshot::channel();
            let (context, client) = (Arc::clone(context), client.clone());
            let writer = writers.$field;
            tasks.spawn(async move {
                watch(context, writer, Api::all(client), ready).await;
                concat!("watch of ", stringify!($field))
            });
            lists.push(listed);
        };
    }
    world::for_each_kind!(watch_kind);
    lists
}

/// Queues every object once and starts the controllers.
fn start(tasks: &mut Tasks, context: &Arc<Context>) {
    let (world, queues) = (&context.world, &context.queues);
    macro_rules! control {
        ($queue:ident, $kind:ident, $reconcile:path) => {
            queues.$queue.add_all(world.$kind.all().iter().map(|o| cache::name_of(&**o)));
            let (context, queue) = (Arc::clone(context), queues.$queue.clone());
            tasks.spawn(async move {
                drive(stringify!($queue), context, queue, $reconcile).await;
                stringify!($queue)
            });
        };
    }
    control!(nodes, nodes, nodes::reconcile);
    control!(plugins, plugins, plugins::reconcile);
    control!(plugin_tasks, allocations, plugins::reconcile_task);
    control!(instances, instances, plugins::reconcile_instance);
    control!(claims, claims, claims::reconcile);
    control!(placement, allocations, placement::reconcile);
    control!(volumes, volumes, volumes::reconcile);
    control!(snapshots, snapshots, snapshots::reconcile);
    control!(schedules, schedules, schedules::reconcile);
    control!(holders, volumes, holders::reconcile);
    control!(attachments, attachments, attachments::reconcile);
    control!(allocations, allocations, allocations::reconcile);
    control!(events, events, garbage::event);
    control!(namespaces, namespaces, garbage::namespace);
    macro_rules! collect {
        ($field:ident) => {
            let (context, queue) = (Arc::clone(context), world.$field.dependents.clone());
            tasks.spawn(async move {
                drive("garbage", context, queue, garbage::dependent).await;
                concat!("garbage of ", stringify!($field))
            });
        };
    }
    world::for_each_kind!(collect);
}
