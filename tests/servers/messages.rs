//! Messages to a singleton on every backend: the holder is found by its claim and
//! its record, and what a holder that dies has taken is unknown.

use std::time::Duration;

use shardwise::{MessageError, Run, ShardingService, SingletonHandle};

use crate::exclusive::Place;
use crate::meeting::{Kind, runtime, until};

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(30);

on_each_alone!(the_holder_answers_and_what_a_dead_one_has_taken_is_unknown; soak: nats Nats, postgres Postgres);

/// Answers 7 with whose name it is, and nothing else at all.
fn run(service: &ShardingService) -> Run {
    let id = service.instance_id().to_string();
    service.singleton("boss").unwrap().run(move |tenure| {
        let id = id.clone();
        async move {
            let (mut inbox, mut kept) = (tenure.messages::<u32, String>().await?, Vec::new());
            while let Some(message) = inbox.recv().await {
                if message.body == 7 { message.reply.send(id.clone()) } else { kept.push(message.reply) }
            }
            Ok::<(), shardwise::Error>(())
        }
    })
}

fn the_holder_answers_and_what_a_dead_one_has_taken_is_unknown(kind: Option<Kind>) {
    let living = runtime("living");
    let _inside = living.enter();
    let place = living.block_on(Place::start(kind));
    let service = place.service("living", 8, TTL);
    living.block_on(service.register_self()).unwrap();
    let handle: SingletonHandle<u32, String> = service.singleton("boss").unwrap().handle();
    // A separate runtime that ends without deregistering.
    let dying = runtime("dying");
    let dead = {
        let _inside = dying.enter();
        let dead = place.service("dead", 8, TTL);
        dying.block_on(dead.register_self()).unwrap();
        (run(&dead), dead)
    };
    assert_eq!(living.block_on(handle.send_within(7, LONG)).unwrap(), "dead");
    let kept = living.spawn({
        let handle = handle.clone();
        async move { handle.send_within(8, LONG).await }
    });
    // It is there once a later one has been answered.
    assert_eq!(living.block_on(handle.send_within(7, LONG)).unwrap(), "dead");
    dying.shutdown_background();
    let lost = living.block_on(kept).unwrap().unwrap_err();
    assert!(matches!(lost, MessageError::Lost { .. }), "{lost:?}");
    let _run = run(&service);
    assert_eq!(living.block_on(handle.send_within(7, LONG)).unwrap(), "living");
    drop(dead);
    until("it has left", Duration::from_secs(10), || living.block_on(service.deregister_self()).map_err(|error| error.to_string()));
}
