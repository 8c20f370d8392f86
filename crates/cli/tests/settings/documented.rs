//! `settings.toml`, the file that documents every key, compared with the tables of keys of the library, of all backends and of the outbox.

use shardwise::settings::{Fallback, LoadOptions, Settings};
use shardwise::{BackendLoss, OwnershipMode};
use shardwise_outbox::settings::{LoadedSettings, SinkKind, SinkSettings, StoreSettings, known_keys};

const DOCUMENTED: &str = include_str!("../../../../settings.toml");

fn load(text: &str, options: LoadOptions) -> LoadedSettings {
    LoadedSettings::load(&options.with_text(text)).unwrap()
}

/// The documented file with every `#key = …` and `#[table]` uncommented; prose has a space after its `#`.
fn uncommented() -> String {
    let real = |line: &'static str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
    DOCUMENTED.lines().map(real).collect::<Vec<_>>().join("\n")
}

/// Every value in a table, as written, under its full key.
fn values_below(table: &toml::Table, above: &str, found: &mut Vec<(String, String)>) {
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => values_below(inner, &format!("{above}{name}."), found),
            toml::Value::String(text) => found.push((format!("{above}{name}"), text.clone())),
            toml::Value::Array(items) => {
                let texts: Vec<&str> = items.iter().map(|item| item.as_str().unwrap()).collect();
                found.push((format!("{above}{name}"), texts.join(",")));
            }
            other => found.push((format!("{above}{name}"), other.to_string())),
        }
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), path.split('.').collect());
    pattern.len() == path.len() && pattern.iter().zip(&path).all(|(known, name)| *known == "*" || known == name)
}

#[test]
fn the_documented_file_loads_as_it_stands_and_with_everything_uncommented() {
    let loaded = load(DOCUMENTED, LoadOptions::default());
    let settings = &loaded.settings;
    let names: Vec<String> = settings.policies.values().map(|known| format!("{} {}", known.policy.name, known.policy.group)).collect();
    assert_eq!(names, ["my_custom_workers custom-worker-service", "outbox_publishers outbox-publisher-service"]);
    assert_eq!(settings.policy("outbox_publishers").unwrap().policy.placement.slots, 1_024);
    assert_eq!(settings.policy("my_custom_workers").unwrap().policy.placement.slots, 16_384);
    assert_eq!(loaded.outbox("orders").unwrap().policy.as_str(), "outbox_publishers");
    let production = LoadOptions::default().with_variables([("SHARDWISE_ENV", "production")]);
    // These files are read when the settings are loaded, and they do not exist here. Without a token a name in all certificates is refused.
    let unwritten =
        ["messages_token_file = \"messages.token\"\n", "peer_token_file = \"peers.token\"\n", "peer_name = \"members.example\"\n"];
    let text = unwritten.iter().fold(uncommented(), |text, line| text.replace(line, ""));
    let mut examples = load(&text, production);
    let policies = |settings: &Settings| settings.policies.values().map(|p| (p.policy.clone(), p.discovery.clone())).collect::<Vec<_>>();
    // A value without a default, or different from it, is an example.
    let exclusive =
        examples.settings.policies.iter().find(|(name, _)| name.as_str() == "exclusive_workers").map(|(name, _)| name.clone()).unwrap();
    let exclusive = examples.settings.policies.remove(&exclusive).unwrap().policy;
    assert_eq!((exclusive.ownership, exclusive.placement.slots, exclusive.epoch_floor), (OwnershipMode::Exclusive, 1_024, 0));
    for policy in examples.settings.policies.values_mut() {
        (policy.policy.on_backend_loss, policy.policy.max_loss, policy.policy.next) = (BackendLoss::Stop, None, None);
    }
    // Each outbox needs a separate policy.
    let publishers: Vec<_> =
        examples.outboxes.iter().filter(|(name, _)| name.as_str() != "orders").map(|(_, o)| o.policy.clone()).collect();
    assert_eq!(publishers.len(), 6, "{publishers:?}");
    examples.settings.policies.retain(|name, _| !publishers.contains(name));
    assert_eq!(policies(&examples.settings), policies(settings));
    let payments = examples.outboxes.iter().find(|(name, _)| name.as_str() == "payments").map(|(name, _)| name.clone()).unwrap();
    let payments = examples.outboxes.remove(&payments).unwrap().store;
    let url = "postgres://app@db.example:5432/app?sslmode=verify-full".to_owned();
    assert_eq!(payments, StoreSettings::Postgres { url, password_file: Some("payments.password".into()) });
    let mut kinds = Vec::new();
    examples.outboxes.retain(|_, outbox| match &outbox.sink {
        SinkSettings::Remote(remote) => {
            kinds.push(remote.kind);
            false
        }
        _ => true,
    });
    let expected = [SinkKind::RabbitMq, SinkKind::Kafka, SinkKind::Http, SinkKind::Nats, SinkKind::Redis];
    assert_eq!(kinds, expected, "invoices, ledgers, notices, shipments, stocks");
    assert_eq!(examples.outboxes, loaded.outboxes);
}

#[test]
fn the_documented_file_has_every_key_with_its_default_and_why() {
    let mut written = Vec::new();
    let sections: toml::Table = uncommented().parse().unwrap();
    values_below(sections["default"].as_table().unwrap(), "", &mut written);
    for (pattern, key) in known_keys() {
        assert!(DOCUMENTED.contains(&format!("\n# {}\n", key.why)), "settings.toml does not say of {pattern}: {}", key.why);
        let values: Vec<&(String, String)> = written.iter().filter(|(path, _)| matches(&pattern, path)).collect();
        // A policy's own discovery has the same keys as the common one and need not repeat them.
        assert!(!values.is_empty() || pattern.contains("policies.*.discovery"), "settings.toml lacks {pattern}");
        for (path, value) in values {
            match key.fallback {
                Fallback::Text(_) if path.ends_with("outbox_publishers.slots") => assert_eq!(value, "1024"),
                Fallback::Text(_) if path.ends_with("my_custom_workers.on_backend_loss") => assert_eq!(value, "keep"),
                Fallback::Text(_) if path.ends_with("exclusive_workers.ownership") => assert_eq!(value, "exclusive"),
                Fallback::Text(default) => assert_eq!(value, default, "{path}"),
                _ => {}
            }
        }
    }
}

#[test]
fn what_the_documented_file_writes_is_what_holds_without_it() {
    let bare = "[default.resilience.sharding.policies]\noutbox_publishers.group_name = \"outbox-publisher-service\"\n\
         my_custom_workers.group_name = \"custom-worker-service\"\n[default.outbox.orders]\n\
         policy = \"outbox_publishers\"\nstore = \"sqlite:outbox.db\"\nsink = \"stdout\"";
    let (bare, documented) = (load(bare, LoadOptions::default()), load(DOCUMENTED, LoadOptions::default()));
    assert_eq!(bare.settings.policies, documented.settings.policies);
    assert_eq!(bare.outboxes, documented.outboxes);
    assert_eq!(bare.settings.instance, documented.settings.instance);
    let values = |loaded: &LoadedSettings| loaded.settings.in_force().iter().map(|s| (s.key.clone(), s.value.clone())).collect::<Vec<_>>();
    assert_eq!(values(&bare), values(&documented));
}

#[test]
fn every_default_fits_its_key() {
    for (pattern, key) in known_keys() {
        if let Fallback::Text(default) = key.fallback {
            assert_eq!(key.shape.check(default).as_deref(), Ok(default), "{pattern}");
        }
        assert!(!key.why.contains('\n') && !key.why.is_empty(), "{pattern}");
    }
}
