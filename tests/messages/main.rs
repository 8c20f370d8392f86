//! Messages to singletons: several workers in one process over the memory backend, with real sockets between them and on real time.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

#[path = "../common/channel.rs"]
mod channel;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each test file uses its part")]
mod common;
mod handover;
#[path = "../common/http2.rs"]
mod http2;
mod impostors;
#[path = "../common/log.rs"]
mod log;
mod outcomes;
mod strangers;
mod versions;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardwise::discovery::MemoryBackend;
use shardwise::requests::ADDRESS_KEY;
use shardwise::settings::{InstanceSettings, PeersSettings, PolicySettings};
use shardwise::{InstanceId, OwnershipMode, Run, ShardingFactory, ShardingService, SingletonHandle, Tenure, Timing};

use channel::LONG;
use common::{World, eventually};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Ask {
    /// Answer with the text.
    Echo(String),
    /// Never answer, and hold what comes.
    Hold,
    /// Throw the message away.
    Drop,
    Panic,
    /// Answer with so many bytes.
    Large(usize),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AskReply {
    by: String,
    epoch: u64,
    text: String,
}

type Handle = SingletonHandle<Ask, AskReply>;

fn with_peers(world: &World, id: &str, peers: PeersSettings) -> ShardingService {
    with_instance(world, id, world.store.link(), InstanceSettings::default(), peers)
}

fn with_instance(world: &World, id: &str, link: MemoryBackend, instance: InstanceSettings, peers: PeersSettings) -> ShardingService {
    let mut policy = common::policy();
    policy.ownership = OwnershipMode::Exclusive;
    policy.placement.slots = 16;
    policy.drain_timeout = Duration::from_secs(2);
    let mut settings = PolicySettings::new(policy);
    settings.discovery.backend = "test".into();
    settings.timing = Timing::new(world.ttl, None, Duration::from_millis(100)).expect("valid");
    settings.peers = peers;
    let builder = ShardingFactory::builder().policy(settings).instance(instance).backend("test", Arc::new(link)).clock(world.clock.clone());
    let factory = builder.instance_id(InstanceId::new(id).expect("valid")).build().expect("a valid factory");
    factory.create("workers").expect("a known policy")
}

async fn joined(world: &World, id: &str) -> ShardingService {
    let service = with_peers(world, id, PeersSettings::default());
    service.register_self().await.expect("it joins");
    service
}

fn handle(service: &ShardingService) -> Handle {
    service.singleton("boss").expect("exclusive").handle()
}

/// Offers to be the one that answers.
fn run(service: &ShardingService) -> Run {
    let id = service.instance_id().to_string();
    service.singleton("boss").expect("exclusive").run(move |tenure| answers(id.clone(), tenure))
}

async fn answers(id: String, tenure: Tenure) -> shardwise::Result<()> {
    let mut inbox = tenure.messages::<Ask, AskReply>().await?;
    let mut kept = Vec::new();
    while let Some(message) = inbox.recv().await {
        assert_eq!(message.epoch, tenure.epoch());
        let reply = |text| AskReply { by: id.clone(), epoch: message.epoch.get(), text };
        match message.body {
            Ask::Echo(text) => message.reply.send(reply(text)),
            Ask::Hold => kept.push(message.reply),
            Ask::Drop => drop(message.reply),
            Ask::Panic => panic!("a mistake in the user's code"),
            Ask::Large(bytes) => message.reply.send(reply("x".repeat(bytes))),
        }
    }
    Ok(())
}

fn echo(text: &str) -> Ask {
    Ask::Echo(text.to_owned())
}

/// The host and port where that worker's messages arrive, by its record.
fn address(service: &ShardingService, of: &str) -> Option<String> {
    let members = service.members();
    let member = members.members().iter().find(|member| member.instance_id.as_str() == of)?;
    Some(member.metadata.get(ADDRESS_KEY)?.strip_prefix("tcp://").expect("without TLS").to_owned())
}

/// Workers `a` and `b`, of which `a` answers.
async fn boss_and_other(world: &World) -> (ShardingService, ShardingService, Run) {
    let (a, b) = (joined(world, "a").await, joined(world, "b").await);
    let run = run(&a);
    eventually("the other one sees where", || address(&b, "a").is_some()).await;
    (a, b, run)
}

#[tokio::test]
async fn every_member_reaches_the_one_that_runs_and_gets_its_reply() {
    let world = World::new();
    let (a, b, c) = (joined(&world, "a").await, joined(&world, "b").await, joined(&world, "c").await);
    let _runs = [run(&a), run(&b)];
    let mut by = Vec::new();
    for service in [&a, &b, &c] {
        let handle = handle(service);
        let reply = handle.send_within(echo("hello"), Duration::MAX).await.expect("a reply");
        assert_eq!(reply.text, "hello");
        by.push(reply.by);
    }
    assert!(by.iter().all(|id| *id == by[0]), "one answers all: {by:?}");
    assert!(address(&c, "c").is_none(), "who takes no messages does not listen");
}

#[tokio::test]
async fn many_messages_are_on_their_way_at_once_and_each_gets_its_own_reply() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    for service in [&a, &b] {
        let handle = handle(service);
        let all = (0..500).map(|n: u32| {
            let handle = handle.clone();
            async move { (n, handle.send_within(echo(&n.to_string()), LONG).await.expect("a reply").text) }
        });
        for (n, text) in futures::future::join_all(all).await {
            assert_eq!(n.to_string(), text);
        }
    }
}

#[tokio::test]
async fn a_message_waits_until_a_member_holds_the_name() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    let mut sent = tokio::spawn({
        let handle = handle(&b);
        async move { handle.send_within(echo("early"), LONG).await }
    });
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut sent).await.is_err(), "it waits");
    let _run = run(&a);
    assert_eq!(sent.await.unwrap().expect("a reply").by, "a");
}

/// A worker that runs what it has a handle of says where it listens before it holds anything.
#[tokio::test]
async fn who_has_a_handle_and_runs_it_listens_at_once() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    let never = a.singleton("boss").expect("exclusive");
    let _handle: Handle = never.handle();
    let _run = never.run(|tenure| async move {
        tenure.cancel().cancelled().await;
        Ok::<(), String>(())
    });
    eventually("its record says where", || address(&b, "a").is_some()).await;
}

#[tokio::test]
async fn the_address_is_in_a_record_that_is_made_later_and_made_anew() {
    let world = World::new();
    let (a, b) = (with_peers(&world, "a", PeersSettings::default()), joined(&world, "b").await);
    let _run = run(&a);
    for _ in 0..2 {
        a.register_self().await.expect("joins");
        assert_eq!(handle(&b).send_within(echo("x"), LONG).await.expect("a reply").by, "a");
        a.deregister_self().await.expect("leaves");
    }
}
