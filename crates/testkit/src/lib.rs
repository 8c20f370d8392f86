//! Real servers, certificates and a bad network for tests.
//!
//! [`Consul`], [`Etcd`], [`Postgres`], [`PgBouncer`], [`Nats`], [`Redis`] (or Valkey), [`Sentinels`] and [`RabbitMq`] start the servers
//! that `cargo xtask servers` fetched: each with its own ports and folder, and gone with the test, however that ends. [`Nisshi`] is
//! compiled when it is first used. [`Browser`] is Chromium from the same place. Nothing here is published, and nothing is a mock.
//! [`overlap_judge`] judges the workers of a test by the lines that they write.

mod account;
mod browser;
mod certs;
mod command;
mod consul;
mod disk;
mod error;
mod etcd;
mod folder;
mod http;
mod kill_with_parent;
mod lag;
mod namespace;
mod nats;
mod nisshi;
pub mod overlap_judge;
mod packages;
mod pgbouncer;
mod pods;
mod ports;
mod postgres;
mod process;
mod proxy;
mod rabbitmq;
mod redis;
mod sentinels;
mod server;
pub mod servers;
mod triggers;
mod usage;

pub use browser::{Browser, PageView, Tab};
pub use certs::{Authority, CertIdentity};
pub use consul::{Consul, ConsulCluster, ConsulOptions, ConsulToken};
pub use disk::SmallDisk;
pub use error::{Error, Result};
pub use etcd::{Etcd, EtcdCluster, EtcdOptions, KeyAccess};
pub use kill_with_parent::{kill_with_parent, start_test};
pub use lag::Lag;
pub use nats::{Nats, NatsCluster, NatsOperator, NatsOptions, NatsUser};
pub use nisshi::{Nisshi, NisshiOptions};
pub use packages::{node_modules, python_with};
pub use pgbouncer::PgBouncer;
pub use pods::{Pod, PodNetwork};
pub use ports::Port;
pub use postgres::{Database, Postgres, PostgresOptions};
pub use process::{Process, pause};
pub use proxy::{Direction, Speech, TcpProxy, TlsProxy};
pub use rabbitmq::{RabbitMq, RabbitMqOptions};
pub use redis::{Redis, RedisOptions};
pub use sentinels::Sentinels;
pub use triggers::trigger_statements;
pub use usage::Usage;
