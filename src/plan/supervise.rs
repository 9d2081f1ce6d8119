//! The tasks of an allocation: start, stop, start again.
use std::time::Duration;

use super::{Next, Reason};
use crate::api::allocation::{AllocationPhase, RestartPolicy, TaskState};

/// What is wanted of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// It shall run as its policy says.
    Running,
    /// It shall be over.
    Stopped,
}

/// What is seen of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Process {
    /// Never started on this node.
    Absent,
    /// Its shim lives.
    Running,
    /// Asked to end, its shim lives.
    Stopping,
    /// No process is left, and it was told to end: that was not its own end, whatever its policy.
    Stopped,
    /// No process is left; whether it ended with 0.
    Exited {
        /// Whether the exit code was 0.
        ok: bool,
    },
    /// Its shim is gone without a word; processes may be left.
    Lost,
}

impl Process {
    /// Whether no process can be left.
    pub fn idle(self) -> bool {
        matches!(self, Self::Absent | Self::Stopped | Self::Exited { .. })
    }
}

/// Whether a task could be started now, its volumes and its pause aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// Nothing else is needed.
    Ready,
    /// Something has to be made first, such as the layers of its image, and nobody has begun to.
    Unprepared,
    /// That is under way, beside everything else.
    Preparing,
    /// So it is once more: the last try failed of this.
    Retrying(Obstacle),
    /// It cannot be, for now.
    Unusable(Obstacle),
}

/// What keeps a task from being started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// The node does not allow its runtime, or something of what it asks for.
    NotAllowed,
    /// The node lacks a program or a feature of the kernel.
    Missing,
    /// Its image, or something else that its container needs, cannot be used.
    Image,
}

impl Obstacle {
    /// What the task waits for.
    pub fn reason(self) -> Reason {
        match self {
            Self::NotAllowed => Reason::RuntimeNotAllowed,
            Self::Missing => Reason::RuntimeMissing,
            Self::Image => Reason::ImageUnusable,
        }
    }
}

/// What is seen of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The process.
    pub process: Process,
    /// Whether it is started again.
    pub policy: RestartPolicy,
    /// Every volume of the allocation is published and verified.
    pub volumes_ready: bool,
    /// Whether its runtime could start it.
    pub runtime: Readiness,
    /// The pause after a failure is over.
    pub pause_over: bool,
    /// It runs by something that is wanted otherwise by now.
    pub outdated: bool,
}

/// One thing to do with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Begin to make what its start needs; that goes on beside everything else.
    Prepare,
    /// Start it under a shim.
    Start,
    /// Start it again.
    Restart,
    /// Ask it to end.
    Stop,
    /// Kill whatever a lost shim left behind.
    Clear,
}

/// The next step for one task.
pub fn next(wanted: Wanted, seen: Seen) -> Next<Step> {
    match (wanted, seen.process) {
        (_, Process::Lost) => Next::Do(Step::Clear),
        (Wanted::Running, Process::Running) if seen.outdated => make_room(seen),
        (Wanted::Running, Process::Running)
        | (Wanted::Stopped, Process::Absent | Process::Stopped | Process::Exited { .. }) => Next::Converged,
        (Wanted::Stopped, Process::Running) => Next::Do(Step::Stop),
        // A task that is ending ends first: two of it never run at once.
        (Wanted::Stopped | Wanted::Running, Process::Stopping) => Next::Wait(Reason::TasksRunning),
        // Its pause is one after a start that failed without a trace of the task.
        (Wanted::Running, Process::Absent) => begin(seen, Step::Start),
        (Wanted::Running, process @ (Process::Stopped | Process::Exited { .. })) => {
            let again = match (process, seen.policy) {
                (Process::Exited { ok }, RestartPolicy::OnFailure) => !ok,
                (Process::Exited { .. }, RestartPolicy::Never) => false,
                _ => true,
            };
            if again { begin(seen, Step::Restart) } else { Next::Converged }
        }
    }
}

