//! `logs`: what a task wrote, read from its files on this machine.
//!
//! The API does not carry logs yet, so that this works on the node itself; elsewhere it says which node to ask.
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::api::allocation::DID_NOT_START;
use crate::cli::args::{Logs, Stream};
use crate::cli::failure::{Exit, Failure};
use crate::cli::kinds::Kinds;
use crate::cli::log_files::Tail;
use crate::cli::session::{self, Item, Session};
use crate::cli::table::clean;
use crate::cli::wire::Form;

/// Between two tries to reach the server while a log is followed: first and longest.
#[cfg(target_os = "linux")]
const AWAY: (std::time::Duration, std::time::Duration) =
    (std::time::Duration::from_secs(1), std::time::Duration::from_secs(10));

/// Where a task's output is kept on its node.
pub(crate) fn file_of(data_dir: &Path, allocation_uid: &str, task: &str, stream: Stream) -> PathBuf {
    let name = match stream {
        Stream::Stdout => "stdout.log",
        Stream::Stderr => "stderr.log",
    };
    data_dir.join("logs").join(allocation_uid).join(task).join(name)
}

pub(crate) async fn run(session: &mut Session<'_>, args: &Logs) -> Result<(), Failure> {
    let homes = homes(session, "logs");
    let kinds = session.kinds().await?;
    let resource = kinds.find("allocations")?.clone();
    let written = match target(&kinds, &args.target)? {
        Target::Plugin(plugin) => instance_here(session, plugin, &homes).await?,
        Target::Allocation(name, task) => {
            Written { namespace: session.namespace(), name: name.to_owned(), task: task.map(str::to_owned) }
        }
    };
    let Written { namespace, name, task } = written;
    let item = Item { resource, namespace, name, object: Value::Null };
    let allocation = session.wire.get(&item.path(), Form::Object).await?;
    let task = task_of(&allocation, task.as_deref())?;
    let uid = allocation["metadata"]["uid"].as_str().unwrap_or_default();
    let streams = match args.stream {
        Some(stream) => vec![stream],
        None => vec![Stream::Stdout, Stream::Stderr],
    };
    let mut tails = Vec::new();
    for stream in streams {
        match homes.iter().map(|home| Tail::open(file_of(home, uid, &task, stream), args.tail)).find(is_there)
        {
            Some(Ok(tail)) => tails.push((stream, tail)),
            Some(Err(error)) => {
                let what = format!("the log of task {task} cannot be read");
                return Err(Failure::failed(what).because(error.to_string()).try_this("run it as root"));
            }
            None => {}
        }
    }
    if tails.is_empty() {
        return Err(elsewhere(&item, &allocation, &task, &homes));
    }
    copy(session, &mut tails)?;
    if tails.iter().all(|(_, tail)| tail.is_empty()) {
        session.note(nothing(&allocation, &task, args.stream));
    }
    if args.follow { follow(session, &item, &mut tails).await } else { Ok(()) }
}

fn is_there<T>(opened: &io::Result<T>) -> bool {
    !matches!(opened, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// The data directories in which something of this name may be: the named or usual one, and that of the kubeconfig in use, which
/// lies in the one of the `up` that wrote it.
pub(super) fn homes(session: &Session<'_>, name: &str) -> Vec<PathBuf> {
    let mut homes = vec![session.data_dir.clone()];
    let beside = session.kubeconfig().ok().and_then(|file| file.parent().map(Path::to_owned));
    homes.extend(beside.filter(|home| *home != session.data_dir && home.join(name).exists()));
    homes
}

/// What a person asks for.
#[derive(Debug, PartialEq, Eq)]
enum Target<'a> {
    Allocation(&'a str, Option<&'a str>),
    Plugin(&'a str),
}

/// `ALLOCATION[/TASK]`, with the kind in front allowed, by any of its names: `allocation/NAME[/TASK]`; or `plugin/NAME`.
fn target<'w>(kinds: &Kinds, words: &'w str) -> Result<Target<'w>, Failure> {
    let kind = |word: &str| kinds.find(word).map(|resource| resource.kind.clone()).unwrap_or_default();
    let (first, rest) = words.split_once('/').unwrap_or((words, ""));
    let words = match kind(first).as_str() {
        "Plugin" if !rest.is_empty() => return Ok(Target::Plugin(rest)),
        "Allocation" if first != words => rest,
        _ => words,
    };
    let (name, task) = words.split_once('/').map_or((words, None), |(name, task)| (name, Some(task)));
    if name.is_empty() || task == Some("") {
        let failure = Failure::usage(format!("\"{words}\" names no task"));
        return Err(failure.try_this("write NAME, NAME/TASK or plugin/NAME"));
    }
    Ok(Target::Allocation(name, task))
}

