//! Of which snapshots the blocks may be asked: of block volumes, and between two of one volume, the earlier one first
//! (CO-META-01).
use std::fmt;

use crate::api::Snapshot;
use crate::api::meta::{Rung, SecretRef, Time, VolumeMode};

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
            Self::Later(base, target) => write!(
                f,
                "Snapshot \"{base}\", which --since names, was cut after \"{target}\"; exchange them"
            ),
        }
    }
}

/// The picture that is meant: of a snapshot of several volumes that of the claim.
pub fn picture(snapshot: &Snapshot, claim: &str) -> Result<Picture, Refusal> {
    let metadata = &snapshot.metadata;
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let name = format!("{}/{}", part(&metadata.namespace), part(&metadata.name));
    let status = snapshot.status.clone().unwrap_or_default();
    let (Some(of), true) = (status.of, status.ready && status.exists == Some(Rung::Up)) else {
        return Err(Refusal::NotReady(name));
    };
    if metadata.deletion_timestamp.is_some() {
        return Err(Refusal::Leaving(name));
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(name: &str, status: Value) -> Snapshot {
        let mut all = json!({
            "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
            "metadata": { "name": name, "namespace": "n" }, "spec": {},
            "status": {
                "exists": "Up", "ready": true, "handle": format!("h-{name}"), "creationTime": "2026-01-02T00:00:00Z",
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
        for (status, claim, expected) in [
            (none(), "", is("u", "h-s")),
            (none(), "a", Err(Refusal::Single(name()))),
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
}
