//! Publishers as real processes over PostgreSQL that are killed and stopped while 64 writers write, then all restarted one after the other, and one killed
//! at rest to see how soon its events flow again. The short form of `cargo xtask soak outbox`.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::collections::{BTreeMap, HashSet};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::process::Process;
use common::{Place, eventually, workers};
use nix::sys::signal::Signal;
use serde_json::json;
use shardwise_outbox::sink::read_events;
use shardwise_testkit::{Database, Postgres, PostgresOptions};
use tokio::runtime::Runtime;

const WRITERS: u64 = 64;
const AGGREGATES: u64 = 500;
const PUBLISHERS: usize = 4;
const BATCH: u64 = 200;
/// Events of one transaction.
const TOGETHER: u64 = 10;
const TTL: Duration = Duration::from_secs(3);
/// After a crash its events flow again within this time.
const TAKEOVER_MAX: Duration = Duration::from_secs(4);
/// So often that is tried, because another test may have the processor just then.
const TAKEOVERS: usize = 3;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

/// A small random sequence (xorshift), repeated by its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

struct Stage {
    runtime: Runtime,
    database: Database,
    place: Place,
}

impl Stage {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let database = runtime.block_on(async {
            let options = PostgresOptions::default().with_setting("max_connections", "300");
            Postgres::start(options).await.unwrap().database().await.unwrap()
        });
        let place = Place::with_settings(
            &(workers("3s", "slots = 64")
                + &format!(
                    "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"{}\"\nsink = \"file:delivered.jsonl\"\nbatch = {BATCH}\npoll = \"100ms\"\n",
                    database.url()
                )),
        );
        place.run(&["outbox", "init"]).well();
        Self { runtime, database, place }
    }

    fn publisher(&self, number: usize) -> Process {
        let mut command = self.place.command(&["outbox", "run"]);
        command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", format!("p{number}"));
        Process::start(command)
    }

    /// So many events, by 64 writers side by side, within about that time; the answer counts those that are committed, and says when all are.
    fn write(&self, events: u64, within: Duration, seed: u64) -> (Arc<AtomicU64>, Arc<AtomicBool>) {
        let (written, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let transactions = events / WRITERS / TOGETHER;
        let every = within / u32::try_from(transactions).unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (database, written, mut chance) = (self.database.clone(), Arc::clone(&written), Chance(seed ^ (writer + 1)));
            tasks.spawn_on(
                async move {
                    // Not all at the same moment: what is measured as a gap would be theirs.
                    tokio::time::sleep(every * u32::try_from(writer).unwrap() / u32::try_from(WRITERS).unwrap()).await;
                    for _ in 0..transactions {
                        let due = tokio::time::Instant::now() + every;
                        let mut aggregates: Vec<u64> = (0..TOGETHER).map(|_| chance.below(AGGREGATES)).collect();
                        aggregates.sort_by_key(u64::to_string);
                        let rows: Vec<_> = aggregates.iter().map(|id| format!("('order', '{id}', 'Changed', '{{}}')")).collect();
                        let pause = if chance.below(4) == 0 {
                            format!("SELECT pg_sleep({});", chance.below(20) as f64 / 1e3)
                        } else {
                            String::new()
                        };
                        let end = if chance.below(10) == 0 { "ROLLBACK" } else { "COMMIT" };
                        let sql = format!(
                            "BEGIN; INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES {}; {pause} {end}",
                            rows.join(", ")
                        );
                        database.execute(&sql).await.unwrap();
                        if end == "COMMIT" {
                            written.fetch_add(TOGETHER, Ordering::SeqCst);
                        }
                        tokio::time::sleep_until(due).await;
                    }
                },
                self.runtime.handle(),
            );
        }
        let all = Arc::clone(&done);
        self.runtime.spawn(async move {
            // A writer that fails leaves `done` false, and the test says that it waited in vain.
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
            all.store(true, Ordering::SeqCst);
        });
        (written, done)
    }

    fn execute(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.runtime.block_on(self.database.execute(sql)).unwrap()
    }

    /// Waits until a publisher holds slots.
    fn holds_slots(&self, publisher: usize) {
        let holds = format!(
            "SELECT 1 FROM outbox_slot AS s JOIN outbox_publisher AS p ON p.incarnation = s.incarnation WHERE p.publisher = 'p{publisher}' LIMIT 1"
        );
        eventually("the new one has slots", Duration::from_mins(1), || (!self.execute(&holds).is_empty()).then_some(()));
    }

    fn all_is_delivered(&self) {
        let pending =
            "SELECT 1 FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate WHERE a.last_seq > h.done_seq LIMIT 1";
        eventually("nothing is pending", Duration::from_mins(2), || self.execute(pending).is_empty().then_some(()));
    }
}

