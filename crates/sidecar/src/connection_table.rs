//! The open connections. When the table is full, the one that has been idle for longest is closed, so that idle clients do not block
//! others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// The number of additional connections for probes, when all others are busy.
const FOR_PROBES: usize = 8;

#[derive(Debug)]
pub(crate) struct ConnectionTable {
    most: usize,
    next: AtomicU64,
    open: Mutex<HashMap<u64, ConnectionEntry>>,
}

#[derive(Debug)]
struct ConnectionEntry {
    /// How many requests are being answered.
    requests: usize,
    /// Since when no request is being answered.
    idle: Instant,
    closed: CancellationToken,
    probes_only: bool,
}

/// A connection's place in the table; freed on drop.
#[derive(Debug)]
pub(crate) struct ConnectionTicket {
    table: Arc<ConnectionTable>,
    number: u64,
    /// Cancelled when another connection needs the place.
    pub(crate) closed: CancellationToken,
    pub(crate) probes_only: bool,
}

/// Marks the connection as busy with a request until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    table: Arc<ConnectionTable>,
    number: u64,
}

impl ConnectionTable {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), next: AtomicU64::new(0), open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, ConnectionEntry>> {
        // A poisoned lock is safe: each change is one insertion, removal or assignment.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection and closes the longest idle one if necessary. If all are busy it admits only probes; `None` if the places for
    /// probes are busy too.
    pub(crate) fn take(self: &Arc<Self>) -> Option<ConnectionTicket> {
        let mut open = self.open();
        let probes_only = !has_room(&mut open, false, self.most);
        if probes_only && !has_room(&mut open, true, FOR_PROBES) {
            return None;
        }
        let (number, closed) = (self.next.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        open.insert(number, ConnectionEntry { requests: 0, idle: Instant::now(), closed: closed.clone(), probes_only });
        Some(ConnectionTicket { table: Arc::clone(self), number, closed, probes_only })
    }

    pub(crate) fn len(&self) -> usize {
        self.open().len()
    }
}

/// Whether there is room for one more connection of that kind; closes an idle one to make room.
fn has_room(open: &mut HashMap<u64, ConnectionEntry>, probes_only: bool, most: usize) -> bool {
    let alike = || open.iter().filter(|(_, entry)| entry.probes_only == probes_only);
    if alike().count() < most {
        return true;
    }
    let idle = alike().filter(|(_, entry)| entry.requests == 0);
    let Some(longest) = idle.min_by_key(|(_, entry)| entry.idle).map(|(number, _)| *number) else { return false };
    if let Some(entry) = open.remove(&longest) {
        entry.closed.cancel();
    }
    true
}

impl ConnectionTicket {
    pub(crate) fn busy(&self) -> Busy {
        if let Some(entry) = self.table.open().get_mut(&self.number) {
            entry.requests += 1;
        }
        Busy { table: Arc::clone(&self.table), number: self.number }
    }
}

impl Drop for ConnectionTicket {
    fn drop(&mut self) {
        self.table.open().remove(&self.number);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(entry) = self.table.open().get_mut(&self.number) {
            entry.requests -= 1;
            entry.idle = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_is_idle_for_longest_goes_and_busy_ones_stay() {
        let connections = ConnectionTable::new(3);
        let [first, second, third] = std::array::from_fn(|_| connections.take().unwrap());
        let asks = first.busy();
        let fourth = connections.take().unwrap();
        assert!(second.closed.is_cancelled() && !first.closed.is_cancelled() && !third.closed.is_cancelled());
        drop(second);
        assert_eq!(connections.len(), 3);
        let all = [third.busy(), fourth.busy()];
        assert!(connections.take().is_some_and(|entry| entry.probes_only), "every connection is busy");
        drop((asks, all));
        // The first became idle before the others.
        let fifth = connections.take().unwrap();
        assert!(first.closed.is_cancelled());
        drop((first, third, fourth, fifth));
        assert_eq!(connections.len(), 0);
    }

    #[test]
    fn when_all_are_busy_there_is_room_for_probes_all_the_same() {
        let connections = ConnectionTable::new(2);
        let busy = [(); 2].map(|()| connections.take().unwrap());
        let asks: Vec<_> = busy.iter().map(ConnectionTicket::busy).collect();
        assert!(busy.iter().all(|entry| !entry.probes_only));
        let probes: Vec<_> = (0..FOR_PROBES).map(|_| connections.take().unwrap()).collect();
        assert!(probes.iter().all(|entry| entry.probes_only));
        // An idle connection for probes is closed to make room, but never an ordinary one.
        let late = connections.take().unwrap();
        assert!(late.probes_only && probes[0].closed.is_cancelled() && busy.iter().all(|entry| !entry.closed.is_cancelled()));
        let probing: Vec<_> = probes.iter().skip(1).chain([&late]).map(ConnectionTicket::busy).collect();
        assert!(connections.take().is_none());
        drop((asks, probing));
        assert!(connections.take().is_some_and(|entry| !entry.probes_only));
        drop((busy, probes, late));
        assert_eq!(connections.len(), 0);
    }
}
