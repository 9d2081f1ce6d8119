//! Making, listing, counting and deleting volumes.
use std::fs;
use std::os::unix::fs::symlink;

use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;
use wharfline::drivers::dir::TOPOLOGY_KEY;

use crate::rig::{self, NODE, Rig, capability, refused, sized};

const MIB: i64 = 1 << 20;

fn on(nodes: &[&str], request: proto::CreateVolumeRequest) -> proto::CreateVolumeRequest {
    let term =
        |node: &&str| proto::Topology { segments: [(TOPOLOGY_KEY.to_owned(), (*node).to_owned())].into() };
    let requisite = nodes.iter().map(term).collect();
    let requirement = proto::TopologyRequirement { requisite, preferred: vec![] };
    proto::CreateVolumeRequest { accessibility_requirements: Some(requirement), ..request }
}

#[tokio::test]
async fn the_same_name_is_the_same_volume_or_a_conflict() {
    let mut rig = Rig::new();
    let made = rig.create(sized("web", 2 * MIB, 4 * MIB)).await.unwrap();
    assert_eq!(made.capacity_bytes, 2 * MIB);
    let mut other_mode = sized("web", 2 * MIB, 0);
    other_mode.volume_capabilities = vec![capability(Access::SingleNodeMultiWriter)];
    let same = [
        sized("web", 2 * MIB, 4 * MIB),
        sized("web", 2 * MIB, 2 * MIB),
        sized("web", MIB, 0),
        rig::create("web"),
        other_mode,
        on(&[NODE], rig::create("web")),
    ];
    let conflicts = [
        ("capacity", sized("web", 4 * MIB, 4 * MIB)),
        ("capacity", sized("web", 0, MIB)),
        ("capacity", sized("web", i64::MAX, 0)), // a conflict first, however little room there is
        ("topology", on(&["node-b"], rig::create("web"))),
    ];
    for restart in [false, true] {
        if restart {
            rig.restart().await;
        }
        for request in &same {
            assert_eq!(rig.create(request.clone()).await.unwrap(), made, "{request:?}");
        }
        for (about, request) in &conflicts {
            let result = rig.create(request.clone()).await;
            assert_eq!(refused(result, about), Code::AlreadyExists, "{request:?}");
        }
    }
    assert_eq!(rig.ids().await.len(), 1);
    rig.delete(&made.volume_id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn capacity_is_what_is_free_and_not_promised() {
    let rig = Rig::new();
    // A file system of a known size, so that nothing else on this machine moves the numbers.
    let small = Small::new(&rig);
    let mut client = small.instance.controller();
    let mut available = async || {
        let answer = client.get_capacity(proto::GetCapacityRequest::default()).await.unwrap();
        answer.into_inner().available_capacity
    };
    let before = available().await;
    assert!((60 * MIB..=64 * MIB).contains(&before), "{before}");
    let create = async |request| small.instance.controller().create_volume(request).await;
    let made = create(sized("a", 40 * MIB, 0)).await.unwrap().into_inner().volume.unwrap();
    let after = available().await;
    assert!((before - 41 * MIB..=before - 40 * MIB).contains(&after), "{before} {after}");

    assert_eq!(refused(create(sized("b", 40 * MIB, 0)).await, NODE), Code::ResourceExhausted);
    assert_eq!(refused(create(sized("b", 65 * MIB, 0)).await, "in all"), Code::OutOfRange);
    let placed = on(&[NODE], sized("b", 65 * MIB, 0));
    assert_eq!(refused(create(placed).await, NODE), Code::ResourceExhausted, "another node may be larger");
    create(sized("b", 20 * MIB, 20 * MIB)).await.unwrap();

    let delete = proto::DeleteVolumeRequest { volume_id: made.volume_id, ..Default::default() };
    small.instance.controller().delete_volume(delete).await.unwrap();
    assert!(available().await > 39 * MIB, "the promise outlived the volume");
    small.end().await;
    rig.finish().await;
}

/// A driver on a tmpfs of 64 MiB.
struct Small {
    instance: rig::Instance,
    at: std::path::PathBuf,
}

impl Small {
    fn new(rig: &Rig) -> Self {
        let at = rig.path("small");
        fs::create_dir(&at).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &at, "tmpfs", flags, Some(c"size=64m")).unwrap();
        let mut settings = rig.settings(wharfline::drivers::dir::Mode::All, "small.sock");
        settings.data_dir = at.join("D");
        Self { instance: rig::Instance::start(&settings), at }
    }

    async fn end(self) {
        self.instance.stop().await;
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::empty()).unwrap();
    }
}

