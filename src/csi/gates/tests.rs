//! Each call with nothing, with all that it needs, and with all but that.
use super::*;

type Grant = fn(&mut Capabilities);

const NOTHING: Grant = |_| {};

fn controller(can: &mut Capabilities) {
    can.plugin.services.controller_service = true;
}

fn group(can: &mut Capabilities) {
    can.plugin.services.group_controller_service = true;
}

/// The call, the service that it needs, the capability that it needs, and what is said when that is missing.
fn rows() -> Vec<(Rpc, Grant, &'static str, Grant, &'static str)> {
    const CONTROLLER: &str = "CONTROLLER_SERVICE";
    const GROUP: &str = "GROUP_CONTROLLER_SERVICE";
    let metadata: Grant = |can| can.plugin.services.snapshot_metadata_service = true;
    let create: Grant = |can| can.controller.create_delete_volume = true;
    let publish: Grant = |can| can.controller.publish_unpublish_volume = true;
    let snapshot: Grant = |can| can.controller.create_delete_snapshot = true;
    let stage: Grant = |can| can.node.stage_unstage_volume = true;
    let member: Grant = |can| can.group.create_delete_get_volume_group_snapshot = true;
    let of_group = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT";
    vec![
        (Rpc::GetPluginInfo, NOTHING, "", NOTHING, ""),
        (Rpc::GetPluginCapabilities, NOTHING, "", NOTHING, ""),
        (Rpc::Probe, NOTHING, "", NOTHING, ""),
        (Rpc::CreateVolume, controller, CONTROLLER, create, "CREATE_DELETE_VOLUME"),
        (Rpc::DeleteVolume, controller, CONTROLLER, create, "CREATE_DELETE_VOLUME"),
        (Rpc::ControllerPublishVolume, controller, CONTROLLER, publish, "PUBLISH_UNPUBLISH_VOLUME"),
        (Rpc::ControllerUnpublishVolume, controller, CONTROLLER, publish, "PUBLISH_UNPUBLISH_VOLUME"),
        (Rpc::ValidateVolumeCapabilities, controller, CONTROLLER, NOTHING, ""),
        (Rpc::ListVolumes, controller, CONTROLLER, |can| can.controller.list_volumes = true, "LIST_VOLUMES"),
        (Rpc::GetCapacity, controller, CONTROLLER, |can| can.controller.get_capacity = true, "GET_CAPACITY"),
        (Rpc::ControllerGetCapabilities, controller, CONTROLLER, NOTHING, ""),
        (Rpc::CreateSnapshot, controller, CONTROLLER, snapshot, "CREATE_DELETE_SNAPSHOT"),
        (Rpc::DeleteSnapshot, controller, CONTROLLER, snapshot, "CREATE_DELETE_SNAPSHOT"),
        (
            Rpc::ListSnapshots,
            controller,
            CONTROLLER,
            |can| can.controller.list_snapshots = true,
            "LIST_SNAPSHOTS",
        ),
        (Rpc::GetSnapshot, controller, CONTROLLER, |can| can.controller.get_snapshot = true, "GET_SNAPSHOT"),
        (
            Rpc::ControllerExpandVolume,
            controller,
            CONTROLLER,
            |can| can.controller.expand_volume = true,
            "EXPAND_VOLUME",
        ),
        (
            Rpc::ControllerGetVolume,
            controller,
            CONTROLLER,
            |can| can.controller.get_volume = true,
            "GET_VOLUME",
        ),
        (
            Rpc::ControllerModifyVolume,
            controller,
            CONTROLLER,
            |can| can.controller.modify_volume = true,
            "MODIFY_VOLUME",
        ),
        (Rpc::GroupControllerGetCapabilities, group, GROUP, NOTHING, ""),
        (Rpc::CreateVolumeGroupSnapshot, group, GROUP, member, of_group),
        (Rpc::DeleteVolumeGroupSnapshot, group, GROUP, member, of_group),
        (Rpc::GetVolumeGroupSnapshot, group, GROUP, member, of_group),
        (Rpc::GetMetadataAllocated, metadata, "SNAPSHOT_METADATA_SERVICE", NOTHING, ""),
        (Rpc::GetMetadataDelta, metadata, "SNAPSHOT_METADATA_SERVICE", NOTHING, ""),
        (Rpc::NodeStageVolume, NOTHING, "", stage, "STAGE_UNSTAGE_VOLUME"),
        (Rpc::NodeUnstageVolume, NOTHING, "", stage, "STAGE_UNSTAGE_VOLUME"),
        (Rpc::NodePublishVolume, NOTHING, "", NOTHING, ""),
        (Rpc::NodeUnpublishVolume, NOTHING, "", NOTHING, ""),
        (Rpc::NodeGetVolumeStats, NOTHING, "", |can| can.node.get_volume_stats = true, "GET_VOLUME_STATS"),
        (Rpc::NodeExpandVolume, NOTHING, "", |can| can.node.expand_volume = true, "EXPAND_VOLUME"),
        (Rpc::NodeGetCapabilities, NOTHING, "", NOTHING, ""),
        (Rpc::NodeGetInfo, NOTHING, "", NOTHING, ""),
    ]
}

