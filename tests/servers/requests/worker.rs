//! The worker process of the request tests: the whole library with handlers of all kinds, and a log of what they handled.

use std::future::{pending, ready};
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use shardwise::requests::{Answer, Held, Owned, OwnedOptions, Request, SessionLimits, SessionRequest};
use shardwise::{Guard, Moment, OwnershipMode, ShardingFactory, ShardingService};
use shardwise_testkit::overlap_judge::{Line, StayLog};
use shardwise_testkit::{TcpProxy, Usage, start_test};
use tokio::sync::mpsc;

use super::log::{Call, RequestLog};

/// The folder and the name of a worker process; unset in the tests themselves.
const FOLDER: &str = "SHARDWISE_TEST_ASKED_FOLDER";
const NAME: &str = "SHARDWISE_TEST_ASKED_NAME";
/// Set if others reach the process through a proxy, which orders on its input cut.
const PROXIED: &str = "SHARDWISE_TEST_ASKED_PROXIED";
/// How long a worker that could not join waits before it tries again.
const AGAIN: Duration = Duration::from_millis(200);

/// Not a test: what a worker process runs, until its input ends.
#[test]
fn worker_process() {
    let (Some(folder), Ok(name)) = (std::env::var_os(FOLDER), std::env::var(NAME)) else { return };
    crate::meeting::runtime(&name).block_on(work(&PathBuf::from(folder), &name));
}

/// Starts one, whose settings are in the folder. It is killed by the kernel when the thread ends that starts it.
pub(crate) fn start(folder: &Path, name: &str, is_proxied: bool) -> (Child, ChildStdin) {
    let mut variables = vec![(FOLDER, folder.to_str().unwrap()), (NAME, name)];
    variables.extend(is_proxied.then_some((PROXIED, "yes")));
    start_test("requests::worker::worker_process", &variables, &folder.join(format!("{name}.log"))).unwrap()
}

/// The lines of the requests that a worker has handled, and those of the slots that it worked in.
pub(crate) fn logs(folder: &Path, name: &str) -> [PathBuf; 2] {
    ["requests", "jsonl"].map(|kind| folder.join(format!("{name}.{kind}")))
}

async fn work(folder: &Path, name: &str) {
    let _log = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::INFO).try_init();
    let service = ShardingFactory::from_file(folder.join(format!("{name}.toml"))).unwrap().create("workers").unwrap();
    let [requests, stays] = logs(folder, name);
    let worker = Arc::new(Worker {
        requests: RequestLog::open(&requests),
        stays: StayLog::open(&stays).unwrap(),
        opened: AtomicU64::new(0),
        ended: Arc::default(),
        service: service.clone(),
    });
    answers(&worker);
    answers_keys(&worker);
    answers_sessions(&worker);
    let bound = service.listen_for_requests().await.unwrap();
    let proxy = if std::env::var_os(PROXIED).is_some() { Some(TcpProxy::start(bound).await.unwrap()) } else { None };
    if let Some(proxy) = &proxy {
        service.requests_arrive_at(proxy.address(), false).unwrap();
    }
    let is_exclusive = service.policy().ownership == OwnershipMode::Exclusive;
    let desk = is_exclusive.then(|| {
        service.singleton("desk").unwrap().run(|tenure| async move {
            tenure.cancel().cancelled().await;
            Ok::<(), String>(())
        })
    });
    let joining = async {
        while let Err(error) = service.register_self().await {
            println!("not joined: {error}");
            tokio::time::sleep(AGAIN).await;
        }
        pending::<()>().await;
    };
    tokio::select! {
        () = joining => {}
        () = obeys(proxy.as_ref()) => {}
    }
    service.deregister_self().await.unwrap();
    if let Some(run) = desk {
        run.stop().await;
    }
}

/// Does to the proxy what the lines on the input say. Ends with the input, which is closed to make the worker leave.
async fn obeys(proxy: Option<&TcpProxy>) {
    let (said, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
    while let Some(order) = orders.recv().await {
        match (order.as_str(), proxy) {
            ("cut", Some(proxy)) => proxy.cut_both(),
            ("reset", Some(proxy)) => proxy.reset(),
            ("refuse", Some(proxy)) => proxy.refuse().await.unwrap(),
            ("heal", Some(proxy)) => proxy.heal().await.unwrap(),
            (other, _) => panic!("{other:?} is no order"),
        }
    }
}

struct Worker {
    requests: RequestLog,
    stays: StayLog,
    opened: AtomicU64,
    ended: Arc<AtomicU64>,
    service: ShardingService,
}

/// Requests to one member, to any and to the holder of a name.
fn answers(worker: &Arc<Worker>) {
    let (service, id) = (&worker.service, worker.service.instance_id().to_string());
    let name = id.clone();
    service.on_request("who", move |_: Request| ready(name.clone())).unwrap();
    let name = id.clone();
    service.on_any("who", move |_: Request| ready(name.clone())).unwrap();
    if service.policy().ownership == OwnershipMode::Exclusive {
        service.on_held("who", move |held: Held| ready(format!("{id} {}", held.epoch))).unwrap();
    }
    let counting = Arc::clone(worker);
    let count = move |request: Request| {
        Call::begin(&counting.requests, &text(&request.body)).done();
        ready("counted")
    };
    service.on_any("count", count).unwrap();
    let figures = Arc::clone(worker);
    let figures = move |_: Request| {
        let [opened, ended] = [&figures.opened, &*figures.ended].map(|number| number.load(Ordering::Relaxed));
        ready(json!({ "opened": opened, "ended": ended, "memory": Usage::of_threads("").unwrap().memory }))
    };
    service.on_request("figures", figures).unwrap();
}

/// Requests to keys: `work` one at a time and with a line for the slot, `who`, `slow` and `hang` any number at once.
fn answers_keys(worker: &Arc<Worker>) {
    let (service, id) = (&worker.service, worker.service.instance_id().to_string());
    let name = id.clone();
    service.on_owned("who", move |_: Owned| ready(name.clone())).unwrap();
    let slow = move |owned: Owned| {
        let id = id.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if owned.is_owner() { id } else { format!("{id} helps") }
        }
    };
    service.on_owned("slow", slow).unwrap();
    let hanging = Arc::clone(worker);
    let hang = move |owned: Owned| {
        let worker = Arc::clone(&hanging);
        async move {
            let _call = Call::begin(&worker.requests, &text(&owned.request.body));
            pending::<String>().await
        }
    };
    service.on_owned("hang", hang).unwrap();
    let working = Arc::clone(worker);
    let work = move |owned: Owned| {
        let worker = Arc::clone(&working);
        async move { worker.handle(&owned).await }
    };
    service.on_owned_with("work", OwnedOptions::default().one_at_a_time(), work).unwrap();
}

