//! Requests between worker processes, from a caller that is no member, on every backend: to any member, to one, to the owner of a key, to
//! the holder of a name, to a session; spread, taken over after SIGKILL, and cancelled.
//!
//! `restarts`, `sessions` and `trouble` go on for longer in `cargo xtask soak requests`, whose `--runs` are thousands of requests, and
//! report figures there. `SHARDWISE_SEED=N` repeats the order of the faults in `trouble`.

/// Runs a scene on each backend, one after the other: in a soak it measures.
macro_rules! on_each_alone {
    ($scene:ident) => {
        mod $scene {
            use crate::meeting::{Kind, alone};

            #[test]
            fn local() {
                let _alone = alone();
                super::$scene(None);
            }

            #[test]
            fn consul() {
                let _alone = alone();
                super::$scene(Some(Kind::Consul));
            }

            #[test]
            fn etcd() {
                let _alone = alone();
                super::$scene(Some(Kind::Etcd));
            }
        }
    };
}

mod fleet;
mod log;
mod restarts;
mod scenes;
mod sessions;
mod trouble;
mod worker;

use std::time::Duration;

const SLOTS: u32 = 16;
const TTL: Duration = Duration::from_secs(3);
/// After SIGKILL of an owner the first success comes within the TTL and this.
const AFTER_TTL: Duration = Duration::from_millis(500);
