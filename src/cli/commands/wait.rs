//! `wait`: until a condition, a field, the absence or the presence of objects; by watching, never by asking again.
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::args::Wait;
use crate::cli::failure::{Exit, Failure};
use crate::cli::jsonpath::{Template, as_text};
use crate::cli::session::{Item, Session};

use super::why::cause;

/// What is waited for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Goal {
    /// A condition has this status.
    Condition(String, String),
    /// A field has this value, or any.
    Field(Template, Option<String>),
    /// The object is gone.
    Delete,
    /// The object is there.
    Create,
}

impl Goal {
    /// Reads the value of `--for`.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let unknown = || {
            Failure::usage(format!("--for={text} is not known"))
                .try_this("condition=NAME[=VALUE], jsonpath='{PATH}'[=VALUE], delete or create")
        };
        match text.split_once('=') {
            None if text == "delete" => Ok(Self::Delete),
            None if text == "create" => Ok(Self::Create),
            Some(("condition", rest)) => {
                let (name, value) = rest.split_once('=').unwrap_or((rest, "True"));
                if name.is_empty() {
                    Err(unknown())
                } else {
                    Ok(Self::Condition(name.to_owned(), value.to_owned()))
                }
            }
            Some(("jsonpath", rest)) => {
                let (path, value) = match rest.rfind('}') {
                    Some(end) => (&rest[..=end], rest[end + 1..].strip_prefix('=')),
                    None => rest.rsplit_once('=').map_or((rest, None), |(path, value)| (path, Some(value))),
                };
                let value = value.map(|v| v.trim_matches(['"', '\'']).to_owned());
                if value.as_deref() == Some("") {
                    return Err(unknown());
                }
                let template = Template::parse(path).map_err(|e| Failure::usage(e.to_string()))?;
                Ok(Self::Field(template, value))
            }
            _ => Err(unknown()),
        }
    }

    /// Whether it holds of the object, or of its absence.
    pub(crate) fn met(&self, object: Option<&Value>) -> bool {
        match (self, object) {
            (Self::Delete, object) => object.is_none(),
            (Self::Create, object) => object.is_some(),
            (Self::Condition(..) | Self::Field(..), None) => false,
            (Self::Condition(name, wanted), Some(object)) => condition(object, name).is_some_and(|found| {
                let same = found["status"].as_str().is_some_and(|status| status.eq_ignore_ascii_case(wanted));
                same && !is_stale(object, found)
            }),
            (Self::Field(path, wanted), Some(object)) => {
                let found = path.find(object);
                match wanted {
                    None => !found.is_empty(),
                    Some(wanted) => found.iter().any(|value| as_text(value) == *wanted),
                }
            }
        }
    }

    /// What stands in the way, in one line.
    fn shortfall(&self, object: &Value) -> String {
        match self {
            Self::Condition(name, _) => match condition(object, name) {
                Some(found) if is_stale(object, found) => format!("{name} speaks of an earlier spec"),
                Some(found) => sentence(found),
                None => format!("there is no condition {name} yet"),
            },
            Self::Field(path, _) => {
                let found: Vec<String> = path.find(object).into_iter().map(as_text).collect();
                if found.is_empty() {
                    "the field is not there".to_owned()
                } else {
                    format!("it is {}", found.join(" "))
                }
            }
            Self::Delete if !is_going(object) => "nobody has asked for its deletion".to_owned(),
            Self::Delete => blocker(object),
            Self::Create => "it does not exist".to_owned(),
        }
    }
}

fn is_going(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// A condition that speaks of an earlier generation says nothing of the spec that is there now.
fn is_stale(object: &Value, condition: &Value) -> bool {
    let observed =
        condition["observedGeneration"].as_i64().or(object["status"]["observedGeneration"].as_i64());
    let current = object["metadata"]["generation"].as_i64();
    observed.zip(current).is_some_and(|(observed, current)| observed < current)
}

fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case(name)))
}

fn sentence(condition: &Value) -> String {
    let word = |field: &str| condition[field].as_str().unwrap_or_default();
    let mut text = format!("{} is {}", word("type"), word("status"));
    for part in [word("reason"), word("message")].into_iter().filter(|part| !part.is_empty()) {
        text.push_str(": ");
        text.push_str(part);
    }
    text
}

/// Why an object is still there: its own words, else its finalizers.
pub(crate) fn blocker(object: &Value) -> String {
    let ready = condition(object, "Ready");
    let own = ready.filter(|c| c["status"] != "True").map(sentence);
    // What is ready until it goes says since when it shall what it waits for.
    let message = || ready.filter(|c| is_going(object) && !is_stale(object, c))?["message"].as_str();
    let waits = || message().filter(|message| !message.is_empty()).map(str::to_owned);
    own.or_else(waits).unwrap_or_else(|| {
        let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        let names: Vec<&str> = finalizers.filter_map(Value::as_str).collect();
        if names.is_empty() { String::new() } else { format!("held by {}", names.join(", ")) }
    })
}

/// The moment that a person will not wait beyond, if there is one.
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn new(at: Option<Instant>) -> Self {
        Self(at)
    }

    /// The result of the work, or nothing if the moment comes first. Work that is done at once is never too late.
    pub(crate) async fn limit<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some(at) => {
                // Even a moment that has passed leaves time for one look.
                let left = at.saturating_duration_since(Instant::now()).max(Duration::from_millis(500));
                tokio::time::timeout(left, work).await.ok()
            }
            None => Some(work.await),
        }
    }
}

