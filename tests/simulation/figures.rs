//! What was done and what came of it, added up over lives.

use std::collections::BTreeMap;

/// What the figures are called in the table, and how they are added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// By name.
    pub(crate) counts: BTreeMap<String, u64>,
    /// The worst of each, in milliseconds of simulated time.
    pub(crate) worst: BTreeMap<&'static str, u64>,
}

impl Figures {
    pub(crate) fn count(&mut self, what: &str, times: u64) {
        if times == 0 {
            return;
        }
        *self.counts.entry(what.to_owned()).or_default() += times;
    }

    pub(crate) fn took(&mut self, what: &'static str, ms: u64) {
        let worst = self.worst.entry(what).or_default();
        *worst = ms.max(*worst);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        other.counts.iter().for_each(|(what, times)| self.count(what, *times));
        other.worst.iter().for_each(|(what, ms)| self.took(what, *ms));
    }
}
