//! A worker with a lease that has not finished when `drain_timeout` is over: `on_drain_timeout` decides, as for a guard of the library.

use std::time::Duration;

use crate::Served;
use crate::common::lease::Lease;
use crate::common::{PATIENCE, Place, eventually};
use crate::leases::{SLOTS, exclusive, follow, has_all, lines};

/// Two workers. The first one has had everything, and keeps what it should hand over until it has lost it.
struct LateHandover {
    first: Lease,
    second: Lease,
    /// The slots that the first one had, each with its epoch.
    before: Vec<(u64, u64)>,
    one: Served,
    two: Served,
    _place: Place,
}

impl LateHandover {
    fn begin(rule: &str) -> Self {
        let place = exclusive(&format!("drain_timeout = \"1s\"\non_drain_timeout = \"{rule}\""));
        let (one, two) = (Served::start(&place, &[]), Served::start(&place, &[]));
        let first = Lease::kept(one.at, 5_000);
        let before = has_all(&first);
        first.finishes(false);
        let second = Lease::kept(two.at, 5_000);
        eventually("the time for half of it is over", PATIENCE, || (first.lost().len() > SLOTS / 4).then_some(()));
        Self { first, second, before, one, two, _place: place }
    }

    /// The slots that the first worker has no more.
    fn gone(&self) -> Vec<u64> {
        let stay = self.first.slots().0;
        let is_gone = |slot: &u64| stay.iter().all(|(other, _)| other != slot);
        self.before.iter().map(|(slot, _)| *slot).filter(is_gone).collect()
    }

    /// Waits until the first worker has confirmed what it has lost, and both together have everything.
    fn ends(&self) {
        self.first.finishes(true);
        eventually("the second one has the rest", PATIENCE, || {
            let (stay, moved) = (self.first.slots().0, self.second.slots().0);
            (self.first.lost().is_empty() && !moved.is_empty() && stay.len() + moved.len() == SLOTS).then_some(())
        });
        for (slot, epoch) in self.second.slots().0 {
            let before = self.before.iter().find(|(known, _)| *known == slot).unwrap().1;
            assert!(epoch > before, "slot {slot} under {epoch} after {before}");
        }
    }
}

#[test]
fn with_hold_no_other_worker_gets_a_slot_before_the_late_one_has_confirmed_it() {
    let late = LateHandover::begin("hold");
    // Longer than a handover takes where it has to wait for nothing.
    std::thread::sleep(Duration::from_secs(1));
    let (gone, holders) = (late.gone(), late.two.get("holders").well("holders"));
    assert!(gone.len() > SLOTS / 4 && late.second.slots().0.is_empty(), "{gone:?}");
    for slot in gone {
        assert_eq!(holders["slots"][usize::try_from(slot).unwrap()]["holder"], late.one.id.as_str(), "slot {slot}: {holders}");
    }
    // A worker that connects again learns which grants it has to confirm, and none of them looks as if it was held.
    let all = lines(follow(late.one.at, &late.first)).next().unwrap();
    let lost = all["lost"].as_array().unwrap();
    assert!(lost.len() > SLOTS / 4 && all["grants"].as_array().unwrap().iter().all(|grant| !lost.contains(&grant["grant"])), "{all}");
    late.ends();
}

#[test]
fn with_release_others_get_the_slots_of_a_late_worker_under_higher_epochs() {
    let late = LateHandover::begin("release");
    let moved = eventually("the second one has some", PATIENCE, || Some(late.second.slots().0).filter(|slots| !slots.is_empty()));
    let (gone, lost) = (late.gone(), late.first.lost());
    assert!(moved.iter().all(|(slot, _)| gone.contains(slot)) && lost.len() > SLOTS / 4, "{moved:?} of {gone:?}; to confirm: {lost:?}");
    late.ends();
}
