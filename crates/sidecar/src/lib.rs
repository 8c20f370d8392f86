//! HTTP beside a worker in any language: which keys are mine, who owns what and why, and what moves.
//!
//! A [`Sidecar`] joins groups in the name of a worker and answers for it. Renewals run on a thread of their own: whatever clients do, they are not
//! late because of it. Everything that a client can send is bounded in size, number and time.
//!
//! Here are routes, limits and who may ask; what is answered comes from the library.

mod among;
mod answers;
mod app;
mod bodies;
mod body;
mod certificates;
mod connections;
mod dial;
mod exchange;
mod explain;
mod forward;
mod gate;
mod greet;
mod health;
mod history;
mod kept;
mod metrics;
mod openapi;
mod options;
mod outbox;
mod owned;
mod page;
mod peers;
mod plan;
mod problem;
mod rate;
mod reach;
mod readings;
mod rebalances;
mod seats;
mod server;
mod sieve;
mod signs;
mod slots;
mod steady;
mod target;
mod wishes;

pub use crate::metrics::describe_metrics;
pub use among::Peers;
pub use certificates::Tls;
pub use health::goes_on;
pub use options::{Limits, Options, Render, Token};
pub use outbox::{Outbox, OutboxLetter, OutboxReplay, OutboxStatus, OutboxStuck};
pub use readings::{Reading, Readings, serve_readings};
pub use server::{Error, Sidecar};
