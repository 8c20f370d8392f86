//! Failover to a standby: a complete standby stops no publisher, and a lagging one is detected.

use std::sync::Arc;
use std::time::Duration;

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::exercise::{ScriptedReply, ScriptedSink, StoreHarness as _};
use shardwise_outbox::store::{EventRun, FetchRequest, HeadUpdate, Hold, Outcome, PublisherRegistration, TouchReply};
use shardwise_outbox::{Delivery, ErrorKind, NewEvent, OutboxPublisher, PostgresConfig, PostgresStore, PublisherOptions, Store};
use shardwise_testkit::{Postgres, PostgresOptions, TcpProxy};

use crate::common::Outbox;
use crate::publishing::delivered;
use crate::shared::{Running, TestSharding, events, eventually, within};

mod restarts;

const LIMIT: Duration = Duration::from_mins(3);
/// How long delivered events are kept, where they are.
const RETENTION: Duration = Duration::from_hours(1);

/// A server with a standby, each behind a proxy: one for the clients, one for replication.
struct Pair {
    primary: std::sync::Arc<Postgres>,
    standby: std::sync::Arc<Postgres>,
    clients: TcpProxy,
    replication: TcpProxy,
    outbox: Outbox,
}

impl Pair {
    async fn new(options: PostgresOptions) -> Self {
        let primary = Postgres::start(options).await.unwrap();
        let outbox = Outbox::on(&primary).await;
        let replication = TcpProxy::start(primary.socket_addr()).await.unwrap();
        let standby = primary.standby(replication.address()).await.unwrap();
        let clients = TcpProxy::start(primary.socket_addr()).await.unwrap();
        let pair = Self { primary, standby, clients, replication, outbox };
        pair.caught_up().await;
        pair
    }

    fn url(&self) -> String {
        self.outbox.database.url_at(self.clients.address())
    }

    async fn open(&self) -> PostgresStore {
        PostgresStore::open(PostgresConfig::from_url(&self.url()).unwrap()).await.unwrap()
    }

    /// Waits until the standby has everything that the primary has.
    async fn caught_up(&self) {
        let written = self.primary.execute("SELECT pg_current_wal_insert_lsn()").await.unwrap();
        let there = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{}'", written[0][0].as_ref().unwrap());
        eventually("the standby has everything", LIMIT, async || !self.standby.execute(&there).await.unwrap_or_default().is_empty()).await;
    }

    /// From here on the standby receives nothing.
    async fn lags(&self) {
        self.caught_up().await;
        self.replication.cut_both();
    }

    /// Stops the primary and redirects clients to the standby.
    async fn fails_over(&self) -> Outbox {
        self.primary.kill().unwrap();
        self.replication.refuse().await.unwrap();
        self.clients.lead_to(self.standby.socket_addr());
        self.clients.reset();
        self.standby.execute("SELECT pg_promote()").await.unwrap();
        self.clients.heal().await.unwrap();
        Outbox::of(&self.outbox.database.on(&self.standby))
    }
}

fn me(number: u64) -> PublisherRegistration {
    PublisherRegistration { publisher: format!("w{number}"), incarnation: Incarnation::new(number), ttl: Duration::from_secs(30), slots: 8 }
}

fn request() -> FetchRequest {
    FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 24, except_slots: vec![], except_aggregates: vec![] }
}

async fn owner(store: &PostgresStore, number: u64) -> (PublisherRegistration, Vec<Hold>) {
    let me = me(number);
    store.register(&me).await.unwrap();
    let holds = store.take(&me, &SlotSet::full(8)).await.unwrap();
    while store.place_new(1_000).await.unwrap() > 0 {}
    (me, holds)
}

fn marked(runs: &[EventRun]) -> Vec<Outcome> {
    let outcome = |run: &EventRun| Outcome { aggregate: run.aggregate, hold: run.hold, through: Some(run.through), then: HeadUpdate::Next };
    runs.iter().map(outcome).collect()
}

/// A recording is carried out, and its answer does not arrive: the call is given up, and what it asked for is committed by another way.
async fn recorded_without_an_answer(
    outbox: &Outbox,
    clients: &TcpProxy,
    store: &PostgresStore,
    me: &PublisherRegistration,
    runs: &[EventRun],
    delete: bool,
) {
    clients.cut_both();
    let answer = tokio::time::timeout(Duration::from_secs(1), store.record(me, &marked(runs), delete)).await;
    assert!(answer.is_err(), "it has an answer: {answer:?}");
    let direct = outbox.store().await;
    assert_eq!(direct.record(me, &marked(runs), delete).await.unwrap(), []);
    direct.close().await;
}

/// Retries until the server answers.
async fn touched(store: &PostgresStore, me: &PublisherRegistration) -> shardwise_outbox::Result<TouchReply> {
    let begun = std::time::Instant::now();
    loop {
        match store.touch(me).await {
            Err(error) if error.is_retryable() && begun.elapsed() < LIMIT => tokio::time::sleep(Duration::from_millis(20)).await,
            answer => return answer,
        }
    }
}

