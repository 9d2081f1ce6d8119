//! What CSI says has to be done about each code of each call: its tables of errors, as a table.
//!
//! The contract has a general scheme, and a table of errors for most calls. A code that a call's own table does not have
//! means what the scheme says. Never decides when something is done, or whether.
use tonic::Code;

use super::rpc::Rpc;

/// What has to be done before, or instead of, the same call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Nothing: the same request again, after a pause.
    Repeat,
    /// Look whether what is named is still there (volume, node, source, snapshot), then the same request again, after a
    /// pause. It is no word that anything is gone.
    Verify,
    /// Send another request. As it is, it is refused for good.
    ChangeInput,
    /// It is there already, in another form: call the reverse, then this again.
    UndoFirst,
    /// Make room where it is wanted, or choose another place (another topology, another node), then repeat.
    MakeRoom,
    /// There is no space: this request has failed. A later one may succeed.
    GiveUp,
    /// It is in use, or others depend on it: end that, then repeat.
    EndUse,
    /// It is attached to another node: detach it there, then repeat.
    DetachElsewhere,
    /// It cannot grow while it is in use: take it offline, then repeat.
    TakeOffline,
    /// The volume does not support the capability as it is used now: wait until it is unpublished here, or validate the
    /// capability.
    WaitForUnpublish,
    /// The plugin knows of no stage, or the capability is more than the volume has: stage it, then repeat.
    StageFirst,
    /// The file system cannot grow while it is mounted: never again before it is staged or published the next time.
    NextMount,
    /// The snapshot is part of a group: delete the group instead.
    DeleteGroup,
    /// The list of members is not the group's: ask for it, then repeat with the right one.
    CorrectMembers,
    /// Nobody keeps account of changes between these snapshots: copy the whole.
    CopyWhole,
    /// The page is unknown: begin with the first one.
    BeginAnew,
    /// The plugin is not well, or lacks something that it depends on: treat it as unhealthy.
    MendPlugin,
    /// Repair the secrets, or what their owner may do.
    RepairSecrets,
    /// The plugin does not have this call: never again, until it says what it can do anew.
    Unsupported,
}

