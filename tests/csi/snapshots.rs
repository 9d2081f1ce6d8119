//! Snapshots: taken, looked at, listed, used and deleted.
use wharfline::csi::check::{self, Pages};
use wharfline::csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::*;

fn from_snapshot(id: &str) -> proto::VolumeContentSource {
    proto::VolumeContentSource { r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id: id.into() })) }
}

/// Part of obligations CO-CTRL-85, CO-CTRL-86, CO-CTRL-88, CO-CTRL-97, CO-CTRL-101.
#[tokio::test]
async fn a_snapshot_is_taken_used_and_deleted() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    bench.backend.configure(|config| config.ready_after = 2);
    let volume = bench.plugin.create_volume(create("pvc"), LONG).await.unwrap();
    let request = proto::CreateSnapshotRequest {
        parameters: [("kind".to_owned(), "cold".to_owned())].into(),
        ..snapshot(&volume.volume_id, "snap")
    };
    let mut told = Vec::new();
    while !told.last().is_some_and(|taken: &proto::Snapshot| taken.ready_to_use) {
        let taken = bench.plugin.create_snapshot(request.clone(), LONG).await.unwrap();
        assert_eq!(check::snapshot_taken(&request, &taken), Ok(()));
        told.push(taken);
        if told.len() == 1 {
            // It is there before it is ready.
            let id = told[0].snapshot_id.clone();
            let seen = bench.plugin.get_snapshot(get_snapshot(&id), LONG).await.unwrap();
            assert_eq!(seen, told[0]);
        }
    }
    assert_eq!(told.len(), 3);
    let taken = told.pop().unwrap();
    assert!(told.iter().all(|before| before.snapshot_id == taken.snapshot_id && !before.ready_to_use));
    assert_eq!((taken.size_bytes, taken.group_snapshot_id.as_str()), (1 << 20, ""));
    assert!(taken.creation_time.is_some());
    let asked = bench.backend.calls_of(Rpc::CreateSnapshot);
    assert!(asked.windows(2).all(|pair| pair[0].ask == pair[1].ask), "a repetition is the same request");
    // The record calls it by the volume that waits for it.
    let record = bench.records().into_iter().find(|record| record.rpc == Rpc::CreateSnapshot).unwrap();
    assert_eq!(record.volume.as_deref(), Some(volume.volume_id.as_str()));

    let restore = proto::CreateVolumeRequest {
        volume_content_source: Some(from_snapshot(&taken.snapshot_id)),
        ..create("restored")
    };
    let restored = bench.plugin.create_volume(restore.clone(), LONG).await.unwrap();
    assert_eq!(check::created(&restore, &restored), Ok(()));
    let source = Type::Volume(VolumeSource { volume_id: volume.volume_id.clone() });
    let clone = proto::CreateVolumeRequest {
        volume_content_source: Some(proto::VolumeContentSource { r#type: Some(source) }),
        ..create("cloned")
    };
    let cloned = bench.plugin.create_volume(clone.clone(), LONG).await.unwrap();
    assert_eq!(check::created(&clone, &cloned), Ok(()));

    // Its answer is lost: the same again, which finds it gone.
    let gone = Answer::cut().after_effect();
    bench.backend.next(Rpc::DeleteSnapshot, gone);
    let failure = bench.plugin.delete_snapshot(delete_snapshot(&taken.snapshot_id), LONG).await.unwrap_err();
    assert!(failure.is_uncertain() && bench.plugin.owes_snapshot(&taken.snapshot_id), "{failure}");
    assert!(!bench.plugin.owes(&taken.snapshot_id), "it is no volume");
    bench.plugin.delete_snapshot(delete_snapshot(&taken.snapshot_id), LONG).await.unwrap();
    assert!(!bench.plugin.owes_snapshot(&taken.snapshot_id));
    let failure = bench.plugin.get_snapshot(get_snapshot(&taken.snapshot_id), LONG).await.unwrap_err();
    assert!(failure.is_not_found());
    for id in [&volume.volume_id, &restored.volume_id, &cloned.volume_id] {
        bench.plugin.delete_volume(delete(id), LONG).await.unwrap();
    }
    bench.backend.assert_clean();
}

#[tokio::test]
async fn an_ok_without_a_usable_snapshot_is_doubt() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let of = |id: &str, size| proto::Snapshot {
        snapshot_id: id.into(),
        source_volume_id: "vol-1".into(),
        size_bytes: size,
        ..Default::default()
    };
    for (snapshot, told) in
        [(None, "no snapshot"), (Some(of("", 1)), "has no id"), (Some(of("s", -1)), "-1 bytes")]
    {
        let answer = Answer::reply(&proto::CreateSnapshotResponse { snapshot });
        let failure = failing(&bench, Rpc::CreateSnapshot, answer, LONG).await;
        assert!(failure.is_uncertain() && failure.breach.is_some(), "{failure}");
        assert!(failure.message.contains(told), "{failure}");
    }
    let other = Answer::reply(&proto::GetSnapshotResponse { snapshot: Some(of("another", 1)) });
    let failure = failing(&bench, Rpc::GetSnapshot, other, LONG).await;
    assert_eq!(failure.breach, Some("AnotherAnswer"), "{failure}");
}

