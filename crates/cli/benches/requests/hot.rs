//! A key with a hundred times the load of each of fifty others, beside the same load spread evenly: eight members with eight handlers of
//! 20 ms each. Each request has a moment that is fixed in advance, and its time counts from there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use shardwise::discovery::{Clock, MemoryBackend};
use shardwise::requests::{Owned, Request, To, Width};
use shardwise::settings::PolicySettings;
use shardwise::{GroupName, InstanceId, Policy, PolicyName, Router, ShardingFactory, ShardingService, Timing};
use tokio::task::JoinSet;

use super::group::{PATIENCE, TOKEN, until};
use super::lanes::Times;
use super::print_figure;

const MEMBERS: usize = 8;
const HANDLERS: u32 = 8;
const HANDLED_FOR: Duration = Duration::from_millis(20);
const RATE: u32 = 1_600;
const EVEN: usize = 50;
/// Of 150 requests so many are for the hot key, and one for each of the others.
const HOT: usize = 100;
/// Half of a member's handlers: what is beyond goes to helpers before the member refuses any.
const SATURATED_AT: u32 = 4;

struct Fleet {
    members: Vec<ShardingService>,
    router: Arc<Router>,
}

impl Fleet {
    async fn start() -> Self {
        let clock = Clock::system();
        let store = MemoryBackend::new(clock.clone());
        let factory = |id: &str| {
            let policy = Policy::new(PolicyName::new("workers").unwrap(), GroupName::new("workers").unwrap());
            let mut settings = PolicySettings::new(policy);
            settings.discovery.backend = "bench".into();
            settings.timing = Timing::new(Duration::from_secs(10), None, Duration::from_millis(100)).unwrap();
            settings.peers.token = Some(TOKEN.to_owned().into());
            settings.requests.max_width = Width::new(4).unwrap();
            settings.requests.saturated_at = SATURATED_AT;
            settings.requests.at_once = HANDLERS;
            let builder = ShardingFactory::builder().policy(settings).backend("bench", Arc::new(store.link())).clock(clock.clone());
            builder.instance_id(InstanceId::new(id).unwrap()).build().unwrap()
        };
        let mut members = Vec::new();
        for number in 0..MEMBERS {
            let member = factory(&format!("worker-{number}")).create("workers").unwrap();
            let handler = |_: Owned| async {
                tokio::time::sleep(HANDLED_FOR).await;
                "done"
            };
            member.on_owned("work", handler).unwrap();
            member.listen_for_requests().await.unwrap();
            member.register_self().await.unwrap();
            members.push(member);
        }
        let router = Arc::new(factory("caller").router("workers").await.unwrap());
        until("all members are seen", || router.observer().members().active() == MEMBERS).await;
        Self { members, router }
    }

    /// Sends at the rate for a turn, of which the first half does not count: the width settles in it.
    async fn send(&self, is_hot: bool, turn: Duration) {
        let count = u32::try_from(turn.as_millis()).unwrap() * RATE / 1_000;
        let begins = Instant::now();
        let (mut requests, widest, mut times, mut failures) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)), Vec::new(), 0_u32);
        for number in 0..count {
            let due = begins + Duration::from_secs(1) * number / RATE;
            tokio::time::sleep_until(due.into()).await;
            let (router, widest, key) = (Arc::clone(&self.router), Arc::clone(&widest), key(number as usize, is_hot));
            let counts = number >= count / 2;
            requests.spawn(async move {
                let answered = router.ask(&To::owner(&key), Request::post("work", "text/plain", ""), PATIENCE).await;
                widest.fetch_max(router.route(&To::owner(&key)).map_or(0, |route| route.width()), Ordering::Relaxed);
                (answered.is_ok_and(|answered| answered.answer.status == 200), counts, due.elapsed())
            });
        }
        while let Some(request) = requests.join_next().await {
            let (is_answered, counts, took) = request.unwrap();
            failures += u32::from(!is_answered);
            times.extend((counts && is_answered).then_some(took));
        }
        let times = Times::of(times, turn / 2);
        let [p50, p99] = [50, 99].map(|percent| times.micros(percent).map(|micros| micros / 1e3));
        print_figure(&json!({
            "load": if is_hot { "hot" } else { "even" }, "offered": RATE, "requests": count, "failures": failures,
            "p50_ms": p50, "p99_ms": p99, "width": widest.load(Ordering::Relaxed)
        }));
    }
}

/// The key of that request: the hot one, or each of the others in turn.
fn key(number: usize, is_hot: bool) -> String {
    let place = number % (HOT + EVEN);
    // Two for the hot key, then one for another.
    if is_hot && place % 3 != 2 {
        "hot".to_owned()
    } else if is_hot {
        format!("even-{}", place / 3)
    } else {
        format!("spread-{place}")
    }
}

pub(crate) async fn measure(rounds: usize, turn: Duration) {
    let fleet = Fleet::start().await;
    for round in 0..rounds {
        for is_hot in if round % 2 == 0 { [true, false] } else { [false, true] } {
            fleet.send(is_hot, turn).await;
        }
    }
    for member in &fleet.members {
        member.deregister_self().await.unwrap();
    }
}
