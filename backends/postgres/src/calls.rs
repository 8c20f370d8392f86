//! Numbers of calls. A call may be given up and carried out later, over a connection that its process has left. So each write of a record
//! names its process and its number, and the statement refuses one that comes after a later call of the same process.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Drawn once in a process.
static WRITER: LazyLock<i64> = LazyLock::new(|| (rand::random::<u64>() >> 1).cast_signed());
static LAST: AtomicI64 = AtomicI64::new(0);

/// Which call of which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallNumber {
    pub(crate) writer: i64,
    pub(crate) number: i64,
}

/// The next call of this process.
pub(crate) fn next_call() -> CallNumber {
    CallNumber { writer: writer(), number: LAST.fetch_add(1, Ordering::Relaxed) + 1 }
}

/// A random number that stands for this process.
pub(crate) fn writer() -> i64 {
    *WRITER
}