/// A task whose output is asked for; the allocation's only one when it has no name.
struct Written {
    namespace: String,
    name: String,
    task: Option<String>,
}

/// The newest instance of a plugin that has written something on this machine.
async fn instance_here(
    session: &mut Session<'_>,
    plugin: &str,
    homes: &[PathBuf],
) -> Result<Written, Failure> {
    let kinds = session.kinds().await?;
    let resource = kinds.find("plugininstances")?.clone();
    let list = session.wire.list(&resource.collection(None), &[], Form::Object).await?;
    let of_it = |instance: &&Value| instance["spec"]["plugin"] == plugin;
    let instances: Vec<&Value> = list["items"].as_array().into_iter().flatten().filter(of_it).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let written = |instance: &&Value| {
        let (uid, task) = (text(&instance["spec"]["allocation"]["uid"]), text(&instance["spec"]["task"]));
        let safe = !uid.is_empty() && ![&uid, &task].iter().any(|part| part.contains('/') || *part == "..");
        let mut logs = homes.iter().map(|home| home.join("logs").join(&uid).join(&task));
        let begun =
            safe.then(|| logs.find_map(|logs| std::fs::metadata(logs).ok()?.modified().ok())).flatten()?;
        // Of one second it is the one that began to write last. The times are of one form: their text is in their order.
        Some((text(&instance["metadata"]["creationTimestamp"]), begun))
    };
    let here = instances.iter().filter(|i| written(i).is_some()).max_by_key(|i| written(i));
    if let Some(instance) = here {
        let allocation = &instance["spec"]["allocation"];
        let (namespace, name) = (text(&allocation["namespace"]), text(&allocation["name"]));
        return Ok(Written { namespace, name, task: Some(text(&instance["spec"]["task"])) });
    }
    let nodes: BTreeSet<&str> = instances.iter().filter_map(|i| i["spec"]["nodeName"].as_str()).collect();
    if nodes.is_empty() {
        let failure = Failure::new(Exit::NotFound, format!("no instance of plugin/{plugin} is there"));
        return Err(failure.try_this(format!("wharfline why plugin/{plugin}")));
    }
    let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
    let failure = Failure::failed(format!("no log of plugin/{plugin} is on this machine"));
    let searched = format!("it has instances on: {nodes}; nothing of them under {}", searched(homes));
    let there = format!("wharfline logs plugin/{plugin} on one of them, with that node's --data-dir");
    Err(failure
        .because(searched)
        .try_this(format!("{there}; of one that something else runs Wharfline has no log")))
}

fn searched(homes: &[PathBuf]) -> String {
    homes.iter().map(|home| home.join("logs").display().to_string()).collect::<Vec<_>>().join(" and ")
}

