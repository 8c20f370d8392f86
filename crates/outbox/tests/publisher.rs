//! The publisher as a whole: order, crashes, failures, handover.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::{Outbox, Running, SLOTS, Said, TestSharding, events, eventually, within};
use shardwise::discovery::Clock;
use shardwise::{Moment, Serves, SlotSet};
use shardwise_outbox::exercise::{ScriptedReply, ScriptedSink, StoreHarness as _};
use shardwise_outbox::sink::{Acceptance, Refusal, SinkLimits, read_events};
use shardwise_outbox::{Delivery, ErrorKind, FileSink, NewEvent, OutboxPublisher, Poison, PublisherOptions, Sink, Store};
use shardwise_testkit::Lag;
use tokio::sync::Semaphore;

const LIMIT: Duration = Duration::from_mins(3);

fn options() -> PublisherOptions {
    PublisherOptions { backoff: Duration::from_millis(10), poll: Duration::from_millis(200), ..PublisherOptions::default() }
}

async fn publisher(outbox: &Outbox, sink: impl Sink, sharding: &TestSharding) -> OutboxPublisher {
    OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink), Arc::new(sharding.clone())).unwrap().options(options()).unwrap()
}

async fn pending(outbox: &Outbox) -> u64 {
    outbox.store().await.status().await.unwrap().pending
}

async fn drained(outbox: &Outbox) {
    let store = outbox.store().await;
    eventually("nothing is pending", LIMIT, async || store.status().await.unwrap().pending == 0).await;
}

/// First deliveries of each aggregate must be 1, 2, 3 … up to `last`, with repetitions anywhere.
fn assert_in_order(arrived: &[Delivery], aggregates: usize, last: u64) {
    let mut by_key: BTreeMap<String, u64> = BTreeMap::new();
    for event in arrived {
        let seen = by_key.entry(event.key()).or_default();
        assert!(event.sequence <= *seen + 1, "{} {} after {seen}", event.key(), event.sequence);
        *seen = (*seen).max(event.sequence);
    }
    assert_eq!(by_key.len(), aggregates);
    assert!(by_key.values().all(|seen| *seen == last), "{by_key:?}");
}

