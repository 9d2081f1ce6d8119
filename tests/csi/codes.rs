//! All 17 codes on every call: what each means, and what is to be done about it.
use wharfline::csi::Advice;

use super::*;

/// Which advice the general scheme has for a code.
fn general(number: i32) -> Advice {
    match number {
        3 | 6 | 11 => Advice::ChangeInput,
        5 => Advice::Verify,
        7 | 16 => Advice::RepairSecrets,
        12 => Advice::Unsupported,
        _ => Advice::Repeat,
    }
}

/// Where a call's own table says something else than the general scheme, or something more.
const OWN: &[(Rpc, &[(i32, Advice)])] = &[
    (Rpc::Probe, &[(9, Advice::MendPlugin)]),
    (Rpc::CreateVolume, &[(8, Advice::MakeRoom)]),
    (Rpc::DeleteVolume, &[(9, Advice::EndUse)]),
    (
        Rpc::ControllerPublishVolume,
        &[(6, Advice::UndoFirst), (8, Advice::MakeRoom), (9, Advice::DetachElsewhere)],
    ),
    (Rpc::ListVolumes, &[(10, Advice::BeginAnew)]),
    (Rpc::ListSnapshots, &[(10, Advice::BeginAnew)]),
    (Rpc::CreateSnapshot, &[(8, Advice::GiveUp)]),
    (Rpc::DeleteSnapshot, &[(3, Advice::DeleteGroup), (9, Advice::EndUse)]),
    (Rpc::ControllerExpandVolume, &[(9, Advice::TakeOffline)]),
    (Rpc::CreateVolumeGroupSnapshot, &[(8, Advice::GiveUp), (9, Advice::ChangeInput)]),
    (Rpc::DeleteVolumeGroupSnapshot, &[(3, Advice::CorrectMembers), (9, Advice::EndUse)]),
    (Rpc::GetVolumeGroupSnapshot, &[(3, Advice::CorrectMembers)]),
    (Rpc::GetMetadataDelta, &[(9, Advice::CopyWhole)]),
    (Rpc::NodeStageVolume, &[(6, Advice::UndoFirst), (9, Advice::WaitForUnpublish)]),
    (Rpc::NodePublishVolume, &[(6, Advice::UndoFirst), (9, Advice::StageFirst)]),
    (Rpc::NodeExpandVolume, &[(9, Advice::NextMount)]),
];

/// Whether a repetition of the same request may help by itself.
fn remedy(rpc: Rpc, advice: Advice) -> Remedy {
    match advice {
        Advice::ChangeInput | Advice::UndoFirst if rpc.undoes() => Remedy::Repeat,
        Advice::ChangeInput
        | Advice::UndoFirst
        | Advice::GiveUp
        | Advice::NextMount
        | Advice::DeleteGroup
        | Advice::CorrectMembers
        | Advice::CopyWhole => Remedy::ChangeInput,
        Advice::RepairSecrets => Remedy::RepairSecrets,
        Advice::Unsupported => Remedy::Unsupported,
        _ => Remedy::Repeat,
    }
}

