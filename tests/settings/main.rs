//! What a user sees of settings: what is in force, and what each mistake is answered with.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says by failing what is wrong")]

#[cfg(feature = "local")]
mod local;
mod misspelled;
mod mistakes;
mod random;

use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwise::settings::{DiscoverySettings, InstanceSettings, LoadOptions, Origin, PolicySettings, Setting, Settings};
use shardwise::{BackendLoss, ErrorKind, GroupName, LoadMargin, MaxLoss, PlacementParams, Policy, PolicyName};

const WORKERS: &str = "[default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\n";

/// The settings with a variable each of the form `NAME=value`; `~` stands for the long common part of a name.
fn with(text: &str, variables: &[&str]) -> shardwise::Result<Settings> {
    let pairs = variables.iter().map(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.replace('~', "SHARDWISE__RESILIENCE__SHARDING__"), value)
    });
    Settings::load(&LoadOptions::default().with_variables(pairs).with_text(text))
}

fn read(text: &str) -> Settings {
    Settings::from_toml_str(text).unwrap()
}

/// The message, which must be one line and of the kind that says nothing was contacted.
fn message(result: shardwise::Result<Settings>) -> String {
    let error = result.expect_err("these settings must be refused");
    assert_eq!(error.kind(), ErrorKind::Settings);
    assert!(!error.is_retryable());
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn refused(text: &str) -> String {
    message(Settings::from_toml_str(text))
}

/// What the user sees of one line added to a good policy's table, which makes it line 3.
fn refused_policy_line(line: &str) -> String {
    refused(&format!("{WORKERS}{line}")).replace("settings line 3: resilience.sharding.policies.workers.", "")
}

fn origin(settings: &Settings, key: &str) -> (String, String) {
    let setting = settings.in_force().iter().find(|setting| setting.key == key).unwrap_or_else(|| panic!("{key} is not in force"));
    (setting.value.clone(), setting.origin.to_string())
}

#[test]
fn a_group_is_enough() {
    let settings = read(WORKERS);
    let workers = settings.policy("workers").unwrap();
    assert!(settings.enabled);
    assert_eq!(workers.policy.group.as_str(), "g");
    assert_eq!((workers.policy.placement.slots, workers.policy.min_members), (16_384, 1));
    assert_eq!((workers.timing.ttl, workers.timing.renew_every), (Duration::from_secs(10), Duration::from_secs(10) / 3));
    assert_eq!(workers.discovery, DiscoverySettings::new("local"));
    assert_eq!((settings.instance.id, settings.instance.address), (None, None));
}

#[test]
fn policies_made_in_code_and_the_table_of_keys_have_the_same_defaults() {
    let settings = read(WORKERS);
    let (name, group) = (PolicyName::new("workers").unwrap(), GroupName::new("g").unwrap());
    assert_eq!(settings.policy("workers").unwrap(), &PolicySettings::new(Policy::new(name, group)));
    assert_eq!(settings.instance, InstanceSettings::default());
}

#[test]
fn an_empty_file_has_no_policies_and_foreign_tables_are_left_alone() {
    assert!(read("").policies.is_empty());
    let foreign = "title = \"x\"\ndebug = true\n[default]\nname = 1\nresilience.retry.attempts = 3\n[default.database]\nurl = \"u\"\n\
                   [logging]\noutbox = \"of mails\"\nresilience = 7\n[[servers]]\nip = \"1\"\n[other]\noutbox.mail.slots = 1";
    assert!(read(foreign).policies.is_empty());
}

#[test]
fn everything_that_can_be_written_arrives() {
    let settings = read(
        r#"
        [default.resilience.sharding]
        enabled = false
        instance = { id = "a b/🦀", address = "fd00::7", port = 8080, zone = "z", weight = 3, version = "1.2", metadata = { "Team 1" = "x" } }
        [default.resilience.sharding.policies.workers]
        group_name = "group 1"
        slots = 0x40
        virtual_nodes = 1_000
        load_margin = 0.125
        min_members = 2
        drain_timeout = "2m"
        on_backend_loss = "keep"
        keep_for = "90s"
        max_loss = "50%"
        discovery = { backend = "my own", ttl = "3s", renew_every = "1s", stop_margin = "0", local.path = "/x/y.db" }
        "#,
    );
    assert!(!settings.enabled);
    let instance = &settings.instance;
    assert_eq!(instance.id.as_ref().unwrap().as_str(), "a b/🦀");
    assert_eq!(instance.address.as_ref().unwrap().to_string(), "[fd00::7]:8080");
    assert_eq!((instance.zone.as_deref(), instance.weight.get(), instance.version.as_deref()), (Some("z"), 3, Some("1.2")));
    assert_eq!(instance.metadata["Team 1"], "x");
    let workers = settings.policy("workers").unwrap();
    assert_eq!((workers.policy.placement.slots, workers.policy.placement.virtual_nodes), (64, 1_000));
    assert_eq!((workers.policy.placement.load_margin, workers.policy.min_members), (LoadMargin::Thousandths(125), 2));
    assert_eq!(workers.policy.on_backend_loss, BackendLoss::Keep { keep_for: Duration::from_secs(90) });
    assert_eq!(workers.policy.max_loss, MaxLoss::percent(50));
    assert_eq!((workers.policy.drain_timeout, workers.timing.renew_every), (Duration::from_mins(2), Duration::from_secs(1)));
    assert_eq!(workers.discovery, DiscoverySettings::new("my own"));
}

/// A secret, an id or a version is never taken for a number.
#[test]
fn what_looks_like_a_number_stays_text() {
    let settings = with("", &["~INSTANCE__ID=007", "~INSTANCE__VERSION=1.0", "~INSTANCE__ZONE=true"]).unwrap();
    let instance = settings.instance;
    let id = instance.id.as_ref().unwrap().as_str();
    assert_eq!((id, instance.version.as_deref(), instance.zone.as_deref()), ("007", Some("1.0"), Some("true")));
}

#[test]
fn what_next_does_not_name_stays_as_it_is_and_layers_lie_over_each_other() {
    let text = format!(
        "{WORKERS}virtual_nodes = 256\nnext.slots = 32768\n[production.resilience.sharding.policies.workers.next]\nload_margin = \"none\""
    );
    let next =
        |options: &LoadOptions| Settings::load(&options.clone().with_text(&text)).unwrap().policy("workers").unwrap().policy.next.unwrap();
    let seen = next(&LoadOptions::default());
    assert_eq!((seen.slots, seen.virtual_nodes, seen.load_margin), (32_768, 256, LoadMargin::DEFAULT));
    let variable = ("SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__NEXT__SLOTS", "4096");
    let seen = next(&LoadOptions::default().with_variables([("SHARDWISE_ENV", "production"), variable]));
    assert_eq!((seen.slots, seen.virtual_nodes, seen.load_margin), (4_096, 256, LoadMargin::None));
    assert!(read(WORKERS).policy("workers").unwrap().policy.next.is_none());
    assert_eq!(
        next_in_force(&read(&text)),
        [
            "load_margin 0.05 the policy",
            "placement ring the policy",
            "slots 32768 settings line 4, [default]",
            "virtual_nodes 256 the policy"
        ]
    );
}

/// The last part of each key of `next`, its value and where it came from.
fn next_in_force(settings: &Settings) -> Vec<String> {
    let reported = |setting: &Setting| {
        let key = setting.key.strip_prefix("resilience.sharding.policies.workers.next.")?;
        Some(format!("{key} {} {}", setting.value, setting.origin))
    };
    let mut reported: Vec<_> = settings.in_force().iter().filter_map(reported).collect();
    reported.sort();
    reported
}

/// It made a ring of three points: the number had been chosen for another rule.
#[test]
fn with_another_placement_what_next_does_not_name_is_that_ones_default() {
    let text = format!("{WORKERS}placement = \"hashring\"\nvirtual_nodes = 3\nnext.placement = \"ring\"");
    let settings = read(&text);
    assert_eq!(settings.policy("workers").unwrap().policy.next, Some(PlacementParams::default()));
    let written = "placement ring settings line 5, [default]";
    assert_eq!(next_in_force(&settings), ["load_margin 0.05 default", written, "slots 16384 default", "virtual_nodes 1024 default"]);

    let settings = read(&format!("{text}\nnext.virtual_nodes = 64"));
    assert_eq!(settings.policy("workers").unwrap().policy.next.unwrap().virtual_nodes, 64);
    let settings = read(&format!("{WORKERS}virtual_nodes = 3\nslots = 64\nnext.placement = \"uhashring\""));
    assert_eq!(next_in_force(&settings), ["placement uhashring settings line 5, [default]"], "it has no numbers");
    let settings = read(&format!("{WORKERS}virtual_nodes = 3\nnext.placement = \"hashring\""));
    assert_eq!(next_in_force(&settings), ["placement hashring settings line 4, [default]", "virtual_nodes 1024 default"]);
}

#[test]
fn a_policy_overrides_single_discovery_keys_and_inherits_the_others() {
    let settings = read(&format!(
        "[default.resilience.sharding.discovery]\nttl = \"6s\"\nstop_margin = \"50ms\"\n{WORKERS}\
         discovery.ttl = \"3s\"\n[default.resilience.sharding.policies.others]\ngroup_name = \"h\""
    ));
    let timing = |name: &str| settings.policy(name).unwrap().timing;
    assert_eq!((timing("workers").ttl, timing("workers").renew_every), (Duration::from_secs(3), Duration::from_secs(1)));
    assert_eq!((timing("workers").stop_margin, timing("others").ttl), (Duration::from_millis(50), Duration::from_secs(6)));
    let inherited = origin(&settings, "resilience.sharding.policies.workers.discovery.stop_margin");
    assert_eq!(inherited, ("50ms".into(), "settings line 3, [default]".into()));
}

/// Of an outbox the library reads the policy; the rest is for the crate of the outbox.
#[test]
fn other_keys_of_an_outbox_are_left_alone() {
    let outbox = "[default.outbox.orders]\npolicy = \"workers\"\nwhatever = { is = 7 }\n";
    let settings = with(&format!("{WORKERS}{outbox}"), &["SHARDWISE__OUTBOX__ORDERS__BATCH=5"]).unwrap();
    let shown: Vec<_> = settings.in_force().iter().filter(|setting| setting.key.starts_with("outbox")).map(|s| s.key.as_str()).collect();
    assert_eq!(shown, ["outbox.orders.policy"]);
}

/// One line, whatever else the program knows of outboxes.
#[test]
fn publishers_meet_in_the_database_of_their_outbox() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "hush\n").unwrap();
    let store = "store = \"postgres://app@db:5432/app?options[search_path]=mine&sslmode=require\"\nsink = \"stdout\"";
    let outbox = |more: &str| format!("[default.outbox.o]\npolicy = \"workers\"\n{store}\n{more}");
    let meets = |more: &str| {
        let settings = read(&format!("{WORKERS}discovery.backend = \"outbox\"\n{}", outbox(more)));
        assert_eq!(origin(&settings, "resilience.sharding.policies.workers.discovery.backend").0, "outbox");
        settings.policy("workers").unwrap().discovery.clone()
    };
    let discovery = meets("");
    assert!(discovery.is_in_outbox() && discovery.options.secret("password").is_none());
    assert_eq!((&*discovery.backend, discovery.options.text("url")), ("postgres", Some("postgres://app@db:5432/app?sslmode=require")));
    let discovery = meets(&format!("store_password_file = {:?}", file.display().to_string()));
    assert!(discovery.options.secret("password").is_some() && !format!("{discovery:?}").contains("hush"), "{discovery:?}");
    assert!(!read(WORKERS).policy("workers").unwrap().discovery.is_in_outbox());
}

