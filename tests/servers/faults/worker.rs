//! The worker process of the fault test: the whole library with exclusive ownership, one piece of work in each slot that it holds, a
//! singleton, a timer, and a fenced table that all workers write to.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::sync::Arc;
use std::time::Duration;

use shardwise::core::mistakes::{Mistake, make_everywhere};
use shardwise::core::{Epoch, Fence, GroupName, Resource, slot_of};
use shardwise::{Guard, Moment, PERIOD_MIN, Run, ShardKey, ShardingFactory, ShardingService, Tenure};
use shardwise_fencing::{FenceError, sqlite};
use shardwise_testkit::overlap_judge::{At, Line, StayLog};
use shardwise_testkit::start_test;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{SINGLETON, TIMER};

/// The folder and the name of a worker process; unset in the tests themselves.
const FOLDER: &str = "SHARDWISE_TEST_WORKER_FOLDER";
const NAME: &str = "SHARDWISE_TEST_WORKER_NAME";
/// A known mistake for the process to make.
const MISTAKE: &str = "SHARDWISE_TEST_WORKER_MISTAKE";
/// How often work looks whether it is still to go on, and every which time it writes.
const STEP: Duration = Duration::from_millis(40);
const STEPS_A_WRITE: u32 = 5;
/// How long a job of the timer works.
const JOB: Duration = Duration::from_millis(100);
/// How long a slot is drained.
const DRAIN: Duration = Duration::from_millis(10);
/// The same beside a mistake: longer than a change of a claim takes to arrive on a busy machine.
const DRAIN_BY_MISTAKE: Duration = Duration::from_millis(500);
/// How often code that does not ask tries to write, if the table is busy.
const STALE_WRITE_TRIES: u32 = 20;
/// Another process may have been stopped in the middle of its write.
const BUSY_MAX: Duration = Duration::from_millis(300);
/// How long a worker that could not join waits before it tries again.
const AGAIN: Duration = Duration::from_millis(200);

/// Not a test: what a worker process runs, until its input ends.
#[test]
fn worker_process() {
    let (Some(folder), Ok(name)) = (std::env::var_os(FOLDER), std::env::var(NAME)) else { return };
    let mistake = std::env::var(MISTAKE).ok().map(|name| mistake(&name));
    mistake.into_iter().for_each(make_everywhere);
    let drain = if mistake.is_some() { DRAIN_BY_MISTAKE } else { DRAIN };
    crate::meeting::runtime(&name).block_on(work(&PathBuf::from(folder), &name, drain));
}

/// The mistake of that name.
pub(crate) fn mistake(name: &str) -> Mistake {
    Mistake::ALL.into_iter().find(|mistake| mistake.name() == name).unwrap_or_else(|| panic!("no mistake is called {name}"))
}

/// Starts one, whose settings are in the folder. It is killed by the kernel when the thread ends that starts it.
pub(crate) fn start(folder: &Path, name: &str, mistake: Option<Mistake>) -> (Child, ChildStdin) {
    let mut variables = vec![(FOLDER, folder.to_str().unwrap()), (NAME, name)];
    variables.extend(mistake.map(|mistake| (MISTAKE, mistake.name())));
    start_test("faults::worker::worker_process", &variables, &folder.join(format!("{name}.log"))).unwrap()
}

/// The table that all workers write to: each row names the slot and the epoch that it was written under.
pub(crate) async fn table(folder: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(folder.join("table.db")).create_if_missing(true);
    let options = options.journal_mode(sqlx::sqlite::SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Off).busy_timeout(BUSY_MAX);
    SqlitePoolOptions::new().max_connections(2).connect_with(options).await.unwrap()
}

