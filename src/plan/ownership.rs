//! Who gives a volume's files to the group that its claim names.
use crate::api::meta::{Capability, VolumeMode};
use crate::api::plugin::FsGroupPolicy;

/// What the answer depends on.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The group, if one is wanted.
    pub group: Option<u32>,
    /// The driver is told the group, for it mounted volumes for one when this was first mounted here: VOLUME_MOUNT_GROUP of
    /// its node service.
    pub mounts_for_group: bool,
    /// It says so still; another version of it may be there by now.
    pub says_so: bool,
    /// What the Plugin says of it.
    pub policy: FsGroupPolicy,
    /// How the volume is used.
    pub capability: &'a Capability,
    /// Whether this user only reads.
    pub read_only: bool,
}

/// Who gives the files to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Giver {
    /// There is nothing to give.
    Nobody,
    /// The driver, which is told the group; then nobody else touches an owner (CO-GEN-19).
    Driver,
    /// The node, after the volume was published.
    Node(u32),
    /// Nobody, although a group is wanted; why, in words that follow "because".
    Withheld(&'static str),
}

/// Who gives the files to the group.
pub fn giver(facts: Facts<'_>) -> Giver {
    let Some(group) = facts.group.filter(|_| facts.capability.volume_mode == VolumeMode::Filesystem) else {
        return Giver::Nobody;
    };
    match (facts.mounts_for_group, facts.says_so) {
        (true, true) => return Giver::Driver,
        // What it is told stays the same until the volume is down here, and nobody else touches an owner meanwhile.
        (true, false) => {
            return Giver::Withheld("its driver does not say any more that it mounts volumes for a group");
        }
        (false, _) => {}
    }
    // Who only reads has no right to change anything, and knows it.
    if facts.read_only || facts.capability.access_mode.read_only() {
        return Giver::Nobody;
    }
    match facts.policy {
        FsGroupPolicy::None => Giver::Withheld("spec.fsGroupPolicy of its Plugin is None"),
        FsGroupPolicy::File => Giver::Node(group),
        FsGroupPolicy::ReadWriteOnceWithFSType if !facts.capability.access_mode.single_node() => {
            Giver::Withheld("several nodes may have it, and spec.fsGroupPolicy of its Plugin is not File")
        }
        FsGroupPolicy::ReadWriteOnceWithFSType if facts.capability.fs_type.is_empty() => {
            Giver::Withheld("its class names no fsType, and spec.fsGroupPolicy of its Plugin is not File")
        }
        FsGroupPolicy::ReadWriteOnceWithFSType => Giver::Node(group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::meta::AccessMode;

    /// Scenario B82.
    #[test]
    fn files_are_given_only_where_the_policy_says_so() {
        use AccessMode::{MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeReaderOnly, SingleNodeWriter};
        use FsGroupPolicy::{File, None as Never, ReadWriteOnceWithFSType as Usual};
        for (policy, access_mode, fs_type, given) in [
            (Usual, SingleNodeWriter, "ext4", true),
            (Usual, SingleNodeWriter, "", false),
            (Usual, MultiNodeMultiWriter, "ext4", false),
            (Usual, SingleNodeReaderOnly, "ext4", false),
            (File, MultiNodeReaderOnly, "ext4", false),
            (File, SingleNodeWriter, "", true),
            (File, MultiNodeMultiWriter, "", true),
            (Never, SingleNodeWriter, "ext4", false),
        ] {
            let capability = Capability {
                access_mode,
                volume_mode: VolumeMode::Filesystem,
                fs_type: fs_type.to_owned(),
                mount_options: Vec::new(),
            };
            let facts = Facts {
                group: Some(7),
                mounts_for_group: false,
                says_so: true,
                policy,
                capability: &capability,
                read_only: false,
            };
            let case = format!("{policy:?} {access_mode:?} {fs_type:?}");
            let found = giver(facts);
            let reads = access_mode.read_only();
            let as_wanted = match found {
                Giver::Node(group) => given && group == 7,
                Giver::Withheld(_) => !given && !reads,
                Giver::Nobody => reads,
                Giver::Driver => false,
            };
            assert!(as_wanted, "{case}: {found:?}");
            // The driver does it, whatever the policy is.
            let by_driver = Facts { mounts_for_group: true, ..facts };
            assert_eq!(giver(by_driver), Giver::Driver, "{case}");
            assert_eq!(giver(Facts { read_only: true, ..by_driver }), Giver::Driver, "{case}");
            let silent = giver(Facts { says_so: false, ..by_driver });
            assert!(matches!(silent, Giver::Withheld(why) if why.contains("any more")), "{case}: {silent:?}");
            // A later version that can is none that was told.
            assert_eq!(giver(Facts { says_so: false, ..facts }), found, "{case}");
            assert_eq!(giver(Facts { read_only: true, ..facts }), Giver::Nobody, "{case}");
            assert_eq!(giver(Facts { group: None, ..by_driver }), Giver::Nobody, "{case}");
            let block = Capability { volume_mode: VolumeMode::Block, ..capability.clone() };
            assert_eq!(giver(Facts { capability: &block, ..by_driver }), Giver::Nobody, "{case}");
        }
    }
}
