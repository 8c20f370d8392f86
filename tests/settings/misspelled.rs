//! Misspelled names of tables, sections and backends, which were ignored or reported without their place.

use super::*;

/// Regression: such a table was taken for the application's, and with it every key in it ignored.
#[test]
fn a_table_that_is_almost_one_of_ours() {
    let with = |header: &str| refused(&format!("{WORKERS}[{header}]\npolicy = \"workers\""));
    for (header, said) in [
        ("default.resiliense.sharding.policies.orders", "resiliense is not a setting: did you mean resilience?"),
        ("default.Resilience.sharding.discovery", "Resilience is not a setting: did you mean resilience?"),
        ("default.resilience.shardng.policies.orders", "resilience.shardng is not a setting: did you mean sharding?"),
        ("default.resiliency.shardng.policies.orders", "resiliency is not a setting: did you mean resilience?"),
        ("default.Outbox.orders", "Outbox is not a setting: did you mean outbox?"),
        ("default.outbx.orders", "outbx is not a setting: did you mean outbox?"),
        ("staging.resilence.sharding.policies.workers", "resilence is not a setting: did you mean resilience?"),
        ("staging.resilience.shardings.policies.workers", "resilience.shardings is not a setting: did you mean sharding?"),
        ("resilence.sharding", "resilience.sharding stands outside a section: write [default.resilience.sharding…]"),
        ("outbx.orders", "outbox stands outside a section: write [default.outbox…]"),
    ] {
        assert_eq!(with(header), format!("settings line 3: {said}"), "{header}");
    }
    for own in ["default.resources.a", "default.output.a", "default.resilience.retry", "default.sharding_sphere", "outputs", "outfit.a"] {
        assert_eq!(read(&format!("{WORKERS}[{own}]\nslots = 64")).policies.len(), 1, "{own} is the application's");
    }
    let enabled = refused(&format!("{WORKERS}[default.resilience.shardng]\nenabled = false"));
    assert_eq!(enabled, "settings line 3: resilience.shardng is not a setting: did you mean sharding?");
    assert_eq!(read(&format!("{WORKERS}[default]\noutbix = 1\nresilence = \"x\"")).policies.len(), 1, "a value is no table");
}

/// Regression: the level `resilience` was left out, and the policy was ignored without a word.
#[test]
fn a_table_of_ours_without_the_level_above_it() {
    for (header, line) in [
        ("default.sharding.policies.billing", "group_name = \"billing\""),
        ("default.sharding", "enabled = false"),
        ("default.sharding.discovery", "backend = \"consul\""),
        ("staging.resilience.sharding.policies.workers]\nslots = 64\n[staging.sharding.policies.billing", "ownership = \"exclusive\""),
    ] {
        let text = format!("[{header}]\n{line}");
        let at = text.lines().count() - 1;
        assert_eq!(refused(&text), format!("settings line {at}: sharding is not a setting: did you mean resilience.sharding?"), "{header}");
    }
    for own in ["[default.sharding]\nshards = 16", "[default.sharding.mongo]\nslots = 64", "[default]\nsharding = true"] {
        assert_eq!(read(&format!("{WORKERS}{own}")).policies.len(), 1, "{own} is the application's");
    }
}

/// Regression: names of an application's tables that are near ours were refused, whatever was in the tables.
#[test]
fn a_table_with_a_similar_name_and_other_contents() {
    for own in [
        "default.resilience.shedding",
        "default.resilience.sharing",
        "default.resilience.shading",
        "default.resilience.guarding",
        "default.resiliency.retry",
        "default.resilience4j",
        "default.resilience4j.retry",
        "default.Resilience.Retry",
        "default.outboxes",
        "default.outboxes.mail",
        "default.Outbox",
        "default.Outbox.mail",
        "otherprogram.resilience.shedding",
        "otherprogram.outboxes.mail",
        "resilience.shedding",
        "resiliency.retry",
        "outboxes",
        "outboxes.mail",
    ] {
        assert_eq!(read(&format!("{WORKERS}[{own}]\nslots = 64")).policies.len(), 1, "{own} is the application's");
    }
    for lines in ["[resilience]\nshedding = true", "[default.resilience]\nshedding = true", "[default]\noutboxes = [\"policy\"]"] {
        assert_eq!(read(&format!("{WORKERS}{lines}")).policies.len(), 1, "{lines}");
    }
}