/// Reads a list to its end, as anybody would.
async fn listed(bench: &Bench, request: proto::ListSnapshotsRequest) -> Result<Vec<String>, String> {
    let (mut pages, mut found) = (Pages::new(), Vec::new());
    loop {
        let asked =
            proto::ListSnapshotsRequest { starting_token: pages.token().to_owned(), ..request.clone() };
        match bench.plugin.list_snapshots(asked, LONG).await {
            Ok(page) => {
                for entry in &page.entries {
                    let (source, id) = (&request.source_volume_id, &request.snapshot_id);
                    let entry = check::snapshot_listed(source, id, entry.snapshot.as_ref());
                    found.push(entry.map_err(|fault| fault.to_string())?.snapshot_id.clone());
                }
                let more = pages.took(&page.next_token, page.entries.len(), request.max_entries);
                if !more.map_err(|fault| fault.to_string())? {
                    return Ok(found);
                }
            }
            Err(failure) if failure.advice() == wharfline::csi::Advice::BeginAnew => {
                pages.restart().map_err(|fault| fault.to_string())?;
            }
            Err(failure) => return Err(failure.to_string()),
        }
    }
}

/// Part of obligations CO-CTRL-66, CO-CTRL-100.
#[tokio::test]
async fn a_list_is_read_page_by_page_and_begun_anew_when_the_plugin_forgets_where() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let mut all = Vec::new();
    for volume in ["v", "w"] {
        bench.backend.add_volume(volume, BTreeMap::new());
        for number in 0..3 {
            let taken = bench.plugin.create_snapshot(snapshot(volume, &format!("{volume}{number}")), LONG);
            all.push(taken.await.unwrap().snapshot_id);
        }
    }
    let of = |max_entries| proto::ListSnapshotsRequest { max_entries, ..Default::default() };
    assert_eq!(listed(&bench, of(0)).await, Ok(all.clone()));
    assert_eq!(listed(&bench, of(2)).await, Ok(all.clone()));
    let filtered = proto::ListSnapshotsRequest { source_volume_id: "w".into(), ..of(2) };
    assert_eq!(listed(&bench, filtered).await, Ok(all[3..].to_vec()));
    let filtered = proto::ListSnapshotsRequest { snapshot_id: all[1].clone(), ..of(0) };
    assert_eq!(listed(&bench, filtered).await, Ok(all[1..2].to_vec()));

    let before = bench.backend.calls_of(Rpc::ListSnapshots).len();
    bench.backend.next(Rpc::ListSnapshots, Answer::honest());
    bench.backend.next(Rpc::ListSnapshots, Answer::fail(Code::Aborted, "no such token"));
    let found = listed(&bench, of(4)).await.unwrap();
    assert_eq!(found, [&all[..4], &all[..]].concat(), "what comes twice is no harm");
    let tokens = bench.backend.calls_of(Rpc::ListSnapshots).into_iter().skip(before);
    let tokens = tokens.map(|call| match call.ask {
        support::scripted::Ask::ListSnapshots(request) => request.starting_token,
        _ => String::new(),
    });
    assert_eq!(tokens.collect::<Vec<_>>(), ["", "4", "", "4"]);

    let page = |next_token: &str| {
        Answer::reply(&proto::ListSnapshotsResponse { entries: vec![], next_token: next_token.into() })
    };
    for token in ["a", "b", "a"] {
        bench.backend.next(Rpc::ListSnapshots, page(token));
    }
    assert!(listed(&bench, of(0)).await.unwrap_err().contains("a token has come twice"));
    bench.backend.always(Rpc::ListSnapshots, Answer::fail(Code::Aborted, "never"));
    assert!(listed(&bench, of(0)).await.unwrap_err().contains("does not take its own tokens"));
    bench.backend.assert_lawful();
}
