//! Requests to one member by its name, answered by handlers that the worker registers.
//!
//! A worker registers handlers by [`crate::ShardingService::on_request`], and any sidecar of the group brings requests to it, by its name or because any
//! healthy one will do.
//!
//! What a handler answers is for people and tools, such as a cache's size or "reload now". Work belongs to the owner of its key, and what only one may do
//! to a singleton and its messages.
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
//! Here is what a request and an answer are, and how a member's address looks; [`crate::ShardingService::listen_for_requests`] (feature `requests`), or a
//! sidecar in the same process, is where they arrive. How members prove that they are members is [`proven`].

mod answer;
mod handlers;
#[cfg(feature = "requests")]
mod listener;
mod path;
pub mod proven;
mod service;
mod status;

use std::time::Duration;

pub use answer::{Answer, Method, PROBLEM_JSON, Request};
pub use path::{PATH_BYTES_MAX, encoded, is_path, path_to};

/// The metadata under which a member's record says where requests to it arrive: `http://` or `https://`, a host and a port.
pub const ADDRESS_KEY: &str = crate::settings::REQUESTS_ADDRESS;
/// The header of requests and answers between members. What lacks it is not from a member.
pub const PEER_HEADER: &str = "shardwise-peer";
/// The header's value in an answer that the member itself gives and not its handler: the request was not let in.
pub const REFUSED: &str = "refused";
/// The header's value where the request did not get as far as the member: the host that it names may not be called.
pub const AT_THE_GATE: &str = "gate";
/// The header's value otherwise.
pub const SPOKEN: &str = "1";
/// The most bytes of a request's body, and of an answer's.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a query.
pub const QUERY_BYTES_MAX: usize = 4_096;
/// How long a handler may take.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