/// Kills and stops publishers until the writers are done; answers how many of each.
fn trouble(stage: &Stage, publishers: &mut [Process], done: &AtomicBool, chance: &mut Chance, pause: Duration) -> (u64, u64) {
    let (mut kills, mut stops) = (0, 0);
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(pause);
        let unlucky = usize::try_from(chance.below(PUBLISHERS as u64)).unwrap();
        if (kills + stops) % 2 == 0 {
            kills += 1;
            publishers[unlucky].signal(Signal::SIGKILL);
            // The new one has the name of the dead one and waits for its place in the group.
            publishers[unlucky] = stage.publisher(unlucky);
        } else {
            stops += 1;
            publishers[unlucky].signal(Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(chance.below(2 * u64::try_from(TTL.as_millis()).unwrap())));
            publishers[unlucky].signal(Signal::SIGCONT);
        }
    }
    (kills, stops)
}

/// Restarts all in good order, one after the other; answers the longest time in which nothing was delivered.
fn roll(stage: &Stage, publishers: &mut [Process]) -> Duration {
    let path = stage.place.path("delivered.jsonl");
    let over = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&over);
    let watcher = std::thread::spawn(move || {
        let length = || std::fs::metadata(&path).map_or(0, |file| file.len());
        let (mut last, mut grew, mut longest) = (length(), Instant::now(), Duration::ZERO);
        while !watched.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
            let now = length();
            if now != last {
                longest = longest.max(grew.elapsed());
                (last, grew) = (now, Instant::now());
            }
        }
        longest.max(grew.elapsed())
    });
    for (number, publisher) in publishers.iter_mut().enumerate() {
        publisher.signal(Signal::SIGTERM);
        assert_eq!(publisher.ends("after SIGTERM").code, Some(0));
        *publisher = stage.publisher(number);
        stage.holds_slots(number);
    }
    over.store(true, Ordering::SeqCst);
    watcher.join().unwrap()
}

/// Kills a publisher, writes an event to each aggregate of its slots, and answers how long after the kill the first of them came, and how many
/// were written.
fn takeover(stage: &Stage, publisher: &Process, number: usize) -> (Duration, u64) {
    let theirs = format!(
        "FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate JOIN outbox_slot AS s ON h.hash BETWEEN s.hash_from AND s.hash_to
         JOIN outbox_publisher AS p ON p.incarnation = s.incarnation WHERE p.publisher = 'p{number}'"
    );
    let path = stage.place.path("delivered.jsonl");
    let before = std::fs::metadata(&path).unwrap().len();
    publisher.signal(Signal::SIGKILL);
    let killed = Instant::now();
    let insert = format!(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, id)
         SELECT 'order', split_part(a.key, '/', 2), 'Changed', '{{}}', 'kill-{number}-' || a.key {theirs} ORDER BY a.key RETURNING id"
    );
    let written = stage.execute(&insert).len() as u64;
    assert!(written > 0, "it held no slot with an aggregate");
    let mut file = std::fs::File::open(path).unwrap();
    file.seek(SeekFrom::Start(before)).unwrap();
    let (mut news, first) = (String::new(), format!("\"kill-{number}-"));
    eventually("an event of the killed one's aggregates", Duration::from_mins(1), || {
        file.read_to_string(&mut news).unwrap();
        news.contains(&first).then_some(())
    });
    (killed.elapsed(), written)
}