pub(crate) async fn make_table(folder: &Path) {
    let pool = table(folder).await;
    sqlite::create_tables(&mut pool.acquire().await.unwrap()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE work (number INTEGER PRIMARY KEY AUTOINCREMENT, slot INTEGER, epoch INTEGER)")
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;
}

async fn work(folder: &Path, name: &str, drain: Duration) {
    let _log = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::INFO).try_init();
    let service = ShardingFactory::from_file(folder.join(format!("{name}.toml"))).unwrap().create("workers").unwrap();
    let worker = Worker {
        keys: keys(service.policy().placement.slots),
        log: StayLog::open(&folder.join(format!("{name}.jsonl"))).unwrap(),
        table: table(folder).await,
        service,
        drain,
    };
    let (worker, done) = (Arc::new(worker), input_ends());
    let runs = work_of(&worker);
    let joining = async {
        while let Err(error) = worker.service.register_self().await {
            println!("not joined: {error}");
            tokio::time::sleep(AGAIN).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = joining => {}
        _ = done => {}
    }
    worker.service.deregister_self().await.unwrap();
    for run in runs {
        run.stop().await;
    }
}

/// Work in each held slot, under a singleton, and of a timer: each on a separate task that is never dropped, since a dropped task would
/// not show work that ignores cancellation.
fn work_of(worker: &Arc<Worker>) -> [Run; 3] {
    let slots = worker.service.slots({
        let worker = Arc::clone(worker);
        move |slot, epoch, cancel| {
            let hold = worker.hold(slot, epoch);
            let stay = hold.map(|hold| tokio::spawn(Arc::clone(&worker).stay(hold, cancel)));
            async move {
                if let Some(stay) = stay {
                    stay.await.unwrap();
                }
            }
        }
    });
    let singleton = worker.service.singleton("one").unwrap().run({
        let worker = Arc::clone(worker);
        move |tenure| {
            let cancel = tenure.cancel().clone();
            tokio::spawn(Arc::clone(&worker).stay(Hold::of_name(SINGLETON, tenure), cancel))
        }
    });
    let timer = worker.service.timer("tick", PERIOD_MIN).unwrap().run({
        let worker = Arc::clone(worker);
        move |period, tenure| {
            let (epoch, cancel) = (tenure.epoch().get(), tenure.cancel().child_token());
            worker.note(Line::Fired { slot: TIMER, epoch, at: worker.service.now().as_nanos(), period: period.number });
            let stay = tokio::spawn(Arc::clone(&worker).stay(Hold::of_name(TIMER, tenure), cancel.clone()));
            async move {
                tokio::time::sleep(JOB).await;
                cancel.cancel();
                stay.await
            }
        }
    });
    [slots, singleton, timer]
}

/// Ends with the input of this process, which is closed to make it leave.
fn input_ends() -> oneshot::Receiver<()> {
    let (ended, done) = oneshot::channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().for_each(drop);
        ended.send(())
    });
    done
}

/// A key in each slot.
fn keys(slots: u32) -> Vec<u64> {
    let key_in = |slot: u32| (0..u64::MAX).find(|key| slot_of(key.key_hash(), slots) == slot);
    (0..slots).filter_map(key_in).collect()
}

struct Worker {
    keys: Vec<u64>,
    log: StayLog,
    table: SqlitePool,
    service: ShardingService,
    /// How long a slot is drained.
    drain: Duration,
}

/// What a look at the deadline has shown: at that moment it was held or not, and if so, until then.
struct HoldReading {
    at: At,
    held: Option<At>,
}

/// The right under which work is done.
struct Hold {
    /// Its slot, or the number of the name.
    number: u32,
    resource: Resource,
    epoch: Epoch,
    by: By,
}

enum By {
    Guard(Guard),
    Tenure(Tenure),
}

impl Hold {
    fn of_name(number: u32, tenure: Tenure) -> Self {
        Self { number, resource: Resource::Name(tenure.name().clone()), epoch: tenure.epoch(), by: By::Tenure(tenure) }
    }

    /// Without a gap until now.
    fn is_held(&self) -> bool {
        match &self.by {
            By::Guard(guard) => guard.is_held(),
            By::Tenure(tenure) => tenure.is_held(),
        }
    }
}

