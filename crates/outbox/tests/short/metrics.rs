//! Each metric of the table changes when its event happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Outbox, Running, SLOTS, TestSharding, events, eventually};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use shardwise::SlotSet;
use shardwise_outbox::exercise::{ScriptedReply, ScriptedSink};
use shardwise_outbox::sink::Refusal;
use shardwise_outbox::{OutboxPublisher, Poison, PublisherOptions, Store};
use sqlx::Connection;

const LIMIT: Duration = Duration::from_mins(3);

/// Adds the counters since the last read; of gauges the highest value is kept, because reading resets them.
fn read(snapshotter: &Snapshotter, sums: &mut BTreeMap<String, f64>) {
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let name = key.key().name().to_owned();
        assert_eq!(key.key().labels().map(|label| (label.key(), label.value())).collect::<Vec<_>>(), [("sink", "script")], "{name}");
        match value {
            DebugValue::Counter(count) => *sums.entry(name).or_default() += count as f64,
            DebugValue::Gauge(gauge) => {
                let most = sums.entry(name).or_default();
                *most = most.max(gauge.into_inner());
            }
            DebugValue::Histogram(values) => *sums.entry(name).or_default() += values.len() as f64,
        }
    }
}

async fn publish(poison: Poison, recorder: &DebuggingRecorder, sums: &mut BTreeMap<String, f64>) {
    let outbox = Outbox::new().await;
    // `bad` is refused permanently, `slow` only at its first attempt, and one hangs until it is sent again.
    let (tried, hung) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let sink = ScriptedSink::new(move |event| match event.aggregate_id.as_str() {
        "bad" => ScriptedReply::Refuse(Refusal::permanent("422")),
        "slow" if !tried.swap(true, Ordering::SeqCst) => ScriptedReply::Refuse(Refusal::retryable("503")),
        "hangs" if !hung.swap(true, Ordering::SeqCst) => ScriptedReply::Hang,
        _ => ScriptedReply::Accept,
    });
    outbox.insert_plainly([events("good", 1..=5), events("bad", 1..=1), events("slow", 1..=1), events("hangs", 1..=1)].concat()).await;
    if poison == Poison::Block {
        let mut conn = outbox.connection().await;
        sqlx::query("UPDATE outbox SET parked_at = 0 WHERE id = 'good-1'").execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }
    let options = PublisherOptions {
        poison,
        backoff: Duration::from_millis(10),
        poll: Duration::from_millis(50),
        send_timeout: Duration::from_millis(300),
        ..PublisherOptions::default()
    };
    let store = outbox.store().await;
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink.clone()), Arc::new(TestSharding::full("one")))
        .unwrap()
        .options(options)
        .unwrap();
    let running = Running::start(publisher);
    let snapshotter = recorder.snapshotter();
    let left = u64::from(poison == Poison::Block);
    eventually("all that can be is delivered, and that is counted", LIMIT, async || {
        read(&snapshotter, sums);
        store.status().await.unwrap().pending == left && sink.arrived().len() >= 7 && running.stats.snapshot().in_memory == 0
    })
    .await;
    if poison == Poison::Block {
        eventually("a reading of the backlog sees the blocked aggregate", LIMIT, async || {
            read(&snapshotter, sums);
            let seen = |name: &str| sums.get(&format!("shardwise_outbox_{name}")).copied().unwrap_or_default();
            seen("backlog_complete") > 0.0 && seen("blocked_aggregates") > 0.0 && seen("pending_events") > 0.0
        })
        .await;
    }
    // Another publisher takes a slot, which a fenced write or a touch detects.
    if poison == Poison::Discard {
        let mut conn = outbox.connection().await;
        sqlx::query("UPDATE outbox_slot SET epoch = epoch + 1, incarnation = NULL").execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        eventually("it finds out", LIMIT, async || running.stats.snapshot().fenced > 0).await;
    }
    read(&snapshotter, sums);
    running.stop().await;
    read(&snapshotter, sums);
}

