//! A connection for one call.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};

/// A connection out of the pool. A call that is dropped closes its connection: the answer may still arrive at any time, and the next call
/// must not wait for it.
pub(super) struct LeasedConnection(Option<PoolConnection<Postgres>>);

impl LeasedConnection {
    pub(super) fn new(conn: PoolConnection<Postgres>) -> Self {
        Self(Some(conn))
    }

    /// Ends the call and returns the connection to the pool.
    pub(super) fn back<T>(mut self, answer: T) -> T {
        drop(self.0.take());
        answer
    }
}

impl Deref for LeasedConnection {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "it is there until `back`, which takes the whole of it")]
    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect("the connection is there")
    }
}

impl DerefMut for LeasedConnection {
    #[expect(clippy::expect_used, reason = "it is there until `back`, which takes the whole of it")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("the connection is there")
    }
}

impl Drop for LeasedConnection {
    fn drop(&mut self) {
        // A detached connection is closed when it is dropped.
        drop(self.0.take().map(PoolConnection::detach));
    }
}