/// The soonest of some takeovers, and how many events were written for them; each publisher that is killed is started again.
fn takeovers(stage: &Stage, publishers: &mut [Process]) -> (Duration, u64) {
    let (mut soonest, mut events) = (Duration::MAX, 0);
    for (number, publisher) in publishers.iter_mut().enumerate().take(TAKEOVERS) {
        let (took, written) = takeover(stage, publisher, number);
        (soonest, events) = (soonest.min(took), events + written);
        *publisher = stage.publisher(number);
        stage.holds_slots(number);
        stage.all_is_delivered();
        if soonest <= TAKEOVER_MAX {
            break;
        }
    }
    (soonest, events)
}

/// What is in the file: events delivered once or more, those that came again, and of these those behind the first `before` lines. Panics if an
/// aggregate's events first came in another order than 1, 2, 3 …
fn delivered(stage: &Stage, before: usize) -> (u64, u64, u64) {
    let (mut seen, mut next) = (HashSet::new(), BTreeMap::<String, u64>::new());
    let (mut again, mut again_later) = (0, 0);
    for (line, event) in read_events(stage.place.path("delivered.jsonl")).unwrap().map(Result::unwrap).enumerate() {
        if seen.insert(event.id) {
            let next = next.entry(event.key.clone()).or_insert(1);
            assert_eq!(event.sequence, *next, "out of order: {}", event.key);
            *next += 1;
        } else {
            again += 1;
            again_later += u64::from(line >= before);
        }
    }
    (seen.len() as u64, again, again_later)
}

#[test]
fn nothing_is_lost_and_the_order_is_kept_whatever_happens_to_publishers() {
    let (events, seconds) = (number("SHARDWISE_SOAK_EVENTS", 6_400), number("SHARDWISE_SOAK_SECONDS", 5));
    let seed = number("SHARDWISE_SEED", u64::from(std::process::id()) | 1);
    eprintln!("repeat with SHARDWISE_SEED={seed}");
    let (stage, mut chance) = (Stage::new(), Chance(seed));
    let mut publishers: Vec<Process> = (0..PUBLISHERS).map(|number| stage.publisher(number)).collect();
    let (written, done) = stage.write(events, Duration::from_secs(seconds), seed);
    let (kills, stops) =
        trouble(&stage, &mut publishers, &done, &mut chance, Duration::from_millis(if seconds > 60 { 3_000 } else { 1_200 }));
    stage.all_is_delivered();
    let (seen, repeated, _) = delivered(&stage, 0);
    assert_eq!(seen, written.load(Ordering::SeqCst), "lost");
    // What one of them can have on its way: a batch being sent, one that waits, and two whose marks are not written.
    assert!(repeated <= (kills + stops) * 4 * BATCH, "{repeated} repeated by {kills} kills and {stops} pauses");

    let lines = read_events(stage.place.path("delivered.jsonl")).unwrap().count();
    let (more, done) = stage.write(events / 2, Duration::from_secs(seconds.div_ceil(2)), seed + 1);
    eventually("the first of them come", Duration::from_mins(1), || {
        (read_events(stage.place.path("delivered.jsonl")).unwrap().count() > lines).then_some(())
    });
    let gap = roll(&stage, &mut publishers);
    let under_load = !done.load(Ordering::SeqCst);
    eventually("the writers are done", Duration::from_mins(5), || done.load(Ordering::SeqCst).then_some(()));
    stage.all_is_delivered();
    let (all, _, rolled) = delivered(&stage, lines);
    assert_eq!(all, written.load(Ordering::SeqCst) + more.load(Ordering::SeqCst), "lost");

    let (takeover, events) = takeovers(&stage, &mut publishers);
    assert!(takeover <= TAKEOVER_MAX, "{takeover:?} from a kill to the first event of the killed one's aggregates, with a TTL of {TTL:?}");
    stage.all_is_delivered();
    assert_eq!(delivered(&stage, lines).0, all + events, "lost");
    let figures = json!({
        "events": all, "kills": kills, "stops": stops, "repeated": repeated, "rolled_repeated": rolled, "under_load": under_load,
        "takeover_ms": u64::try_from(takeover.as_millis()).unwrap(), "gap_ms": u64::try_from(gap.as_millis()).unwrap(), "lost": 0, "out_of_order": 0,
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
