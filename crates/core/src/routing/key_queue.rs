//! Handlers that take one request of a key at a time: a bounded queue for each key, in order of arrival.

use std::collections::{BTreeMap, VecDeque};

/// The limits of the queues of one handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// The most requests that wait for one key.
    pub per_key: usize,
    /// The most requests that wait for all keys together.
    pub in_all: usize,
}

/// A place in a queue: a request that has its turn, or that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTicket {
    /// The hash of the key.
    key: u64,
    number: u64,
}

/// A request was taken into the queue of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queued {
    /// It has its turn: handle it, then give back the ticket.
    Turn(QueueTicket),
    /// Others come first. Give back the ticket if it is cancelled.
    Waits(QueueTicket),
}

/// Why a request is refused: the caller should try again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueFull {
    /// Too many wait for its key.
    #[error("{most} requests wait for this key, and no more are allowed")]
    PerKey {
        /// The limit.
        most: usize,
    },
    /// Too many wait in all.
    #[error("{most} requests wait for their keys, and no more are allowed")]
    InAll {
        /// The limit.
        most: usize,
    },
}

/// The queues of one handler, each in order of arrival. Of each key at most one request has its turn. A key without requests takes no
/// memory. Keys whose hashes are equal share a queue.
///
/// `T` wakes a request that waits; the queue returns it when the request has its turn.
#[derive(Debug)]
pub struct KeyQueues<T> {
    limits: QueueLimits,
    queues: BTreeMap<u64, KeyQueue<T>>,
    waiting: usize,
    issued: u64,
}

#[derive(Debug)]
struct KeyQueue<T> {
    /// The number of the ticket that has its turn.
    turn: u64,
    waiting: VecDeque<(u64, T)>,
}

impl<T> KeyQueues<T> {
    /// Empty queues.
    pub const fn new(limits: QueueLimits) -> Self {
        Self { limits, queues: BTreeMap::new(), waiting: 0, issued: 0 }
    }

    /// Takes a request for the key with that hash. `waker` is called only if it has to wait.
    ///
    /// # Errors
    ///
    /// [`QueueFull`]; nothing is taken then.
    pub fn enter(&mut self, key: u64, waker: impl FnOnce() -> T) -> Result<Queued, QueueFull> {
        let QueueLimits { per_key, in_all } = self.limits;
        let ticket = QueueTicket { key, number: self.issued };
        let Some(queue) = self.queues.get_mut(&key) else {
            self.issued += 1;
            self.queues.insert(key, KeyQueue { turn: ticket.number, waiting: VecDeque::new() });
            return Ok(Queued::Turn(ticket));
        };
        if queue.waiting.len() >= per_key {
            return Err(QueueFull::PerKey { most: per_key });
        }
        if self.waiting >= in_all {
            return Err(QueueFull::InAll { most: in_all });
        }
        queue.waiting.push_back((ticket.number, waker()));
        (self.issued, self.waiting) = (self.issued + 1, self.waiting + 1);
        Ok(Queued::Waits(ticket))
    }

    /// Gives back a ticket: its request was handled or cancelled. If it had its turn, the next request has it now, and its waker is
    /// returned. A ticket that was given back already changes nothing.
    ///
    /// A request that is cancelled just as it gets its turn gives back its ticket too, and the one after it follows.
    pub fn leave(&mut self, ticket: QueueTicket) -> Option<T> {
        let queue = self.queues.get_mut(&ticket.key)?;
        if queue.turn != ticket.number {
            // Numbers rise, so the queue is sorted.
            if let Ok(at) = queue.waiting.binary_search_by_key(&ticket.number, |(number, _)| *number) {
                queue.waiting.remove(at);
                self.waiting = self.waiting.saturating_sub(1);
            }
            return None;
        }
        let Some((number, waker)) = queue.waiting.pop_front() else {
            self.queues.remove(&ticket.key);
            return None;
        };
        queue.turn = number;
        self.waiting = self.waiting.saturating_sub(1);
        Some(waker)
    }