/// What becomes of a task that is to run by something else: it ends once that could be started, and not before.
fn make_room(seen: Seen) -> Next<Step> {
    match (seen.runtime, seen.pause_over) {
        (Readiness::Ready, _) => Next::Do(Step::Stop),
        (Readiness::Unprepared, true) => Next::Do(Step::Prepare),
        (Readiness::Unprepared, false) => Next::Wait(Reason::Backoff),
        (Readiness::Preparing, _) => Next::Wait(Reason::ImageNotReady),
        (Readiness::Unusable(obstacle) | Readiness::Retrying(obstacle), _) => Next::Wait(obstacle.reason()),
    }
}

/// The step that starts the task, once all that it needs is there. What has to be made is begun while its volumes are on
/// their way, and after a failure only with the next try: it may be another image by then.
fn begin(seen: Seen, step: Step) -> Next<Step> {
    match (seen.volumes_ready, seen.pause_over, seen.runtime) {
        (_, true, Readiness::Unprepared) => Next::Do(Step::Prepare),
        (false, _, _) => Next::Wait(Reason::VolumesNotReady),
        (true, false, _) => Next::Wait(Reason::Backoff),
        (true, true, Readiness::Preparing) => Next::Wait(Reason::ImageNotReady),
        // As long as nothing better is known, what was told of the last try stands.
        (true, true, Readiness::Unusable(obstacle) | Readiness::Retrying(obstacle)) => {
            Next::Wait(obstacle.reason())
        }
        (true, true, Readiness::Ready) => Next::Do(step),
    }
}

/// What the mounts of a volume ask of the tasks that mount it; of several, the last of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Healing {
    /// Nothing.
    None,
    /// None starts: the volume is dead, and cannot be mounted anew yet.
    Wait,
    /// They end, so that the volume can be mounted anew.
    End,
    /// They end, for the volume was taken from them.
    Taken,
}

/// What is wanted of a task while volumes of its are healed.
pub fn while_healing(wanted: Wanted, healing: Healing) -> Wanted {
    match (wanted, healing) {
        (Wanted::Running, Healing::None | Healing::Wait) => Wanted::Running,
        (Wanted::Stopped, _) | (Wanted::Running, Healing::End | Healing::Taken) => Wanted::Stopped,
    }
}

/// What this machine knows of a task of which it has no trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceless {
    /// Whether it is started again.
    pub policy: RestartPolicy,
    /// What was last said of the allocation.
    pub phase: Option<AllocationPhase>,
    /// What was last said of the task.
    pub state: Option<TaskState>,
    /// Its last exit code, if one was told.
    pub code: Option<i32>,
    /// What the trace was lost with.
    pub lost: Loss,
}

/// What a machine has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that is known of.
    None,
    /// What it knew: it has another disk.
    Disk,
    /// What was not on its disk yet when it went down: only that the task was about to be started is.
    Power,
}

/// How a task without a trace ended, if it had begun before the trace was lost: what shall run once runs once.
pub fn ended_before(seen: Traceless) -> Option<Process> {
    let told = match seen.phase {
        Some(AllocationPhase::Complete | AllocationPhase::Failed) => true,
        // It was told to end, which is no end of its own.
        Some(AllocationPhase::Stopping | AllocationPhase::Stopped) => false,
        Some(
            AllocationPhase::Running
            | AllocationPhase::Restarting
            | AllocationPhase::Pending
            | AllocationPhase::WaitingVolumes
            | AllocationPhase::Starting,
        ) => seen.lost != Loss::None,
        None => seen.lost == Loss::Power,
    };
    let begun = match seen.state {
        Some(
            TaskState::Running
            | TaskState::Stopping
            | TaskState::Restarting
            | TaskState::Exited
            | TaskState::Lost,
        ) => true,
        // What was told last may be older than the start.
        Some(TaskState::Pending) | None => seen.lost == Loss::Power,
    };
    let ok = seen.state == Some(TaskState::Exited) && seen.code == Some(0);
    let once = match seen.policy {
        RestartPolicy::Never => true,
        RestartPolicy::OnFailure => ok,
        RestartPolicy::Always => false,
    };
    (told && begun && once).then_some(Process::Exited { ok })
}

