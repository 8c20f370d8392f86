//! Each metric moves when what it says happens.

#![expect(clippy::float_cmp, reason = "numbers are whole")]

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit};
use shardwise::core::holdings::OnDrainTimeout;
use shardwise::discovery::MemoryBackend;
use shardwise::requests::{Addressee, Held, Request, To};
use shardwise::settings::PolicySettings;
use shardwise::testing::TestFleet;
use shardwise::{
    ClaimName, GroupName, InstanceId, MaxLoss, OwnershipMode, Policy, PolicyName, ServiceState, ShardingFactory, ShardingService, Timing,
};

use crate::common::{World, eventually};

const SLOTS: u32 = 64;

/// A worker whose policy has its own name, so that its metrics are its own.
fn worker(world: &World, id: &str, link: MemoryBackend) -> ShardingService {
    let mut policy = Policy::new(PolicyName::new(id).expect("valid"), GroupName::new("group").expect("valid"));
    policy.ownership = OwnershipMode::Exclusive;
    policy.on_drain_timeout = OnDrainTimeout::Release;
    policy.placement.slots = SLOTS;
    policy.drain_timeout = Duration::from_secs(4);
    let mut settings = PolicySettings::new(policy);
    settings.discovery.backend = "test".into();
    settings.timing = Timing::new(world.ttl, None, Duration::from_millis(100)).expect("valid");
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(link)).clock(world.clock.clone());
    let factory = builder.instance_id(InstanceId::new(id).expect("valid")).build().expect("a valid factory");
    factory.create(id).expect("a known policy")
}

type Numbers = HashMap<Key, f64>;

/// Keeps the last value of each gauge, the sum of each counter and the number of values of each histogram.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Numbers>>);

/// One metric of it.
struct One(Seen, Key);

impl Seen {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().expect("whole")
    }

    fn one(&self, key: &Key) -> Arc<One> {
        self.numbers().entry(key.clone()).or_default();
        Arc::new(One(self.clone(), key.clone()))
    }

    /// The value under these labels.
    fn get(&self, name: &str, policy: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let has = |key: &Key, (name, value): (&str, &str)| key.labels().any(|label| label.key() == name && label.value() == value);
        let right = |key: &Key| key.name() == name && has(key, ("policy", policy)) && label.is_none_or(|label| has(key, label));
        self.numbers().iter().find(|(key, _)| right(key)).map(|(_, value)| *value)
    }

    /// Waits for a value in the runtime's time.
    async fn until(&self, name: &str, policy: &str, label: Option<(&str, &str)>, right: impl Fn(f64) -> bool) {
        let mut last = None;
        for _ in 0..4_000 {
            last = self.get(name, policy, label);
            if last.is_some_and(&right) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{name} of {policy} {label:?} is {last:?} after 20 s: {:?}", self.numbers());
    }
}

impl One {
    fn change(&self, change: impl FnOnce(&mut f64)) {
        change(self.0.numbers().entry(self.1.clone()).or_default());
    }
}

impl CounterFn for One {
    fn increment(&self, more: u64) {
        self.change(|sum| *sum += more as f64);
    }

    fn absolute(&self, sum: u64) {
        self.change(|value| *value = sum as f64);
    }
}

impl GaugeFn for One {
    fn increment(&self, more: f64) {
        self.change(|value| *value += more);
    }

    fn decrement(&self, less: f64) {
        self.change(|value| *value -= less);
    }

    fn set(&self, to: f64) {
        self.change(|value| *value = to);
    }
}

impl HistogramFn for One {
    fn record(&self, _value: f64) {
        self.change(|count| *count += 1.0);
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, key: KeyName, _unit: Option<Unit>, _text: SharedString) {
        assert!(key.as_str().ends_with("_total"));
    }

    fn describe_gauge(&self, _key: KeyName, _unit: Option<Unit>, text: SharedString) {
        assert!(!text.is_empty());
    }

    fn describe_histogram(&self, _key: KeyName, unit: Option<Unit>, _text: SharedString) {
        assert_eq!(unit, Some(Unit::Seconds));
    }

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }

    fn register_histogram(&self, key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}

/// Runs a story in paused time, with an exporter that sees all of it.
fn watched(seen: &Seen, story: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    metrics::with_local_recorder(seen, || runtime.block_on(story));
}

#[test]
fn each_metric_moves() {
    let seen = Seen::default();
    metrics::with_local_recorder(&seen, shardwise::metrics::describe);
    watched(&seen, story(&seen));
}