fn half(first: bool) -> SlotSet {
    SlotSet::from_slots(SLOTS, if first { 0..SLOTS / 2 } else { SLOTS / 2..SLOTS })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_arrives_once_and_in_order_while_writers_write() {
    let outbox = Outbox::new().await;
    let sink = ScriptedSink::accepting();
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await);
    for round in 0..20 {
        let batch = (0..10).flat_map(|n| events(&n.to_string(), round * 5 + 1..=round * 5 + 5)).collect();
        outbox.insert_plainly(batch).await;
    }
    drained(&outbox).await;
    assert_eq!(sink.arrived().len(), 1_000, "no repetition without a failure");
    assert_in_order(&sink.arrived(), 10, 100);
    eventually("all is counted", LIMIT, async || running.stats.snapshot().delivered == 1_000).await;
    assert_eq!((running.stats.snapshot().held_slots, running.stats.snapshot().last_error), (SLOTS, None));
    running.stop().await;
    let status = outbox.store().await.status().await.unwrap();
    assert_eq!((status.publishers.len(), status.free_slots), (0, SLOTS), "a graceful stop leaves nothing behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_publishers_move_slots_about_without_repetition_or_disorder() {
    let outbox = Outbox::new().await;
    let sink = ScriptedSink::accepting();
    let shardings: Vec<_> = ["one", "two", "three"].map(|name| TestSharding::of(name, SlotSet::empty(SLOTS))).into();
    let mut running = Vec::new();
    for sharding in &shardings {
        running.push(Running::start(publisher(&outbox, sink.clone(), sharding).await));
    }
    for round in 0..30u32 {
        for (n, sharding) in (0..).zip(&shardings) {
            sharding.own(SlotSet::from_slots(SLOTS, (0..SLOTS).filter(|slot| (slot / 7 + round) % 3 == n)));
        }
        let from = u64::from(round) * 4 + 1;
        outbox.insert_plainly((0..40).flat_map(|n| events(&n.to_string(), from..from + 4)).collect()).await;
    }
    drained(&outbox).await;
    assert_in_order(&sink.arrived(), 40, 120);
    assert_eq!(sink.arrived().len(), 40 * 120, "a handover repeats nothing");
    for publisher in running {
        assert_eq!(publisher.stats.snapshot().fenced, 0);
        publisher.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_waits_neither_for_the_ttl_nor_for_the_poll() {
    // Much longer than the test may take.
    let hour = Duration::from_hours(1);
    let outbox = Outbox::new().await;
    let (a, b) = (TestSharding::full("one").with_ttl(hour), TestSharding::of("two", SlotSet::empty(SLOTS)).with_ttl(hour));
    let start = async |sharding: &TestSharding| {
        let publisher = publisher(&outbox, ScriptedSink::accepting(), sharding).await;
        Running::start(publisher.options(PublisherOptions { poll: hour, ..options() }).unwrap())
    };
    let (one, two) = (start(&a).await, start(&b).await);
    eventually("one holds everything", LIMIT, async || one.stats.snapshot().held_slots == SLOTS).await;
    for round in 0..5 {
        let (from, to) =
            if round % 2 == 0 { ((&a, half(true)), (&b, half(false))) } else { ((&b, SlotSet::empty(SLOTS)), (&a, SlotSet::full(SLOTS))) };
        from.0.own(from.1);
        to.0.own(to.1.clone());
        let receiver = if round % 2 == 0 { &two } else { &one };
        let wanted = to.1.len();
        eventually("the slots have changed hands", LIMIT, async || receiver.stats.snapshot().held_slots == wanted).await;
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_another_publisher_takes_over_within_the_ttl() {
    let outbox = Outbox::new().await;
    let sink = ScriptedSink::accepting();
    let ttl = Duration::from_secs(2);
    let crashing = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one").with_ttl(ttl)).await);
    eventually("one holds everything", LIMIT, async || crashing.stats.snapshot().held_slots == SLOTS).await;
    outbox.insert_plainly((0..10).flat_map(|n| events(&n.to_string(), 1..=5)).collect()).await;
    drained(&outbox).await;
    let lag = Lag::begin();
    crashing.crash().await;
    outbox.insert_plainly((0..10).flat_map(|n| events(&n.to_string(), 6..=9)).collect()).await;
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("two")).await);
    let took = eventually("everything is delivered", LIMIT, async || sink.arrived().len() >= 90).await;
    let late = lag.allowance();
    assert!(took < ttl + Duration::from_secs(1) + late, "TTL {ttl:?}, took {took:?}, {late:?} for this machine");
    assert_in_order(&sink.arrived(), 10, 9);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_publisher_finds_itself_fenced_and_marks_nothing() {
    let outbox = Outbox::stopped().await;
    outbox.insert_plainly(events("a", 1..=3)).await;
    // Its clock stops between fetch and mark, as for a stopped process: it neither touches nor notices its deadline.
    let frozen = Clock::custom(|| Moment::from_nanos(1 << 40));
    let (permits, late) = (Arc::new(Semaphore::new(0)), ScriptedSink::accepting());
    let slow = Slow { sink: late.clone(), permits: Arc::clone(&permits) };
    let paused = Running::start(publisher(&outbox, slow, &TestSharding::full("one")).await.clock(frozen));
    eventually("the send is on its way", LIMIT, async || paused.stats.snapshot().in_memory == 3).await;
    outbox.advance(Duration::from_mins(1)).await;
    let sink = ScriptedSink::accepting();
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("two")).await);
    drained(&outbox).await;
    assert_eq!(sink.arrived().len(), 3);
    permits.add_permits(1);
    eventually("it finds itself fenced", LIMIT, async || paused.stats.snapshot().fenced == 1).await;
    assert_eq!((late.arrived().len(), paused.stats.snapshot().delivered), (3, 0), "sent twice, marked once");
    let epochs = (late.arrived()[0].epoch, sink.arrived()[0].epoch);
    assert!(epochs.0 < epochs.1, "{epochs:?}: a consumer can tell the late one");
    running.stop().await;
    paused.crash().await;
}

/// A sink that needs a permit for each delivery.
struct Slow {
    sink: ScriptedSink,
    permits: Arc<Semaphore>,
}

#[async_trait]
impl Sink for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        self.permits.acquire().await.unwrap().forget();
        self.sink.deliver(batch).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_burns_no_attempts_and_ends_by_itself() {
    let outbox = Outbox::new().await;
    let up = Arc::new(AtomicBool::new(false));
    let sink = ScriptedSink::new({
        let up = Arc::clone(&up);
        move |_| if up.load(Ordering::SeqCst) { ScriptedReply::Accept } else { ScriptedReply::Refuse(Refusal::retryable("503")) }
    });
    outbox.insert_plainly((0..50).flat_map(|n| events(&n.to_string(), 1..=2)).collect()).await;
    let options = PublisherOptions { max_attempts: 1, backoff: Duration::from_millis(2), ..options() };
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await.options(options).unwrap());
    eventually("it is taken to be down", LIMIT, async || running.stats.snapshot().destinations_down > 0).await;
    let tried = sink.tried().len();
    eventually("it is probed", LIMIT, async || sink.tried().len() >= tried + 5).await;
    let (stats, status) = (running.stats.snapshot(), outbox.store().await.status().await.unwrap());
    assert_eq!((stats.blocked, stats.delivered, status.pending, status.blocked_aggregates), (0, 0, 100, 0));
    assert_eq!(stats.last_error.as_deref(), Some("503"));
    let mut conn = outbox.connection().await;
    let attempts: i64 = sqlx::query_scalar("SELECT sum(attempts) FROM outbox_aggregate").fetch_one(&mut conn).await.unwrap();
    assert_eq!(attempts, 0);
    up.store(true, Ordering::SeqCst);
    drained(&outbox).await;
    assert_in_order(&sink.arrived(), 50, 2);
    eventually("it is taken to be up", LIMIT, async || running.stats.snapshot().destinations_down == 0).await;
    running.stop().await;
}

/// The command shows warnings only. One aggregate is enough. On one thread, because the log is thread-local.
#[tokio::test]
async fn the_log_warns_once_of_a_sink_that_is_down_and_says_when_it_answers_again() {
    let (outbox, up) = (Outbox::new().await, Arc::new(AtomicBool::new(false)));
    let (said, _log) = Said::start();
    let warnings = |text: &str| said.lines().into_iter().filter(|line| line.contains("WARN") && line.contains(text)).collect::<Vec<_>>();
    let sink = ScriptedSink::new({
        let up = Arc::clone(&up);
        move |_| if up.load(Ordering::SeqCst) { ScriptedReply::Accept } else { ScriptedReply::Refuse(Refusal::retryable("503\nbusy")) }
    });
    outbox.insert_plainly(events("a", 1..=2)).await;
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await);
    // Regression: before the sink was taken to be down nothing was logged.
    eventually("the first refusal is logged", LIMIT, async || !warnings("an event was refused and is tried again").is_empty()).await;
    let first = warnings("an event was refused and is tried again");
    assert!(first[0].contains("sink=\"script\"") && first[0].contains("error=\"503 busy\""), "{first:?}");
    eventually("it warns", LIMIT, async || !warnings("refuses every event").is_empty()).await;
    eventually("it is counted", LIMIT, async || running.stats.snapshot().destinations_down == 1).await;
    let tried = sink.tried().len();
    eventually("it is tried again", LIMIT, async || sink.tried().len() >= tried + 3).await;
    let lines = warnings("refuses every event");
    assert!(matches!(&lines[..], [line] if line.contains("sink=\"script\"") && line.contains("error=\"503 busy\"")), "{lines:?}");
    assert_eq!(warnings("answers again"), Vec::<String>::new());
    up.store(true, Ordering::SeqCst);
    drained(&outbox).await;
    eventually("it says that it is over", LIMIT, async || warnings("answers again").len() == 1).await;
    eventually("that is counted", LIMIT, async || running.stats.snapshot().destinations_down == 0).await;
    running.stop().await;
}

