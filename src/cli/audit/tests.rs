use serde_json::{Value, json};

use super::*;

/// A handle, and the nodes that it is listed with.
type Entry<'a> = (&'a str, Option<&'a [&'a str]>);
/// A list, and what is told of it.
type Case<'a> = (&'a [Entry<'a>], &'a [(What, &'a str)]);

fn volume(name: &str, handle: &str, exists: &str) -> Volume {
    let mut status = json!({ "controller": { "nodeName": "a", "epoch": 1 } });
    if !handle.is_empty() {
        (status["handle"], status["exists"]) = (json!(handle), json!(exists));
    }
    let value: Value = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": name },
        "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"],
            "source": { "create": { "name": name, "nodeName": "a", "requiredBytes": 1 } } }, "status": status });
    serde_json::from_value(value).unwrap()
}

fn attachment(handle: &str, node_id: &str, attached: &str) -> VolumeAttachment {
    let value = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": format!("att-{handle}") },
        "spec": { "volume": "v", "volumeUid": "u", "claim": { "namespace": "d", "name": "c", "uid": "c" },
            "nodeName": "a", "nodeId": node_id, "attachRequired": true, "stageRequired": false, "plugin": "p",
            "handle": handle, "capability": { "accessMode": "SingleNodeWriter", "volumeMode": "Filesystem" },
            "allocations": [] },
        "status": { "controller": { "attached": attached, "epoch": 1 } } });
    serde_json::from_value(value).unwrap()
}

fn listed(volumes: &[Entry<'_>]) -> Listed<BackendVolume> {
    let volume = |(handle, nodes): &Entry<'_>| BackendVolume {
        handle: (*handle).to_owned(),
        node_ids: nodes.map(|nodes| nodes.iter().map(|id| (*id).to_owned()).collect()),
        ..BackendVolume::default()
    };
    Listed {
        plugin: "p".into(),
        node: String::new(),
        entries: volumes.iter().map(volume).collect(),
        ..Listed::default()
    }
}

fn known(volumes: &[Volume], attachments: &[VolumeAttachment]) -> Known {
    Known { volumes: volumes.to_vec(), attachments: attachments.to_vec(), ..Known::default() }
}

fn lists(volumes: Listed<BackendVolume>) -> Lists {
    Lists { volumes: vec![volumes], snapshots: Vec::new() }
}

fn words(listed: Listed<BackendVolume>, before: &Known, after: &Known) -> Vec<(What, String)> {
    let all = findings(&lists(listed), before, after);
    all.into_iter().map(|found| (found.what, found.subject)).collect()
}

/// Obligation CO-CTRL-65.
#[test]
fn what_fits_is_not_told() {
    let all = known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Up")]);
    assert_eq!(words(listed(&[("h", Some(&["id-a"])), ("h", Some(&["id-a"]))]), &all, &all), []);
    assert_eq!(words(listed(&[("h", None)]), &all, &all), [], "nothing is read out of what is not told");
    let attaching = known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Unknown")]);
    for nodes in [[].as_slice(), &["id-a"]] {
        assert_eq!(words(listed(&[("h", Some(nodes))]), &attaching, &attaching), []);
    }
}

#[test]
fn each_thing_that_does_not_fit_is_told() {
    let all = known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Up")]);
    let cases: [Case<'_>; 5] = [
        (&[("h", None), ("x", None)], &[(What::Unknown, "x")]),
        (&[], &[(What::NotListed, "h")]),
        (&[("h", Some(&[]))], &[(What::NotAttached, "h")]),
        (&[("h", Some(&["id-a", "id-b"]))], &[(What::Attached, "h")]),
        (&[("h", Some(&["id-b"]))], &[(What::Attached, "h"), (What::NotAttached, "h")]),
    ];
    for (list, expected) in cases {
        let expected: Vec<_> = expected.iter().map(|(what, handle)| (*what, (*handle).to_owned())).collect();
        assert_eq!(words(listed(list), &all, &all), expected, "{list:?}");
    }
    let mut unwell = listed(&[("h", None)]);
    unwell.entries[0].abnormal = "a disk is gone".into();
    assert_eq!(words(unwell, &all, &all), [(What::Unwell, "h".to_owned())]);
}

