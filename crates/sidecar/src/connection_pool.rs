//! A pool of connections for further requests to the same address: few, and for a short time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::target::Target;

/// How long an idle connection is kept: longer than a page's polling interval, and shorter than a sidecar waits for another request.
const KEPT_FOR: Duration = Duration::from_secs(8);
const MOST: usize = 64;
const MOST_EACH: usize = 4;

/// See the module. Expired connections are dropped on the next call. The other side closes idle connections too, which frees its socket
/// earlier.
#[derive(Debug)]
pub(crate) struct ConnectionPool<L>(Mutex<Vec<IdleConnection<L>>>);

#[derive(Debug)]
struct IdleConnection<L> {
    target: Target,
    connection: L,
    since: Instant,
}

impl<L> Default for ConnectionPool<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<L> ConnectionPool<L> {
    /// The most recently used connection to that address that is still good.
    pub(crate) fn take(&self, target: &Target, is_good: impl Fn(&L) -> bool) -> Option<L> {
        self.take_at(target, is_good, Instant::now())
    }

    fn take_at(&self, target: &Target, is_good: impl Fn(&L) -> bool, now: Instant) -> Option<L> {
        let mut idle = self.fresh(now);
        let at = idle.iter().rposition(|entry| entry.target == *target && is_good(&entry.connection))?;
        Some(idle.remove(at).connection)
    }

    /// Adds a connection, if necessary in place of the least recently used one.
    pub(crate) fn keep(&self, target: &Target, connection: L) {
        self.keep_at(target, connection, Instant::now());
    }

    fn keep_at(&self, target: &Target, connection: L, now: Instant) {
        let mut idle = self.fresh(now);
        let alike = idle.iter().filter(|entry| entry.target == *target).count();
        let goes =
            if alike >= MOST_EACH { idle.iter().position(|entry| entry.target == *target) } else { (idle.len() >= MOST).then_some(0) };
        if let Some(goes) = goes {
            idle.remove(goes);
        }
        idle.push(IdleConnection { target: target.clone(), connection, since: now });
    }

    /// The connections that have not expired, the least recently used first.
    fn fresh(&self, now: Instant) -> MutexGuard<'_, Vec<IdleConnection<L>>> {
        // A poisoned lock is safe: each change is one insertion or removal.
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|entry| now.saturating_duration_since(entry.since) < KEPT_FOR);
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(port: u16) -> Target {
        Target::parse(&format!("http://127.0.0.1:{port}")).unwrap()
    }

    #[test]
    fn a_connection_is_taken_by_whom_it_leads_to_while_it_is_good_and_not_old() {
        let (pool, begin) = (ConnectionPool::default(), Instant::now());
        let (here, there) = (target(1), target(2));
        let later = |seconds| begin + Duration::from_secs(seconds);
        pool.keep_at(&here, "older", begin);
        pool.keep_at(&here, "newer", later(1));
        assert_eq!(pool.take_at(&there, |_| true, later(1)), None);
        assert_eq!(pool.take_at(&Target::parse("https://127.0.0.1:1").unwrap(), |_| true, later(1)), None, "with TLS it is another one");
        assert_eq!(pool.take_at(&here, |_| false, later(1)), None, "closed, or not allowed any more");
        assert_eq!(pool.take_at(&here, |_| true, later(1)), Some("newer"));
        pool.keep_at(&here, "newer", later(2));
        assert_eq!([later(9), later(9)].map(|now| pool.take_at(&here, |_| true, now)), [Some("newer"), None], "the other one is too old");
        pool.keep_at(&here, "late", later(9));
        assert_eq!(pool.take_at(&here, |_| true, later(17)), None);
    }

    #[test]
    fn few_are_kept_of_all_and_to_one_place() {
        let (pool, now) = (ConnectionPool::default(), Instant::now());
        (0..10).for_each(|connection| pool.keep_at(&target(1), connection, now));
        let taken = || pool.take_at(&target(1), |_| true, now);
        assert_eq!([(); 5].map(|()| taken()), [Some(9), Some(8), Some(7), Some(6), None]);
        (0..100).for_each(|connection| pool.keep_at(&target(connection), connection, now));
        let left: Vec<_> = (0..100).filter_map(|connection| pool.take_at(&target(connection), |_| true, now)).collect();
        assert_eq!(left, (36..100).collect::<Vec<_>>());
    }
}