/// Where the allocation stands, from its tasks and volumes.
pub fn phase(
    wanted: Wanted,
    volumes_ready: bool,
    volumes_gone: bool,
    tasks: &[(Process, RestartPolicy)],
) -> AllocationPhase {
    let idle = tasks.iter().all(|(process, _)| process.idle());
    match wanted {
        Wanted::Stopped if idle && volumes_gone => {
            // It may have ended by itself before it was told to.
            let left_alone = running_phase(volumes_ready, tasks);
            if left_alone.terminal() { left_alone } else { AllocationPhase::Stopped }
        }
        Wanted::Stopped => AllocationPhase::Stopping,
        Wanted::Running => running_phase(volumes_ready, tasks),
    }
}

fn running_phase(volumes_ready: bool, tasks: &[(Process, RestartPolicy)]) -> AllocationPhase {
    let over = |(process, policy): &(Process, RestartPolicy)| match (process, policy) {
        (Process::Exited { ok }, RestartPolicy::Never) => Some(*ok),
        (Process::Exited { ok: true }, RestartPolicy::OnFailure) => Some(true),
        (Process::Exited { .. }, RestartPolicy::Always | RestartPolicy::OnFailure)
        | (Process::Absent | Process::Running | Process::Stopping | Process::Stopped | Process::Lost, _) => {
            None
        }
    };
    let ends: Vec<_> = tasks.iter().map(over).collect();
    let idle = tasks.iter().all(|(process, _)| process.idle());
    if !tasks.is_empty() && idle && ends.contains(&Some(false)) {
        return AllocationPhase::Failed;
    }
    if !tasks.is_empty() && ends.iter().all(|end| *end == Some(true)) {
        return AllocationPhase::Complete;
    }
    let started = tasks.iter().all(|(process, _)| *process != Process::Absent);
    // A task that ended long ago, under volumes that are not there now, has yet to be started again.
    if started && (volumes_ready || !idle) {
        let again = |task: &_| {
            over(task).is_none()
                && matches!(task, (Process::Stopped | Process::Exited { .. } | Process::Lost, _))
        };
        let up = !tasks.iter().any(again);
        return if up { AllocationPhase::Running } else { AllocationPhase::Restarting };
    }
    if volumes_ready { AllocationPhase::Starting } else { AllocationPhase::WaitingVolumes }
}

/// What is known of a plugin's instance that went without being released: by force, or with the whole store.
#[derive(Debug, Clone, Copy)]
pub struct Orphan {
    /// It makes node calls.
    pub serves_nodes: bool,
    /// Volumes of its plugin are up here, or may be.
    pub volumes_up: bool,
    /// Another instance of the plugin that makes node calls here is admitted and well.
    pub another_here: bool,
}

/// Whether nothing else can take down what the instance has brought up.
pub fn is_needed(orphan: Orphan) -> bool {
    orphan.serves_nodes && orphan.volumes_up && !orphan.another_here
}

/// What becomes of the tasks of an allocation that nobody wants any more: they run on while one of them is needed.
pub fn unwanted(needed: bool) -> Wanted {
    if needed { Wanted::Running } else { Wanted::Stopped }
}

/// A task that ran for so long starts again with the first pause, and a plugin is called steady.
pub const LONG_RUN: Duration = Duration::from_secs(60);

/// Whether a run of so many milliseconds went well enough for the pause before the next one to be the first again. A
/// plugin that was never ready within its `healthTimeout` ran badly, however long that is.
pub fn ran_well(milliseconds: i64, long: Duration, timed_out: bool) -> bool {
    is_long(milliseconds, long) && !timed_out
}

fn is_long(milliseconds: i64, long: Duration) -> bool {
    u128::try_from(milliseconds).is_ok_and(|ran| ran >= long.as_millis())
}

