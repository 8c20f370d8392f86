//! Publishers as real processes on PostgreSQL. They are killed and paused while 64 writers write, then restarted one after the other, and
//! some are killed at rest to measure when their events flow again; with each sink. The short form of `cargo xtask soak outbox`.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod delivered;
mod destinations;
mod stage;
mod trouble;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::chance::Chance;
use common::eventually;
use common::process::Process;
use nix::sys::signal::Signal;
use serde_json::json;

use delivered::{NewEvents, delivered, lines, longest, slowest};
use stage::{PUBLISHERS, Stage};
use trouble::{Takeover, roll, takeovers, trouble};

const BATCH: u64 = 200;
const TTL: Duration = Duration::from_secs(3);
/// The time limit from a crash until the events of the crashed publisher flow again.
const TAKEOVER_MAX: Duration = Duration::from_secs(4);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

#[test]
fn nothing_is_lost_and_the_order_is_kept_whatever_happens_to_publishers() {
    lives("file");
}

#[test]
fn jetstream_has_each_event_once_whatever_happens_to_publishers() {
    lives("JetStream");
}

#[test]
fn redis_gets_each_event_in_order_whatever_happens_to_publishers() {
    lives("Redis");
}

#[test]
fn rabbitmq_gets_each_event_in_order_whatever_happens_to_publishers() {
    lives("RabbitMQ");
}

#[test]
fn a_webhook_gets_each_event_in_order_whatever_happens_to_publishers() {
    lives("webhook");
}

/// The broker is killed too.
#[test]
#[ignore = "compiles a broker, which takes many minutes: cargo xtask soak outbox-kafka"]
fn kafka_loses_nothing_and_keeps_the_order_whatever_happens() {
    lives("Kafka");
}

/// A run of four publishers with that sink. Lost, unordered, or unexplained repeated events fail the test; the rest is reported as
/// figures.
fn lives(sink: &str) {
    let (events, seconds) = (number("SHARDWISE_SOAK_EVENTS", 6_400), number("SHARDWISE_SOAK_SECONDS", 5));
    let (rolling, long) = ((seconds / 10).max(3), seconds > 60);
    let seed = number("SHARDWISE_SEED", u64::from(std::process::id()) | 1);
    eprintln!("{sink}: repeat with SHARDWISE_SEED={seed}");
    let (stage, mut chance) = (Stage::new(sink), Chance(seed));
    let mut publishers: Vec<Process> = (0..PUBLISHERS).map(|number| stage.publisher(number)).collect();

    let written = stage.write("trouble", events, Duration::from_secs(seconds), seed);
    let pause = Duration::from_millis(if long { 3_000 } else { 1_200 });
    let ((kills, stops, beyond), of_the_sink) = stage.kills_of_the_sink(|| trouble(&stage, &mut publishers, &written, &mut chance, pause));
    stage.all_is_delivered();
    let (seen, repeated, _) = delivered(&stage, 0);
    assert_eq!(seen, written.events(), "lost");
    // The most events one publisher can have in flight: a batch being sent, one that waits, and two whose marks are not written.
    // When the sink's server is killed, every publisher has so many.
    let several = kills + beyond + of_the_sink * PUBLISHERS as u64;
    let repeats_max = if stage.drops_repeats() { 0 } else { several * 4 * BATCH };
    assert!(repeated <= repeats_max, "{repeated} repeated by {kills} kills, {beyond} long pauses and {of_the_sink} kills of the sink");

    // Events that still wait after the last kill must not count for the restart.
    let served = stage.all_are_served("served");
    // Watched from before the first event is written: on a busy machine the writers may have ended when the first event arrives.
    let (before, new_events) = (lines(&stage), NewEvents::behind_the_last(&stage));
    let more = stage.write("rolling", events * rolling / seconds, Duration::from_secs(rolling), seed + 1);
    let over = Arc::new(AtomicBool::new(false));
    let watcher = slowest(new_events, &more, &over);
    eventually("the first of them come", Duration::from_mins(3), || (lines(&stage) > before).then_some(()));
    roll(&stage, &mut publishers);
    let rolled_at = Instant::now();
    let under_load = !more.all();
    eventually("the writers are done", Duration::from_mins(5), || more.all().then_some(()));
    stage.all_is_delivered();
    over.store(true, Ordering::SeqCst);
    // Delays without any restart come from the machine, the database or the sink.
    let [gap, steady] = longest(&watcher.join().unwrap(), rolled_at);
    let (all, _, rolled) = delivered(&stage, before);
    assert_eq!(all, written.events() + served + more.events(), "lost");
    assert_eq!(rolled, 0, "repeated by a rolling restart");

    let (takeovers, events) = takeovers(&stage, &mut publishers, long);
    let in_time = takeovers.iter().any(Takeover::in_time);
    let takeovers: Vec<_> = takeovers.iter().map(|takeover| takeover.took).collect();
    assert!(in_time, "{takeovers:?} from a kill to the last event of the killed one's aggregates, with a TTL of {TTL:?}");
    stage.all_is_delivered();
    assert_eq!(delivered(&stage, before).0, all + events, "lost");
    let figures = json!({
        "sink": sink, "events": all, "kills": kills, "stops": stops, "repeated": repeated, "sink_kills": of_the_sink,
        "rolled_repeated": rolled, "under_load": under_load,
        "takeover_ms": takeovers.iter().copied().map(millis).max(),
        "takeovers": takeovers.iter().copied().map(millis).collect::<Vec<_>>(),
        "gap_ms": millis(gap), "steady_gap_ms": millis(steady),
        "lost": 0, "out_of_order": 0,
    });
    eprintln!("{figures}");
    if let Some(path) = std::env::var_os("SHARDWISE_SOAK_FIGURES") {
        writeln!(std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap(), "{figures}").unwrap();
    }
    for mut publisher in publishers {
        publisher.signal(Signal::SIGTERM);
        assert_eq!(publisher.ends("after SIGTERM").code, Some(0));
    }
}