pub(crate) async fn run(session: &mut Session<'_>, args: &Wait) -> Result<(), Failure> {
    let goal = Goal::parse(&args.goal)?;
    let items = match (args.files.files.is_empty(), args.targets.is_empty()) {
        (false, true) => session.items_of_files(&args.files.files, args.files.recursive).await?,
        (true, false) => session.items_of_words(&args.targets, &args.selection, args.all).await?,
        (false, false) => return Err(Failure::usage("files and named objects exclude each other")),
        (true, true) => return Err(Failure::usage("nothing is named").try_this("write KIND/NAME or -f FILE")),
    };
    if items.is_empty() && goal != Goal::Delete {
        return Err(Failure::new(Exit::NotFound, "no objects were found to wait for"));
    }
    let deadline = Deadline::new(Some(Instant::now() + args.timeout));
    for item in &items {
        match one(session, item, &goal, &deadline).await {
            Ok(()) => session.say(format_args!("{} condition met", item.label()))?,
            Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
            Err(failure) => session.report(&failure),
        }
        session.terminal.out.flush()?;
    }
    Ok(())
}

async fn one(
    session: &mut Session<'_>,
    item: &Item,
    goal: &Goal,
    deadline: &Deadline,
) -> Result<(), Failure> {
    let mut last = Value::Null;
    let mut uid = None;
    let found = session.follow(item, |seen| {
        // A new object of the same name means that the one waited for is gone.
        let recreated = seen.is_some_and(|seen| {
            *uid.get_or_insert_with(|| seen["metadata"]["uid"].clone()) != seen["metadata"]["uid"]
        });
        if goal.met(seen) || (*goal == Goal::Delete && recreated) {
            return Some(true);
        }
        last = seen.cloned().unwrap_or_default();
        // What does not exist has no condition and will get none.
        (seen.is_none() && *goal != Goal::Create).then_some(false)
    });
    match deadline.limit(found).await {
        Some(Ok(true)) => Ok(()),
        Some(Ok(false)) => Err(Failure::new(Exit::NotFound, format!("{} does not exist", item.label()))),
        Some(Err(failure)) => Err(failure),
        None => {
            let what = format!("{}: waited too long", item.label());
            let (leaving, going) = (*goal == Goal::Delete, is_going(&last));
            let known = if leaving && going { cause(session, item).await } else { None };
            let failure = Failure::new(Exit::TimedOut, what);
            let failure = failure.because(known.unwrap_or_else(|| goal.shortfall(&last)));
            let verb = if leaving && !going { "delete" } else { "why" };
            Err(failure.try_this(format!("wharfline {verb} {}", session.words(item))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn goals_are_judged() {
        let object = json!({
            "metadata": { "generation": 2 },
            "status": {
                "phase": "Bound", "count": 3,
                "conditions": [
                    { "type": "Ready", "status": "True", "observedGeneration": 2 },
                    { "type": "Old", "status": "True", "observedGeneration": 1 },
                    { "type": "Placed", "status": "False" },
                ],
            },
        });
        for (goal, met) in [
            ("condition=Ready", true),
            ("condition=ready=true", true),
            ("condition=Ready=False", false),
            ("condition=Old", false),
            ("condition=Placed=False", true),
            ("condition=Missing", false),
            ("jsonpath={.status.phase}=Bound", true),
            ("jsonpath='{.status.phase}'=Bound", true),
            ("jsonpath={.status.phase}=\"Bound\"", true),
            (".status.phase", false),
            ("jsonpath=.status.phase=Bound", true),
            ("jsonpath={.status.count}=3", true),
            ("jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True", true),
            ("jsonpath={.status.phase}", true),
            ("jsonpath={.status.none}", false),
            ("create", true),
            ("delete", false),
        ] {
            let judged = Goal::parse(goal).map(|goal| goal.met(Some(&object)));
            assert_eq!(judged.unwrap_or(false), met, "{goal}");
        }
        assert!(Goal::Delete.met(None));
        assert!(!Goal::parse("condition=Ready").unwrap().met(None));
    }

    #[test]
    fn goals_that_mean_nothing_are_refused() {
        for goal in ["", "ready", "condition=", "jsonpath={.a}=", "jsonpath={.a[}", "condition"] {
            assert_eq!(Goal::parse(goal).map_err(|f| f.exit), Err(Exit::Usage), "{goal}");
        }
    }

    #[test]
    fn the_blocker_is_the_objects_own_word() {
        let waiting = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": "InUse", "message": "held by web-0" }] } });
        assert_eq!(blocker(&waiting), "Ready is False: InUse: held by web-0");
        let told = |seen: i64| {
            json!({
                "metadata": { "generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"] },
                "status": { "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Running", "message": "a volume needs it",
                    "observedGeneration": seen,
                }] },
            })
        };
        assert_eq!(blocker(&told(2)), "a volume needs it");
        assert_eq!(blocker(&told(1)), "held by a/b", "said before it was to go");
        assert_eq!(blocker(&json!({ "metadata": { "finalizers": ["a/b"] } })), "held by a/b");
        assert_eq!(blocker(&json!({})), "");
    }
}
