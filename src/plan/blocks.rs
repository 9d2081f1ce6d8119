//! Of which snapshots the blocks may be asked: of block volumes, and between two of one volume, the earlier one first
//! (CO-META-01).
use std::fmt;

use crate::api::Snapshot;
use crate::api::meta::{Rung, SecretRef, Time, VolumeMode, is_of_another, may_be_stale};

/// One picture of one volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// The Snapshot, as `namespace/name`.
    pub name: String,
    /// The Plugin.
    pub plugin: String,
    /// The volume's uid; empty where nobody knows which it is of.
    pub volume: String,
    /// What the plugin calls the picture.
    pub handle: String,
    /// When it was cut, if that is known.
    pub cut: Option<Time>,
    /// The Secret of its calls.
    pub secret: Option<SecretRef>,
}

/// Why they may not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is being deleted.
    Leaving(String),
    /// It is not there, or not ready.
    NotReady(String),
    /// It is of a file system, whose blocks say nothing.
    Filesystem(String),
    /// It is of several volumes, with these claims, and it was not said of which, or of another one.
    Several(String, Vec<String>),
    /// It is of one volume alone.
    Single(String),
    /// Both are the same.
    Same(String),
    /// They are of two plugins.
    OtherPlugin(String, String),
    /// They are of two volumes.
    OtherVolume(String, String),
    /// The one that is to be the earlier one is the later one.
    Later(String, String),
    /// No node makes its calls yet.
    NoHost(String),
    /// The first node makes its calls, and the second one was asked.
    Elsewhere(String, String, String),
    /// The node that was asked makes the calls of one of this name, and not of this one.
    Unknown(String, String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaving(name) => write!(f, "Snapshot \"{name}\" is being deleted"),
            Self::NotReady(name) => {
                write!(
                    f,
                    "Snapshot \"{name}\" is not ready; wait until it is, `wharfline why` tells what is missing"
                )
            }
            Self::Filesystem(name) => write!(
                f,
                "Snapshot \"{name}\" is of a file system; only of block volumes (volumeMode: Block) are blocks told: \
                 compare its files instead"
            ),
            Self::Several(name, claims) => write!(
                f,
                "Snapshot \"{name}\" is of several volumes; name one of their claims with --claim: {}",
                claims.join(", ")
            ),
            Self::Single(name) => write!(f, "Snapshot \"{name}\" is of one volume; leave --claim out"),
            Self::Same(name) => write!(f, "--since names Snapshot \"{name}\" itself; name an earlier one"),
            Self::OtherPlugin(one, other) => {
                write!(
                    f,
                    "Snapshots \"{one}\" and \"{other}\" are of two plugins; name one of the same volume"
                )
            }
            Self::OtherVolume(one, other) => {
                write!(
                    f,
                    "Snapshots \"{one}\" and \"{other}\" are of two volumes; name one of the same volume"
                )
            }
            Self::NoHost(name) => {
                write!(f, "no node makes the calls of Snapshot \"{name}\" yet; `wharfline why` tells why")
            }
            Self::Elsewhere(name, host, own) => write!(
                f,
                "node \"{host}\" makes the calls of Snapshot \"{name}\", and this is node \"{own}\": ask there"
            ),
            Self::Unknown(name, own) => write!(
                f,
                "the daemon of node \"{own}\" does not know Snapshot \"{name}\": is it of another cluster? --data-dir \
                 says whose daemon is asked"
            ),
            Self::Later(base, target) => write!(
                f,
                "Snapshot \"{base}\", which --since names, was cut after \"{target}\"; exchange them"
            ),
        }
    }
}

/// A Snapshot's name, as `namespace/name`.
pub fn full_name(snapshot: &Snapshot) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", part(&snapshot.metadata.namespace), part(&snapshot.metadata.name))
}

