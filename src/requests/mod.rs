//! Requests to members, answered by handlers that the worker registers, and the one channel on which they travel.
//!
//! A worker registers handlers by [`crate::ShardingService::on_request`] for requests to this one instance, and by
//! [`crate::ShardingService::on_any`] for requests that any instance may answer. Any sidecar of the group forwards requests to it. They are
//! for people and tools, such as a cache's size or "reload now". Work belongs to the owner of its key, and what only one member may do
//! belongs to a singleton and its messages.
//!
//! ```no_run
//! use shardwise::requests::{Answer, Request};
//! # async fn demo(service: shardwise::ShardingService, size: std::sync::Arc<std::sync::atomic::AtomicU64>) -> shardwise::Result<()> {
//! service.on_request("cache/size", move |_: Request| {
//!     let size = size.load(std::sync::atomic::Ordering::Relaxed);
//!     async move { Answer::text(size.to_string()) }
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! Requests arrive at [`crate::ShardingService::listen_for_requests`] (feature `requests`), or at a sidecar in the same process.

mod address;
mod addressee;
mod answer;
#[cfg(feature = "requests")]
pub mod channel;
pub(crate) mod handlers;
mod path;
mod request;
mod security;
mod service;
mod status;
mod transport;

pub use addressee::{Addressee, TO_HEADER};
pub use answer::{Answer, PROBLEM_JSON};
pub use handlers::{STATUS, SUSPECT};
pub use path::{PATH_BYTES_MAX, encoded, is_path};
pub use request::{Method, Request};
pub use security::PeerSecurity;
pub use shardwise_core::routing::{WITHIN_DEFAULT, WITHIN_MAX};
pub use transport::{Attempt, Place, Transport, Undelivered};

/// The metadata key in a member's record for the address of requests and messages: `tcp://` or `tls://`, a host and a port.
pub const ADDRESS_KEY: &str = crate::settings::CHANNEL_ADDRESS;
/// The header of answers between members. An answer without it is not from a member.
pub const PEER_HEADER: &str = "shardwise-peer";
/// The header's value in an answer of the member itself instead of its handler: the request was not admitted.
pub const REFUSED: &str = "refused";
/// The header's value otherwise.
pub const ANSWERED: &str = "1";
/// The most bytes of a request's body, and of an answer's.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a query.
pub const QUERY_BYTES_MAX: usize = 4_096;
/// The most bytes of an idempotency key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
