//! The script: what becomes of which calls. A value; which rule takes a call is decided in [`rules`](super::rules).
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};
use tonic::Code;

use super::contract::Contract;
use super::fault::{Faults, Place};
use super::wire::Lie;

/// gRPC's names of its codes, in their order.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// What a rule can say.
const FIELDS: [&str; 17] = [
    "name",
    "method",
    "id",
    "after",
    "every",
    "times",
    "probability",
    "delay",
    "delayAnswer",
    "repeat",
    "code",
    "message",
    "loseReply",
    "answerCode",
    "hang",
    "crash",
    "lie",
];
/// The fields of which a rule has one at most: what becomes of the call.
const ENDS: [&str; 6] = ["code", "loseReply", "answerCode", "hang", "crash", "lie"];
/// As many rules as a script may have.
const MOST_RULES: usize = 1000;

/// What becomes of which calls.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Where chance begins; none: anywhere.
    pub seed: Option<u64>,
    pub(super) rules: Vec<Rule>,
}

/// Everything that is wrong with a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ScriptError(Vec<String>);

/// One rule: which calls, how many of them, and what becomes of those.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    /// What it is called in the log.
    pub(super) name: Option<String>,
    /// Of its calls.
    pub(super) method: String,
    /// Of what they are about.
    pub(super) id: Option<String>,
    pub(super) when: When,
    pub(super) plan: Plan,
}

/// Which of the calls that a rule is about it takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct When {
    /// So many are let pass first.
    pub(super) after: u64,
    /// Then each of so many: the first, and so on.
    pub(super) every: u64,
    /// So many at most.
    pub(super) times: Option<u64>,
    /// Of those this share.
    pub(super) probability: Option<f64>,
}

/// What becomes of one call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Plan {
    /// Before the driver gets it.
    pub(super) delay: Duration,
    /// Before the caller gets the answer.
    pub(super) delay_answer: Duration,
    pub(super) repeat: Option<Repeat>,
    pub(super) end: End,
}

/// When the driver gets a call once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// When it has answered; the second answer counts.
    After,
    /// At the same time; the answer to the first counts.
    AtOnce,
}

/// How a call ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum End {
    /// As the driver says.
    #[default]
    Honest,
    /// With this; the driver never sees the call. An OK has the answer that the lies are, or an empty one.
    Instead(Code, String, Lies),
    /// The driver does it, and its answer is lost.
    Lost(Loss, String),
    /// The driver does it, and the answer is this.
    Answered(Code, String),
    /// Not at all: the driver never sees it, and nothing is said.
    Hang,
    /// The driver is killed.
    Crash(Moment),
    /// The driver does it, and the answer is another one.
    Lie(Lies),
}

/// How an answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The caller is told that the driver is not to be reached.
    Unavailable,
    /// The caller's connection ends, with all calls on it.
    Cut,
    /// Nothing is said.
    Silence,
}

/// When a driver is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// It never sees the call.
    Before,
    /// It has done it.
    After,
}

/// What is told instead of each call's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Lies {
    /// The answer as it is.
    #[default]
    None,
    /// An answer with nothing in it.
    Empty,
    /// By the path of the call.
    Fields(BTreeMap<String, Lie>),
}

impl Lies {
    /// What is told instead of an answer of this call; none if it cannot be understood.
    pub(super) fn tell(&self, method: &str, honest: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::None => Some(honest.to_vec()),
            Self::Empty => Some(Vec::new()),
            Self::Fields(lies) => lies.get(method)?.tell(honest),
        }
    }
}

impl Plan {
    /// Whether it has to know what the call's messages are: others than CSI's are passed over.
    pub(super) fn needs_contract(&self) -> bool {
        self.repeat.is_some() || !matches!(self.lies(), Lies::None)
    }

    /// What is told instead of the answer.
    pub(super) fn lies(&self) -> &Lies {
        match &self.end {
            End::Instead(_, _, lies) | End::Lie(lies) => lies,
            End::Honest | End::Lost(..) | End::Answered(..) | End::Hang | End::Crash(_) => &Lies::None,
        }
    }