/// The picture that is meant: of a snapshot of several volumes that of the claim.
pub fn picture(snapshot: &Snapshot, claim: &str) -> Result<Picture, Refusal> {
    let metadata = &snapshot.metadata;
    let name = full_name(snapshot);
    let status = snapshot.status.clone().unwrap_or_default();
    let said = status.is_said_own();
    let (Some(of), true) = (status.of, status.ready && status.exists == Some(Rung::Up)) else {
        return Err(Refusal::NotReady(name));
    };
    if metadata.deletion_timestamp.is_some() {
        return Err(Refusal::Leaving(name));
    }
    // What its plugin gave it may be another one's, and goes with that.
    let own = !is_of_another(&status.conditions) && !may_be_stale(&status.conditions);
    if snapshot.is_cut() && !(own && said) {
        return Err(Refusal::NotReady(name));
    }
    let (volume, mode, handle) = if of.members.is_empty() {
        if !claim.is_empty() {
            return Err(Refusal::Single(name));
        }
        (of.uid, of.volume_mode, status.handle)
    } else {
        let claims = || of.members.iter().map(|member| member.claim_name.clone()).collect();
        let Some(member) = of.members.iter().find(|member| member.claim_name == claim) else {
            return Err(Refusal::Several(name, claims()));
        };
        let Some(picture) = status.members.iter().find(|picture| picture.claim_name == claim) else {
            return Err(Refusal::NotReady(name));
        };
        (member.uid.clone(), Some(member.volume_mode), picture.handle.clone())
    };
    // Of one that was there before nobody knows: its plugin does.
    if mode == Some(VolumeMode::Filesystem) {
        return Err(Refusal::Filesystem(name));
    }
    Ok(Picture { name, plugin: of.plugin, volume, handle, cut: status.creation_time, secret: of.secret })
}

/// Whether what differs between two pictures can be asked. What is not known is the plugin's to judge.
pub fn differ(base: &Picture, target: &Picture) -> Result<(), Refusal> {
    let both = || (base.name.clone(), target.name.clone());
    if base.plugin != target.plugin {
        let (base, target) = both();
        return Err(Refusal::OtherPlugin(base, target));
    }
    if base.handle == target.handle {
        return Err(Refusal::Same(target.name.clone()));
    }
    if base.volume != target.volume && !base.volume.is_empty() && !target.volume.is_empty() {
        let (base, target) = both();
        return Err(Refusal::OtherVolume(base, target));
    }
    if let (Some(earlier), Some(later)) = (base.cut, target.cut)
        && earlier.0 > later.0
    {
        let (base, target) = both();
        return Err(Refusal::Later(base, target));
    }
    Ok(())
}

/// Whether this node answers: the one that makes the snapshot's calls, so that its deletion and a stream are in one place.
/// `known`: it is the very one that this node's cluster has.
pub fn here(name: &str, own: &str, host: Option<&str>, known: bool) -> Result<(), Refusal> {
    let (name, own) = (name.to_owned(), own.to_owned());
    match host {
        None => Err(Refusal::NoHost(name)),
        Some(host) if host != own => Err(Refusal::Elsewhere(name, host.to_owned(), own)),
        Some(_) if !known => Err(Refusal::Unknown(name, own)),
        Some(_) => Ok(()),
    }
}

/// How far an answer has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// All before this byte.
    pub to: i64,
    /// What the volume has, in bytes; absent before anything was told.
    pub capacity: Option<i64>,
    /// How often in a row it broke without anything new.
    pub vain: usize,
}

impl Progress {
    /// What is new of some bytes that come, from the first to the one after the last.
    pub fn take(&mut self, (start, end): (i64, i64)) -> Option<(i64, i64)> {
        if end <= self.to {
            return None;
        }
        let new = (start.max(self.to), end);
        (self.to, self.vain) = (end, 0);
        Some(new)
    }

    /// From which byte the question goes on. Whole is only what ends clean (CO-META-02): where all bytes are told and the end is
    /// not, it is asked for with the last byte that there is, for one behind it plugins refuse.
    pub fn from(&self) -> i64 {
        self.capacity.map_or(self.to, |capacity| self.to.min(capacity - 1)).max(0)
    }
}

/// What follows when a stream broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The question goes on from this byte.
    Again(i64),
    /// Whoever asked is told, and from which byte to ask on where that may help.
    Over(Option<i64>),
}

