//! The cases of a claim.
use super::*;

fn volume() -> Volume {
    Volume {
        name: "v".into(),
        owner: Owner::Mine,
        mismatch: String::new(),
        ready: true,
        why: ("Provisioning".into(), "is on its way".into()),
        deleting: false,
        told: false,
        kept: false,
        unfillable: false,
        superseded: false,
        anothers: false,
    }
}

fn facts() -> Facts {
    let lives = Lives { persistent: true, ephemeral: false };
    let plugin = Plugin { serves: true, creates: true, lives, ..Plugin::default() };
    Facts {
        deleting: false,
        users: Vec::new(),
        named: String::new(),
        volume: None,
        phase: None,
        had: String::new(),
        selected: (String::new(), false),
        class: Class {
            name: "c".into(),
            found: true,
            late: false,
            plugin_name: "p".into(),
            plugin: Some(plugin),
        },
        source: None,
        attributes: None,
        wish: Wish::default(),
        copies: Vec::new(),
        ephemeral: false,
    }
}

fn term(zone: &str) -> Segments {
    Segments::from([("zone".to_owned(), zone.to_owned())])
}

fn origin() -> Origin {
    Origin { plugin: "p".into(), bytes: 2 << 30, topology: vec![term("1")], ..Origin::default() }
}

fn filled_from(state: SourceState) -> Facts {
    let source = Source { from: "claim \"data\"".into(), capability: "CLONE_VOLUME", able: true, state };
    Facts { source: Some(source), ..facts() }
}

fn word(verdict: &Verdict) -> &str {
    verdict.ready.as_ref().err().map_or("Bound", |(word, _)| word.as_str())
}

#[test]
fn what_is_missing_is_named() {
    type Edit = fn(&mut Facts);
    let with = |edit: fn(&mut Facts)| {
        let mut facts = facts();
        edit(&mut facts);
        next(&facts)
    };
    let cases: [(Edit, &str); 10] = [
        (|f| f.class.found = false, "NotFound"),
        (|f| f.class.plugin = None, "NotFound"),
        (|f| f.class.plugin.as_mut().unwrap().deleting = true, "BeingDeleted"),
        (|f| f.class.plugin.as_mut().unwrap().creates = false, "PluginLacksCapability"),
        (|f| f.class.plugin.as_mut().unwrap().lives.persistent = false, "NoLifecycleMode"),
        (|f| f.class.plugin.as_mut().unwrap().serves = false, "PluginNotReady"),
        (|f| f.class.plugin.as_mut().unwrap().nodes = Some(Vec::new()), "PluginNotReady"),
        (|f| f.class.late = true, "WaitingForFirstConsumer"),
        (
            |f| {
                f.class.late = true;
                f.selected = ("a".into(), false);
            },
            "PluginNotReady",
        ),
        (|f| f.named = "x".into(), "NotFound"),
    ];
    for (edit, wanted) in cases {
        let verdict = with(edit);
        assert_eq!((word(&verdict), verdict.step.clone()), (wanted, None), "{verdict:?}");
        assert_eq!(verdict.phase, ClaimPhase::Pending);
    }
}

/// Scenarios B90, B91.
#[test]
fn an_ephemeral_volume_needs_no_class_and_nobody_who_makes_it_but_a_plugin_that_has_such() {
    let lives = |persistent, ephemeral| Lives { persistent, ephemeral };
    let with = |edit: fn(&mut Plugin), lives| {
        let mut plugin = Plugin { lives, ..Plugin::default() };
        edit(&mut plugin);
        let class = Class { found: false, plugin: Some(plugin), ..facts().class };
        next(&Facts { ephemeral: true, class, ..facts() })
    };
    let begun = with(|_| (), lives(false, true));
    assert_eq!(begun.step, Some(Step::Create { node: String::new() }), "no instance has to be there");
    assert_eq!(with(|_| (), lives(true, true)).step, begun.step);
    for (verdict, wanted) in [
        (with(|_| (), lives(true, false)), "NoLifecycleMode"),
        (with(|plugin| plugin.deleting = true, lives(true, true)), "BeingDeleted"),
    ] {
        assert_eq!((word(&verdict), &verdict.step), (wanted, &None));
    }
    let class = Class { found: false, plugin: None, ..facts().class };
    let missing = next(&Facts { ephemeral: true, class, ..facts() });
    assert_eq!(missing.ready.unwrap_err().1, "waits for Plugin \"p\", which does not exist yet");
}

