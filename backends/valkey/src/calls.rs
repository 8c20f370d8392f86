//! Numbers of calls. A call may be given up and carried out later, over a connection that its process has left. So each write of a record
//! names its process and its number, and the script refuses one that comes after a later call of the same process.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Drawn once in a process.
static WRITER: LazyLock<String> = LazyLock::new(|| format!("{:016x}", rand::random::<u64>()));
static LAST: AtomicU64 = AtomicU64::new(0);

/// Which call of which process, as the scripts take it.
#[derive(Debug, Clone)]
pub(crate) struct CallStamp {
    pub(crate) writer: &'static str,
    pub(crate) number: String,
}

/// The next call of this process.
pub(crate) fn next_call() -> CallStamp {
    CallStamp { writer: &WRITER, number: (LAST.fetch_add(1, Ordering::Relaxed) + 1).to_string() }
}
