//! What became of a mount that the record says is up: well, lost, stale, or silent; what people are told, and what is done.
//!
//! One look at a mount point gives one [`Look`]. What is done is up to who uses the volume: its `onStaleMount`.
use crate::api::allocation::{OnStaleMount, START_ANEW};
use crate::api::meta::Rung;

/// Which of a volume's mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mount {
    /// What NodeStage left at the staging path.
    Staging,
    /// What NodePublish left at the target path; a process gets a clone of it.
    Target,
    /// The publication's clone at a path of the host.
    AtHost,
}

/// What one look at a mount point showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Look {
    /// The file system that was verified there, and it answers.
    Well,
    /// Nothing is mounted there, or there is no such path.
    Nothing,
    /// Something else is there than was verified, and that is gone.
    Other,
    /// Something else is mounted over it.
    Covered,
    /// Its server has gone (ENOTCONN).
    NoServer,
    /// Its server does not know it any more (ESTALE).
    Unknown,
    /// It answers with I/O errors (EIO).
    Failing,
    /// Its server cannot be reached (EHOSTDOWN, ETIMEDOUT).
    Unreachable,
    /// Its device is not there any more, or was shut down.
    NoDevice,
    /// What is mounted there was deleted where it comes from.
    Deleted,
    /// It did not answer in time.
    Silent,
    /// It could not be looked at.
    Refused,
}

/// What that means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// As it should be.
    Well,
    /// The mount is gone; the file system may be well.
    Lost,
    /// The mount is there; the file system behind it is not.
    Stale,
    /// Nobody knows.
    Silent,
}

/// Who uses a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Users {
    /// Tasks of its allocation alone, each with a mount of its own.
    Tasks,
    /// Whoever goes by its path.
    Path,
}

impl Look {
    /// What it means.
    pub fn health(self) -> Health {
        match self {
            Self::Well => Health::Well,
            Self::Nothing | Self::Other | Self::Covered => Health::Lost,
            Self::NoServer
            | Self::Unknown
            | Self::Failing
            | Self::Unreachable
            | Self::NoDevice
            | Self::Deleted => Health::Stale,
            Self::Silent | Self::Refused => Health::Silent,
        }
    }

    /// Of two mounts of one publication the worse one decides: of a file system that is dead every mount is, and what is
    /// covered is not touched.
    fn weight(self) -> u8 {
        match (self, self.health()) {
            (_, Health::Well) => 0,
            (Self::Covered, _) => 2,
            (_, Health::Lost) => 1,
            (_, Health::Silent) => 3,
            (_, Health::Stale) => 4,
        }
    }

    /// What was seen, for people.
    fn words(self, path: &str) -> String {
        match self {
            Self::Well => format!("what is mounted at {path} answers"),
            Self::Nothing => format!("nothing is mounted at {path} any more"),
            Self::Other => format!("at {path} is not what was mounted there"),
            Self::Covered => format!("something else is mounted over what was mounted at {path}"),
            Self::NoServer => {
                format!(
                    "what is mounted at {path} has lost its server (ENOTCONN), as when a FUSE driver ends"
                )
            }
            Self::Unknown => {
                format!("what is mounted at {path} is unknown to its server by now (ESTALE)")
            }
            Self::Failing => format!("what is mounted at {path} answers with I/O errors (EIO)"),
            Self::Unreachable => format!("the server of what is mounted at {path} cannot be reached"),
            Self::NoDevice => format!("the device of what is mounted at {path} went away or was shut down"),
            Self::Deleted => {
                format!("what is mounted at {path} was deleted at its driver, with what was in it")
            }
            Self::Silent => format!("what is mounted at {path} does not answer"),
            Self::Refused => {
                format!("what is mounted at {path} cannot be looked at, which the kernel refuses")
            }
        }
    }
}

impl Health {
    /// One CamelCase word, unless all is well.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::Well => None,
            Self::Lost => Some("MountLost"),
            Self::Stale => Some("MountStale"),
            Self::Silent => Some("MountSilent"),
        }
    }

    /// What status may say of a rung that the record has like this. That a mount is gone does not make the rung Down: its
    /// reverse call is owed still.
    pub fn rung(self, recorded: Rung) -> Rung {
        match (self, recorded) {
            (Self::Lost | Self::Stale | Self::Silent, Rung::Up) => Rung::Unknown,
            (_, rung) => rung,
        }
    }

    /// Whether those who use it now are hurt. A task keeps its own mount when another is taken away; of a file system
    /// that is dead every mount is.
    pub fn hurts(self, users: Users) -> bool {
        match (self, users) {
            (Self::Well, _) | (Self::Lost, Users::Tasks) => false,
            (Self::Lost, Users::Path) | (Self::Stale | Self::Silent, _) => true,
        }
    }
}

