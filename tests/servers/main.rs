//! The library over real servers: many members in one process, a watch that falls silent, bad days, faults, and requests between
//! processes. Consul and etcd have every scene in every test run. The others have those in which a backend of another kind could differ
//! most: faults, handover, takeover, bad days, a crowd of members, and the loss of everything that is stored.
//! `cargo xtask soak scenes` runs all that they can have; Valkey has those with eventual ownership.
//!
//! `cargo xtask soak members` runs the first for longer and with more, `soak requests` the last.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests report by panicking, and print what they measured")]

/// A test of a scene on one backend, which waits for its turn. One behind `soak` is not in every test run, because all of them together
/// take too long.
macro_rules! case {
    (soak $turn:ident $name:ident $run:expr) => {
        #[test]
        #[ignore = "cargo xtask soak scenes runs it"]
        fn $name() {
            let _turn = crate::meeting::$turn();
            crate::figures::case(module_path!(), stringify!($name), || $run);
        }
    };
    ($turn:ident $name:ident $run:expr) => {
        #[test]
        fn $name() {
            let _turn = crate::meeting::$turn();
            crate::figures::case(module_path!(), stringify!($name), || $run);
        }
    };
}

/// Runs a scene on these servers, one after the other: the scenes measure.
macro_rules! on_servers {
    ($scene:ident: $($name:ident $kind:ident),+ $(; soak: $($more:ident $of:ident),+)?) => {
        mod $scene {
            $(case!(alone $name super::$scene(crate::meeting::Kind::$kind));)+
            $($(case!(soak alone $more super::$scene(crate::meeting::Kind::$of));)+)?
        }
    };
}

/// Runs a scene that measures, or that takes the whole machine, on `local`, Consul and etcd, and on these servers.
macro_rules! on_each_alone {
    ($scene:ident $(; soak: $($more:ident $of:ident),+)?) => {
        mod $scene {
            case!(alone local super::$scene(None));
            case!(alone consul super::$scene(Some(crate::meeting::Kind::Consul)));
            case!(alone etcd super::$scene(Some(crate::meeting::Kind::Etcd)));
            $($(case!(soak alone $more super::$scene(Some(crate::meeting::Kind::$of)));)+)?
        }
    };
}

/// Runs a scene on `local`, Consul and etcd at once, and on these servers beside others: such scenes wait, and measure nothing.
macro_rules! on_all_at_once {
    ($scene:ident $(; also: $($name:ident $kind:ident),+)? $(; soak: $($more:ident $of:ident),+)?) => {
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

            $($(case!(beside $name super::$scene(Some(Kind::$kind)));)+)?
            $($(case!(soak beside $more super::$scene(Some(Kind::$of)));)+)?
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
