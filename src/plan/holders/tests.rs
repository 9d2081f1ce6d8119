use super::super::release::Fence;
use super::*;
use crate::api::meta::Rung;

fn holder(uid: &str, node: &str, read_only: bool) -> Holder {
    release::holder(ObjectRef { namespace: "d".into(), name: uid.into(), uid: uid.into() }, node, read_only)
}

/// The same with the attachment that it was granted by.
fn by(attachment: &str, holder: Holder) -> Holder {
    Holder { attachment_uid: attachment.into(), ..holder }
}

fn facts(mode: AccessMode) -> Facts {
    Facts {
        claim: "c".into(),
        volume: "v".into(),
        mode,
        open: true,
        expanding: false,
        holders: Vec::new(),
        attachments: Vec::new(),
        wanting: Vec::new(),
        chosen: Vec::new(),
    }
}

/// An attachment that lets these in.
fn attachment(node: &str, uid: &str, allocations: &[&str]) -> Attachment {
    let used = !allocations.is_empty();
    let attached = if used { Rung::Up } else { Rung::Unknown };
    Attachment {
        node: node.into(),
        uid: uid.into(),
        going: false,
        read_only: false,
        allocations: allocations.iter().map(|a| (*a).to_owned()).collect(),
        seen: Leaving { released: false, fence: Fence::None, attach_required: true, attached, used },
    }
}

fn going(attachment: Attachment) -> Attachment {
    Attachment { going: true, ..attachment }
}

/// The world as the steps leave it.
fn carry_out(facts: &mut Facts, step: Step, made: &mut usize) {
    match step {
        Step::Holders { holders, unseen } => {
            let there = |h: &Holder| facts.attachments.iter().any(|a| a.uid == h.attachment_uid);
            assert!(!unseen.iter().any(there), "{unseen:?}");
            facts.holders = holders.into_iter().map(|h| (h, User::NotDown)).collect();
        }
        Step::Close { node } => {
            facts.attachments.iter_mut().filter(|a| a.node == node).for_each(|a| a.going = true);
        }
        Step::Attach { node, read_only, granted } => {
            assert!(facts.attachments.iter().all(|a| a.node != node), "a second one");
            *made += 1;
            let (uid, allocations) = granted.unwrap_or((format!("{node}{made}"), Vec::new()));
            let let_in: Vec<_> = allocations.iter().map(String::as_str).collect();
            facts.attachments.push(Attachment { read_only, ..attachment(&node, &uid, &let_in) });
            facts.chosen.retain(|(_, chosen)| *chosen != uid);
        }
        Step::Admit { node, allocations } => {
            let attachment = facts.attachments.iter_mut().find(|a| a.node == node).unwrap();
            let is_holder = |uid: &String| {
                facts
                    .holders
                    .iter()
                    .any(|(h, _)| h.allocation.uid == *uid && h.attachment_uid == attachment.uid)
            };
            let new: Vec<_> = allocations.iter().filter(|a| !attachment.allocations.contains(a)).collect();
            assert!(!new.is_empty() && new.into_iter().all(is_holder), "let in before the grant");
            attachment.allocations = allocations;
            attachment.seen.used = true;
        }
    }
    let wanting = facts.wanting.clone();
    wants(facts, &wanting);
}

fn wants(facts: &mut Facts, wanting: &[Holder]) {
    facts.wanting = wanting.to_vec();
    for (holder, user) in &mut facts.holders {
        let wanted = facts.wanting.iter().any(|w| same(w, holder));
        *user = match (wanted, *user) {
            (true, _) => User::Wants,
            (false, User::Down) => User::Down,
            (false, User::There) => User::There,
            (false, User::Ends) => User::Ends,
            (false, User::Wants | User::NotDown) => User::NotDown,
        };
    }
}