/// The task asked for, which must be one of the allocation's own: its name becomes part of a path.
fn task_of(allocation: &Value, asked: Option<&str>) -> Result<String, Failure> {
    let name = allocation["metadata"]["name"].as_str().unwrap_or_default();
    let tasks: Vec<&str> = allocation["spec"]["tasks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|t| t["name"].as_str())
        .collect();
    let safe = |task: &&&str| !task.contains('/') && **task != "..";
    match (asked, &tasks[..]) {
        (_, []) => Err(Failure::new(Exit::NotFound, format!("allocation/{name} has no tasks"))),
        (Some(asked), tasks) => match tasks.iter().find(|task| **task == asked).filter(safe) {
            Some(task) => Ok((*task).to_owned()),
            None => {
                let failure = Failure::new(Exit::NotFound, format!("allocation/{name} has no task {asked}"));
                Err(failure.try_this(format!("one of {}", tasks.join(", "))))
            }
        },
        (None, [only]) => Ok((*only).to_owned()),
        (None, several) => {
            let failure = Failure::usage(format!("allocation/{name} has several tasks"));
            Err(failure.try_this(format!("write {name}/TASK with one of {}", several.join(", "))))
        }
    }
}

fn elsewhere(item: &Item, allocation: &Value, task: &str, homes: &[PathBuf]) -> Failure {
    let failure = Failure::failed(format!("no log of {} is on this machine", item.label()));
    let searched = format!("nothing of it under {}", searched(homes));
    let why = format!("wharfline why {} -n {}", item.label(), item.namespace);
    match allocation["status"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
        Some(_) if not_started(allocation, task) => failure
            .because(format!("task {task} was not started yet, so that it has written nothing"))
            .try_this(why),
        Some(node) => failure.because(format!("it runs on node {node}; {searched}")).try_this(format!(
            "wharfline logs {} -n {} on node {node}, with that node's --data-dir",
            item.name, item.namespace
        )),
        None => {
            failure.because("it was not placed on a node yet, so that it has written nothing").try_this(why)
        }
    }
}

/// What there is to say where nothing was written.
fn nothing(allocation: &Value, task: &str, stream: Option<Stream>) -> String {
    if let Some(why) = unstarted(allocation, task) {
        let why = if why.is_empty() { why } else { format!(" ({})", clean(&why)) };
        return format!("nothing was written: the task has not started{why}");
    }
    let to = match stream {
        None => "",
        Some(Stream::Stdout) => " to its standard output",
        Some(Stream::Stderr) => " to its standard error",
    };
    format!("the task wrote nothing{to}")
}

/// Why a task has never run, as far as its allocation's status tells; none of one that has.
fn unstarted(allocation: &Value, task: &str) -> Option<String> {
    let status = &allocation["status"];
    let list = |of: &'_ Value| of.as_array().cloned().unwrap_or_default();
    let told = list(&status["tasks"]).into_iter().find(|told| told["name"] == task).unwrap_or_default();
    let events = list(&told["events"]);
    let word = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
    let began = events.iter().any(|event| matches!(event["reason"].as_str(), Some("Started" | "Restarted")));
    let last = events.last().map(|event| (word(event, "reason"), word(event, "message")));
    let refused = last.as_ref().is_some_and(|(_, message)| message.starts_with(DID_NOT_START));
    if began || !(refused || not_started(allocation, task)) {
        return None;
    }
    let ready =
        list(&status["conditions"]).into_iter().find(|c| c["type"] == "Ready" && c["status"] != "True");
    let ready = ready.map(|ready| (word(&ready, "reason"), word(&ready, "message")));
    // It may speak of another task.
    let own = |message: &str| !message.starts_with("task ") || message.starts_with(&format!("task {task}:"));
    let ready = ready.filter(|(_, message)| own(message));
    // Why it waits for its image or runtime no event of it tells.
    let by_itself = |reason: &str| ["Starting", "Waiting", "Restarting"].contains(&reason);
    let better = ready.clone().filter(|(reason, _)| !by_itself(reason));
    let said = better.or(last).or(ready).unwrap_or_default();
    Some([said.0, said.1].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": "))
}

/// Whether its node says that a task has never run. A phase of waiting says it before the node does.
fn not_started(allocation: &Value, task: &str) -> bool {
    let status = &allocation["status"];
    let told = status["tasks"].as_array().into_iter().flatten().find(|t| t["name"] == task);
    match told {
        Some(told) => told["state"] == "Pending",
        None => status["phase"] == "WaitingVolumes",
    }
}