/// Each kind of data that a lagging standby can lack, separately, with its message. The events before have the numbers 1 to 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_lagging_standby_lacks_of_what_was_confirmed_is_noticed() {
    for (lacks, said) in [
        ("nothing", ""),
        ("a touch", "its last renewal"),
        ("a taking", "the epochs of 8 slots"),
        ("a taking that others repeated", "the epochs of 8 slots"),
        ("a mark", "or its mark"),
        ("an event that was read", "event 4 of order/a, or its mark"),
        ("an event in whose place is another", "event 4 of order/a, or its mark"),
        ("an event of a new aggregate", "event 4 of order/b, or its mark"),
        ("a mark of a new aggregate", "event 4 of order/b, or its mark"),
        ("a mark that was asked for, of a new aggregate", "event 4 of order/b, or its mark"),
    ] {
        let pair = Pair::new(PostgresOptions::default()).await;
        pair.outbox.insert(events("a", 1..=3)).await;
        let store = pair.open().await;
        let (me, mut holds) = owner(&store, 1).await;
        holds.sort_unstable();
        if lacks == "nothing" {
            let runs = store.fetch(&me, &request()).await.unwrap().runs;
            store.record(&me, &marked(&runs), false).await.unwrap();
        }
        pair.lags().await;
        match lacks {
            "nothing" => {}
            "a touch" => drop(store.touch(&me).await.unwrap()),
            "a taking" | "a taking that others repeated" => drop(store.take(&me, &SlotSet::full(8)).await.unwrap()),
            "a mark" => {
                let runs = store.fetch(&me, &request()).await.unwrap().runs;
                assert_eq!(store.record(&me, &marked(&runs), false).await.unwrap(), []);
            }
            "an event of a new aggregate" => {
                pair.outbox.insert(events("b", 1..=1)).await;
                store.place_new(10).await.unwrap();
                let runs = store.fetch(&me, &request()).await.unwrap().runs;
                assert!(runs.iter().any(|run| run.through == 4), "{runs:?}");
            }
            "a mark of a new aggregate" | "a mark that was asked for, of a new aggregate" => {
                pair.outbox.insert(events("b", 1..=1)).await;
                store.place_new(10).await.unwrap();
                store.sweep(RETENTION, 0, 10).await.unwrap();
                let runs = store.fetch(&me, &request()).await.unwrap().runs;
                let new: Vec<_> = runs.into_iter().filter(|run| run.through == 4).collect();
                if lacks == "a mark of a new aggregate" {
                    assert_eq!(store.record(&me, &marked(&new), false).await.unwrap(), []);
                } else {
                    recorded_without_an_answer(&pair.outbox, &pair.clients, &store, &me, &new, false).await;
                }
                // A standby has a sequence object some numbers ahead of what it has received: by that, number 4 was given.
                let ahead = "SELECT 1 FROM outbox_order WHERE last_value > 4";
                let standby = Outbox::of(&pair.outbox.database.on(&pair.standby));
                assert_eq!(standby.execute(ahead).await.len(), 1, "the standby's sequence is behind");
            }
            _ => {
                pair.outbox.insert(events("a", 4..=4)).await;
                assert_eq!(store.fetch(&me, &request()).await.unwrap().runs[0].through, 4);
            }
        }
        let after = pair.fails_over().await;
        match lacks {
            "an event in whose place is another" => {
                after.insert(vec![NewEvent::new("order", "a", "OrderChanged", "{}").with_id("another")]).await;
            }
            "a taking that others repeated" => {
                drop(after.execute("UPDATE outbox_slot SET epoch = epoch + 1, incarnation = 'another'").await);
            }
            _ => {}
        }
        let answer = touched(&store, &me).await;
        if said.is_empty() {
            let TouchReply::Seen(mut seen) = answer.unwrap() else { panic!("{lacks}: it is known") };
            seen.sort_unstable();
            assert_eq!(seen, holds, "{lacks}");
            after.insert(events("a", 4..=4)).await;
            // A server that was promoted goes on above numbers that were never given.
            assert!(store.fetch(&me, &request()).await.unwrap().runs[0].events[0].sequence > 3);
            continue;
        }
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LostCommits, "{lacks}: {error}");
        for words in
            [said, "it is on timeline ", "/2 now, was on timeline ", "shardwise outbox restored --epoch-above N --sequence-above N"]
        {
            assert!(error.to_string().contains(words), "{lacks}: {words:?} is not in: {error}");
        }
        let again = store.fetch(&me, &request()).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::LostCommits, "{lacks}: nothing is read either");
    }
}

fn publisher(store: PostgresStore, sink: &ScriptedSink, name: &str) -> Running {
    let options = PublisherOptions { poll: Duration::from_millis(100), backoff: Duration::from_millis(50), ..PublisherOptions::default() };
    Running::start(
        OutboxPublisher::new(Arc::new(store), Arc::new(sink.clone()), Arc::new(TestSharding::full(name)))
            .unwrap()
            .options(options)
            .unwrap(),
    )
}