/// Takes every step there is; nodes release what is closed, and hosts detach it, if they answer at all. The steps taken.
fn settle(facts: &mut Facts, nodes_answer: bool) -> Vec<Step> {
    let (mut taken, mut made) = (Vec::new(), facts.attachments.len());
    for _ in 0..32 {
        let verdict = next(facts);
        match verdict.steps.into_iter().next() {
            Some(step) => {
                taken.push(step.clone());
                carry_out(facts, step, &mut made);
            }
            None => {
                let left = |a: &Attachment| a.going && (nodes_answer || !a.seen.used);
                if !facts.attachments.iter().any(left) {
                    return taken;
                }
                facts.attachments.retain(|a| !left(a));
            }
        }
    }
    panic!("does not settle: {facts:?}");
}

fn held(facts: &Facts) -> Vec<(&str, &str)> {
    facts.holders.iter().map(|(h, _)| (h.allocation.uid.as_str(), h.attachment_uid.as_str())).collect()
}

/// Scenario A42.
#[test]
fn a_grant_is_an_attachment_then_a_holder_then_the_way_in() {
    let mut facts = facts(AccessMode::SingleNodeWriter);
    let one = Holder { boot_id: "boot".into(), ..holder("1", "a", false) };
    wants(&mut facts, std::slice::from_ref(&one));
    let steps = settle(&mut facts, true);
    let expected = [
        Step::Attach { node: "a".into(), read_only: false, granted: None },
        Step::Holders { holders: vec![by("a1", one)], unseen: Vec::new() },
        Step::Admit { node: "a".into(), allocations: vec!["1".into()] },
    ];
    assert_eq!(steps, expected);
    assert_eq!(settle(&mut facts, true), []);
}

/// Who can name an attachment before it is there makes it with who is let in.
#[test]
fn what_was_chosen_is_made_with_those_who_were_granted_by_it() {
    use AccessMode as M;
    let (one, two) = (holder("1", "a", false), holder("2", "a", false));
    for (mode, wanting, granted) in [
        (M::SingleNodeWriter, vec![one.clone()], 1),
        (M::SingleNodeWriter, vec![one.clone(), two.clone()], 1),
        (M::SingleNodeMultiWriter, vec![one.clone(), two.clone()], 2),
    ] {
        let mut facts = facts(mode);
        facts.chosen = vec![("a".into(), "u".into()), ("b".into(), "other".into())];
        wants(&mut facts, &wanting);
        let holders: Vec<_> = wanting[..granted].iter().map(|h| by("u", h.clone())).collect();
        let allocations = holders.iter().map(|h| h.allocation.uid.clone()).collect();
        let expected = [
            Step::Holders { holders, unseen: Vec::new() },
            Step::Attach { node: "a".into(), read_only: false, granted: Some(("u".into(), allocations)) },
        ];
        assert_eq!(settle(&mut facts, true), expected, "{mode:?}");
    }
    // An attachment that is there already is taken.
    let mut joins = facts(M::SingleNodeMultiWriter);
    joins.attachments = vec![attachment("a", "a1", &[])];
    wants(&mut joins, std::slice::from_ref(&one));
    assert_eq!(next(&joins).steps, [Step::Holders { holders: vec![by("a1", one)], unseen: Vec::new() }]);
}

/// What is not seen of several nodes is asked for of one after the other: until then the others count.
#[test]
fn nobody_is_granted_beside_a_holder_whose_attachment_is_not_seen_and_was_not_asked_for() {
    let (reader, writer, third) = (holder("r", "a", true), holder("w", "b", false), holder("t", "c", false));
    for chosen in [false, true] {
        let mut facts = facts(AccessMode::MultiNodeSingleWriter);
        facts.holders =
            vec![(by("a1", reader.clone()), User::Wants), (by("b1", writer.clone()), User::Wants)];
        if chosen {
            facts.chosen = ["a", "b", "c"].map(|node| (node.to_owned(), format!("{node}2"))).to_vec();
        }
        wants(&mut facts, &[third.clone(), reader.clone(), writer.clone()]);
        for step in next(&facts).steps {
            let Step::Holders { holders, unseen } = step else { continue };
            assert_eq!(unseen, [by("a1", reader.clone())]);
            let writers = holders.iter().filter(|h| !h.read_only).count();
            assert_eq!(writers, 1, "chosen {chosen}: {holders:?}");
        }
        assert!(!next(&facts).steps.is_empty());
        settle(&mut facts, true);
        assert_eq!(facts.holders.iter().filter(|(h, _)| !h.read_only).count(), 1);
    }
}

