//! Which blocks of a snapshot hold something, or have changed: streams, and how they break.
use wharfline::csi::Advice;
use wharfline::csi::check::{Block, BlockKind};

use super::*;

const KIB: i64 = 1 << 10;

/// A snapshot of a volume of a mebibyte, and one that was taken later.
async fn two_snapshots(bench: &Bench) -> (String, String) {
    let volume = bench.plugin.create_volume(create("pvc"), LONG).await.unwrap();
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        let taken = bench.plugin.create_snapshot(snapshot(&volume.volume_id, name), LONG).await.unwrap();
        ids.push(taken.snapshot_id);
    }
    (ids.remove(0), ids.remove(0))
}

fn part(blocks: &[(i64, i64)]) -> proto::GetMetadataAllocatedResponse {
    proto::GetMetadataAllocatedResponse {
        block_metadata_type: proto::BlockMetadataType::VariableLength as i32,
        volume_capacity_bytes: 1 << 20,
        block_metadata: blocks
            .iter()
            .map(|(byte_offset, size_bytes)| proto::BlockMetadata {
                byte_offset: *byte_offset,
                size_bytes: *size_bytes,
            })
            .collect(),
    }
}

fn block(start: i64, size: i64) -> Block {
    Block { start, end: start + size }
}

/// Reads to the end, or to where it broke.
async fn read(stream: &mut BlockStream) -> (Vec<Block>, Result<(), Interrupted>) {
    let mut blocks = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(part)) => blocks.extend(part.blocks),
            Ok(None) => return (blocks, Ok(())),
            Err(interrupted) => return (blocks, Err(interrupted)),
        }
    }
}

/// Part of obligation CO-META-01.
#[tokio::test]
async fn what_a_snapshot_holds_and_what_changed_since() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    bench.backend.configure(|config| {
        config.allocated = (0..5).map(|number| (number * 8 * KIB, 4 * KIB)).collect();
        config.changed = Some(vec![(KIB, 3 * KIB), (16 * KIB, 9 * KIB)]);
    });
    let (one, two) = two_snapshots(&bench).await;
    let request = proto::GetMetadataAllocatedRequest { max_results: 2, ..allocated(&one, 0) };
    let mut stream = bench.plugin.get_metadata_allocated(request, patient(LONG)).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.kind, first.capacity, first.blocks.len()), (BlockKind::Fixed, 1 << 20, 2));
    let (rest, end) = read(&mut stream).await;
    assert_eq!((rest.len(), end), (3, Ok(())));
    assert_eq!(stream.next().await, Ok(None), "and nothing comes after the end");
    let mut stream = bench.plugin.get_metadata_delta(delta(&one, &two, 0), patient(LONG)).await.unwrap();
    assert_eq!(read(&mut stream).await, (vec![block(KIB, 3 * KIB), block(16 * KIB, 9 * KIB)], Ok(())));
    // An answer without any part is an answer.
    bench.backend.configure(|config| config.changed = Some(Vec::new()));
    let mut stream = bench.plugin.get_metadata_delta(delta(&one, &two, 0), patient(LONG)).await.unwrap();
    assert_eq!(read(&mut stream).await, (vec![], Ok(())));
    let records = bench.records().into_iter().filter(|record| record.rpc.streams()).collect::<Vec<_>>();
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| record.result.is_ok() && record.volume.is_some()));
    bench.backend.assert_lawful();
}

/// Obligations CO-META-02, CO-META-03.
#[tokio::test]
async fn a_stream_that_breaks_goes_on_after_the_last_byte_that_was_told() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let ranges = vec![(0, 5), (10, 20), (40, 1), (50, 9), (70, 3)];
    bench.backend.configure(|config| config.allocated.clone_from(&ranges));
    let (one, _) = two_snapshots(&bench).await;
    let sent = || [part(&ranges[..2]), part(&ranges[2..3])];
    let hanging = Gate::new();
    for (name, answer) in [
        ("cut", Answer::stream(sent()).then_cut()),
        ("failed", Answer::stream(sent()).then_fail(Code::Internal, "no more")),
        ("without a word", Answer::stream(sent()).then_no_status()),
        ("silent", Answer::stream(sent()).then_hang(&hanging)),
    ] {
        bench.backend.next(Rpc::GetMetadataAllocated, answer);
        // One that is only silent is given up soon, the others are listened to.
        let silence = if name == "silent" { SHORT } else { LONG };
        let terms = StreamTerms { terms: LONG.into(), silence };
        let mut stream =
            bench.plugin.get_metadata_allocated(allocated(&one, 0), terms.clone()).await.unwrap();
        let (mut blocks, end) = read(&mut stream).await;
        assert_eq!(blocks, [block(0, 5), block(10, 20), block(40, 1)], "{name}");
        let interrupted = end.unwrap_err();
        assert_eq!(interrupted.resume_at, Some(41), "{name}: {interrupted}");
        assert_eq!(stream.next().await, Err(interrupted.clone()), "{name}: it does not end well later");
        assert_eq!(bench.records().last().unwrap().result, Err(interrupted.failure), "{name}");
        // The plugin may begin with what it told before: it is cut off.
        bench
            .backend
            .next(Rpc::GetMetadataAllocated, Answer::stream([part(&[(40, 2), (50, 9)]), part(&ranges[4..])]));
        let again = allocated(&one, interrupted.resume_at.unwrap());
        let mut stream = bench.plugin.get_metadata_allocated(again, terms).await.unwrap();
        let (rest, end) = read(&mut stream).await;
        assert_eq!(end, Ok(()), "{name}");
        blocks.extend(rest);
        let ends = blocks.windows(2).all(|pair| pair[0].end <= pair[1].start);
        assert!(ends && blocks.len() == 6, "{name}: {blocks:?}");
        let asked = bench.backend.calls_of(Rpc::GetMetadataAllocated).pop().unwrap().ask;
        assert!(
            matches!(asked, support::scripted::Ask::GetMetadataAllocated(request) if request.starting_offset == 41)
        );
    }
    bench.backend.until("all are over", |log| log.iter().all(|call| !call.in_flight())).await;
}

