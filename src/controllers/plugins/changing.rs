//! Tasks that serve something else than their csiPlugin blocks say, or than they may.
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::cache::Name;

/// For each plugin the allocations that serve it still and shall not, or in a smaller role, so that they are woken by what
/// they wait for. Known to this process alone: whoever leads next finds it out by looking at each allocation.
#[derive(Debug, Default)]
pub(crate) struct Changing(Mutex<HashMap<String, BTreeSet<Name>>>);

impl Changing {
    /// Notes which plugins an allocation serves still; returns those for which that is news.
    pub(crate) fn set(&self, allocation: &Name, now: &BTreeSet<String>) -> BTreeSet<String> {
        let mut all = self.all();
        let mut news = BTreeSet::new();
        for (plugin, of_it) in all.iter_mut().filter(|(plugin, _)| !now.contains(*plugin)) {
            if of_it.remove(allocation) {
                news.insert(plugin.clone());
            }
        }
        all.retain(|_, of_it| !of_it.is_empty());
        for plugin in now {
            if all.entry(plugin.clone()).or_default().insert(allocation.clone()) {
                news.insert(plugin.clone());
            }
        }
        news
    }

    /// The allocations that serve the plugin and shall not.
    pub(crate) fn of(&self, plugin: &str) -> BTreeSet<Name> {
        self.all().get(plugin).cloned().unwrap_or_default()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, BTreeSet<Name>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_news_is_told_once_and_what_is_over_is_forgotten() {
        let (changing, a) = (Changing::default(), ("d".to_owned(), "a".to_owned()));
        let names = |plugins: &[&str]| plugins.iter().map(|p| (*p).to_owned()).collect::<BTreeSet<_>>();
        for (now, news) in [
            (&["p", "q"][..], &["p", "q"][..]),
            (&["p", "q"], &[]),
            (&["p"], &["q"]),
            (&[], &["p"]),
            (&[], &[]),
        ] {
            assert_eq!(changing.set(&a, &names(now)), names(news), "{now:?}");
            assert_eq!(changing.of("p").contains(&a), now.contains(&"p"));
        }
        assert!(changing.all().is_empty());
    }
}
