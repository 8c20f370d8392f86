//! Operators' actions on a group from outside (observe, drain, confirm a loss, take an epoch), and requests without joining.

mod claims;
mod epoch;
mod group;
mod observer;
#[cfg(feature = "requests")]
mod router;

pub(crate) use group::{Group, unknown_member};
pub use observer::Observer;
#[cfg(feature = "requests")]
pub use router::Router;
