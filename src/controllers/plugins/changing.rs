//! Tasks whose csiPlugin block changed, while volumes need them as they were.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::cache::Name;
use crate::plan::Reason;

/// For each plugin the allocations that shall serve it no more, or in a smaller role, with what they wait for. Known to
/// this process alone: whoever leads next finds it out by looking at each allocation.
#[derive(Debug, Default)]
pub(crate) struct Changing(Mutex<HashMap<String, BTreeMap<Name, Waits>>>);

/// What a change waits for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Waits {
    /// Why it waits.
    pub(super) reason: Reason,
    /// Controller calls are among what it gives up.
    pub(super) controller: bool,
}

impl Changing {
    /// Notes what an allocation waits for now, by plugin; returns the plugins for which that is news.
    pub(super) fn set(&self, allocation: &Name, now: &BTreeMap<String, Waits>) -> BTreeSet<String> {
        let mut all = self.all();
        let mut news = BTreeSet::new();
        for (plugin, of_it) in all.iter_mut().filter(|(plugin, _)| !now.contains_key(*plugin)) {
            if of_it.remove(allocation).is_some() {
                news.insert(plugin.clone());
            }
        }
        all.retain(|_, of_it| !of_it.is_empty());
        for (plugin, waits) in now {
            let of_it = all.entry(plugin.clone()).or_default();
            if of_it.insert(allocation.clone(), waits.clone()).as_ref() != Some(waits) {
                news.insert(plugin.clone());
            }
        }
        news
    }

    /// The allocations that wait for volumes of the plugin.
    pub(crate) fn of(&self, plugin: &str) -> BTreeSet<Name> {
        self.all().get(plugin).map(|of_it| of_it.keys().cloned().collect()).unwrap_or_default()
    }

    /// Those of them that make no controller calls any more, once somebody else does.
    pub(super) fn controllers_of(&self, plugin: &str) -> BTreeSet<Name> {
        let all = self.all();
        let of_it = all.get(plugin).into_iter().flatten();
        of_it.filter(|(_, waits)| waits.controller).map(|(name, _)| name.clone()).collect()
    }

    /// Why one of them waits.
    pub(super) fn reason(&self, plugin: &str) -> Option<Reason> {
        self.all().get(plugin)?.values().next().map(|waits| waits.reason.clone())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<Name, Waits>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_news_is_told_once_and_what_is_over_is_forgotten() {
        let (changing, a) = (Changing::default(), ("d".to_owned(), "a".to_owned()));
        let waits = |controller| Waits { reason: Reason::InUse { by: "volume v".into() }, controller };
        let of = |plugins: &[(&str, bool)]| -> BTreeMap<String, Waits> {
            plugins.iter().map(|(plugin, controller)| ((*plugin).to_owned(), waits(*controller))).collect()
        };
        let names = |plugins: &[&str]| plugins.iter().map(|p| (*p).to_owned()).collect::<BTreeSet<_>>();
        for (now, news) in [
            (&[("p", false), ("q", true)][..], &["p", "q"][..]),
            (&[("p", false), ("q", true)], &[]),
            (&[("p", true)], &["p", "q"]),
            (&[], &["p"]),
            (&[], &[]),
        ] {
            assert_eq!(changing.set(&a, &of(now)), names(news), "{now:?}");
            assert_eq!(changing.of("p").contains(&a), now.iter().any(|(plugin, _)| *plugin == "p"));
            assert_eq!(changing.controllers_of("p").contains(&a), now.contains(&("p", true)));
        }
        assert_eq!(changing.reason("p"), None);
    }
}
