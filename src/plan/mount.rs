//! One volume on one node: close, stage, publish, and back in mirror order.
//!
//! ```text
//!  attached ▶ Stage ▶ Publish(a) ▶ Publish(b)
//!  Close ▶ (no process left) Unpublish(a), Unpublish(b) ▶ Unstage ▶ Release
//! ```
//! Closing is written first and lasts: under a closed attachment nothing is staged or published again.
//! What two Volumes of one handle share is the staging path: the first to leave passes the unstaging on to the other, and
//! neither is released before both are down, for a detach by the one would be a detach of both.
//! What is to grow is expanded between the stage and the first publish, and if that does not succeed, behind what users wait for
//! (`plan::expand`).
//! What died while it was up comes down and goes up anew where its user asks for that (`plan::stale`).
//! Coming down goes before going up. A reverse call that is in doubt is finished before the forward call is made again.
use super::expand::Growth;
use super::stale::Cure;
use super::{Next, Reason};
use crate::api::meta::Rung;

/// What is wanted of the volume on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// It may be used.
    Open,
    /// It is being taken away, or its object is gone.
    Leaving,
}

/// One rung with the direction of the last attempt, which matters while it is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Level {
    /// Never attempted, or the reverse call was confirmed.
    Down,
    /// A forward call was attempted and not confirmed.
    Rising,
    /// Confirmed and verified.
    Up,
    /// A reverse call was attempted and not confirmed.
    Sinking,
}

impl Level {
    /// As status shows it.
    pub fn rung(self) -> Rung {
        match self {
            Self::Down => Rung::Down,
            Self::Rising | Self::Sinking => Rung::Unknown,
            Self::Up => Rung::Up,
        }
    }
}

/// One user of the volume here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Publication {
    /// Whether its allocation wants it now.
    pub wanted: bool,
    /// Where it stands.
    pub level: Level,
    /// Whether no process of the tasks that use it is left, as their shims reported.
    pub idle: bool,
    /// What is done about its mounts, if they are not well.
    pub cure: Cure,
    /// The step that it needs did not succeed and is not to be made yet: it holds up nobody else.
    pub held: bool,
}

/// What is seen of the volume here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Whether the attachment needs ControllerPublish.
    pub attach_required: bool,
    /// Whether the host says that it is attached.
    pub attached: Rung,
    /// Whether it needs NodeStage.
    pub stage_required: bool,
    /// The staging rung.
    pub staged: Level,
    /// What is staged is dead, and has to be staged anew.
    pub dead: bool,
    /// Closing is in the journal.
    pub closed: bool,
    /// The release was written for this attachment.
    pub released: bool,
    /// Its users, in any order.
    pub publications: Vec<Publication>,
    /// The attachments here of other Volumes with the same plugin and handle.
    pub others: Others,
    /// Whether it has to be brought to another size here.
    pub growth: Growth,
}

/// What other Volumes of the same plugin and handle have on this node. There should be none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Others {
    /// One of them owes an unstage of the same staging path.
    pub staged: bool,
    /// The Volume whose unstage of that path is in doubt.
    pub sinking: Option<String>,
    /// The Volume that is used here, may be, or has anything left.
    pub using: Option<String>,
}

/// One thing to do. Indices are into [`Seen::publications`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Write to the journal that this attachment is closed.
    Close,
    /// NodeStageVolume.
    Stage,
    /// NodePublishVolume, then verify.
    Publish(usize),
    /// NodeExpandVolume.
    Expand,
    /// NodeUnpublishVolume.
    Unpublish(usize),
    /// NodeUnstageVolume.
    Unstage,
    /// Write to the journal that the unstage is owed by another Volume of the same staging path.
    PassOn,
    /// Say that nothing of the volume is left here.
    Release,
}

/// The next step for one volume on this node.
pub fn next(attachment: Attachment, seen: &Seen) -> Next<Step> {
    if attachment == Attachment::Leaving && !seen.closed {
        return Next::Do(Step::Close);
    }
    match down(seen) {
        Next::Converged => {}
        Next::Do(step) => return Next::Do(step),
        // A user whose process lives holds up its own way down, not the way up of others.
        Next::Wait(reason) => {
            return match if seen.closed { Next::Converged } else { up(seen) } {
                Next::Do(step) => Next::Do(step),
                Next::Wait(_) | Next::Converged => Next::Wait(reason),
            };
        }
    }
    if !seen.closed {
        return up(seen);
    }
    if planted!("unstage-skipped") && seen.staged == Level::Up {
        return if seen.released { Next::Converged } else { Next::Do(Step::Release) };
    }
    match (seen.staged, seen.released, &seen.others.using) {
        (Level::Rising | Level::Up | Level::Sinking, _, _) => Next::Do(unstage(seen)),
        (Level::Down, true, _) => Next::Converged,
        (Level::Down, false, Some(volume)) => Next::Wait(Reason::HandleShared { volume: volume.clone() }),
        (Level::Down, false, None) => Next::Do(Step::Release),
    }
}

