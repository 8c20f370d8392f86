//! A fleet without its backend, and a fleet of which too many vanish at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shardwise::discovery::ErrorKind;

use crate::common::{World, eventually, policy};
use crate::scripted::{How, Scripted};
use shardwise::testing::TestFleet;
use shardwise::{BackendLoss, MaxLoss, Policy, ServiceState, ShardingService};

fn with(on_backend_loss: BackendLoss) -> Policy {
    let mut policy = policy();
    policy.on_backend_loss = on_backend_loss;
    policy
}

/// Half may vanish.
fn guarded() -> Policy {
    let mut policy = policy();
    policy.max_loss = MaxLoss::percent(50);
    policy
}

fn owned(fleet: &TestFleet, members: std::ops::Range<usize>) -> u32 {
    members
        .map(|i| fleet.service(i).ownership())
        .filter(|seen| seen.is_live_at(fleet.service(0).now()))
        .map(|seen| seen.slots().len())
        .sum()
}

/// An outage of a minute, seen by every member at once.
#[tokio::test(start_paused = true)]
async fn an_outage_stops_all_or_none_as_the_policy_says() {
    for (on_backend_loss, state, share) in [
        (BackendLoss::Stop, ServiceState::Fenced, 0),
        (BackendLoss::Keep { keep_for: Duration::from_mins(5) }, ServiceState::Stale, 16_384),
    ] {
        let mut fleet = TestFleet::start_with(3, with(on_backend_loss)).await;
        (0..3).for_each(|i| fleet.partition(i));
        tokio::time::sleep(Duration::from_mins(1)).await;
        for i in 0..3 {
            assert_eq!(fleet.service(i).state(), state, "worker-{i}");
        }
        assert_eq!(owned(&fleet, 0..3), share);
        (0..3).for_each(|i| fleet.heal(i));
        let healed = fleet.service(0).now();
        fleet.settled().await;
        let took = fleet.service(0).now().since(healed);
        assert!(took < Duration::from_secs(2), "back {took:?} after the backend");
    }
}

