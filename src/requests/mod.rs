//! Requests to members, answered by handlers that the worker registers, and the one channel on which they travel.
//!
//! A request goes to a destination ([`To`], feature `requests`): the owner of a key, the holder of a name, one member, the member of a
//! session, or any. A destination has a set of members that may serve it; a [`Pick`] chooses one. Placement, claims and view give the sets,
//! so nothing is stored for a destination. [`crate::ShardingService::ask`] waits for the answer and goes on to the right member as long as
//! the request was certainly not handled; a caller that is not a member asks by a
//! `Router` ([`crate::ShardingFactory`]).
//!
//! | handlers | answer requests to |
//! |---|---|
//! | [`crate::ShardingService::on_owned`] | the owner of a key, under the guard of the key |
//! | [`crate::ShardingService::on_held`] | the holder of a name, under the guard of the name |
//! | [`crate::ShardingService::on_session`] | a session that this member has opened |
//! | [`crate::ShardingService::on_request`] | this one member |
//! | [`crate::ShardingService::on_any`] | any member |
//!
//! ```no_run
//! # #[cfg(feature = "requests")]
//! # async fn demo(service: shardwise::ShardingService) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use shardwise::requests::{Owned, Request, To};
//!
//! service.on_owned("rooms/say", |owned: Owned| async move {
//!     let text = String::from_utf8_lossy(&owned.request.body).into_owned();
//!     // Under exclusive ownership the fence goes into your own writes.
//!     format!("{:?} heard {text}", owned.fence())
//! })?;
//! service.listen_for_requests().await?;
//! service.register_self().await?;
//!
//! // On any member:
//! let said = Request::post("rooms/say", "text/plain", "hello");
//! let answered = service.ask(&To::owner("room-7"), said, Duration::from_secs(5)).await?;
//! println!("{} answered {}", answered.by, answered.answer.status);
//! # Ok(())
//! # }
//! ```
//!
//! Requests arrive at [`crate::ShardingService::listen_for_requests`] (feature `requests`), or at a sidecar in the same process. Any
//! sidecar of the group also forwards requests of its clients.

mod address;
mod addressee;
mod answer;
#[cfg(feature = "requests")]
pub(crate) mod caller;
#[cfg(feature = "requests")]
pub mod channel;
mod handler_map;
pub(crate) mod handlers;
mod handling;
mod path;
#[cfg(feature = "requests")]
mod receiver;
mod request;
mod route_store;
mod security;
mod service;
#[cfg(feature = "requests")]
mod sessions;
mod status;
mod transport;

pub use addressee::{Addressee, TO_HEADER};
pub use answer::{Answer, PROBLEM_JSON};
#[cfg(feature = "requests")]
pub use caller::{Among, Answered, Route, RouteCause, To};
pub use handlers::{STATUS, SUSPECT};
pub use path::{PATH_BYTES_MAX, encoded, is_path};
#[cfg(feature = "requests")]
pub use receiver::{Held, Owned, OwnedOptions};
pub use request::{Method, Request};
pub(crate) use route_store::RouteStore;
pub use security::PeerSecurity;
#[cfg(feature = "requests")]
pub use sessions::{Session, SessionError, SessionRequest};
pub use shardwise_core::routing::{
    AskError, Candidate, Candidates, KeyHash, KeyRoute, LeastLoaded, NoRoute, Pick, PowerOfTwo, QueueLimits, ROUTES_MAX, Random,
    RoundRobin, Routes, RoutesError, SessionEnd, SessionId, SessionIdError, SessionLimits, SessionRefusal, WITHIN_DEFAULT, WITHIN_MAX,
    Width, WidthError,
};
pub use transport::{Attempt, MemberEndpoint, Transport, Undelivered};

/// The metadata key in a member's record for the address of requests and messages: `tcp://` or `tls://`, a host and a port.
pub const ADDRESS_KEY: &str = crate::settings::CHANNEL_ADDRESS;
/// The header of answers between members. An answer without it is not from a member.
pub const PEER_HEADER: &str = "shardwise-peer";
/// The header's value in an answer of the member itself instead of its handler: the request was not admitted.
pub const REFUSED: &str = "refused";
/// The header's value where the member does not know if its handler has handled the request.
pub const UNKNOWN: &str = "unknown";
/// The header's value otherwise.
pub const ANSWERED: &str = "1";
/// The most bytes of a request's body, and of an answer's.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a query.
pub const QUERY_BYTES_MAX: usize = 4_096;
/// The most bytes of the type of a body.
pub const CONTENT_TYPE_BYTES_MAX: usize = 256;
/// The most bytes of an idempotency key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