/// Obligations CO-GEN-10, CO-META-05.
/// Part of obligations CO-ERR-01, CO-ERR-02, CO-ERR-03, CO-ERR-04, CO-ERR-05, CO-ERR-06, CO-ERR-07, CO-ERR-09, CO-ERR-10.
/// Part of obligations CO-ERR-11, CO-ERR-12, CO-ERR-13, CO-ERR-14, CO-ERR-15, CO-ERR-16, CO-CTRL-13, CO-CTRL-14, CO-CTRL-15.
/// Part of obligations CO-CTRL-16, CO-CTRL-17, CO-CTRL-22, CO-CTRL-23, CO-CTRL-37, CO-CTRL-38, CO-CTRL-39, CO-CTRL-40.
/// Part of obligations CO-CTRL-49, CO-CTRL-59, CO-CTRL-70, CO-CTRL-78, CO-CTRL-79, CO-CTRL-90, CO-CTRL-91, CO-CTRL-92.
/// Part of obligations CO-CTRL-96, CO-CTRL-97, CO-CTRL-101, CO-CTRL-109, CO-CTRL-110, CO-CTRL-111, CO-CTRL-112.
/// Part of obligations CO-CTRL-113, CO-GRP-05, CO-GRP-11, CO-GRP-20, CO-NODE-25, CO-NODE-26, CO-NODE-27, CO-NODE-38.
/// Part of obligations CO-NODE-52, CO-NODE-53, CO-NODE-54, CO-NODE-63, CO-NODE-73, CO-NODE-85, CO-NODE-86, CO-NODE-87.
#[tokio::test]
async fn every_call_and_every_code_of_the_peer() {
    let bench = Bench::new();
    assert_eq!(Rpc::ALL.len(), 32);
    for rpc in Rpc::ALL.iter().copied() {
        let own = OWN.iter().find(|(of, _)| *of == rpc).map_or(&[][..], |(_, own)| own);
        for number in 1..=16 {
            let code = Code::from_i32(number);
            let failure = failing(&bench, rpc, Answer::fail(code, format!("no {number}")), LONG).await;
            // Only what a call's own table says of 8 is the plugin's word; a gRPC server has limits, too.
            let eight = own.iter().any(|(code, _)| *code == 8);
            let class = match number {
                1 | 4 | 10 | 14 => Class::Uncertain,
                8 if !eight => Class::Uncertain,
                _ => Class::Final,
            };
            let message = format!("no {number}");
            assert_eq!(
                failure,
                Failure { rpc, code, message, class, origin: Origin::Peer, secrets: false, breach: None }
            );
            let advice =
                own.iter().find(|(code, _)| *code == number).map_or(general(number), |(_, advice)| *advice);
            assert_eq!(failure.advice(), advice, "{failure}");
            assert_eq!(failure.remedy(), remedy(rpc, advice), "{failure}");
            assert_eq!(failure.is_not_found(), number == 5);
            assert_eq!(failure.is_aborted(), number == 10);
            assert_eq!(failure.is_unimplemented(), number == 12);
            assert_eq!(failure.is_exhausted(), number == 8 && eight);
        }
        for odd in [-1, 17, 1000] {
            let failure = failing(&bench, rpc, Answer::fail_with_number(odd, "odd"), LONG).await;
            assert_eq!((failure.class, failure.origin), (Class::Uncertain, Origin::Local), "{failure}");
            assert_eq!(failure.advice(), Advice::Repeat, "{failure}");
        }
    }
    bench.backend.assert_clean();
}

/// A wrong key in a Secret is an invalid argument to many; but where CSI gives the code another meaning, that one holds.
#[tokio::test]
async fn an_invalid_argument_of_a_request_with_secrets_may_be_the_secret() {
    let bench = Bench::new();
    let secrets: BTreeMap<_, _> = [("password".to_owned(), "hunter22".to_owned())].into();
    let invalid = || Answer::fail(Code::InvalidArgument, "no");
    for rpc in [Rpc::CreateSnapshot, Rpc::DeleteSnapshot, Rpc::DeleteVolumeGroupSnapshot] {
        bench.backend.next(rpc, invalid());
    }
    let request = proto::CreateSnapshotRequest { secrets: secrets.clone(), ..snapshot("v", "s") };
    let failure = bench.plugin.create_snapshot(request, LONG).await.unwrap_err();
    assert_eq!(failure.remedy(), Remedy::RepairSecrets);
    let request = proto::DeleteSnapshotRequest { secrets: secrets.clone(), ..delete_snapshot("s") };
    let failure = bench.plugin.delete_snapshot(request, LONG).await.unwrap_err();
    assert_eq!((failure.advice(), failure.remedy()), (Advice::DeleteGroup, Remedy::ChangeInput));
    let request = proto::DeleteVolumeGroupSnapshotRequest { secrets, ..delete_group("g", &["s"]) };
    let failure = bench.plugin.delete_volume_group_snapshot(request, LONG).await.unwrap_err();
    assert_eq!((failure.advice(), failure.remedy()), (Advice::CorrectMembers, Remedy::ChangeInput));
}
