//! Members that leave and members that die are two things, and the log names both kinds of trouble.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

mod common;

use common::{World, eventually, policy};
use shardwise::core::{KeyPlacement, MemberState, PlacementKind};
use shardwise::{ServiceState, ShardingService};

/// Warnings, each with its fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::WARN {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().expect("whole").push(text.0);
        }
    }
}

impl Warnings {
    fn having(&self, part: &str) -> Vec<String> {
        self.0.lock().expect("whole").iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_hundred_that_leave_no_member_has_vanished() {
    let world = World::new();
    let watching = world.factory("observer");
    let observer = watching.observe("workers").await.expect("reachable");
    let warnings = Warnings::default();
    let _log = Registry::default().with(warnings.clone()).set_default();
    let stays = world.joined("stays").await;
    for round in 0..10 {
        let services = join_all((0..20).map(async |n| world.joined(&format!("w-{round}-{n}")).await)).await;
        eventually("all are seen", || observer.members().members().len() == 21).await;
        let left = join_all(services.iter().map(ShardingService::deregister_self)).await;
        assert!(left.iter().all(Result::is_ok));
        eventually("all are gone", || observer.members().members().len() == 1).await;
    }
    let departures = observer.departures();
    assert_eq!((departures.len(), departures.iter().filter(|gone| gone.vanished()).count()), (200, 0), "{departures:?}");
    assert_eq!(warnings.having("vanished"), Vec::<String>::new());
    assert_eq!(stays.members().members().len(), 1);
}

/// There the others take over when the record is gone, and not with the mark: a reader that looks seldom sees the mark all the same.
#[tokio::test(start_paused = true)]
async fn under_a_key_placement_too_a_leaver_is_seen_leaving() {
    let world = World::new();
    let mut by_key = policy();
    by_key.placement.kind = PlacementKind::Key(KeyPlacement::Modulo);
    let worker = |id: &str| world.factory_of(id, Arc::new(world.store.link()), by_key.clone());
    let stays = worker("stays").create("workers").expect("known");
    stays.register_self().await.expect("it joins");
    let leaves = worker("leaves").create("workers").expect("known");
    leaves.register_self().await.expect("it joins");
    eventually("both are seen", || stays.members().members().len() == 2).await;
    let leaving = tokio::spawn(async move { leaves.deregister_self().await });
    let (begun, mut drained) = (tokio::time::Instant::now(), 0);
    // Every 25 ms, as the slowest reader does.
    while stays.members().members().len() == 2 {
        assert!(begun.elapsed() < Duration::from_secs(5), "it is gone soon, because nobody has its keys meanwhile");
        tokio::time::sleep(Duration::from_millis(25)).await;
        drained += usize::from(stays.members().members().iter().any(|member| member.state == MemberState::Draining));
    }
    leaving.await.expect("no panic").expect("it leaves");
    assert!(drained >= 3 && begun.elapsed() < Duration::from_secs(1), "seen {drained} times within {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_handover_does_not_wait_for_the_leavers_record() {
    let world = World::new();
    let (stays, leaves) = (world.joined("stays").await, world.joined("leaves").await);
    eventually("both share", || stays.ownership().slots().len() < 16_384 && !leaves.ownership().slots().is_empty()).await;
    let leaving = leaves.clone();
    let left = tokio::spawn(async move { leaving.deregister_self().await });
    let begun = tokio::time::Instant::now();
    eventually("the other has everything", || stays.ownership().slots().len() == 16_384).await;
    assert!(begun.elapsed() < Duration::from_millis(100) && !left.is_finished(), "{:?}", begun.elapsed());
    left.await.expect("no panic").expect("it leaves");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_log_names_who_has_vanished_and_says_when_this_worker_is_fenced_and_back() {
    let world = World::new();
    let warnings = Warnings::default();
    let _log = Registry::default().with(warnings.clone()).set_default();
    let stays = world.joined("stays").await;
    let observer = world.factory("observer").observe("workers").await.expect("reachable");
    let link = world.store.link();
    let cut_off = world.factory_of("cut-off", Arc::new(link.clone()), policy()).create("workers").expect("a known policy");
    cut_off.register_self().await.expect("it joins");
    eventually("both are there", || stays.members().members().len() == 2).await;
    link.set_reachable(false);
    eventually("it is fenced", || cut_off.state() == ServiceState::Fenced).await;
    eventually("it has vanished", || stays.members().members().len() == 1).await;
    let vanished = warnings.having("member lost: its lease expired");
    assert!(vanished.len() == 1 && vanished[0].contains("cut-off"), "{vanished:?}");
    for gone in [observer.departures(), stays.departures()] {
        assert_eq!(gone.iter().map(|gone| (gone.instance_id.as_str(), gone.vanished())).collect::<Vec<_>>(), [("cut-off", true)]);
    }
    link.set_reachable(true);
    eventually("it is back", || cut_off.state() == ServiceState::Active).await;
    for (part, times) in [("fenced: this worker", 1), ("back: this worker", 1)] {
        let lines = warnings.having(part);
        assert!(lines.len() == times && lines[0].contains("cut-off"), "{part}: {lines:?}");
    }
}

/// Regression: it counted from when the worker noticed.
#[tokio::test(start_paused = true)]
async fn the_log_says_for_how_long_a_paused_worker_owned_nothing() {
    let world = World::new();
    let warnings = Warnings::default();
    let _log = Registry::default().with(warnings.clone()).set_default();
    let paused = world.joined("paused").await;
    // No timer fires in between, as in a process that is stopped.
    tokio::time::advance(4 * world.ttl).await;
    eventually("it noticed", || warnings.having("fenced: this worker").len() == 1).await;
    eventually("it is back", || paused.state() == ServiceState::Active).await;
    let back = warnings.having("back: this worker");
    let seconds = |line: &String| line.split("fenced_for=").nth(1)?.split_once("s ")?.0.parse::<f64>().ok();
    let fenced_for = back.first().and_then(seconds).unwrap_or_default();
    assert!(back.len() == 1 && (9.0..16.0).contains(&fenced_for), "its lease ended 3 s after a renewal: {back:?}");
}

#[tokio::test(start_paused = true)]
async fn members_that_stay_name_the_one_with_other_settings() {
    let world = World::new();
    let warnings = Warnings::default();
    let _log = Registry::default().with(warnings.clone()).set_default();
    let (stays, other) = (world.joined("stays").await, world.joined("other").await);
    eventually("both are there", || [&stays, &other].iter().all(|one| one.members().members().len() == 2)).await;
    let mut odd = policy();
    odd.placement.slots = 64;
    let odd = world.factory_of("odd", Arc::new(world.store.link()), odd).create("workers").expect("known");
    odd.register_self().await.expect_err("it is refused");
    eventually("both say so", || warnings.having("other members have other settings").len() == 2).await;
    let named = warnings.having("other members have other settings");
    assert!(named.iter().all(|line| line.contains("own nothing: [\"odd\"]; give all the same settings")), "{named:?}");
}
