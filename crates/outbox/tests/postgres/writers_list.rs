//! The writers' list: what writers have listed is read directly, and gets a row of the publishers' only if it needs one.

use std::time::{Duration, Instant};

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::store::{EventRun, FetchRequest, HeadUpdate, Outcome, PublisherRegistration};
use shardwise_outbox::{PostgresStore, Store as _, postgres};
use sqlx::Executor as _;

use crate::common::{LISTED, Outbox, insert};
use crate::publishing::delivered;
use crate::shared::{events, eventually};
use crate::strikes::{WAITS, holder, number, read};

const LIMIT: Duration = Duration::from_mins(1);
const HEADS: &str = "SELECT count(*) FROM outbox_head";
const ON_THE_WRITERS_LIST: &str = "SELECT count(*) FROM outbox_aggregate WHERE last_seq <> drained_seq";

fn request(after: Option<u64>, events_max: usize, except_aggregates: Vec<i64>) -> FetchRequest {
    FetchRequest { after, events_max, bytes_max: 1 << 24, except_slots: vec![], except_aggregates }
}

async fn runs(store: &PostgresStore, me: &PublisherRegistration) -> Vec<EventRun> {
    store.fetch(me, &request(None, 1_000, vec![])).await.unwrap().runs
}

fn ids(runs: &[EventRun]) -> Vec<&str> {
    runs.iter().flat_map(|run| &run.events).map(|event| event.id.as_str()).collect()
}

#[tokio::test]
async fn an_aggregate_with_one_event_leaves_no_row_of_the_publishers() {
    let outbox = Outbox::new().await;
    let (store, me) = holder(&outbox).await;
    for n in 1..=3 {
        outbox.insert([events("a", n..=n), events("b", n..=n)].concat()).await;
        assert_eq!(number(&outbox, ON_THE_WRITERS_LIST).await, 2);
        let outcomes = read(&store, &me).await;
        assert_eq!(outcomes.len(), 2);
        assert_eq!(store.record(&me, &outcomes, n == 3).await.unwrap(), []);
        // Repeated, as after an answer that was lost.
        assert_eq!(store.record(&me, &outcomes, n == 3).await.unwrap(), []);
        assert_eq!(outbox.execute(LISTED).await.len(), 0, "struck off");
        assert_eq!((number(&outbox, HEADS).await, number(&outbox, "SELECT count(*) FROM outbox_aggregate").await), (0, 0), "forgotten");
        assert_eq!(read(&store, &me).await, []);
    }
    assert_eq!(number(&outbox, "SELECT count(*) FROM outbox").await, 4, "the last ones are deleted with their marks");
    let swept = store.sweep(Duration::ZERO, 0, 3).await.unwrap();
    assert_eq!((swept.deleted, swept.resume.is_some()), (3, true));
    let swept = store.sweep(Duration::ZERO, swept.resume.unwrap(), 3).await.unwrap();
    assert_eq!((swept.deleted, swept.resume), (1, None), "the events of forgotten aggregates are all delivered");
}

#[tokio::test]
async fn a_writer_that_holds_the_row_during_the_mark_loses_nothing_and_repeats_nothing() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let (store, me) = holder(&outbox).await;
    let mut writer = outbox.connection().await;
    writer.execute("BEGIN").await.unwrap();
    insert(&mut writer, events("a", 2..=2).remove(0)).await.unwrap();
    let outcomes = read(&store, &me).await;
    assert_eq!(store.record(&me, &outcomes, false).await.unwrap(), []);
    assert_eq!(number(&outbox, "SELECT count(*) FROM outbox_head WHERE listed AND hash IS NOT NULL").await, 1, "on the publishers' list");
    assert_eq!(read(&store, &me).await, [], "the second one is not there yet");
    writer.execute("COMMIT").await.unwrap();
    let second = runs(&store, &me).await;
    assert_eq!(ids(&second), ["a-2"]);
    let outcomes = read(&store, &me).await;
    assert_eq!(store.record(&me, &outcomes, false).await.unwrap(), []);
    assert_eq!(outbox.execute(LISTED).await.len(), 0, "struck off from both lists");
    outbox.insert(events("a", 3..=3)).await;
    assert_eq!(ids(&runs(&store, &me).await), ["a-3"], "behind what the publishers' row says");
}

