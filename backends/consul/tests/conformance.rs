//! The public conformance suite over real agents, in real time.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{here, settle};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::{Consul, Error};
use tokio::sync::OnceCell;

/// A scope whose group no other case uses.
fn scope(backend: &Consul, peer: &Consul) -> Scope {
    static GROUPS: AtomicU64 = AtomicU64::new(0);
    Scope {
        backend: Arc::new(common::open(&backend.address())),
        peer: Arc::new(common::open(&peer.address())),
        group: GroupName::new(format!("conformance {}", GROUPS.fetch_add(1, Ordering::Relaxed))).unwrap(),
        ttl: Duration::from_secs(1),
        clock: Clock::system(),
        guard: Box::new(()),
    }
}

/// Two backends of one agent, as two processes of a machine have them. All cases share the agent, with the same ids in other groups.
struct OneAgent;

#[async_trait]
impl Fixture for OneAgent {
    async fn scope(&self) -> Scope {
        static SHARED: OnceCell<Consul> = OnceCell::const_new();
        let start = async || {
            let consul = Consul::single().await?;
            settle(&consul).await;
            Ok::<_, Error>(consul)
        };
        let consul = here(SHARED.get_or_try_init(start)).unwrap();
        scope(consul, consul)
    }
}

mod one_agent {
    use super::*;
    shardwise_discovery::conformance_tests!(OneAgent);
}

/// Two backends of two agents, as two machines have them. All cases share the agents and their server.
struct TwoAgents;

#[async_trait]
impl Fixture for TwoAgents {
    async fn scope(&self) -> Scope {
        static SHARED: OnceCell<[Consul; 3]> = OnceCell::const_new();
        let start = async || {
            let server = Consul::single().await?;
            let (left, right) = (server.agent("left").await?, server.agent("right").await?);
            settle(&left).await;
            settle(&right).await;
            Ok::<_, Error>([left, right, server])
        };
        let agents = here(SHARED.get_or_try_init(start)).unwrap();
        scope(&agents[0], &agents[1])
    }
}

/// The cases that make sense on two agents. Two do not: deregistering is for the agent that has the service
/// (`fifty_members_join_and_leave_at_once`), and a renewal on another agent is seen a TTL later and not at once
/// (`clause_08_an_id_in_use_is_named_and_its_stamp_moves`; see `a_rival_on_another_agent_is_known_as_alive_after_its_ttl` in racing.rs).
macro_rules! on_two_agents {
    ($($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let scope = TwoAgents.scope().await;
                shardwise_discovery::conformance::$case(&scope).await;
            }
        )*
    };
}

mod two_agents {
    use super::*;
    on_two_agents!(
        clause_01_one_record_per_member
        clause_02_a_silent_member_leaves_within_its_ttl_and_margin
        clause_04_no_change_is_lost_between_list_and_watch
        clause_04_views_never_go_back
        clause_04_two_watchers_see_the_same_end
        clause_07_draining_is_seen_before_gone
        clause_08_another_incarnation_touches_nothing
        clause_08_a_silent_holder_is_waited_out
        clause_08_of_many_racing_for_one_id_one_wins
        clause_09_after_expiry_renewals_and_updates_are_lost
        clause_12_an_away_member_keeps_its_place_for_the_rejoin_grace
        clause_12_stepping_away_and_returning_are_one_step
        what_is_registered_is_what_is_seen
        later_joins_have_higher_numbers
    );
}