/// A runtime that was busy for 150 ms around the deadline was taken for a process that had been stopped.
#[tokio::test(start_paused = true)]
async fn a_busy_moment_at_the_deadline_does_not_undo_keep_and_standing_still_beyond_the_ttl_does() {
    const TTL: Duration = Duration::from_secs(3);
    for (before, stall, state) in [
        (Duration::from_millis(5), Duration::from_millis(150), ServiceState::Stale),
        (Duration::from_millis(5), Duration::from_millis(700), ServiceState::Stale),
        (TTL / 2, TTL + Duration::from_millis(100), ServiceState::Fenced),
    ] {
        let mut fleet = TestFleet::start_with(2, with(BackendLoss::Keep { keep_for: Duration::from_mins(5) })).await;
        let service = fleet.service(0).clone();
        (0..2).for_each(|i| fleet.partition(i));
        let deadline = service.ownership().deadline().expect("it is active");
        tokio::time::sleep(deadline.since(service.now()).saturating_sub(before)).await;
        fleet.pause(0);
        tokio::time::sleep(stall).await;
        fleet.resume(0);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(service.state(), state, "it stood still for {stall:?}");
        assert_eq!(service.ownership().slots().is_empty(), state == ServiceState::Fenced);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_view_is_not_kept_for_ever() {
    let keep_for = Duration::from_secs(20);
    let mut fleet = TestFleet::start_with(2, with(BackendLoss::Keep { keep_for })).await;
    fleet.partition(0);
    let service = fleet.service(0).clone();
    eventually("stale", || service.state() == ServiceState::Stale).await;
    let until = service.ownership().deadline().expect("it ends");
    assert!(service.owns("k") || fleet.service(1).owns("k"));
    eventually("fenced", || service.state() == ServiceState::Fenced).await;
    assert!(service.now().since(until) < Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn joining_twice_is_joining_once_even_while_stale() {
    let mut fleet = TestFleet::start_with(2, with(BackendLoss::Keep { keep_for: Duration::from_mins(5) })).await;
    fleet.partition(0);
    let service = fleet.service(0).clone();
    eventually("stale", || service.state() == ServiceState::Stale).await;
    service.register_self().await.expect("it is a member");
    assert_eq!(service.state(), ServiceState::Stale);
}

#[tokio::test(start_paused = true)]
async fn when_too_many_vanish_no_member_takes_over_what_they_had_until_an_operator_confirms() {
    let mut fleet = TestFleet::start_with(10, guarded()).await;
    let before = owned(&fleet, 6..10);
    (0..6).for_each(|i| fleet.kill(i));
    let service = fleet.service(9).clone();
    eventually("six of ten are seen to be gone", || service.members().members().len() == 4).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!((6..10).all(|i| fleet.service(i).ownership().rebalancing_frozen()));
    assert_eq!(owned(&fleet, 6..10), before);

    assert_eq!(fleet.confirm_loss().await, 4);
    fleet.settled().await;
    assert_eq!(owned(&fleet, 6..10), 16_384);
}

#[tokio::test(start_paused = true)]
async fn newcomers_stand_in_for_those_who_are_gone() {
    let mut fleet = TestFleet::start_with(10, guarded()).await;
    (0..6).for_each(|i| fleet.kill(i));
    let service = fleet.service(9).clone();
    eventually("nobody takes over", || service.ownership().rebalancing_frozen()).await;
    let newcomer = fleet.join().await;
    eventually("five of ten are enough", || !service.ownership().rebalancing_frozen()).await;
    fleet.settled().await;
    assert!(!fleet.service(newcomer).ownership().slots().is_empty());
}

/// An ordinary scale-down, however many leave at once.
#[tokio::test(start_paused = true)]
async fn leaving_in_good_order_is_no_loss() {
    let fleet = TestFleet::start_with(10, guarded()).await;
    let leavers: Vec<_> = (0..9).map(|i| fleet.service(i).clone()).collect();
    let leaving = leavers.iter().map(ShardingService::deregister_self);
    for left in futures::future::join_all(leaving).await {
        left.expect("it leaves");
    }
    let last = fleet.service(9).clone();
    eventually("the last owns everything", || last.ownership().slots().len() == 16_384).await;
}

/// Readers see the newest view alone: who did not look for 250 ms saw nine of ten die.
#[tokio::test(start_paused = true)]
async fn leaving_in_good_order_is_no_loss_to_members_that_look_away_for_a_while() {
    for stall in [300, 600, 1_200].map(Duration::from_millis) {
        let mut fleet = TestFleet::start_with(10, guarded()).await;
        let last = fleet.service(9).clone();
        fleet.pause(9);
        let mut leaving = tokio::task::JoinSet::new();
        for i in 0..9 {
            let service = fleet.service(i).clone();
            leaving.spawn(async move { service.deregister_self().await });
        }
        tokio::time::sleep(stall).await;
        fleet.resume(9);
        for left in leaving.join_all().await {
            left.expect("it leaves");
        }
        eventually("the last owns everything", || last.ownership().slots().len() == 16_384).await;
        assert!(!last.ownership().rebalancing_frozen(), "it looked away for {stall:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_what_vanished_is_taken_over() {
    let mut fleet = TestFleet::start_with(10, policy()).await;
    (0..6).for_each(|i| fleet.kill(i));
    fleet.settled().await;
    assert_eq!(fleet.confirm_loss().await, 0, "nobody stands still");
}

#[tokio::test(start_paused = true)]
async fn those_who_come_back_set_all_going_again() {
    let world = World::new();
    let join = async |id: &str| {
        let link = world.store.link();
        let service = world.factory_of(id, Arc::new(link.clone()), guarded()).create("workers").expect("a known policy");
        service.register_self().await.expect("it joins");
        (service, link)
    };
    let stays = join("a").await;
    let gone = [join("b").await, join("c").await, join("d").await];
    let share = || stays.0.ownership().slots().len();
    eventually("four members", || stays.0.members().members().len() == 4).await;
    let before = share();
    for (_, link) in &gone {
        link.set_reachable(false);
    }
    eventually("a stands still", || stays.0.ownership().rebalancing_frozen()).await;
    assert_eq!(share(), before);
    for (_, link) in &gone[..2] {
        link.set_reachable(true);
    }
    eventually("a goes on", || !stays.0.ownership().rebalancing_frozen() && share() > before).await;
}

/// A mark that cannot be taken back at once is taken back later; the others would wait for ever.
#[tokio::test(start_paused = true)]
async fn what_the_record_says_of_the_missing_is_written_in_the_end() {
    let world = World::new();
    let refused = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for id in ["a", "b", "c", "d"] {
        let link = world.store.link();
        let is_refused = Arc::clone(&refused);
        let backend = Scripted::new(link.clone(), move |(operation, _)| match operation {
            "update" if is_refused.load(Ordering::Relaxed) => How::Fails(ErrorKind::Unavailable),
            _ => How::Now,
        });
        let service = world.factory_of(id, Arc::new(backend), guarded()).create("workers").expect("a known policy");
        service.register_self().await.expect("it joins");
        workers.push((service, link));
    }
    eventually("four members", || workers.iter().all(|(service, _)| service.members().members().len() == 4)).await;
    for (_, link) in &workers[1..] {
        link.set_reachable(false);
    }
    let is_listed = || workers[0].0.members().members()[0].loss.is_some();
    eventually("a lists the missing members", is_listed).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    refused.store(true, Ordering::Relaxed);
    for (_, link) in &workers[1..] {
        link.set_reachable(true);
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    refused.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let marks = workers.iter().flat_map(|(service, _)| service.members().members().to_vec()).filter(|member| member.loss.is_some()).count();
    assert_eq!(marks, 0, "everybody is back");
}
