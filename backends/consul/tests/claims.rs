//! The conformance cases of claims over real agents, in real time.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use common::{open, settle};
use futures::{StreamExt, stream};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::Scope;
use shardwise_testkit::{Consul, ConsulCluster, ConsulOptions};

/// The check has half of it, and a busy machine has to renew within that.
const TTL: Duration = Duration::from_secs(2);
/// How many cases run at a time.
const AT_ONCE: usize = 4;

type Case = for<'a> fn(&'a Scope) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! cases {
    ($($case:ident)*) => { [$((stringify!($case), |scope| Box::pin(shardwise_discovery::conformance::$case(scope)))),*] };
}

/// All of them, as in `claims_conformance_tests!`: a server for each case would take minutes.
const CASES: [(&str, Case); 19] = cases!(
    claims_01_a_free_resource_is_granted_once
    claims_01_of_many_that_ask_at_once_one_gets_each
    claims_02_epochs_rise
    claims_03_only_a_living_record_claims
    claims_03_asking_again_keeps_what_is_held
    claims_04_renewing_keeps_claims
    claims_04_a_silent_members_claims_come_free
    claims_04_leaving_frees
    claims_04_a_new_life_does_not_hold_what_the_former_held
    claims_05_what_is_released_is_free_at_once
    claims_05_no_member_releases_what_is_not_theirs
    claims_06_the_watch_begins_with_everything
    claims_06_no_change_is_lost
    claims_06_a_death_is_reported
    claims_06_silence_is_proven
    claims_07_the_store_is_one_and_a_floor_lifts_its_epochs
    claims_08_thousands_in_one_call
    claims_08_one_that_is_held_does_not_keep_the_others
    claims_of_any_name_and_group_are_apart
);

/// Runs them all, each in a separate group.
async fn all_of_it(agent: &Consul, other: &Consul) {
    settle(agent).await;
    settle(other).await;
    // The same for all cases: the ids and incarnations of their members are the same, which those of two processes never are.
    let (backend, peer) = (Arc::new(open(&agent.address())), Arc::new(open(&other.address())));
    stream::iter(CASES)
        .for_each_concurrent(AT_ONCE, async |(name, case)| {
            println!("{name}");
            let group = GroupName::new(name).unwrap();
            let (backend, peer) = (backend.clone(), peer.clone());
            case(&Scope { backend, peer, group, ttl: TTL, clock: Clock::system(), guard: Box::new(()) }).await;
        })
        .await;
}

/// Two backends of one agent, as two processes of a machine have them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_it_on_one_server() {
    let consul = Consul::single().await.unwrap();
    all_of_it(&consul, &consul).await;
}

/// Members of two machines, each through its local agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_it_on_three_servers_with_client_agents() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default()).await.unwrap();
    let (left, right) = (cluster.agent("left").await.unwrap(), cluster.agent("right").await.unwrap());
    all_of_it(&left, &right).await;
}