#[test]
fn a_policy_that_drives_an_outbox_has_fewer_slots_unless_it_says() {
    let outbox = "[default.outbox.o]\npolicy = \"workers\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\"\n";
    let slots = |settings: &Settings| settings.policy("workers").unwrap().policy.placement.slots;
    let settings = read(&format!("{WORKERS}{outbox}"));
    assert_eq!(slots(&settings), 1_024);
    assert_eq!(origin(&settings, "resilience.sharding.policies.workers.slots"), ("1024".into(), "default".into()));
    assert_eq!(slots(&read(&format!("{WORKERS}slots = 16384\n{outbox}"))), 16_384);
}

const LAYERED: &str = "[default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\nslots = 10\nmin_members = 2\n\
                       [production.resilience.sharding.policies.workers]\nslots = 20\n[staging]\nname = \"s\"\n";

#[test]
fn layers_lie_over_each_other_key_by_key_and_each_value_knows_its_own() {
    let key = |name: &str| format!("resilience.sharding.policies.workers.{name}");
    let default = with(LAYERED, &[]).unwrap();
    assert_eq!(origin(&default, &key("slots")), ("10".into(), "settings line 3, [default]".into()));
    let production = with(LAYERED, &["SHARDWISE_ENV=production"]).unwrap();
    assert_eq!(origin(&production, &key("slots")), ("20".into(), "settings line 6, [production]".into()));
    assert_eq!(origin(&production, &key("min_members")), ("2".into(), "settings line 4, [default]".into()));
    assert_eq!(origin(&production, &key("load_margin")), ("0.05".into(), "default".into()));
    let variable = with(LAYERED, &["SHARDWISE_ENV=production", "~POLICIES__WORKERS__SLOTS=30"]).unwrap();
    let from = "environment variable SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__SLOTS";
    assert_eq!(origin(&variable, &key("slots")), ("30".into(), from.into()));
    assert_eq!(variable.policy("workers").unwrap().policy.placement.slots, 30);
    let staging = with(LAYERED, &["SHARDWISE_ENV=staging"]).unwrap();
    assert_eq!(origin(&staging, &key("slots")).0, "10");
    assert_eq!(origin(&with(LAYERED, &["SHARDWISE_ENV="]).unwrap(), &key("slots")).0, "10");
}

