//! Jobs that are fired once in each period, whichever member holds the timer.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use shardwise::core::GroupName;
use shardwise::discovery::{Clock, Discovery, FaultRates, Faults, Notes};
use shardwise::{ClaimName, ErrorKind, Moment, Period, Run, ShardingService};

use super::{World, common, eventually, joined, policy};

const EVERY: Duration = Duration::from_secs(10);

/// What was fired, by whom and when.
type Fired = (Period, &'static str, Moment);

/// All of it, in order.
#[derive(Clone)]
struct FiredLog(Arc<Mutex<Vec<Fired>>>, Clock);

impl FiredLog {
    fn new(world: &World) -> Self {
        Self(Arc::default(), world.clock.clone())
    }

    fn fired(&self) -> MutexGuard<'_, Vec<Fired>> {
        self.0.lock().expect("whole")
    }

    fn numbers(&self) -> Vec<u64> {
        self.fired().iter().map(|(period, ..)| period.number).collect()
    }

    /// Begins with the period in which the timer was first held, or the one after, and goes on without a gap or a repeat.
    fn is_without_gaps(&self) -> bool {
        self.numbers().windows(2).all(|pair| pair[0] + 1 == pair[1])
    }
}

fn run(service: &ShardingService, id: &'static str, log: &FiredLog) -> Run {
    let log = log.clone();
    service.timer("report", EVERY).expect("exclusive").run(move |period, _| {
        log.fired().push((period, id, log.1.now()));
        async { Ok::<(), String>(()) }
    })
}

/// What the group's note of the timer says.
async fn note(world: &World) -> Option<String> {
    let (group, name) = (GroupName::new(common::policy().group.as_str()).expect("valid"), ClaimName::new("timer/report").expect("valid"));
    world.store.note(&group, &name).await.expect("read").map(|note| note.text)
}

async fn by_hand(world: &World, text: &str) {
    let (group, name) = (GroupName::new(common::policy().group.as_str()).expect("valid"), ClaimName::new("timer/report").expect("valid"));
    let there = world.store.note(&group, &name).await.expect("read").map_or(0, |note| note.version);
    world.store.write_note(&group, &name, there, text).await.expect("written");
}

#[tokio::test(start_paused = true)]
async fn each_period_is_fired_once_also_when_its_member_leaves_or_dies() {
    let (world, ids) = (World::new(), ["a", "b", "c"]);
    let (log, links) = (FiredLog::new(&world), ids.map(|_| world.store.link()));
    let mut fleet = Vec::new();
    for (id, link) in ids.into_iter().zip(&links) {
        let service = world.factory_of(id, Arc::new(link.clone()), policy()).create("workers").expect("known");
        service.register_self().await.expect("joins");
        let run = run(&service, id, &log);
        fleet.push((id, service, run));
    }
    let fired = |count: usize| move |log: &FiredLog| log.fired().len() >= count;
    eventually("it is fired", || fired(3)(&log)).await;
    let (_, first, _) = *log.fired().last().expect("fired");
    let at = fleet.iter().position(|(id, ..)| *id == first).expect("one of them");
    let (_, leaver, _run) = fleet.remove(at);
    // In the very period that it has fired.
    leaver.deregister_self().await.expect("leaves");
    eventually("it goes on", || fired(6)(&log)).await;
    let (_, second, _) = *log.fired().last().expect("fired");
    assert_ne!(second, first);
    links[ids.iter().position(|id| *id == second).expect("one of them")].set_reachable(false);
    eventually("it goes on at the last one", || fired(9)(&log)).await;
    assert_ne!(log.fired().last().expect("fired").1, second);
    assert!(log.is_without_gaps(), "{:?}", log.numbers());
    for (period, id, at) in log.fired().iter() {
        let late = at.as_nanos() / 1_000_000 - period.due_ms;
        assert_eq!(period.due_ms, period.number * 10_000);
        assert!(late <= 5_000, "{period:?} was fired by {id} {late} ms late");
    }
}

#[tokio::test(start_paused = true)]
async fn periods_without_a_holder_are_skipped_and_the_one_that_runs_is_fired_late() {
    let world = World::new();
    let log = FiredLog::new(&world);
    let a = joined(&world, "a").await;
    let first = run(&a, "a", &log);
    eventually("it is fired twice", || log.fired().len() == 2).await;
    first.stop().await;
    // Five and a half periods.
    tokio::time::sleep(Duration::from_secs(55)).await;
    let before = log.numbers();
    let _second = run(&a, "again", &log);
    eventually("it is fired again", || log.fired().len() == 3).await;
    let (period, _, at) = log.fired()[2];
    assert_eq!(period.number, before[1] + 5, "the others are skipped");
    let late = at.as_nanos() / 1_000_000 - period.due_ms;
    assert!((4_000..10_000).contains(&late), "it was running for {late} ms");
}

