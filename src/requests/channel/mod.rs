//! The one channel between members, for requests and for messages to singletons: both ends prove that they belong to the group, then
//! HTTP/2 by hyper, on one connection for each pair of members and direction (ADR 45).
//!
//! - `proof`: how the two ends prove knowledge of the members' secret.
//! - `hello`: the start of a connection, with the proofs of both ends.
//! - `seal`: without TLS every later record is proven too.
//! - `tls`: certificates (feature `tls`).
//! - `dial`, `caller`: this member's connections to others.
//! - `listener`, `recipient`: others' connections to this member.
//! - `activity`, `connection_limit`: whether a connection is idle, and which one makes room for another.
//! - `wire`: a request and its answer as headers; `body`: a body as it arrives.

mod activity;
mod body;
mod caller;
mod connection_limit;
mod dial;
mod hello;
mod listener;
pub mod proof;
mod recipient;
mod seal;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;
mod wire;

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use caller::MemberConnections;
pub(crate) use listener::listen;
pub use listener::{Arrival, ConnectionSecurity, Reception};
#[cfg(feature = "tls")]
pub use tls::{ALPN, binding};
pub use tls::{Binding, ChannelTls};

/// The bytes of a connection in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for S {}

/// The flow-control window of one request's body, and of all bodies of a connection, in bytes: what a connection may make the other end
/// hold in memory before it is read.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The most bytes of a head's headers, in either direction.
const HEAD_BYTES_MAX: u32 = 16 * 1024;
/// A connection that is silent for this long while something is in flight is sent a PING, and closed if no answer comes within
/// `PING_TIMEOUT`.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// A caller closes a connection that it has not used for this long. Shorter than on the other side, so that callers usually know.
const CALLER_IDLE_MAX: Duration = Duration::from_secs(30);
const RECIPIENT_IDLE_MAX: Duration = Duration::from_mins(2);