/// Copies what is new of each stream to where it belongs: standard error to standard error.
fn copy(session: &mut Session<'_>, tails: &mut [(Stream, Tail)]) -> Result<(), Failure> {
    for (stream, tail) in tails {
        let out: &mut dyn Write = match stream {
            Stream::Stdout => session.terminal.out,
            Stream::Stderr => session.terminal.err,
        };
        tail.copy_to(out)?;
        out.flush()?;
        if tail.has_lost() {
            let lost = "(lines are missing here: more was written meanwhile than is kept)";
            writeln!(session.terminal.err, "{lost}")?;
        }
    }
    Ok(())
}

/// Copies what is written until the allocation is over or gone.
#[cfg(target_os = "linux")]
async fn follow(session: &mut Session<'_>, item: &Item, tails: &mut [(Stream, Tail)]) -> Result<(), Failure> {
    let unwatchable =
        |error: io::Error| Failure::failed("the log cannot be followed").because(error.to_string());
    let directories = tails.iter().filter_map(|(_, tail)| tail.path().parent());
    let news = Directories::watch(directories).map_err(unwatchable)?;
    let wire = session.wire.clone();
    let over = || session::follow(&wire, item, |seen| is_over(seen).then_some(()));
    let mut asked = Box::pin(over());
    let (mut pause, mut since, mut told) = (AWAY.0, tokio::time::Instant::now(), false);
    // When the server is asked again, while it cannot be reached.
    let mut again: Option<tokio::time::Instant> = None;
    loop {
        // After the watch was set up, and after each change, so that nothing falls in between.
        copy(session, tails)?;
        tokio::select! {
            done = &mut asked, if again.is_none() => match done {
                // The task and its log are here: both go on without it.
                Err(failure) if failure.exit == Exit::Unreachable => {
                    // It was there in between.
                    if since.elapsed() > AWAY.0 {
                        (pause, told) = (AWAY.0, false);
                    }
                    if !std::mem::replace(&mut told, true) {
                        session.note("the server cannot be reached; what is written here is shown all the same");
                    }
                    again = Some(tokio::time::Instant::now() + pause);
                    pause = (pause * 2).min(AWAY.1);
                }
                done => {
                    done?;
                    return copy(session, tails);
                }
            },
            () = tokio::time::sleep_until(again.unwrap_or_else(tokio::time::Instant::now)), if again.is_some() => {
                (asked, again, since) = (Box::pin(over()), None, tokio::time::Instant::now());
            }
            changed = news.changed() => changed.map_err(unwatchable)?,
        }
    }
}

#[cfg(not(target_os = "linux"))]
async fn follow(_: &mut Session<'_>, _: &Item, _: &mut [(Stream, Tail)]) -> Result<(), Failure> {
    Err(Failure::failed("logs can be followed on Linux only"))
}

#[cfg(target_os = "linux")]
fn is_over(allocation: Option<&Value>) -> bool {
    match allocation {
        None => true,
        Some(allocation) => {
            matches!(allocation["status"]["phase"].as_str(), Some("Complete" | "Failed" | "Stopped"))
        }
    }
}

/// Wakes when something in one of the directories is written, made or renamed.
#[cfg(target_os = "linux")]
struct Directories {
    queue: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Directories {
    fn watch<'a>(paths: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let queue = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        for path in paths {
            add_watch(&queue, path, WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
        }
        // Deprecated for types whose descriptor may change under tokio; an OwnedFd keeps its own until it is dropped.
        #[allow(deprecated)]
        let queue = tokio::io::unix::AsyncFd::new(queue)?;
        Ok(Self { queue })
    }

