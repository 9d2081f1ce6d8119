//! Snapshots of several volumes at one moment: which volumes go together. docs/design/snapshots.md, "Groups".
use std::collections::BTreeMap;

use super::Reason;
use crate::api::meta::SecretRef;
use crate::api::snapshot::{Member, MemberOf};

/// One of the volumes, and what is asked with for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct One<'a> {
    /// Its claim.
    pub claim: &'a str,
    /// Its plugin.
    pub plugin: &'a str,
    /// With `controllerScope: Node`, the only node that knows it; else empty.
    pub node: &'a str,
    /// The class's parameters.
    pub parameters: &'a BTreeMap<String, String>,
    /// The Secret.
    pub secret: Option<&'a SecretRef>,
}

/// What keeps volumes from being pictured by one call: there is one plugin, one place, and one set of parameters and Secrets
/// for all of them (CO-GRP-02).
pub fn apart(all: &[One<'_>]) -> Option<Reason> {
    let first = all.first()?;
    all.iter().find_map(|other| {
        let from = format!("claim \"{}\"", other.claim);
        differs(*first, *other).map(|details| Reason::SourceMismatch { from, details })
    })
}

fn differs(first: One<'_>, other: One<'_>) -> Option<String> {
    let claim = first.claim;
    if first.plugin != other.plugin {
        return Some(format!(
            "it is of plugin \"{}\", and that of claim \"{claim}\" of \"{}\"; select claims of one plugin",
            other.plugin, first.plugin
        ));
    }
    if first.node != other.node {
        return Some(format!(
            "only node \"{}\" knows it, and only node \"{}\" that of claim \"{claim}\"; select claims of one node",
            other.node, first.node
        ));
    }
    ((first.parameters, first.secret) != (other.parameters, other.secret)).then(|| {
        format!(
            "it has other snapshotParameters, or another Secret for snapshots, than claim \"{claim}\"; name a \
             volumeClassName, whose count for all"
        )
    })
}

/// A snapshot of several volumes that is being cut: when it was begun, and its uid.
pub type Begun = (Option<jiff::Timestamp>, String);

/// Which of those that are being cut of a volume has that volume's host: the first one that was begun. There is one order for
/// all volumes, so that of several that share some always one gets all that it needs.
pub fn first<T>(groups: impl IntoIterator<Item = T>, begun: impl Fn(&T) -> Begun) -> Option<T> {
    groups.into_iter().min_by_key(begun)
}

/// A picture as the plugin tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Its id.
    pub handle: String,
    /// What the plugin calls the volume that it is of.
    pub source: String,
    /// How large a volume must be that is filled from it; empty when the plugin did not say.
    pub size: String,
}

/// The pictures by the names of the claims: those of what nobody asked for come last.
pub fn members(of: &[MemberOf], told: &[Told]) -> Vec<Member> {
    let claim = |told: &Told| {
        let of = of.iter().find(|of| of.handle == told.source);
        of.map(|of| of.claim_name.clone()).unwrap_or_default()
    };
    let mut all: Vec<_> = told
        .iter()
        .map(|told| Member { claim_name: claim(told), handle: told.handle.clone(), size: told.size.clone() })
        .collect();
    all.sort_by_key(|member| {
        (member.claim_name.is_empty(), member.claim_name.clone(), member.handle.clone())
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of obligation CO-GRP-02.
    #[test]
    fn volumes_of_one_plugin_place_and_settings_go_together() {
        let (none, gold) = (BTreeMap::new(), BTreeMap::from([("tier".to_owned(), "gold".to_owned())]));
        let secret = SecretRef { namespace: "ops".into(), name: "key".into() };
        let one = One { claim: "a", plugin: "p", node: "", parameters: &none, secret: None };
        let other = One { claim: "b", ..one };
        let here = One { node: "n1", ..one };
        for (all, said) in [
            (vec![], None),
            (vec![one], None),
            (vec![one, other], None),
            (vec![here, One { node: "n1", ..other }], None),
            (vec![one, other, One { plugin: "q", ..other }], Some("it is of plugin \"q\"")),
            (vec![here, One { node: "n2", ..other }], Some("only node \"n2\" knows it")),
            (vec![one, One { parameters: &gold, ..other }], Some("it has other snapshotParameters")),
            (vec![one, One { secret: Some(&secret), ..other }], Some("another Secret for snapshots")),
            (vec![one, One { plugin: "q", parameters: &gold, ..other }], Some("select claims of one plugin")),
        ] {
            let reason = apart(&all).map(|reason| reason.to_string());
            match said {
                None => assert_eq!(reason, None, "{all:?}"),
                Some(said) => assert!(reason.as_ref().is_some_and(|r| r.contains(said)), "{reason:?}"),
            }
            assert!(reason.is_none_or(|reason| reason.contains("claim \"b\"")));
        }
    }

    /// Whichever groups are cut, and whatever order each volume knows them in: one of them is first at each of its volumes.
    #[test]
    fn of_groups_that_share_volumes_one_has_all_that_it_needs() {
        let at = |second| jiff::Timestamp::from_second(second).ok();
        let all = [("a", at(2)), ("b", at(1)), ("c", at(1)), ("d", None)];
        let first_of = |volume: &[usize]| {
            first(volume.iter().copied(), |group| (all[*group].1, all[*group].0.to_owned()))
        };
        assert_eq!(first_of(&[]), None);
        assert_eq!(first_of(&[0, 2, 1]), Some(1), "the older, of two the lower uid");
        // Every set of groups at each of three volumes.
        for sets in 0..4096_usize {
            let volumes = [0, 1, 2].map(|volume| -> Vec<usize> {
                (0..4).filter(|group| sets >> (4 * volume + group) & 1 == 1).collect()
            });
            let goes = |group: &usize| {
                let mut of_it = volumes.iter().filter(|volume| volume.contains(group));
                of_it.all(|volume| first_of(volume) == Some(*group))
            };
            assert!(sets == 0 || volumes.iter().flatten().any(goes), "{volumes:?}");
        }
    }

    #[test]
    fn each_picture_is_that_of_its_claim_or_of_nobody() {
        let of = |claim: &str, handle: &str| MemberOf {
            claim_name: claim.into(),
            handle: handle.into(),
            ..MemberOf::default()
        };
        let told = |handle: &str, source: &str| Told {
            handle: handle.into(),
            source: source.into(),
            size: "1Gi".into(),
        };
        let all =
            members(&[of("a", "v1"), of("b", "v2")], &[told("s3", "v3"), told("s2", "v2"), told("s1", "v1")]);
        let names: Vec<_> = all.iter().map(|m| (m.claim_name.as_str(), m.handle.as_str())).collect();
        assert_eq!(names, [("a", "s1"), ("b", "s2"), ("", "s3")]);
    }
}