/// Sessions: `open` at the owner of a key, `say` and `close` at the member that opened it.
fn answers_sessions(worker: &Arc<Worker>) {
    let (service, opening, saying) = (&worker.service, Arc::clone(worker), Arc::clone(worker));
    service.on_owned("open", move |owned: Owned| ready(opening.open(&owned))).unwrap();
    let say = move |request: SessionRequest| {
        let (own, minter) = (saying.service.incarnation(), request.session.id().minter());
        let foreign = || Answer::problem(500, "not-minted", "Not mine", "another one minted it");
        ready(if own == minter { Ok(own.to_string()) } else { Err(foreign()) })
    };
    service.on_session("say", say).unwrap();
    service.on_session("close", |request: SessionRequest| ready(request.session.end().to_string())).unwrap();
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

impl Worker {
    /// Handles the request of that number for so many milliseconds; the body has both.
    async fn handle(&self, owned: &Owned) -> Result<String, Answer> {
        let body = text(&owned.request.body);
        let job = body.split_once(' ').and_then(|(number, millis)| Some((number, millis.parse().ok()?)));
        let Some((number, millis)) = job else {
            return Err(Answer::problem(400, "bad-request", "No job", "write a number and milliseconds"));
        };
        let call = Call::begin(&self.requests, number);
        let _stay = owned.guard.clone().and_then(|guard| WorkStay::begin(self, guard));
        tokio::time::sleep(Duration::from_millis(millis)).await;
        call.done();
        Ok(self.service.instance_id().to_string())
    }

    /// Opens a session of the key; the body is how many milliseconds it may be idle. The answer has its id, and the incarnation that
    /// minted it.
    fn open(&self, owned: &Owned) -> Result<String, Answer> {
        let Ok(idle) = text(&owned.request.body).parse::<u64>() else {
            return Err(Answer::problem(400, "bad-request", "No session", "write milliseconds"));
        };
        let limits = SessionLimits { idle: Duration::from_millis(idle), life: Duration::from_mins(1), per_key: 60_000 };
        let refused = |error: &dyn std::fmt::Display| Answer::problem(503, "no-session", "No session", &error.to_string());
        let session = self.service.open_session(&owned.key, limits).map_err(|error| refused(&error))?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        let ended = Arc::clone(&self.ended);
        session.on_end(move |_| {
            ended.fetch_add(1, Ordering::Relaxed);
            ready(())
        });
        Ok(format!("{} {}", session.id(), self.service.incarnation()))
    }
}

/// The time in which a call works in a slot that this worker holds.
struct WorkStay<'a> {
    worker: &'a Worker,
    guard: Arc<Guard>,
    slot: u32,
    epoch: u64,
}

impl<'a> WorkStay<'a> {
    /// The deadline is read first, then the clock, and held is asked last: if it is held by then, it was at that moment.
    fn begin(worker: &'a Worker, guard: Arc<Guard>) -> Option<Self> {
        let fence = guard.fence()?;
        let until = worker.service.ownership().claims_end().map(Moment::as_nanos)?;
        let at = worker.service.now().as_nanos();
        if !guard.is_held() {
            return None;
        }
        let (slot, epoch) = (fence.slot, fence.epoch.get());
        worker.stays.write(Line::Enter { slot, epoch, at, until: until.max(at) }).unwrap();
        Some(Self { worker, guard, slot, epoch })
    }
}

impl Drop for WorkStay<'_> {
    fn drop(&mut self) {
        let (slot, epoch) = (self.slot, self.epoch);
        let until = self.worker.service.ownership().claims_end().map(Moment::as_nanos);
        let at = self.worker.service.now().as_nanos();
        match until.filter(|_| self.guard.is_held()) {
            Some(until) => {
                // Renewed meanwhile, so that all of the stay counts.
                self.worker.stays.write(Line::Held { slot, epoch, at, until: until.max(at) }).unwrap();
                self.worker.stays.write(Line::Leave { slot, epoch, at }).unwrap();
            }
            None => self.worker.stays.write(Line::Lost { slot, epoch, at, owns: false }).unwrap(),
        }
    }
}