    async fn changed(&self) -> io::Result<()> {
        loop {
            let mut ready = self.queue.readable().await?;
            // Which file it was does not matter: every file is looked at.
            let mut events = [0; 4096];
            match rustix::io::read(self.queue.get_ref(), &mut events) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::kinds::tests::kinds;
    use serde_json::json;

    #[test]
    fn only_the_allocations_own_tasks_become_paths() {
        let allocation = json!({ "metadata": { "name": "a" }, "spec": { "tasks": [{ "name": "web" }, { "name": ".." }] } });
        assert_eq!(task_of(&allocation, Some("web")), Ok("web".to_owned()));
        for asked in [Some("../../x"), Some(".."), Some("db"), None] {
            assert!(task_of(&allocation, asked).is_err(), "{asked:?}");
        }
        let one = json!({ "spec": { "tasks": [{ "name": "web" }] } });
        assert_eq!(task_of(&one, None), Ok("web".to_owned()));
    }

    #[test]
    fn a_task_is_named_by_its_allocation_or_its_plugin() {
        for (words, wanted) in [
            ("a", Target::Allocation("a", None)),
            ("a/web", Target::Allocation("a", Some("web"))),
            ("alloc/a/web", Target::Allocation("a", Some("web"))),
            ("allocation/plugin", Target::Allocation("plugin", None)),
            ("alloc", Target::Allocation("alloc", None)),
            ("web/alloc", Target::Allocation("web", Some("alloc"))),
            ("volume/web", Target::Allocation("volume", Some("web"))),
            ("alloc/a", Target::Allocation("a", None)),
            ("allocations/a", Target::Allocation("a", None)),
            ("allocation.wharfline.dev/a", Target::Allocation("a", None)),
            ("allocation.wharfline.dev/a/web", Target::Allocation("a", Some("web"))),
            ("plugin/loop", Target::Plugin("loop")),
            ("plugin.wharfline.dev/loop", Target::Plugin("loop")),
        ] {
            assert_eq!(target(&kinds(), words), Ok(wanted), "{words}");
        }
        for words in ["", "alloc/", "plugin/", "/web", "a/"] {
            assert_eq!(target(&kinds(), words).map_err(|f| f.exit), Err(Exit::Usage), "{words}");
        }
    }

    #[test]
    fn where_nothing_was_written_it_is_told_whether_the_task_began() {
        let event = |reason: &str, message: &str| json!({ "reason": reason, "message": message });
        let started = event("Started", "started");
        let failed = event("StartFailed", "no such runtime");
        let refused = event("Exited", "did not start: /x: no such file");
        let ended = event("Exited", "exited with code 0 after 1 s");
        let not = "nothing was written: the task has not started";
        for (state, events, ready, wanted) in [
            ("Pending", json!([]), ("", ""), not.to_owned()),
            (
                "Pending",
                json!([]),
                ("Starting", "its tasks are about to start"),
                format!("{not} (Starting: its tasks are about to start)"),
            ),
            (
                "Pending",
                json!([failed]),
                ("Starting", "task t: no such runtime"),
                format!("{not} (StartFailed: no such runtime)"),
            ),
            (
                "Pending",
                json!([failed]),
                ("ImageUnusable", "task t: no such image"),
                format!("{not} (ImageUnusable: task t: no such image)"),
            ),
            ("Pending", json!([]), ("ImageUnusable", "task other: no such image"), not.to_owned()),
            (
                "Restarting",
                json!([refused]),
                ("Restarting", "task t: did not start: /x: no such file"),
                format!("{not} (Exited: did not start: /x: no such file)"),
            ),
            (
                "Restarting",
                json!([started, refused]),
                ("Restarting", ""),
                "the task wrote nothing".to_owned(),
            ),
            ("Running", json!([started]), ("", ""), "the task wrote nothing".to_owned()),
            ("Exited", json!([started, ended]), ("", ""), "the task wrote nothing".to_owned()),
        ] {
            let (reason, message) = ready;
            let condition =
                json!({ "type": "Ready", "status": "False", "reason": reason, "message": message });
            let allocation = json!({ "status": {
                "conditions": if reason.is_empty() { json!([]) } else { json!([condition]) },
                "tasks": [{ "name": "t", "state": state, "events": events }],
            } });
            assert_eq!(nothing(&allocation, "t", None), wanted, "{state} {events}");
        }
        let one = nothing(&json!({}), "t", Some(Stream::Stderr));
        assert_eq!(one, "the task wrote nothing to its standard error");
    }
}