/// Who chose it is gone, or wants it no more: nobody can tell it from one that was there.
#[test]
fn what_another_one_chose_is_not_made_and_its_holders_are_granted_anew() {
    let one = holder("1", "a", false);
    let mut facts = facts(AccessMode::SingleNodeWriter);
    facts.holders = vec![(by("gone", one.clone()), User::Wants)];
    facts.chosen = vec![("a".into(), "u".into())];
    wants(&mut facts, std::slice::from_ref(&one));
    let unseen = vec![by("gone", one.clone())];
    assert_eq!(next(&facts).steps, [Step::Holders { holders: vec![by("u", one.clone())], unseen }]);
    settle(&mut facts, true);
    assert_eq!(held(&facts), [("1", "u")]);
    // It was granted by what is chosen, and has gone since.
    facts.attachments.clear();
    facts.chosen = vec![("a".into(), "u".into())];
    wants(&mut facts, &[]);
    let unseen = vec![by("u", one)];
    assert_eq!(next(&facts).steps, [Step::Holders { holders: Vec::new(), unseen }]);
}

#[test]
fn who_joins_is_let_in_after_its_own_grant() {
    let mut facts = facts(AccessMode::SingleNodeMultiWriter);
    let (one, two) = (holder("1", "a", false), holder("2", "a", false));
    wants(&mut facts, std::slice::from_ref(&one));
    settle(&mut facts, true);
    wants(&mut facts, &[one.clone(), two.clone()]);
    let expected = [
        Step::Holders { holders: vec![by("a1", one), by("a1", two)], unseen: Vec::new() },
        Step::Admit { node: "a".into(), allocations: vec!["1".into(), "2".into()] },
    ];
    assert_eq!(settle(&mut facts, true), expected);
}

#[test]
fn a_holder_of_an_earlier_attachment_is_not_let_in_and_is_granted_anew() {
    let mut facts = facts(AccessMode::SingleNodeWriter);
    facts.holders = vec![(by("a1", holder("1", "a", false)), User::Wants)];
    facts.attachments = vec![attachment("a", "a2", &[])];
    wants(&mut facts, &[holder("1", "a", false)]);
    let old = by("a1", holder("1", "a", false));
    let new = Step::Holders { holders: vec![by("a2", holder("1", "a", false))], unseen: vec![old.clone()] };
    assert_eq!(next(&facts).steps, [new]);
    // Closed under its grant, by somebody who did not know of it: it waits for the end and begins anew.
    facts.attachments = vec![going(attachment("a", "a1", &[]))];
    assert_eq!(next(&facts).steps, []);
    settle(&mut facts, true);
    assert_eq!(held(&facts), [("1", "a2")]);
    assert_eq!(facts.attachments[0].allocations, ["1"]);
}

#[test]
fn of_two_attachments_nobody_was_let_into_one_goes_and_is_not_made_again() {
    let mut facts = facts(AccessMode::SingleNodeWriter);
    facts.attachments = vec![attachment("a", "a1", &[]), attachment("b", "b1", &[])];
    wants(&mut facts, &[holder("1", "a", false), holder("2", "b", false)]);
    let steps = settle(&mut facts, true);
    assert_eq!(held(&facts), [("1", "a1")]);
    assert_eq!(facts.attachments.len(), 1);
    assert_eq!(steps.iter().filter(|s| matches!(s, Step::Close { .. })).count(), 1);
    assert!(!steps.iter().any(|s| matches!(s, Step::Attach { .. })), "{steps:?}");
    // The other leader was first with the grant: the same, the other way round.
    facts.holders = vec![(by("b1", holder("2", "b", false)), User::Wants)];
    facts.attachments = vec![attachment("a", "a1", &[]), attachment("b", "b1", &[])];
    let steps = settle(&mut facts, true);
    assert_eq!(held(&facts), [("2", "b1")]);
    assert!(!steps.iter().any(|s| matches!(s, Step::Attach { .. })), "{steps:?}");
}

