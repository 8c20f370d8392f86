//! The settings of outboxes: effective values, and the error for each mistake.

#![expect(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::path::PathBuf;
use std::time::Duration;

use shardwise::ErrorKind;
use shardwise::settings::LoadOptions;
use shardwise_outbox::settings::{LoadedSettings, SinkKind, SinkSettings, StoreSettings};
use shardwise_outbox::sink::SaslMechanism;
use shardwise_outbox::{Poison, PublisherOptions};

const WORKERS: &str = "[default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\n";
const ORDERS: &str = "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\"\n";

fn load(text: &str, variables: &[(&str, &str)]) -> shardwise::Result<LoadedSettings> {
    LoadedSettings::load(&LoadOptions::default().with_variables(variables.iter().copied()).with_text(text))
}

/// The error, which must be one line and of the kind that means nothing was contacted.
fn refused_with(text: &str, variables: &[(&str, &str)]) -> String {
    let error = load(text, variables).unwrap_err();
    let message = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Settings, "{message}");
    assert!(!message.contains('\n'), "{message}");
    message
}

fn refused(text: &str) -> String {
    refused_with(text, &[])
}

#[test]
fn everything_that_can_be_written_arrives() {
    let text = format!(
        "{WORKERS}drain_timeout = \"2m\"\n[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:///var/o.db\"\n\
         sink = \"file:out.jsonl\"\nbatch = 7\nmax_attempts = 3\nbackoff = \"2s\"\npoison = \"discard\"\nparked_retention = \"30d\"\n\
         outage_limit = \"2h\"\npoll = \"3s\"\nretention = \"7d\"\n"
    );
    let loaded = load(&text, &[]).unwrap();
    let orders = loaded.outbox("orders").unwrap();
    assert_eq!(orders.store, StoreSettings::Sqlite { path: PathBuf::from("/var/o.db") });
    assert_eq!(orders.sink, SinkSettings::File { path: PathBuf::from("out.jsonl") });
    let options = PublisherOptions {
        batch: 7,
        max_attempts: 3,
        backoff: Duration::from_secs(2),
        poison: Poison::Discard,
        outage_limit: Duration::from_hours(2),
        poll: Duration::from_secs(3),
        retention: Duration::from_hours(7 * 24),
        parked_retention: Duration::from_hours(30 * 24),
        drain_timeout: Duration::from_mins(2),
        ..PublisherOptions::default()
    };
    assert_eq!((&orders.options, orders.listen), (&options, false));
}

#[test]
fn options_made_in_code_and_the_table_of_keys_have_the_same_defaults() {
    let loaded = load(&format!("{WORKERS}{ORDERS}"), &[]).unwrap();
    assert_eq!(loaded.outbox("orders").unwrap().options, PublisherOptions::default());
}