#[tokio::test]
async fn a_failure_of_what_was_read_directly_is_charged_and_survives_a_takeover() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=2)).await;
    let (store, me) = holder(&outbox).await;
    let run = runs(&store, &me).await.remove(0);
    let then = HeadUpdate::Retry {
        sequence: run.events[0].sequence,
        attempts: 1,
        failures: 1,
        retry_in: Duration::ZERO,
        error: "the sink is full".to_owned(),
    };
    let outcome = Outcome { aggregate: run.aggregate, hold: run.hold, through: None, then };
    assert_eq!(store.record(&me, std::slice::from_ref(&outcome), false).await.unwrap(), []);
    assert_eq!(store.record(&me, std::slice::from_ref(&outcome), false).await.unwrap(), [], "repeated");
    store.leave(&me).await.unwrap();
    store.close().await;
    let store = outbox.store().await;
    let next = PublisherRegistration { publisher: "next".into(), incarnation: Incarnation::new(2), ..me.clone() };
    store.register(&next).await.unwrap();
    store.take(&next, &SlotSet::full(next.slots)).await.unwrap();
    let again = runs(&store, &next).await;
    assert_eq!(ids(&again), ["a-1"], "alone, as any retry");
    assert_eq!((again[0].trouble.attempts, again[0].trouble.failures), (1, 1));
    assert_eq!(store.record(&me, &[outcome], false).await.unwrap(), [run.hold], "the former one is fenced");
}

/// A number is visible later than a higher one of another aggregate if its transaction commits later.
#[tokio::test]
async fn what_commits_below_the_cursor_is_read_in_the_next_lap_and_in_order() {
    let outbox = Outbox::new().await;
    let (store, me) = holder(&outbox).await;
    let mut writer = outbox.connection().await;
    writer.execute("BEGIN").await.unwrap();
    insert(&mut writer, events("low", 1..=1).remove(0)).await.unwrap();
    outbox.insert([events("high", 1..=1), events("higher", 1..=1)].concat()).await;
    let first = store.fetch(&me, &request(None, 1, vec![])).await.unwrap();
    assert_eq!(ids(&first.runs), ["high-1"]);
    insert(&mut writer, events("low", 2..=2).remove(0)).await.unwrap();
    writer.execute("COMMIT").await.unwrap();
    let (mut except, mut after, mut came) = (vec![first.runs[0].aggregate], first.resume, Vec::new());
    assert!(after.is_some(), "it was cut short");
    while after.is_some() {
        let fetched = store.fetch(&me, &request(after, 10, except.clone())).await.unwrap();
        except.extend(fetched.runs.iter().map(|run| run.aggregate));
        came.extend(ids(&fetched.runs).into_iter().map(str::to_owned));
        after = fetched.resume;
    }
    came.retain(|id| id.starts_with("low"));
    assert_eq!(came, ["low-1", "low-2"]);
}

/// Then no lap ends.
#[tokio::test]
async fn what_commits_late_is_read_soon_while_more_is_written_than_delivered() {
    let outbox = Outbox::new().await;
    let (store, me) = holder(&outbox).await;
    let mut writer = outbox.connection().await;
    writer.execute("BEGIN").await.unwrap();
    insert(&mut writer, events("low", 1..=1).remove(0)).await.unwrap();
    let (mut after, mut written, mut is_committed, begun) = (None, 0, false, Instant::now());
    loop {
        assert!(begun.elapsed() < LIMIT, "it is never read");
        written += 2;
        outbox.insert([events(&format!("o{written}"), 1..=1), events(&format!("e{written}"), 1..=1)].concat()).await;
        let fetched = store.fetch(&me, &request(after, 1, vec![])).await.unwrap();
        if ids(&fetched.runs) == ["low-1"] {
            break;
        }
        after = fetched.resume;
        assert!(after.is_some(), "there is always more");
        let then =
            |run: &EventRun| Outcome { aggregate: run.aggregate, hold: run.hold, through: Some(run.through), then: HeadUpdate::Next };
        assert_eq!(store.record(&me, &fetched.runs.iter().map(then).collect::<Vec<_>>(), false).await.unwrap(), []);
        if !is_committed && written >= 10 {
            writer.execute("COMMIT").await.unwrap();
            is_committed = true;
        }
    }
}

/// `INSERT … ON CONFLICT (id) DO NOTHING` leaves them, and so does deleting events by hand.
#[tokio::test]
async fn listed_aggregates_without_events_delay_nothing() {
    let outbox = Outbox::new().await;
    let (store, me) = holder(&outbox).await;
    outbox.insert((0..50).flat_map(|n| events(&format!("gone-{n}"), 1..=1)).collect()).await;
    outbox.execute("DELETE FROM outbox").await;
    outbox.insert(events("there", 1..=1)).await;
    let mut after = None;
    for _ in 0..50 {
        let fetched = store.fetch(&me, &request(after, 10, vec![])).await.unwrap();
        if !fetched.runs.is_empty() {
            return assert_eq!(ids(&fetched.runs), ["there-1"]);
        }
        assert!(fetched.more, "the next reading follows at once");
        after = fetched.resume;
    }
    panic!("it is never read");
}