#[test]
fn the_place_is_the_consumers_or_the_least_loaded() {
    let mut facts = facts();
    assert_eq!(next(&facts).step, Some(Step::Create { node: String::new() }));
    facts.class.plugin.as_mut().unwrap().nodes = Some(vec![("a".into(), 2), ("b".into(), 1)]);
    assert_eq!(next(&facts).step, Some(Step::Create { node: "b".into() }));
    facts.class.late = true;
    facts.selected = ("a".into(), true);
    assert_eq!(next(&facts).step, Some(Step::Create { node: "a".into() }));
    facts.selected = ("z".into(), true);
    assert_eq!(next(&facts).step, None);
}

/// Found by a simulated history: a snapshot deleted and made again under its name, while the volume that it fills was begun.
#[test]
fn a_volume_that_cannot_be_filled_any_more_is_begun_anew() {
    let with = |edit: fn(&mut Volume), phase| {
        let mut volume = Volume { unfillable: true, ready: false, ..volume() };
        edit(&mut volume);
        next(&Facts { volume: Some(volume), phase, ..facts() })
    };
    let pending = Some(ClaimPhase::Pending);
    for phase in [None, pending] {
        let verdict = with(|_| {}, phase);
        assert_eq!((verdict.phase, verdict.step), (ClaimPhase::Pending, Some(Step::DeleteVolume)));
    }
    assert_eq!(
        with(|v| v.kept = true, pending).step,
        Some(Step::DeleteVolume),
        "nothing was made that could stay"
    );
    assert_eq!(with(|v| v.unfillable = false, pending).step, None);
    let volume = Volume { unfillable: true, ready: false, ..volume() };
    let named = Facts { named: "v".into(), volume: Some(volume), phase: pending, ..facts() };
    assert_eq!(next(&named).step, None, "a person made it");
    assert_eq!(with(|v| v.deleting = true, pending).step, None);
    assert_eq!(with(|v| v.owner = Owner::Other("x/y".into()), pending).step, None);
    assert_eq!(with(|_| {}, Some(ClaimPhase::Bound)).step, None);
}

/// Obligations CO-CTRL-16, CO-CTRL-17.
#[test]
fn a_volume_that_was_refused_is_begun_anew_as_it_is_wanted_by_now() {
    let with = |edit: fn(&mut Volume), phase| {
        let mut volume = Volume { superseded: true, ready: false, ..volume() };
        edit(&mut volume);
        next(&Facts { volume: Some(volume), phase, ..facts() })
    };
    let pending = Some(ClaimPhase::Pending);
    let verdict = with(|_| {}, pending);
    assert_eq!((verdict.phase, verdict.step), (ClaimPhase::Pending, Some(Step::BeginAnew)));
    for (edit, phase) in [
        ((|v| v.superseded = false) as fn(&mut Volume), pending),
        (|v| v.deleting = true, pending),
        (|v| v.owner = Owner::Other("x/y".into()), pending),
        (|_| {}, Some(ClaimPhase::Bound)),
    ] {
        assert_eq!(with(edit, phase).step, None);
    }
}

#[test]
fn a_volume_that_was_bound_is_never_made_anew() {
    let gone = |phase| next(&Facts { phase, had: "v".into(), ..facts() });
    for phase in [ClaimPhase::Bound, ClaimPhase::Lost] {
        let verdict = gone(Some(phase));
        assert_eq!((verdict.phase, verdict.step), (ClaimPhase::Lost, None));
    }
    assert!(gone(Some(ClaimPhase::Pending)).step.is_some(), "one that was never bound is begun again");
}

/// Scenario B22.
#[test]
fn a_named_volume_is_taken_only_when_it_is_free_and_fits() {
    type Edit = fn(&mut Volume);
    let with = |edit: fn(&mut Volume)| {
        let mut volume = volume();
        edit(&mut volume);
        next(&Facts { named: "v".into(), volume: Some(volume), ..facts() })
    };
    assert_eq!(with(|_| {}).phase, ClaimPhase::Bound);
    let cases: [(Edit, &str, Option<Step>); 5] = [
        (|v| v.owner = Owner::Other("d/x".into()), "BoundElsewhere", None),
        (|v| v.owner = Owner::Free, "Binding", Some(Step::Adopt)),
        (|v| v.mismatch = "mode".into(), "VolumeMismatch", None),
        (|v| v.deleting = true, "BeingDeleted", None),
        (|v| v.ready = false, "Provisioning", None),
    ];
    for (edit, wanted, step) in cases {
        let verdict = with(edit);
        assert_eq!((word(&verdict), verdict.step.clone()), (wanted, step), "{verdict:?}");
    }
}