#[test]
fn a_variable_lies_over_the_file_and_each_value_knows_its_origin() {
    let loaded = load(&format!("{WORKERS}{ORDERS}batch = 50\n"), &[("SHARDWISE__OUTBOX__ORDERS__POISON", "park")]).unwrap();
    let orders = loaded.outbox("orders").unwrap();
    assert_eq!((orders.options.batch, orders.options.poison), (50, Poison::Park));
    let origin = |key: &str| loaded.settings.in_force().iter().find(|setting| setting.key == key).unwrap().origin.to_string();
    assert_eq!(origin("outbox.orders.batch"), "settings line 7, [default]");
    assert_eq!(origin("outbox.orders.poison"), "environment variable SHARDWISE__OUTBOX__ORDERS__POISON");
    assert_eq!(origin("outbox.orders.poll"), "default");
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    assert_eq!(
        refused("[default.outbox.orders]\nbatch_size = 1"),
        "settings line 2: outbox.orders.batch_size is not a setting: did you mean batch?"
    );
    assert_eq!(
        refused("[default.outbox]\nstore = \"sqlite:x\""),
        "settings line 2: outbox.store is a key without a name before it: put it into a table whose name you choose"
    );
    assert_eq!(
        refused_with("", &[("SHARDWISE__OUTBOX__O__BATCHES", "5")]),
        "environment variable SHARDWISE__OUTBOX__O__BATCHES: outbox.o.batches is not a setting: did you mean SHARDWISE__OUTBOX__O__BATCH?"
    );
    assert_eq!(
        refused_with("", &[("SHARDWISE__OUTBOX__O__BATCH", "5")]),
        "environment variable SHARDWISE__OUTBOX__O__BATCH: outbox.o is nowhere else, and policy is missing"
    );
    assert_eq!(
        refused_with(&format!("{WORKERS}{ORDERS}"), &[("SHARDWISE__OUTBOX__ODERS__BATCH", "5")]),
        "environment variable SHARDWISE__OUTBOX__ODERS__BATCH: outbox.oders is nowhere else, and policy is missing (did you mean \
         SHARDWISE__OUTBOX__ORDERS__BATCH?)"
    );
    assert_eq!(
        refused_with("", &[("SHARDWISE_OUTBOX__O__BATCH", "5")]),
        "environment variable SHARDWISE_OUTBOX__O__BATCH: write two underscores after SHARDWISE: SHARDWISE__OUTBOX__O__BATCH"
    );
    let loaded = load(&format!("{WORKERS}{ORDERS}"), &[]).unwrap();
    assert_eq!(loaded.outbox("order").unwrap_err().to_string(), "there is no outbox \"order\"; known: orders (did you mean orders?)");
    assert_eq!(load("", &[]).unwrap().outbox("x").unwrap_err().to_string(), "there is no outbox \"x\"; known: none");
}

/// Regression: it was ignored, and with it every key in it.
#[test]
fn a_misspelled_section_of_an_outbox() {
    let text = |section: &str| format!("{WORKERS}{}", ORDERS.replace("[default.outbox.orders]", section));
    assert_eq!(refused(&text("[default.outbx.orders]")), "settings line 3: outbx is not a setting: did you mean outbox?");
    assert_eq!(refused(&text("[default.outboxes.orders]")), "settings line 3: outboxes is not a setting: did you mean outbox?");
    assert_eq!(refused(&text("[outbx.orders]")), "settings line 3: outbox stands outside a section: write [default.outbox…]");
    assert_eq!(refused(&text("[defaults.outbox.orders]")), "settings line 3: section \"defaults\" is not in force: did you mean default?");
    let only_store = refused(&format!("{WORKERS}[default.outbx.orders]\nstore = \"sqlite:o.db\""));
    assert_eq!(only_store, "settings line 3: outbx is not a setting: did you mean outbox?");
    for own in ["default.outboxes", "default.outboxes.mail", "default.Outbox.mail", "outboxes.mail"] {
        let text = format!("{WORKERS}[{own}]\nfolder = \"sent\"");
        assert!(load(&text, &[]).unwrap().outboxes.is_empty(), "{own} has nothing of an outbox");
    }
    for other in ["[default.output.orders]", "[default.inbox.orders]", "[default.outbound.orders]", "[staging.outbox.orders]"] {
        assert!(load(&text(other), &[]).unwrap().outboxes.is_empty(), "{other} is the application's, or another environment's");
    }
}

