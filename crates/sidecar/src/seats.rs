//! Who is connected. When all seats are taken, whoever has been idle for longest has to go, so that idle clients keep nobody out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// More seats than that are there for probes, when all others are busy.
const FOR_PROBES: usize = 8;

/// The seats of one listener.
#[derive(Debug)]
pub(crate) struct Seats {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    seats: HashMap<u64, Arc<Seat>>,
    /// Those of them that may only probe.
    probes: usize,
}

/// One connection.
#[derive(Debug)]
struct Seat {
    requests: AtomicUsize,
    /// Since when nothing is asked.
    idle: Mutex<Instant>,
    closed: CancellationToken,
    probes_only: bool,
}

/// A connection's right to be there; given back when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    seats: Arc<Seats>,
    number: u64,
    seat: Arc<Seat>,
}

/// While it lives, a request is being answered.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Seat>);

impl Seats {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // The table stays whole: each change is one insertion or removal.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat, if need be that of the one that has been idle for longest, or one that may only probe where everybody is busy; `None` if those are busy too.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Ticket> {
        let mut taken = self.taken();
        let probes_only = !taken.has_room(false, self.most);
        if probes_only && !taken.has_room(true, FOR_PROBES) {
            return None;
        }
        taken.next += 1;
        let number = taken.next;
        let (requests, idle, closed) = (AtomicUsize::new(0), Mutex::new(Instant::now()), CancellationToken::new());
        let seat = Arc::new(Seat { requests, idle, closed, probes_only });
        taken.add(number, Arc::clone(&seat));
        Some(Ticket { seats: Arc::clone(self), number, seat })
    }

    /// How many are taken.
    pub(crate) fn len(&self) -> usize {
        self.taken().seats.len()
    }
}

impl Taken {
    /// Whether there is room for one more of that kind, which is made if somebody is idle.
    fn has_room(&mut self, probes_only: bool, most: usize) -> bool {
        let there = if probes_only { self.probes } else { self.seats.len() - self.probes };
        if there < most {
            return true;
        }
        let alike = self.seats.iter().filter(|(_, seat)| seat.probes_only == probes_only && seat.requests.load(Ordering::Relaxed) == 0);
        let Some(longest) = alike.min_by_key(|(_, seat)| *lock(&seat.idle)).map(|(number, _)| *number) else { return false };
        if let Some(seat) = self.remove(longest) {
            seat.closed.cancel();
        }
        true
    }

    fn add(&mut self, number: u64, seat: Arc<Seat>) {
        self.probes += usize::from(seat.probes_only);
        self.seats.insert(number, seat);
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Seat>> {
        let seat = self.seats.remove(&number)?;
        self.probes -= usize::from(seat.probes_only);
        Some(seat)
    }
}

fn lock(idle: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
    /// Cancelled when the seat is needed for somebody else.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.seat.closed
    }

    /// Whether everybody else was busy, so that only probes are answered here.
    pub(crate) fn probes_only(&self) -> bool {
        self.seat.probes_only
    }

    pub(crate) fn busy(&self) -> Busy {
        self.seat.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(&self.seat))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.seats.taken().remove(self.number);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *lock(&self.0.idle) = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_idle_for_longest_goes_and_who_is_busy_stays() {
        let seats = Seats::new(3);
        let [first, second, third] = std::array::from_fn(|_| seats.take().unwrap());
        let asks = first.busy();
        let fourth = seats.take().unwrap();
        assert!(second.closed().is_cancelled() && !first.closed().is_cancelled() && !third.closed().is_cancelled());
        drop(second);
        assert_eq!(seats.len(), 3);
        let all = [third.busy(), fourth.busy()];
        assert!(seats.take().is_some_and(|seat| seat.probes_only()), "everybody is busy");
        drop((asks, all));
        // The first was the first to be idle again.
        let fifth = seats.take().unwrap();
        assert!(first.closed().is_cancelled());
        drop((first, third, fourth, fifth));
        assert_eq!(seats.len(), 0);
    }

    #[test]
    fn when_everybody_is_busy_there_is_room_for_probes_all_the_same() {
        let seats = Seats::new(2);
        let busy = [(); 2].map(|()| seats.take().unwrap());
        let asks: Vec<_> = busy.iter().map(Ticket::busy).collect();
        assert!(busy.iter().all(|seat| !seat.probes_only()));
        let probes: Vec<_> = (0..FOR_PROBES).map(|_| seats.take().unwrap()).collect();
        assert!(probes.iter().all(Ticket::probes_only));
        // Who came for a probe and says nothing makes room too, and never at the cost of the others.
        let late = seats.take().unwrap();
        assert!(late.probes_only() && probes[0].closed().is_cancelled() && busy.iter().all(|seat| !seat.closed().is_cancelled()));
        let probing: Vec<_> = probes.iter().skip(1).chain([&late]).map(Ticket::busy).collect();
        assert!(seats.take().is_none());
        drop((asks, probing));
        assert!(seats.take().is_some_and(|seat| !seat.probes_only()));
        drop((busy, probes, late));
        assert_eq!((seats.len(), seats.taken().probes), (0, 0));
    }
}