/// The unstage, unless somebody else is staged there and will make it.
fn unstage(seen: &Seen) -> Step {
    if seen.others.staged { Step::PassOn } else { Step::Unstage }
}

fn down(seen: &Seen) -> Next<Step> {
    let mut waiting = false;
    for (i, user) in seen.publications.iter().enumerate() {
        let anew = match user.level {
            Level::Up => user.cure == Cure::Anew,
            // It was not published from what is dead now, or is dead with it.
            Level::Rising => seen.stage_required && seen.staged == Level::Up && seen.dead,
            Level::Down | Level::Sinking => false,
        };
        let leaving = seen.closed || !user.wanted || user.level == Level::Sinking || anew;
        match (leaving, user.level, user.idle) {
            (false, _, _) | (true, Level::Down, _) => {}
            (true, Level::Rising | Level::Up | Level::Sinking, true) if !user.held => {
                return Next::Do(Step::Unpublish(i));
            }
            (true, Level::Rising | Level::Up | Level::Sinking, _) => waiting = true,
        }
    }
    if waiting { Next::Wait(Reason::TasksRunning) } else { Next::Converged }
}

fn up(seen: &Seen) -> Next<Step> {
    let rises = |p: &Publication| match p.level {
        Level::Down | Level::Rising => true,
        Level::Up => p.cure == Cure::Again,
        Level::Sinking => false,
    };
    let user = seen.publications.iter().position(|p| p.wanted && rises(p) && !p.held);
    let Some(user) = user else { return expand(seen) };
    if seen.attach_required
        && seen.attached != Rung::Up
        && !(planted!("staged-unattached") && seen.attached == Rung::Unknown)
    {
        return Next::Wait(Reason::NotAttached);
    }
    if !seen.stage_required {
        return Next::Do(Step::Publish(user));
    }
    match (seen.staged, &seen.others.sinking) {
        (Level::Up, _) if seen.dead && seen.publications.iter().all(|p| p.level == Level::Down) => {
            Next::Do(unstage(seen))
        }
        (Level::Up, _) if seen.dead => Next::Wait(Reason::StageDead),
        // Some file systems grow only while nobody uses them. Once: no user waits for what does not succeed.
        (Level::Up, _) if seen.growth == Growth::Owed && !seen.publications.iter().copied().any(is_up) => {
            Next::Do(Step::Expand)
        }
        (Level::Up, _) => Next::Do(Step::Publish(user)),
        (Level::Down | Level::Rising, Some(volume)) => {
            Next::Wait(Reason::HandleShared { volume: volume.clone() })
        }
        (Level::Down | Level::Rising, None) => Next::Do(Step::Stage),
        // Publishing on top of an unstage in doubt is how data was lost elsewhere (kubernetes issue 86360); and it may
        // be finished only while nobody else is published from it.
        (Level::Sinking, _) if seen.publications.iter().all(|p| p.level == Level::Down) => {
            Next::Do(unstage(seen))
        }
        // Cannot come about by these steps; staging again repeats what the user relies on.
        (Level::Sinking, _) => Next::Do(Step::Stage),
    }
}

fn is_up(publication: Publication) -> bool {
    publication.level == Level::Up
}