#[tokio::test(start_paused = true)]
async fn a_job_longer_than_its_period_makes_the_next_ones_skipped_and_there_are_never_two() {
    let world = World::new();
    let (log, busy) = (FiredLog::new(&world), Arc::new(tokio::sync::Mutex::new(())));
    let a = joined(&world, "a").await;
    let shown = log.clone();
    let _run = a.timer("report", EVERY).expect("exclusive").run(move |period, _| {
        shown.fired().push((period, "a", shown.1.now()));
        let busy = Arc::clone(&busy);
        async move {
            let _alone = busy.try_lock().expect("never two at once");
            tokio::time::sleep(EVERY.mul_f64(2.5)).await;
            Ok::<(), String>(())
        }
    });
    tokio::time::sleep(Duration::from_mins(3)).await;
    let numbers = log.numbers();
    assert!(numbers.len() >= 5 && numbers.windows(2).all(|pair| pair[0] + 3 == pair[1]), "{numbers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_or_panics_does_not_keep_the_next_period_from_being_fired() {
    let world = World::new();
    let log = FiredLog::new(&world);
    let a = joined(&world, "a").await;
    let shown = log.clone();
    let _run = a.timer("report", EVERY).expect("exclusive").run(move |period, _| {
        shown.fired().push((period, "a", shown.1.now()));
        assert_ne!(period.number % 3, 1, "a mistake in the user's code");
        async move { if period.number % 3 == 2 { Err("not today") } else { Ok(()) } }
    });
    eventually("it is fired four times", || log.fired().len() >= 4).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(log.fired().len() >= 9 && log.is_without_gaps(), "{:?}", log.numbers());
}

/// Calls that fail, answers that are lost: what was written is not fired twice, and what was not sure is fired once.
#[tokio::test(start_paused = true)]
async fn with_lost_answers_no_period_is_fired_twice() {
    for seed in 0..6 {
        let world = World::new();
        let log = FiredLog::new(&world);
        let rates = FaultRates { fail_before: 0.2, fail_after: 0.2, delay: 0.3, delay_max: Duration::from_millis(300), ..FaultRates::NONE };
        let mut fleet = Vec::new();
        for id in ["a", "b"] {
            let faulty = Faults::new(Arc::new(world.store.link()), seed, FaultRates::NONE);
            let service = world.factory_of(id, Arc::new(faulty.clone()) as Arc<dyn Discovery>, policy()).create("workers").expect("known");
            service.register_self().await.expect("joins");
            let run = run(&service, id, &log);
            faulty.set_rates(rates);
            fleet.push((service, run));
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
        let numbers = log.numbers();
        assert!(numbers.is_sorted_by(|one, next| one < next), "seed {seed}: {numbers:?}");
        // Lost answers at the beginning cost no more than a moment: it was 200 s of 300.
        assert!(numbers.len() >= 28, "seed {seed}: of thirty periods only {} were fired", numbers.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_note_that_was_edited_by_hand_stops_the_timer_until_it_is_corrected() {
    let world = World::new();
    let log = FiredLog::new(&world);
    let a = joined(&world, "a").await;
    let _run = run(&a, "a", &log);
    eventually("it is fired", || log.fired().len() == 1).await;
    for text in [
        "",
        "nonsense",
        "{\"due_ms\":-1,\"epoch\":1}",
        "{\"due_ms\":9999999999999,\"epoch\":1}",
        "{\"due_ms\":1,\"epoch\":9007199254740991}",
    ] {
        let before = note(&world).await.expect("written");
        by_hand(&world, text).await;
        // What was being waited for meets the other version.
        tokio::time::sleep(Duration::from_mins(1)).await;
        let fired = log.fired().len();
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(log.fired().len(), fired, "{text:?}");
        by_hand(&world, &before).await;
        eventually("it is fired again", || log.fired().len() > fired).await;
    }
    let numbers = log.numbers();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
}

#[tokio::test(start_paused = true)]
async fn another_length_or_phase_goes_on_where_the_last_one_was() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let due: Arc<Mutex<Vec<u64>>> = Arc::default();
    for (every, phase) in [(10_u64, 0_u64), (30, 7), (1, 0), (60, 59)] {
        let before = due.lock().expect("whole").len();
        let timer = a.timer("report", Duration::from_secs(every)).and_then(|timer| timer.phase(Duration::from_secs(phase))).expect("valid");
        let shown = Arc::clone(&due);
        let run = timer.run(move |period, _| {
            shown.lock().expect("whole").push(period.due_ms);
            async { Ok::<(), String>(()) }
        });
        tokio::time::sleep(Duration::from_mins(5)).await;
        run.stop().await;
        let due = due.lock().expect("whole").clone();
        assert!(due.len() >= before + 4, "every {every} s: {due:?}");
        assert!(due[before..].iter().all(|ms| ms % (every * 1_000) == phase * 1_000), "{due:?}");
        assert!(due.is_sorted_by(|one, next| one < next), "{due:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_a_timer_is_refused_before_anything_is_contacted() {
    let world = World::new();
    let eventual = world.factory_of("a", Arc::new(world.store.link()), common::policy());
    let said = eventual.create("workers").expect("known").timer("x", EVERY).err().expect("eventual").to_string();
    assert!(said.starts_with("timer \"x\": policy workers has ownership = \"eventual\""), "{said}");
    let exclusive = world.factory_of("b", Arc::new(world.store.link()), policy()).create("workers").expect("known");
    for (name, period) in
        [("\0", EVERY), (&"x".repeat(250), EVERY), ("x", Duration::ZERO), ("x", Duration::from_millis(999)), ("x", Duration::MAX)]
    {
        assert_eq!(exclusive.timer(name, period).err().expect("refused").kind(), ErrorKind::Settings, "{name:?} {period:?}");
    }
    let timer = exclusive.timer("x", EVERY).expect("valid");
    let said = timer.phase(EVERY).err().expect("too long").to_string();
    assert_eq!(said, "timer/x: the phase 10s is not shorter than the period of 10000 ms");
}
