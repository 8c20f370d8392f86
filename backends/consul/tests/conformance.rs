//! The public conformance suite over real agents, in real time.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{here, settle};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Consul;

fn scope(backend: &Consul, peer: &Consul) -> Scope {
    Scope {
        backend: Arc::new(common::open(&backend.address())),
        peer: Arc::new(common::open(&peer.address())),
        group: GroupName::new("conformance").unwrap(),
        ttl: Duration::from_secs(1),
        clock: Clock::system(),
        guard: Box::new(()),
    }
}

/// Two backends of one agent, as two processes of a machine have them. A server for each case: the cases run in parallel with the same
/// ids, and an agent has one service of an id.
struct OneAgent;

#[async_trait]
impl Fixture for OneAgent {
    async fn scope(&self) -> Scope {
        let consul = here(Consul::single()).unwrap();
        here(settle(&consul));
        let scope = scope(&consul, &consul);
        Scope { guard: Box::new(consul), ..scope }
    }
}

mod one_agent {
    use super::*;
    shardwise_discovery::conformance_tests!(OneAgent);
}

/// Two backends of two agents, as two machines have them.
struct TwoAgents;

#[async_trait]
impl Fixture for TwoAgents {
    async fn scope(&self) -> Scope {
        let server = here(Consul::single()).unwrap();
        let (left, right) = (here(server.agent("left")).unwrap(), here(server.agent("right")).unwrap());
        here(settle(&left));
        here(settle(&right));
        let scope = scope(&left, &right);
        Scope { guard: Box::new((left, right, server)), ..scope }
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
        clause_04_expiry_is_news
        clause_07_draining_is_seen_before_gone
        clause_08_another_incarnation_touches_nothing
        clause_08_a_silent_holder_is_waited_out
        clause_08_of_many_racing_for_one_id_one_wins
        clause_09_renewing_after_expiry_is_lost
        clause_12_whoever_steps_away_keeps_its_place_for_the_grace_and_no_longer
        clause_12_stepping_away_and_coming_back_is_one_step
        what_is_registered_is_what_is_seen
        later_joins_have_higher_numbers
    );
}
