//! Settings of every kind, sound and broken, in any order.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use shardwise::settings::{LoadOptions, Settings};

const DOCUMENTED: &str = include_str!("../../settings.toml");

/// What may stand between dots, and what may stand behind an equals sign; most of it fits nowhere.
const NAMES: [&str; 22] = [
    "resilience",
    "sharding",
    "policies",
    "p",
    "instance",
    "metadata",
    "discovery",
    "local",
    "path",
    "outbox",
    "o",
    "slots",
    "ttl",
    "renew_every",
    "load_margin",
    "group_name",
    "policy",
    "store",
    "sink",
    "next",
    "\"\\n\"",
    "Ü",
];
const VALUES: [&str; 14] = [
    "1",
    "-1",
    "0.05",
    "nan",
    "true",
    "\"\"",
    "\"5s\"",
    "\"p\"",
    "\"sqlite:x\"",
    "[]",
    "{}",
    "\"ring\"",
    "1979-05-27",
    "99999999999999999999",
];

/// Every complaint is one line.
fn complains_in_one_line(result: shardwise::Result<Settings>) -> Result<(), TestCaseError> {
    if let Err(error) = result {
        let message = error.to_string();
        prop_assert!(!message.chars().any(char::is_control), "{message:?}");
    }
    Ok(())
}

fn line() -> impl Strategy<Value = String> {
    (vec(select(&NAMES[..]), 1..6), select(&VALUES[..])).prop_map(|(names, value)| format!("default.{} = {value}", names.join(".")))
}

fn variable() -> impl Strategy<Value = (String, String)> {
    let names = vec(select(&NAMES[..]), 1..6).prop_map(|names| format!("SHARDWISE__{}", names.join("__").to_uppercase()));
    (prop_oneof![names, "SHARDWISE__.{0,20}"], prop_oneof![select(&VALUES[..]).prop_map(ToOwned::to_owned), ".{0,10}"])
}

proptest! {
    // A failure prints its input; no file of old failures is kept.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        complains_in_one_line(Settings::from_toml_str(&text))?;
    }

    #[test]
    fn known_names_in_wrong_places_are_read_or_refused(lines in vec(line(), 0..6)) {
        complains_in_one_line(Settings::from_toml_str(&lines.join("\n")))?;
    }

    #[test]
    fn any_variables_are_read_or_refused(variables in vec(variable(), 0..4), environment in ".{0,5}") {
        let variables = variables.into_iter().chain([("SHARDWISE_ENV".to_owned(), environment)]);
        complains_in_one_line(Settings::load(&LoadOptions::default().with_variables(variables).with_text(DOCUMENTED)))?;
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(at in any::<Index>(), removed in 0..40_usize, added in "[\\[\\]\"'=#.a-z0-9\n]{0,4}") {
        let mut chars: Vec<char> = DOCUMENTED.chars().collect();
        let at = at.index(chars.len());
        let end = (at + removed).min(chars.len());
        chars.splice(at..end, added.chars());
        complains_in_one_line(Settings::from_toml_str(&chars.into_iter().collect::<String>()))?;
    }

    #[test]
    fn the_order_of_keys_does_not_matter(lines in Just(sound_lines()).prop_shuffle()) {
        let (ordered, shuffled) = (sound_lines().join("\n"), lines.join("\n"));
        let (ordered, shuffled) = (Settings::from_toml_str(&ordered).unwrap(), Settings::from_toml_str(&shuffled).unwrap());
        prop_assert_eq!(&ordered.policies, &shuffled.policies);
        prop_assert_eq!(&ordered.outboxes, &shuffled.outboxes);
        prop_assert_eq!(&ordered.instance, &shuffled.instance);
        let values = |settings: &Settings| settings.in_force().iter().map(|s| (s.key.clone(), s.value.clone())).collect::<Vec<_>>();
        prop_assert_eq!(values(&ordered), values(&shuffled));
    }
}

fn sound_lines() -> Vec<&'static str> {
    vec![
        "default.outbox.a.policy = \"p\"",
        "default.outbox.a.store = \"sqlite:a.db\"",
        "default.outbox.a.sink = \"stdout\"",
        "default.outbox.b.policy = \"q\"",
        "default.outbox.b.store = \"sqlite:b.db\"",
        "default.outbox.b.sink = \"file:b\"",
        "default.resilience.sharding.enabled = false",
        "default.resilience.sharding.discovery.ttl = \"6s\"",
        "default.resilience.sharding.instance.metadata.x = \"1\"",
        "default.resilience.sharding.instance.metadata.a = \"2\"",
        "default.resilience.sharding.policies.p.group_name = \"g\"",
        "default.resilience.sharding.policies.p.discovery.renew_every = \"1s\"",
        "default.resilience.sharding.policies.q.group_name = \"h\"",
        "default.resilience.sharding.policies.q.slots = 7",
    ]
}
