//! What a container may do.
use std::collections::BTreeSet;

use super::defaults::{CAPABILITIES, NODE_PLUGIN};
use super::{CapabilitySets, Fault, UserWanted, Wanted};
use crate::api::capability::{ALL, Capability};

/// The usual ones, less those dropped, with those added. runc refuses a container that shall have one which the machine
/// does not have: one that was asked for is a fault, of the others those that are there are given.
pub(super) fn capabilities(wanted: &Wanted<'_>, user: &UserWanted) -> Result<CapabilitySets, Fault> {
    let (oci, machine) = (wanted.oci, &wanted.machine.capabilities);
    let dropped =
        |one: &Capability| oci.capabilities.drop.iter().any(|name| name == ALL || name == one.name());
    let kept = |one: &Capability| !dropped(one);
    let mounts = wanted.plugin.is_some_and(|plugin| plugin.role.node());
    let needed = Capability::named(NODE_PLUGIN).filter(|_| mounts).filter(kept);
    let everything = oci.capabilities.add.iter().any(|name| name == ALL);
    let added = oci.capabilities.add.iter().filter_map(|name| Capability::named(name));
    let added: BTreeSet<_> = added.chain(machine.iter().copied().filter(|_| everything)).collect();
    let asked = added.iter().copied().chain(needed).find(|one| !machine.contains(one));
    if let Some(capability) = asked {
        return Err(Fault::CapabilityMissing { capability });
    }
    let usual = CAPABILITIES.iter().filter_map(|name| Capability::named(name)).filter(kept);
    let usual = usual.filter(|one| machine.contains(one));
    let all: BTreeSet<_> = if oci.privileged {
        machine.clone()
    } else {
        usual.chain(needed).chain(added.iter().copied()).collect()
    };
    // Whoever is not root loses what is not ambient with the start of the program.
    let lasting = if user.is_root() { Vec::new() } else { words(&added) };
    Ok(CapabilitySets {
        bounding: words(&all),
        effective: words(&all),
        permitted: words(&all),
        inheritable: lasting.clone(),
        ambient: lasting,
    })
}

fn words(set: &BTreeSet<Capability>) -> Vec<String> {
    set.iter().map(|one| format!("CAP_{one}")).collect()
}
