//! The receiver's side of requests to keys and names: it decides by its own clock and claims, and what the sender knows is only a hint.
//!
//! - `owned`: handlers of keys; `queue`: one request of a key at a time; `widths`: how far this member has its keys spread.
//! - `held`: handlers of names.
//! - `for_sidecar`: the same for a server that stands before this worker.
//! - `gauges`: what metrics show of it; `report`: what the member's status says of it.

mod for_sidecar;
mod gauges;
mod held;
mod owned;
mod queue;
mod report;
mod widths;

pub(super) use gauges::show;
pub use held::Held;
pub use owned::{Owned, OwnedOptions};
pub(super) use report::report;