/// Part of obligations CO-GEN-15, CO-IDEN-03, CO-CTRL-65, CO-CTRL-70, CO-CTRL-71, CO-CTRL-75, CO-CTRL-85, CO-CTRL-100.
/// Part of obligations CO-CTRL-101, CO-GRP-01, CO-NODE-01, CO-NODE-70, CO-NODE-80.
#[test]
fn every_call_needs_its_service_and_its_capability_and_nothing_else() {
    let rows = rows();
    assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), Rpc::ALL);
    for (rpc, service, service_name, capability, capability_name) in &rows {
        let can = |grants: &[&Grant]| {
            let mut can = Capabilities::default();
            for grant in grants {
                grant(&mut can);
            }
            may(*rpc, &can, Alpha::On)
        };
        assert_eq!(can(&[service, capability]), Ok(()), "{rpc}");
        if !service_name.is_empty() {
            assert_eq!(can(&[capability]), Err(Closed::NoService(service_name)), "{rpc}");
        }
        // All that the other calls need is of no use to this one.
        let others = rows.iter().filter(|row| row.4 != *capability_name);
        let others = others.flat_map(|row| [&row.1, &row.3]).collect::<Vec<_>>();
        let with_others = can(&others).map_err(|closed| closed.to_string());
        if capability_name.is_empty() {
            assert_eq!(can(&[service]), Ok(()), "{rpc}");
        } else {
            let told = with_others.expect_err(rpc.name());
            assert!(told.ends_with(&format!("does not report {capability_name}")), "{rpc}: {told}");
        }
    }
}

/// Part of obligation CO-GEN-30.
#[test]
fn what_is_alpha_is_closed_until_it_is_switched_on() {
    let mut all = Capabilities::default();
    for (_, service, _, capability, _) in rows() {
        service(&mut all);
        capability(&mut all);
    }
    for rpc in Rpc::ALL.iter().copied() {
        let listed = |name: String| super::super::proto::ALPHA.contains(&name.as_str());
        let alpha = listed(format!("csi.v1.{:?}", rpc.service()))
            || listed(format!("csi.v1.{:?}.{rpc}", rpc.service()));
        assert_eq!(rpc.is_alpha(), alpha, "{rpc}: the contract says otherwise");
        let wanted = if alpha { Err(Closed::Alpha) } else { Ok(()) };
        assert_eq!(may(rpc, &all, Alpha::Off), wanted, "{rpc}");
        assert_eq!(may(rpc, &all, Alpha::On), Ok(()), "{rpc}");
    }
    assert_eq!(Rpc::ALL.iter().filter(|rpc| rpc.is_alpha()).count(), 4);
    let mut condition = Capabilities::default();
    condition.node.volume_condition = true;
    assert_eq!(may(Rpc::NodeGetVolumeStats, &condition, Alpha::On), Ok(()));
    assert!(may(Rpc::NodeGetVolumeStats, &condition, Alpha::Off).is_err());
}