#[test]
fn in_force_is_written_as_json_for_machines() {
    let settings = with(LAYERED, &["~ENABLED=false"]).unwrap();
    let json = serde_json::to_value(settings.in_force()).unwrap();
    assert_eq!(json[0]["key"], "resilience.sharding.enabled");
    assert_eq!(json[0]["value"], "false");
    assert_eq!(json[0]["origin"]["variable"], "SHARDWISE__RESILIENCE__SHARDING__ENABLED");
    let slots = settings.in_force().iter().find(|setting| setting.key.ends_with("workers.slots")).unwrap();
    let file = serde_json::json!({"from": "file", "file": "settings", "section": "default", "line": 3});
    assert_eq!(serde_json::to_value(&slots.origin).unwrap(), file);
    assert_eq!(serde_json::to_value(Origin::Default).unwrap(), serde_json::json!({"from": "default"}));
}

#[test]
fn variables_reach_every_kind_of_key() {
    let variables = [
        "~ENABLED=false",
        "~INSTANCE__ID=pod 7",
        "~INSTANCE__METADATA__RACK=r1",
        "~POLICIES__WORKERS__GROUP_NAME=7",
        "~POLICIES__WORKERS__LOAD_MARGIN=none",
        "~POLICIES__WORKERS__DISCOVERY__TTL=3s",
        "SHARDWISE__OUTBOX__ORDERS__POLICY=workers",
        "SHARDWISE__OUTBOX__ORDERS__STORE=sqlite:o.db",
        "SHARDWISE__OUTBOX__ORDERS__SINK=stdout",
        "SHARDWISE__OUTBOX__ORDERS__POISON=park",
        "OTHER=1",
        "SHARDWISE_LOG=debug",
    ];
    let settings = with("", &variables).unwrap();
    assert!(!settings.enabled);
    assert_eq!(settings.instance.id.as_ref().unwrap().as_str(), "pod 7");
    assert_eq!(settings.instance.metadata["rack"], "r1");
    let workers = settings.policy("workers").unwrap();
    assert_eq!((workers.policy.group.as_str(), workers.timing.ttl), ("7", Duration::from_secs(3)));
    assert_eq!(workers.policy.placement.load_margin, LoadMargin::None);
    let outboxes: Vec<_> = settings.outboxes.iter().map(|(name, policy)| (name.as_str(), policy.as_str())).collect();
    assert_eq!(outboxes, [("orders", "workers")]);
}

