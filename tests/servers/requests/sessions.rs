//! Thousands of sessions that are opened, used, closed or left alone, while members are killed: no id reaches a member that did not mint
//! it, and a member that lives has its memory back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use shardwise::Router;
use shardwise::requests::{AskError, NoRoute, Request, SessionId, To};

use super::fleet::{Fleet, LONG, SETTLED_WITHIN, Sharing, instance, post, thousands};
use crate::figures;
use crate::meeting::{Kind, until};

on_all_at_once!(no_session_reaches_a_member_that_did_not_open_it; soak: nats Nats, postgres Postgres, valkey Valkey);

/// In a round of the short form; in all rounds of a soak for each thousand of its requests.
const FEW: u32 = 150;
const OF_A_THOUSAND: u32 = 3_000;
/// Of the short form, and of a soak.
const ROUNDS: [u32; 2] = [2, 3];
const LANES: u32 = 32;
/// After so many milliseconds without a request a session ends: longer than a request waits, on a busy machine too.
const IDLE_MS: &str = "5000";
/// So many ids of a killed member are tried.
const TRIED: usize = 20;
/// What a member may have grown by from the first round to the last, in bytes.
const GROWTH_MAX: u64 = 4 << 20;

/// A session as its opener sees it.
struct Opened {
    id: SessionId,
    by: String,
    minter: String,
}

impl Opened {
    async fn open(router: &Router, number: u32) -> Self {
        let key = format!("tenant-{}", number % 97);
        let answered = router.ask(&To::owner(&key), post("open", IDLE_MS), LONG).await.unwrap_or_else(|error| panic!("{key}: {error}"));
        let said = String::from_utf8_lossy(&answered.answer.body).into_owned();
        let (id, minter) = said.split_once(' ').unwrap_or_else(|| panic!("{key}: {said}"));
        Self { id: id.parse().unwrap(), by: answered.by.to_string(), minter: minter.to_owned() }
    }

    /// It is reached; returns whether by another member or incarnation than its own.
    async fn is_misdirected(&self, router: &Router) -> bool {
        let answered =
            router.ask(&To::Session(&self.id), post("say", ""), LONG).await.unwrap_or_else(|error| panic!("{}: {error}", self.by));
        let said = String::from_utf8_lossy(&answered.answer.body);
        answered.answer.status != 200 || (answered.by.as_str(), said.as_ref()) != (self.by.as_str(), self.minter.as_str())
    }
}

fn no_session_reaches_a_member_that_did_not_open_it(kind: Option<Kind>) {
    let rounds = ROUNDS[usize::from(thousands().is_some())];
    let of_a_round = thousands().map_or(FEW, |thousands| u32::try_from(thousands).unwrap() * OF_A_THOUSAND / rounds);
    let mut fleet = Fleet::start(kind, Sharing::Spread, 3);
    let (mut misdirected, mut after_death, mut memory) = (0, 0, Vec::new());
    for round in 0..rounds {
        let opened = open(&fleet, of_a_round, &mut misdirected);
        // The first one lives through all rounds.
        let victim = format!("worker-{}", 1 + round % 2);
        fleet.kill(&victim);
        // Under its name another incarnation comes.
        fleet.admit(&victim);
        let of_the_dead: Vec<_> = opened.iter().filter(|session| session.by == victim).take(TRIED).collect();
        assert!(!of_the_dead.is_empty(), "{victim} has opened no session");
        for session in of_the_dead {
            until("a session of a dead member has ended", SETTLED_WITHIN, || {
                match fleet.ask(&To::Session(&session.id), Request::get("say")) {
                    Err(AskError::NoRoute(NoRoute::SessionEnded)) => Ok(()),
                    Err(error) => Err(error.to_string()),
                    Ok(answered) => panic!("a session of {victim}, which is dead, is answered: {answered:?}"),
                }
            });
            after_death += 1;
        }
        fleet.settle();
        memory.push(all_ended(&fleet));
    }
    let growth = memory[memory.len() - 1].saturating_sub(memory[0]);
    figures::note(&json!({
        "scene": "sessions", "backend": fleet.place.name(), "opened": of_a_round * rounds, "misdirected": misdirected,
        "after_death": after_death, "growth_kb": growth / 1024
    }));
    assert_eq!(misdirected, 0, "sessions answered by a member that did not open them");
    assert!(growth <= GROWTH_MAX, "after each round, with no session open, it had {memory:?} bytes");
    fleet.end();
}

/// Opens so many, uses each, closes a third, and leaves the others alone.
fn open(fleet: &Fleet, count: u32, misdirected: &mut u32) -> Vec<Opened> {
    let next = Arc::new(AtomicU32::new(0));
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let (router, next) = (Arc::clone(&fleet.router), Arc::clone(&next));
            fleet.runtime.spawn(async move {
                let (mut opened, mut misdirected) = (Vec::new(), 0);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return (opened, misdirected);
                    }
                    let session = Opened::open(&router, number).await;
                    misdirected += u32::from(session.is_misdirected(&router).await);
                    if number.is_multiple_of(3) {
                        let closed = router.ask(&To::Session(&session.id), post("close", ""), LONG).await;
                        assert!(closed.as_ref().is_ok_and(|answered| answered.answer.status == 200), "{closed:?}");
                    } else {
                        opened.push(session);
                    }
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for lane in lanes {
        let (opened, of_lane) = fleet.runtime.block_on(lane).unwrap();
        all.extend(opened);
        *misdirected += of_lane;
    }
    all
}

/// Waits until each session of the members that live has ended, and its callback was called once; the memory of the first one then.
fn all_ended(fleet: &Fleet) -> u64 {
    let figures_of =
        |name: &str| -> Value { serde_json::from_str(&fleet.answer(&To::Member(&instance(name)), Request::get("figures"))).unwrap() };
    let mut memory = 0;
    until("all sessions end", SETTLED_WITHIN, || {
        for name in fleet.names() {
            let figures = figures_of(&name);
            if figures["opened"] != figures["ended"] {
                return Err(format!("{name}: {figures}"));
            }
        }
        memory = figures_of("worker-0")["memory"].as_u64().unwrap();
        Ok(())
    });
    memory
}