    /// Whether the driver gets the call.
    pub(super) fn reaches_driver(&self) -> bool {
        !matches!(self.end, End::Instead(..) | End::Hang | End::Crash(Moment::Before))
    }

    /// In a word for each thing that it does.
    pub(super) fn words(&self) -> String {
        let mut words = Vec::new();
        if self.delay != Duration::ZERO {
            words.push(format!("delay {:?}", self.delay));
        }
        match self.repeat {
            Some(Repeat::After) => words.push("repeat After".to_owned()),
            Some(Repeat::AtOnce) => words.push("repeat AtOnce".to_owned()),
            None => {}
        }
        match &self.end {
            End::Honest => {}
            End::Instead(code, ..) => words.push(format!("code {}", code_name(*code))),
            End::Lost(Loss::Unavailable, _) => words.push("loseReply Unavailable".to_owned()),
            End::Lost(Loss::Cut, _) => words.push("loseReply Cut".to_owned()),
            End::Lost(Loss::Silence, _) => words.push("loseReply Silence".to_owned()),
            End::Answered(code, _) => words.push(format!("answerCode {}", code_name(*code))),
            End::Hang => words.push("hang".to_owned()),
            End::Crash(Moment::Before) => words.push("crash Before".to_owned()),
            End::Crash(Moment::After) => words.push("crash After".to_owned()),
            End::Lie(_) => words.push("lie".to_owned()),
        }
        if self.delay_answer != Duration::ZERO {
            words.push(format!("delayAnswer {:?}", self.delay_answer));
        }
        if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
    }
}

/// gRPC's name of a code.
pub(super) fn code_name(code: Code) -> &'static str {
    CODES.get(code as usize).copied().unwrap_or("UNKNOWN")
}

impl Script {
    /// What a script says.
    ///
    /// # Errors
    /// With each fault by its field.
    pub fn read(value: &Value) -> Result<Self, ScriptError> {
        let mut faults = Faults::default();
        let root = Place::root();
        let contract = match Contract::read() {
            Ok(contract) => contract,
            Err(error) => return Err(ScriptError(vec![format!("the contract of CSI: {error}")])),
        };
        let mut script = Self::default();
        let nothing = Map::new();
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Null => &nothing,
            _ => {
                faults.add(&root, "write an object with the field rules");
                &nothing
            }
        };
        for (name, value) in fields {
            let place = root.field(name);
            match (name.as_str(), value) {
                ("seed", value) => match value.as_u64() {
                    Some(seed) => script.seed = Some(seed),
                    None => faults.add(&place, "write a whole number, 0 or more"),
                },
                ("rules", Value::Array(rules)) if rules.len() <= MOST_RULES => {
                    let rules = rules.iter().enumerate();
                    let rule = |(at, rule)| read_rule(&contract, rule, &place.item(at), &mut faults);
                    script.rules = rules.filter_map(rule).collect();
                }
                ("rules", Value::Array(_)) => faults.add(&place, format!("{MOST_RULES} rules at most")),
                ("rules", _) => faults.add(&place, "write a list of rules"),
                _ => faults.add(&place, "there is no such field; a script has seed and rules"),
            }
        }
        match faults.into_lines() {
            none if none.is_empty() => Ok(script),
            lines => Err(ScriptError(lines)),
        }
    }

    /// How many rules it has.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// The fields of one rule.
struct Fields<'a> {
    values: &'a Map<String, Value>,
    place: &'a Place,
    faults: &'a mut Faults,
}

