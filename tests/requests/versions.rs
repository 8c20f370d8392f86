//! A group with members of the version before, which had an address for requests and another one for messages.

use std::collections::BTreeMap;

use shardwise::settings::InstanceSettings;
use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn to_an_older_member_nothing_is_sent() {
    let world = World::new();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = port.local_addr().unwrap();
    let mut instance = InstanceSettings::default();
    instance.metadata =
        BTreeMap::from([("shardwise.requests".into(), format!("http://{at}")), ("shardwise.messages".into(), at.to_string())]);
    let older = world.factory_with(instance, "older", Arc::new(world.store.link()), policy()).create("workers").unwrap();
    let two = worker(&world, "two", Some(TOKEN));
    older.register_self().await.unwrap();
    two.register_self().await.unwrap();
    let seen = || two.members().member(&InstanceId::new("older").unwrap()).cloned();
    eventually("it is seen", || seen().is_some()).await;
    assert_eq!(seen().unwrap().metadata.get(ADDRESS_KEY), None);
    // Nor is anything sent where an address of that kind comes from elsewhere.
    for address in [format!("http://{at}"), at.to_string(), String::new()] {
        let there = MemberEndpoint { address, ..endpoint(&older, at) };
        match brings(&two, &there, &Request::get("status")).await {
            Err(Undelivered::Unsent(why)) => assert!(why.contains("upgrade the older member"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let called = tokio::time::timeout(Duration::from_millis(200), port.accept()).await;
    assert!(called.is_err(), "nothing has called");
}

#[tokio::test]
async fn an_older_member_finds_no_address_that_it_knows() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    one.listen_for_requests().await.unwrap();
    one.register_self().await.unwrap();
    two.register_self().await.unwrap();
    let seen = || two.members().member(&InstanceId::new("one").unwrap()).cloned();
    eventually("it is seen", || seen().is_some()).await;
    assert_eq!(seen().unwrap().metadata.into_keys().collect::<Vec<_>>(), [ADDRESS_KEY]);
}