/// A claim may be promised what is not there: a person's word of one that was registered is compared with nothing else.
#[test]
fn what_is_smaller_than_is_said_is_told() {
    let said = |told: &str, by_hand: &str| {
        let mut volume = volume("v", "h", "Up");
        volume.spec.source =
            serde_json::from_value(json!({ "existing": { "handle": "h", "capacity": by_hand } })).unwrap();
        volume.status.as_mut().unwrap().capacity = told.into();
        known(&[volume], &[])
    };
    let list = |size: &str| {
        let mut list = listed(&[("h", None)]);
        list.entries[0].size = size.into();
        list
    };
    for (told, by_hand, size, smaller) in [
        ("1Ti", "", "64Mi", true),
        ("", "1Ti", "64Mi", true),
        ("64Mi", "", "67108864", false),
        ("64Mi", "", "1Ti", false),
        ("1Ti", "", "", false),
        ("", "", "64Mi", false),
    ] {
        let known = said(told, by_hand);
        let expected = smaller.then(|| (What::Smaller, "h".to_owned())).into_iter().collect::<Vec<_>>();
        assert_eq!(words(list(size), &known, &known), expected, "{told:?} {by_hand:?} {size:?}");
    }
    let (small, grown) = (said("64Mi", ""), said("1Ti", ""));
    assert_eq!(words(list("64Mi"), &small, &grown), [], "it grew after it was listed");
    let found = findings(&lists(list("64Mi")), &grown, &grown);
    assert_eq!(found[0].details, "the backend lists it with 64Mi, and volume/v says 1Ti");
}

#[test]
fn what_comes_or_goes_meanwhile_is_not_told() {
    let (none, one) = (Known::default(), known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Up")]));
    for (before, after) in [(&none, &one), (&one, &none)] {
        for list in [listed(&[]), listed(&[("h", Some(&["id-a"]))])] {
            assert_eq!(words(list, before, after), [], "{before:?}");
        }
    }
    let deleting = known(&[volume("v", "h", "Unknown")], &[]);
    assert_eq!(words(listed(&[]), &deleting, &deleting), [], "it may be gone already");
    let mut going = known(&[volume("v", "h", "Up")], &[]);
    going.volumes[0].metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(words(listed(&[]), &going, &going), [], "and is about to be said to be");
}

#[test]
fn what_is_being_made_may_be_what_is_listed() {
    let making = known(&[volume("v", "", "")], &[]);
    let found = findings(&lists(listed(&[("x", None)])), &making, &making);
    assert_eq!(found[0].what, What::Unclear);
    for (attempting, what) in [(true, What::Unclear), (false, What::Unknown)] {
        let mut refused = making.clone();
        let status = refused.volumes[0].status.as_mut().unwrap();
        (status.exists, status.attempting) = (Some(Rung::Down), attempting);
        assert_eq!(words(listed(&[("x", None)]), &refused, &refused), [(what, "x".to_owned())]);
    }
    // What is made where another node alone knows it stands in no list of this one.
    for (node, what) in [("a", What::Unclear), ("b", What::Unknown)] {
        let list = Listed { node: node.into(), ..listed(&[("x", None)]) };
        assert_eq!(words(list, &making, &making), [(what, "x".to_owned())], "{node}");
    }
    let mut waiting = making.clone();
    waiting.volumes[0].status.as_mut().unwrap().controller = None;
    assert_eq!(words(listed(&[("x", None)]), &waiting, &waiting), [(What::Unknown, "x".to_owned())]);
    assert!(found[0].details.contains("volume/v, which is being made"), "{found:?}");
}

/// It may never have been there: then nothing was ever seen of it.
#[test]
fn a_volume_that_was_there_before_is_looked_for_in_any_case() {
    for exists in ["Up", "Unknown", "Down"] {
        let mut all = known(&[volume("v", "h", exists)], &[]);
        all.volumes[0].spec.source =
            serde_json::from_value(json!({ "existing": { "handle": "h" } })).unwrap();
        assert_eq!(words(listed(&[]), &all, &all), [(What::NotListed, "h".to_owned())], "{exists}");
        all.volumes[0].status = None;
        assert_eq!(words(listed(&[]), &all, &all).len(), 1);
        assert_eq!(words(listed(&[("h", None)]), &all, &all), []);
    }
}

fn snapshot(name: &str, source: Value, status: Value) -> Snapshot {
    let value = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
        "metadata": { "namespace": "n", "name": name, "uid": name }, "spec": { "source": source }, "status": status });
    serde_json::from_value(value).unwrap()
}