/// On one thread, because the recorder is thread-local.
#[tokio::test]
async fn each_metric_moves_with_what_it_counts() {
    let (recorder, mut sums) = (DebuggingRecorder::new(), BTreeMap::new());
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut seen = BTreeMap::new();
    for poison in [Poison::Block, Poison::Park, Poison::Discard] {
        publish(poison, &recorder, &mut sums).await;
        for (name, value) in &sums {
            let most: &mut f64 = seen.entry(name.clone()).or_default();
            *most = most.max(*value);
        }
    }
    let page = include_str!("../../metrics.md");
    let known: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next()).collect();
    assert!(seen.keys().all(|name| known.contains(&name.as_str())), "{seen:?}");
    assert_eq!(seen.len(), known.len(), "{seen:?}");
    for (name, least) in [
        ("delivered", 18.0),
        ("retried", 3.0),
        ("parked", 1.0),
        ("discarded", 1.0),
        ("blocked", 1.0),
        ("repeated", 1.0),
        ("fenced_writes", 1.0),
    ] {
        let value = seen[&format!("shardwise_outbox_{name}_total")];
        assert!(value >= least, "{name}: {value} of {least}; {seen:?}");
    }
    let moved = [
        "publish_latency_seconds",
        "mark_latency_seconds",
        "held_slots",
        "wanted_slots",
        "backlog_complete",
        "pending_events",
        "blocked_aggregates",
    ];
    for name in moved {
        assert!(seen[&format!("shardwise_outbox_{name}")] > 0.0, "{name}: {seen:?}");
    }
}

#[tokio::test]
async fn a_backlog_is_counted_up_to_its_limit() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    let all: Vec<_> = (0..10).flat_map(|n| events(&n.to_string(), 1..=2)).collect();
    outbox.insert_plainly(all).await;
    store.place_new(100).await.unwrap();
    let exact = store.backlog(11).await.unwrap().unwrap();
    assert_eq!((exact.pending, exact.parked, exact.blocked_aggregates, exact.complete), (20, 0, 0, true));
    assert!(exact.oldest_pending_age.is_some());
    let bounded = store.backlog(4).await.unwrap().unwrap();
    assert_eq!((bounded.pending, bounded.complete), (8, false), "at least so many");
}

/// As when two outboxes shared a ring: this publisher owns part of the slots, and the rest has no publisher.
#[tokio::test]
async fn events_that_no_living_publisher_holds_are_seen_in_the_metrics() {
    let (recorder, mut sums) = (DebuggingRecorder::new(), BTreeMap::new());
    let _guard = metrics::set_default_local_recorder(&recorder);
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    outbox.insert_plainly((0..40).flat_map(|n| events(&n.to_string(), 1..=1)).collect()).await;
    let sharding = TestSharding::of("one", SlotSet::from_slots(SLOTS, 0..SLOTS / 2));
    let running = Running::start(
        OutboxPublisher::new(Arc::new(store.clone()), Arc::new(ScriptedSink::accepting()), Arc::new(sharding.clone())).unwrap(),
    );
    let snapshotter = recorder.snapshotter();
    eventually("its own events are delivered, and the others are counted", LIMIT, async || {
        read(&snapshotter, &mut sums);
        let pending = store.status().await.unwrap().pending;
        let seen = |name: &str| sums.get(&format!("shardwise_outbox_{name}")).copied().unwrap_or_default();
        pending < 40 && seen("stuck") > 0.0 && seen("unpublished_events") >= pending as f64
    })
    .await;
    let stuck = store.status().await.unwrap().stuck(Duration::from_secs(1));
    assert!(stuck[0].detail.contains("the only living publisher does not hold"), "{stuck:?}");
    sharding.own(SlotSet::full(SLOTS));
    eventually("all are delivered", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    assert_eq!(store.status().await.unwrap().stuck(Duration::from_secs(1)), []);
    running.stop().await;
}
