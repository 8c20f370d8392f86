//! One worker's life as a member of one group: its record, lease, view and claims, and the snapshot that readers see.
//!
//! The driver is one task for each membership. It runs the core's machine and publishes the snapshot; the rest of this module is state
//! that it shares with readers. A reader that must not keep the service alive holds only the `OwnershipContext`.

mod absences;
mod advertised;
mod calls;
mod context;
mod departures;
mod drain;
mod driver;
mod extensions;
mod guards;
mod holder_table;
mod life;
mod listeners;
mod note_book;
mod placement_cache;
pub mod proof;
mod state;

pub use absences::Absence;
pub(crate) use absences::Absences;
pub(crate) use advertised::AdvertisedAddresses;
pub(crate) use calls::{PROOFS_PER_TTL, follow, follow_claims, limited};
pub(crate) use context::OwnershipContext;
pub use departures::Departure;
pub(crate) use departures::Departures;
pub(crate) use drain::{DrainFollower, DrainIntent, DrainStore};
pub(crate) use driver::{Driver, DriverCommand};
pub(crate) use guards::{GuardKey, Signals};
pub(crate) use holder_table::{HolderTable, known, without_holders};
pub(crate) use life::Life;
pub use listeners::{Listener, News, Rebalances, Snapshots, WatchMembers};
pub(crate) use note_book::NoteBook;
pub(crate) use placement_cache::{placed_ahead, placer};
pub(crate) use state::Membership;
