use super::*;
use crate::drivers::request::{AccessMode, Capability, path};

const MODES: [AccessMode; 4] =
    [AccessMode::Writer, AccessMode::ReaderOnly, AccessMode::SingleWriter, AccessMode::MultiWriter];
const FOR_NODES: [AccessMode; 3] =
    [AccessMode::NodesReaderOnly, AccessMode::NodesSingleWriter, AccessMode::NodesMultiWriter];

fn publication(target: &str, mode: AccessMode, read_only: bool) -> Publication {
    let capability = Capability { mode, block: false, fs_type: String::new(), mount_flags: Vec::new() };
    Publication { target: path("target_path", target).unwrap(), capability, read_only }
}

fn recorded(publications: &[&Publication]) -> Publications {
    let mut recorded = Publications::default();
    for one in publications {
        recorded.set((*one).clone());
    }
    recorded
}

fn seen(seen: Seen, leaf: Leaf, elsewhere: &[Publication]) -> View<'_> {
    View { volume: "v", leaf, seen, elsewhere }
}

#[test]
fn one_target() {
    let asked = publication("/t", AccessMode::Writer, false);
    let other_mode = publication("/t", AccessMode::MultiWriter, false);
    let read_only = publication("/t", AccessMode::Writer, true);
    let there = Seen::Volume(Access::ReadWrite);
    for (leaf, good, bad) in
        [(Leaf::Directory, Seen::Directory, Seen::File), (Leaf::File, Seen::File, Seen::Directory)]
    {
        let next = |shown, known: &[&Publication]| {
            next(&seen(shown, leaf, &[]), &recorded(known), &asked, Access::ReadWrite)
        };
        for shown in [Seen::Nothing, good] {
            for known in [&[][..], &[&asked], &[&other_mode]] {
                // A record without a mount is an attempt that failed, or was before the last boot.
                assert_eq!(next(shown, known).unwrap(), Next::Mount, "{shown:?}");
            }
        }
        assert_eq!(next(there, &[&asked]).unwrap(), Next::Converged);
        assert_eq!(next(there, &[]).unwrap(), Next::Remember);
        for known in [&[&other_mode][..], &[&read_only]] {
            assert!(matches!(next(there, known), Err(Refusal::PublishedOtherwise { .. })));
        }
        let shown = Seen::Volume(Access::ReadOnly);
        assert!(matches!(next(shown, &[&asked]), Err(Refusal::PublishedOtherwise { .. })));
        for shown in [Seen::Foreign, Seen::Odd, bad] {
            assert!(matches!(next(shown, &[&asked]), Err(Refusal::BadTarget { .. })), "{shown:?}");
        }
    }
}

#[test]
fn a_second_target_is_for_the_modes_made_for_it() {
    for one in MODES.into_iter().chain(FOR_NODES) {
        for two in MODES.into_iter().chain(FOR_NODES) {
            let (first, asked) = (publication("/one", one, false), publication("/two", two, false));
            let elsewhere = [first.clone()];
            let view = seen(Seen::Nothing, Leaf::Directory, &elsewhere);
            let verdict = next(&view, &recorded(&[&first]), &asked, Access::ReadWrite);
            if one == two && (one == AccessMode::MultiWriter || FOR_NODES.contains(&one)) {
                assert_eq!(verdict.unwrap(), Next::Mount);
            } else {
                assert!(matches!(verdict, Err(Refusal::InUse { .. })), "{one:?} {two:?}");
            }
        }
    }
}

#[test]
fn readers_and_writers_of_a_device_are_beside_each_other_and_it_is_written_as_soon_as_one_of_them_writes() {
    let of = |target, read_only| {
        let mut one = publication(target, AccessMode::MultiWriter, read_only);
        one.capability.block = true;
        one
    };
    for (there, asked, writes) in [
        (vec![], true, false),
        (vec![], false, true),
        (vec![true], true, false),
        (vec![true], false, true),
        (vec![false], true, true),
        (vec![false], false, true),
        (vec![true, false], true, true),
        (vec![true, true], true, false),
    ] {
        let elsewhere: Vec<_> = there.iter().map(|reads| of("/one", *reads)).collect();
        let view = seen(Seen::Nothing, Leaf::File, &elsewhere);
        let access = if asked { Access::ReadOnly } else { Access::ReadWrite };
        let verdict = next(&view, &Publications::default(), &of("/two", asked), access);
        assert_eq!(verdict.unwrap(), Next::Mount, "{there:?} {asked}");
        assert_eq!(between(access, &elsewhere) == Access::ReadWrite, writes, "{there:?} {asked}");
    }
}