fn poison(id: &'static str, refusal: Refusal) -> ScriptedSink {
    ScriptedSink::new(move |event| if event.id == id { ScriptedReply::Refuse(refusal.clone()) } else { ScriptedReply::Accept })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poisonous_event_blocks_its_own_aggregate_only() {
    let outbox = Outbox::new().await;
    let sink = poison("5-2", Refusal::retryable("cannot digest"));
    let options = PublisherOptions { max_attempts: 3, ..options() };
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await.options(options).unwrap());
    let mut written = 0;
    // An attempt is charged only if something else was accepted since the previous one, so other events keep coming.
    let store = outbox.store().await;
    eventually("the aggregate is blocked", LIMIT, async || {
        written += 1;
        outbox.insert_plainly((0..10).flat_map(|n| events(&n.to_string(), [written])).collect()).await;
        store.status().await.unwrap().blocked_aggregates == 1
    })
    .await;
    eventually("the others are done", LIMIT, async || pending(&outbox).await == written - 1).await;
    let blocked = store.status().await.unwrap().blocked.remove(0);
    assert_eq!((blocked.key.as_str(), blocked.error.as_str()), ("order/5", "cannot digest"));
    assert!(sink.tried().iter().filter(|event| event.id == "5-2").count() >= 4, "three charged, and the first is never charged");
    eventually("it is counted", LIMIT, async || running.stats.snapshot().blocked == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn park_sets_the_event_aside_and_goes_on() {
    let outbox = Outbox::new().await;
    let sink = poison("5-2", Refusal::permanent("too large"));
    outbox.insert_plainly((0..10).flat_map(|n| events(&n.to_string(), 1..=4)).collect()).await;
    let options = PublisherOptions { poison: Poison::Park, ..options() };
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await.options(options).unwrap());
    drained(&outbox).await;
    assert_eq!(sink.arrived().len(), 39);
    let of_five: Vec<_> = sink.arrived().into_iter().filter(|event| event.aggregate_id == "5").map(|event| event.sequence).collect();
    assert_eq!(of_five, [1, 3, 4]);
    assert_eq!(outbox.store().await.status().await.unwrap().parked, 1);
    eventually("it is counted", LIMIT, async || running.stats.snapshot().parked == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_never_answers_delays_only_its_own_aggregate() {
    let outbox = Outbox::new().await;
    let limits = SinkLimits { mixed: false, concurrency: 4, ..SinkLimits::default() };
    let sink =
        ScriptedSink::new(|event| if event.aggregate_id == "5" { ScriptedReply::Hang } else { ScriptedReply::Accept }).with_limits(limits);
    outbox.insert_plainly((0..10).flat_map(|n| events(&n.to_string(), 1..=4)).collect()).await;
    let options = PublisherOptions { send_timeout: Duration::from_millis(300), ..options() };
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await.options(options).unwrap());
    eventually("the others are delivered", LIMIT, async || sink.arrived().len() == 36).await;
    eventually("the send is given up and tried again", LIMIT, async || sink.tried().len() >= 36 + 2).await;
    eventually("that is counted", LIMIT, async || {
        let stats = running.stats.snapshot();
        stats.repeated >= 4 && stats.retried >= 1
    })
    .await;
    assert!(running.stats.snapshot().last_error.unwrap().contains("has not answered within 300ms"));
    running.stop().await;
    assert_eq!(pending(&outbox).await, 4);
}

/// A gateway to three services, distinguished by the aggregate's type: one needs two seconds for each event, one is down, and one is fast.
#[derive(Clone, Default)]
struct Gateway {
    arrived: Arc<Mutex<Vec<Delivery>>>,
}

impl Gateway {
    fn sequences(&self, kind: &str) -> BTreeMap<String, Vec<u64>> {
        let mut by_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for event in self.arrived.lock().unwrap().iter().filter(|event| event.aggregate_type == kind) {
            by_key.entry(event.key()).or_default().push(event.sequence);
        }
        by_key
    }

    fn count(&self, kind: &str) -> u64 {
        self.sequences(kind).values().map(Vec::len).sum::<usize>() as u64
    }
}

#[async_trait]
impl Sink for Gateway {
    fn name(&self) -> &'static str {
        "gateway"
    }

    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_events: 1, concurrency: 8, mixed: false, ..SinkLimits::default() }
    }

    fn destination(&self, event: &Delivery) -> Option<String> {
        Some(event.aggregate_type.clone())
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        match batch[0].aggregate_type.as_str() {
            "report" => return Acceptance::up_to(0, Refusal::retryable("503")),
            "invoice" => tokio::time::sleep(Duration::from_secs(2)).await,
            _ => {}
        }
        self.arrived.lock().unwrap().extend(batch.iter().cloned());
        Acceptance::all(&batch)
    }
}

