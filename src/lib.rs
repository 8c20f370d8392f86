//! Which keys are mine? Consistent-hash sharding for fleets of background workers.
//!
//! The workers of a group register in a discovery backend, see each other, place the keys on a ring, and work on their own share. When a
//! worker joins, leaves or dies, the shares move automatically, and as little as possible moves.
//!
//! ```no_run
//! # async fn demo(tenants: Vec<String>) -> shardwise::Result<()> {
//! use shardwise::ShardingFactory;
//!
//! let factory = ShardingFactory::load()?; // settings.toml
//! let sharding = factory.create("my_custom_workers")?;
//! sharding.register_self().await?;
//! for tenant in sharding.filter_owned_items(&tenants) {
//!     println!("{tenant} is mine");
//! }
//! sharding.deregister_self().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Eventual and exclusive
//!
//! By default ownership is *eventual*: two workers may own one key while their views of the group differ, normally for milliseconds,
//! never longer than two TTLs; and a worker cut off from the backend owns nothing.
//!
//! With `ownership = "exclusive"` a slot is owned only while its claim is held in the backend, by one worker at most, and moves only once
//! no work is in flight in it ([`ShardingService::enter`], [`ShardingService::slots`]). Each claim has an epoch
//! ([`ShardingService::fence`]) by which your database can reject a worker that was paused and does not know that its lease has expired.
//! [Guarantees](https://github.com/shardwise/shardwise/blob/main/docs/reference/guarantees.md) lists what each one depends on.
//!
//! # Features
//!
//! None is on by default; then the only backend is `memory`, for workers of one process.
//!
//! - `local`: workers of one machine meet in a SQLite file.
//! - `consul`: workers on several machines meet in Consul, each at the agent of its machine.
//! - `etcd`: workers on several machines meet in etcd. Needs `protoc` to compile: `apt install protobuf-compiler libprotobuf-dev`, or
//!   `cargo install protox --features bin` and the variable `PROTOC` set to it.
//! - `nats`: workers on several machines meet in a bucket of NATS `JetStream`.
//! - `postgres`: workers on several machines meet in a PostgreSQL database.
//! - `valkey`: workers on several machines meet in Valkey or Redis, with eventual ownership only.
//! - `parallel`: `par_filter_owned_items`, for key lists long enough to benefit from a second thread.
//! - `requests`: members send each other requests and messages to singletons; depends on hyper.
//! - `tls`: with certificates, if the settings name them.
//! - `testing`: `ShardingService::frozen` and `testing::TestFleet`, for your own tests.
//!
//! # TLS
//!
//! `consul`, `etcd`, `nats`, `postgres` and `valkey` speak TLS through rustls with ring, configured by the backend itself. The default
//! provider of the process (`rustls::crypto::CryptoProvider`) is neither needed nor set: a program may have none, or aws-lc.

// A module imports only from those above it in this list; `tests/workspace/layering.rs` checks that.
//
// - `error`: The one public error.
// - `telemetry`: Metrics and traces, through facades for which the application installs an exporter.
// - `backend`: The table of backends, and those that this process has opened.
// - `settings`: Layered settings, read into validated policies before a backend is contacted.
// - `membership`: One worker's life as a member of one group: its record, lease, view and claims, and the snapshot that readers see.
// - `service`: The handle of one membership: joining and leaving, and the answers to "which keys are mine?".
// - `work`: User code that runs under ownership: guards, tasks for keys and slots, singletons, daemons and timers.
// - `requests`: Requests to members, answered by handlers that the worker registers, and the one channel on which they travel.
// - `messages`: Typed messages to the holder of a name: a singleton, reached from every member.
// - `operate`: Operators' actions on a group from outside (observe, drain, confirm a loss, take an epoch), and requests without joining.
// - `factory`: Creates and shares one service per policy name: backends, services and operators' calls by policy.
// - `testing`: For your own tests: services with a chosen share, and a whole fleet in one process on paused time (feature `testing`).
mod backend;
mod error;
mod factory;
mod membership;
#[cfg(feature = "requests")]
mod messages;
mod operate;
pub mod requests;
mod service;
pub mod settings;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod work;

pub use backend::add_backend;
pub use error::{Error, ErrorKind, Result};
pub use factory::{ShardingFactory, ShardingFactoryBuilder};
pub use membership::{Absence, Departure, Listener, Rebalances, Snapshots, Update, WorkerReport};
#[cfg(feature = "requests")]
pub use messages::{Inbox, MESSAGE_WAIT, Message, MessageError, Reply, SingletonHandle};
pub use operate::Observer;
#[cfg(feature = "requests")]
pub use operate::Router;
pub use service::{Sharding, ShardingService};
pub use settings::Settings;
pub use shardwise_core as core;
pub use shardwise_core::{
    Address, BackendLoss, Cause, Claim, ClaimName, Epoch, Fence, Fingerprint, GroupName, HeldClaim, Holder, Holding, Incarnation,
    InstanceId, KeyOwners, KeyPlacement, KeyShare, LoadMargin, MaxLoss, Member, MemberState, Mismatch, Moment, NotHeld, NotOwning,
    Ownership, OwnershipMode, PlacementKind, PlacementParams, Policy, PolicyName, Rebalance, Serves, ServiceState, ShardKey, SlotOwners,
    SlotSet, Timing, VersionRule, View, Weight, slot_of,
};
pub use shardwise_discovery as discovery;
pub use telemetry::{metrics, trace};
pub use work::{DAEMONS_MAX, DaemonCount, Daemons, Guard, OwnedRun, PERIOD_MAX, PERIOD_MIN, Period, Run, Singleton, Tenure, Timer};

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