#[tokio::test]
async fn a_volume_for_another_node_is_not_made_here() {
    let rig = Rig::new();
    let ask = |nodes: &[&str]| on(nodes, rig::create("web"));
    assert_eq!(refused(rig.create(ask(&["node-b"])).await, NODE), Code::ResourceExhausted);
    assert!(rig.ids().await.is_empty());
    let id = rig.create(ask(&["node-b", NODE])).await.unwrap().volume_id;
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn pages() {
    let rig = Rig::new();
    for number in 0..7 {
        rig.volume(&format!("v{number}")).await;
    }
    let all = rig.ids().await;
    assert_eq!(all.len(), 7);
    let page = async |max_entries, token: String| {
        let request = proto::ListVolumesRequest { max_entries, starting_token: token };
        let answer = rig.instance().controller().list_volumes(request).await.unwrap().into_inner();
        let ids = answer.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id);
        (ids.collect::<Vec<_>>(), answer.next_token)
    };
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let (ids, next) = page(3, token).await;
        seen.extend(ids);
        pages += 1;
        token = next;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((pages, seen), (3, all.clone()));
    assert_eq!(page(7, String::new()).await, (all.clone(), String::new()), "no token after the last");
    assert_eq!(page(100, String::new()).await.0, all);

    // The volume that a token stands on may go, and others come, without a gap or a double.
    let (first, token) = page(2, String::new()).await;
    for id in &first {
        rig.delete(id).await.unwrap();
    }
    assert_eq!(page(0, token).await, (all[2..].to_vec(), String::new()));
    for id in &all {
        rig.delete(id).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_link_out_of_the_volume_is_removed_and_not_followed() {
    let rig = Rig::new();
    let outside = rig.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "data").unwrap();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    rig.publish(rig::publish(&id, &target)).await.unwrap();
    fs::create_dir_all(target.join("a/b")).unwrap();
    fs::write(target.join("a/b/file"), "x").unwrap();
    symlink(&outside, target.join("dir")).unwrap();
    symlink(&outside, target.join("a/b/dir")).unwrap();
    symlink(outside.join("precious"), target.join("a/file")).unwrap();
    symlink("../../../../../outside", target.join("a/up")).unwrap();
    fs::hard_link(outside.join("precious"), rig.data(&id).join("hard")).unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "data");
    rig.finish().await;
}

#[tokio::test]
async fn the_record_of_one_volume_does_not_stop_the_others() {
    let rig = Rig::new();
    let (good, bad) = (rig.volume("good").await, rig.volume("bad").await);
    let record = rig.data_dir().join("volumes").join(&bad).join("volume.json");
    let kept = fs::read(&record).unwrap();
    fs::write(&record, "{").unwrap();
    assert_eq!(rig.ids().await, [good.as_str()]);
    let target = rig.target("bad");
    let result = rig.publish(rig::publish(&bad, &target)).await;
    assert_eq!(refused(result, "volume.json"), Code::Internal);
    assert_eq!(refused(rig.delete(&bad).await, "volume.json"), Code::Internal);
    rig.volume("another").await;
    fs::write(&record, kept).unwrap();
    for id in rig.ids().await {
        rig.delete(&id).await.unwrap();
    }
    rig.finish().await;
}
