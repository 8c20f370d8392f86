//! `shardwise settings`: the effective settings and their origins.

#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod documented;

use common::{Place, run, workers};
use serde_json::Value;

const SLOTS: &str = "resilience.sharding.policies.workers.slots";
const SLOTS_VARIABLE: &str = "SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__SLOTS";

fn setting(settings: &Value, key: &str) -> Value {
    settings.as_array().unwrap().iter().find(|setting| setting["key"] == key).cloned().unwrap_or_default()
}

#[test]
fn people_get_a_table_for_each_section_and_programs_get_objects() {
    let place = Place::of_workers("4s", "slots = 64");
    let table = place.run(&["settings"]).well();
    let (section, name) = SLOTS.rsplit_once('.').unwrap();
    let heading = format!("[{section}]");
    assert_eq!(table.lines().filter(|line| *line == heading).count(), 1, "{table}");
    let mut below = table.lines().skip_while(|line| *line != heading).take_while(|line| !line.is_empty());
    let row = below.find(|line| line.split_whitespace().next() == Some(name)).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), [name, "64", "settings.toml", "line", "5,", "[default]"]);
    assert!(table.lines().all(|line| line.trim_end() == line), "no spaces at the ends of lines");
    let why = place.run(&["settings", "--why"]).well();
    assert!(why.lines().any(|line| line.starts_with("      ") && line.contains("the workers that share one workload")), "{why}");
    assert!(table.lines().all(|line| why.lines().any(|other| other == line)), "the reasons are on lines of their own:\n{why}");

    let json = place.run(&["settings", "--json"]);
    assert_eq!(json.out, place.run(&["settings", "--output", "json"]).out);
    let settings = json.json();
    for setting in settings.as_array().unwrap() {
        for field in ["key", "value", "why"] {
            assert!(setting[field].as_str().is_some_and(|text| !text.is_empty()), "no {field}: {setting}");
        }
        assert!(setting["origin"]["from"].is_string(), "no origin: {setting}");
    }
    assert_eq!(setting(&settings, SLOTS)["value"], "64");
    let default = setting(&settings, "resilience.sharding.discovery.stop_margin");
    assert_eq!((&default["value"], &default["origin"]["from"]), (&"100ms".into(), &"default".into()));
    let computed = setting(&settings, "resilience.sharding.discovery.renew_every");
    assert_eq!(computed["value"], "1333ms", "a third of the TTL");
}

#[test]
fn an_override_is_shown_with_its_variable() {
    let place = Place::of_workers("4s", "slots = 64");
    let mut command = place.command(&["settings", "--json"]);
    command.env(SLOTS_VARIABLE, "128");
    let slots = setting(&run(command, b"").json(), SLOTS);
    assert_eq!(slots["value"], "128");
    assert!(slots["origin"].to_string().contains(SLOTS_VARIABLE), "{slots}");
}

#[test]
fn an_environment_lies_over_the_default_and_an_unknown_one_is_refused() {
    let production = "slots = 64\n[production.resilience.sharding.policies.workers]\nslots = 256";
    let place = Place::of_workers("4s", production);
    let within = |environment: &str| {
        let mut command = place.command(&["settings", "--json"]);
        command.env("SHARDWISE_ENV", environment);
        run(command, b"")
    };
    let slots = setting(&within("production").json(), SLOTS);
    assert!(slots["value"] == "256" && slots["origin"].to_string().contains("production"), "{slots}");
    within("staging").fails(2, &["SHARDWISE_ENV", "\"staging\"", "default", "production"]);
}

#[test]
fn what_is_wrong_is_reported_in_one_line_before_anything_happens() {
    let cases = [
        (workers("4s", "slotz = 64"), ["line 5", "slotz", "did you mean slots?"]),
        (workers("4s", "slots = 0"), ["slots", "0", "1 to 65536"]),
        (workers("5 seconds", ""), ["ttl", "5 seconds", "line 2"]),
        ("[default.resilience.sharding.policies.workers]\nslots = 64".into(), ["group_name", "workers", "line 1"]),
        ("[default\n".into(), ["line 1", "not TOML", "settings.toml"]),
    ];
    for (text, parts) in cases {
        Place::with_settings(&text).run(&["settings"]).fails(2, &parts);
    }
}

#[test]
fn a_backend_that_this_program_does_not_have_is_refused() {
    let backend = "[default.resilience.sharding]\ndiscovery.backend = \"redis\"\npolicies.workers.group_name = \"workers\"\n";
    Place::with_settings(backend).run(&["settings"]).fails(2, &["discovery.backend is \"redis\"", "this program has", "consul"]);
    let off = "[default.resilience.sharding]\nenabled = false\n";
    Place::with_settings(off).run(&["settings"]).well();
}

