//! A pool of connections for further requests to the same address: few, and for a short time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::target::Target;

/// How long an idle connection is kept: longer than a page's polling interval, and shorter than a sidecar waits for another request.
const KEPT_FOR: Duration = Duration::from_secs(8);
const MOST: usize = 64;
const MOST_EACH: usize = 4;

/// Expired connections are dropped on the next call. The other side closes idle connections too, which frees its socket earlier.
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
        let mut idle = self.fresh();
        let at = idle.iter().rposition(|entry| entry.target == *target && is_good(&entry.connection))?;
        Some(idle.remove(at).connection)
    }

    /// Adds a connection, if necessary in place of the least recently used one.
    pub(crate) fn keep(&self, target: &Target, connection: L) {
        let mut idle = self.fresh();
        let alike = idle.iter().filter(|entry| entry.target == *target).count();
        let goes =
            if alike >= MOST_EACH { idle.iter().position(|entry| entry.target == *target) } else { (idle.len() >= MOST).then_some(0) };
        if let Some(goes) = goes {
            idle.remove(goes);
        }
        idle.push(IdleConnection { target: target.clone(), connection, since: Instant::now() });
    }

    /// The connections that have not expired, the least recently used first.
    fn fresh(&self) -> MutexGuard<'_, Vec<IdleConnection<L>>> {
        // A poisoned lock is safe: each change is one insertion or removal.
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|entry| entry.since.elapsed() < KEPT_FOR);
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(port: u16) -> Target {
        Target::parse(&format!("http://127.0.0.1:{port}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_taken_by_whom_it_leads_to_while_it_is_good_and_not_old() {
        let pool = ConnectionPool::default();
        let (here, there) = (target(1), target(2));
        let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        pool.keep(&here, "older");
        pass(1).await;
        pool.keep(&here, "newer");
        assert_eq!(pool.take(&there, |_| true), None);
        assert_eq!(pool.take(&Target::parse("https://127.0.0.1:1").unwrap(), |_| true), None, "with TLS it is another one");
        assert_eq!(pool.take(&here, |_| false), None, "closed, or not allowed any more");
        assert_eq!(pool.take(&here, |_| true), Some("newer"));
        pass(1).await;
        pool.keep(&here, "newer");
        pass(7).await;
        assert_eq!([(); 2].map(|()| pool.take(&here, |_| true)), [Some("newer"), None], "the other one is too old");
        pool.keep(&here, "late");
        pass(8).await;
        assert_eq!(pool.take(&here, |_| true), None);
    }

    #[test]
    fn few_are_kept_of_all_and_to_one_place() {
        let pool = ConnectionPool::default();
        (0..10).for_each(|connection| pool.keep(&target(1), connection));
        let taken = || pool.take(&target(1), |_| true);
        assert_eq!([(); 5].map(|()| taken()), [Some(9), Some(8), Some(7), Some(6), None]);
        (0..100).for_each(|connection| pool.keep(&target(connection), connection));
        let left: Vec<_> = (0..100).filter_map(|connection| pool.take(&target(connection), |_| true)).collect();
        assert_eq!(left, (36..100).collect::<Vec<_>>());
    }
}
