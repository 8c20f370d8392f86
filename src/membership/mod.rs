//! One worker's life as a member of one group: its record, lease, view and claims, and the snapshot that readers see.
//!
//! The driver is one task for each membership. It runs the core's machine and publishes the snapshot; the rest of this module is state
//! that it shares with readers. A reader that must not keep the service alive holds only the `OwnershipContext`.

mod advertised;
mod calls;
mod context;
mod departures;
mod drain;
mod driver;
mod guards;
mod holder_table;
#[cfg(feature = "requests")]
mod incoming;
mod listeners;
#[cfg(feature = "requests")]
mod listening;
mod note_book;
mod placement_cache;
mod state;
mod worker;

pub(crate) use calls::{PROOFS_PER_TTL, follow, follow_claims, limited};
#[cfg(feature = "requests")]
pub(crate) use context::Life;
pub(crate) use context::OwnershipContext;
pub use departures::{Absence, Departure};
pub(crate) use departures::{Absences, Departures};
pub(crate) use drain::{DrainFollower, DrainStore};
pub(crate) use driver::{Commands, Driver, DriverCommand};
pub(crate) use guards::{GuardKey, Signals};
pub(crate) use holder_table::{HolderTable, without_holders};
pub use listeners::{Listener, Rebalances, Snapshots, Update};
#[cfg(feature = "requests")]
pub(crate) use listening::MemberListener;
pub(crate) use note_book::NoteBook;
pub(crate) use placement_cache::{placed_ahead, placer};
pub(crate) use state::Membership;
pub use worker::WorkerReport;
