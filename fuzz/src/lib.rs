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
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Panics if something that must hold does not.
    pub run: fn(&[u8]),
    /// Inputs to begin with: good ones, and those that once went wrong.
    pub samples: &'static [&'static [u8]],
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "changes", run: arguments::changes, samples: arguments::CHANGES },
    Target { name: "consul_addresses", run: consul::addresses, samples: consul::ADDRESSES },
    Target { name: "consul_keys", run: consul::keys, samples: consul::KEYS },
    Target { name: "consul_records", run: consul::records, samples: consul::RECORDS },
    Target { name: "consul_services", run: consul::services, samples: consul::SERVICES },
    Target { name: "databases", run: databases::databases, samples: databases::DATABASES },
    Target { name: "durations", run: text::durations, samples: text::DURATIONS },
    Target { name: "etcd_addresses", run: etcd::addresses, samples: etcd::ADDRESSES },
    Target { name: "etcd_keys", run: etcd::keys, samples: etcd::KEYS },
    Target { name: "etcd_records", run: etcd::records, samples: etcd::RECORDS },
    Target { name: "events", run: events::events, samples: events::EVENTS },
    Target { name: "fingerprints", run: text::fingerprints, samples: text::FINGERPRINTS },
    Target { name: "key_placements", run: key_placements::key_placements, samples: key_placements::KEY_FLEETS },
    Target { name: "keys", run: text::keys, samples: text::KEYS },
    Target { name: "load_margins", run: text::load_margins, samples: text::LOAD_MARGINS },
    Target { name: "local_claims", run: local::claims, samples: local::CLAIMS },
    Target { name: "local_mounts", run: local::mounts, samples: local::MOUNTS },
    Target { name: "local_paths", run: local::paths, samples: local::PATHS },
    Target { name: "members", run: arguments::members, samples: arguments::MEMBERS },
    Target { name: "names", run: text::names, samples: text::NAMES },
    Target { name: "nats_answers", run: nats::answers, samples: nats::ANSWERS },
    Target { name: "nats_messages", run: nats::messages, samples: nats::MESSAGES },
    Target { name: "nats_subjects", run: nats::subjects, samples: nats::SUBJECTS },
    Target { name: "new_events", run: events::new_events, samples: events::NEW_EVENTS },
    Target { name: "parameters", run: placement::parameters, samples: placement::PARAMETERS },
    Target { name: "placement", run: placement::placement, samples: placement::FLEETS },
    Target { name: "postgres_beats", run: postgres::beats, samples: postgres::BEATS },
    Target { name: "postgres_literals", run: postgres::literals, samples: postgres::LITERALS },
    Target { name: "postgres_names", run: postgres::names, samples: postgres::NAMES },
    Target { name: "records", run: records::records, samples: records::RECORDS },
    Target { name: "settings", run: settings::settings, samples: settings::SETTINGS },
    Target { name: "valkey_addresses", run: valkey::addresses, samples: valkey::ADDRESSES },
    Target { name: "valkey_answers", run: valkey::answers, samples: valkey::ANSWERS },
    Target { name: "valkey_news", run: valkey::news, samples: valkey::NEWS },
    Target { name: "valkey_records", run: valkey::records, samples: valkey::RECORDS },
    Target { name: "variables", run: settings::variables, samples: settings::VARIABLES },
];