#[test]
fn an_attachment_that_is_not_seen_lets_its_holder_go_only_by_the_servers_word() {
    let mut facts = facts(AccessMode::SingleNodeWriter);
    for user in [User::Wants, User::NotDown, User::Down] {
        let gone = by("a1", holder("1", "a", false));
        facts.holders = vec![(gone.clone(), user)];
        assert_eq!(next(&facts).steps, [Step::Holders { holders: Vec::new(), unseen: vec![gone] }]);
    }
}

#[test]
fn a_holder_that_names_no_attachment_stays_with_any_of_its_node() {
    let mut facts = facts(AccessMode::SingleNodeWriter);
    facts.attachments = vec![going(attachment("a", "a1", &["1"]))];
    facts.holders = vec![(holder("1", "a", false), User::NotDown)];
    wants(&mut facts, &[holder("2", "b", false)]);
    assert_eq!(next(&facts).steps, []);
}

#[test]
fn two_users_of_a_single_writer_come_one_after_the_other() {
    for second_node in ["a", "b"] {
        let mut facts = facts(AccessMode::SingleNodeWriter);
        let (one, two) = (holder("1", "a", false), holder("2", second_node, false));
        wants(&mut facts, &[one.clone(), two.clone()]);
        settle(&mut facts, true);
        assert_eq!(held(&facts), [("1", "a1")]);
        assert_eq!(facts.attachments.len(), 1, "none is made for who could not be granted");
        assert_eq!(next(&facts).waiting[0].0.uid, "2");
        wants(&mut facts, std::slice::from_ref(&two));
        settle(&mut facts, false);
        assert_eq!(held(&facts), [("1", "a1")], "the node has not answered");
        settle(&mut facts, true);
        assert_eq!(facts.holders.len(), 1);
        assert_eq!(facts.holders[0].0.allocation.uid, "2");
        assert_eq!(facts.attachments.len(), 1);
    }
}

#[test]
fn many_nodes_are_attached_once_each() {
    let mut facts = facts(AccessMode::MultiNodeMultiWriter);
    let all = [holder("1", "a", false), holder("2", "a", true), holder("3", "b", true)];
    wants(&mut facts, &all);
    settle(&mut facts, true);
    assert_eq!((facts.holders.len(), facts.attachments.len()), (3, 2));
    assert!(!facts.attachments.iter().find(|a| a.node == "b").is_some_and(|a| a.read_only));
    assert!(!facts.attachments.iter().find(|a| a.node == "a").is_some_and(|a| a.read_only));
    wants(&mut facts, &all[1..]);
    assert_eq!(next(&facts).steps, [], "another user is left there");
    facts
        .holders
        .iter_mut()
        .filter(|(h, _)| h.allocation.uid == "1")
        .for_each(|(_, user)| *user = User::Down);
    settle(&mut facts, true);
    assert_eq!((facts.holders.len(), facts.attachments.len()), (2, 2));
    wants(&mut facts, &[]);
    settle(&mut facts, true);
    assert_eq!((facts.holders.len(), facts.attachments.len()), (0, 0));
}

#[test]
fn nobody_is_granted_a_volume_that_is_not_open() {
    let mut closed = Facts { open: false, ..facts(AccessMode::SingleNodeWriter) };
    wants(&mut closed, &[holder("1", "a", false)]);
    assert_eq!(next(&closed).steps, []);
    assert_eq!(next(&closed).waiting.len(), 1);
    closed.attachments = vec![attachment("a", "a1", &[])];
    assert_eq!(next(&closed).steps, [Step::Close { node: "a".into() }], "the grant was lost");
}

/// Who has it already keeps it, and nothing is made for who comes meanwhile.
#[test]
fn nobody_is_granted_a_volume_whose_driver_expands_it_while_nobody_uses_it() {
    for mode in [AccessMode::SingleNodeWriter, AccessMode::MultiNodeMultiWriter] {
        let mut expanding = Facts { expanding: true, ..facts(mode) };
        wants(&mut expanding, &[holder("1", "a", false)]);
        let verdict = next(&expanding);
        assert_eq!(verdict.steps, [], "{mode:?}");
        assert_eq!(verdict.waiting[0].1.word(), "VolumeExpanding", "{mode:?}");
        expanding.expanding = false;
        settle(&mut expanding, true);
        assert_eq!((expanding.holders.len(), expanding.attachments.len()), (1, 1), "{mode:?}");
        expanding.expanding = true;
        assert_eq!(next(&expanding).steps, [], "{mode:?}");
    }
}