/// How many runs in a row did not go well, now that one more has ended. One that was asked to end says nothing against it.
pub fn bad_runs(before: u32, ran_well: bool, asked: bool) -> u32 {
    if ran_well || asked { 0 } else { before.saturating_add(1) }
}

/// After so many runs in a row that did not go well, a plugin is not called steady.
const UNSTEADY: u32 = 2;

/// What is known of how a plugin's process keeps running.
#[derive(Debug, Clone, Copy)]
pub struct Runs {
    /// How many runs in a row did not go well, as far as this daemon saw.
    pub bad: u32,
    /// For how many milliseconds it has been well now; none while it is not.
    pub well_for: Option<i64>,
    /// For how long it has to be.
    pub long: Duration,
    /// What was last said of it.
    pub said: Option<bool>,
}

/// Whether a plugin is steady: one that gets well and ends soon after, again and again, is not, though it is well in between.
/// None where nothing new is to be said. Runs from before it was steady last count no more: who asks forgets them then, with
/// [`has_run_on`].
pub fn is_steady(runs: Runs) -> Option<bool> {
    match (has_run_on(runs), runs.said) {
        (true, Some(false)) => Some(true),
        (true, Some(true) | None) => None,
        (false, _) => (runs.bad >= UNSTEADY).then_some(false),
    }
}

/// Whether it has been well for so long that what was before says nothing any more.
pub fn has_run_on(runs: Runs) -> bool {
    runs.well_for.is_some_and(|milliseconds| is_long(milliseconds, runs.long))
}

/// After how much more of being well a plugin is called steady again.
pub fn steady_in(well_for: i64, long: Duration) -> Duration {
    long.saturating_sub(Duration::from_millis(u64::try_from(well_for).unwrap_or(0)))
}

/// What the whole allocation wants of its tasks, given that one of them may have failed for good.
pub fn wanted(stopping: bool, tasks: &[(Process, RestartPolicy)]) -> Wanted {
    if stopping || culprit(tasks).is_some() { Wanted::Stopped } else { Wanted::Running }
}

/// The task that failed for good, and for which all others end.
pub fn culprit(tasks: &[(Process, RestartPolicy)]) -> Option<usize> {
    tasks.iter().position(|(process, policy)| {
        matches!((process, policy), (Process::Exited { ok: false }, RestartPolicy::Never))
    })
}