impl Fields<'_> {
    fn fault(&mut self, field: &str, what: &str) {
        self.faults.add(&self.place.field(field), what);
    }

    fn text(&mut self, field: &str) -> Option<String> {
        match self.values.get(field)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            _ => self.faults.none(&self.place.field(field), "write a text"),
        }
    }

    fn number(&mut self, field: &str, least: u64) -> Option<u64> {
        let value = self.values.get(field)?;
        match value.as_u64().filter(|number| *number >= least) {
            Some(number) => Some(number),
            None => {
                let what = format!("{value} is no such number; write a whole one, {least} or more");
                self.faults.none(&self.place.field(field), &what)
            }
        }
    }

    fn time(&mut self, field: &str) -> Option<Duration> {
        let value = self.values.get(field)?;
        match value.as_str().and_then(duration) {
            Some(time) => Some(time),
            None => {
                let what = format!("{value} is no time; write such as 500ms, 2s or 1m30s");
                self.faults.none(&self.place.field(field), &what)
            }
        }
    }

    fn code(&mut self, field: &str) -> Option<Code> {
        let value = self.values.get(field)?;
        let known = value.as_str().and_then(|name| CODES.iter().position(|code| *code == name));
        match known.and_then(|number| i32::try_from(number).ok()) {
            Some(number) => Some(Code::from_i32(number)),
            None => {
                let what = format!("{value} is no code of gRPC; write one of {}", CODES.join(", "));
                self.faults.none(&self.place.field(field), &what)
            }
        }
    }

    /// One of several words.
    fn word<T: Copy>(&mut self, field: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.values.get(field)?;
        match value.as_str().and_then(|word| words.iter().find(|(known, _)| *known == word)) {
            Some((_, meant)) => Some(*meant),
            None => {
                let words = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
                self.faults
                    .none(&self.place.field(field), &format!("{value} is not known here; write {words}"))
            }
        }
    }

    fn has(&self, field: &str) -> bool {
        self.values.contains_key(field)
    }
}

fn read_rule(contract: &Contract, value: &Value, place: &Place, faults: &mut Faults) -> Option<Rule> {
    let Value::Object(values) = value else {
        return faults.none(place, "write an object with the field method");
    };
    let mut fields = Fields { values, place, faults };
    for name in values.keys().filter(|name| !FIELDS.contains(&name.as_str())) {
        fields.fault(name, &format!("there is no such field; a rule has {}", FIELDS.join(", ")));
    }
    let method = match fields.text("method") {
        Some(method) => method.trim_start_matches('/').to_owned(),
        None if fields.has("method") => String::new(),
        None => {
            fields.fault("method", "is missing; write a call such as CreateVolume, or \"*\" for all");
            String::new()
        }
    };
    let known: Vec<&str> =
        contract.methods().filter(|(path, _)| is_of(&method, path)).map(|(path, _)| path).collect();
    if known.is_empty() && !method.is_empty() && !method.contains(['*', '/']) {
        let what = format!(
            "{method} is no call of CSI; write one as the contract does, such as CreateVolume, or, of another service, \
             its full name, such as my.package.Service/{method}"
        );
        fields.fault("method", &what);
    }
    let when = When {
        after: fields.number("after", 0).unwrap_or(0),
        every: fields.number("every", 1).unwrap_or(1),
        times: fields.number("times", 1),
        probability: probability(&mut fields),
    };
    let (name, id) = (fields.text("name"), fields.text("id"));
    let plan = Plan {
        delay: fields.time("delay").unwrap_or_default(),
        delay_answer: fields.time("delayAnswer").unwrap_or_default(),
        repeat: fields.word("repeat", &[("After", Repeat::After), ("AtOnce", Repeat::AtOnce)]),
        end: read_end(contract, &known, &mut fields).unwrap_or_default(),
    };
    contradictions(&plan, &mut fields);
    Some(Rule { name, method, id, when, plan })
}

fn probability(fields: &mut Fields<'_>) -> Option<f64> {
    let value = fields.values.get("probability")?;
    let share = value.as_f64().filter(|share| *share > 0.0 && *share <= 1.0);
    if share.is_none() {
        fields.fault("probability", &format!("{value} is no share; write a number above 0 and up to 1"));
    }
    share
}

