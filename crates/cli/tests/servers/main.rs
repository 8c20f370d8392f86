//! Real workers on real Consul and etcd servers: ownership when workers are killed, paused, join and leave, when the connection to the
//! server is cut, and when the settings are wrong. The same scenes for both backends, repeated many times under `cargo xtask soak`. And a
//! group that moves between backends.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests report by panicking, and print what they measured")]

#[path = "../common/mod.rs"]
mod common;

/// Runs a scene on both backends, one after the other, because the scenes have limits on real time.
macro_rules! on_both {
    ($scene:ident) => {
        mod $scene {
            use crate::meeting::{Kind, alone};

            #[test]
            fn consul() {
                let _alone = alone();
                super::$scene(Kind::Consul);
            }

            #[test]
            fn etcd() {
                let _alone = alone();
                super::$scene(Kind::Etcd);
            }
        }
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
