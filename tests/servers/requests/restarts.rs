//! Requests while every member is restarted, and after owners are killed: repeatable ones have no error. A soak reports how long a key is
//! without an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use shardwise::Router;
use shardwise::requests::{Request, To};
use shardwise_testkit::Lag;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, LONG, Sharing, keys, post, thousands};
use super::{TTL, after_ttl};
use crate::figures;
use crate::meeting::Kind;

on_each_alone!(a_rolling_restart_has_no_error_for_requests_that_may_be_repeated; soak: nats Nats, postgres Postgres);
on_each_alone!(after_each_kill_the_first_success_comes_in_time; soak: nats Nats, postgres Postgres);

/// In a soak the members are restarted so often.
const ROLLS: usize = 10;
const KILLS: usize = 10;
/// Between two requests of one key: in a soak, which measures how long a key is without an answer, and in the short form.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// What came of the requests to one key.
#[derive(Default)]
struct Lane {
    answered: u64,
    errors: Vec<String>,
    /// From the last answer of one owner to the first of the next one.
    handovers: Vec<Duration>,
}

impl Lane {
    /// Asks the owner of a key again and again: with `GET`, and with `POST` and an idempotency key.
    fn start(fleet: &Fleet, key: String, over: CancellationToken) -> JoinHandle<Self> {
        let router = Arc::clone(&fleet.router);
        fleet.runtime.spawn(async move {
            let (mut lane, mut last) = (Self::default(), None);
            let [brief, long] = PAUSES;
            let pause = if thousands().is_some() { brief } else { long };
            while !over.is_cancelled() {
                lane.ask(&router, &key, &mut last).await;
                tokio::time::sleep(pause).await;
            }
            lane
        })
    }

    async fn ask(&mut self, router: &Router, key: &str, last: &mut Option<(String, Instant)>) {
        let number = self.answered + self.errors.len() as u64;
        let keyed = || post("who", "").with_idempotency_key(format!("{key}-{number}"));
        let request = if number.is_multiple_of(2) { Request::get("who") } else { keyed() };
        match router.ask(&To::owner(key), request, LONG).await {
            Ok(answered) if answered.answer.status == 200 => {
                let (by, now) = (answered.by.to_string(), Instant::now());
                if let Some((_, before)) = last.as_ref().filter(|(before, _)| *before != by) {
                    self.handovers.push(now - *before);
                }
                self.answered += 1;
                *last = Some((by, now));
            }
            Ok(answered) => self.errors.push(format!("{answered:?}")),
            Err(error) => self.errors.push(error.to_string()),
        }
    }
}

fn a_rolling_restart_has_no_error_for_requests_that_may_be_repeated(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Exclusive, 3);
    let over = CancellationToken::new();
    let lanes: Vec<_> = keys().into_iter().map(|key| Lane::start(&fleet, key, over.clone())).collect();
    for _ in 0..if thousands().is_some() { ROLLS } else { 1 } {
        for name in fleet.names() {
            fleet.leave(&name);
            fleet.settle();
            fleet.admit(&name);
            fleet.settle();
        }
    }
    over.cancel();
    let mut all = Lane::default();
    for lane in lanes {
        let lane = fleet.runtime.block_on(lane).unwrap();
        all.answered += lane.answered;
        all.errors.extend(lane.errors);
        all.handovers.extend(lane.handovers);
    }
    all.handovers.sort_unstable();
    let at = |percent: usize| all.handovers[(all.handovers.len() * percent).div_ceil(100).max(1) - 1].as_secs_f64() * 1e3;
    assert!(!all.handovers.is_empty(), "no key has changed its owner");
    figures::note(&json!({
        "scene": "rolling", "backend": fleet.place.name(), "answered": all.answered, "errors": all.errors.len(),
        "handovers": all.handovers.len(), "median_ms": at(50), "p99_ms": at(99), "worst_ms": at(100)
    }));
    assert!(all.errors.is_empty(), "{:#?}", all.errors);
    fleet.end();
}

/// The keys of a killed owner, each asked from the kill on.
fn after_each_kill_the_first_success_comes_in_time(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Exclusive, 3);
    for round in 0..if thousands().is_some() { KILLS } else { 1 } {
        let victim = fleet.owner(&keys()[round % keys().len()]);
        let orphans: Vec<String> = keys().into_iter().filter(|key| fleet.owner(key) == victim).collect();
        let (lag, killed) = (Lag::begin(), Instant::now());
        fleet.kill(&victim);
        let router = &fleet.router;
        let asks = orphans.iter().map(|key| async move {
            let answered = router.ask(&To::owner(key), Request::get("who"), LONG).await.unwrap_or_else(|error| panic!("{key}: {error}"));
            (answered.by.to_string(), killed.elapsed())
        });
        let answers = fleet.runtime.block_on(futures::future::join_all(asks));
        assert!(answers.iter().all(|(by, _)| *by != victim), "{answers:?}");
        let (took, late) = (answers.iter().map(|(_, took)| *took).max().unwrap(), lag.allowance());
        figures::note(&json!({
            "scene": "first success", "backend": fleet.place.name(), "keys": answers.len(), "took_ms": took.as_secs_f64() * 1e3
        }));
        // A soak judges all of them, on a machine that does nothing else.
        let is_in_time = thousands().is_some() || took <= TTL + after_ttl(kind) + late;
        assert!(is_in_time, "{took:?} after the kill, with a TTL of {TTL:?} and {late:?} for this machine");
        fleet.admit(&format!("next-{round}"));
        fleet.settle();
    }
    fleet.end();
}