/// Obligation CO-META-04.
#[tokio::test]
async fn of_a_stream_that_contradicts_itself_nothing_is_to_be_used() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let answer = Answer::stream([part(&[(0, 10)]), part(&[(5, 10)])]);
    bench.backend.next(Rpc::GetMetadataAllocated, answer);
    let mut stream = bench.plugin.get_metadata_allocated(allocated("s", 0), patient(LONG)).await.unwrap();
    let (_, end) = read(&mut stream).await;
    let interrupted = end.unwrap_err();
    assert_eq!((interrupted.failure.breach, interrupted.resume_at), (Some("WrongBlocks"), None));
    // More in one part than was asked for.
    let answer = Answer::stream([part(&[(0, 10), (20, 10)])]);
    bench.backend.next(Rpc::GetMetadataAllocated, answer);
    let request = proto::GetMetadataAllocatedRequest { max_results: 1, ..allocated("s", 0) };
    let mut stream = bench.plugin.get_metadata_allocated(request, patient(LONG)).await.unwrap();
    assert_eq!(read(&mut stream).await.1.unwrap_err().failure.breach, Some("WrongBlocks"));
}

/// Obligation CO-META-05.
#[tokio::test]
async fn who_keeps_no_account_of_changes_is_copied_whole() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let (one, two) = two_snapshots(&bench).await;
    // A server may send its status with the head of the answer, or after it.
    let open = bench.plugin.get_metadata_delta(delta(&one, &two, 7), patient(LONG)).await;
    let interrupted = open.unwrap_err();
    assert_eq!(interrupted.failure.advice(), Advice::CopyWhole, "{interrupted}");
    assert_eq!(interrupted.resume_at, Some(7));
    let late = Answer::stream(Vec::<proto::GetMetadataDeltaResponse>::new())
        .then_fail(Code::FailedPrecondition, "not tracked");
    bench.backend.next(Rpc::GetMetadataDelta, late);
    let mut stream = bench.plugin.get_metadata_delta(delta(&one, &two, 7), patient(LONG)).await.unwrap();
    let interrupted = stream.next().await.unwrap_err();
    assert_eq!((interrupted.failure.advice(), interrupted.resume_at), (Advice::CopyWhole, Some(7)));
    let beyond = bench.plugin.get_metadata_allocated(allocated(&one, 1 << 30), patient(LONG)).await;
    assert_eq!(beyond.unwrap_err().failure.advice(), Advice::ChangeInput);
    bench.backend.assert_lawful();
}

