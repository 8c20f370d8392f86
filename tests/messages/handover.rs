//! The holder changes while messages are on their way: each is handled at most once, and its sender knows which may have been.

use std::collections::HashMap;
use std::sync::Mutex;

use super::*;
use shardwise::MessageError;

type Handled = Arc<Mutex<HashMap<u64, Vec<String>>>>;

/// Counts what it handles, slowly enough that a change of holders finds some half-way.
fn counts(service: &ShardingService, handled: &Handled) -> Run {
    let (id, handled) = (service.instance_id().to_string(), Arc::clone(handled));
    service.singleton("boss").expect("exclusive").run(move |tenure| {
        let (id, handled) = (id.clone(), Arc::clone(&handled));
        async move {
            let mut inbox = tenure.messages::<u64, u64>().await?;
            while let Some(message) = inbox.recv().await {
                handled.lock().unwrap().entry(message.body).or_default().push(id.clone());
                tokio::time::sleep(Duration::from_millis(1)).await;
                message.reply.send(message.body);
            }
            Ok::<(), shardwise::Error>(())
        }
    })
}

#[tokio::test]
async fn in_a_handover_every_message_is_handled_at_most_once() {
    const EACH: u64 = 150;
    let (world, handled) = (World::new(), Handled::default());
    let fleet = [joined(&world, "a").await, joined(&world, "b").await, joined(&world, "c").await];
    let _runs: Vec<_> = fleet.iter().map(|service| counts(service, &handled)).collect();
    let mut senders = tokio::task::JoinSet::new();
    for (at, service) in (0..).zip(&fleet) {
        let handle: SingletonHandle<u64, u64> = service.singleton("boss").expect("exclusive").handle();
        for lane in 0..4 {
            let handle = handle.clone();
            senders.spawn(async move {
                let mut outcomes = Vec::new();
                for n in 0..EACH {
                    let number = (at * 4 + lane) * EACH + n;
                    outcomes.push((number, handle.send_within(number, LONG).await));
                }
                outcomes
            });
        }
    }
    // The holder leaves and comes back: the name goes to and fro.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        if let Some(holder) = fleet.iter().find(|service| service.ownership().names().count() > 0) {
            holder.deregister_self().await.expect("leaves");
            holder.register_self().await.expect("joins again");
        }
    }
    let mut by = std::collections::BTreeSet::new();
    let (mut sure, mut unsure) = (0, 0);
    while let Some(outcomes) = senders.join_next().await {
        for (number, outcome) in outcomes.unwrap() {
            let times = handled.lock().unwrap().get(&number).cloned().unwrap_or_default();
            by.extend(times.clone());
            match outcome {
                Ok(reply) => {
                    assert_eq!((reply, times.len()), (number, 1), "answered, so handled once: {times:?}");
                    sure += 1;
                }
                Err(error) if error.may_have_been_handled() => {
                    assert!(times.len() <= 1, "{number}: {error}: {times:?}");
                    unsure += 1;
                }
                Err(error) => assert!(times.is_empty(), "{number} was handled, and its sender was told that it was not: {error}"),
            }
        }
    }
    println!("{sure} handled for sure, {unsure} unknown, by {by:?}");
    assert!(by.len() > 1, "the holder changed: {by:?}");
    assert!(sure > unsure, "most are known: {sure} of {}", sure + unsure);
}

/// Cut off from the backend, the holder goes on for a while by its clock and then holds nothing: whatever it has is unknown.
#[tokio::test]
async fn a_holder_that_is_fenced_leaves_what_it_has_unknown_and_the_next_one_takes_over() {
    let world = World::new();
    let link = world.store.link();
    let a = with_instance(&world, "a", link.clone(), InstanceSettings::default(), PeersSettings::default());
    let other = joined(&world, "c").await;
    a.register_self().await.expect("joins");
    let first = run(&a);
    let ask = handle(&other);
    assert_eq!(ask.send_within(echo("x"), LONG).await.expect("a reply").by, "a");
    let held = tokio::spawn({
        let ask = ask.clone();
        async move { ask.send_within(Ask::Hold, LONG).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let _second = run(&other);
    link.set_reachable(false);
    let error = held.await.unwrap().unwrap_err();
    assert!(matches!(error, MessageError::Lost { .. }), "{error:?}");
    assert_eq!(ask.send_within(echo("y"), LONG).await.expect("a reply").by, "c");
    first.stop().await;
}
