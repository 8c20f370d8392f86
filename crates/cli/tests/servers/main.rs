//! Real workers on real servers: ownership when workers are killed, paused, join and leave, when the connection to the server is cut, and
//! when the settings are wrong. Consul and etcd have every scene in a test run, the others takeover, handover and wrong settings, and the
//! rest in `cargo xtask soak scenes`; other soaks repeat these many times. A group also moves between backends.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests report by panicking, and print what they measured")]

#[path = "../common/mod.rs"]
mod common;

/// Runs a scene on these servers, one after the other, because the scenes have limits on real time.
macro_rules! on_servers {
    ($scene:ident: $($name:ident $kind:ident),+ $(; soak: $($more:ident $of:ident),+)?) => {
        mod $scene {
            use crate::meeting::{Kind, alone};

            $(#[test]
            fn $name() {
                let _alone = alone();
                super::$scene(Kind::$kind);
            })+

            $($(#[test]
            #[ignore = "cargo xtask soak scenes runs it"]
            fn $more() {
                let _alone = alone();
                super::$scene(Kind::$of);
            })+)?
        }
    };
}

/// Runs a scene on Consul and etcd, and in the soak on every server.
macro_rules! on_both {
    ($scene:ident) => {
        on_servers!($scene: consul Consul, etcd Etcd; soak: nats Nats, postgres Postgres, valkey Valkey);
    };
}

/// Runs a scene on every server.
macro_rules! on_all {
    ($scene:ident) => {
        on_servers!($scene: consul Consul, etcd Etcd, nats Nats, postgres Postgres, valkey Valkey);
    };
}

mod agent;
mod drained;
mod handover;
#[allow(dead_code, reason = "probes need only a part of it")]
#[path = "../serve/http.rs"]
mod http;
mod meeting;
mod mistakes;
mod moved;
mod outage;
mod paused;
mod ready;
mod soak;
mod takeover;
mod vanishing;
