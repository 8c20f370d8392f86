//! What must hold for any input, however broken: each target takes bytes and panics where it does not hold.
//!
//! `cargo test -p shardwise-fuzz` feeds them mutated samples; `cargo xtask fuzz` builds them with libFuzzer, which looks at what the input
//! reaches and goes on from there. What one of them finds belongs into `samples` of its target, so that the tests try it for ever.

mod arguments;
mod bytes;
mod events;
mod fleet;
mod key_placements;
mod placement;
mod records;
mod settings;
mod text;

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
    Target { name: "durations", run: text::durations, samples: text::DURATIONS },
    Target { name: "events", run: events::events, samples: events::EVENTS },
    Target { name: "fingerprints", run: text::fingerprints, samples: text::FINGERPRINTS },
    Target { name: "key_placements", run: key_placements::key_placements, samples: key_placements::KEY_FLEETS },
    Target { name: "keys", run: text::keys, samples: text::KEYS },
    Target { name: "load_margins", run: text::load_margins, samples: text::LOAD_MARGINS },
    Target { name: "members", run: arguments::members, samples: arguments::MEMBERS },
    Target { name: "names", run: text::names, samples: text::NAMES },
    Target { name: "parameters", run: placement::parameters, samples: placement::PARAMETERS },
    Target { name: "placement", run: placement::placement, samples: placement::FLEETS },
    Target { name: "records", run: records::records, samples: records::RECORDS },
    Target { name: "settings", run: settings::settings, samples: settings::SETTINGS },
    Target { name: "variables", run: settings::variables, samples: settings::VARIABLES },
];
