//! Consul only: a worker's agent loses its servers, while the worker still reaches the agent.

use std::time::Duration;

use serde_json::json;
use shardwise_testkit::{Consul, ConsulOptions};
use tokio::runtime::Runtime;

use crate::common::Place;
use crate::common::lines::{number, owns};
use crate::meeting::{Kind, SLOTS, SOON, alone, differ_at_most, is_active_of, leave, now_ns, policy, settle, shared, start_worker};
use crate::soak;

const TTL: Duration = Duration::from_secs(2);
/// The limit for gossip to detect that the node is gone, and that it is back: usually 8 s, and up to 20 s.
const GOSSIP_MAX: Duration = Duration::from_mins(1);

#[test]
fn a_worker_whose_agent_has_lost_its_servers_stops_by_its_deadline_and_the_others_take_over() {
    let _alone = alone();
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Consul::start(ConsulOptions::default().with_network())).unwrap();
    let agent = runtime.block_on(server.agent("far")).unwrap();
    let place = Place::empty();
    let policy = policy("workers", "");
    place.write("far.toml", Kind::Consul.settings(&agent.address(), "2s", "") + &policy);
    place.write("near.toml", Kind::Consul.settings(&server.address(), "2s", "") + &policy);
    let workers = [("far.toml", "far"), ("near.toml", "near-1"), ("near.toml", "near-2")];
    let mut fleet: Vec<_> = workers.iter().map(|(settings, id)| start_worker(&place, settings, "workers", id)).collect();
    settle(&mut fleet);
    let had = owns(fleet[0].printed.last().unwrap());

    agent.cut_off().unwrap();
    let cut = now_ns();
    let stopped = fleet[0].prints_within(SOON, "it has stopped", |line| owns(line) == 0);
    assert_eq!((stopped["state"].as_str(), number(&stopped, "lost")), (Some("fenced"), had), "{stopped}");
    let deadline = fleet[0].printed.iter().rev().map(|line| number(line, "owned_until_ns")).find(|until| *until > 0).unwrap();
    let owned_for = Duration::from_nanos(deadline.saturating_sub(cut));
    assert!(owned_for < TTL, "it owned for {owned_for:?} after its agent was cut off");

    let taken = fleet[1..].iter_mut().map(|worker| worker.shows(GOSSIP_MAX, "it takes over", is_active_of(2)));
    let taken = taken.map(|line| number(&line, "monotonic_ns")).max().unwrap_or_default();
    shared(&fleet[1..]);
    assert!(taken > deadline, "taken over before the deadline of the one that had it");
    fleet[0].catch_up();
    assert!(fleet[0].printed.iter().rev().take_while(|line| number(line, "monotonic_ns") > deadline).all(|line| owns(line) == 0));

    let healed = now_ns();
    runtime.block_on(agent.heal()).unwrap();
    let back = fleet[0].prints_within(GOSSIP_MAX, "it is back", |line| is_active_of(3)(line) && owns(line) > 0);
    settle(&mut fleet);
    let seconds = |from: u64, to: u64| Duration::from_nanos(to - from).as_secs_f64();
    soak::note(&json!({ "taken_over_s": seconds(cut, taken), "back_s": seconds(healed, number(&back, "monotonic_ns")) }));
    assert!(owns(&back) < u64::from(SLOTS));
    differ_at_most(TTL, &fleet);
    leave(&mut fleet);
}
