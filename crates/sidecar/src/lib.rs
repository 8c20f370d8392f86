//! HTTP for a worker in any language: which keys this worker owns, the owner of each key and why, and what moves.
//!
//! A [`Sidecar`] joins groups on behalf of a worker and answers for it. Renewals run on a separate thread, so that clients cannot delay
//! them. Every input of a client is bounded in size, number and time.
//!
//! This crate has the routes, limits and admission; the answers come from the library.

mod actions;
mod answers;
mod app;
mod ask;
mod bodies;
mod body;
mod cancel_table;
mod cancels;
mod certificates;
mod connection_table;
mod connections;
mod daemons;
mod drain;
mod error;
mod explain;
mod forward;
mod gate;
mod health;
mod history;
mod holders;
mod incoming_body;
mod instance_parameter;
mod key_list;
mod key_routes;
mod lease_routes;
mod leases;
mod limits;
mod member_request;
mod metrics;
mod millis;
mod openapi;
mod options;
mod outbox;
mod outbox_routes;
mod owned;
mod page;
mod path_parameters;
mod peer_config;
mod plan;
mod problem;
mod rate;
mod readings;
mod rebalances;
mod request_terms;
mod server;
mod slots;
mod target;
mod token;
mod unanswered;
mod view_since;
mod worker_check;
mod worker_client;
mod worker_head;
mod worker_requests;
mod write_timeout;

pub use crate::metrics::describe_metrics;
pub use certificates::Tls;
pub use error::Error;
pub use health::goes_on;
pub use limits::Limits;
pub use options::{Options, Render};
pub use outbox::{Outbox, OutboxLetter, OutboxReplay, OutboxStatus, OutboxStuck};
pub use peer_config::Peers;
pub use readings::{Reading, Readings, serve_readings};
pub use server::Sidecar;
pub use token::Token;
pub use worker_check::WorkerCheck;