fn cut(name: &str, handle: &str, node: &str, more: &Value) -> Snapshot {
    let mut status = json!({ "of": { "plugin": "p", "nodeName": node }, "controller": { "nodeName": "a", "epoch": 1 },
        "handle": handle, "exists": "Up", "ready": true });
    for (key, value) in more.as_object().unwrap() {
        status[key] = value.clone();
    }
    snapshot(name, json!({ "claimName": "c" }), status)
}

fn told_of(handles: &[&str], node: &str, before: &[Snapshot], after: &[Snapshot]) -> Vec<(What, String)> {
    let entry = |handle: &&str| BackendSnapshot { handle: (*handle).to_owned(), ..Default::default() };
    let entries = handles.iter().map(entry).collect();
    let secrets = [String::new()].into();
    let snapshots =
        vec![Listed { plugin: "p".into(), node: node.into(), entries, secrets, ..Listed::default() }];
    let known = |snapshots: &[Snapshot]| Known { snapshots: snapshots.to_vec(), ..Known::default() };
    let all = findings(&Lists { volumes: Vec::new(), snapshots }, &known(before), &known(after));
    all.into_iter().map(|found| (found.what, found.subject)).collect()
}

#[test]
fn snapshots_are_compared_likewise() {
    type Case<'a> = (&'a [&'a str], Vec<Snapshot>, &'a [(What, &'a str)]);
    let ready = cut("s", "h", "", &json!({}));
    let group = snapshot(
        "g",
        json!({ "selector": {} }),
        json!({ "of": { "plugin": "p" }, "handle": "g", "exists": "Up", "ready": true,
            "members": [{ "handle": "m1" }, { "handle": "m2" }] }),
    );
    let registered = snapshot("r", json!({ "handle": "r", "plugin": "p" }), json!({}));
    let foreign = snapshot("f", json!({ "handle": "f", "plugin": "q" }), json!({}));
    let (unknown, gone) = (What::UnknownSnapshot, What::SnapshotNotListed);
    let cases: [Case<'_>; 9] = [
        (&["h", "h"], vec![ready.clone()], &[]),
        (&["h", "x"], vec![ready.clone()], &[(unknown, "x")]),
        (&[], vec![ready], &[(gone, "h")]),
        (&["m1", "m2"], vec![group.clone()], &[]),
        (&["m1", "g"], vec![group], &[(unknown, "g"), (gone, "m2")]),
        (&["r"], vec![registered.clone()], &[]),
        (&[], vec![registered], &[(gone, "r")]),
        (&["f"], vec![foreign.clone()], &[(unknown, "f")]),
        (&[], vec![foreign], &[]),
    ];
    for (listed, known, expected) in cases {
        let expected: Vec<_> = expected.iter().map(|(what, id)| (*what, (*id).to_owned())).collect();
        assert_eq!(told_of(listed, "", &known, &known), expected, "{listed:?} {known:?}");
    }
}

#[test]
fn snapshots_that_come_or_go_or_are_not_ready_are_none_that_are_missed() {
    let ready = [cut("s", "h", "a", &json!({}))];
    for (before, after) in [(&ready[..], &[][..]), (&[][..], &ready[..])] {
        assert_eq!(told_of(&["h"], "", before, after), []);
        assert_eq!(told_of(&[], "", before, after), []);
    }
    let mut going = ready.clone();
    going[0].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(told_of(&[], "", &going, &going), []);
    assert_eq!(told_of(&["h"], "", &going, &going), [], "it is somebody's still");
    for more in [json!({ "ready": false }), json!({ "exists": "Unknown" }), json!({ "exists": "Down" })] {
        let one = [cut("s", "h", "", &more)];
        assert_eq!(told_of(&[], "", &one, &one), [], "{more}");
    }
    assert_eq!(told_of(&[], "b", &ready, &ready), [], "another node's list");
    assert_eq!(told_of(&[], "a", &ready, &ready).len(), 1);
    let making = [cut("s", "", "", &json!({ "exists": "Unknown" }))];
    assert_eq!(told_of(&["x"], "", &making, &making), [(What::UnclearSnapshot, "x".to_owned())]);
    let refused = [cut("s", "", "", &json!({ "exists": "Down" }))];
    assert_eq!(told_of(&["x"], "", &refused, &refused), [(What::UnknownSnapshot, "x".to_owned())]);
    let waiting = [cut("s", "", "", &json!({ "exists": null, "controller": null }))];
    assert_eq!(told_of(&["x"], "", &waiting, &waiting), [(What::UnknownSnapshot, "x".to_owned())]);
}

#[test]
fn a_snapshot_is_missed_where_its_own_secret_was_asked_with() {
    let of = |secret: &str| {
        let mut one = cut(if secret.is_empty() { "bare" } else { secret }, "h", "", &json!({}));
        let of = one.status.as_mut().unwrap().of.as_mut().unwrap();
        of.secret = (!secret.is_empty())
            .then(|| serde_json::from_value(json!({ "namespace": "n", "name": secret })).unwrap());
        one
    };
    for (has, asked_with, missed, unlooked_for) in [
        ("s", vec!["n/s"], 1, None),
        ("s", vec!["n/other", "n/s"], 1, None),
        ("s", vec!["n/other"], 0, Some("plugin/p was not asked with its Secret n/s")),
        ("s", vec![], 0, Some("plugin/p was not asked with its Secret n/s")),
        ("", vec![""], 1, None),
        ("", vec!["n/s"], 0, Some("plugin/p was not asked without a Secret")),
    ] {
        let known = Known { snapshots: vec![of(has)], ..Known::default() };
        let mut list: Listed<BackendSnapshot> = Listed {
            plugin: "p".into(),
            secrets: asked_with.iter().map(|secret| (*secret).to_owned()).collect(),
            ..Listed::default()
        };
        let lists = |list: &Listed<_>| Lists { volumes: Vec::new(), snapshots: vec![list.clone()] };
        assert_eq!(findings(&lists(&list), &known, &known).len(), missed, "{has} {asked_with:?}");
        let told = unlooked(&[list.clone()], &known);
        assert_eq!(told.first().map(|(_, why)| why.as_str()), unlooked_for, "{has} {asked_with:?}");
        // What is listed all the same fits.
        list.entries = vec![BackendSnapshot { handle: "h".into(), ..Default::default() }];
        assert_eq!(findings(&lists(&list), &known, &known), []);
        assert_eq!(unlooked(&[list], &known), []);
    }
}

#[test]
fn it_is_told_what_a_snapshot_is_of() {
    let entry: BackendSnapshot =
        serde_json::from_value(json!({ "handle": "x", "source": "vol", "group": "g",
        "time": "2026-01-02T03:04:05Z" }))
        .unwrap();
    let all = "cut 2026-01-02 03:04:05 UTC of volume \"vol\" of group \"g\"; no Snapshot has this handle";
    assert_eq!(unknown_snapshot(&entry, &BTreeSet::new()), all);
    let bare = BackendSnapshot { handle: "x".into(), ..Default::default() };
    assert_eq!(unknown_snapshot(&bare, &BTreeSet::new()), "no Snapshot has this handle");
    let making = BTreeSet::from(["snapshot/s in n".to_owned()]);
    let told = unknown_snapshot(&bare, &making);
    assert!(told.ends_with("it may be that of snapshot/s in n, which is being made"), "{told}");
}

#[test]
fn what_one_node_knows_alone_is_another_volume_on_another() {
    let all = known(&[volume("v", "h", "Up")], &[]);
    for (node, expected) in [("a", vec![]), ("b", vec![(What::Unknown, "h".to_owned())]), ("", vec![])] {
        let list = Listed { node: node.into(), ..listed(&[("h", None)]) };
        assert_eq!(words(list, &all, &all), expected, "{node}");
    }
    let ready = [cut("s", "h", "a", &json!({}))];
    for (node, expected) in [("a", vec![]), ("b", vec![(What::UnknownSnapshot, "h".to_owned())])] {
        assert_eq!(told_of(&["h"], node, &ready, &ready), expected, "{node}");
    }
}

#[test]
fn a_list_of_one_node_says_nothing_of_anothers() {
    let all = known(&[volume("v", "h", "Up")], &[]);
    for (node, expected) in [("a", 1), ("b", 0)] {
        let list = Listed { node: node.into(), ..listed(&[]) };
        assert_eq!(words(list, &all, &all).len(), expected, "{node}");
    }
}

#[test]
fn what_is_told_stood_there_twice() {
    let found = |what, subject: &str| Finding {
        what,
        of: "p".into(),
        node: String::new(),
        subject: subject.into(),
        details: String::new(),
    };
    let first = [found(What::Unclear, "x"), found(What::UnknownSnapshot, "s"), found(What::NotListed, "h")];
    let second = [found(What::Unknown, "x"), found(What::UnknownSnapshot, "t"), found(What::NotListed, "h")];
    let both: BTreeSet<Whose> = [false, true].map(|of| ("p".to_owned(), String::new(), of)).into();
    let volumes: BTreeSet<Whose> = [("p".to_owned(), String::new(), false)].into();
    let of = |had: &BTreeSet<Whose>, has: &BTreeSet<Whose>| {
        let of = |found: &[Finding]| found.to_vec();
        let all = confirmed((of(&first), had), (of(&second), has));
        all.into_iter().map(|found| (found.what, found.subject)).collect::<Vec<_>>()
    };
    let word = |what, subject: &str| (what, subject.to_owned());
    let (x, h) = (word(What::Unknown, "x"), word(What::NotListed, "h"));
    assert_eq!(of(&both, &both), [x.clone(), h.clone()]);
    // What could be asked for once only is told as it was then.
    let (s, t) = (word(What::UnknownSnapshot, "s"), word(What::UnknownSnapshot, "t"));
    assert_eq!(of(&both, &volumes), [x.clone(), h.clone(), s]);
    assert_eq!(of(&volumes, &both), [x, h, t]);
}

#[test]
fn nodes_that_have_volumes_alone_are_known() {
    let mut all = known(&[volume("v", "h", "Up")], &[]);
    all.snapshots = vec![cut("s", "h", "b", &json!({})), cut("t", "i", "", &json!({}))];
    assert_eq!(all.homes("p"), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    assert_eq!(all.homes("q"), BTreeSet::new());
}

#[test]
fn mounts_without_a_record_are_told_with_their_node() {
    let agent = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "NodeAgent", "metadata": { "name": "a" },
        "spec": {}, "status": { "leftovers": ["/t/staging/x"] } });
    let all = Known { agents: vec![serde_json::from_value(agent).unwrap()], ..Known::default() };
    let found = findings(&Lists::default(), &all, &all);
    assert_eq!((found[0].what, &*found[0].of, &*found[0].subject), (What::Mount, "a", "/t/staging/x"));
}

/// What only one has that never uses it is nobody's.
#[test]
fn what_was_given_to_another_one_by_mistake_too_is_told_once_that_is_gone() {
    let mut mistaken = volume("second", "h", "Up");
    let told = json!([{ "type": "HandleShared", "status": "True", "reason": "HandleOfAnother" }]);
    mistaken.status.as_mut().unwrap().conditions = serde_json::from_value(told).unwrap();
    let [both, left] = [vec![volume("first", "h", "Up"), mistaken.clone()], vec![mistaken]]
        .map(|volumes| known(&volumes, &[]));
    assert_eq!(words(listed(&[("h", None)]), &both, &both), []);
    assert_eq!(words(listed(&[("h", None)]), &left, &left), [(What::Unknown, "h".to_owned())]);
    assert_eq!(words(listed(&[]), &left, &left), [], "nor is it missed");
}