#[test]
fn the_outbox() {
    let outbox = |lines: &str| {
        let good = "policy = \"workers\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\"\n";
        let key = lines.split(' ').next().unwrap();
        let others: Vec<&str> = good.lines().filter(|line| !line.starts_with(&format!("{key} "))).collect();
        let seen = refused(&format!("{WORKERS}[default.outbox.o]\n{lines}\n{}", others.join("\n")));
        seen.replace("settings line 4: outbox.o.", "")
    };
    assert!(outbox("store = \"outbox.db\"").contains("write sqlite: and a path, such as \"sqlite:outbox.db\", or postgres://"));
    assert!(outbox("store = \"sqlite:\"").ends_with("write the path of a file"));
    assert!(outbox("store = \"sqlite::memory:\"").contains("publishers must be able to share the store"));
    assert!(outbox("store = \"sqlite:o.db?mode=rwc\"").contains("write the path alone"));
    let with_password = outbox("store = \"postgres://user:hush@host/db\"");
    assert!(
        with_password.starts_with("store is ***: leave the password out, and put it into a file that store_password_file"),
        "{with_password}"
    );
    assert!(outbox("store = \"postgres://host/db?sslmode=require&password=hush\"").starts_with("store is ***: leave the password out"));
    assert!(outbox("store = \"postgres:db\"").ends_with("or postgres://USER@HOST:PORT/DATABASE"));
    let of_a_file = outbox("store_password_file = \"secret\"");
    assert_eq!(of_a_file, "store_password_file is \"secret\": the store is a file; only a PostgreSQL store has a password");
    assert!(!outbox("store = \"mysql://user:hu/sh@host/db\"").contains("hu"), "a password with a slash in it");
    let plain = outbox("sink = \"amqp://h\"\nsink_ca_file = \"ca.pem\"");
    assert!(plain.contains("sink_ca_file is \"ca.pem\": the address in sink has no TLS; write rediss://"), "{plain}");
    for file in ["sink_ca_file", "sink_cert_file", "sink_key_file"] {
        let plain = outbox(&format!("sink = \"kafka://h\"\n{file} = \"f.pem\""));
        assert!(plain.contains(&format!("{file} is \"f.pem\": the address in sink has no TLS; write ")), "{plain}");
        assert!(plain.contains("kafkas://"), "{plain}");
    }
    let userless = outbox("sink = \"kafkas://h\"\nsink_sasl = \"scram-sha-256\"");
    assert!(userless.contains("sink_sasl is \"scram-sha-256\": the address in sink has no user"), "{userless}");
    let in_clear = outbox("sink = \"kafka://me@h\"\nsink_sasl = \"plain\"");
    assert!(in_clear.contains("it would send the password in clear") && in_clear.contains("kafkas://"), "{in_clear}");
    let nobody = outbox("sink = \"redis://h\"\nsink_sentinel_password_file = \"p\"");
    assert!(nobody.contains("the address in sink names no Sentinels; write redis+sentinel://HOST:26379/NAME"), "{nobody}");
    let half = outbox("sink = \"redis+sentinel://h/main\"\nsink_sentinel_username = \"u\"");
    assert!(half.ends_with("sink_sentinel_password_file is missing; set both or none"), "{half}");
    assert!(outbox("sink = \"redis+sentinel://me:hush@h/main\"").starts_with("sink is ***: leave the password out"));
    assert!(
        outbox("sink = \"nats://me:hush@h\"").starts_with("sink is ***: leave the password out, and put it into a file that sink_password")
    );
    let elsewhere = outbox("sink = \"redis://h\"\nsink_fence = true");
    assert!(elsewhere.ends_with("sink_fence is true: only these sinks have this key: NATS; remove it"), "{elsewhere}");
    assert!(
        outbox("sink_to = \"a\"").contains("only these sinks have this key: NATS, Redis, RabbitMQ, Kafka; remove it"),
        "stdout has no name"
    );
    assert!(outbox("sink = \"nats://h\"\nsink_message_key = \"k\"").ends_with("only these sinks have this key: Kafka; remove it"));
    assert!(outbox("sink = \"kafka://h\"\nsink_sasl = \"gssapi\"").contains("scram-sha-512"));
    assert!(outbox("sink = \"kafkas://me:hush@h\"").starts_with("sink is ***: leave the password out"));
    assert!(outbox("sink = \"nats://h\"\nsink_key_file = \"k\"").contains("sink_cert_file and sink_key_file belong together"));
    assert!(outbox("sink = \"stdin\"").contains("write \"stdout\", file: and a path, such as \"file:events.jsonl\", or an address"));
    assert!(outbox("sink = \"file:\"").ends_with("write the path of a file"));
    let poison = outbox("poison = \"skip\"");
    assert!(poison.contains("\"block\"") && poison.contains("\"discard\""), "{poison}");
    assert_eq!(outbox("parked_retention = \"0\""), "parked_retention is \"0\": between 1s and 3650d is allowed");
    assert_eq!(outbox("batch = 10001"), "batch is 10001: a whole number from 1 to 10000 is allowed");
    assert_eq!(outbox("backoff = \"0\""), "backoff is \"0\": between 1ms and 1h is allowed");
    for missing in ["policy", "store", "sink"] {
        let lines = ["policy = \"workers\"", "store = \"sqlite:o.db\"", "sink = \"stdout\""];
        let others = lines.iter().filter(|line| !line.starts_with(missing)).fold(String::new(), |text, line| text + line + "\n");
        let seen = refused(&format!("{WORKERS}[default.outbox.o]\n{others}"));
        assert!(seen.starts_with(&format!("settings line 3: outbox.o.{missing} is missing: ")), "{seen}");
    }
}

