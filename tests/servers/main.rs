//! The library over real servers: many members in one process, a watch that falls silent, bad days, faults, and requests between
//! processes. Consul and etcd have every scene; the others have those in which a backend of another kind could differ: faults, handover,
//! takeover, bad days, and a crowd of members.
//!
//! `cargo xtask soak members` runs the first for longer and with more, `soak requests` the last.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests report by panicking, and print what they measured")]

/// Runs a scene on these servers, one after the other: the scenes measure.
macro_rules! on_servers {
    ($scene:ident: $($name:ident $kind:ident),+) => {
        mod $scene {
            use crate::meeting::{Kind, alone};

            $(#[test]
            fn $name() {
                let _alone = alone();
                super::$scene(Kind::$kind);
            })+
        }
    };
}

/// Runs a scene on Consul and etcd.
macro_rules! on_both {
    ($scene:ident) => {
        on_servers!($scene: consul Consul, etcd Etcd);
    };
}

/// Runs a scene on `local`, Consul and etcd at once: such scenes wait, and measure nothing.
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
mod cluster;
mod crowd;
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