impl Worker {
    /// A slot that is held under that epoch.
    fn hold(&self, slot: u32, epoch: Epoch) -> Option<Hold> {
        let guard = self.service.enter(&self.keys[slot as usize]).ok()?;
        let is_that = guard.fence() == Some(Fence { slot, epoch });
        is_that.then(|| Hold { number: slot, resource: Resource::Slot(slot), epoch, by: By::Guard(guard) })
    }

    fn note(&self, line: Line) {
        self.log.write(line).unwrap();
    }

    /// Works until it is asked to leave, or finds that its hold has ended.
    async fn stay(self: Arc<Self>, hold: Hold, cancel: CancellationToken) {
        let (slot, epoch) = (hold.number, hold.epoch.get());
        let HoldReading { at, held: Some(mut deadline) } = self.read_hold(&hold) else { return };
        self.note(Line::Enter { slot, epoch, at, until: deadline });
        for step in 0_u32.. {
            if step.is_multiple_of(STEPS_A_WRITE) {
                self.write(&hold).await;
            }
            let is_cancelled = tokio::time::timeout(STEP, cancel.cancelled()).await.is_ok();
            let HoldReading { at, held } = self.read_hold(&hold);
            match held {
                None => return self.write_stale(&hold).await,
                Some(until) if until > deadline => {
                    deadline = until;
                    self.note(Line::Held { slot, epoch, at, until });
                }
                Some(_) => {}
            }
            if is_cancelled {
                break;
            }
        }
        tokio::time::sleep(self.drain).await;
        match self.read_hold(&hold) {
            HoldReading { at, held: Some(_) } => self.note(Line::Leave { slot, epoch, at }),
            HoldReading { .. } => self.write_stale(&hold).await,
        }
    }

    /// The deadline is read first, then the clock, and held is asked last: if it is held
    /// without a gap by then, it was at that moment, and that deadline counted.
    fn read_hold(&self, hold: &Hold) -> HoldReading {
        let until = self.service.ownership().claims_end();
        let at = self.service.now();
        let held = until.filter(|_| hold.is_held()).map(Moment::as_nanos);
        // Renewed between the two reads: the next reading shows the newer deadline.
        let held = held.map(|until| until.max(at.as_nanos()));
        HoldReading { at: at.as_nanos(), held }
    }

    /// The writes of code that does not check its guard first.
    async fn write_stale(&self, hold: &Hold) {
        let (slot, epoch) = (hold.number, hold.epoch.get());
        let owns = match &hold.resource {
            Resource::Slot(slot) => self.service.fence(&self.keys[*slot as usize]) == Ok(Fence { slot: *slot, epoch: hold.epoch }),
            name @ Resource::Name(_) => self.service.ownership().epoch_at(name, self.service.now()) == Ok(hold.epoch),
        };
        self.note(Line::Lost { slot, epoch, at: self.service.now().as_nanos(), owns });
        for _ in 0..STALE_WRITE_TRIES {
            if self.write(hold).await {
                return;
            }
        }
    }

    /// Writes a row under the fence, and returns whether there was an answer: another process may be stopped inside a write.
    async fn write(&self, hold: &Hold) -> bool {
        let at = self.service.now().as_nanos();
        let passed = match self.try_write(hold).await {
            Ok(()) => true,
            Err(FenceError::Fenced(_)) => false,
            Err(error) if error.is_retryable() => {
                println!("not written: {error}");
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        let done = self.service.now().as_nanos();
        self.note(Line::Wrote { slot: hold.number, epoch: hold.epoch.get(), at, done, passed });
        true
    }

    async fn try_write(&self, Hold { number, resource, epoch, .. }: &Hold) -> Result<(), FenceError> {
        let mut tx = self.table.begin_with("BEGIN IMMEDIATE").await?;
        let group: GroupName = self.service.group_name().clone();
        sqlite::check(&mut tx, &group, resource, *epoch).await?;
        let row = sqlx::query("INSERT INTO work (slot, epoch) VALUES (?, ?)").bind(number).bind(epoch.get().cast_signed());
        row.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }
}
