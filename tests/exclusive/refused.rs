//! What does not go together with exclusive ownership.

use std::sync::Arc;
#[cfg(feature = "consul")]
use std::time::Duration;

#[cfg(feature = "consul")]
use shardwise::ErrorKind;
use shardwise::settings::PolicySettings;
use shardwise::{Settings, ShardingFactory};

use super::plain::Plain;
use super::{World, joined, policy, service};

#[tokio::test]
async fn a_backend_without_claims_is_refused_before_anything_is_contacted() {
    let world = World::new();
    let backend = Arc::new(Plain(world.store.link()));
    let error = world.factory_of("a", backend, policy()).create("workers").expect_err("no claims");
    let said = "policy workers: ownership = \"exclusive\" needs a backend that can hold claims, and plain cannot; use \"local\", \"consul\", \"etcd\", \
                \"nats\" or \"postgres\", or ownership = \"eventual\"";
    assert_eq!(error.to_string(), said);
}

#[cfg(feature = "valkey")]
#[tokio::test]
async fn valkey_is_refused_with_the_reason_before_anything_is_contacted() {
    let url = shardwise::discovery::settings::BackendValue::Text("redis://127.0.0.1:1".into());
    let mut settings = PolicySettings::new(policy());
    settings.discovery = shardwise::settings::DiscoverySettings::new("valkey").with("url", url);
    let error = ShardingFactory::builder().policy(settings).build().and_then(|factory| factory.create("workers")).expect_err("refused");
    let said = "policy workers: ownership = \"exclusive\" needs a backend that can hold claims, and valkey cannot: a failover forgets what it \
                confirmed; use \"local\", \"consul\", \"etcd\", \"nats\" or \"postgres\", or ownership = \"eventual\"";
    assert_eq!(error.to_string(), said);
}

/// Regression: the message said to use exclusive ownership, which Valkey then refused.
#[cfg(feature = "valkey")]
#[tokio::test]
async fn named_work_on_valkey_is_refused_with_the_reason_under_eventual_ownership_too() {
    let url = shardwise::discovery::settings::BackendValue::Text("redis://127.0.0.1:1".into());
    let mut settings = PolicySettings::new(super::common::policy());
    settings.discovery = shardwise::settings::DiscoverySettings::new("valkey").with("url", url);
    let factory = ShardingFactory::builder().policy(settings).build().expect("valid");
    let service = factory.create("workers").expect("eventual");
    let refused = [
        service.singleton("x").map(drop),
        service.daemons("x").map(drop),
        service.timer("x", std::time::Duration::from_mins(1)).map(drop),
        factory.daemon_count("workers", "x").await.map(drop),
    ];
    for error in refused.map(|made| made.expect_err("no claims")) {
        let said = error.to_string();
        assert!(said.contains("and valkey cannot: a failover forgets what it confirmed; use \"local\", \"consul\""), "{said}");
    }
}

#[tokio::test]
async fn without_coordination_nothing_is_exclusive() {
    let settings = Settings::from_toml_str(
        "[default.resilience.sharding]\nenabled = false\ndiscovery.backend = \"memory\"\npolicies.workers = { group_name = \"g\", ownership = \"exclusive\" }",
    );
    let error = settings.and_then(ShardingFactory::from_settings).and_then(|factory| factory.create("workers")).expect_err("refused");
    assert!(error.to_string().contains("enabled = false do not go together"), "{error}");
    let mut settings = PolicySettings::new(policy());
    settings.discovery.backend = "memory".into();
    assert!(
        ShardingFactory::builder().policy(settings).build().and_then(|factory| factory.create("workers")).is_ok(),
        "on its own it is fine"
    );
}

/// Settings made in code, which were not validated before.
#[cfg(feature = "consul")]
#[tokio::test]
async fn a_stop_margin_that_is_too_long_for_what_consul_grants_is_refused_before_anything_is_contacted() {
    let mut settings = PolicySettings::new(policy());
    settings.discovery = shardwise::settings::DiscoverySettings::new("consul");
    settings.timing =
        shardwise::Timing::new(Duration::from_secs(10), None, Duration::from_secs(5)).expect("valid where all of it is granted");
    let error = ShardingFactory::builder().policy(settings).build().and_then(|factory| factory.create("workers")).expect_err("refused");
    let said = "policy workers: discovery.stop_margin is 5s: with ttl = 10s, of which the backend grants 5s, ownership would end before the first renewal; use \
                less than 3283ms, or a longer ttl";
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Settings, said));
}

/// Two numbers of slots would be two sets of claims.
#[tokio::test(start_paused = true)]
async fn a_worker_with_another_number_of_slots_learns_both_fingerprints() {
    let world = World::new();
    let first = joined(&world, "a").await;
    let mut other = policy();
    other.placement.slots = 128;
    let error = service(&world, "b", other.clone()).register_self().await.expect_err("another group's");
    let said = error.to_string();
    assert!(said.contains(&other.fingerprint().to_string()) && said.contains(&first.policy().fingerprint().to_string()), "{said}");
}
