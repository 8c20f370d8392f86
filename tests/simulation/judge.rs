//! What must hold at every moment, checked whenever a worker publishes a snapshot: only then, and when work begins, can a worker come to
//! hold more than before.

use std::collections::BTreeMap;

use shardwise::Fence;
use shardwise::core::Resource;

use crate::worker::{Fate, Worker};

/// The user's own fenced table, and who holds what.
#[derive(Default)]
pub(crate) struct Judge {
    /// The highest epoch that wrote in each slot.
    table: BTreeMap<u32, u64>,
    /// The holder of a slot under an epoch.
    holders: BTreeMap<(u32, u64), usize>,
    /// The holder of a name under an epoch, and the highest so far.
    names: BTreeMap<String, (u64, usize)>,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// Changes with everything that was ever seen.
    pub(crate) digest: u64,
    /// While one worker is restarted in good order: the holders of everything, which must not change.
    pub(crate) pinned: Option<Pinned>,
}

/// Everything that is held: by which worker, and under which epoch.
pub(crate) type Held = BTreeMap<Resource, (usize, u64)>;

/// The holdings of all workers when a worker left that will come back.
pub(crate) struct Pinned {
    pub(crate) before: Held,
    /// Those who go and come, as one worker and as the next.
    pub(crate) restarted: Vec<usize>,
}

impl Pinned {
    /// # Errors
    ///
    /// If a worker holds something that another worker held, or has lost something that must stay.
    fn check(&self, workers: &[Worker]) -> Result<(), String> {
        let now = held(workers);
        let is_restarted = |number: &usize| self.restarted.contains(number);
        for (resource, (number, epoch)) in &self.before {
            match now.get(resource) {
                None if is_restarted(number) => {}
                Some((holder, _)) if is_restarted(number) && is_restarted(holder) => {}
                Some(same) if *same == (*number, *epoch) => {}
                other => {
                    let id = &workers[*number].id;
                    return Err(format!("{resource} moved in a restart in good order: {id} had it under epoch {epoch}, now {other:?}"));
                }
            }
        }
        Ok(())
    }
}

/// What is held now, by snapshots that are in force.
pub(crate) fn held(workers: &[Worker]) -> Held {
    let living = workers.iter().enumerate().filter(|(_, worker)| worker.fate != Fate::Dead);
    let live = living.filter_map(|(number, worker)| Some((number, worker.live()?)));
    live.flat_map(|(number, ownership)| {
        let slots = ownership.fences().map(|fence| (Resource::Slot(fence.slot), fence.epoch));
        let names = ownership.names().map(|(name, epoch)| (Resource::Name(name.clone()), epoch));
        slots.chain(names).map(|(resource, epoch)| (resource, (number, epoch.get()))).collect::<Vec<_>>()
    })
    .collect()
}

impl Judge {
    /// Checks all workers. An error says what is wrong.
    pub(crate) fn check(&mut self, workers: &[Worker]) -> Result<(), String> {
        let (mut slots, mut named) = (BTreeMap::new(), BTreeMap::new());
        for (number, worker) in workers.iter().enumerate().filter(|(_, worker)| worker.fate != Fate::Dead) {
            let live = worker.live();
            for (name, epoch) in live.iter().flat_map(|ownership| ownership.names()) {
                if let Some(other) = named.insert(name.to_string(), number) {
                    return Err(format!("{name} has two holders: {}", pair(workers, other, number)));
                }
                self.holds_name(name.as_str(), epoch.get(), number)?;
            }
            for fence in live.iter().flat_map(|ownership| ownership.fences()).chain(worker.working()) {
                match slots.insert(fence.slot, number) {
                    Some(other) if other != number => {
                        return Err(format!("slot {} has two holders: {}", fence.slot, pair(workers, other, number)));
                    }
                    _ => self.writes(fence, number)?,
                }
            }
        }
        self.pinned.as_ref().map_or(Ok(()), |pinned| pinned.check(workers))
    }

    /// Writes by workers that do not check their guard first, against the fenced table.
    pub(crate) fn write_stale(&mut self, workers: &[Worker]) {
        let stale_fences =
            workers.iter().filter(|worker| !matches!(worker.fate, Fate::Dead | Fate::Paused(_))).flat_map(Worker::stale_fences);
        for Fence { slot, epoch } in stale_fences {
            if self.table.get(&slot).is_some_and(|highest| epoch.get() < *highest) {
                self.refused += 1;
            } else {
                self.table.insert(slot, epoch.get());
            }
        }
    }

    /// # Errors
    ///
    /// If the table would refuse a holder, or the epoch is another one's.
    fn writes(&mut self, Fence { slot, epoch }: Fence, number: usize) -> Result<(), String> {
        let (epoch, highest) = (epoch.get(), self.table.entry(slot).or_insert(0));
        if epoch < *highest {
            return Err(format!("slot {slot} is held under epoch {epoch} after {highest}"));
        }
        *highest = epoch;
        let holder = *self.holders.entry((slot, epoch)).or_insert(number);
        if holder != number {
            return Err(format!("slot {slot} is held under epoch {epoch} by two workers, one after the other"));
        }
        self.accepted += 1;
        self.note([u64::from(slot), epoch, number as u64]);
        Ok(())
    }

    fn holds_name(&mut self, name: &str, epoch: u64, number: usize) -> Result<(), String> {
        let last = self.names.entry(name.to_owned()).or_insert((epoch, number));
        if epoch < last.0 || (epoch == last.0 && number != last.1) {
            return Err(format!("{name} is held under epoch {epoch} after {}", last.0));
        }
        *last = (epoch, number);
        Ok(())
    }

    pub(crate) fn note(&mut self, seen: [u64; 3]) {
        for number in seen {
            self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
    }
}

fn pair(workers: &[Worker], one: usize, other: usize) -> String {
    format!("{:?} ({:?}) and {:?} ({:?})", workers[one].service(), workers[one].fate, workers[other].service(), workers[other].fate)
}