mod files {
    use super::*;

    fn folder_with(text: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        std::fs::write(&file, text).unwrap();
        (folder, file)
    }

    #[test]
    fn a_named_file_is_read_and_its_paths_begin_at_its_directory() {
        let (_folder, file) = folder_with(WORKERS.as_bytes());
        let settings = Settings::load(&LoadOptions::default().with_file(&file)).unwrap();
        assert_eq!(settings.file.as_deref(), Some(file.as_path()));
        let here = file.parent().unwrap().join("shardwise.db");
        let paths: Vec<_> = settings.policy("workers").unwrap().discovery.options.iter().map(|(_, value)| value.to_string()).collect();
        assert!(paths.iter().all(|path| *path == here.display().to_string()), "{paths:?}");
        let by_variable = LoadOptions::default().with_variables([("SHARDWISE_SETTINGS", file.as_os_str())]);
        assert_eq!(Settings::load(&by_variable).unwrap().policies, settings.policies);
        let key = "resilience.sharding.policies.workers.group_name";
        assert_eq!(origin(&settings, key).1, format!("{} line 2, [default]", file.display()));
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let load = |file: &Path| message(Settings::load(&LoadOptions::default().with_file(file)));
        let (folder, file) = folder_with(b"[default]\nname = \"\xff\"");
        assert_eq!(load(&file), format!("{} line 2: this is not UTF-8 text", file.display()));
        let missing = folder.path().join("no.toml");
        assert_eq!(load(&missing), format!("the settings file {} does not exist: check the path", missing.display()));
        assert_eq!(load(folder.path()), format!("the settings file {} is a directory: name a file in it", folder.path().display()));
        let (_folder, large) = folder_with(&vec![b'\n'; 1024 * 1024 + 1]);
        assert!(load(&large).ends_with("has more than 1048576 bytes: is it the right file?"));
        let by_variable = LoadOptions::default().with_variables([("SHARDWISE_SETTINGS", missing.as_os_str())]);
        assert_eq!(
            message(Settings::load(&by_variable)),
            format!("the settings file {} does not exist: check the path", missing.display())
        );
    }