#[test]
fn a_section_that_is_almost_the_one_in_force() {
    let sharding = "resilience.sharding.policies.workers]\nslots = 64\n";
    let with_section = |section: &str, environment: &str| {
        let text = format!("{WORKERS}[production.{sharding}[{section}.{sharding}");
        with(&text, &[&format!("SHARDWISE_ENV={environment}")])
    };
    for (section, environment, right) in [
        ("producton", "production", "production"),
        ("prodcution", "production", "production"),
        ("Production", "production", "production"),
        ("defualt", "production", "default"),
        ("defaults", "", "default"),
    ] {
        let said = format!("settings line 5: section \"{section}\" is not in force: did you mean {right}?");
        assert_eq!(message(with_section(section, environment)), said);
    }
    for (section, environment) in [("producton", ""), ("production2", "production"), ("staging", "production"), ("prod", "production")] {
        assert!(with_section(section, environment).is_ok(), "{section} is another environment");
    }
    for (one, other) in [
        ("eu", "au"),
        ("us", "as"),
        ("uat", "sat"),
        ("prd", "pprd"),
        ("dev", "sdev"),
        ("prodeu", "prodau"),
        ("productioneu", "productionau"),
        ("production", "productiona"),
        ("eu1", "eu2"),
        ("prod-a", "prod-b"),
        ("fault", "default2"),
        ("default-a", "default-b"),
    ] {
        let text = format!("{WORKERS}[{one}.{sharding}[{other}.{sharding}");
        for environment in [one, other, ""] {
            assert!(with(&text, &[&format!("SHARDWISE_ENV={environment}")]).is_ok(), "{one} and {other} are two environments");
        }
    }
    let said = message(with(&format!("{WORKERS}[PRODUCTION.{sharding}"), &["SHARDWISE_ENV=PRODUCTON"]));
    assert!(said.ends_with("(did you mean PRODUCTION?)"), "{said}");
    let said = message(with(&format!("{WORKERS}[production.{sharding}"), &["SHARDWISE_ENV=producton"]));
    assert!(said.ends_with("(did you mean production?)"), "the variable is wrong, not the section: {said}");
    let foreign = format!("{WORKERS}[defaults]\ncolour = \"red\"");
    assert_eq!(read(&foreign).policies.len(), 1, "it has nothing of ours");
}

/// Regression: the message did not say where it is written. A program may add backends, so only the factory knows which there are.
#[test]
fn a_backend_that_is_unknown() {
    let from = |text: &str, variables: &[&str]| {
        let settings = with(text, variables).unwrap();
        message(shardwise::ShardingFactory::from_settings(settings.clone()).map(|_| settings))
    };
    let said = from(&format!("{WORKERS}discovery.backend = \"memry\""), &[]);
    let own = "settings line 3: resilience.sharding.policies.workers.discovery.backend is \"memry\": this program has memory";
    assert!(said.starts_with(own) && said.contains(" (did you mean memory?)") && !said.contains("ShardingFactory"), "{said}");
    #[cfg(not(feature = "postgres"))]
    {
        let said = from(&format!("{WORKERS}discovery.backend = \"postgress\""), &[]);
        assert!(said.contains(": did you mean \"postgres\"? this program has memory") && said.contains("--features postgres"), "{said}");
    }
    let common = "[default.resilience.sharding.discovery]\nbackend = \"memry\"\n";
    let said = from(&format!("{common}{WORKERS}"), &[]);
    assert!(said.starts_with("settings line 2: resilience.sharding.discovery.backend is \"memry\": this program has "), "{said}");
    let said = from(WORKERS, &["~DISCOVERY__BACKEND=memry"]);
    assert!(said.starts_with("environment variable SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__BACKEND: "), "{said}");

    // A name that was changed in code is not at that place.
    let mut settings = read(&format!("{common}{WORKERS}"));
    let workers = settings.policies.values_mut().next().unwrap();
    workers.discovery.backend = "mine".to_owned();
    let said = message(shardwise::ShardingFactory::from_settings(settings.clone()).map(|_| settings));
    assert!(said.starts_with("discovery.backend is \"mine\": this program has "), "{said}");
}