fn read_end(contract: &Contract, known: &[&str], fields: &mut Fields<'_>) -> Option<End> {
    let said: Vec<&str> = ENDS.iter().copied().filter(|end| fields.has(end)).collect();
    let lies = read_lies(contract, known, fields);
    let message = fields.text("message");
    let end = match said.as_slice() {
        [] => {
            if message.is_some() {
                fields.fault(
                    "message",
                    "goes with code, answerCode or loseReply: Unavailable, and there is none",
                );
            }
            return None;
        }
        ["code"] | ["code", "lie"] => {
            let code = fields.code("code")?;
            if code != Code::Ok && said.len() > 1 {
                fields.fault("lie", "an answer needs code: OK; leave one of the two out");
            }
            End::Instead(code, message.clone().unwrap_or_else(|| "injected by a script".to_owned()), lies?)
        }
        ["loseReply"] => {
            let words = [("Unavailable", Loss::Unavailable), ("Cut", Loss::Cut), ("Silence", Loss::Silence)];
            let lost = message.clone().unwrap_or_else(|| "the answer was lost, by a script".to_owned());
            End::Lost(fields.word("loseReply", &words)?, lost)
        }
        ["answerCode"] => {
            let code = fields.code("answerCode")?;
            if code == Code::Ok {
                fields.fault("answerCode", "an answer with OK has fields; write lie instead");
            }
            End::Answered(code, message.clone().unwrap_or_else(|| "injected by a script".to_owned()))
        }
        ["hang"] => {
            if fields.values.get("hang") != Some(&Value::Bool(true)) {
                fields.fault("hang", "write true, or leave it out");
            }
            End::Hang
        }
        ["crash"] => {
            End::Crash(fields.word("crash", &[("Before", Moment::Before), ("After", Moment::After)])?)
        }
        ["lie"] => End::Lie(lies?),
        [first, others @ ..] => {
            for other in others {
                fields.fault(
                    other,
                    &format!("the rule has {first} already; a call has one end: leave one out"),
                );
            }
            return None;
        }
    };
    let told = matches!(end, End::Instead(..) | End::Answered(..) | End::Lost(Loss::Unavailable, _));
    if message.is_some() && !told {
        fields.fault("message", "goes with code, answerCode or loseReply: Unavailable; leave it out");
    }
    Some(end)
}

/// The lies, or nothing when they cannot be; [`Lies::None`] where there are none.
fn read_lies(contract: &Contract, known: &[&str], fields: &mut Fields<'_>) -> Option<Lies> {
    let place = fields.place.field("lie");
    match fields.values.get("lie") {
        None => Some(Lies::None),
        Some(Value::String(word)) if word == "Empty" => Some(Lies::Empty),
        Some(Value::Object(values)) => {
            let method = fields.values.get("method").and_then(Value::as_str).unwrap_or_default();
            if known.is_empty() || method.contains('*') {
                return fields
                    .faults
                    .none(&place, "fields are those of one answer: name one call of CSI in method");
            }
            let mut lies = BTreeMap::new();
            for path in known {
                let output = contract.method(path).map_or("", |method| method.output.as_str());
                let lie = Lie::read(contract, output, values, &place, fields.faults);
                lies.insert((*path).to_owned(), lie);
            }
            Some(Lies::Fields(lies))
        }
        Some(_) => {
            fields.faults.none(&place, "write the fields of the answer, or Empty for one that has none")
        }
    }
}

/// What cannot be together.
fn contradictions(plan: &Plan, fields: &mut Fields<'_>) {
    if plan.reaches_driver() {
        return;
    }
    if plan.repeat.is_some() {
        fields
            .fault("repeat", "the driver never sees this call, so there is nothing to repeat: leave it out");
    }
    let silent = matches!(plan.end, End::Hang | End::Crash(_));
    if plan.delay_answer != Duration::ZERO {
        let what =
            if silent { "nothing is answered: leave it out" } else { "the driver is not asked: write delay" };
        fields.fault("delayAnswer", what);
    }
}

/// Whether a pattern means the call at this path: by its full name, or by the last part of it.
pub(super) fn is_of(pattern: &str, path: &str) -> bool {
    let short = path.rsplit('/').next().unwrap_or(path);
    matches(pattern, path) || matches(pattern, short)
}

/// Whether a text is like a pattern, in which `*` stands for anything.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    true
}

/// `500ms`, `2s`, `1m30s`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut whole = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        let (number, behind) = rest.split_at_checked(digits)?;
        let letters =
            behind.len() - behind.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).len();
        let (unit, behind) = behind.split_at_checked(letters)?;
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let number: u64 = number.parse().ok()?;
        whole = whole.checked_add(Duration::from_millis(number.checked_mul(milliseconds)?))?;
        rest = behind;
    }
    (whole != Duration::ZERO).then_some(whole)
}

#[cfg(test)]
mod tests;
