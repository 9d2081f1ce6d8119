//! The whole life of a volume, with the driver restarted in the middle.
use std::fs;

use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::controller_service_capability as controller_capability;
use wharfline::csi::proto::controller_service_capability::rpc::Type as Rpc;
use wharfline::csi::proto::node_service_capability as node_capability;
use wharfline::csi::proto::plugin_capability::service::Type as Service;
use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;
use wharfline::drivers::dir::{Mode, NAME, TOPOLOGY_KEY};

use crate::rig::{self, Instance, NODE, Rig, capability, mount_line, mounts_below, refused};

#[tokio::test]
async fn from_nothing_to_nothing() {
    let mut rig = Rig::new();
    let made = rig.create(rig::sized("web", 1 << 20, 0)).await.unwrap();
    assert_eq!(made.capacity_bytes, 1 << 20);
    assert!(!made.volume_id.contains("web"), "{}", made.volume_id);
    let here = proto::Topology { segments: [(TOPOLOGY_KEY.to_owned(), NODE.to_owned())].into() };
    assert_eq!(made.accessible_topology, [here]);
    let id = made.volume_id.clone();
    assert_eq!(rig.ids().await, [id.as_str()]);

    let target = rig.target("web");
    rig.publish(rig::publish(&id, &target)).await.unwrap();
    fs::write(target.join("greeting"), "hello").unwrap();
    assert_eq!(fs::read(rig.data(&id).join("greeting")).unwrap(), b"hello");
    let mounted = mount_line(&target);

    rig.restart().await;
    assert_eq!(rig.create(rig::sized("web", 1 << 20, 0)).await.unwrap(), made);
    rig.publish(rig::publish(&id, &target)).await.unwrap();
    assert_eq!(mount_line(&target), mounted, "the mount was made anew");
    assert_eq!(refused(rig.delete(&id).await, "mounted at"), Code::FailedPrecondition);
    assert_eq!(fs::read(target.join("greeting")).unwrap(), b"hello");

    rig.unpublish(&id, &target).await.unwrap();
    assert!(!target.exists());
    rig.unpublish(&id, &target).await.unwrap();
    assert_eq!(fs::read(rig.data(&id).join("greeting")).unwrap(), b"hello");

    rig.restart().await;
    rig.delete(&id).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    assert_eq!(rig.ids().await, [] as [String; 0]);
    assert!(!rig.data(&id).exists());
    rig.finish().await;
}