#[test]
fn a_group_that_waits_is_seen_until_an_operator_confirms() {
    let seen = Seen::default();
    watched(&seen, async {
        let still = "shardwise_stands_still";
        let mut policy = crate::common::policy();
        policy.max_loss = MaxLoss::percent(50);
        let name = policy.name.to_string();
        // Workers of one process and one policy share the gauge: who has changed last is seen.
        let mut fleet = TestFleet::start_with(4, policy).await;
        assert_eq!(seen.get(still, &name, None), Some(0.0), "there before it happens");
        (0..3).for_each(|i| fleet.kill(i));
        seen.until(still, &name, None, |is| is == 1.0).await;
        assert!(fleet.service(3).ownership().rebalancing_frozen());
        assert_eq!(fleet.confirm_loss().await, 1);
        seen.until(still, &name, None, |is| is == 0.0).await;
        drop(fleet);

        // Who is cut off does not know how the group goes on.
        let mut policy = crate::common::policy();
        policy.max_loss = MaxLoss::percent(50);
        let mut fleet = TestFleet::start_with(4, policy).await;
        (0..3).for_each(|i| fleet.kill(i));
        seen.until(still, &name, None, |is| is == 1.0).await;
        fleet.partition(3);
        eventually("it is fenced", || fleet.service(3).state() == ServiceState::Fenced).await;
        assert!(fleet.service(3).ownership().rebalancing_frozen(), "as far as it has heard");
        seen.until(still, &name, None, |is| is == 0.0).await;
    });
}

