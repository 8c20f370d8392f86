//! Numbered workers whose number changes while they run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use shardwise::core::GroupName;
use shardwise::discovery::Notes;
use shardwise::{ClaimName, DAEMONS_MAX, Daemons, ErrorKind, Run, ShardingService};

use super::{World, common, eventually, joined, policy};

/// Which numbers are alive, and where. Two at once under one number are a panic.
#[derive(Clone, Default)]
struct DaemonLog(Arc<Mutex<BTreeMap<u32, &'static str>>>);

struct Alive(u32, DaemonLog);

impl DaemonLog {
    fn shown(&self) -> MutexGuard<'_, BTreeMap<u32, &'static str>> {
        self.0.lock().expect("whole")
    }

    fn numbers(&self) -> Vec<u32> {
        self.shown().keys().copied().collect()
    }

    fn enter(&self, number: u32, id: &'static str) -> Alive {
        let before = self.shown().insert(number, id);
        assert_eq!(before, None, "daemon {number} is alive twice");
        Alive(number, self.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.1.shown().remove(&self.0);
    }
}

fn run(service: &ShardingService, set: &str, id: &'static str, log: &DaemonLog) -> Run {
    let log = log.clone();
    service.daemons(set).expect("exclusive").run(move |number, tenure| {
        let log = log.clone();
        async move {
            let _alive = log.enter(number, id);
            tenure.cancel().cancelled().await;
            Ok::<(), String>(())
        }
    })
}

async fn set(daemons: &Daemons, number: u32) {
    let seen = daemons.count().await.expect("read");
    assert_eq!(daemons.set_count(seen, number).await.expect("set").get(), number);
}

#[tokio::test(start_paused = true)]
async fn each_is_alive_once_and_the_number_changes_while_they_run() {
    let (world, log) = (World::new(), DaemonLog::default());
    let fleet = [joined(&world, "a").await, joined(&world, "b").await, joined(&world, "c").await];
    let _runs: Vec<_> = ["a", "b", "c"].into_iter().zip(&fleet).map(|(id, service)| run(service, "", id, &log)).collect();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(log.numbers().is_empty(), "nobody has set a number");
    let daemons = fleet[0].daemons("").expect("exclusive");
    for number in [6, 2, 9, 1, 0, 4] {
        set(&daemons, number).await;
        let changed = world.clock.now();
        // Those that begin need their claims after the event, which is there within a TTL.
        eventually("all of them and no others live", || log.numbers() == (0..number).collect::<Vec<_>>()).await;
        let took = world.clock.now().since(changed);
        assert!(took <= Duration::from_secs(6), "{number}: took {took:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(log.numbers(), (0..number).collect::<Vec<_>>(), "and so it stays");
    }
    let names: Vec<_> =
        fleet.iter().flat_map(|service| service.ownership().names().map(|(name, _)| name.to_string()).collect::<Vec<_>>()).collect();
    let mut names = names;
    names.sort();
    assert_eq!(names, ["daemon/0", "daemon/1", "daemon/2", "daemon/3"]);
    for service in &fleet {
        assert!(service.ownership().names().count() <= 2, "they are spread");
    }
    let [a, _b, _c] = fleet;
    a.deregister_self().await.expect("leaves");
    eventually("the others have them all", || {
        let shown = log.shown();
        shown.keys().copied().eq(0..4) && shown.values().all(|id| *id != "a")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn sets_are_apart_and_stopping_one_run_leaves_the_others() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let (jobs, mails, plain) = (DaemonLog::default(), DaemonLog::default(), DaemonLog::default());
    let runs = [run(&a, "jobs", "a", &jobs), run(&a, "mails", "a", &mails), run(&a, "", "a", &plain)];
    set(&a.daemons("jobs").expect("exclusive"), 2).await;
    set(&a.daemons("mails").expect("exclusive"), 3).await;
    set(&a.daemons("").expect("exclusive"), 1).await;
    eventually("all live", || (jobs.numbers().len(), mails.numbers().len(), plain.numbers().len()) == (2, 3, 1)).await;
    let [first, _second, _third] = runs;
    first.stop().await;
    assert_eq!((jobs.numbers().len(), mails.numbers().len(), plain.numbers().len()), (0, 3, 1));
    eventually("its claims are given back", || a.ownership().names().count() == 4).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_that_set_the_number_at_once_one_does_and_the_other_gets_the_present_number() {
    let world = World::new();
    let fleet = [joined(&world, "a").await, joined(&world, "b").await];
    let daemons = fleet.each_ref().map(|service| service.daemons("ingest").expect("exclusive"));
    for round in 1..=3 {
        let seen = [daemons[0].count().await.expect("read"), daemons[1].count().await.expect("read")];
        assert_eq!(seen[0], seen[1]);
        let [one, two] = [round * 10, round * 10 + 1];
        let (first, second) = tokio::join!(daemons[0].set_count(seen[0], one), daemons[1].set_count(seen[1], two));
        let set = [&first, &second].into_iter().flatten().map(shardwise::DaemonCount::get).collect::<Vec<_>>();
        let [set] = set[..] else { panic!("{first:?}, {second:?}") };
        let refused = [first, second].into_iter().find_map(Result::err).expect("one is refused");
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(!refused.is_retryable());
        let said = format!("daemon/ingest: another process changed the number of daemons: it is {set} now; read it and decide again");
        assert_eq!(refused.to_string(), said);
    }
    assert_eq!(daemons[0].count_or_set(7).await.expect("there").get(), daemons[1].count().await.expect("read").get());
    let other = fleet[0].daemons("other").expect("exclusive");
    assert!(!other.count().await.expect("read").is_set());
    let (one, two) = tokio::join!(other.count_or_set(7), other.count_or_set(8));
    let (one, two) = (one.expect("set or there"), two.expect("set or there"));
    assert_eq!(one, two, "both see the one that was set");
}

/// Overwrites the group's note of that name, as an operator would by hand.
async fn by_hand(world: &World, name: &str, text: &str) {
    let (group, name) = (GroupName::new(common::policy().group.as_str()).expect("valid"), ClaimName::new(name).expect("valid"));
    let there = world.store.note(&group, &name).await.expect("read").map_or(0, |note| note.version);
    world.store.write_note(&group, &name, there, text).await.expect("written");
}

#[tokio::test(start_paused = true)]
async fn a_note_that_is_no_number_changes_nothing_until_it_is_corrected() {
    let (world, log) = (World::new(), DaemonLog::default());
    let a = joined(&world, "a").await;
    let _run = run(&a, "", "a", &log);
    let daemons = a.daemons("").expect("exclusive");
    set(&daemons, 3).await;
    eventually("three live", || log.numbers().len() == 3).await;
    for text in ["", "three", "{}", "{\"n\":-1}", "{\"n\":1025}", "{\"n\":99999999999}", "3"] {
        by_hand(&world, "daemon", text).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(log.numbers(), [0, 1, 2], "{text:?}");
        let error = daemons.count().await.expect_err("no number");
        assert_eq!(error.kind(), ErrorKind::Backend, "{text:?}: {error}");
        assert!(error.to_string().contains("cannot be read") && error.to_string().contains("0 to 1024"), "{error}");
    }
    by_hand(&world, "daemon", "{\"n\":5}").await;
    eventually("five live", || log.numbers() == [0, 1, 2, 3, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_panics_or_fails_is_begun_again_and_the_others_go_on() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let begun: Arc<Mutex<BTreeMap<u32, u32>>> = Arc::default();
    let counted = Arc::clone(&begun);
    let daemons = a.daemons("d").expect("exclusive");
    set(&daemons, 3).await;
    let _run = daemons.run(move |number, tenure| {
        let times = *counted.lock().expect("whole").entry(number).and_modify(|times| *times += 1).or_insert(1);
        async move {
            assert!(number != 1 || times > 2, "a mistake in the user's code");
            if number == 2 && times < 3 {
                return Err("not yet");
            }
            tenure.cancel().cancelled().await;
            Ok(())
        }
    });
    eventually("both were begun three times", || begun.lock().expect("whole").values().copied().eq([1, 3, 3])).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(begun.lock().expect("whole").values().copied().eq([1, 3, 3]), "and then they run");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_daemons_is_refused_before_anything_is_contacted() {
    let world = World::new();
    let eventual = world.factory_of("a", Arc::new(world.store.link()), common::policy());
    let said = eventual.create("workers").expect("known").daemons("x").expect_err("eventual").to_string();
    assert!(said.starts_with("daemons \"x\": policy workers has ownership = \"eventual\""), "{said}");
    let exclusive = world.factory_of("b", Arc::new(world.store.link()), policy()).create("workers").expect("known");
    for set in ["\0", &"x".repeat(250)] {
        assert_eq!(exclusive.daemons(set).expect_err("no name").kind(), ErrorKind::Settings, "{set:?}");
    }
    let daemons = exclusive.daemons(&"x".repeat(240)).expect("it has room for the numbers");
    let seen = daemons.count().await.expect("read");
    let error = daemons.set_count(seen, DAEMONS_MAX + 1).await.expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::Settings);
    assert!(error.to_string().ends_with("1025 daemons are too many; 0 to 1024 are allowed"), "{error}");
}
