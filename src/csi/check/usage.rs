//! What `NodeGetVolumeStats` says, without what makes no sense: a figure that is not told is better than a wrong one.
use super::super::proto::volume_usage::Unit;
use super::super::proto::{NodeGetVolumeStatsResponse, VolumeUsage};
use super::Condition;

/// How full a volume is, in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// All of it.
    pub total: u64,
    /// What is used. Block volumes do not say.
    pub used: Option<u64>,
    /// What may be used still. Not all that is left has to be.
    pub available: Option<u64>,
}

/// What is known of a volume in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Space, in bytes.
    pub bytes: Option<Usage>,
    /// Inodes.
    pub inodes: Option<Usage>,
    /// How it is, where the plugin says so. For people: nothing is done because of it.
    pub condition: Option<Condition>,
}

/// The answer of `NodeGetVolumeStats`. Units that this version does not know, negative figures and those without a total are
/// left out. Of a unit that is told twice the first counts.
pub fn stats(answer: &NodeGetVolumeStatsResponse) -> Stats {
    let mut stats = Stats { condition: Condition::of(answer.volume_condition.as_ref()), ..Stats::default() };
    for entry in &answer.usage {
        let figure = match Unit::try_from(entry.unit) {
            Ok(Unit::Bytes) => &mut stats.bytes,
            Ok(Unit::Inodes) => &mut stats.inodes,
            Ok(Unit::Unknown) | Err(_) => continue,
        };
        *figure = figure.or_else(|| usage(entry));
    }
    stats
}

fn usage(entry: &VolumeUsage) -> Option<Usage> {
    let figure = |figure: i64| u64::try_from(figure).ok();
    let (total, used, available) = (figure(entry.total)?, figure(entry.used)?, figure(entry.available)?);
    // On the wire zero is the same as nothing. Nothing used and nothing left of something is not told.
    let told = used != 0 || available != 0;
    // Nor that nothing is left of what is not nearly full: what is kept from users is less than a tenth.
    let said = available != 0 || used.saturating_mul(10) >= total.saturating_mul(9);
    let available = (told && said).then_some(available);
    (total > 0).then(|| Usage { total, used: told.then_some(used), available })
}