#[test]
fn a_closed_attachment_is_finished_before_the_next_one() {
    let mut facts = facts(AccessMode::MultiNodeMultiWriter);
    facts.attachments = vec![going(attachment("a", "a1", &["0"]))];
    wants(&mut facts, &[holder("1", "a", false), holder("2", "b", false)]);
    assert_eq!(next(&facts).steps, [Step::Attach { node: "b".into(), read_only: false, granted: None }]);
}

#[test]
fn a_used_attachment_without_holder_blocks_other_nodes_and_is_closed() {
    let mut facts = facts(AccessMode::SingleNodeWriter);
    facts.attachments = vec![attachment("a", "a1", &["0"])];
    wants(&mut facts, &[holder("1", "b", false)]);
    let verdict = next(&facts);
    assert_eq!(verdict.steps, [Step::Close { node: "a".into() }]);
    assert_eq!(verdict.waiting[0].1, Reason::NotReleased { node: "a".into() });
}

#[test]
fn a_fence_frees_a_closed_attachment_for_others_but_not_for_its_own_node() {
    let mut facts = facts(AccessMode::SingleNodeWriter);
    facts.holders = vec![(by("a1", holder("1", "a", false)), User::NotDown)];
    let mut fenced = going(attachment("a", "a1", &["1"]));
    fenced.seen.fence = Fence::Stands;
    facts.attachments = vec![fenced];
    facts.wanting = vec![holder("2", "b", false)];
    assert_eq!(next(&facts).steps, [], "not before it is detached");
    facts.attachments[0].seen.attached = Rung::Down;
    assert_eq!(next(&facts).steps, [Step::Holders { holders: Vec::new(), unseen: Vec::new() }]);
    facts.holders.clear();
    assert_eq!(next(&facts).steps, [Step::Attach { node: "b".into(), read_only: false, granted: None }]);
    facts.wanting = vec![holder("3", "a", false)];
    assert_eq!(next(&facts).steps, []);
}

/// Scenario A46.
#[test]
fn a_writer_does_not_join_an_attachment_made_for_readers() {
    let mut facts = facts(AccessMode::MultiNodeSingleWriter);
    wants(&mut facts, &[holder("1", "a", true)]);
    settle(&mut facts, true);
    assert!(facts.attachments[0].read_only);
    let (reader, writer) = (holder("1", "a", true), holder("2", "a", false));
    wants(&mut facts, &[reader, writer.clone()]);
    assert_eq!(next(&facts).steps, []);
    wants(&mut facts, &[writer]);
    settle(&mut facts, true);
    assert!(!facts.attachments[0].read_only && facts.holders.len() == 1);
}

/// Scenario A46.
/// A node that was let write lets its readers keep that: another writer waits until they are gone, and is told for whom.
#[test]
fn a_writer_waits_for_readers_on_a_node_that_may_write() {
    let (reader, writer, other) = (holder("r", "a", true), holder("w", "a", false), holder("o", "b", false));
    for writes in [false, true] {
        let mut facts = facts(AccessMode::MultiNodeSingleWriter);
        let first = if writes { vec![writer.clone(), reader.clone()] } else { vec![reader.clone()] };
        wants(&mut facts, &first);
        settle(&mut facts, true);
        assert_eq!(facts.attachments[0].read_only, !writes);
        for (_, user) in facts.holders.iter_mut().filter(|(holder, _)| same(holder, &writer)) {
            *user = User::Down;
        }
        wants(&mut facts, &[reader.clone(), other.clone()]);
        settle(&mut facts, true);
        let nodes = |facts: &Facts| {
            let mut nodes: Vec<_> = facts.holders.iter().map(|(h, _)| h.node_name.clone()).collect();
            nodes.sort();
            nodes
        };
        let waiting = next(&facts).waiting;
        if writes {
            assert_eq!((nodes(&facts), facts.attachments.len()), (vec!["a".to_owned()], 1));
            let told = Reason::HeldElsewhere { volume: "v".into(), holder: "d/r".into(), node: "a".into() };
            assert_eq!(waiting, [(other.allocation.clone(), told)]);
            // A reader elsewhere has it beside them.
            wants(&mut facts, &[reader.clone(), holder("x", "c", true)]);
            settle(&mut facts, true);
            assert_eq!(nodes(&facts), ["a", "c"]);
            wants(&mut facts, std::slice::from_ref(&other));
            settle(&mut facts, true);
            assert_eq!(nodes(&facts), ["b"]);
        } else {
            assert_eq!((nodes(&facts), waiting.len()), (vec!["a".to_owned(), "b".to_owned()], 0));
        }
    }
}

