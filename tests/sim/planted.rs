//! Proves that each check can turn red: one fault after the other is planted in the product (`src/planted.rs`), and must be
//! found with the violation that it is planted for, within its budget.
use std::collections::VecDeque;
use std::process::{Child, Command, ExitCode, Stdio};

use crate::runner::{DEADLINE, effects, killed_at, uptime};

/// How a fault is looked for.
#[derive(Clone, Copy)]
enum By {
    /// The kills at each effect of a life.
    Lives,
    /// At most so many seeds.
    Seeds(u64),
    /// At most so many seeds in which a second set of controllers runs all the time.
    Rivals(u64),
    /// At most so many seeds with several servers.
    Several(u64),
}

struct Fault {
    name: &'static str,
    /// The invariant that it breaks.
    breaks: &'static str,
    /// One of these must be said of it.
    said: &'static [&'static str],
    by: By,
    /// Which of the runs found it when it was last looked for: that one is tried first. A change of the histories moves it;
    /// then they are tried in their order, and what finds it is to be written here.
    last: u64,
}

const fn fault(name: &'static str, breaks: &'static str, said: &'static [&'static str], by: By) -> Fault {
    Fault { name, breaks, said, by, last: 1 }
}

impl Fault {
    const fn last(mut self, nth: u64) -> Self {
        self.last = nth;
        self
    }
}

const HELD: &[&str] = &["S1: ", "is attached to", "is held by", "published at another target"];

/// What is planted. Calls about one volume are kept apart by the daemon's queue and by their turns, and leaders agree on an
/// order beside the compare-and-swap: these are seen broken only when both are gone.
const FAULTS: &[Fault] = &[
    fault("grant-uncompared", "S1", HELD, By::Rivals(300)),
    fault("granted-beside-others", "S1", HELD, By::Seeds(100)),
    fault("taken-is-kept", "S1", &["S1: "], By::Seeds(200)).last(78),
    fault("closed-is-kept", "L1", &["L1: "], By::Seeds(200)).last(33),
    fault("second-writable", "S1", HELD, By::Seeds(300)).last(10),
    fault("deleted-in-use", "S2", &["S2: ", "is in use on"], By::Seeds(100)),
    fault("claim-unasked", "S2", &["S2: DeleteVolume"], By::Seeds(100)),
    fault("twin-is-own", "S2", &["S2: DeleteVolume", "L1: "], By::Seeds(100)),
    fault("kept-at-once", "S2", &["S2: DeleteVolume"], By::Seeds(100)).last(5),
    fault("idle-unasked", "S3", &["S3: "], By::Seeds(100)),
    fault("staged-unattached", "S4", &["is not attached to"], By::Seeds(100)),
    fault("unstage-skipped", "S4", &["is staged or published on", "S17: "], By::Seeds(100)),
    fault("context-lost", "S5", &["publish_context is not that of the attachment"], By::Seeds(100)),
    fault("calls-side-by-side", "S6", &["overlaps"], By::Seeds(100)),
    fault("host-replaced-at-once", "S6", &["overlaps"], By::Seeds(300)).last(21),
    fault("asked-is-released", "S6", &["overlaps"], By::Seeds(200)).last(13),
    fault("let-go-and-on", "S6", &["overlaps"], By::Seeds(400)).last(141),
    fault("directory-first", "S7", &["S7: "], By::Seeds(100)),
    fault("acknowledged-unsynced", "S8", &["S8: "], By::Seeds(100)).last(16),
    fault("another-name", "S8", &["rule 1: CreateVolume", ": Volume"], By::Seeds(100)).last(5),
    fault("doubt-is-no", "S9", &["S17: ", ": Volume", ": Attachment"], By::Seeds(100)).last(7),
    fault("staged-again", "S10", &["S10: "], By::Lives).last(216),
    fault(
        "failure-is-forgotten",
        "S11",
        &["published on this node", "directory", "mount ", "S17: "],
        By::Seeds(200),
    ),
    fault("told-before-the-kernel", "S12", &["S12: "], By::Seeds(200)),
    fault("gone-before-detach", "S17", &["S17: "], By::Seeds(100)),
    fault("call-before-intent", "rule 1", &["rule 1: NodePublish"], By::Seeds(100)),
    fault(
        "asked-before-said",
        "rule 1",
        &["rule 1: ControllerExpand", "rule 1: ControllerModify"],
        By::Seeds(100),
    ),
    fault("wake-up-lost", "L1", &["L1: "], By::Seeds(100)),
    fault("refusal-is-final", "L1", &["L1: "], By::Seeds(200)).last(5),
    fault("too-old-unsaid", "S13", &["S13: ", "L1: "], By::Seeds(100)).last(12),
    fault("changes-skipped", "S13", &["S13: "], By::Seeds(100)),
    fault("writes-for-nothing", "L1", &["writes while nothing happened"], By::Seeds(100)).last(8),
    fault("holder-kept", "L3", &["L3: "], By::Seeds(100)).last(10),
    fault("deletion-is-slow", "L7", &["L7: "], By::Seeds(100)).last(10),
    fault("answers-itself", "rule 10", &["a loop: "], By::Seeds(100)),
    fault("lost-events-unseen", "S13", &["S13: ", "L1: "], By::Several(200)).last(20),
    fault("repeated-events-told", "S13", &["S13: ", "L1: "], By::Several(200)).last(49),
];