/// The publisher works all the time: the standby follows asynchronously, and has everything when the primary stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossless_switchover_stops_no_publisher() {
    for options in [PostgresOptions::default().oldest(), PostgresOptions::default()] {
        let pair = Pair::new(options).await;
        let sink = ScriptedSink::accepting();
        let running = publisher(pair.open().await, &sink, "one");
        pair.outbox.insert((0..20).flat_map(|n| events(&n.to_string(), 1..=10)).collect()).await;
        eventually("everything arrives", LIMIT, async || sink.arrived().len() >= 200).await;
        // As in a planned switchover: no client reaches the old server any more, and the new one receives the rest.
        pair.clients.cut_both();
        pair.caught_up().await;
        let after = pair.fails_over().await;
        after.insert((0..20).flat_map(|n| events(&n.to_string(), 11..=12)).collect()).await;
        eventually("what comes later arrives", LIMIT, async || {
            assert!(!running.task.is_finished(), "the publisher has ended");
            sink.arrived().iter().filter(|event| event.sequence > 10).count() >= 40
        })
        .await;
        running.stop().await;
    }
}

/// The numbers that a consumer keeps to drop older events.
fn highest(arrived: &[Delivery]) -> (u64, u64) {
    let most = |of: fn(&Delivery) -> u64| arrived.iter().map(of).max().unwrap_or(0);
    (most(|event| event.epoch), most(|event| event.sequence))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_stops_where_commits_were_lost_and_goes_on_above_what_consumers_saw() {
    let pair = Pair::new(PostgresOptions::default()).await;
    pair.outbox.insert(events("a", 1..=3)).await;
    let sink = ScriptedSink::new(|_| ScriptedReply::Accept);
    let running = publisher(pair.open().await, &sink, "one");
    eventually("it is at work", LIMIT, async || sink.arrived().len() == 3 && running.stats.snapshot().delivered == 3).await;
    pair.lags().await;
    pair.outbox.insert(events("a", 4..=9)).await;
    eventually("what is lost later arrives", LIMIT, async || sink.arrived().len() == 9 && running.stats.snapshot().delivered == 9).await;
    let (epoch, sequence) = highest(&sink.arrived());
    let after = pair.fails_over().await;
    let error = within("it ends", LIMIT, running.task).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LostCommits, "{error}");
    assert!(error.to_string().contains(&format!("this publisher knows of epoch {epoch} and sequence {sequence}")), "{error}");
    // The same event numbers would come again.
    let store = PostgresStore::open(after.config()).await.unwrap();
    let restored = store.restored(epoch, sequence).await.unwrap();
    // The server may have gone on above the lost numbers by itself: then no aggregate is raised.
    assert!(restored.epoch > epoch && restored.aggregates <= 1 && restored.publishers <= 1, "{restored:?}");
    after
        .insert(vec![NewEvent::new("order", "a", "t", "{}").with_id("new-a"), NewEvent::new("order", "b", "t", "{}").with_id("new-b")])
        .await;
    let arrived = delivered(&after).await;
    let ids: Vec<_> = arrived.iter().filter(|event| event.id.starts_with("new")).collect();
    assert_eq!(ids.len(), 2, "{arrived:?}");
    assert!(ids.iter().all(|event| event.epoch > epoch && event.sequence > sequence), "{ids:?} after {epoch} and {sequence}");
}

/// Both kinds of aggregates, with and without pending events; done twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_keeps_its_numbers_when_others_are_lifted() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    outbox.insert([events("idle", 1..=2), events("waits", 1..=3)].concat()).await;
    let (me, holds) = owner(&store, 1).await;
    let runs = store.fetch(&me, &request()).await.unwrap().runs;
    let (idle, waits): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.events.len() == 2);
    store.record(&me, &marked(&idle), false).await.unwrap();
    // The idle one was forgotten.
    for raised in [1, 0] {
        let restored = store.restored(1_000, 50).await.unwrap();
        assert!(restored.epoch > 1_000, "{restored:?}");
        assert_eq!((restored.aggregates, restored.waiting), (raised, 3), "what waits keeps its numbers: {restored:?}");
    }
    assert_eq!(store.touch(&me).await.unwrap(), TouchReply::Unknown, "its slots are anybody's");
    assert_eq!(store.record(&me, &marked(&idle), false).await.unwrap(), [idle[0].hold], "and it is fenced: {holds:?}");
    outbox.insert([events("idle", [3]), events("waits", [4]), events("new", [1])].concat()).await;
    let mut arrived: Vec<_> = delivered(&outbox).await.into_iter().map(|event| (event.id, event.sequence)).collect();
    arrived.sort();
    let mut expected: Vec<_> = waits[0].events.iter().map(|event| (event.id.clone(), event.sequence)).collect();
    // In the order of writing, each above the given number.
    expected.extend([("idle-3", 51), ("waits-4", 52), ("new-1", 53)].map(|(id, sequence)| (id.to_owned(), sequence)));
    expected.sort();
    assert_eq!(arrived, expected);
    assert_eq!(store.status().await.unwrap().pending, 0, "nothing waits for the hole");
    for (epoch, sequence) in [(u64::MAX, 0), (0, 1 << 53)] {
        assert_eq!(store.restored(epoch, sequence).await.unwrap_err().kind(), ErrorKind::Settings);
    }
}
