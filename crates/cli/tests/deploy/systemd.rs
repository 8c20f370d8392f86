//! `deploy/systemd`.

use std::net::SocketAddr;
use std::process::Command;

use crate::common::{Place, Ran, run};
use crate::{seconds, settings, takes, text};

const UNITS: [&str; 3] = ["shardwise-outbox@.service", "shardwise-serve@.service", "shardwise-observe@.service"];
/// The drop-in for units of that name; see `beyond.rs`.
const DROP_IN: &str = "shardwise-serve@.service.d/beyond-loopback.conf";
const PROGRAM: &str = "/usr/local/bin/shardwise";

/// The value after `name=`.
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
            // Empty, unless its file of variables sets it.
            .filter(|word| *word != "$SHARDWISE_OUTBOX")
            .map(|word| match word {
                "%i" => "orders",
                word if word == listen => default.unwrap(),
                word => word,
            })
            .collect();
        takes(&arguments);
        let at = arguments.iter().position(|argument| *argument == "--listen").unwrap();
        assert!(arguments[at + 1].parse::<SocketAddr>().unwrap().ip().is_loopback(), "{unit} is open to nobody else unless told");
        let name = unit.trim_start_matches("shardwise-").trim_end_matches("@.service");
        assert_eq!(value(unit, "EnvironmentFile"), format!("-/etc/shardwise/{name}-%i.env"), "each can have a port of its own");
        assert_eq!((value(unit, "Type").as_str(), value(unit, "NotifyAccess").as_str()), ("notify", "main"));
        let number = |name| value(unit, name).parse::<u64>().unwrap();
        assert!(number("WatchdogSec") > 2 * ttl, "a pause that only fences is no reason to be restarted");
        assert!(number("TimeoutStopSec") >= drain + ttl + 2 && number("TimeoutStartSec") > ttl + 5);
        assert_ne!(value(unit, "User"), "root");
        assert_eq!([value(unit, "UMask"), value(unit, "StateDirectoryMode")], ["0077", "0700"], "{unit}: its files are nobody else's");
        assert_eq!(value(unit, "Environment"), "SHARDWISE_SETTINGS=/etc/shardwise/settings.toml");
        let codes = if name == "outbox" {
            vec![("2", "wrong arguments or settings"), ("5", "the outbox's database lost commits")]
        } else {
            vec![("2", "wrong arguments or settings")]
        };
        let prevent = value(unit, "RestartPreventExitStatus");
        assert_eq!(prevent.split(' ').collect::<Vec<_>>(), codes.iter().map(|(code, _)| *code).collect::<Vec<_>>(), "{unit}");
        let help = Place::empty().run(&["--help"]).well();
        for (code, meaning) in codes {
            let says = |line: &str| line.trim().strip_prefix(code).is_some_and(|rest| rest.trim_start().starts_with(meaning));
            assert!(help.lines().any(says), "{code} is {meaning}:\n{help}");
        }
    }
}

/// Verifies a unit with systemd, with our program instead of the installed one.
fn verified(unit: &str, content: &str, drop_in: Option<&str>) -> Ran {
    let (place, name) = (Place::empty(), unit.replace('@', "@orders"));
    let ours = |content: &str| content.replace(PROGRAM, env!("CARGO_BIN_EXE_shardwise"));
    place.write(&name, ours(content));
    if let Some(drop_in) = drop_in {
        std::fs::create_dir(place.path(format!("{name}.d"))).unwrap();
        place.write(&format!("{name}.d/beyond-loopback.conf"), ours(drop_in));
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(place.path(&name));
    run(verify, b"")
}

#[test]
fn systemd_takes_the_units() {
    for unit in UNITS {
        let content = text(&format!("systemd/{unit}"));
        let ran = verified(unit, &content, None);
        assert!(ran.code == Some(0) && ran.err.is_empty(), "{unit}: {ran:?}; systemd-analyze is in the package systemd");
        let misspelt = verified(unit, &content.replace("WatchdogSec", "WatchdogSecs"), None);
        assert!(misspelt.err.contains("WatchdogSecs"), "a mistake is seen: {misspelt:?}");
    }
    let (unit, drop_in) = (text(&format!("systemd/{}", UNITS[1])), text(&format!("systemd/{DROP_IN}")));
    let ran = verified(UNITS[1], &unit, Some(&drop_in));
    assert!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    let misspelt = verified(UNITS[1], &unit, Some(&drop_in.replace("LoadCredential", "LoadCredentials")));
    assert!(misspelt.err.contains("LoadCredentials"), "a mistake is seen: {misspelt:?}");
}

/// The arguments of the sidecar for other machines, as the drop-in starts it, but with these files and this address.
pub(crate) fn beyond_loopback(listen: &str, credential: impl Fn(&str) -> String) -> Vec<String> {
    let content = text(&format!("systemd/{DROP_IN}"));
    let mut starts = content.lines().filter_map(|line| line.strip_prefix("ExecStart="));
    assert_eq!(starts.next(), Some(""), "the unit's own command is taken back");
    let mut words = starts.next().unwrap().split(' ');
    assert_eq!((words.next(), starts.next()), (Some(PROGRAM), None));
    let loaded: Vec<_> = content.lines().filter_map(|line| line.strip_prefix("LoadCredential=")?.split_once(':')).collect();
    let arguments = words.map(|word| match (word, word.strip_prefix("${CREDENTIALS_DIRECTORY}/")) {
        ("%i", _) => "workers".into(),
        ("%H", _) => "localhost".into(),
        ("${SHARDWISE_LISTEN}", _) => listen.into(),
        (_, Some(name)) => {
            assert!(loaded.iter().any(|(known, path)| *known == name && path.starts_with("/etc/shardwise/")), "nobody loads {name}");
            credential(name)
        }
        (word, None) => word.into(),
    });
    let arguments: Vec<_> = arguments.collect();
    let default = content.lines().find_map(|line| line.strip_prefix("Environment=SHARDWISE_LISTEN=")).unwrap();
    assert!(!default.parse::<SocketAddr>().unwrap().ip().is_loopback(), "{default}");
    arguments
}