/// Of what was made for writers on two nodes, whoever is let in by it, one is used: also before anybody is let in, and before it is made.
#[test]
fn one_node_at_most_is_let_write_whoever_is_let_in_there() {
    let (reader, writer) = (holder("r", "a", true), holder("w", "b", false));
    let made =
        |node: &str, uid: &str, read_only: bool| Attachment { read_only, ..attachment(node, uid, &[]) };
    let granted = |facts: &Facts| -> Vec<String> {
        match next(facts).steps.first() {
            Some(Step::Holders { holders, .. }) => {
                holders.iter().map(|h| h.allocation.name.clone()).collect()
            }
            _ => Vec::new(),
        }
    };
    for (here, there, held, wanting, expected) in [
        (Some(false), Some(false), vec![], vec![&reader, &writer], vec!["r"]),
        (Some(false), Some(false), vec![], vec![&writer, &reader], vec!["w"]),
        (Some(true), Some(false), vec![], vec![&reader, &writer], vec!["r", "w"]),
        // Its attachment is named, and nobody was let in by it yet.
        (Some(false), Some(false), vec![by("a1", reader.clone())], vec![&reader, &writer], vec![]),
        (Some(false), Some(false), vec![by("b1", writer.clone())], vec![&reader, &writer], vec![]),
        (Some(true), Some(false), vec![by("a1", reader.clone())], vec![&reader, &writer], vec!["r", "w"]),
        // The writer's is chosen, and not made yet.
        (Some(false), None, vec![by("b1", writer.clone())], vec![&reader, &writer], vec![]),
    ] {
        let mut facts = facts(AccessMode::MultiNodeSingleWriter);
        facts.attachments.extend(here.map(|read_only| made("a", "a1", read_only)));
        facts.attachments.extend(there.map(|read_only| made("b", "b1", read_only)));
        facts.chosen = if there.is_none() { vec![("b".into(), "b1".into())] } else { Vec::new() };
        facts.holders = held.into_iter().map(|holder| (holder, User::Wants)).collect();
        wants(&mut facts, &wanting.into_iter().cloned().collect::<Vec<_>>());
        assert_eq!(granted(&facts), expected, "{here:?} {there:?} {:?}", facts.holders);
        settle(&mut facts, true);
        let writable = |a: &&Attachment| !a.read_only && facts.holders.iter().any(|(h, _)| names(h, a));
        assert!(facts.attachments.iter().filter(writable).count() <= 1, "{:?}", facts.attachments);
    }
}

/// What a reader was granted by may have been made for a writer: where it is not seen it counts as that, until the server says that it
/// is gone. On three nodes the server is asked of one at a time.
#[test]
fn a_writer_waits_for_a_reader_elsewhere_whose_attachment_is_not_seen() {
    let (gone, reader, writer) = (holder("x", "c", true), holder("r", "a", true), holder("w", "b", false));
    let granted =
        |facts: &Facts, who: &Holder| !next(facts).waiting.iter().any(|(of, _)| *of == who.allocation);
    for chosen in [Vec::new(), vec![("b".to_owned(), "b1".to_owned())]] {
        let mut facts = facts(AccessMode::MultiNodeSingleWriter);
        facts.chosen = chosen;
        facts.holders = vec![(by("c1", gone.clone()), User::Down), (by("a1", reader.clone()), User::Wants)];
        wants(&mut facts, &[reader.clone(), writer.clone()]);
        assert!(!granted(&facts, &writer), "{:?}", next(&facts));
        // The cache catches up: it was made for a writer, or for readers.
        for read_only in [false, true] {
            let mut seen = facts.clone();
            seen.attachments.push(Attachment { read_only, ..attachment("a", "a1", &["r"]) });
            assert_eq!(granted(&seen, &writer), read_only, "{:?}", next(&seen));
        }
        // A reader has it all the same.
        let third = holder("y", "d", true);
        wants(&mut facts, &[reader.clone(), writer.clone(), third.clone()]);
        assert!(!next(&facts).waiting.iter().any(|(of, _)| *of == third.allocation), "{:?}", next(&facts));
        // By the server's word it goes, and the writer comes.
        settle(&mut facts, true);
        assert_eq!(facts.holders.iter().filter(|(h, _)| !h.read_only).count(), 1, "{:?}", facts.holders);
    }
}

