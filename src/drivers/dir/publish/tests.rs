use super::*;
use crate::drivers::dir::request::{Capability, target_path};

const MODES: [AccessMode; 4] =
    [AccessMode::Writer, AccessMode::ReaderOnly, AccessMode::SingleWriter, AccessMode::MultiWriter];

fn publication(target: &str, mode: AccessMode, read_only: bool) -> Publication {
    let capability = Capability { mode, fs_type: String::new(), mount_flags: Vec::new() };
    Publication { target: target_path(target).unwrap(), capability, read_only }
}

fn record(publications: &[&Publication]) -> Record {
    let mut record = Record::new(VolumeId::of("n", "/d".as_ref(), "v"), "v", 0, [].into());
    record.publications = publications.iter().map(|one| (*one).clone()).collect();
    record
}

#[test]
fn one_target() {
    let asked = publication("/t", AccessMode::Writer, false);
    let other_mode = publication("/t", AccessMode::MultiWriter, false);
    let read_only = publication("/t", AccessMode::Writer, true);
    let there = Seen::Volume(Access::ReadWrite);
    let next = |seen, known: &[&Publication]| next(seen, Access::ReadWrite, &record(known), &asked, &[]);
    for seen in [Seen::Nothing, Seen::Directory] {
        for known in [&[][..], &[&asked], &[&other_mode]] {
            // A record without a mount is an attempt that failed, or was before the last boot.
            assert_eq!(next(seen, known).unwrap(), Next::Mount, "{seen:?}");
        }
    }
    assert_eq!(next(there, &[&asked]).unwrap(), Next::Converged);
    assert_eq!(next(there, &[]).unwrap(), Next::Remember);
    for known in [&[&other_mode][..], &[&read_only]] {
        assert!(matches!(next(there, known), Err(Refusal::PublishedOtherwise { .. })));
    }
    let seen = Seen::Volume(Access::ReadOnly);
    assert!(matches!(next(seen, &[&asked]), Err(Refusal::PublishedOtherwise { .. })));
    for seen in [Seen::Foreign, Seen::NoDirectory] {
        assert!(matches!(next(seen, &[&asked]), Err(Refusal::BadTarget { .. })), "{seen:?}");
    }
}

#[test]
fn a_second_target_is_for_several_writers_alone() {
    for one in MODES {
        for two in MODES {
            let (first, asked) = (publication("/one", one, false), publication("/two", two, false));
            let verdict = next(Seen::Nothing, Access::ReadWrite, &record(&[&first]), &asked, &[&first]);
            if one == AccessMode::MultiWriter && two == AccessMode::MultiWriter {
                assert_eq!(verdict.unwrap(), Next::Mount);
            } else {
                assert!(matches!(verdict, Err(Refusal::InUse { .. })), "{one:?} {two:?}");
            }
        }
    }
}