/// What is done about one publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cure {
    /// It stays as it is.
    Nothing,
    /// It is published once more, under whatever runs: who has a mount of its own is well.
    Again,
    /// It comes down, once no process of its allocation is left, and goes up anew.
    Anew,
}

/// One user of a volume on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patient {
    /// What it asks for.
    pub policy: OnStaleMount,
    /// How its own mounts are, by the worst of them.
    pub look: Look,
    /// It wants the volume, and has it or may have it.
    pub up: bool,
}

/// What is done about each of those who use a volume here. What is staged dead cannot be staged anew under anybody: one
/// who asks for nothing keeps all as they are.
pub fn cures(staging: Health, patients: &[Patient]) -> Vec<Cure> {
    let alone: Vec<Cure> = patients.iter().map(|patient| cure(patient.policy, patient.look)).collect();
    let mut each = patients.iter().zip(&alone);
    let held = staging == Health::Stale && each.any(|(patient, cure)| patient.up && *cure != Cure::Anew);
    alone.into_iter().map(|cure| if held { Cure::Nothing } else { cure }).collect()
}

/// Whether what is staged is staged anew before anybody publishes from it.
pub fn stage_anew(staging: Health, wanted_by: impl IntoIterator<Item = OnStaleMount>) -> bool {
    staging == Health::Stale && wanted_by.into_iter().any(|policy| policy != OnStaleMount::None)
}

/// By itself. Of a mount that is silent nobody knows: it may answer yet. What somebody mounted over it is theirs, and the
/// way down would begin with it.
fn cure(policy: OnStaleMount, look: Look) -> Cure {
    match (policy, look, look.health()) {
        (OnStaleMount::None, _, _) | (_, Look::Covered, _) | (_, _, Health::Well | Health::Silent) => {
            Cure::Nothing
        }
        (OnStaleMount::Remount, _, Health::Lost) => Cure::Again,
        (OnStaleMount::Restart, _, Health::Lost)
        | (OnStaleMount::Remount | OnStaleMount::Restart, _, Health::Stale) => Cure::Anew,
    }
}

/// The mount that tells how all of them are; of equals, one at a path of the host, whose users are hurt where a task is not.
pub fn worst(mounts: impl IntoIterator<Item = (Mount, Look)>) -> Option<(Mount, Look)> {
    let unwell = mounts.into_iter().filter(|(_, look)| look.health() != Health::Well);
    unwell.max_by_key(|(mount, look)| (look.weight(), *mount == Mount::AtHost))
}

/// What counts after a look: one that could not be made changes nothing.
pub fn settle(before: Option<Look>, now: Option<Look>) -> Option<Look> {
    now.or(before)
}

/// Whether a mount has to be looked at because mounts came or went somewhere: it was not well, nobody has looked yet, or it
/// is not among those that are there. `there` is none where that cannot be told.
pub fn suspect(last: Option<Look>, there: Option<bool>) -> bool {
    last != Some(Look::Well) || there != Some(true)
}