#[test]
fn what_every_worker_would_refuse_at_its_start_is_refused_here_too() {
    let valkey = |more: &str| {
        format!(
            "[default.resilience.sharding]\ndiscovery.backend = \"valkey\"\ndiscovery.valkey.url = \"rediss://127.0.0.1:1\"\n\
             policies.workers.group_name = \"workers\"\n{more}"
        )
    };
    Place::with_settings(&valkey("")).run(&["settings"]).well();
    let exclusive = Place::with_settings(&valkey("policies.workers.ownership = \"exclusive\"\n"));
    exclusive.run(&["settings"]).fails(2, &["policy workers", "ownership = \"exclusive\"", "valkey"]);
    // Files of another machine need not be here, and that is said.
    let elsewhere = Place::with_settings(&valkey("discovery.valkey.ca_file = \"/nowhere/ca.pem\"\n")).run(&["settings"]);
    assert!(elsewhere.code == Some(0) && elsewhere.err.contains("not checked") && elsewhere.err.contains("ca_file"), "{elsewhere:?}");
    // A worker's own name may come from its command line.
    let keeping = Place::with_settings(&workers("4s", "rejoin_grace = \"30s\""));
    keeping.run(&["settings"]).well();
}

#[test]
fn of_a_webhooks_address_only_the_host_is_shown() {
    let outbox = |sink: &str, more: &str| {
        let policy = workers("4s", "ownership = \"exclusive\"\nslots = 64");
        Place::with_settings(&format!(
            "{policy}[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:o.db\"\nsink = \"{sink}\"\n{more}\n"
        ))
    };
    for (sink, shown) in [
        ("https://hooks.example/services/T0/B0/hush", "https://hooks.example/"),
        ("https://hooks.example:8443?token=hush", "https://hooks.example:8443/"),
        ("http://hooks.example/hush/{aggregatetype}", "http://hooks.example/"),
    ] {
        for arguments in [&["settings"][..], &["settings", "--json"]] {
            let ran = outbox(sink, "").run(arguments).well();
            assert!(ran.contains(shown) && !ran.contains("hush"), "{ran}");
        }
    }
    for (sink, more) in [
        ("https://hooks.example/hush", "sink_cert_file = \"c.pem\""),
        ("HTTPS://hooks.example/hush", ""),
        ("https:/hooks.example/hush", ""),
        ("https://me:hush@hooks.example/", ""),
    ] {
        let ran = outbox(sink, more).run(&["settings"]);
        ran.fails(2, &["sink"]);
        assert!(!ran.err.contains("hush"), "{ran:?}");
    }
}

#[test]
fn a_secret_that_goes_over_plain_http_is_warned_of() {
    let warned = |settings: &str, arguments: &[&str]| {
        let place = Place::with_settings(settings);
        place.write("secret", "hush-0123456789abcdef\n");
        let mut command = place.command(arguments);
        command.env("RUST_LOG", "warn");
        let err = run(command, b"").err;
        assert!(!err.contains("hush"), "{err}");
        err.contains("without TLS, so anyone on the network can read it")
    };
    let webhook = |host: &str| {
        let policy = workers("4s", "ownership = \"exclusive\"\nslots = 64");
        let outbox = format!("sink = \"{host}\"\nsink_password_file = \"secret\"\nsink_private = true");
        let settings = format!("{policy}[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:missing/o.db\"\n{outbox}\n");
        warned(&settings, &["outbox", "run"])
    };
    assert!(webhook("http://hooks.invalid/") && webhook("http://192.0.2.1/{id}"));
    assert!(
        !webhook("https://hooks.invalid/")
            && !webhook("http://127.0.0.1:1/")
            && !webhook("http://[::1]:1/")
            && !webhook("http://localhost:1/")
    );
    let members = |discovery: &str| {
        let settings = format!(
            "[default.resilience.sharding]\npolicies.workers.group_name = \"workers\"\n[default.resilience.sharding.discovery]\n{discovery}\n"
        );
        warned(&settings, &["members"])
    };
    let etcd = "backend = \"etcd\"\netcd.username = \"me\"\netcd.password_file = \"secret\"\netcd.endpoints";
    let consul = "backend = \"consul\"\nconsul.token_file = \"secret\"\nconsul.address";
    for (backend, value) in [(etcd, "[\"http://etcd.invalid:1\"]"), (consul, "\"http://consul.invalid:1\"")] {
        assert!(members(&format!("{backend} = {value}")), "{backend} = {value}");
    }
    for (backend, value) in [(etcd, "[\"http://127.0.0.1:1\"]"), (consul, "\"http://127.0.0.1:1\"")] {
        assert!(!members(&format!("{backend} = {value}")), "{backend} = {value}");
    }
}

#[test]
fn a_missing_file_is_reported_with_what_to_write() {
    let place = Place::empty();
    let folder = std::fs::canonicalize(place.path(".")).unwrap();
    let missing = format!("there is no settings.toml in {}: go to its folder", folder.display());
    place.run(&["settings"]).fails(2, &[missing.as_str(), "--settings FILE or SHARDWISE_SETTINGS", "write one with `shardwise init`"]);
    place.run(&["settings", "--settings", "other.toml"]).fails(2, &["other.toml", "does not exist"]);
    place.write("elsewhere.toml", workers("4s", ""));
    let mut command = place.command(&["settings"]);
    command.env("SHARDWISE_SETTINGS", "elsewhere.toml");
    assert!(run(command, b"").well().contains("elsewhere.toml line 2"));
}
