//! The library over real Consul and etcd servers: many members in one process, a watch that falls silent, bad days, and requests between
//! processes.
//!
//! `cargo xtask soak members` runs the first for longer and with more, `soak requests` the last.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests report by panicking, and print what they measured")]

/// Runs a scene on both backends, one after the other: the scenes measure.
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

/// Runs a scene on all backends at once: such scenes wait, and measure nothing.
macro_rules! on_all_at_once {
    ($scene:ident) => {
        mod $scene {
            use crate::meeting::{Kind, beside};

            #[test]
            fn local_consul_and_etcd() {
                let _beside = beside();
                std::thread::scope(|scope| {
                    for (name, kind) in [("local", None), ("consul", Some(Kind::Consul)), ("etcd", Some(Kind::Etcd))] {
                        // A panic in one of them names it, and fails the test once all have ended.
                        std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, move || super::$scene(kind)).unwrap();
                    }
                });
            }
        }
    };
}

mod bad_days;
mod departures;
mod edited;
mod exclusive;
mod faults;
mod figures;
mod meeting;
mod members;
mod messages;
mod named;
mod other_fleet;
mod requests;
mod restarts;
mod rights;
mod rolling;
mod silence;
mod still;
mod wiped;
