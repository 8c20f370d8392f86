//! Numbers of calls.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Drawn once in a process.
static WRITER: LazyLock<i64> = LazyLock::new(|| (rand::random::<u64>() >> 1).cast_signed());
static LAST: AtomicI64 = AtomicI64::new(0);

/// Which call of which process, for backends where a call may be given up and carried out later, over a connection that its process has
/// left. Each write of a record names its process and its number there, and the server refuses one that comes after a later call of the
/// same process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallNumber {
    /// As [`CallNumber::writer`].
    pub writer: i64,
    /// Counts the calls of this process.
    pub number: i64,
}

impl CallNumber {
    /// The next call of this process.
    pub fn next() -> Self {
        Self { writer: Self::writer(), number: LAST.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// A random number that stands for this process, at least 0.
    pub fn writer() -> i64 {
        *WRITER
    }
}
