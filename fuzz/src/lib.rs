//! What must hold for any input, however broken: each target takes bytes and panics where it does not hold.
//!
//! `cargo test -p shardwise-fuzz` feeds them mutated samples; `cargo xtask fuzz` builds them with libFuzzer, which looks at what the input
//! reaches and goes on from there. What one of them finds belongs into `samples` of its target, so that the tests try it for ever.
#![doc = include_str!("../parsers.md")]

mod arguments;
mod bytes;
mod databases;
mod events;
mod fleet;
mod key_placements;
mod placement;
mod records;
mod settings;
mod text;

use shardwise_backend_consul::fuzzing as consul;
use shardwise_backend_etcd::fuzzing as etcd;
use shardwise_backend_local::fuzzing as local;
use shardwise_backend_nats::fuzzing as nats;
use shardwise_backend_postgres::fuzzing as postgres;
use shardwise_backend_valkey::fuzzing as valkey;

/// Something to be tried with any input.
#[derive(Debug, Clone, Copy)]
pub struct FuzzTarget {
    /// Its name on the command line.
    pub name: &'static str,
    /// Panics if something that must hold does not.
    pub run: fn(&[u8]),
    /// Inputs to begin with: good ones, and those that once went wrong.
    pub samples: &'static [&'static [u8]],
}

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "changes", run: arguments::changes, samples: arguments::CHANGES },
    FuzzTarget { name: "consul_addresses", run: consul::addresses, samples: consul::ADDRESSES },
    FuzzTarget { name: "consul_keys", run: consul::keys, samples: consul::KEYS },
    FuzzTarget { name: "consul_records", run: consul::records, samples: consul::RECORDS },
    FuzzTarget { name: "consul_services", run: consul::services, samples: consul::SERVICES },
    FuzzTarget { name: "databases", run: databases::databases, samples: databases::DATABASES },
    FuzzTarget { name: "durations", run: text::durations, samples: text::DURATIONS },
    FuzzTarget { name: "etcd_addresses", run: etcd::addresses, samples: etcd::ADDRESSES },
    FuzzTarget { name: "etcd_keys", run: etcd::keys, samples: etcd::KEYS },
    FuzzTarget { name: "etcd_records", run: etcd::records, samples: etcd::RECORDS },
    FuzzTarget { name: "events", run: events::events, samples: events::EVENTS },
    FuzzTarget { name: "fingerprints", run: text::fingerprints, samples: text::FINGERPRINTS },
    FuzzTarget { name: "key_placements", run: key_placements::key_placements, samples: key_placements::KEY_FLEETS },
    FuzzTarget { name: "keys", run: text::keys, samples: text::KEYS },
    FuzzTarget { name: "load_margins", run: text::load_margins, samples: text::LOAD_MARGINS },
    FuzzTarget { name: "local_claims", run: local::claims, samples: local::CLAIMS },
    FuzzTarget { name: "local_mounts", run: local::mounts, samples: local::MOUNTS },
    FuzzTarget { name: "local_paths", run: local::paths, samples: local::PATHS },
    FuzzTarget { name: "members", run: arguments::members, samples: arguments::MEMBERS },
    FuzzTarget { name: "names", run: text::names, samples: text::NAMES },
    FuzzTarget { name: "nats_answers", run: nats::answers, samples: nats::ANSWERS },
    FuzzTarget { name: "nats_messages", run: nats::messages, samples: nats::MESSAGES },
    FuzzTarget { name: "nats_subjects", run: nats::subjects, samples: nats::SUBJECTS },
    FuzzTarget { name: "new_events", run: events::new_events, samples: events::NEW_EVENTS },
    FuzzTarget { name: "parameters", run: placement::parameters, samples: placement::PARAMETERS },
    FuzzTarget { name: "placement", run: placement::placement, samples: placement::FLEETS },
    FuzzTarget { name: "postgres_beats", run: postgres::beats, samples: postgres::BEATS },
    FuzzTarget { name: "postgres_literals", run: postgres::literals, samples: postgres::LITERALS },
    FuzzTarget { name: "postgres_names", run: postgres::names, samples: postgres::NAMES },
    FuzzTarget { name: "records", run: records::records, samples: records::RECORDS },
    FuzzTarget { name: "settings", run: settings::settings, samples: settings::SETTINGS },
    FuzzTarget { name: "valkey_addresses", run: valkey::addresses, samples: valkey::ADDRESSES },
    FuzzTarget { name: "valkey_answers", run: valkey::answers, samples: valkey::ANSWERS },
    FuzzTarget { name: "valkey_news", run: valkey::changes, samples: valkey::CHANGES },
    FuzzTarget { name: "valkey_records", run: valkey::records, samples: valkey::RECORDS },
    FuzzTarget { name: "variables", run: settings::variables, samples: settings::VARIABLES },
];