/// Schemas before this one let writers give them.
#[tokio::test]
async fn a_wrong_hash_of_a_publishers_row_is_replaced() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=3)).await;
    let (store, me) = holder(&outbox).await;
    let first = store.fetch(&me, &request(None, 1, vec![])).await.unwrap().runs.remove(0);
    let outcome = Outcome { aggregate: first.aggregate, hold: first.hold, through: Some(first.through), then: HeadUpdate::Next };
    assert_eq!(store.record(&me, &[outcome], false).await.unwrap(), []);
    let right = number(&outbox, "SELECT hash FROM outbox_head").await;
    outbox.execute("UPDATE outbox_head SET hash = hash + 1").await;
    outbox.execute(&format!("SELECT outbox_place(ARRAY[aggregate], ARRAY[{right}], ARRAY[done_seq + 1], true) FROM outbox_head")).await;
    assert_eq!(number(&outbox, "SELECT hash FROM outbox_head").await, right);
}

#[tokio::test]
async fn the_status_counts_the_writers_list_and_knows_which_of_it_nobody_publishes() {
    let outbox = Outbox::new().await;
    outbox.insert((0..50).flat_map(|n| events(&n.to_string(), 1..=2)).collect()).await;
    let store = outbox.store().await;
    let status = store.status().await.unwrap();
    assert_eq!((status.pending, status.unpublished), (100, 100), "no publisher is alive");
    let backlog = store.backlog(10).await.unwrap().unwrap();
    assert!(backlog.pending == 10 && !backlog.complete, "{backlog:?}");
    let (_, me) = holder(&outbox).await;
    assert_eq!(store.status().await.unwrap().unpublished, 0);
    let mine: usize = runs(&store, &me).await.iter().filter(|run| run.hold.slot < me.slots / 2).map(|run| run.events.len()).sum();
    outbox.execute("UPDATE outbox_slot SET incarnation = NULL WHERE slot < 4").await;
    assert_eq!(store.status().await.unwrap().unpublished, mine as u64);
    assert!(0 < mine && mine < 100, "{mine}");
}

/// A writer that comes later puts it back, and is sent behind the others.
#[tokio::test]
async fn what_is_on_the_publishers_list_leaves_the_writers_list() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=3)).await;
    let (store, me) = holder(&outbox).await;
    let first = store.fetch(&me, &request(None, 1, vec![])).await.unwrap().runs.remove(0);
    let outcome = Outcome { aggregate: first.aggregate, hold: first.hold, through: Some(first.through), then: HeadUpdate::Next };
    assert_eq!(store.record(&me, &[outcome], false).await.unwrap(), []);
    assert_eq!((number(&outbox, ON_THE_WRITERS_LIST).await, number(&outbox, HEADS).await), (1, 1));
    assert_eq!(ids(&runs(&store, &me).await), ["a-2", "a-3"]);
    assert_eq!(number(&outbox, ON_THE_WRITERS_LIST).await, 0);
    assert_eq!(store.status().await.unwrap().pending, 2);
    outbox.insert(events("a", 4..=4)).await;
    assert_eq!(number(&outbox, ON_THE_WRITERS_LIST).await, 1);
    assert_eq!(store.status().await.unwrap().pending, 3, "counted once");
    store.leave(&me).await.unwrap();
    let ids: Vec<_> = delivered(&outbox).await.into_iter().map(|event| event.id).collect();
    assert_eq!(ids, ["a-2", "a-3", "a-4"]);
    assert_eq!(outbox.execute(LISTED).await.len(), 0);
}