    /// How many requests wait.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many keys have a request.
    pub fn keys(&self) -> usize {
        self.queues.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOMY: QueueLimits = QueueLimits { per_key: 100, in_all: 100 };

    fn ticket(queued: Queued) -> QueueTicket {
        match queued {
            Queued::Turn(ticket) | Queued::Waits(ticket) => ticket,
        }
    }

    #[test]
    fn each_key_has_one_turn_and_its_own_order() {
        let mut queues = KeyQueues::new(ROOMY);
        let first = queues.enter(1, || 'a').unwrap();
        assert!(matches!(first, Queued::Turn(_)) && matches!(queues.enter(2, || 'x'), Ok(Queued::Turn(_))));
        let waits: Vec<_> = ['b', 'c', 'd'].map(|name| ticket(queues.enter(1, || name).unwrap())).into();
        assert_eq!((queues.waiting(), queues.keys()), (3, 2));
        assert_eq!(queues.leave(ticket(first)), Some('b'));
        assert_eq!(queues.leave(waits[1]), None, "c is cancelled");
        assert_eq!(queues.leave(waits[0]), Some('d'));
        assert_eq!(queues.leave(waits[1]), None, "given back twice");
        assert_eq!((queues.leave(waits[2]), queues.waiting(), queues.keys()), (None, 0, 1));
    }

    #[test]
    fn beyond_a_limit_a_request_is_refused_and_nothing_is_kept() {
        let mut queues = KeyQueues::new(QueueLimits { per_key: 2, in_all: 3 });
        for (key, expected) in [(1, Ok(())), (1, Ok(())), (1, Ok(())), (1, Err(QueueFull::PerKey { most: 2 }))] {
            assert_eq!(queues.enter(key, || ()).map(|_| ()), expected);
        }
        queues.enter(2, || ()).unwrap();
        queues.enter(2, || ()).unwrap();
        assert_eq!(queues.enter(2, || ()), Err(QueueFull::InAll { most: 3 }));
        assert!(queues.enter(3, || ()).is_ok(), "a key without requests needs no place to wait");
        let mut queues = KeyQueues::new(QueueLimits { per_key: 0, in_all: 0 });
        assert!(queues.enter(1, || ()).is_ok() && queues.enter(1, || ()).is_err());
    }

    proptest! {
        /// Against plain lists: the first of each list has its turn.
        #[test]
        fn they_are_lists(steps in prop::collection::vec((0u64..4, any::<bool>(), 0usize..8), 1..200), per_key in 0usize..5, in_all in 0usize..9) {
            let mut queues = KeyQueues::new(QueueLimits { per_key, in_all });
            let mut lists: Vec<Vec<QueueTicket>> = vec![Vec::new(); 4];
            let mut numbered = 0;
            for (key, enters, at) in steps {
                let waiting: usize = lists.iter().map(|list| list.len().saturating_sub(1)).sum();
                let list = &mut lists[usize::try_from(key).unwrap()];
                if enters {
                    match queues.enter(key, || numbered) {
                        Ok(queued) => {
                            prop_assert_eq!(matches!(queued, Queued::Turn(_)), list.is_empty());
                            prop_assert_eq!(ticket(queued).number, numbered);
                            list.push(ticket(queued));
                            numbered += 1;
                        }
                        Err(_) => prop_assert!(!list.is_empty() && (list.len() > per_key || waiting >= in_all)),
                    }
                } else if at < list.len() {
                    let next = if at == 0 { list.get(1).map(|ticket| ticket.number) } else { None };
                    let left = list.remove(at);
                    prop_assert_eq!(queues.leave(left), next);
                    prop_assert_eq!(queues.leave(left), None, "twice");
                }
                let waiting: usize = lists.iter().map(|list| list.len().saturating_sub(1)).sum();
                prop_assert_eq!(queues.waiting(), waiting);
                prop_assert_eq!(queues.keys(), lists.iter().filter(|list| !list.is_empty()).count());
                prop_assert!(waiting <= in_all && lists.iter().all(|list| list.len() <= per_key + 1));
            }
        }
    }
}