#[tokio::test]
async fn what_it_says_of_itself() {
    let rig = Rig::new();
    let mut identity = rig.instance().identity();
    let info = identity.get_plugin_info(proto::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), (NAME, env!("CARGO_PKG_VERSION")));
    let probe = identity.probe(proto::ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));
    let offered = identity.get_plugin_capabilities(proto::GetPluginCapabilitiesRequest {}).await;
    let offered = offered.unwrap().into_inner().capabilities;
    let service = |kind: Service| {
        let service = proto::plugin_capability::Service { r#type: kind.into() };
        proto::plugin_capability::Type::Service(service)
    };
    let online = proto::plugin_capability::VolumeExpansion {
        r#type: proto::plugin_capability::volume_expansion::Type::Online.into(),
    };
    let all = [
        service(Service::ControllerService),
        service(Service::VolumeAccessibilityConstraints),
        proto::plugin_capability::Type::VolumeExpansion(online),
    ];
    assert_eq!(offered, all.map(|kind| proto::PluginCapability { r#type: Some(kind) }));

    let mut node = rig.instance().node();
    let info = node.node_get_info(proto::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), (NODE, 0));
    assert_eq!(info.accessible_topology.unwrap().segments[TOPOLOGY_KEY], NODE);
    let node = node.node_get_capabilities(proto::NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    let rpc = |kind: node_capability::rpc::Type| proto::NodeServiceCapability {
        r#type: Some(node_capability::Type::Rpc(node_capability::Rpc { r#type: kind.into() })),
    };
    let expected =
        [node_capability::rpc::Type::GetVolumeStats, node_capability::rpc::Type::SingleNodeMultiWriter];
    assert_eq!(node.capabilities, expected.map(rpc));

    let request = proto::ControllerGetCapabilitiesRequest {};
    let served = rig.instance().controller().controller_get_capabilities(request).await.unwrap().into_inner();
    let rpc = |kind: Rpc| proto::ControllerServiceCapability {
        r#type: Some(controller_capability::Type::Rpc(controller_capability::Rpc { r#type: kind.into() })),
    };
    let expected = [
        Rpc::CreateDeleteVolume,
        Rpc::GetCapacity,
        Rpc::ListVolumes,
        Rpc::CreateDeleteSnapshot,
        Rpc::ListSnapshots,
        Rpc::GetSnapshot,
        Rpc::CloneVolume,
        Rpc::ExpandVolume,
        Rpc::GetVolume,
        Rpc::SingleNodeMultiWriter,
    ];
    let expected = expected.map(rpc);
    assert_eq!(served.capabilities, expected);
    rig.finish().await;
}

#[tokio::test]
async fn a_controller_and_a_node_share_one_directory() {
    let rig = Rig::new();
    let controller = Instance::start(&rig.settings(Mode::Controller, "controller.sock"));
    let node = Instance::start(&rig.settings(Mode::Node, "node.sock"));
    let made = controller.controller().create_volume(rig::create("web")).await.unwrap().into_inner();
    let id = made.volume.unwrap().volume_id;
    let target = rig.target("web");
    node.node().node_publish_volume(rig::publish(&id, &target)).await.unwrap();
    let delete = proto::DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    let while_used = controller.controller().delete_volume(delete.clone()).await;
    assert_eq!(refused(while_used, "mounted at"), Code::FailedPrecondition);

    let elsewhere = controller.node().node_publish_volume(rig::publish(&id, &target)).await;
    assert_eq!(refused(elsewhere, ""), Code::Unimplemented);
    let elsewhere = node.controller().create_volume(rig::create("other")).await;
    assert_eq!(refused(elsewhere, ""), Code::Unimplemented);
    for instance in [&controller, &node] {
        let asked = instance.identity().get_plugin_capabilities(proto::GetPluginCapabilitiesRequest {}).await;
        assert_eq!(asked.unwrap().into_inner().capabilities.len(), 3, "all instances report the same");
    }

    rig.unpublish(&id, &target).await.unwrap();
    controller.controller().delete_volume(delete).await.unwrap();
    controller.stop().await;
    node.stop().await;
    rig.finish().await;
}

#[tokio::test]
async fn many_volumes_at_once() {
    let rig = Rig::new();
    let lives = (0..24).map(|number| {
        let (rig, name) = (&rig, format!("v{number}"));
        async move {
            let id = rig.volume(&name).await;
            let target = rig.target(&name);
            rig.publish(rig::publish(&id, &target)).await.unwrap();
            fs::write(target.join("own"), &name).unwrap();
            assert_eq!(fs::read_to_string(rig.data(&id).join("own")).unwrap(), name);
            rig.unpublish(&id, &target).await.unwrap();
            rig.delete(&id).await.unwrap();
        }
    });
    futures::future::join_all(lives).await;
    rig.finish().await;
}

#[tokio::test]
async fn one_name_asked_for_at_once_is_one_volume() {
    let rig = Rig::new();
    let asks = (0..8).map(|_| rig.volume("same"));
    let ids = futures::future::join_all(asks).await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(rig.ids().await.len(), 1);
    rig.delete(&ids[0]).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn a_name_deleted_and_asked_for_again_is_an_empty_volume() {
    let rig = Rig::new();
    let first = rig.volume("web").await;
    fs::write(rig.data(&first).join("old"), "old").unwrap();
    rig.delete(&first).await.unwrap();
    let second = rig.volume("web").await;
    assert!(rig::entries(&rig.data(&second)).is_empty());
    rig.delete(&second).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn the_targets_of_one_volume_are_independent() {
    let rig = Rig::new();
    let id = rig.volume("shared").await;
    let (one, two) = (rig.target("one"), rig.target("two"));
    let publish = |target| rig::publish_as(&id, target, Access::SingleNodeMultiWriter);
    let mut reader = publish(&two);
    reader.readonly = true;
    rig.publish(publish(&one)).await.unwrap();
    rig.publish(reader).await.unwrap();
    fs::write(one.join("file"), "written by one").unwrap();
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "written by one");
    assert_eq!(fs::write(two.join("file"), "x").unwrap_err().raw_os_error(), Some(30), "EROFS");
    rig.unpublish(&id, &one).await.unwrap();
    assert_eq!(mounts_below(&rig.path("targets")), std::slice::from_ref(&two));
    assert_eq!(refused(rig.delete(&id).await, "two"), Code::FailedPrecondition);
    rig.unpublish(&id, &two).await.unwrap();
    let confirmed = rig
        .instance()
        .controller()
        .validate_volume_capabilities(proto::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: vec![capability(Access::SingleNodeMultiWriter)],
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    let confirmed = confirmed.confirmed.expect("confirmed");
    assert_eq!(confirmed.volume_capabilities, [capability(Access::SingleNodeMultiWriter)]);
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn two_data_directories_of_one_node_do_not_meet() {
    let (one, two) = (Rig::new(), Rig::new());
    let (first, second) = (one.volume("web").await, two.volume("web").await);
    assert_ne!(first, second);
    let target = one.target("web");
    one.publish(rig::publish(&first, &target)).await.unwrap();
    two.delete(&second).await.unwrap();
    assert_eq!(refused(two.unpublish(&second, &target).await, "does not exist"), Code::NotFound);
    one.unpublish(&first, &target).await.unwrap();
    one.delete(&first).await.unwrap();
    one.finish().await;
    two.finish().await;
}
