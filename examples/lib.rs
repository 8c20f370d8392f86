//! The examples of shardwise, in the order of use: `first_key`, `tenants`, `alert_monitor`, `counter`, `import_rows`, `ticket_desk`,
//! `chat_rooms`, `commands`, `pool_sessions`, `outbox_embedded`, `orders_postgres`, `workers`, `paused_sqlite`, `paused_postgres`,
//! `claimed_postgres`, `paused_etcd`, `in_tests`.
//!
//! Run one with `cargo run -p shardwise-examples --example first_key`. The head of each has its arguments, if it takes any.

/// The programs on pages of the book, compiled.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../docs/start/one-machine.md")]
    struct OneMachine;

    #[doc = include_str!("../docs/howto/cron.md")]
    struct CronJob;

    #[doc = include_str!("../docs/howto/fenced-writes.md")]
    struct FencedWrites;

    #[doc = include_str!("../docs/howto/requests.md")]
    struct OwnersOfKeys;
    #[doc = include_str!("../docs/howto/resume-work.md")]
    struct ResumedWork;

    #[doc = include_str!("../docs/howto/tenants.md")]
    struct Tenants;

    #[doc = include_str!("../docs/howto/tests.md")]
    struct OwnTests;
}
