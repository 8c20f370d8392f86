//! Requests to one member by its name, or to any, answered by handlers that the worker registers.
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

mod addressee;
mod answer;
mod handlers;
#[cfg(feature = "requests")]
mod listener;
mod path;
pub mod proven;
mod service;

use std::time::Duration;

pub use addressee::{Addressee, TO_HEADER};
pub use answer::{Answer, Method, PROBLEM_JSON, Request};
pub use handlers::{STATUS, SUSPECT};
pub use path::{PATH_BYTES_MAX, encoded, is_path, path_to};

/// The metadata key in a member's record for the address of requests: `http://` or `https://`, a host and a port.
pub const ADDRESS_KEY: &str = crate::settings::REQUESTS_ADDRESS;
/// The header of requests and answers between members. A message without it is not from a member.
pub const PEER_HEADER: &str = "shardwise-peer";
/// The header's value in an answer of the member itself instead of its handler: the request was not admitted.
pub const REFUSED: &str = "refused";
/// The header's value if the request did not reach the member: its host may not be called.
pub const HOST_REFUSED: &str = "gate";
/// The header's value otherwise.
pub const ANSWERED: &str = "1";
/// The most bytes of a request's body, and of an answer's.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a query.
pub const QUERY_BYTES_MAX: usize = 4_096;
/// How long a handler may take.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