#[tokio::test]
async fn what_is_on_the_writers_list_survives_the_way_down_and_up_again() {
    let outbox = Outbox::new().await;
    outbox.insert([events("a", 1..=2), events("b", 1..=1)].concat()).await;
    let (store, me) = holder(&outbox).await;
    let b = store.fetch(&me, &request(None, 1_000, vec![])).await.unwrap().runs;
    let b = b.iter().find(|run| ids(std::slice::from_ref(run)) == ["b-1"]).unwrap();
    let outcome = Outcome { aggregate: b.aggregate, hold: b.hold, through: Some(b.through), then: HeadUpdate::Next };
    assert_eq!(store.record(&me, &[outcome], false).await.unwrap(), []);
    store.leave(&me).await.unwrap();
    store.close().await;
    let above = &postgres::MIGRATIONS[5..];
    for down in above.iter().rev().map(|migration| migration.down) {
        outbox.execute(&format!("BEGIN; {down}; COMMIT")).await;
    }
    assert_eq!(number(&outbox, "SELECT count(*) FROM outbox_head WHERE listed").await, 1, "of the aggregate that was on the writers' list");
    outbox.insert([events("a", 3..=3), events("b", 2..=2)].concat()).await;
    for up in above.iter().map(|migration| migration.up) {
        outbox.execute(&format!("BEGIN; {up}; COMMIT")).await;
    }
    outbox.insert([events("a", 4..=4), events("b", 3..=3), events("c", 1..=1)].concat()).await;
    let arrived = delivered(&outbox).await;
    for (aggregate, expected) in [("a", &["a-1", "a-2", "a-3", "a-4"][..]), ("b", &["b-2", "b-3"]), ("c", &["c-1"])] {
        let ids: Vec<_> = arrived.iter().filter(|event| event.aggregate_id == aggregate).map(|event| event.id.as_str()).collect();
        assert_eq!(ids, expected);
    }
}

/// A mark that was given up may wait in the server, with the snapshot of its beginning, while later ones are recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_mark_puts_nothing_on_the_publishers_list_behind_what_is_delivered() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=2)).await;
    let (store, me) = holder(&outbox).await;
    let first = store.fetch(&me, &request(None, 1, vec![])).await.unwrap().runs.remove(0);
    let second = runs(&store, &me).await.remove(0);
    assert_eq!((ids(std::slice::from_ref(&first)), ids(std::slice::from_ref(&second))), (vec!["a-1"], vec!["a-1", "a-2"]));
    let mut other = outbox.connection().await;
    other.execute("BEGIN; SELECT 1 FROM outbox_slot FOR UPDATE").await.unwrap();
    let mark = Outcome { aggregate: first.aggregate, hold: first.hold, through: Some(first.through), then: HeadUpdate::Next };
    let late = tokio::spawn({
        let (store, me) = (store.clone(), me.clone());
        async move {
            loop {
                match store.record(&me, std::slice::from_ref(&mark), false).await {
                    Err(error) if error.is_retryable() => {}
                    answer => return answer.unwrap(),
                }
            }
        }
    });
    eventually("the mark waits for its slot", Duration::from_secs(30), async || !outbox.execute(WAITS).await.is_empty()).await;
    let struck = format!("SELECT outbox_strike('{{{}}}', '{{{}}}')", second.aggregate, second.through);
    assert_eq!(outbox.execute(&struck).await.len(), 1);
    outbox.insert(events("a", 3..=3)).await;
    other.execute("COMMIT").await.unwrap();
    assert_eq!(late.await.unwrap(), []);
    assert_eq!(number(&outbox, HEADS).await, 0);
    assert_eq!(ids(&runs(&store, &me).await), ["a-3"]);
}

/// Otherwise all others would pass over what a publisher does not send.
#[tokio::test]
async fn what_its_publisher_does_not_read_moves_to_the_publishers_list() {
    let outbox = Outbox::new().await;
    outbox.insert((0..20).flat_map(|n| events(&n.to_string(), 1..=2)).collect()).await;
    let (former, me) = holder(&outbox).await;
    former.leave(&me).await.unwrap();
    let store = outbox.store().await;
    let next = PublisherRegistration { publisher: "next".into(), incarnation: Incarnation::new(2), ..me };
    store.register(&next).await.unwrap();
    let begun = std::time::Instant::now();
    eventually("they have moved", Duration::from_mins(1), async || {
        assert_eq!(store.fetch(&next, &request(None, 1_000, vec![])).await.unwrap().runs, [], "it holds no slot");
        number(&outbox, ON_THE_WRITERS_LIST).await == 0
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_secs(5), "a publisher that keeps up has them sent by then");
    let first = "(SELECT min(o.seq) FROM outbox AS o WHERE o.aggregate = h.aggregate)";
    let undelivered = format!("SELECT count(*) FROM outbox_head AS h WHERE listed AND hash IS NOT NULL AND done_seq < {first}");
    assert_eq!(number(&outbox, &undelivered).await, 20);
    store.take(&next, &SlotSet::full(next.slots)).await.unwrap();
    let all = runs(&store, &next).await;
    assert!(all.len() == 20 && all.iter().all(|run| run.events.len() == 2), "{all:?}");
}