/// Obligation CO-META-06.
#[tokio::test(start_paused = true)]
async fn a_stream_of_minutes_keeps_off_the_deletion_of_its_snapshot_and_nothing_else() {
    let backend = Backend::new(Config::everything());
    let down = tokio_util::sync::CancellationToken::new();
    let (dial, serving) = support::scripted::inside(&backend, Site::new("node-a"), down);
    let plugin = Plugin::new(dial, PluginOptions { alpha: Alpha::On, ..PluginOptions::default() });
    let minute = Duration::from_secs(60);
    let volume = plugin.create_volume(create("pvc"), LONG).await.unwrap();
    let taken = plugin.create_snapshot(snapshot(&volume.volume_id, "one"), LONG).await.unwrap();
    let parts = (0..11).map(|number| part(&[(number * 10, 5)]));
    backend.next(Rpc::GetMetadataAllocated, Answer::stream(parts).trickling(minute));
    let terms = StreamTerms { terms: (20 * minute).into(), silence: 2 * minute };
    let began = tokio::time::Instant::now();
    let id = taken.snapshot_id.as_str();
    let mut stream = plugin.get_metadata_allocated(allocated(id, 0), terms.clone()).await.unwrap();
    stream.next().await.unwrap();
    let (deleting, request) = (plugin.clone(), delete_snapshot(id));
    let deletion = tokio::spawn(async move { deleting.delete_snapshot(request, LONG).await });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    // The volume, and another snapshot of it, have nothing to do with that.
    let way = Way::new(&volume.volume_id, "node-a");
    plugin.controller_expand_volume(way.expand(2 << 20), LONG).await.unwrap();
    let other = plugin.create_snapshot(snapshot(&volume.volume_id, "two"), LONG).await.unwrap();
    plugin.delete_snapshot(delete_snapshot(&other.snapshot_id), LONG).await.unwrap();
    assert!(began.elapsed() < minute);
    let (blocks, end) = read(&mut stream).await;
    assert_eq!((blocks.len(), end), (10, Ok(())));
    assert_eq!(
        began.elapsed().as_secs() / 60,
        10,
        "more than its silence in all, and no more than its deadline"
    );
    assert!(backend.calls_of(Rpc::DeleteSnapshot).iter().all(|call| call.ask.subject() != Some(id)));
    drop(stream);
    deletion.await.unwrap().unwrap();

    // Silence ends one before its deadline, and the deadline one that trickles for ever.
    let endless = |pause| Answer::stream((0..1000).map(|number| part(&[(number * 10, 5)]))).trickling(pause);
    for (pause, told, after) in
        [(3 * minute, "said nothing for 120s", 2 * minute), (minute, "no answer within 1200s", 20 * minute)]
    {
        backend.next(Rpc::GetMetadataAllocated, endless(pause));
        let began = tokio::time::Instant::now();
        let mut stream = plugin.get_metadata_allocated(allocated(id, 0), terms.clone()).await.unwrap();
        let failure = read(&mut stream).await.1.unwrap_err().failure;
        assert!(failure.is_deadline() && failure.message.contains(told), "{failure}");
        assert_eq!(began.elapsed().as_secs(), after.as_secs(), "{told}");
    }
    plugin.delete_volume(delete(&volume.volume_id), LONG).await.unwrap();
    backend.assert_lawful();
    drop(plugin);
    serving.abort();
}

/// A reader that is slow, or stops, holds up the plugin's stream: not memory, and no other call.
#[tokio::test]
async fn what_is_not_read_is_not_sent() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let blocks = (0..40_000).map(|number| (number * 2, 1)).collect::<Vec<_>>();
    let mut large = part(&blocks);
    large.volume_capacity_bytes = i64::MAX;
    // 16 MiB and more: what lies in windows and sockets on the way is a fraction of that.
    let parts = std::iter::repeat_n(large, 60).collect::<Vec<_>>();
    let size = prost::Message::encoded_len(&parts[0]);
    assert!(size * parts.len() > 16 << 20, "{size}");
    bench.backend.next(Rpc::GetMetadataAllocated, Answer::stream(parts));
    let mut stream = bench.plugin.get_metadata_allocated(allocated("s", 0), patient(LONG)).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().blocks.len(), 40_000);
    for _ in 0..200 {
        call(&bench.plugin, Rpc::ListVolumes, "", LONG).await.unwrap();
    }
    assert!(bench.backend.calls_of(Rpc::GetMetadataAllocated)[0].in_flight());
    // The second part begins where the first did.
    assert!(stream.next().await.unwrap_err().failure.breach.is_some());
    bench.backend.until("the plugin saw us go", |log| log.iter().all(|call| !call.in_flight())).await;
}

#[tokio::test]
async fn a_stream_that_is_dropped_is_reported_and_lets_its_snapshot_go() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let answer = Answer::stream([part(&[(0, 1)])]).then_hang(&Gate::new());
    bench.backend.next(Rpc::GetMetadataAllocated, answer);
    let mut stream = bench.plugin.get_metadata_allocated(allocated("s", 0), patient(LONG)).await.unwrap();
    stream.next().await.unwrap();
    assert_eq!(*bench.plugin.under_way().borrow(), 1);
    drop(stream);
    assert_eq!(*bench.plugin.under_way().borrow(), 0);
    let record = bench.records().pop().unwrap();
    assert_eq!((record.code_name(), record.volume.as_deref()), ("CANCELLED", Some("s")));
    assert!(!bench.plugin.owes_snapshot("s"), "it only read");
    bench.backend.until("the plugin saw us go", |log| log.iter().all(|call| !call.in_flight())).await;
    bench.plugin.delete_snapshot(delete_snapshot("s"), LONG).await.unwrap();
    bench.backend.assert_lawful();
}