#[test]
fn who_waits_for_two_things_is_told_the_one_that_it_does_not_say_yet() {
    let by =
        |holder: &str| Reason::HeldElsewhere { volume: "v".into(), holder: holder.into(), node: "a".into() };
    let fault = Reason::NoHost;
    let said = by("d/r").to_string();
    for (said, told, held, broken, expected) in [
        ("", false, None, false, None),
        ("", false, Some(by("d/r")), false, Some(by("d/r"))),
        ("", false, None, true, Some(fault.clone())),
        // It says so itself, and hears what else is wrong.
        (&said, false, Some(by("d/r")), false, None),
        (&said, false, Some(by("d/r")), true, Some(fault.clone())),
        // Another one has it by now.
        (&said, false, Some(by("d/x")), true, Some(by("d/x"))),
        // What its node took over from what it was told stands for as long as it is true.
        (&said, true, Some(by("d/r")), true, Some(by("d/r"))),
        (&said, true, None, false, None),
    ] {
        let found = obstacle((said, told), held.clone(), || broken.then(|| fault.clone()));
        assert_eq!(found, expected, "{said:?} {told} {held:?} {broken}");
    }
}

/// Where writers may come beside readers, a reader that was first keeps none of them out.
#[test]
fn a_writer_joins_a_reader_where_both_may_be_at_one_time() {
    for mode in [AccessMode::SingleNodeMultiWriter, AccessMode::MultiNodeMultiWriter] {
        let mut facts = facts(mode);
        let (reader, writer) = (holder("1", "a", true), holder("2", "a", false));
        wants(&mut facts, std::slice::from_ref(&reader));
        settle(&mut facts, true);
        assert!(!facts.attachments[0].read_only, "{mode:?}");
        wants(&mut facts, &[reader, writer]);
        settle(&mut facts, true);
        assert_eq!((facts.attachments.len(), facts.holders.len()), (1, 2), "{mode:?}");
    }
}

/// Two users of a node are on their way out, and one of them is stuck: the other need not wait for it.
#[test]
fn who_is_down_for_good_goes_before_one_that_is_stuck() {
    let entry = |uid: &str, user| (by("n1", holder(uid, "n", false)), user);
    let uids = |facts: &Facts| match next(facts).steps.as_slice() {
        [Step::Holders { holders, unseen }] if unseen.is_empty() => {
            holders.iter().map(|h| h.allocation.uid.clone()).collect::<Vec<_>>()
        }
        steps => panic!("{steps:?}"),
    };
    for closing in [false, true] {
        let mut facts = facts(AccessMode::SingleNodeMultiWriter);
        let there = Attachment { going: closing, ..attachment("n", "n1", &["down", "stuck"]) };
        facts.attachments = vec![there];
        facts.holders = vec![entry("down", User::Down), entry("stuck", User::NotDown)];
        assert_eq!(uids(&facts), ["stuck"], "closing: {closing}");
        // The last one goes with the attachment.
        facts.holders = vec![entry("down", User::Down)];
        let left = next(&facts).steps;
        assert!(!left.iter().any(|step| matches!(step, Step::Holders { .. })), "{left:?}");
    }
}