/// The calls' own tables. Where the contract gives a code of a call two meanings there is one row: nobody can tell them
/// apart.
const ROWS: &[(Rpc, Code, Advice)] = &[
    (Rpc::Probe, Code::FailedPrecondition, Advice::MendPlugin),
    (Rpc::CreateVolume, Code::InvalidArgument, Advice::ChangeInput),
    (Rpc::CreateVolume, Code::NotFound, Advice::Verify),
    (Rpc::CreateVolume, Code::AlreadyExists, Advice::ChangeInput),
    (Rpc::CreateVolume, Code::ResourceExhausted, Advice::MakeRoom),
    (Rpc::CreateVolume, Code::OutOfRange, Advice::ChangeInput),
    (Rpc::DeleteVolume, Code::FailedPrecondition, Advice::EndUse),
    (Rpc::ControllerPublishVolume, Code::NotFound, Advice::Verify),
    (Rpc::ControllerPublishVolume, Code::AlreadyExists, Advice::UndoFirst),
    (Rpc::ControllerPublishVolume, Code::FailedPrecondition, Advice::DetachElsewhere),
    (Rpc::ControllerPublishVolume, Code::ResourceExhausted, Advice::MakeRoom),
    (Rpc::ControllerUnpublishVolume, Code::NotFound, Advice::Verify),
    (Rpc::ValidateVolumeCapabilities, Code::NotFound, Advice::Verify),
    (Rpc::ListVolumes, Code::Aborted, Advice::BeginAnew),
    (Rpc::ControllerGetVolume, Code::NotFound, Advice::Verify),
    (Rpc::ControllerModifyVolume, Code::InvalidArgument, Advice::ChangeInput),
    (Rpc::ControllerModifyVolume, Code::NotFound, Advice::Verify),
    (Rpc::CreateSnapshot, Code::AlreadyExists, Advice::ChangeInput),
    (Rpc::CreateSnapshot, Code::Aborted, Advice::Repeat),
    // The contract prints 13 beside the word RESOURCE_EXHAUSTED; 8 is meant.
    (Rpc::CreateSnapshot, Code::ResourceExhausted, Advice::GiveUp),
    (Rpc::DeleteSnapshot, Code::InvalidArgument, Advice::DeleteGroup),
    (Rpc::DeleteSnapshot, Code::FailedPrecondition, Advice::EndUse),
    (Rpc::DeleteSnapshot, Code::Aborted, Advice::Repeat),
    (Rpc::ListSnapshots, Code::Aborted, Advice::BeginAnew),
    (Rpc::GetSnapshot, Code::NotFound, Advice::Verify),
    (Rpc::ControllerExpandVolume, Code::InvalidArgument, Advice::ChangeInput),
    (Rpc::ControllerExpandVolume, Code::NotFound, Advice::Verify),
    (Rpc::ControllerExpandVolume, Code::FailedPrecondition, Advice::TakeOffline),
    (Rpc::ControllerExpandVolume, Code::OutOfRange, Advice::ChangeInput),
    (Rpc::NodeStageVolume, Code::NotFound, Advice::Verify),
    (Rpc::NodeStageVolume, Code::AlreadyExists, Advice::UndoFirst),
    (Rpc::NodeStageVolume, Code::FailedPrecondition, Advice::WaitForUnpublish),
    (Rpc::NodeUnstageVolume, Code::NotFound, Advice::Verify),
    (Rpc::NodePublishVolume, Code::NotFound, Advice::Verify),
    (Rpc::NodePublishVolume, Code::AlreadyExists, Advice::UndoFirst),
    (Rpc::NodePublishVolume, Code::FailedPrecondition, Advice::StageFirst),
    (Rpc::NodeUnpublishVolume, Code::NotFound, Advice::Verify),
    (Rpc::NodeGetVolumeStats, Code::NotFound, Advice::Verify),
    (Rpc::NodeExpandVolume, Code::InvalidArgument, Advice::ChangeInput),
    (Rpc::NodeExpandVolume, Code::NotFound, Advice::Verify),
    (Rpc::NodeExpandVolume, Code::FailedPrecondition, Advice::NextMount),
    (Rpc::NodeExpandVolume, Code::OutOfRange, Advice::ChangeInput),
    (Rpc::CreateVolumeGroupSnapshot, Code::AlreadyExists, Advice::ChangeInput),
    (Rpc::CreateVolumeGroupSnapshot, Code::FailedPrecondition, Advice::ChangeInput),
    // Printed as 13 here, too.
    (Rpc::CreateVolumeGroupSnapshot, Code::ResourceExhausted, Advice::GiveUp),
    (Rpc::DeleteVolumeGroupSnapshot, Code::InvalidArgument, Advice::CorrectMembers),
    (Rpc::DeleteVolumeGroupSnapshot, Code::FailedPrecondition, Advice::EndUse),
    (Rpc::GetVolumeGroupSnapshot, Code::InvalidArgument, Advice::CorrectMembers),
    (Rpc::GetVolumeGroupSnapshot, Code::NotFound, Advice::Verify),
    (Rpc::GetMetadataAllocated, Code::InvalidArgument, Advice::ChangeInput),
    (Rpc::GetMetadataAllocated, Code::NotFound, Advice::Verify),
    (Rpc::GetMetadataAllocated, Code::OutOfRange, Advice::ChangeInput),
    (Rpc::GetMetadataDelta, Code::InvalidArgument, Advice::ChangeInput),
    (Rpc::GetMetadataDelta, Code::NotFound, Advice::Verify),
    (Rpc::GetMetadataDelta, Code::FailedPrecondition, Advice::CopyWhole),
    (Rpc::GetMetadataDelta, Code::OutOfRange, Advice::ChangeInput),
];

/// What a code of a call's means that the plugin itself sent.
pub(crate) fn of(rpc: Rpc, code: Code) -> Advice {
    row(rpc, code).unwrap_or_else(|| general(code))
}

/// Whether the call's own table has the code.
pub(crate) fn has_a_row(rpc: Rpc, code: Code) -> bool {
    row(rpc, code).is_some()
}

fn row(rpc: Rpc, code: Code) -> Option<Advice> {
    ROWS.iter().find(|(of, has, _)| (*of, *has) == (rpc, code)).map(|(_, _, advice)| *advice)
}

/// The general scheme, for all calls.
fn general(code: Code) -> Advice {
    match code {
        Code::InvalidArgument | Code::AlreadyExists | Code::OutOfRange => Advice::ChangeInput,
        Code::NotFound => Advice::Verify,
        Code::PermissionDenied | Code::Unauthenticated => Advice::RepairSecrets,
        Code::Unimplemented => Advice::Unsupported,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Advice::Repeat,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The contract has 66 rows: 6 of the general scheme, and 60 of calls. Of those 4 are another meaning of a code that
    /// their call has already: FAILED_PRECONDITION of Probe and of NodePublish, NOT_FOUND of attaching and detaching.
    #[test]
    fn each_row_of_the_contract_is_there_once() {
        let rows = ROWS.iter().map(|(rpc, code, _)| (*rpc, *code as i32)).collect::<HashSet<_>>();
        assert_eq!((rows.len(), ROWS.len()), (56, 56));
        let silent = Rpc::ALL.iter().filter(|rpc| !ROWS.iter().any(|(of, _, _)| of == *rpc));
        assert_eq!(
            silent.map(|rpc| rpc.name()).collect::<Vec<_>>(),
            [
                "GetPluginInfo",
                "GetPluginCapabilities",
                "GetCapacity",
                "ControllerGetCapabilities",
                "GroupControllerGetCapabilities",
                "NodeGetCapabilities",
                "NodeGetInfo"
            ]
        );
    }
}