/// What is left to do about the size, once everybody who wants the volume has it.
fn expand(seen: &Seen) -> Next<Step> {
    let here = if seen.stage_required {
        seen.staged == Level::Up && !seen.dead
    } else {
        seen.publications.iter().any(|p| p.wanted && is_up(*p) && p.cure == Cure::Nothing)
    };
    match seen.growth {
        Growth::Owed | Growth::Tried if here => Next::Do(Step::Expand),
        Growth::Owed | Growth::Tried | Growth::Done | Growth::Refused => Next::Converged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: [Level; 4] = [Level::Down, Level::Rising, Level::Up, Level::Sinking];

    fn publications() -> Vec<Publication> {
        let mut all = Vec::new();
        for wanted in [false, true] {
            for level in LEVELS {
                for idle in [false, true] {
                    let usual = Publication { wanted, level, idle, cure: Cure::Nothing, held: false };
                    all.push(usual);
                    if wanted && level == Level::Up {
                        all.extend([Cure::Again, Cure::Anew].map(|cure| Publication { cure, ..usual }));
                    }
                }
            }
        }
        all
    }

    /// What others of the handle may have here.
    fn others() -> Vec<Others> {
        let other = || Some("other".to_owned());
        vec![
            Others::default(),
            Others { using: other(), ..Others::default() },
            Others { staged: true, using: other(), sinking: None },
            Others { staged: true, using: other(), sinking: other() },
        ]
    }

    /// Every state of a volume with two users.
    fn states() -> Vec<(Attachment, Seen)> {
        let mut all = Vec::new();
        for attachment in [Attachment::Open, Attachment::Leaving] {
            for bits in 0..32_u8 {
                for attached in [Rung::Down, Rung::Unknown, Rung::Up] {
                    for staged in LEVELS {
                        for a in publications() {
                            for b in publications() {
                                all.push((
                                    attachment,
                                    Seen {
                                        attach_required: bits & 1 != 0,
                                        stage_required: bits & 2 != 0,
                                        closed: bits & 4 != 0,
                                        released: bits & 8 != 0,
                                        dead: bits & 16 != 0,
                                        attached,
                                        staged,
                                        publications: vec![a, b],
                                        others: Others::default(),
                                        growth: Growth::Done,
                                    },
                                ));
                            }
                        }
                    }
                }
            }
        }
        all
    }

    fn after(step: Step, seen: &mut Seen) {
        match step {
            Step::Close => seen.closed = true,
            Step::Stage => (seen.staged, seen.dead) = (Level::Up, false),
            Step::Unstage | Step::PassOn => (seen.staged, seen.dead) = (Level::Down, false),
            Step::Publish(i) => {
                seen.publications[i] =
                    Publication { level: Level::Up, cure: Cure::Nothing, ..seen.publications[i] };
            }
            Step::Unpublish(i) => seen.publications[i].level = Level::Down,
            Step::Expand => seen.growth = Growth::Done,
            Step::Release => seen.released = true,
        }
    }

    #[test]
    fn every_state_converges_once_the_world_helps() {
        for (attachment, start) in states() {
            let mut seen = start.clone();
            let mut steps = 0;
            loop {
                match next(attachment, &seen) {
                    Next::Do(step) => after(step, &mut seen),
                    Next::Wait(Reason::NotAttached) => seen.attached = Rung::Up,
                    // Those who hold it leave.
                    Next::Wait(Reason::StageDead) => seen.dead = false,
                    Next::Wait(_) => seen.publications.iter_mut().for_each(|p| p.idle = true),
                    Next::Converged => break,
                }
                steps += 1;
                assert!(steps < 16, "{attachment:?} {start:?}");
            }
            if seen.closed {
                assert!(seen.released && seen.staged == Level::Down, "{start:?}");
                assert!(seen.publications.iter().all(|p| p.level == Level::Down), "{start:?}");
            } else {
                assert!(
                    seen.publications
                        .iter()
                        .all(|p| p.level == if p.wanted { Level::Up } else { Level::Down }),
                    "{start:?}"
                );
            }
        }
    }

    #[test]
    fn no_step_breaks_the_mirror_order() {
        for (attachment, seen) in states() {
            let Next::Do(step) = next(attachment, &seen) else { continue };
            let none_up = seen.publications.iter().all(|p| p.level == Level::Down);
            match step {
                Step::Unstage => assert!(none_up, "unstage under a user: {seen:?}"),
                Step::PassOn => panic!("nobody to pass it on to: {seen:?}"),
                Step::Release => assert!(none_up && seen.staged == Level::Down, "{seen:?}"),
                Step::Unpublish(i) => {
                    assert!(seen.publications[i].idle, "unpublish under a process: {seen:?}");
                }
                Step::Stage => assert!(!seen.closed && (!seen.attach_required || seen.attached == Rung::Up)),
                Step::Publish(i) => {
                    assert!(
                        !seen.closed && seen.publications[i].wanted && attachment == Attachment::Open,
                        "{seen:?}"
                    );
                    assert!(!seen.stage_required || seen.staged == Level::Up && !seen.dead, "{seen:?}");
                    assert!(!seen.attach_required || seen.attached == Rung::Up, "{seen:?}");
                }
                Step::Close => assert!(attachment == Attachment::Leaving),
                Step::Expand => panic!("nothing is owed: {seen:?}"),
            }
        }
    }

    #[test]
    fn an_expansion_is_tried_once_before_users_and_then_behind_them_and_holds_up_nothing() {
        for (attachment, done) in states() {
            let before = next(attachment, &done);
            let here = done.stage_required && done.staged == Level::Up && !done.dead
                || !done.stage_required
                    && done.publications.iter().any(|p| p.wanted && is_up(*p) && p.cure == Cure::Nothing);
            for growth in [Growth::Owed, Growth::Tried, Growth::Refused] {
                let seen = Seen { growth, ..done.clone() };
                let nobody = done.stage_required && !done.publications.iter().copied().any(is_up);
                let wanted = match (&before, growth) {
                    (Next::Converged, Growth::Owed | Growth::Tried) if here && !done.closed => {
                        Next::Do(Step::Expand)
                    }
                    (Next::Do(Step::Publish(_)), Growth::Owed) if nobody => Next::Do(Step::Expand),
                    (same, _) => same.clone(),
                };
                let step = next(attachment, &seen);
                // Who waits for a process to end waits for that, whether or not there is something to expand meanwhile.
                let meanwhile = growth == Growth::Owed && nobody || growth != Growth::Refused && here;
                let same = before == Next::Wait(Reason::TasksRunning)
                    && (step == before || step == Next::Do(Step::Expand) && meanwhile && !done.closed);
                assert!(step == wanted || same, "{attachment:?} {seen:?}: {step:?}, not {wanted:?}");
            }
        }
    }

    #[test]
    fn a_user_whose_step_does_not_succeed_holds_up_no_other() {
        for (attachment, seen) in states() {
            let Next::Do(Step::Publish(i) | Step::Unpublish(i)) = next(attachment, &seen) else {
                continue;
            };
            let mut held = seen.clone();
            held.publications[i].held = true;
            match next(attachment, &held) {
                Next::Do(Step::Publish(j) | Step::Unpublish(j)) => assert_ne!(i, j, "{seen:?}"),
                // Neither is anything torn down beneath it.
                Next::Do(Step::Unstage | Step::PassOn | Step::Release) => {
                    assert_eq!(seen.publications[i].level, Level::Down, "{seen:?}");
                }
                Next::Do(Step::Close | Step::Stage | Step::Expand) | Next::Wait(_) | Next::Converged => {}
            }
            // What the other needs is what it would need alone.
            let mut alone = seen.clone();
            alone.publications.remove(i);
            let other = |step: Next<Step>| match step {
                Next::Do(Step::Publish(_)) => Some("publish"),
                Next::Do(Step::Unpublish(_)) => Some("unpublish"),
                Next::Do(
                    Step::Close | Step::Stage | Step::Unstage | Step::PassOn | Step::Release | Step::Expand,
                )
                | Next::Wait(_)
                | Next::Converged => None,
            };
            if let Some(wanted) = other(next(attachment, &alone))
                && seen.staged != Level::Sinking
                && !seen.dead
            {
                assert_eq!(other(next(attachment, &held)), Some(wanted), "{attachment:?} {seen:?}");
            }
        }
    }

    #[test]
    fn nothing_is_called_for_what_is_in_place() {
        let cure = Cure::Nothing;
        let user = Publication { wanted: true, level: Level::Up, idle: false, cure, held: false };
        let seen = Seen {
            attach_required: true,
            attached: Rung::Unknown, // a new host has not spoken yet: the mount is not touched
            stage_required: true,
            staged: Level::Up,
            // Nobody asked for anything to be done about it.
            dead: true,
            closed: false,
            released: false,
            publications: vec![user],
            others: Others::default(),
            growth: Growth::Done,
        };
        assert_eq!(next(Attachment::Open, &seen), Next::Converged);
    }

    #[test]
    fn under_another_volume_of_the_handle_nothing_is_unstaged_or_released() {
        for (attachment, alone) in states() {
            for others in others() {
                let seen = Seen { others: others.clone(), ..alone.clone() };
                match (next(attachment, &seen), next(attachment, &alone)) {
                    (Next::Do(Step::Unstage), _) => assert!(!others.staged, "{seen:?}"),
                    (Next::Do(Step::PassOn), before) => {
                        assert!(others.staged && before == Next::Do(Step::Unstage), "{seen:?}");
                    }
                    (Next::Do(Step::Release), _) => assert_eq!(others.using, None, "{seen:?}"),
                    (Next::Do(Step::Stage), _) => {
                        assert!(others.sinking.is_none() || seen.staged == Level::Sinking, "{seen:?}");
                    }
                    // Instead of a step that the other forbids; or as it would be without it.
                    (Next::Wait(_), Next::Do(before)) => {
                        assert!(matches!(before, Step::Release | Step::Stage), "{seen:?}");
                    }
                    (same, before) => assert_eq!(same, before, "{seen:?}"),
                }
            }
        }
    }
}