/// The next step: so many times in a row a question goes on that brought nothing new. `believed`: the stream did not contradict
/// itself; `repeat`: time alone may help.
pub fn after(progress: Progress, (believed, repeat): (bool, bool), tries: usize) -> After {
    match (believed && repeat, progress.vain < tries) {
        (true, true) => After::Again(progress.from()),
        (true, false) => After::Over(Some(progress.from())),
        (false, _) => After::Over(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(name: &str, status: Value) -> Snapshot {
        let mut all = json!({
            "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
            "metadata": { "name": name, "namespace": "n" }, "spec": {},
            "status": {
                "exists": "Up", "ready": true, "handle": format!("h-{name}"),
                "handlesChecked": [format!("h-{name}")], "creationTime": "2026-01-02T00:00:00Z",
                "of": { "plugin": "p", "volume": "v", "uid": "u", "handle": "vh", "volumeMode": "Block" },
            },
        });
        merge(&mut all, &status);
        serde_json::from_value(all).unwrap()
    }

    /// As a merge patch does.
    fn merge(into: &mut Value, patch: &Value) {
        match (into.as_object_mut(), patch.as_object()) {
            (Some(into), Some(patch)) => {
                for (key, value) in patch {
                    if value.is_null() {
                        into.remove(key);
                    } else {
                        merge(into.entry(key).or_insert(Value::Null), value);
                    }
                }
            }
            _ => *into = patch.clone(),
        }
    }

    /// Obligation CO-META-01.
    #[test]
    fn a_picture_is_of_a_block_volume_ready_and_stays() {
        let group = json!({ "status": {
            "of": { "uid": null, "volumeMode": null, "members": [
                { "claimName": "a", "volume": "v1", "uid": "u1", "handle": "vh1", "volumeMode": "Block" },
                { "claimName": "b", "volume": "v2", "uid": "u2", "handle": "vh2", "volumeMode": "Filesystem" },
                { "claimName": "c", "volume": "v3", "uid": "u3", "handle": "vh3", "volumeMode": "Block" },
            ] },
            "members": [{ "claimName": "a", "handle": "m1" }, { "claimName": "b", "handle": "m2" }],
        } });
        let name = || "n/s".to_owned();
        let claims = || ["a", "b", "c"].map(str::to_owned).to_vec();
        let of =
            |status: Value, claim: &str| picture(&snapshot("s", status), claim).map(|p| (p.volume, p.handle));
        let is = |volume: &str, handle: &str| Ok((volume.to_owned(), handle.to_owned()));
        let none = || json!({});
        let shared = |reason: &str| {
            let told = json!({ "type": "HandleShared", "status": "True", "reason": reason, "message": "" });
            json!({ "status": { "conditions": [told] } })
        };
        for (status, claim, expected) in [
            (none(), "", is("u", "h-s")),
            (none(), "a", Err(Refusal::Single(name()))),
            // Nothing was said of its handle, or that it is another's, or may be gone.
            (json!({ "status": { "handlesChecked": null } }), "", Err(Refusal::NotReady(name()))),
            (shared("HandleOfAnother"), "", Err(Refusal::NotReady(name()))),
            (shared("HandleEnded"), "", Err(Refusal::NotReady(name()))),
            (shared("HandleShared"), "", is("u", "h-s")),
            (
                json!({ "status": { "handlesChecked": null }, "spec": { "source": { "handle": "h-s" } } }),
                "",
                is("u", "h-s"),
            ),
            (json!({ "status": null }), "", Err(Refusal::NotReady(name()))),
            (json!({ "status": { "of": null } }), "", Err(Refusal::NotReady(name()))),
            (json!({ "status": { "ready": false } }), "", Err(Refusal::NotReady(name()))),
            (json!({ "status": { "exists": "Unknown" } }), "", Err(Refusal::NotReady(name()))),
            (json!({ "status": { "exists": "Down" } }), "", Err(Refusal::NotReady(name()))),
            (
                json!({ "metadata": { "deletionTimestamp": "2026-01-03T00:00:00Z" } }),
                "",
                Err(Refusal::Leaving(name())),
            ),
            (
                json!({ "status": { "of": { "volumeMode": "Filesystem" } } }),
                "",
                Err(Refusal::Filesystem(name())),
            ),
            // One that was there before: its plugin knows what it is of.
            (json!({ "status": { "of": { "volumeMode": null, "uid": null } } }), "", is("", "h-s")),
            (group.clone(), "a", is("u1", "m1")),
            (group.clone(), "b", Err(Refusal::Filesystem(name()))),
            (group.clone(), "c", Err(Refusal::NotReady(name()))),
            (group.clone(), "", Err(Refusal::Several(name(), claims()))),
            (group, "d", Err(Refusal::Several(name(), claims()))),
        ] {
            assert_eq!(of(status.clone(), claim), expected, "{status} {claim}");
        }
    }

    /// Obligation CO-META-01.
    #[test]
    fn two_pictures_are_of_one_volume_and_the_base_is_the_earlier_one() {
        let target = picture(&snapshot("t", json!({})), "").unwrap();
        let with = |change: fn(&mut Picture)| {
            let mut base = picture(&snapshot("b", json!({})), "").unwrap();
            change(&mut base);
            differ(&base, &target)
        };
        let (base, this) = (|| "n/b".to_owned(), || "n/t".to_owned());
        assert_eq!(with(|_| {}), Ok(()), "cut within one second");
        assert_eq!(with(|b| b.cut = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()))), Ok(()));
        assert_eq!(with(|b| b.cut = None), Ok(()), "its plugin knows");
        let later = with(|b| b.cut = Some(Time("2026-01-03T00:00:00Z".parse().unwrap())));
        assert_eq!(later, Err(Refusal::Later(base(), this())));
        assert_eq!(with(|b| b.handle = "h-t".into()), Err(Refusal::Same(this())));
        assert_eq!(with(|b| b.plugin = "q".into()), Err(Refusal::OtherPlugin(base(), this())));
        assert_eq!(with(|b| b.volume = "w".into()), Err(Refusal::OtherVolume(base(), this())));
        assert_eq!(with(|b| b.volume.clear()), Ok(()), "its plugin knows");
    }

    #[test]
    fn the_node_that_makes_the_calls_answers_and_no_other() {
        let of = |host, known| here("n/s", "a", host, known);
        let (name, own) = (|| "n/s".to_owned(), || "a".to_owned());
        for known in [false, true] {
            assert_eq!(of(None, known), Err(Refusal::NoHost(name())));
            assert_eq!(of(Some("b"), known), Err(Refusal::Elsewhere(name(), "b".to_owned(), own())));
        }
        assert_eq!(of(Some("a"), false), Err(Refusal::Unknown(name(), own())));
        assert_eq!(of(Some("a"), true), Ok(()));
    }

    /// Obligation CO-META-03.
    #[test]
    fn what_was_told_is_not_told_again_and_is_no_progress() {
        let mut progress = Progress { to: 10, capacity: Some(100), vain: 2 };
        for (comes, new, to, vain) in [
            ((0, 5), None, 10, 2),
            ((5, 10), None, 10, 2),
            ((8, 20), Some((10, 20)), 20, 0),
            ((20, 30), Some((20, 30)), 30, 0),
            ((90, 100), Some((90, 100)), 100, 0),
            ((99, 100), None, 100, 0),
        ] {
            assert_eq!((progress.take(comes), progress.to, progress.vain), (new, to, vain), "{comes:?}");
        }
    }

    /// Obligation CO-META-02.
    #[test]
    fn a_stream_that_broke_is_never_whole_and_goes_on_while_that_helps() {
        let at = |to, capacity, vain| Progress { to, capacity, vain };
        for (progress, believed, repeat, expected) in [
            (at(0, None, 0), true, true, After::Again(0)),
            (at(7, None, 2), true, true, After::Again(7)),
            (at(50, Some(100), 0), true, true, After::Again(50)),
            // All bytes, and not the end.
            (at(100, Some(100), 0), true, true, After::Again(99)),
            (at(130, Some(100), 0), true, true, After::Again(99)),
            (at(0, Some(0), 0), true, true, After::Again(0)),
            (at(50, Some(100), 3), true, true, After::Over(Some(50))),
            (at(100, Some(100), 3), true, true, After::Over(Some(99))),
            (at(50, Some(100), 0), true, false, After::Over(None)),
            (at(50, Some(100), 0), false, true, After::Over(None)),
            (at(50, Some(100), 0), false, false, After::Over(None)),
        ] {
            assert_eq!(after(progress, (believed, repeat), 3), expected, "{progress:?} {believed} {repeat}");
        }
    }
}