async fn story(seen: &Seen) {
    let world = World::new();
    let a = worker(&world, "a", world.store.link());
    assert!(a.fence("early").is_err());
    a.register_self().await.expect("joins");
    let all = f64::from(SLOTS);
    for name in ["shardwise_slots_owned", "shardwise_slots_wanted"] {
        seen.until(name, "a", None, |slots| slots == all).await;
    }
    seen.until("shardwise_state", "a", Some(("state", "active")), |is| is == 1.0).await;
    seen.until("shardwise_state", "a", Some(("state", "joining")), |is| is == 0.0).await;
    seen.until("shardwise_members", "a", Some(("state", "active")), |members| members == 1.0).await;
    seen.until("shardwise_fences_refused_total", "a", None, |refused| refused == 1.0).await;
    assert_eq!(seen.get("shardwise_overlaps_total", "a", None), Some(0.0), "there before it happens");
    seen.until("shardwise_renewal_seconds", "a", None, |times| times > 0.0).await;
    seen.until("shardwise_deadline_margin_seconds", "a", None, |left| left > 0.5 && left < 3.0).await;
    seen.until("shardwise_view_age_seconds", "a", None, |age| age < 3.0).await;
    let (revision, fingerprint) = ("shardwise_view_revision", "shardwise_view_fingerprint");
    let before = (seen.get(revision, "a", None), seen.get(fingerprint, "a", None));

    // Work in every slot does not end, and another worker comes.
    let guards: Vec<_> = (0..1_000_u32).filter_map(|key| a.enter(&key.to_string()).ok()).collect();
    assert!(!guards.is_empty());
    let link = world.store.link();
    let b = worker(&world, "b", link.clone());
    b.register_self().await.expect("joins");
    seen.until("shardwise_members", "a", Some(("state", "active")), |members| members == 2.0).await;
    assert!(before.0 < seen.get(revision, "a", None) && before.1 != seen.get(fingerprint, "a", None));
    seen.until("shardwise_slots_wanted", "b", None, |slots| slots > 10.0).await;
    assert_eq!(seen.get("shardwise_slots_owned", "b", None), Some(0.0), "what it is to have is not given back yet");
    seen.until("shardwise_drain_guard_age_seconds", "a", None, |age| age > 1.0).await;
    seen.until("shardwise_overlaps_total", "a", None, |overlaps| overlaps > 10.0).await;
    drop(guards);
    seen.until("shardwise_drain_guard_age_seconds", "a", None, |age| age == 0.0).await;
    seen.until("shardwise_slots_owned", "b", None, |slots| slots > 10.0).await;
    seen.until("shardwise_handover_seconds", "b", Some(("kind", "graceful")), |times| times > 0.0).await;
    assert_eq!(seen.get(fingerprint, "a", None), seen.get(fingerprint, "b", None), "they agree");
    assert!(seen.get("shardwise_rebalances_total", "a", Some(("cause", "members_changed"))) > Some(0.0));
    let lost = seen.get("shardwise_slots_lost_total", "a", Some(("cause", "members_changed")));
    assert_eq!(lost, seen.get("shardwise_slots_owned", "b", None));

    // That one is cut off.
    link.set_reachable(false);
    seen.until("shardwise_discovery_errors_total", "b", Some(("kind", "unavailable")), |errors| errors > 0.0).await;
    seen.until("shardwise_rebalances_total", "b", Some(("cause", "fenced")), |fenced| fenced == 1.0).await;
    seen.until("shardwise_slots_owned", "a", None, |slots| slots == all).await;
    seen.until("shardwise_handover_seconds", "a", Some(("kind", "emergency")), |times| times > 0.0).await;
    seen.until("shardwise_slots_gained_total", "a", Some(("cause", "members_changed")), |slots| Some(slots) == lost).await;
    seen.until("shardwise_view_age_seconds", "b", None, |age| age > 3.0).await;
    eventually("the other one is alone", || a.members().members().len() == 1).await;

    // One whose worker fails, alone with another.
    let works = Arc::new(AtomicBool::new(true));
    let c = worker(&world, "c", world.store.link());
    let is_well = Arc::clone(&works);
    c.health(move || {
        let works = is_well.load(Ordering::SeqCst);
        async move { if works { Ok(()) } else { Err("it was switched off".to_owned()) } }
    })
    .expect("watched once");
    c.register_self().await.expect("joins");
    seen.until("shardwise_worker_works", "c", None, |works| works == 1.0).await;
    assert_eq!(seen.get("shardwise_health_spared", "c", None), Some(0.0));
    a.deregister_self().await.expect("leaves");
    works.store(false, Ordering::SeqCst);
    seen.until("shardwise_worker_works", "c", None, |works| works == 0.0).await;
    seen.until("shardwise_health_spared", "c", None, |is| is == 1.0).await;
    assert_eq!(seen.get("shardwise_worker_suspected_total", "c", None), Some(0.0));
    c.suspect();
    assert_eq!(seen.get("shardwise_worker_suspected_total", "c", None), Some(1.0));

    // Its requests: one to itself, and one that it refuses.
    c.load(|| 7);
    c.on_request("x", |_| async { "x" }).expect("valid");
    c.on_held("x", |_: Held| async { "x" }).expect("exclusive");
    c.ask(&To::Member(c.instance_id()), Request::get("x"), Duration::from_secs(1)).await.expect("answered");
    let mut refused = Request::get("x");
    (refused.to, refused.name) = (Addressee::Holder, Some(ClaimName::new("singleton/none").expect("valid")));
    assert!(c.answer(refused).await.is_err());
    let labels = |kind, outcome| {
        seen.numbers().iter().any(|(key, number)| {
            let has = |name: &str, value: &str| key.labels().any(|label| label.key() == name && label.value() == value);
            key.name() == "shardwise_requests_total" && has("kind", kind) && has("outcome", outcome) && *number == 1.0
        })
    };
    assert!(labels("member", "answered"));
    assert_eq!(seen.get("shardwise_requests_waiting", "c", None), Some(0.0));
    assert_eq!(seen.get("shardwise_requests_refused_total", "c", Some(("kind", "not_mine"))), Some(1.0));
    // And one that it accepts, and whose handler panics.
    let panics = |_| async {
        assert!(std::hint::black_box(false), "it panics on purpose");
        "x"
    };
    c.on_request("panics", panics).expect("valid");
    c.tell(&To::Member(c.instance_id()), Request::get("panics"), Duration::from_secs(1)).await.expect("accepted");
    seen.until("shardwise_requests_unfinished_total", "c", None, |requests| requests == 1.0).await;
    seen.until("shardwise_load", "c", None, |load| load == 7.0).await;
    seen.until("shardwise_wide_keys", "c", None, |keys| keys == 0.0).await;
    seen.until("shardwise_sessions_open", "c", None, |sessions| sessions == 0.0).await;

    let table: BTreeSet<_> = shardwise::metrics::METRICS.iter().map(|metric| metric.name.to_owned()).collect();
    let numbers = seen.numbers();
    let recorded: BTreeSet<_> = numbers.keys().map(|key| key.name().to_owned()).collect();
    let unrecorded: Vec<_> = table.difference(&recorded).collect();
    assert!(unrecorded.is_empty(), "let this test do what these metrics say, and check their values: {unrecorded:?}");
    assert_eq!(recorded, table, "add what is recorded to the table in src/telemetry/metrics/mod.rs");
    let mut labels = numbers.keys().flat_map(Key::labels).map(Label::value);
    assert!(labels.all(|value| value != "early" && value.parse::<u32>().is_err()), "no key in a label");
}