/// Plants all of them, or the one of this name, one after the other.
pub fn all(only: Option<&str>) -> ExitCode {
    let start = uptime();
    let chosen: Vec<_> = FAULTS.iter().filter(|fault| only.is_none_or(|name| name == fault.name)).collect();
    let mut missed = 0;
    for fault in &chosen {
        let found = find(fault);
        let verdict = found.unwrap_or_else(|| {
            missed += 1;
            "NOT FOUND".to_owned()
        });
        println!("planted {:24} {:8} {verdict}", fault.name, fault.breaks);
    }
    println!("{} planted faults in {:.1} s; not found: {missed}", chosen.len(), uptime() - start);
    if missed == 0 && !chosen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn find(fault: &Fault) -> Option<String> {
    let seed = |n: u64| (format!("seed {n}"), vec!["--seed".to_owned(), n.to_string()]);
    let several = |n: &u64| (n / 8) % 2 == 1;
    let jobs: VecDeque<(String, Vec<String>)> = match fault.by {
        By::Seeds(most) => (1..=most).map(seed).collect(),
        By::Rivals(most) => (0..most).map(|n| seed(16 * n + 4)).collect(),
        By::Several(most) => {
            (1..).filter(several).take(usize::try_from(most).unwrap_or(0)).map(seed).collect()
        }
        By::Lives => {
            let count = u64::try_from(effects(None)?.len()).unwrap_or(0);
            let kill = |n: u64| (format!("kill {n}"), killed_at(n, None));
            (1..=count).map(kill).collect()
        }
    };
    first(fault, likeliest_first(jobs, fault.last))
}

/// The same runs, with the one in front that found it last.
fn likeliest_first(mut jobs: VecDeque<(String, Vec<String>)>, last: u64) -> VecDeque<(String, Vec<String>)> {
    let known = usize::try_from(last).ok().and_then(|nth| jobs.remove(nth.checked_sub(1)?));
    if let Some(job) = known {
        jobs.push_front(job);
    }
    jobs
}

/// Runs as many at a time as there are cores, until one says what it should.
fn first(fault: &Fault, mut jobs: VecDeque<(String, Vec<String>)>) -> Option<String> {
    let program = std::env::current_exe().expect("this program");
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut running: VecDeque<(String, Child)> = VecDeque::new();
    let mut tried = 0;
    loop {
        while running.len() < cores
            && let Some((name, arguments)) = jobs.pop_front()
        {
            let mut child = Command::new("timeout");
            child.arg(DEADLINE).arg(&program).args(&arguments).args(["--with", fault.name]);
            running.push_back((name, child.stdout(Stdio::piped()).spawn().expect("timeout is everywhere")));
        }
        let (name, child) = running.pop_front()?;
        tried += 1;
        let output = child.wait_with_output().expect("a child can be waited for");
        let text = String::from_utf8_lossy(&output.stdout);
        let says = |line: &&str| fault.said.iter().any(|said| line.contains(said));
        // The last line tells why; those before it are what happened.
        let why = text.rsplit_once("faults: ").map_or(&*text, |(_, why)| why);
        if !output.status.success()
            && let Some(line) = why.lines().find(says)
        {
            for (_, child) in running {
                let _ended = child.wait_with_output();
            }
            let line: String = line.chars().take(120).collect();
            return Some(format!("found by {name}, tried {tried}: {line}"));
        }
    }
}
