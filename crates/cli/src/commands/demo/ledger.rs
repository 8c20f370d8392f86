//! The written and delivered events, and the verdict: nothing lost, nothing out of order. Has no I/O.

use std::collections::HashMap;

/// Every event by its id, and the progress of each aggregate.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    events: HashMap<String, LedgerEvent>,
    aggregates: HashMap<String, usize>,
    /// For each aggregate: events written, and the highest ordinal delivered so far.
    progress: Vec<(u64, u64)>,
    pub(super) delivered: u64,
    pub(super) repeated: u64,
    pub(super) repeated_late: u64,
    pub(super) out_of_order: u64,
    /// Deliveries of unknown events; any is a failure of the demo itself.
    pub(super) unknown: u64,
}

#[derive(Debug)]
struct LedgerEvent {
    aggregate: usize,
    /// The position in the aggregate by the order of writing, from 1.
    ordinal: u64,
    delivered: bool,
}

impl Ledger {
    /// Notes an event with a new id, before it is committed.
    pub(super) fn written(&mut self, id: &str, key: &str) {
        let next = self.progress.len();
        let aggregate = *self.aggregates.entry(key.to_owned()).or_insert(next);
        if aggregate == next {
            self.progress.push((0, 0));
        }
        self.progress[aggregate].0 += 1;
        let ordinal = self.progress[aggregate].0;
        self.events.insert(id.to_owned(), LedgerEvent { aggregate, ordinal, delivered: false });
    }

    pub(super) fn delivered(&mut self, id: &str) {
        let Some(event) = self.events.get_mut(id) else {
            self.unknown += 1;
            return;
        };
        let highest = &mut self.progress[event.aggregate].1;
        let late = event.ordinal < *highest;
        if std::mem::replace(&mut event.delivered, true) {
            self.repeated += 1;
            self.repeated_late += u64::from(late);
        } else {
            self.delivered += 1;
            self.out_of_order += u64::from(late);
        }
        *highest = event.ordinal.max(*highest);
    }

    pub(super) fn events(&self) -> u64 {
        self.events.len() as u64
    }

    pub(super) fn lost(&self) -> u64 {
        self.events() - self.delivered
    }

    /// Whether every event arrived, in order, and nothing else arrived.
    pub(super) fn is_clean(&self) -> bool {
        self.lost() == 0 && self.out_of_order == 0 && self.unknown == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(written: &[(&str, &str)], delivered: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for (id, key) in written {
            ledger.written(id, key);
        }
        for id in delivered {
            ledger.delivered(id);
        }
        ledger
    }

    const THREE: [(&str, &str); 3] = [("a1", "a"), ("a2", "a"), ("b1", "b")];

    #[test]
    fn aggregates_may_overtake_each_other_but_not_themselves() {
        assert!(ledger(&THREE, &["b1", "a1", "a2"]).is_clean());
        let swapped = ledger(&THREE, &["a2", "a1", "b1"]);
        assert_eq!((swapped.out_of_order, swapped.lost(), swapped.is_clean()), (1, 0, false));
    }

    #[test]
    fn repeats_are_counted_and_late_ones_apart() {
        let repeats = ledger(&THREE, &["a1", "a1", "a2", "a1", "b1", "a2"]);
        assert_eq!((repeats.delivered, repeats.repeated, repeats.repeated_late, repeats.out_of_order), (3, 3, 1, 0));
        assert!(repeats.is_clean(), "repeats are stated, not hidden, and no failure");
    }

    #[test]
    fn what_never_came_is_lost_and_what_was_never_written_is_noticed() {
        let lost = ledger(&THREE, &["a2", "x"]);
        assert_eq!((lost.lost(), lost.unknown, lost.is_clean()), (2, 1, false));
        assert_eq!(lost.events(), 3);
    }
}