/// Obligation CO-CTRL-03.
#[test]
fn what_keeps_a_volume_from_being_filled_is_told() {
    type Edit = fn(&mut Facts, &mut Origin);
    let with = |edit: Edit| {
        let mut facts = filled_from(SourceState::NotReady(String::new()));
        let mut origin = origin();
        edit(&mut facts, &mut origin);
        facts.source.as_mut().unwrap().state = SourceState::There(origin);
        next(&facts)
    };
    let cases: [(Edit, &str); 14] = [
        (|_, _| {}, "Provisioning"),
        (|f, _| f.source.as_mut().unwrap().able = false, "PluginLacksCapability"),
        (|_, o| o.plugin = "q".into(), "SourceMismatch"),
        (|_, o| o.block = Some(true), "SourceMismatch"),
        // Of a snapshot that was there before nobody knows.
        (|f, o| (f.wish.block, o.block) = (true, None), "Provisioning"),
        (|f, _| f.wish.bytes = 1 << 30, "SourceMismatch"),
        (|f, _| f.wish.bytes = 3 << 30, "Provisioning"),
        (|f, _| f.wish.limit = 1 << 30, "SourceMismatch"),
        // Nobody said how large it is: the plugin will tell.
        (|f, o| (f.wish.bytes, o.bytes) = (1, 0), "Provisioning"),
        (|f, _| f.wish.allowed = vec![term("2")], "SourceElsewhere"),
        (|f, _| f.wish.allowed = vec![term("2"), term("1")], "Provisioning"),
        (|f, _| f.wish.here = term("2"), "SourceElsewhere"),
        (|f, _| f.wish.here = term("1"), "Provisioning"),
        (|f, o| (f.wish.here, o.topology) = (term("2"), Vec::new()), "Provisioning"),
    ];
    for (at, (edit, wanted)) in cases.into_iter().enumerate() {
        let verdict = with(edit);
        assert_eq!(
            (word(&verdict), verdict.step.is_some()),
            (wanted, wanted == "Provisioning"),
            "{at}: {verdict:?}"
        );
    }
    let data = || ("VolumeClaim", "data".to_owned());
    for (state, wanted) in [
        (SourceState::Missing(data().0, data().1), "NotFound"),
        (SourceState::Leaving(data().0, data().1), "BeingDeleted"),
        (SourceState::NotReady("it has no volume yet".into()), "SourceNotReady"),
    ] {
        for late in [false, true] {
            let mut facts = filled_from(state.clone());
            facts.class.late = late;
            let verdict = next(&facts);
            assert_eq!((word(&verdict), verdict.step.clone()), (wanted, None), "{verdict:?}");
        }
    }
}

#[test]
fn what_one_node_alone_knows_is_filled_there() {
    let there = |node: &str| SourceState::There(Origin { node: node.into(), ..origin() });
    for (source, wanted) in [("a", Some("a")), ("b", Some("b")), ("z", None), ("", Some("b"))] {
        let mut facts = filled_from(there(source));
        facts.class.plugin.as_mut().unwrap().nodes = Some(vec![("a".into(), 2), ("b".into(), 1)]);
        let step = wanted.map(|node| Step::Create { node: node.to_owned() });
        assert_eq!(next(&facts).step, step, "{source}");
    }
}

/// It was bound when nobody had said yet whose the volume is.
#[test]
fn a_claim_is_not_bound_to_what_is_anothers() {
    let of_another = Volume { ready: false, anothers: true, ..volume() };
    for phase in [ClaimPhase::Pending, ClaimPhase::Bound] {
        let facts = Facts { phase: Some(phase), volume: Some(of_another.clone()), ..facts() };
        assert_eq!(next(&facts).phase, ClaimPhase::Pending);
    }
    let doubtful = Volume { ready: false, ..volume() };
    let facts = Facts { phase: Some(ClaimPhase::Bound), volume: Some(doubtful), ..facts() };
    assert_eq!(next(&facts).phase, ClaimPhase::Bound);
}

/// Part of obligation CO-CTRL-05.
#[test]
fn a_volume_stays_until_what_is_filled_from_it_is_made() {
    let leaving = Facts {
        deleting: true,
        phase: Some(ClaimPhase::Bound),
        volume: Some(volume()),
        copies: vec!["claim d/copy".into()],
        ..facts()
    };
    let verdict = next(&leaving);
    assert_eq!((word(&verdict), verdict.step.clone()), ("InUse", None));
    assert!(verdict.ready.unwrap_err().1.contains("claim d/copy, which is being made of its volume"));
    let kept = Facts { volume: Some(Volume { kept: true, ..volume() }), ..leaving.clone() };
    assert_eq!(next(&kept).step, Some(Step::Release), "its volume outlives it anyway");
    assert_eq!(next(&Facts { copies: Vec::new(), ..leaving }).step, Some(Step::DeleteVolume));
}

