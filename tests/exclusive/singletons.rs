//! Work that runs on exactly one member.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwise::{Epoch, Run, ShardingService};

use super::{World, common, eventually, joined, policy, service};

/// Where work of one name runs now, and under which epochs it ever ran, in order.
#[derive(Default)]
struct WorkLog {
    now: Vec<&'static str>,
    ever: Vec<(&'static str, Epoch)>,
}

type Shown = Arc<Mutex<WorkLog>>;

/// Shows it as running as long as it lives: work that is lost is dropped where it awaits.
struct Here(&'static str, Shown);

impl Here {
    fn at(id: &'static str, shown: Shown) -> Self {
        log(&shown).now.push(id);
        Self(id, shown)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        log(&self.1).now.retain(|id| *id != self.0);
    }
}

fn log(log: &Shown) -> std::sync::MutexGuard<'_, WorkLog> {
    log.lock().expect("whole")
}

/// Offers to run it until it is cancelled.
fn offer(service: &ShardingService, id: &'static str, shown: &Shown) -> Run {
    let shown = Arc::clone(shown);
    let singleton = service.singleton("leader").expect("exclusive");
    singleton.run(move |context| {
        let shown = Arc::clone(&shown);
        async move {
            log(&shown).ever.push((id, context.epoch()));
            let _here = Here::at(id, shown);
            context.cancel().cancelled().await;
            Ok::<(), String>(())
        }
    })
}

fn only(shown: &Shown) -> Option<&'static str> {
    let now = log(shown).now.clone();
    assert!(now.len() < 2, "it runs at {now:?}");
    now.first().copied()
}

#[tokio::test(start_paused = true)]
async fn it_runs_at_one_and_moves_when_that_one_leaves_or_dies() {
    let (world, shown) = (World::new(), Shown::default());
    let links = ["a", "b", "c"].map(|_| world.store.link());
    let ids = ["a", "b", "c"];
    let mut fleet = Vec::new();
    for (id, link) in ids.into_iter().zip(&links) {
        let service = world.factory_of(id, Arc::new(link.clone()), policy()).create("workers").expect("known");
        service.register_self().await.expect("joins");
        let run = offer(&service, id, &shown);
        fleet.push((id, service, run));
    }
    eventually("it runs", || only(&shown).is_some()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let first = only(&shown).expect("it still runs");
    let at = fleet.iter().position(|(id, ..)| *id == first).expect("one of them");
    let (_, leaver, _run) = fleet.remove(at);
    leaver.deregister_self().await.expect("leaves");
    eventually("it runs elsewhere", || only(&shown).is_some_and(|id| id != first)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let second = only(&shown).expect("it still runs");
    let died = world.clock.now();
    links[ids.iter().position(|id| *id == second).expect("one of them")].set_reachable(false);
    eventually("it runs at the last", || only(&shown).is_some_and(|id| id != first && id != second)).await;
    let took = world.clock.now().since(died);
    assert!(took <= Duration::from_secs(4), "TTL 3 s, took {took:?}");
    let epochs: Vec<_> = log(&shown).ever.iter().map(|(_, epoch)| *epoch).collect();
    assert!(epochs.is_sorted() && epochs.len() >= 3, "{epochs:?}");
}

#[tokio::test(start_paused = true)]
async fn what_fails_or_panics_is_begun_again_with_growing_pauses() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let begun = Arc::new(Mutex::new(Vec::new()));
    let (times, clock) = (Arc::clone(&begun), world.clock.clone());
    let _run = a.singleton("fails").expect("exclusive").run(move |context| {
        let count = {
            let mut times = times.lock().expect("whole");
            times.push((clock.now(), context.epoch()));
            times.len()
        };
        async move {
            assert_ne!(count, 2, "a mistake in the user's code");
            if count < 5 { Err("not yet") } else { Ok(()) }
        }
    });
    eventually("it was begun five times", || begun.lock().expect("whole").len() == 5).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    let begun = begun.lock().expect("whole").clone();
    assert_eq!(begun.len(), 5, "what has ended well is not begun again");
    let pauses: Vec<_> = begun.windows(2).map(|pair| pair[1].0.since(pair[0].0).as_millis()).collect();
    assert!(pauses.iter().zip([500, 1_000, 2_000, 4_000]).all(|(pause, least)| (least..least + 400).contains(pause)), "{pauses:?}");
    assert!(begun.iter().all(|(_, epoch)| *epoch == begun[0].1), "all under one epoch");
}

#[tokio::test(start_paused = true)]
async fn many_names_are_spread_over_the_members() {
    const NAMES: usize = 30;
    let world = World::new();
    let fleet = [joined(&world, "a").await, joined(&world, "b").await, joined(&world, "c").await];
    let mut runs = Vec::new();
    for service in &fleet {
        for name in 0..NAMES {
            let singleton = service.singleton(&format!("n{name}")).expect("exclusive");
            runs.push(singleton.run(|context| async move {
                context.cancel().cancelled().await;
                Ok::<(), String>(())
            }));
        }
    }
    let held = |service: &ShardingService| service.ownership().names().count();
    eventually("each has about a third", || fleet.iter().map(held).sum::<usize>() == NAMES && fleet.iter().all(|s| held(s) <= 11)).await;
}

/// The placement assigns it to a member that runs nothing under that name.
#[tokio::test(start_paused = true)]
async fn a_name_that_one_member_offers_runs_there() {
    let world = World::new();
    let fleet = [joined(&world, "a").await, joined(&world, "b").await, joined(&world, "c").await];
    for (id, service) in ["a", "b", "c"].into_iter().zip(&fleet) {
        let shown = Shown::default();
        let run = offer(service, id, &shown);
        eventually("it runs where it is offered", || only(&shown) == Some(id)).await;
        run.stop().await;
        assert_eq!(only(&shown), None, "stopped and waited for");
        eventually("its claim is given back", || service.ownership().names().count() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_singleton_needs_exclusive_ownership() {
    let world = World::new();
    let eventual = world.factory_of("a", Arc::new(world.store.link()), common::policy());
    let said = eventual.create("workers").expect("known").singleton("x").expect_err("eventual").to_string();
    assert_eq!(
        said,
        "singleton \"x\": policy workers has ownership = \"eventual\", under which two members may run it at once; use a policy with ownership = \"exclusive\" and \
         its own group_name, because all members of a group have the same ownership"
    );
    assert!(service(&world, "c", policy()).singleton("").is_err() || service(&world, "c", policy()).singleton("\0").is_err());
}

/// Two runs of one name in one worker hold the same claim, and still do not work at once.
#[tokio::test(start_paused = true)]
async fn of_two_runs_of_one_name_in_one_worker_the_second_waits_for_the_first() {
    let (world, shown) = (World::new(), Shown::default());
    let a = joined(&world, "a").await;
    let (first, second) = (offer(&a, "first", &shown), offer(&a, "second", &shown));
    eventually("it runs", || only(&shown) == Some("first")).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(only(&shown), Some("first"));
    first.stop().await;
    eventually("the other one runs", || only(&shown) == Some("second")).await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_work_that_does_not_end_takes_no_longer_than_a_drain() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let begun = Arc::new(Mutex::new(false));
    let counted = Arc::clone(&begun);
    let run = a.singleton("deaf").expect("exclusive").run(move |_| {
        *counted.lock().expect("whole") = true;
        std::future::pending::<Result<(), String>>()
    });
    eventually("it runs", || *begun.lock().expect("whole")).await;
    let stopped = world.clock.now();
    run.stop().await;
    assert!(world.clock.now().since(stopped) <= Duration::from_secs(3), "drain_timeout is 2 s");
}
