//! The library over real Consul and etcd servers: many members in one process, a watch that falls silent, and bad days.
//!
//! `cargo xtask soak members` runs the first for longer and with more.

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

mod bad_days;
mod exclusive;
mod faults;
mod figures;
mod meeting;
mod members;
mod other_fleet;
mod restarts;
mod rights;
mod silence;
mod still;
