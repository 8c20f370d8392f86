//! Faults of publishers: kills, pauses, restarts.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use shardwise::ShardKey as _;
use shardwise_testkit::Lag;

use crate::common::chance::Chance;
use crate::common::eventually;
use crate::common::process::Process;
use crate::delivered::NewEvents;
use crate::stage::{AGGREGATES, PUBLISHERS, Stage, Written};
use crate::{TAKEOVER_MAX, TTL};

/// How often a takeover is tried, because another test may use the processor just then.
const TAKEOVERS: usize = 3;

/// Kills and pauses publishers until the writers are done; returns how many of each, and how many pauses were long enough to lose slots.
pub(crate) fn trouble(
    stage: &Stage,
    publishers: &mut [Process],
    written: &Written,
    chance: &mut Chance,
    pause: Duration,
) -> (u64, u64, u64) {
    let (mut kills, mut stops, mut beyond) = (0, 0, 0);
    while !written.all() {
        std::thread::sleep(pause);
        let unlucky = usize::try_from(chance.below(PUBLISHERS as u64)).unwrap();
        if (kills + stops) % 2 == 0 {
            kills += 1;
            publishers[unlucky].signal(Signal::SIGKILL);
            // The new publisher has the name of the dead one and waits for its place in the group.
            publishers[unlucky] = stage.publisher(unlucky);
        } else {
            stops += 1;
            publishers[unlucky].signal(Signal::SIGSTOP);
            let stopped = Duration::from_millis(chance.below(2 * u64::try_from(TTL.as_millis()).unwrap()));
            std::thread::sleep(stopped);
            // Up to a third of the TTL may have passed since its last touch, and it gives up slightly before the end.
            beyond += u64::from(stopped >= TTL / 2);
            publishers[unlucky].signal(Signal::SIGCONT);
        }
    }
    (kills, stops, beyond)
}

/// Restarts all gracefully, one after the other.
pub(crate) fn roll(stage: &Stage, publishers: &mut [Process]) {
    for (number, publisher) in publishers.iter_mut().enumerate() {
        publisher.signal(Signal::SIGTERM);
        assert_eq!(publisher.ends("after SIGTERM").code, Some(0));
        *publisher = stage.publisher(number);
        stage.holds_slots(number);
    }
}

/// The time from the kill to the last event of the killed publisher's aggregates, and how much of that is due to the machine.
pub(crate) struct Takeover {
    pub(crate) took: Duration,
    late: Duration,
}

impl Takeover {
    pub(crate) fn in_time(&self) -> bool {
        self.took <= TAKEOVER_MAX + self.late
    }
}

/// The aggregates in the slots of this publisher, as text and separated by commas. The database cannot compute the hashes.
fn aggregates_of(stage: &Stage, number: usize) -> String {
    let slots = format!(
        "SELECT s.hash_from, s.hash_to FROM outbox_slot AS s JOIN outbox_publisher AS p ON p.incarnation = s.incarnation
         WHERE p.publisher = 'p{number}'"
    );
    let parsed = |text: &Option<String>| text.as_deref().unwrap().parse::<i64>().unwrap();
    let slots: Vec<_> = stage.execute(&slots).iter().map(|row| parsed(&row[0])..=parsed(&row[1])).collect();
    let is_theirs = |hash: u64| slots.iter().any(|slot| slot.contains(&(hash ^ (1 << 63)).cast_signed()));
    let theirs = (0..AGGREGATES).filter(|aggregate| is_theirs(format!("order/{aggregate}").key_hash()));
    theirs.map(|aggregate| format!("'{aggregate}'")).collect::<Vec<_>>().join(",")
}

/// Kills a publisher and writes an event to each aggregate of its slots; returns how long they took to arrive, and how many were written.
fn takeover(stage: &Stage, publisher: &Process, number: usize) -> (Takeover, u64) {
    let aggregates = aggregates_of(stage, number);
    let mut new_events = NewEvents::behind_the_last(stage);
    let lag = Lag::begin();
    publisher.signal(Signal::SIGKILL);
    let killed = Instant::now();
    let insert = format!(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, id)
         SELECT 'order', id, 'Changed', '{{}}', 'kill-{number}-' || id FROM unnest(ARRAY[{aggregates}]::text[]) AS id ORDER BY id
         RETURNING id"
    );
    let written = stage.execute(&insert).len();
    assert!(written > 0, "it held no slot with an aggregate");
    let (mut came, theirs) = (HashSet::new(), format!("kill-{number}-"));
    eventually("the events of the killed one's aggregates", Duration::from_mins(3), || {
        came.extend(new_events.read().into_iter().filter(|id| id.starts_with(&theirs)));
        (came.len() == written).then_some(())
    });
    (Takeover { took: killed.elapsed(), late: lag.allowance() }, written as u64)
}

/// The durations of several takeovers, and the number of events written for them; each killed publisher is restarted. Unless `all` are
/// requested, one takeover in time is enough.
pub(crate) fn takeovers(stage: &Stage, publishers: &mut [Process], all: bool) -> (Vec<Takeover>, u64) {
    let (mut tries, mut events) = (Vec::new(), 0);
    for (number, publisher) in publishers.iter_mut().enumerate().take(TAKEOVERS) {
        let (tried, written) = takeover(stage, publisher, number);
        let in_time = tried.in_time();
        tries.push(tried);
        events += written;
        *publisher = stage.publisher(number);
        stage.holds_slots(number);
        stage.all_is_delivered();
        if in_time && !all {
            break;
        }
    }
    (tries, events)
}
