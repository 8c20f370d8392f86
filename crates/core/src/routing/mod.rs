//! Requests: which members may serve a destination, which of them is chosen, and what follows an attempt.
//!
//! A destination has a *set* of members, and a *pick* chooses one of them. A [`RouteTable`] derives every set from one view, its placement
//! and its claims; nothing is stored for a destination. A [`Choice`] is a set with the [`Pick`] that chooses from it. [`Ask`] decides what
//! follows each attempt of one request, until its deadline.
//!
//! A hot key is spread over more members. Its owner decides how many ([`OwnerWidths`]), callers remember that for a while
//! ([`WidthHints`]), and operators can override it ([`Routes`]).
//!
//! What is shared by threads uses atomics and no lock. What one thread changes at a time ([`OwnerWidths`], [`SessionTable`],
//! [`KeyQueues`], [`Ask`]) takes `&mut self`; callers keep it behind a short lock.

mod ask;
mod candidate;
mod hints;
mod key_queue;
mod load;
mod pick;
mod routes;
mod session_id;
mod sessions;
mod sets;
mod table;
mod undelivered;
mod widening;
mod width;

pub use ask::{Ask, AskStep, TRIES_IN_A_ROW, WITHIN_DEFAULT, WITHIN_MAX, WITHIN_MIN, WithinError};
pub use candidate::{Candidate, Candidates};
pub use hints::{HOT_KEYS_MAX, WIDTH_VALID_FOR, WidthHints};
pub use key_queue::{KeyQueues, QueueFull, QueueLimits, QueueTicket, Queued};
pub use load::{BUSY_FOR, BUSY_FOR_MAX, FAILING_FOR, InFlight, LOAD_HALVES_EVERY, LOAD_MAX, PeerLoad};
pub use pick::{Choice, LeastLoaded, Pick, PowerOfTwo, Random, RoundRobin};
pub use routes::{KeyHash, KeyRoute, ROUTES_MAX, Routes, RoutesError, SKIPS_MAX};
pub use session_id::{SessionId, SessionIdError};
pub use sessions::{SessionEnd, SessionLimits, SessionRefusal, SessionTable};
pub use sets::{MemberSet, NoRoute};
pub use table::RouteTable;
pub use undelivered::{AskError, Undelivered};
pub use widening::{NARROW_AFTER, OwnerWidths, WIDEN_EVERY, WidthRules};
pub use width::{Width, WidthError};
