//! Typed messages to the holder of a name: a singleton, reached from every member.
//!
//! The claims give the holder, and its record the address. A message travels as a request to the holder, on the channel of all requests. It
//! is sent under the epoch that the sender knows; the holder takes it only if it holds the name under that epoch. A message that was
//! certainly not handled goes to the next holder; one that may have been is never sent again, and its sender learns that the outcome is
//! unknown.

mod error;
mod handle;
mod hub;
mod inbox;
mod wire;

pub use error::MessageError;
pub use handle::{MESSAGE_WAIT, SingletonHandle};
pub use inbox::{Inbox, Message, Reply};
