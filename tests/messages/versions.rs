//! A group with members of the version before, which have an address for messages alone: what they and the others cannot send each other
//! waits, and was certainly not handled.

use std::collections::BTreeMap;

use shardwise::MessageError;

use super::*;

/// A member whose record has the addresses of the version before, and that holds the name until it leaves.
async fn older(world: &World, at: &str) -> (ShardingService, Run) {
    let mut instance = InstanceSettings::default();
    let requests = format!("http://{at}");
    instance.metadata = BTreeMap::from([("shardwise.messages".into(), at.to_owned()), ("shardwise.requests".into(), requests)]);
    let service = with_instance(world, "older", world.store.link(), instance, PeersSettings::default());
    service.register_self().await.expect("it joins");
    let run = service.singleton("boss").expect("exclusive").run(|tenure| async move {
        tenure.cancel().cancelled().await;
        Ok::<(), String>(())
    });
    eventually("it holds the name", || service.ownership().names().count() == 1).await;
    (service, run)
}

/// The sender has this version, the holder the one before.
#[tokio::test]
async fn a_message_to_an_older_holder_waits_for_a_newer_one() {
    let world = World::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    port.set_nonblocking(true).unwrap();
    let (older, _holds) = older(&world, &port.local_addr().unwrap().to_string()).await;
    let b = joined(&world, "b").await;
    let error = handle(&b).send_within(echo("x"), Duration::from_secs(3)).await.unwrap_err();
    assert!(matches!(&error, MessageError::NoLeader { why, .. } if why.contains("takes no messages yet")), "{error:?}");
    assert!(!error.may_have_been_handled());
    let sent = tokio::spawn({
        let handle = handle(&b);
        async move { handle.send_within(echo("early"), LONG).await }
    });
    // The rolling upgrade goes on: the holder is replaced by a member of this version.
    let c = joined(&world, "c").await;
    let _run = run(&c);
    older.deregister_self().await.expect("it leaves");
    assert_eq!(sent.await.unwrap().expect("a reply").by, "c");
    assert_eq!(port.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing has called the older one");
}

/// The sender has the version before, the holder this one: its record has no address that the sender knows, and so the sender waits too.
/// One that connects all the same is refused (`impostors`).
#[tokio::test]
async fn a_newer_holder_has_no_address_that_an_older_sender_knows() {
    let world = World::new();
    let (_a, b, _run) = boss_and_other(&world).await;
    let members = b.members();
    let holder = members.members().iter().find(|member| member.instance_id.as_str() == "a").expect("a member");
    assert_eq!(holder.metadata.keys().collect::<Vec<_>>(), [ADDRESS_KEY]);
}
