//! Writes that a database refuses once another worker owns the work.
//!
//! No lease can stop a paused process from writing later. So every slot and every name comes with an epoch that rises with each
//! acquisition, and the database stores the highest epoch it has seen and refuses every lower one:
//!
//! - a *fence*: [`postgres::check`] or [`sqlite::check`] in your own transaction, or the same statements in any language
//!   ([Fencing](https://github.com/shardwise/shardwise/blob/main/docs/reference/fencing.md));
//! - [`Progress`]: the position from which the next owner of a key goes on, saved in the same transaction as the work;
//! - a [`Journal`]: state that outlives its owner, as a list of events with snapshots, appended by one owner at a time.
//!
//! Features: `postgres` and `sqlite`, neither by default. Without them the crate has only the names and the SQL, and no
//! database library.

#![cfg_attr(not(all(feature = "postgres", feature = "sqlite")), allow(rustdoc::broken_intra_doc_links))]

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod error;
mod fence;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod journal;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod progress;
mod stale_epoch;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use error::{FenceError, JournalError};
pub use fence::{postgres, sqlite};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use journal::{
    APPEND_BYTES_MAX, APPEND_EVENTS_MAX, EVENT_BYTES_MAX, Journal, JournalEvent, JournalSnapshot, LoadedJournal, READ_BYTES_MAX,
    READ_EVENTS_MAX, STATE_BYTES_MAX, TAIL_BYTES_MAX, TAIL_EVENTS_MAX,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use progress::{Position, Progress};
pub use shardwise_core::{ClaimName, Epoch, Fence, GroupName, InstanceId, Resource};
pub use stale_epoch::StaleEpoch;

/// A resource as text in the table, the same in every language: `slot/17` for a slot, `name/` and the name for a name.
///
/// ```
/// use shardwise_fencing::{ClaimName, Resource, resource_text};
///
/// assert_eq!(resource_text(&Resource::Slot(17)), "slot/17");
/// assert_eq!(resource_text(&Resource::Name(ClaimName::new("daemon/3")?)), "name/daemon/3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn resource_text(resource: &Resource) -> String {
    match resource {
        Resource::Slot(slot) => format!("slot/{slot}"),
        Resource::Name(name) => format!("name/{}", name.as_str()),
    }
}