/// What is wanted of one of its tasks. One that serves a plugin runs on, whatever became of those beside it, until the
/// allocation is to stop: that is so only when no volume needs the plugin.
pub fn wanted_of(all: Wanted, serves: bool, stopping: bool) -> Wanted {
    match (all, serves, stopping) {
        (Wanted::Stopped, true, false) => Wanted::Running,
        (all, _, _) => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Obligation CO-PLUG-20.
    #[test]
    fn what_serves_a_plugin_is_ended_by_nothing_but_the_end_of_its_allocation() {
        let failed = [
            (Process::Running, RestartPolicy::Always),
            (Process::Exited { ok: false }, RestartPolicy::Never),
        ];
        for (stopping, serves, expected) in [
            (false, true, Wanted::Running),
            (false, false, Wanted::Stopped),
            (true, true, Wanted::Stopped),
            (true, false, Wanted::Stopped),
        ] {
            let all = wanted(stopping, &failed);
            assert_eq!(wanted_of(all, serves, stopping), expected, "stopping: {stopping}, serves: {serves}");
            assert_eq!(wanted_of(Wanted::Running, serves, false), Wanted::Running);
        }
    }

    /// Obligation CO-PLUG-15.
    #[test]
    fn a_plugin_that_was_never_ready_did_not_run_well() {
        for (ran, timed_out, well) in
            [(59_999, false, false), (60_000, false, true), (60_000, true, false), (600_000, true, false)]
        {
            assert_eq!(ran_well(ran, LONG_RUN, timed_out), well, "{ran} ms, timed out: {timed_out}");
        }
    }

    #[test]
    fn only_ends_of_its_own_after_a_short_run_are_counted() {
        for (before, ran_well, asked, expected) in
            [(0, false, false, 1), (1, false, false, 2), (5, true, false, 0), (5, false, true, 0)]
        {
            assert_eq!(bad_runs(before, ran_well, asked), expected, "{before} {ran_well} {asked}");
        }
    }

    #[test]
    fn a_plugin_that_ends_again_and_again_is_not_steady_before_it_ran_for_a_minute() {
        for (bad, well_for, said, expected) in [
            (0, None, None, None),
            (0, Some(600_000), None, None),
            // It may end once.
            (1, Some(0), None, None),
            (1, None, Some(true), None),
            (2, None, None, Some(false)),
            (2, Some(59_999), Some(true), Some(false)),
            (2, Some(60_000), Some(false), Some(true)),
            (2, Some(60_000), None, None),
            (2, Some(60_000), Some(true), None),
            // The daemon was started again: what its predecessor said stands until it has run.
            (0, None, Some(false), None),
            (1, Some(59_999), Some(false), None),
            (0, Some(60_000), Some(false), Some(true)),
        ] {
            let runs = Runs { bad, well_for, long: LONG_RUN, said };
            assert_eq!(is_steady(runs), expected, "{runs:?}");
        }
        for ran in [0, 1, 59_999] {
            let after = |well_for| {
                is_steady(Runs { bad: 9, well_for: Some(well_for), long: LONG_RUN, said: Some(false) })
            };
            assert_eq!(after(ran), Some(false));
            let left = i64::try_from(steady_in(ran, LONG_RUN).as_millis()).unwrap();
            assert_eq!(after(ran + left), Some(true), "{ran} ms");
        }
    }

    const PROCESSES: [Process; 7] = [
        Process::Stopped,
        Process::Absent,
        Process::Running,
        Process::Stopping,
        Process::Exited { ok: true },
        Process::Exited { ok: false },
        Process::Lost,
    ];
    const RUNTIMES: [Readiness; 7] = [
        Readiness::Ready,
        Readiness::Unprepared,
        Readiness::Preparing,
        Readiness::Retrying(Obstacle::Image),
        Readiness::Unusable(Obstacle::NotAllowed),
        Readiness::Unusable(Obstacle::Missing),
        Readiness::Unusable(Obstacle::Image),
    ];
    const POLICIES: [RestartPolicy; 3] =
        [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never];

    const SEEN: Seen = Seen {
        process: Process::Absent,
        policy: RestartPolicy::Always,
        volumes_ready: false,
        runtime: Readiness::Ready,
        pause_over: true,
        outdated: false,
    };

    #[test]
    fn what_runs_by_something_else_ends_once_the_other_could_be_started() {
        use Readiness::{Preparing, Ready, Retrying, Unprepared, Unusable};
        for (runtime, pause_over, expected) in [
            (Ready, true, Next::Do(Step::Stop)),
            (Ready, false, Next::Do(Step::Stop)),
            (Unprepared, true, Next::Do(Step::Prepare)),
            (Unprepared, false, Next::Wait(Reason::Backoff)),
            (Preparing, true, Next::Wait(Reason::ImageNotReady)),
            (Unusable(Obstacle::NotAllowed), true, Next::Wait(Reason::RuntimeNotAllowed)),
            (Retrying(Obstacle::Image), true, Next::Wait(Reason::ImageUnusable)),
        ] {
            let seen = Seen { process: Process::Running, runtime, pause_over, outdated: true, ..SEEN };
            assert_eq!(next(Wanted::Running, seen), expected, "{runtime:?}");
            assert_eq!(next(Wanted::Running, Seen { outdated: false, ..seen }), Next::Converged);
            assert_eq!(next(Wanted::Stopped, seen), Next::Do(Step::Stop));
        }
    }

    #[test]
    fn what_a_start_needs_is_made_beside_the_volumes_and_its_lack_is_told_after_theirs() {
        use Readiness::{Preparing, Ready, Retrying, Unprepared, Unusable};
        let wait = Next::Wait;
        for (volumes_ready, pause_over, runtime, expected) in [
            (false, true, Unprepared, Next::Do(Step::Prepare)),
            (true, true, Unprepared, Next::Do(Step::Prepare)),
            (true, false, Unprepared, wait(Reason::Backoff)),
            (false, false, Unprepared, wait(Reason::VolumesNotReady)),
            (false, true, Preparing, wait(Reason::VolumesNotReady)),
            (false, true, Unusable(Obstacle::Image), wait(Reason::VolumesNotReady)),
            (true, true, Preparing, wait(Reason::ImageNotReady)),
            (true, false, Preparing, wait(Reason::Backoff)),
            (false, true, Retrying(Obstacle::Image), wait(Reason::VolumesNotReady)),
            (true, false, Retrying(Obstacle::Image), wait(Reason::Backoff)),
            (true, true, Retrying(Obstacle::Image), wait(Reason::ImageUnusable)),
            (true, true, Retrying(Obstacle::Missing), wait(Reason::RuntimeMissing)),
            (true, true, Unusable(Obstacle::Image), wait(Reason::ImageUnusable)),
            (true, true, Unusable(Obstacle::Missing), wait(Reason::RuntimeMissing)),
            (true, true, Unusable(Obstacle::NotAllowed), wait(Reason::RuntimeNotAllowed)),
            (true, true, Ready, Next::Do(Step::Start)),
        ] {
            let seen = Seen { volumes_ready, runtime, pause_over, ..SEEN };
            assert_eq!(next(Wanted::Running, seen), expected, "{seen:?}");
            let ended = Seen { process: Process::Exited { ok: false }, ..seen };
            let again = if expected == Next::Do(Step::Start) { Next::Do(Step::Restart) } else { expected };
            assert_eq!(next(Wanted::Running, ended), again, "{ended:?}");
        }
    }

    #[test]
    fn a_task_that_waits_is_stopped_at_once_and_one_that_runs_is_not_prepared() {
        for runtime in RUNTIMES {
            let seen = Seen { runtime, volumes_ready: true, ..SEEN };
            assert_eq!(next(Wanted::Stopped, seen), Next::Converged, "{runtime:?}");
            for (process, expected) in [
                (Process::Running, Next::Converged),
                (Process::Stopping, Next::Wait(Reason::TasksRunning)),
                (Process::Lost, Next::Do(Step::Clear)),
            ] {
                assert_eq!(next(Wanted::Running, Seen { process, ..seen }), expected, "{runtime:?}");
            }
        }
    }

    #[test]
    fn every_state_converges() {
        for wanted in [Wanted::Running, Wanted::Stopped] {
            for process in PROCESSES {
                for policy in POLICIES {
                    for (bits, runtime) in (0..8_u8).flat_map(|bits| RUNTIMES.map(|runtime| (bits, runtime)))
                    {
                        let [volumes_ready, pause_over, outdated] = [1, 2, 4].map(|bit| bits & bit != 0);
                        let mut seen = Seen { process, policy, volumes_ready, runtime, pause_over, outdated };
                        let mut steps = 0;
                        loop {
                            match next(wanted, seen) {
                                Next::Do(Step::Prepare) => seen.runtime = Readiness::Preparing,
                                Next::Wait(Reason::ImageNotReady) => seen.runtime = Readiness::Ready,
                                Next::Wait(
                                    Reason::ImageUnusable
                                    | Reason::RuntimeMissing
                                    | Reason::RuntimeNotAllowed,
                                ) => seen.runtime = Readiness::Unprepared,
                                Next::Do(Step::Start | Step::Restart) => {
                                    (seen.process, seen.outdated) = (Process::Running, false);
                                }
                                Next::Do(Step::Stop) => seen.process = Process::Stopping,
                                Next::Do(Step::Clear) => seen.process = Process::Exited { ok: false },
                                Next::Wait(Reason::TasksRunning) => seen.process = Process::Stopped,
                                Next::Wait(Reason::VolumesNotReady) => seen.volumes_ready = true,
                                Next::Wait(_) => seen.pause_over = true,
                                Next::Converged => break,
                            }
                            steps += 1;
                            assert!(steps < 12, "{wanted:?} {process:?} {policy:?}");
                        }
                        assert!(wanted == Wanted::Running || seen.process.idle());
                    }
                }
            }
        }
    }

    #[test]
    fn an_orphan_runs_on_only_for_what_nothing_else_can_take_down() {
        for bits in 0..8_u8 {
            let [serves_nodes, volumes_up, another_here] = [1, 2, 4].map(|bit| bits & bit != 0);
            let needed = is_needed(Orphan { serves_nodes, volumes_up, another_here });
            assert_eq!(needed, bits == 3, "{bits:03b}");
        }
        // It is not started again: nobody knows how.
        for process in PROCESSES {
            let seen = Seen { process, policy: RestartPolicy::Never, ..SEEN };
            assert!(!matches!(
                next(unwanted(true), seen),
                Next::Do(Step::Start | Step::Restart | Step::Stop)
            ));
            assert_eq!(next(unwanted(false), seen) == Next::Converged, process.idle());
        }
    }

    #[test]
    fn no_task_starts_without_its_volumes_or_beside_itself() {
        for process in PROCESSES {
            for policy in POLICIES {
                let seen = Seen { process, policy, ..SEEN };
                assert!(!matches!(next(Wanted::Running, seen), Next::Do(Step::Start | Step::Restart)));
                let seen = Seen { volumes_ready: true, ..seen };
                if matches!(next(Wanted::Running, seen), Next::Do(Step::Start | Step::Restart)) {
                    assert!(process.idle(), "{process:?}");
                }
            }
        }
    }

    #[test]
    fn phases_tell_the_story() {
        use AllocationPhase as P;
        let run = |tasks: &[(Process, RestartPolicy)]| phase(Wanted::Running, true, false, tasks);
        assert_eq!(run(&[]), P::Running);
        // Nobody knows whether it runs: that is not running.
        for policy in POLICIES {
            assert_eq!(run(&[(Process::Lost, policy)]), P::Restarting, "{policy:?}");
            let beside = [(Process::Running, RestartPolicy::Always), (Process::Lost, policy)];
            assert_eq!(run(&beside), P::Restarting, "{policy:?}");
        }
        assert_eq!(phase(Wanted::Running, false, true, &[]), P::WaitingVolumes);
        assert_eq!(run(&[(Process::Running, RestartPolicy::Always)]), P::Running);
        let absent = (Process::Absent, RestartPolicy::Always);
        assert_eq!(run(&[absent]), P::Starting, "it waits for no volume");
        assert_eq!(run(&[(Process::Running, RestartPolicy::Always), absent]), P::Starting);
        assert_eq!(phase(Wanted::Running, false, true, &[absent]), P::WaitingVolumes);
        assert_eq!(run(&[(Process::Exited { ok: true }, RestartPolicy::Never)]), P::Complete);
        assert_eq!(run(&[(Process::Exited { ok: false }, RestartPolicy::Never)]), P::Failed);
        assert_eq!(run(&[(Process::Exited { ok: false }, RestartPolicy::Always)]), P::Restarting);
        let beside = [
            (Process::Running, RestartPolicy::Always),
            (Process::Exited { ok: true }, RestartPolicy::OnFailure),
        ];
        assert_eq!(run(&beside), P::Running, "one is done, the other runs on");
        let ended = [(Process::Exited { ok: false }, RestartPolicy::Always)];
        assert_eq!(
            phase(Wanted::Running, false, true, &ended),
            P::WaitingVolumes,
            "brought back after a down"
        );
        assert_eq!(
            phase(Wanted::Stopped, false, false, &[(Process::Exited { ok: true }, RestartPolicy::Never)]),
            P::Stopping
        );
        for (process, expected) in [
            (Process::Absent, P::Stopped),
            (Process::Stopped, P::Stopped),
            (Process::Exited { ok: true }, P::Complete),
            (Process::Exited { ok: false }, P::Failed),
        ] {
            let ended = phase(Wanted::Stopped, false, true, &[(process, RestartPolicy::Never)]);
            assert_eq!(ended, expected, "what ended by itself ended, though it is told to stop: {process:?}");
        }
        for policy in POLICIES {
            let told = [(Process::Stopped, policy)];
            assert_eq!(run(&told), P::Restarting, "{policy:?}: it was told to end, and is wanted again");
            assert_eq!(wanted(false, &told), Wanted::Running);
        }
    }

    #[test]
    fn what_shall_run_once_is_not_started_again_when_its_trace_is_lost() {
        use AllocationPhase as Phase;
        let told = |policy, phase, state, code, lost| {
            ended_before(Traceless { policy, phase: Some(phase), state: Some(state), code, lost })
        };
        let (ok, not_ok) = (Some(Process::Exited { ok: true }), Some(Process::Exited { ok: false }));
        for (policy, phase, state, code, lost, wanted) in [
            (RestartPolicy::Never, Phase::Running, TaskState::Running, None, Loss::Disk, not_ok),
            (RestartPolicy::Never, Phase::Running, TaskState::Exited, Some(0), Loss::Disk, ok),
            (RestartPolicy::Never, Phase::Running, TaskState::Exited, Some(3), Loss::Disk, not_ok),
            (RestartPolicy::Never, Phase::Running, TaskState::Pending, None, Loss::Disk, None),
            (RestartPolicy::OnFailure, Phase::Running, TaskState::Exited, Some(0), Loss::Disk, ok),
            (RestartPolicy::OnFailure, Phase::Running, TaskState::Running, None, Loss::Disk, None),
            (RestartPolicy::Always, Phase::Running, TaskState::Running, None, Loss::Disk, None),
            // A word of ours that our own disk does not bear out, though it is the same: `down` undid the rest.
            (RestartPolicy::Never, Phase::Running, TaskState::Running, None, Loss::None, None),
            (RestartPolicy::Never, Phase::Stopped, TaskState::Exited, Some(143), Loss::Disk, None),
            (RestartPolicy::Never, Phase::Stopping, TaskState::Stopping, None, Loss::Disk, None),
            // Not even that it runs was told before the power failed.
            (RestartPolicy::Never, Phase::Starting, TaskState::Pending, None, Loss::Power, not_ok),
            (RestartPolicy::Never, Phase::Running, TaskState::Running, None, Loss::Power, not_ok),
            (RestartPolicy::Never, Phase::Running, TaskState::Exited, Some(0), Loss::Power, ok),
            (RestartPolicy::Never, Phase::Stopped, TaskState::Exited, None, Loss::Power, None),
            (RestartPolicy::OnFailure, Phase::Running, TaskState::Running, None, Loss::Power, None),
            (RestartPolicy::Always, Phase::Running, TaskState::Running, None, Loss::Power, None),
            // Over is over, and the daemon may have been started again since.
            (RestartPolicy::Never, Phase::Failed, TaskState::Exited, None, Loss::None, not_ok),
            (RestartPolicy::Never, Phase::Complete, TaskState::Exited, Some(0), Loss::None, ok),
        ] {
            assert_eq!(
                told(policy, phase, state, code, lost),
                wanted,
                "{policy:?} {phase:?} {state:?} {lost:?}"
            );
        }
        let new = |lost| {
            ended_before(Traceless {
                policy: RestartPolicy::Never,
                phase: None,
                state: None,
                code: None,
                lost,
            })
        };
        assert_eq!(new(Loss::Disk), None, "it was never begun");
        assert_eq!(new(Loss::Power), not_ok);
    }
}
