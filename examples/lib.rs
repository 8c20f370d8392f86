//! The examples of shardwise, in the order a user meets them: `first_key`, `tenants`, `alert_monitor`, `outbox_embedded`, `orders_postgres`,
//! `consul_workers`, `etcd_workers`, `paused_sqlite`, `paused_postgres`, `paused_etcd`, `counter`, `in_tests`.
//!
//! Run one with `cargo run -p shardwise-examples --example first_key`.
