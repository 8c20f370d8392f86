//! `deploy/systemd`.

use std::process::Command;

use crate::common::{Place, Ran, run};
use crate::{seconds, settings, takes, text};

const UNITS: [&str; 2] = ["shardwise-outbox@.service", "shardwise-serve@.service"];
const PROGRAM: &str = "/usr/local/bin/shardwise";

/// The value behind `name=`.
fn value(unit: &str, name: &str) -> String {
    let content = text(&format!("systemd/{unit}"));
    let line = content.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("{unit} has no {name}")).to_owned()
}

#[test]
fn units_fit_the_program() {
    let get = settings("[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\n", &[]);
    let drain = seconds(&get("resilience.sharding.policies.p.drain_timeout"));
    let ttl = seconds(&get("resilience.sharding.discovery.ttl"));
    for unit in UNITS {
        let start = value(unit, "ExecStart");
        let mut words = start.split(' ');
        assert_eq!(words.next(), Some(PROGRAM));
        let listen = "${SHARDWISE_LISTEN}";
        let content = text(&format!("systemd/{unit}"));
        let default = content.lines().find_map(|line| line.strip_prefix("Environment=SHARDWISE_LISTEN="));
        let arguments: Vec<_> = words
            .map(|word| match word {
                "%i" => "orders",
                word if word == listen => default.unwrap(),
                word => word,
            })
            .collect();
        takes(&arguments);
        if unit.starts_with("shardwise-serve") {
            assert!(arguments.contains(&"--listen"), "each policy can have a port of its own");
            assert_eq!(value(unit, "EnvironmentFile"), "-/etc/shardwise/serve-%i.env");
        }
        assert_eq!((value(unit, "Type").as_str(), value(unit, "NotifyAccess").as_str()), ("notify", "main"));
        let number = |name| value(unit, name).parse::<u64>().unwrap();
        assert!(number("WatchdogSec") > 2 * ttl, "a pause that only fences is no reason to be restarted");
        assert!(number("TimeoutStopSec") >= drain + 2 && number("TimeoutStartSec") > ttl + 5);
        assert_ne!(value(unit, "User"), "root");
        assert_eq!(value(unit, "Environment"), "SHARDWISE_SETTINGS=/etc/shardwise/settings.toml");
        let restarts_not = value(unit, "RestartPreventExitStatus");
        assert!(
            Place::empty().run(&["--help"]).well().lines().any(|line| line.trim().starts_with(&format!("{restarts_not}  the arguments")))
        );
    }
}

/// What systemd says of a unit, with our program in the place of the installed one.
fn verified(unit: &str, content: &str) -> Ran {
    let (place, name) = (Place::empty(), unit.replace('@', "@orders"));
    place.write(&name, content.replace(PROGRAM, env!("CARGO_BIN_EXE_shardwise")));
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(place.path(&name));
    run(verify, b"")
}

#[test]
fn systemd_takes_the_units() {
    for unit in UNITS {
        let content = text(&format!("systemd/{unit}"));
        let ran = verified(unit, &content);
        assert!(ran.code == Some(0) && ran.err.is_empty(), "{unit}: {ran:?}; systemd-analyze is in the package systemd");
        let misspelt = verified(unit, &content.replace("WatchdogSec", "WatchdogSecs"));
        assert!(misspelt.err.contains("WatchdogSecs"), "a mistake is seen: {misspelt:?}");
    }
}