/// What was seen, what it means for those who use it, and what to do, or what is done.
pub fn sentence(mount: Mount, look: Look, path: &str, (plugin, policy): (&str, OnStaleMount)) -> String {
    let seen = look.words(path);
    let then = match (look.health(), mount) {
        (_, Mount::Target | Mount::AtHost) if cure(policy, look) == Cure::Again => {
            "tasks that run keep their own mount of it; as onStaleMount says, it is published once more".to_owned()
        }
        (health, Mount::Target | Mount::AtHost) if cure(policy, look) == Cure::Anew => {
            let errors = "whoever uses it gets errors, running tasks, too; ";
            let hurt = if health.hurts(Users::Tasks) { errors } else { "tasks that run keep their own mount of it; " };
            format!(
                "{hurt}as onStaleMount says, its tasks are ended and it is mounted anew, once plugin \"{plugin}\" is \
                 well and nobody here holds the volume whose onStaleMount is None"
            )
        }
        (Health::Well, _) => return seen,
        (_, Mount::Target | Mount::AtHost) if look == Look::Covered => {
            "who goes by that path does not reach the volume; tasks that run keep their own mount of it; nothing is done \
             before that is unmounted"
                .to_owned()
        }
        (Health::Lost, Mount::Staging) => {
            "who has the volume keeps it; it is staged again before it is published again".to_owned()
        }
        (Health::Lost, Mount::Target) => {
            format!("tasks that run keep their own mount of it; {START_ANEW} to have it published anew")
        }
        (Health::Lost, Mount::AtHost) => {
            format!(
                "who goes by that path does not reach the volume; tasks that run keep their own mount of it; {START_ANEW} to \
                 have it published anew"
            )
        }
        (Health::Stale, Mount::Staging) if cure(policy, look) == Cure::Anew => format!(
            "whoever uses the volume here gets errors, running tasks, too; as onStaleMount says, their tasks are ended and \
             it is staged anew, once plugin \"{plugin}\" is well"
        ),
        (Health::Stale, Mount::Staging) => format!(
            "whoever uses the volume here gets errors, running tasks, too; once plugin \"{plugin}\" is well, stop all \
             that use it and start them again"
        ),
        (Health::Stale, Mount::Target | Mount::AtHost) => format!(
            "whoever uses it gets errors, running tasks, too; once plugin \"{plugin}\" is well, {START_ANEW}"
        ),
        (Health::Silent, _) => "whoever uses it waits; it is looked at again and again".to_owned(),
    };
    format!("{seen}; {then}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKS: [Look; 12] = [
        Look::Well,
        Look::Nothing,
        Look::Other,
        Look::Covered,
        Look::NoServer,
        Look::Unknown,
        Look::Failing,
        Look::Unreachable,
        Look::NoDevice,
        Look::Deleted,
        Look::Silent,
        Look::Refused,
    ];
    const MOUNTS: [Mount; 3] = [Mount::Staging, Mount::Target, Mount::AtHost];
    const HEALTHS: [Health; 4] = [Health::Well, Health::Lost, Health::Stale, Health::Silent];

    /// Look, its meaning, its word, and whether it hurts tasks, and those who go by the path.
    #[test]
    fn each_look_has_its_meaning() {
        let table = [
            (Look::Well, Health::Well, None, false, false),
            (Look::Nothing, Health::Lost, Some("MountLost"), false, true),
            (Look::Other, Health::Lost, Some("MountLost"), false, true),
            (Look::Covered, Health::Lost, Some("MountLost"), false, true),
            (Look::NoServer, Health::Stale, Some("MountStale"), true, true),
            (Look::Unknown, Health::Stale, Some("MountStale"), true, true),
            (Look::Failing, Health::Stale, Some("MountStale"), true, true),
            (Look::Unreachable, Health::Stale, Some("MountStale"), true, true),
            (Look::NoDevice, Health::Stale, Some("MountStale"), true, true),
            (Look::Deleted, Health::Stale, Some("MountStale"), true, true),
            (Look::Silent, Health::Silent, Some("MountSilent"), true, true),
            (Look::Refused, Health::Silent, Some("MountSilent"), true, true),
        ];
        assert_eq!(table.map(|row| row.0), LOOKS, "every look is in the table");
        for (look, health, word, tasks, path) in table {
            assert_eq!((look.health(), health.word()), (health, word), "{look:?}");
            assert_eq!((health.hurts(Users::Tasks), health.hurts(Users::Path)), (tasks, path), "{look:?}");
        }
    }

    #[test]
    fn what_is_not_well_is_never_up_and_never_down() {
        for health in HEALTHS {
            for rung in [Rung::Down, Rung::Unknown, Rung::Up] {
                let unsure = health != Health::Well && rung == Rung::Up;
                assert_eq!(
                    health.rung(rung),
                    if unsure { Rung::Unknown } else { rung },
                    "{health:?} {rung:?}"
                );
            }
        }
    }

    /// The cures by `Remount` and by `Restart`.
    #[test]
    fn each_policy_has_its_cures() {
        for look in LOOKS {
            let (remount, restart) = match (look, look.health()) {
                (Look::Covered, _) | (_, Health::Well | Health::Silent) => (Cure::Nothing, Cure::Nothing),
                (_, Health::Lost) => (Cure::Again, Cure::Anew),
                (_, Health::Stale) => (Cure::Anew, Cure::Anew),
            };
            let policies = [OnStaleMount::None, OnStaleMount::Remount, OnStaleMount::Restart];
            let found = policies.map(|policy| cure(policy, look));
            assert_eq!(found, [Cure::Nothing, remount, restart], "{look:?}");
            for (policy, cure) in policies.into_iter().zip(found) {
                let text = sentence(Mount::Target, look, "/v/target", ("p", policy));
                assert_eq!(text.contains("onStaleMount says"), cure != Cure::Nothing, "{text}");
                assert_eq!(text.contains("tasks are ended"), cure == Cure::Anew, "{text}");
                let staging = sentence(Mount::Staging, look, "/v/staging", ("p", policy));
                let dead = cure == Cure::Anew && look.health() == Health::Stale;
                assert_eq!(staging.contains("onStaleMount says"), dead, "{staging}");
                assert_eq!(
                    staging.contains("stop all"),
                    look.health() == Health::Stale && !dead,
                    "{staging}"
                );
            }
        }
    }

    #[test]
    fn the_worst_mount_tells_how_all_are() {
        use Mount::{AtHost, Target};
        for (target, at_host, wanted) in [
            (Look::Well, Look::Well, None),
            (Look::Well, Look::Nothing, Some(AtHost)),
            (Look::Nothing, Look::Well, Some(Target)),
            // Who goes by a path of the host is hurt.
            (Look::Nothing, Look::Other, Some(AtHost)),
            (Look::NoServer, Look::NoServer, Some(AtHost)),
            // Tasks that run get errors.
            (Look::NoServer, Look::Nothing, Some(Target)),
            (Look::NoDevice, Look::Covered, Some(Target)),
            (Look::NoServer, Look::Silent, Some(Target)),
            (Look::Silent, Look::Nothing, Some(Target)),
            (Look::Nothing, Look::Silent, Some(AtHost)),
            // What is covered is not touched.
            (Look::Covered, Look::Nothing, Some(Target)),
        ] {
            let found = worst([(Target, target), (AtHost, at_host)]);
            assert_eq!(found.map(|(mount, _)| mount), wanted, "{target:?} {at_host:?}");
            assert_eq!(worst([(AtHost, at_host), (Target, target)]), found, "in any order");
        }
    }

    #[test]
    fn under_one_who_asks_for_nothing_a_dead_stage_stays_and_so_do_all() {
        use OnStaleMount::{None, Remount, Restart};
        let patient = |policy, look, up| Patient { policy, look, up };
        let dead = |policy| patient(policy, Look::NoServer, true);
        for (staging, patients, wanted) in [
            (Health::Stale, [dead(Remount), dead(Restart)], [Cure::Anew, Cure::Anew]),
            (Health::Stale, [dead(Remount), dead(None)], [Cure::Nothing, Cure::Nothing]),
            (Health::Stale, [dead(Remount), patient(None, Look::Well, false)], [Cure::Anew, Cure::Nothing]),
            // It may be seen to be dead with the next look.
            (
                Health::Stale,
                [dead(Remount), patient(Restart, Look::Silent, true)],
                [Cure::Nothing, Cure::Nothing],
            ),
            (Health::Well, [dead(Remount), dead(None)], [Cure::Anew, Cure::Nothing]),
            (Health::Well, [patient(Remount, Look::Nothing, true), dead(None)], [Cure::Again, Cure::Nothing]),
        ] {
            assert_eq!(cures(staging, &patients), wanted, "{staging:?} {patients:?}");
        }
        for (staging, policies, anew) in [
            (Health::Stale, [None, Remount], true),
            (Health::Stale, [None, None], false),
            (Health::Lost, [Restart, Remount], false),
            (Health::Silent, [Restart, Remount], false),
        ] {
            assert_eq!(stage_anew(staging, policies), anew, "{staging:?} {policies:?}");
        }
    }

    #[test]
    fn a_look_that_could_not_be_made_changes_nothing() {
        for before in LOOKS.map(Some).into_iter().chain([None]) {
            assert_eq!(settle(before, None), before);
            for now in LOOKS {
                assert_eq!(settle(before, Some(now)), Some(now));
            }
        }
    }

    #[test]
    fn only_a_mount_that_was_well_and_is_still_there_is_beyond_suspicion() {
        for last in LOOKS.map(Some).into_iter().chain([None]) {
            for there in [None, Some(false), Some(true)] {
                let beyond = last == Some(Look::Well) && there == Some(true);
                assert_eq!(suspect(last, there), !beyond, "{last:?} {there:?}");
            }
        }
    }

    #[test]
    fn each_sentence_names_the_path_and_is_true_for_who_has_a_mount_of_its_own() {
        for mount in MOUNTS {
            for look in LOOKS {
                let text = sentence(mount, look, "/v/target", ("p", OnStaleMount::None));
                assert!(text.contains("/v/target") && !text.contains("onStaleMount"), "{text}");
                let kept = text.contains("tasks that run keep their own mount") || text.contains("keeps it");
                assert_eq!(kept, look.health() == Health::Lost, "{text}");
                let hurt = text.contains("gets errors, running tasks, too");
                assert_eq!(hurt, look.health() == Health::Stale, "{text}");
                assert_eq!(text.contains("\"p\""), look.health() == Health::Stale, "{text}");
            }
        }
    }
}
