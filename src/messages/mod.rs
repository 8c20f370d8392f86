//! Typed messages to the holder of a name: a singleton, reached from every member.
//!
//! The claims say who the holder is, its record where it listens. A message is handed over under the epoch that the sender knows; the holder
//! takes it only if that is the epoch it holds the name under. What was certainly not handled is brought to the next holder; what may have been is
//! never sent again, and its sender learns that the outcome is unknown.

mod error;
mod handle;
mod inbox;
mod listener;
mod mailboxes;
mod peer;
mod post;
mod wire;

pub use error::MessageError;
pub use handle::{MESSAGE_WAIT, SingletonHandle};
pub use inbox::{Inbox, Message, Reply};
pub(crate) use post::unreachable_by;
