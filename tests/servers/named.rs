//! Daemons and timers of the whole library on every backend: their number changes while they run, their holders die, and each period is
//! fired once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwise::{Run, ShardingService};
use tokio::runtime::Runtime;

use crate::exclusive::{Place, share};
use crate::meeting::{Kind, runtime, until};

const TTL: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_secs(1);
const SLOTS: u32 = 16;
/// For what takes a TTL and a claim, on a busy machine.
const WITHIN: Duration = Duration::from_secs(20);

on_all_at_once!(daemons_and_timers_are_at_one_member_when_their_number_changes_and_their_holder_dies; soak: nats Nats, postgres Postgres);

/// What runs and what was fired, at whom.
#[derive(Default)]
struct RunLog {
    alive: BTreeMap<u32, &'static str>,
    /// Daemons that were begun while they were alive elsewhere.
    twice: Vec<(u32, &'static str)>,
    /// The numbers of the periods, in the order in which they were fired.
    fired: Vec<(u64, &'static str)>,
}

type Shown = Arc<Mutex<RunLog>>;

/// A daemon, as long as it is not dropped.
struct Alive(u32, Shown);

impl Drop for Alive {
    fn drop(&mut self) {
        self.1.lock().unwrap().alive.remove(&self.0);
    }
}

fn enter(shown: &Shown, number: u32, id: &'static str) -> Alive {
    let mut log = shown.lock().unwrap();
    if log.alive.insert(number, id).is_some() {
        log.twice.push((number, id));
    }
    Alive(number, Arc::clone(shown))
}

/// A member that offers both, on a separate runtime, with which it dies.
struct Member {
    id: &'static str,
    service: ShardingService,
    _runs: [Run; 2],
    runtime: Runtime,
}

impl Member {
    fn joins(place: &Place, id: &'static str, shown: &Shown) -> Self {
        let runtime = runtime(id);
        let inside = runtime.enter();
        let service = place.service(id, SLOTS, TTL);
        runtime.block_on(service.register_self()).unwrap();
        let log = Arc::clone(shown);
        let daemons = service.daemons("").unwrap().run(move |number, tenure| {
            let log = Arc::clone(&log);
            async move {
                let _alive = enter(&log, number, id);
                tenure.cancel().cancelled().await;
                Ok::<(), String>(())
            }
        });
        let log = Arc::clone(shown);
        let timer = service.timer("report", EVERY).unwrap().run(move |period, _| {
            log.lock().unwrap().fired.push((period.number, id));
            async { Ok::<(), String>(()) }
        });
        drop(inside);
        Self { id, service, _runs: [daemons, timer], runtime }
    }

    /// Without a word: what it ran ends with it, and what it held stays held until its lease ends.
    fn dies(self) {
        self.runtime.shutdown_background();
    }
}

fn all_alive(shown: &Shown, count: u32, not_at: &str) -> Result<(), String> {
    let alive = shown.lock().unwrap().alive.clone();
    let well = alive.keys().copied().eq(0..count) && alive.values().all(|id| *id != not_at);
    if well { Ok(()) } else { Err(format!("alive: {alive:?}")) }
}

fn fires_on(shown: &Shown, not_at: &str) {
    let fired = || shown.lock().unwrap().fired.clone();
    let before = fired().len();
    until("the timer goes on", WITHIN, || {
        let fired = fired().split_off(before);
        if fired.iter().filter(|(_, id)| *id != not_at).count() >= 2 { Ok(()) } else { Err(format!("{fired:?}")) }
    });
}

fn daemons_and_timers_are_at_one_member_when_their_number_changes_and_their_holder_dies(kind: Option<Kind>) {
    let (outside, shown) = (runtime("outside"), Shown::default());
    let place = outside.block_on(Place::start(kind));
    let mut fleet: Vec<_> = ["a", "b", "c"].into_iter().map(|id| Member::joins(&place, id, &shown)).collect();
    until("three share", WITHIN, || share(&fleet.iter().map(|member| &member.service).collect::<Vec<_>>()));
    let daemons = fleet[0].service.daemons("").unwrap();
    for count in [3, 6, 2, 4] {
        let set = async { daemons.set_count(daemons.count().await?, count).await };
        assert_eq!(fleet[0].runtime.block_on(set).unwrap().get(), count);
        until("as many daemons live as there are to be", WITHIN, || all_alive(&shown, count, ""));
    }
    drop(daemons);
    fires_on(&shown, "");
    let holder = shown.lock().unwrap().fired.last().unwrap().1;
    let dies = fleet.iter().position(|member| member.id == holder).unwrap();
    fleet.remove(dies).dies();
    until("the others have its daemons", WITHIN, || all_alive(&shown, 4, holder));
    fires_on(&shown, holder);
    let leaver = fleet.remove(0);
    leaver.runtime.block_on(leaver.service.deregister_self()).unwrap();
    until("the last one has all daemons", WITHIN, || all_alive(&shown, 4, leaver.id));
    fires_on(&shown, leaver.id);
    let log = shown.lock().unwrap();
    assert_eq!(log.twice, [], "daemons that were alive twice");
    let fired = log.fired.iter().map(|(number, _)| *number);
    assert!(fired.is_sorted_by(|one, next| one < next), "each period at most once, and in order: {:?}", log.fired);
}
