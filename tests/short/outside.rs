//! Outside a tokio runtime, and at its end: calls say that there is none, and a member that goes without deregistering is warned of.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

#[cfg(feature = "requests")]
use shardwise::MessageError;
use shardwise::requests::Request;
use shardwise::{ErrorKind, InstanceId, OwnershipMode, Result, ShardingFactory};
use tokio::runtime::Runtime;

use crate::common::{World, policy};
use crate::log::Log;

/// What a call answers that has nothing to wait for.
fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits for something"),
    }
}

fn exclusive() -> ShardingFactory {
    let (world, mut policy) = (World::new(), policy());
    policy.ownership = OwnershipMode::Exclusive;
    world.factory_of("a", std::sync::Arc::new(world.store.link()), policy)
}

#[test]
fn calls_outside_a_runtime_say_so() {
    let factory = exclusive();
    let (service, id) = (factory.create("workers").expect("known"), InstanceId::new("b").expect("valid"));
    let daemons = service.daemons("").expect("exclusive");
    let mut refusals: Vec<(&str, Result<()>)> = vec![
        ("observe", at_once(factory.observe("workers")).map(drop)),
        ("confirm_loss", at_once(factory.confirm_loss("workers")).map(drop)),
        ("drain", at_once(factory.drain("workers", &id)).map(drop)),
        ("undrain", at_once(factory.undrain("workers", &id)).map(drop)),
        ("wait_until_drained", at_once(factory.wait_until_drained("workers", &id)).map(drop)),
        ("drained", at_once(factory.drained("workers")).map(drop)),
        ("end_absence", at_once(factory.end_absence("workers", &id)).map(drop)),
        ("register_self", at_once(service.register_self())),
        ("deregister_self", at_once(service.deregister_self())),
        ("deregister_self_for_good", at_once(service.deregister_self_for_good())),
        ("count", at_once(daemons.count()).map(drop)),
        ("count_or_set", at_once(daemons.count_or_set(1)).map(drop)),
    ];
    #[cfg(feature = "requests")]
    let listens = Some(("listen_for_requests", at_once(service.listen_for_requests()).map(drop)));
    #[cfg(not(feature = "requests"))]
    let listens = None;
    refusals.extend(listens);
    for (call, refusal) in refusals {
        let error = refusal.expect_err(call);
        assert!(error.kind() == ErrorKind::NoRuntime && error.to_string().contains("tokio runtime"), "{call}: {error}");
    }
    #[cfg(feature = "requests")]
    {
        let singleton = service.singleton("s").expect("exclusive");
        assert_eq!(at_once(singleton.handle::<(), ()>().send(())), Err(MessageError::NoRuntime));
    }
    service.on_request("here", |_: Request| std::future::ready("answer")).expect("a path");
    let answer = at_once(service.answer(Request::get("here")));
    assert_eq!(answer.expect("an answer").status, 500);
}

/// How often that member was said to have gone without deregistering.
fn warned(log: &Log, member: &str) -> usize {
    let part = format!("instance={member}");
    log.lines_where(|line| {
        line.contains(" WARN ") && line.contains("policy=workers") && line.contains(&part) && line.contains("deregister_self")
    })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

#[test]
fn a_member_whose_last_handle_is_dropped_without_deregistering_is_warned_of_once() {
    let (log, _guard) = Log::start();
    runtime().block_on(async {
        let world = World::new();
        let factory = world.factory("kept");
        let service = factory.create("workers").expect("known");
        service.register_self().await.expect("it joins");
        drop(service.clone());
        drop(service);
        assert_eq!(warned(&log, "kept"), 0, "the factory has a handle, and create gives it out again");
        let service = factory.create("workers").expect("known");
        factory.clear();
        assert_eq!(warned(&log, "kept"), 0, "one handle is left");
        drop(service);
        assert_eq!(warned(&log, "kept"), 1);
        tokio::time::sleep(world.ttl).await;
        assert_eq!(warned(&log, "kept"), 1, "and not again when it has left");

        let service = world.joined("left").await;
        service.deregister_self().await.expect("it leaves");
        drop(service);
        drop(world.factory("never").create("workers").expect("known"));
        assert_eq!((warned(&log, "left"), warned(&log, "never")), (0, 0), "those who left, or never joined");
    });
}

#[test]
fn a_member_that_ends_with_its_runtime_is_warned_of_once() {
    let (log, _guard) = Log::start();
    // As at the end of a main function: the handle goes, and the driver gets no turn any more.
    runtime().block_on(async { drop(World::new().joined("dropped").await) });
    assert_eq!(warned(&log, "dropped"), 1);
    let service = runtime().block_on(async { World::new().joined("outlives").await });
    assert_eq!(warned(&log, "outlives"), 1, "the runtime is gone, the handle is not");
    drop(service);
    assert_eq!(warned(&log, "outlives"), 1);
}