#[test]
fn that_it_is_in_use_waits_a_moment_where_its_users_leave_with_it() {
    let leaving = Facts { deleting: true, phase: Some(ClaimPhase::Bound), volume: Some(volume()), ..facts() };
    let used = next(&Facts { users: vec!["d/a".into()], ..leaving.clone() });
    for (verdict, last, users_leave, wanted) in [
        (&used, Some("Bound"), true, true),
        (&used, None, true, true),
        (&used, Some("Bound"), false, false),
        (&used, Some("InUse"), true, false),
        (&next(&leaving), Some("Bound"), true, false),
    ] {
        assert_eq!(is_passing(verdict, last, users_leave), wanted, "{verdict:?} {last:?}");
    }
}

/// Scenario B31.
#[test]
fn a_claim_leaves_after_its_users_and_its_volume() {
    let leaving = Facts { deleting: true, phase: Some(ClaimPhase::Bound), ..facts() };
    let used = Facts { users: vec!["d/a".into()], volume: Some(volume()), ..leaving.clone() };
    assert_eq!((word(&next(&used)), next(&used).step), ("InUse", None));
    let unused = Facts { volume: Some(volume()), ..leaving.clone() };
    assert_eq!(next(&unused).step, Some(Step::DeleteVolume));
    for (word, told, step) in [
        ("Releasing", false, None),
        // It was deleted first, and waits for its claim: it is told, once.
        ("InUse", false, Some(Step::Tell)),
        ("InUse", true, None),
    ] {
        let why = (word.to_owned(), String::new());
        let volume = Some(Volume { deleting: true, why, told, ..volume() });
        assert_eq!(next(&Facts { volume, ..leaving.clone() }).step, step, "{word} {told}");
    }
    for volume in [None, Some(Volume { kept: true, ..volume() })] {
        assert_eq!(next(&Facts { volume, ..leaving.clone() }).step, Some(Step::Release));
    }
}

#[test]
fn who_waits_for_a_claim_does_not_have_it() {
    for (over, holds, there, has_it) in [
        (false, false, false, false),
        (false, false, true, true),
        (false, true, false, true),
        (false, true, true, true),
        // Its node may be lost, and say so for ever.
        (true, false, true, false),
        (true, false, false, false),
        (true, true, false, true),
        (true, true, true, true),
    ] {
        let consumer = Consumer { over, holds, there };
        assert_eq!(has(consumer), has_it, "{consumer:?}");
    }
}

/// Scenario B18.
#[test]
fn nothing_is_made_where_its_class_lets_nothing_be() {
    let place = |pairs: &[(&str, &str)]| -> Segments {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let (north, south) = (place(&[("zone", "north")]), place(&[("rack", "7"), ("zone", "south")]));
    let at = |place: &Segments| Some(vec![("n".to_owned(), place.clone())]);
    let nowhere = Some(Vec::new());
    let with = |allowed: &[Segments], places: &Option<Vec<(String, Segments)>>, nodes| {
        let mut facts = facts();
        facts.wish.allowed = allowed.to_vec();
        let plugin = facts.class.plugin.as_mut().unwrap();
        (plugin.places, plugin.nodes) = (places.clone(), nodes);
        next(&facts)
    };
    let local = Some(vec![("n".to_owned(), 0)]);
    for (allowed, places, nodes, wanted) in [
        (vec![], &nowhere, None, "Provisioning"),
        (vec![], &at(&north), None, "Provisioning"),
        (vec![north.clone()], &at(&north), None, "Provisioning"),
        (vec![south.clone(), north.clone()], &at(&north), None, "Provisioning"),
        (vec![south.clone()], &at(&north), None, "NoPlaceAllowed"),
        (vec![south.clone()], &at(&Segments::new()), None, "NoPlaceAllowed"),
        (vec![south.clone()], &nowhere, None, "PluginNotReady"),
        // A plugin that is asked for no place.
        (vec![south.clone()], &None, None, "Provisioning"),
        (vec![north.clone()], &at(&north), local, "Provisioning"),
        (vec![south.clone()], &at(&north), Some(Vec::new()), "NoPlaceAllowed"),
    ] {
        let verdict = with(&allowed, places, nodes);
        assert_eq!(word(&verdict), wanted, "{allowed:?} {places:?}");
        assert_eq!(verdict.step.is_some(), wanted == "Provisioning");
    }
    let (_, told) = with(&[south], &at(&north), None).ready.unwrap_err();
    assert_eq!(
        told,
        "class \"c\" lets volumes be at rack=7,zone=south alone (allowedTopologies), and no healthy instance of plugin \"p\" is \
         there, but on n: zone=north"
    );
}