/// The last user of a node is on its way out, and the next one of that node comes.
#[test]
fn who_comes_while_the_last_one_leaves_has_the_volume_beside_it_where_both_may() {
    use AccessMode as M;
    for (mode, leaves, beside) in [
        (M::SingleNodeMultiWriter, User::There, true),
        (M::MultiNodeMultiWriter, User::There, true),
        (M::MultiNodeReaderOnly, User::There, true),
        (M::SingleNodeWriter, User::There, false),
        (M::SingleNodeSingleWriter, User::There, false),
        (M::SingleNodeReaderOnly, User::There, false),
        // Nobody will say when it is gone; or it is.
        (M::SingleNodeMultiWriter, User::NotDown, false),
        (M::SingleNodeMultiWriter, User::Down, false),
    ] {
        let mut facts = facts(mode);
        facts.attachments = vec![attachment("n", "n1", &["old"])];
        facts.holders = vec![(by("n1", holder("old", "n", mode.read_only())), leaves)];
        let closed = next(&facts).steps == [Step::Close { node: "n".into() }];
        assert_eq!(closed, !beside, "{mode:?} {leaves:?}");
        if beside {
            assert_eq!(next(&facts).steps, [], "{mode:?}");
            let closed = Facts { open: false, ..facts.clone() };
            assert_eq!(next(&closed).steps, [Step::Close { node: "n".into() }], "nobody may come: {mode:?}");
            wants(&mut facts, &[holder("new", "n", mode.read_only())]);
            settle(&mut facts, true);
            assert_eq!(held(&facts), [("old", "n1"), ("new", "n1")], "{mode:?}");
            assert_eq!(facts.attachments[0].allocations, ["old", "new"], "{mode:?}");
        }
    }
}

/// Where nobody else can be let in, the node of one that is deleted takes the volume away without being asked.
#[test]
fn a_node_that_lets_go_by_itself_is_not_asked_to() {
    use AccessMode as M;
    for (mode, user, let_in, asked) in [
        (M::SingleNodeWriter, User::Ends, "old", false),
        (M::SingleNodeSingleWriter, User::Ends, "old", false),
        (M::SingleNodeReaderOnly, User::Ends, "old", false),
        // It was stopped, or has ended, or its node is not there.
        (M::SingleNodeWriter, User::There, "old", true),
        (M::SingleNodeWriter, User::Down, "old", true),
        (M::SingleNodeWriter, User::NotDown, "old", true),
        // The node knows nobody for whom it would.
        (M::SingleNodeWriter, User::Ends, "", true),
    ] {
        let mut facts = facts(mode);
        let let_in: Vec<_> = (!let_in.is_empty()).then_some(let_in).into_iter().collect();
        facts.attachments = vec![attachment("n", "n1", &let_in)];
        facts.holders = vec![(by("n1", holder("old", "n", mode.read_only())), user)];
        let close = vec![Step::Close { node: "n".into() }];
        for open in [true, false] {
            let steps = next(&Facts { open, ..facts.clone() }).steps;
            assert_eq!(steps, if asked { close.clone() } else { Vec::new() }, "{mode:?} {user:?} {open}");
        }
        wants(&mut facts, &[holder("new", "elsewhere", false)]);
        let waited_for = next(&facts);
        assert_eq!(waited_for.steps.is_empty(), !asked, "{mode:?} {user:?}");
        assert_eq!(waited_for.waiting.len(), 1);
    }
}

/// Who waits for that the last one leaves a node is not overtaken by those who come there.
#[test]
fn an_attachment_that_somebody_waits_for_is_closed_though_others_could_come() {
    for (mode, made_for_readers, waits) in [
        (AccessMode::SingleNodeMultiWriter, false, holder("older", "elsewhere", false)),
        (AccessMode::MultiNodeSingleWriter, true, holder("older", "n", false)),
    ] {
        let mut facts = facts(mode);
        facts.attachments =
            vec![Attachment { read_only: made_for_readers, ..attachment("n", "n1", &["old"]) }];
        facts.holders = vec![(by("n1", holder("old", "n", true)), User::There)];
        assert_eq!(next(&facts).steps, [], "{mode:?}");
        wants(&mut facts, &[waits]);
        assert_eq!(next(&facts).steps, [Step::Close { node: "n".into() }], "{mode:?}");
    }
}
