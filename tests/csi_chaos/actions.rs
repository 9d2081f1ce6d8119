//! Each thing that a rule can do, by both ends.
use std::time::Instant;

use serde_json::{Value, json};
use wharfline::csi::{Code, Failure, Origin, Readiness, Rpc, StreamTerms, Terms, proto};

use crate::rig::{LONG, Rig, SHORT, until_async};
use crate::support::scripted::requests::{allocated, create, snapshot};
use crate::support::scripted::{Answer, Config, End, Gate};

fn rule(what: &Value) -> Value {
    let mut rule = json!({ "method": "CreateVolume", "times": 1 });
    rule.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
    json!({ "rules": [rule] })
}

fn ended(result: &Result<proto::Volume, Failure>) -> (Code, Origin) {
    result.as_ref().map_or_else(|failure| (failure.code, failure.origin), |_| (Code::Ok, Origin::Peer))
}

/// What the caller gets, how often the driver was asked, and what the line says of it; then the same call goes through.
#[tokio::test]
async fn how_a_call_ends_for_its_caller_and_for_the_driver() {
    use Origin::{Local, Peer};
    for (what, caller, asked, words) in [
        (json!({}), (Code::Ok, Peer), 1, r#"rule="1" injected="nothing" driver="OK" caller="OK""#),
        (
            json!({ "code": "INTERNAL", "message": "disk on fire" }),
            (Code::Internal, Peer),
            0,
            r#"injected="code INTERNAL" driver="not asked" caller="INTERNAL""#,
        ),
        (
            json!({ "loseReply": "Unavailable" }),
            (Code::Unavailable, Peer),
            1,
            r#"injected="loseReply Unavailable" driver="OK" caller="UNAVAILABLE""#,
        ),
        (
            json!({ "loseReply": "Cut" }),
            (Code::Unavailable, Local),
            1,
            r#"injected="loseReply Cut" driver="OK" caller="cut""#,
        ),
        (
            json!({ "loseReply": "Silence" }),
            (Code::DeadlineExceeded, Local),
            1,
            r#"injected="loseReply Silence" driver="OK" caller="left""#,
        ),
        (
            json!({ "answerCode": "ABORTED" }),
            (Code::Aborted, Peer),
            1,
            r#"injected="answerCode ABORTED" driver="OK" caller="ABORTED""#,
        ),
        (
            json!({ "hang": true }),
            (Code::DeadlineExceeded, Local),
            0,
            r#"injected="hang" driver="not asked" caller="left""#,
        ),
        (
            json!({ "crash": "Before" }),
            (Code::Unavailable, Local),
            0,
            r#"injected="crash Before" driver="not asked" caller="cut""#,
        ),
        (
            json!({ "crash": "After" }),
            (Code::Unavailable, Local),
            1,
            r#"injected="crash After" driver="OK" caller="cut""#,
        ),
        (
            json!({ "repeat": "After" }),
            (Code::Ok, Peer),
            2,
            r#"injected="repeat After" driver="OK, OK" caller="OK""#,
        ),
        (
            json!({ "repeat": "After", "loseReply": "Unavailable" }),
            (Code::Unavailable, Peer),
            2,
            r#"injected="repeat After, loseReply Unavailable" driver="OK, OK" caller="UNAVAILABLE""#,
        ),
    ] {
        assert_ends(&what, caller, asked, words).await;
    }
}

async fn assert_ends(what: &Value, caller: (Code, Origin), asked: usize, words: &str) {
    let rig = Rig::new(&rule(what));
    let hangs = what.get("hang").is_some() || what["loseReply"] == "Silence";
    let deadline = if hangs { SHORT } else { LONG };
    let result = rig.plugin.create_volume(create("pvc-1"), deadline).await;
    assert_eq!(ended(&result), caller, "{what}: {result:?}");
    let calls = rig.backend.calls_of(Rpc::CreateVolume);
    assert_eq!(calls.len(), asked, "{what}");
    assert_eq!(rig.backend.volumes().len(), asked.min(1), "{what}");
    if what.get("message").is_some() {
        assert_eq!(result.unwrap_err().message, "disk on fire");
    }
    let line = rig.chaos.line("CreateVolume").await;
    assert!(line.contains(r#"id="pvc-1""#) && line.contains(words), "{what}: {line}");
    let again = rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap();
    assert_eq!(rig.backend.volumes(), [again.volume_id], "{what}");
    assert_eq!(rig.backend.violations(), Vec::<String>::new(), "{what}");
}

#[tokio::test]
async fn a_network_that_doubles_calls_does_so_at_once() {
    let rig = Rig::new(&rule(&json!({ "repeat": "AtOnce" })));
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::Aborted, "one is under way").hang(&gate));
    let calling = rig.plugin.create_volume(create("pvc-1"), LONG);
    let both = async {
        until_async("both are under way", || rig.backend.calls_of(Rpc::CreateVolume).len() == 2).await;
        gate.open();
    };
    let (result, ()) = tokio::join!(calling, both);
    // Which of the two is told first the network decides; each caller hears of its own.
    let line = rig.chaos.line("CreateVolume").await;
    let (told, words) = match result {
        Ok(_) => ("OK", r#"driver="OK, ABORTED""#),
        Err(failure) => (failure.code_name(), r#"driver="ABORTED, OK""#),
    };
    assert!(line.contains(words) && line.contains(&format!("caller=\"{told}\"")), "{told}: {line}");
}

#[tokio::test]
async fn latency_stands_before_the_driver_or_behind_it() {
    for (field, seen_late) in [("delay", true), ("delayAnswer", false)] {
        let rig = Rig::new(&rule(&json!({ field: "300ms" })));
        let begin = Instant::now();
        let gone = std::time::Duration::from_millis(300);
        let beginning = tokio::time::Instant::now();
        rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap();
        assert!(begin.elapsed() >= gone, "{field}: {:?}", begin.elapsed());
        let call = rig.backend.calls_of(Rpc::CreateVolume).remove(0);
        assert_eq!(call.started - beginning >= gone, seen_late, "{field}");
    }
}

/// Whoever gives up before a late answer comes has to do with a driver that has done it.
#[tokio::test]
async fn an_answer_behind_the_deadline_is_one_that_the_driver_gave() {
    let rig = Rig::new(&rule(&json!({ "delayAnswer": "1h" })));
    let result = rig.plugin.create_volume(create("pvc-1"), SHORT).await;
    assert_eq!(ended(&result), (Code::DeadlineExceeded, Origin::Local));
    let ends = rig.backend.calls_of(Rpc::CreateVolume).remove(0).ended.map(|(_, end)| end);
    assert_eq!(ends, Some(End::Answered(Code::Ok)));
    assert!(rig.chaos.line("CreateVolume").await.contains(r#"driver="OK" caller="left""#));
}

#[tokio::test]
async fn lies_of_every_kind() {
    let script = json!({ "rules": [
        { "method": "Probe", "lie": { "ready": false } },
        { "method": "CreateVolume", "times": 1, "lie": { "volume": { "volume_id": "other", "capacity_bytes": 7 } } },
        { "method": "CreateVolume", "times": 1, "lie": "Empty" },
        { "method": "NodeGetInfo", "code": "OK", "lie": { "node_id": "nobody", "max_volumes_per_node": 3 } },
        { "method": "DeleteVolume", "code": "OK" },
        { "method": "GetCapacity", "lie": { "available_capacity": 1 } },
    ] });
    let rig = Rig::new(&script);
    assert_eq!(rig.plugin.probe(LONG).await.unwrap(), Readiness::Starting);
    let volume = rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap();
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("other", 7));
    assert_eq!(
        volume.volume_context,
        Config::full().volume_context,
        "what the lie does not name is as it was"
    );
    let nothing = rig.plugin.create_volume(create("pvc-1"), LONG).await.unwrap_err();
    assert!(nothing.breach.is_some(), "{nothing:?}");
    let info = rig.plugin.node_get_info(LONG).await.unwrap();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("nobody", 3));
    rig.plugin.delete_volume(crate::support::scripted::requests::delete("other"), LONG).await.unwrap();
    for (rpc, asked) in
        [(Rpc::CreateVolume, 2), (Rpc::NodeGetInfo, 0), (Rpc::DeleteVolume, 0), (Rpc::Probe, 1)]
    {
        assert_eq!(rig.backend.calls_of(rpc).len(), asked, "{rpc}");
    }
    assert_eq!(rig.backend.volumes().len(), 1, "the deletion was a lie");
    // An error is not lied about.
    rig.backend.next(Rpc::GetCapacity, Answer::fail(Code::Internal, "no"));
    let failure = rig.plugin.get_capacity(proto::GetCapacityRequest::default(), LONG).await.unwrap_err();
    assert_eq!((failure.code, failure.origin), (Code::Internal, Origin::Peer));
}

#[tokio::test]
async fn rules_name_volumes_and_snapshots() {
    let script = json!({ "rules": [
        { "method": "Create*", "id": "pvc-bad*", "code": "RESOURCE_EXHAUSTED" },
        { "method": "CreateSnapshot", "id": "nightly", "code": "ABORTED" },
    ] });
    let rig = Rig::with(Config::everything(), &script);
    let bad = rig.plugin.create_volume(create("pvc-bad-1"), LONG).await.unwrap_err();
    assert_eq!(bad.code, Code::ResourceExhausted);
    let volume = rig.plugin.create_volume(create("pvc-good"), LONG).await.unwrap();
    let nightly = rig.plugin.create_snapshot(snapshot(&volume.volume_id, "nightly"), LONG).await.unwrap_err();
    assert_eq!(nightly.code, Code::Aborted);
    rig.plugin.create_snapshot(snapshot(&volume.volume_id, "weekly"), LONG).await.unwrap();
    assert_eq!(rig.backend.calls_of(Rpc::CreateSnapshot).len(), 1);
}

/// What is injected into a stream comes behind its first part.
#[tokio::test]
async fn streams_break_in_the_middle() {
    let terms = |deadline| StreamTerms { terms: Terms::from(deadline), silence: deadline };
    let part = |offset| proto::GetMetadataAllocatedResponse {
        block_metadata_type: proto::BlockMetadataType::FixedLength.into(),
        volume_capacity_bytes: 1 << 20,
        block_metadata: vec![proto::BlockMetadata { byte_offset: offset, size_bytes: 4096 }],
    };
    for (what, parts, ends) in [
        (json!({}), 2, None),
        (json!({ "answerCode": "ABORTED" }), 1, Some((Code::Aborted, Origin::Peer))),
        (json!({ "loseReply": "Unavailable" }), 1, Some((Code::Unavailable, Origin::Peer))),
        (json!({ "loseReply": "Cut" }), 1, Some((Code::Unavailable, Origin::Local))),
        (json!({ "loseReply": "Silence" }), 1, Some((Code::DeadlineExceeded, Origin::Local))),
        (json!({ "crash": "After" }), 1, Some((Code::Unavailable, Origin::Local))),
        (json!({ "code": "NOT_FOUND" }), 0, Some((Code::NotFound, Origin::Peer))),
        (json!({ "repeat": "After" }), 2, None),
    ] {
        let mut rule = json!({ "method": "GetMetadataAllocated" });
        rule.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        let rig = Rig::with(Config::everything(), &json!({ "rules": [rule] }));
        rig.backend.always(Rpc::GetMetadataAllocated, Answer::stream([part(0), part(4096)]));
        let deadline = if what["loseReply"] == "Silence" { SHORT } else { LONG };
        let asked = rig.plugin.get_metadata_allocated(allocated("snap", 0), terms(deadline)).await;
        let (mut read, mut end) = (0, None);
        match asked {
            Err(broken) => end = Some((broken.failure.code, broken.failure.origin)),
            Ok(mut stream) => loop {
                match stream.next().await {
                    Ok(Some(_)) => read += 1,
                    Ok(None) => break,
                    Err(broken) => {
                        end = Some((broken.failure.code, broken.failure.origin));
                        break;
                    }
                }
            },
        }
        assert_eq!((read, end), (parts, ends), "{what}");
    }
}

#[tokio::test]
async fn each_part_of_a_stream_is_lied_about() {
    let rule = json!({ "method": "GetMetadataAllocated", "lie": { "volume_capacity_bytes": 8192 } });
    let rig = Rig::with(Config::everything(), &json!({ "rules": [rule] }));
    let part = |offset| proto::GetMetadataAllocatedResponse {
        block_metadata_type: proto::BlockMetadataType::FixedLength.into(),
        volume_capacity_bytes: 1 << 20,
        block_metadata: vec![proto::BlockMetadata { byte_offset: offset, size_bytes: 4096 }],
    };
    rig.backend.next(Rpc::GetMetadataAllocated, Answer::stream([part(0), part(4096)]));
    let terms = StreamTerms { terms: Terms::from(LONG), silence: LONG };
    let mut stream = rig.plugin.get_metadata_allocated(allocated("snap", 0), terms).await.unwrap();
    for _ in 0..2 {
        assert_eq!(stream.next().await.unwrap().unwrap().capacity, 8192);
    }
    assert!(stream.next().await.unwrap().is_none());
}

/// One answer that is lost with its connection takes the other calls on it along, as a broken connection does.
#[tokio::test]
async fn a_cut_is_a_cut_for_all_calls_of_the_connection() {
    let script = json!({ "rules": [{ "method": "CreateVolume", "id": "pvc-cut", "loseReply": "Cut" }] });
    let rig = Rig::new(&script);
    let gate = Gate::new();
    rig.backend.next_for(Rpc::CreateVolume, "pvc-slow", Answer::honest().hang(&gate));
    let slow = rig.plugin.create_volume(create("pvc-slow"), LONG);
    let cut = async {
        until_async("the slow one is there", || rig.backend.calls_of(Rpc::CreateVolume).len() == 1).await;
        rig.plugin.create_volume(create("pvc-cut"), LONG).await
    };
    let (slow, cut) = tokio::join!(slow, cut);
    for result in [slow, cut] {
        assert_eq!(ended(&result), (Code::Unavailable, Origin::Local));
    }
    let ended = || rig.backend.calls_of(Rpc::CreateVolume)[0].ended.map(|(_, end)| end);
    until_async("the driver hears of it", || ended() == Some(End::Left)).await;
}