#[test]
fn servers_with_tls_and_sentinels_arrive() {
    let read = |lines: &str| {
        let text = format!("{WORKERS}[default.outbox.o]\npolicy = \"workers\"\nstore = \"sqlite:o.db\"\n{lines}");
        match load(&text, &[]).unwrap().outbox("o").unwrap().sink.clone() {
            SinkSettings::Remote(remote) => remote,
            other => unreachable!("{other}"),
        }
    };
    let files = "sink_ca_file = \"ca.pem\"\nsink_cert_file = \"c.pem\"\nsink_key_file = \"k.pem\"\n";
    let rabbit = read(&format!("sink = \"amqps://app@h/v\"\n{files}"));
    assert_eq!((rabbit.kind, rabbit.ca_file), (SinkKind::RabbitMq, Some("ca.pem".into())));
    assert_eq!(rabbit.identity, Some(("c.pem".into(), "k.pem".into())));
    let logins = "sink_sentinel_username = \"watcher\"\nsink_sentinel_password_file = \"watcher.password\"\n";
    let redis = read(&format!("sink = \"rediss+sentinel://app@one,two/main/1\"\n{files}{logins}"));
    assert_eq!((redis.kind, redis.url.as_str()), (SinkKind::Redis, "rediss+sentinel://app@one,two/main/1"));
    assert_eq!(redis.sentinel_username.as_deref(), Some("watcher"));
    assert_eq!(redis.sentinel_password_file, Some("watcher.password".into()));
}

#[test]
fn what_is_written_about_kafka_arrives() {
    let text = format!(
        "{WORKERS}{}",
        ORDERS.replace("stdout", "kafkas://app@one:9093,two:9093")
            + "sink_to = \"orders.{type}\"\nsink_message_key = \"{id}\"\nsink_sasl = \"scram-sha-256\"\nsink_timeout = \"3s\"\n"
    );
    let loaded = load(&text, &[]).unwrap();
    let SinkSettings::Remote(remote) = &loaded.outbox("orders").unwrap().sink else { panic!("no server") };
    assert_eq!((remote.kind, remote.url.as_str()), (SinkKind::Kafka, "kafkas://app@one:9093,two:9093"));
    assert_eq!((remote.to.as_deref(), remote.message_key.as_deref()), (Some("orders.{type}"), Some("{id}")));
    assert_eq!((remote.sasl, remote.timeout), (Some(SaslMechanism::ScramSha256), Some(Duration::from_secs(3))));
}

#[test]
fn two_outboxes_on_one_store() {
    let lines = "policy = \"workers\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\"\n";
    assert_eq!(
        refused(&format!("{WORKERS}[default.outbox.a]\n{lines}[default.outbox.b]\n{lines}")),
        "settings line 9: outbox.b.store is \"sqlite:o.db\": outbox.a has the same store; give each outbox its own"
    );
}

#[test]
fn a_store_where_workers_meet() {
    let text = format!("{WORKERS}[default.outbox.o]\npolicy = \"workers\"\nstore = \"sqlite:shardwise.db\"\nsink = \"stdout\"");
    let shared = refused(&text);
    let expected = "store is \"sqlite:shardwise.db\": discovery.local.path is the same file; give the outbox its own";
    assert!(shared.ends_with(expected), "{shared}");
}
