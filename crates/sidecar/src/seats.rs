//! Who is connected. When all seats are taken, whoever has been idle for longest has to go, so that idle clients keep nobody out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

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
}

/// One connection.
#[derive(Debug)]
struct Seat {
    requests: AtomicUsize,
    /// Since when nothing is asked.
    idle: Mutex<Instant>,
    closed: CancellationToken,
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

    /// A seat, if need be that of the one that has been idle for longest; `None` if everybody is busy.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Ticket> {
        let mut taken = self.taken();
        if taken.seats.len() >= self.most {
            let idle = taken.seats.iter().filter(|(_, seat)| seat.requests.load(Ordering::Relaxed) == 0);
            let longest = idle.min_by_key(|(_, seat)| *lock(&seat.idle)).map(|(number, _)| *number)?;
            if let Some(seat) = taken.seats.remove(&longest) {
                seat.closed.cancel();
            }
        }
        taken.next += 1;
        let number = taken.next;
        let seat = Arc::new(Seat { requests: AtomicUsize::new(0), idle: Mutex::new(Instant::now()), closed: CancellationToken::new() });
        taken.seats.insert(number, Arc::clone(&seat));
        Some(Ticket { seats: Arc::clone(self), number, seat })
    }

    /// How many are taken.
    pub(crate) fn len(&self) -> usize {
        self.taken().seats.len()
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

    pub(crate) fn busy(&self) -> Busy {
        self.seat.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(&self.seat))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.seats.taken().seats.remove(&self.number);
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
        assert!(seats.take().is_none(), "everybody is busy");
        drop((asks, all));
        // The first was the first to be idle again.
        let fifth = seats.take().unwrap();
        assert!(first.closed().is_cancelled());
        drop((first, third, fourth, fifth));
        assert_eq!(seats.len(), 0);
    }
}