/// The slow service alone would need a minute and a half for what waits for it, and everything that is read ahead would wait there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_destination_and_one_that_is_down_delay_no_event_for_another() {
    let (outbox, gateway) = (Outbox::new().await, Gateway::default());
    let of = |kind: &'static str, aggregates: u64| {
        (0..aggregates).map(move |n| NewEvent::new(kind, n.to_string(), "Changed", "{}")).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        outbox.insert_plainly([of("invoice", 150), of("report", 50)].concat()).await;
    }
    let options = PublisherOptions { batch: 20, max_attempts: 2, ..options() };
    let running = Running::start(publisher(&outbox, gateway.clone(), &TestSharding::full("one")).await.options(options).unwrap());
    eventually("the slow one is slow, and the other one down", LIMIT, async || {
        let stats = running.stats.snapshot();
        stats.destinations_slow == 1 && stats.destinations_down == 1
    })
    .await;
    for round in 1..=5 {
        outbox.insert_plainly(of("order", 20)).await;
        eventually("orders pass all the while", LIMIT, async || gateway.count("order") == round * 20).await;
    }
    let invoices = gateway.count("invoice");
    assert!(invoices < 150, "{invoices} of 300 invoices were sent before the last order");
    let mut conn = outbox.connection().await;
    let said = "SELECT count(*) FROM outbox_aggregate WHERE last_error LIKE '%the destination invoice is slow%'";
    let said: i64 = sqlx::query_scalar(said).fetch_one(&mut conn).await.unwrap();
    assert!(said > 0, "the outbox says which one is slow");
    let kept = running.stats.snapshot();
    assert!(kept.in_memory <= 2 * 20 + 8 && kept.blocked == 0, "{kept:?}");
    eventually("invoices go on", LIMIT, async || gateway.count("invoice") >= invoices + 6).await;
    running.stop().await;
    assert!(gateway.sequences("order").values().all(|sequences| *sequences == [1, 2, 3, 4, 5]));
    assert!(gateway.sequences("invoice").values().all(|sequences| [&[1][..], &[1, 2]].contains(&&sequences[..])), "each once, in order");
    assert_eq!(pending(&outbox).await, 2 * 50 + 300 - gateway.count("invoice"), "nothing is lost");
    let charged = "SELECT sum(attempts + iif(key LIKE 'invoice/%', failures, 0)) FROM outbox_aggregate";
    let charged: i64 = sqlx::query_scalar(charged).fetch_one(&mut conn).await.unwrap();
    assert_eq!(charged, 0, "nothing is charged, and what was put back has not failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_publishers_share_a_file_and_it_reads_back_in_order() {
    let outbox = Outbox::new().await;
    let path = outbox.dir.path().join("events.jsonl");
    outbox.insert_plainly((0..50).flat_map(|n| events(&n.to_string(), 1..=20)).collect()).await;
    let mut running = Vec::new();
    for (name, first) in [("one", true), ("two", false)] {
        let sink = FileSink::new(&path, "/outbox/test");
        let options = PublisherOptions { batch: 17, ..options() };
        running.push(Running::start(publisher(&outbox, sink, &TestSharding::of(name, half(first))).await.options(options).unwrap()));
    }
    drained(&outbox).await;
    for publisher in running {
        assert!(publisher.stats.snapshot().delivered > 0);
        publisher.stop().await;
    }
    // A publisher that is paused beyond its TTL sends again what it has not marked: an event that is not the next one was there before.
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for event in read_events(&path).unwrap() {
        let event = event.unwrap();
        let last = last.entry(event.key.clone()).or_default();
        assert!(event.sequence <= *last + 1, "{} of {} after {last}", event.sequence, event.key);
        *last = event.sequence.max(*last);
    }
    assert_eq!(last.into_values().collect::<Vec<_>>(), [20; 50]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_zero_deletes_with_the_mark_and_holes_are_passed_over() {
    let outbox = Outbox::new().await;
    outbox.insert_plainly([events("a", 1..=6), events("b", 1..=3)].concat()).await;
    let mut conn = outbox.connection().await;
    sqlx::query("DELETE FROM outbox WHERE id IN ('a-1', 'a-3', 'a-6', 'b-1', 'b-2', 'b-3')").execute(&mut conn).await.unwrap();
    let sink = ScriptedSink::accepting();
    let options = PublisherOptions { retention: Duration::ZERO, ..options() };
    let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await.options(options).unwrap());
    drained(&outbox).await;
    let ids: Vec<_> = sink.arrived().into_iter().map(|event| event.id).collect();
    assert_eq!(ids, ["a-2", "a-4", "a-5"]);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox").fetch_one(&mut conn).await.unwrap();
    assert_eq!(left, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_behind_a_hole_larger_than_a_batch_is_delivered() {
    for (batch, count, hole) in [(10, 30, 1..=10), (10, 30, 5..=27), (1, 6, 1..=1), (1, 6, 3..=5)] {
        let outbox = Outbox::new().await;
        outbox.insert_plainly([events("a", 1..=count), events("b", 1..=count)].concat()).await;
        let mut conn = outbox.connection().await;
        let delete = sqlx::query("DELETE FROM outbox WHERE seq BETWEEN ? AND ?");
        delete.bind(*hole.start()).bind(*hole.end()).execute(&mut conn).await.unwrap();
        let sink = ScriptedSink::accepting();
        let options = PublisherOptions { batch, ..options() };
        let running = Running::start(publisher(&outbox, sink.clone(), &TestSharding::full("one")).await.options(options).unwrap());
        drained(&outbox).await;
        let left: Vec<_> = (1..=count).filter(|n| !hole.contains(&i64::try_from(*n).unwrap())).collect();
        for aggregate in ["a", "b"] {
            let arrived = sink.arrived().into_iter().filter(|event| event.aggregate_id == aggregate);
            assert_eq!(arrived.map(|event| event.sequence).collect::<Vec<_>>(), left, "batch {batch}, hole {hole:?}");
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn a_publisher_with_another_number_of_slots_is_refused() {
    let outbox = Outbox::new().await;
    let one = Running::start(publisher(&outbox, ScriptedSink::accepting(), &TestSharding::full("one")).await);
    eventually("one is there", LIMIT, async || one.stats.snapshot().held_slots == SLOTS).await;
    let other = TestSharding::of("two", SlotSet::full(16));
    let refused = within("refused", LIMIT, publisher(&outbox, ScriptedSink::accepting(), &other).await.run(one.shutdown.clone())).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherSlots);
    assert!(error.to_string().contains("64 slots (one is alive), this one has 16"), "{error}");
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_and_says_so() {
    let outbox = Outbox::new().await;
    outbox.insert_plainly((0..20).flat_map(|n| events(&n.to_string(), 1..=5)).collect()).await;
    let mut conn = outbox.connection().await;
    let pages: u32 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut conn).await.unwrap();
    // The file may not grow; laying out the slots and marking need pages.
    let store = shardwise_outbox::SqliteStore::open(outbox.config().pages_max(pages)).await.unwrap();
    let sink = ScriptedSink::accepting();
    let many = TestSharding::of("one", SlotSet::full(4_096));
    let publisher =
        OutboxPublisher::new(Arc::new(store), Arc::new(sink.clone()), Arc::new(many.clone())).unwrap().options(options()).unwrap();
    let running = Running::start(publisher);
    eventually("it says what is wrong", LIMIT, async || {
        running.stats.snapshot().last_error.is_some_and(|error| error.contains("the disk is full: free some space"))
    })
    .await;
    assert!(!running.task.is_finished(), "it tries again");
    running.stop().await;
    assert_eq!(pending(&outbox).await, 100);
    let running = Running::start(
        OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink.clone()), Arc::new(many)).unwrap().options(options()).unwrap(),
    );
    drained(&outbox).await;
    assert_in_order(&sink.arrived(), 20, 5);
    running.stop().await;
}

#[tokio::test]
async fn options_that_are_not_allowed_are_refused() {
    let outbox = Outbox::new().await;
    let wrong = PublisherOptions { batch: 0, ..options() };
    let error = publisher(&outbox, ScriptedSink::accepting(), &TestSharding::full("one")).await.options(wrong).unwrap_err();
    assert_eq!(error.to_string(), "batch is 0: a number from 1 to 10000 is allowed");
}

/// The database has no rows for slots to fence, so nothing would ever be sent.
#[tokio::test]
async fn a_sharding_without_slots_is_refused() {
    let outbox = Outbox::new().await;
    let no_slots = TestSharding::of("one", SlotSet::empty(0));
    let sink = || Arc::new(ScriptedSink::accepting());
    let error = OutboxPublisher::new(Arc::new(outbox.store().await), sink(), Arc::new(no_slots)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Settings);
    assert!(error.to_string().contains("no slots") && error.to_string().contains("placement = \"ring\""), "{error}");
    let nothing_yet = TestSharding::of("one", SlotSet::empty(SLOTS));
    OutboxPublisher::new(Arc::new(outbox.store().await), sink(), Arc::new(nothing_yet)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_delivered_promptly_by_polling_and_at_once_by_a_nudge() {
    let outbox = Outbox::new().await;
    let sink = ScriptedSink::accepting();
    let poll = Duration::from_secs(30);
    let options = PublisherOptions { poll, ..options() };
    let publisher = publisher(&outbox, sink.clone(), &TestSharding::full("one")).await.options(options).unwrap();
    let (nudge, stats, shutdown) = (publisher.nudge_handle(), publisher.stats(), tokio_util::sync::CancellationToken::new());
    let task = tokio::spawn(publisher.run(shutdown.clone()));
    eventually("it is there", LIMIT, async || stats.snapshot().held_slots == SLOTS).await;
    for n in 1..=10 {
        outbox.insert_plainly(vec![NewEvent::new("order", "a", "OrderChanged", "{}")]).await;
        if n % 2 == 0 {
            nudge.nudge();
        }
        let took = eventually("it is delivered", LIMIT, async || sink.arrived().len() == n).await;
        assert!(took < poll / 4, "{took:?}");
    }
    shutdown.cancel();
    within("stop", LIMIT, task).await.unwrap().unwrap();
}

/// Its group would own slots of an outbox that no member publishes.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_whose_group_serves_something_else_stops_before_it_takes_anything() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=3)).await;
    let own = shardwise_outbox::serves(&outbox.store().await, "orders").await.unwrap();
    for other in [Serves::Keys, Serves::Outbox { id: "0ther".into(), name: "orders".into() }] {
        let sink = ScriptedSink::accepting();
        let sharding = TestSharding::full("one").serving(other.clone());
        let running = Running::start(publisher(&outbox, sink.clone(), &sharding).await);
        let error = within("it stops", LIMIT, running.task).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Settings);
        let said = error.to_string();
        assert!(said.contains(&other.to_string()) && said.contains(own.id()) && said.contains("create_serving"), "{said}");
        assert_eq!(outbox.store().await.status().await.unwrap().publishers, []);
        assert!(sink.tried().is_empty());
    }
    let sharding = TestSharding::full("one").serving(own);
    let running = Running::start(publisher(&outbox, ScriptedSink::accepting(), &sharding).await);
    drained(&outbox).await;
    running.stop().await;
}
