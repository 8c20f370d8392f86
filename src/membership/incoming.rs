//! The connections of other members to this one: a member that has left ends them, and takes none until it joins again.

use std::sync::Mutex;
use std::time::Duration;

use shardwise_core::Incarnation;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::locked;

/// How long connections may take to end. What they had was answered before, or has outlasted `drain_timeout`, so a round trip is enough.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The connections of other members to this one.
#[derive(Default)]
pub(crate) struct IncomingConnections(Mutex<IncomingState>);

#[derive(Default)]
struct IncomingState {
    /// The last incarnation that has left.
    left: Option<Incarnation>,
    ending: CancellationToken,
    cut: CancellationToken,
    open: TaskTracker,
}

/// One connection, which is open until this is dropped.
pub(crate) struct IncomingConnection {
    /// Cancelled once its member has left: the connection ends when what is in flight on it is answered.
    pub(crate) ending: CancellationToken,
    /// Cancelled if that takes too long: the connection ends at once.
    pub(crate) cut: CancellationToken,
    _open: TaskTrackerToken,
}

impl IncomingConnections {
    /// One more connection to that incarnation; `None` once it has left.
    pub(crate) fn admit(&self, incarnation: Incarnation) -> Option<IncomingConnection> {
        let mut state = locked(&self.0);
        match state.left {
            Some(left) if left == incarnation => return None,
            // It has joined again since, under another incarnation.
            Some(_) => *state = IncomingState::default(),
            None => {}
        }
        Some(IncomingConnection { ending: state.ending.clone(), cut: state.cut.clone(), _open: state.open.token() })
    }

    /// That incarnation has left: ends all connections and waits until they have ended, a second at most.
    pub(crate) async fn end(&self, left: Incarnation) {
        let (cut, open) = {
            let mut state = locked(&self.0);
            state.left = Some(left);
            state.ending.cancel();
            state.open.close();
            (state.cut.clone(), state.open.clone())
        };
        if timeout(END_WITHIN, open.wait()).await.is_err() {
            tracing::warn!(connections = open.len(), "connections of members did not end within {END_WITHIN:?} and were cut");
            cut.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const FIRST: Incarnation = Incarnation::new(1);
    const SECOND: Incarnation = Incarnation::new(2);

    #[tokio::test(start_paused = true)]
    async fn a_member_that_has_left_ends_its_connections_and_takes_none_until_it_joins_again() {
        let connections = IncomingConnections::default();
        let (quick, slow) = (connections.admit(FIRST).unwrap(), connections.admit(FIRST).unwrap());
        let quick = tokio::spawn(async move {
            // All of it, which is dropped when this ends.
            let connection = quick;
            connection.ending.cancelled().await;
        });
        let cut = slow.cut.clone();
        let begun = Instant::now();
        connections.end(FIRST).await;
        assert!(quick.is_finished() && slow.ending.is_cancelled() && cut.is_cancelled());
        assert_eq!(begun.elapsed(), END_WITHIN, "it waits for the slow one, and not for ever");
        assert!(connections.admit(FIRST).is_none(), "it has left");

        let again = connections.admit(SECOND).unwrap();
        assert!(!again.ending.is_cancelled() && !again.cut.is_cancelled());
        drop(again);
        let begun = Instant::now();
        connections.end(SECOND).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "the connection of before does not count");
        assert!(connections.admit(SECOND).is_none());
        drop(slow);
    }

    /// The end of a former incarnation, seen late, keeps no caller from the next one.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_former_incarnation_does_not_shut_out_the_next_one() {
        let connections = IncomingConnections::default();
        let present = connections.admit(SECOND).unwrap();
        connections.end(FIRST).await;
        assert!(present.ending.is_cancelled());
        assert!(connections.admit(SECOND).is_some());
    }
}
