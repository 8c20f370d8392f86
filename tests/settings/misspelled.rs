//! Misspelled names of tables, sections and backends, which were ignored or reported without their place.

use super::*;

/// Regression: such a table was taken for the application's, and with it every key in it ignored.
#[test]
fn a_table_that_is_almost_one_of_ours() {
    let with = |header: &str| refused(&format!("{WORKERS}[{header}]\nslots = 64"));
    for (header, said) in [
        ("default.resiliense.orders", "resiliense is not a setting: did you mean resilience?"),
        ("default.Resilience.sharding.discovery", "Resilience is not a setting: did you mean resilience?"),
        ("default.resilience.shardng.policies.orders", "resilience.shardng is not a setting: did you mean sharding?"),
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
    assert_eq!(read(&format!("{WORKERS}[default]\noutbix = 1\nresilence = \"x\"")).policies.len(), 1, "a value is no table");
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
    let numbered = format!("{WORKERS}[eu1.{sharding}[eu2.{sharding}[prod-a.{sharding}[prod-b.{sharding}");
    for environment in ["eu1", "prod-b"] {
        with(&numbered, &[&format!("SHARDWISE_ENV={environment}")]).unwrap();
    }
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
    assert!(said.starts_with(own) && said.contains(" (did you mean memory?); "), "{said}");
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