    #[test]
    fn options_do_not_show_what_is_in_the_environment() {
        let options = LoadOptions::default().with_variables([("SHARDWISE__X", "hunter2")]);
        assert_eq!(format!("{options:?}"), r#"LoadOptions { file: None, variables: ["SHARDWISE__X"], .. }"#);
    }
}

/// Regression: it was ignored, and each machine had all keys.
#[test]
fn the_table_of_a_backend_is_refused_if_no_backend_is_named() {
    let beside = "is set, but discovery.backend is not, and without it workers meet in \"local\", each machine by itself: write backend = \
                  \"consul\" beside it, or \"local\" if you mean that";
    let common = "[default.resilience.sharding.discovery.consul]\naddress = \"http://10.0.0.7:8500\"\n";
    assert_eq!(refused(&format!("{common}{WORKERS}")), format!("settings line 1: resilience.sharding.discovery.consul {beside}"));
    let own = refused_policy_line("discovery.consul.address = \"http://10.0.0.7:8500\"");
    assert_eq!(own, format!("discovery.consul {beside}"));
    let variable = "~DISCOVERY__CONSUL__ADDRESS=http://10.0.0.7:8500";
    let name = "environment variable SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__CONSUL__ADDRESS";
    assert_eq!(message(with(WORKERS, &[variable])), format!("{name}: resilience.sharding.discovery.consul {beside}"));
    // A section that names the backend counts only where it is in force; elsewhere one says what is meant.
    let production = format!("{common}{WORKERS}[production.resilience.sharding.discovery]\nbackend = \"consul\"\n");
    assert!(message(with(&production, &[])).ends_with(beside) && with(&production, &["SHARDWISE_ENV=production"]).is_ok());
    // What other tools use says nothing of shardwise, and who has written a backend has decided.
    assert!(with(WORKERS, &["CONSUL_HTTP_ADDR=http://10.0.0.7:8500"]).is_ok());
    for backend in ["local", "etcd", "consul"] {
        assert!(with(&format!("{common}{WORKERS}discovery.backend = {backend:?}"), &[]).is_ok(), "{backend}");
    }
}

/// Programs with different features share a settings file: what is for a backend that this one lacks is left alone.
#[cfg(not(feature = "local"))]
#[test]
fn the_table_of_a_backend_that_this_program_lacks_is_left_alone_until_it_is_chosen() {
    let settings = read(&format!("{WORKERS}discovery.local.whatever = 7"));
    let refused = message(shardwise::ShardingFactory::from_settings(settings.clone()).map(|_| settings));
    assert_eq!(
        refused,
        "resilience.sharding.policies.workers.discovery.backend is \"local\": this program has memory; build it with the feature \"local\": \
         cargo add shardwise --features local, or for the command, in a checkout, cargo install --locked --path crates/cli --no-default-features --features local"
    );
}
