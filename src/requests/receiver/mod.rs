//! The receiver's side of requests to keys and names: it decides by its own clock and claims, and what the sender knows is only a hint.
//!
//! - `owned`: handlers of keys; `queue`: one request of a key at a time; `widths`: how far this member has its keys spread.
//! - `held`: handlers of names.
//! - `gauges`: what metrics show of it.

mod gauges;
mod held;
mod owned;
mod queue;
mod widths;

pub(super) use gauges::show;
pub use held::Held;
pub use owned::{Owned, OwnedOptions};
