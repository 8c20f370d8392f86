//! The suite that every backend passes, and the wrapper for faults.
//!
//! A backend's tests implement [`Fixture`] and call [`conformance_tests!`](crate::conformance_tests), which makes one test of each case:
//!
//! ```text
//! shardwise_discovery::conformance_tests!(MyFixture::start());
//! ```
//!
//! Each case gets a separate [`Scope`]: a group that no other case uses, and a guard that cleans up when it is dropped. The cases
//! are named after the numbered clauses of [`Discovery`]. A broken clause is a panic with a message that says what was expected.

// A case reports by panicking, as tests do.
#![expect(clippy::panic, clippy::expect_used, reason = "conformance cases are tests")]

mod away;
mod claims;
mod network;
mod notes;
mod records;
mod views;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::BoxStream;
use shardwise_core::{Fingerprint, GroupName, Incarnation, InstanceId, Member, Serves, View};
use tokio::task::JoinHandle;

use crate::{Clock, Discovery, Error, ErrorKind, Registration, Result, WatchEvent, WatchStream};

pub use away::*;
pub use claims::*;
pub use network::*;
pub use notes::*;
pub use records::*;
pub use views::*;

/// The TTL of members whose expiry no case waits for: none of them is over before a case is, however busy the machine is.
const LASTING: Duration = Duration::from_secs(30);
/// How late a machine may be that runs other tests too.
const BUSY: Duration = Duration::from_secs(3);
/// The least TTL of members that have to be seen alive and are not renewed meanwhile.
const UNHURRIED: Duration = Duration::from_secs(3);
/// How long anything may take whose time no clause limits: far less than [`LASTING`], so that no expiry passes for what was waited for.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Builds scopes over one backend.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A fresh scope: two connections to one store, and a group that no other case uses.
    async fn scope(&self) -> Scope;

    /// A fresh scope over a store that nothing else changes meanwhile: for the cases that compare revisions. To be implemented where
    /// scopes share a server and a change in one group is a revision for all.
    async fn quiet_scope(&self) -> Scope {
        self.scope().await
    }
}

/// What one case runs in.
pub struct Scope {
    /// The connection under test.
    pub backend: Arc<dyn Discovery>,
    /// Another connection to the same store, as another process would have it.
    pub peer: Arc<dyn Discovery>,
    /// A group of the case's own. Cases that need several derive their names from it.
    pub group: GroupName,
    /// The TTL of members that are left to expire: short, but at least what the backend can do. Others get 30 s.
    pub ttl: Duration,
    /// The clock of the backend.
    pub clock: Clock,
    /// Cleans up when it is dropped.
    pub guard: Box<dyn Any + Send + Sync>,
}

impl Scope {
    /// A registration in the scope's group, which does not expire while a case runs.
    pub fn registration(&self, id: &str, incarnation: u64) -> Registration {
        self.registration_for(id, incarnation, LASTING.max(self.ttl))
    }

    /// A registration with this TTL.
    pub fn registration_for(&self, id: &str, incarnation: u64, ttl: Duration) -> Registration {
        let instance_id = InstanceId::new(id).expect("the case uses valid names");
        let member = Member {
            incarnation: Incarnation::new(incarnation),
            fingerprints: vec![Fingerprint::of("conformance")],
            serves: Some(Serves::Outbox { id: "c0nf0rmance".into(), name: "cases \"of\" all kinds".into() }),
            ..Member::named(instance_id)
        };
        Registration { group: self.group.clone(), member, ttl, claims: false }
    }

    /// Registers a member that does not expire while a case runs, and returns what was registered.
    pub async fn joined(&self, id: &str, incarnation: u64) -> Registration {
        self.joined_for(id, incarnation, LASTING.max(self.ttl)).await
    }

    /// Registers with this TTL and returns what was registered.
    pub async fn joined_for(&self, id: &str, incarnation: u64, ttl: Duration) -> Registration {
        let registration = self.registration_for(id, incarnation, ttl);
        self.backend.register(&registration).await.unwrap_or_else(|e| panic!("registering {id}: {e}"));
        registration
    }

    /// The ids in the group as the peer reads them.
    pub async fn ids(&self) -> Vec<String> {
        ids(&*self.view().await)
    }

    /// Waits until the peer reads exactly these ids. A read that begins later than `within` has to find them.
    pub async fn expect_ids(&self, expected: &[&str], within: Duration) {
        let started = self.clock.now();
        loop {
            let asked = self.clock.now().since(started);
            let seen = self.ids().await;
            if seen == expected {
                return;
            }
            assert!(asked < within, "expected members {expected:?} within {within:?}, still see {seen:?}");
            tokio::time::sleep(within / 100).await;
        }
    }

    /// The group as the peer reads it.
    pub(crate) async fn view(&self) -> Arc<View> {
        self.peer.members(&self.group).await.unwrap_or_else(|e| panic!("reading the group: {e}")).view
    }

    /// Registers `id` under each of these incarnations at once, over both connections by turns. Asserts that one is registered and the
    /// others are refused as [`ErrorKind::InUse`]; returns the one.
    pub(crate) async fn race_for(&self, id: &str, incarnations: Range<u64>) -> u64 {
        let count = incarnations.end - incarnations.start;
        let race = incarnations.zip([&self.backend, &self.peer].into_iter().cycle()).map(|(incarnation, backend)| async move {
            let registration = self.registration(id, incarnation);
            loop {
                match backend.register(&registration).await {
                    // A call that waited too long for its turn asks again.
                    Err(error) if error.is_retryable() => {}
                    answer => return answer.map(|_| incarnation),
                }
            }
        });
        let (won, lost): (Vec<_>, Vec<_>) = join_all(race).await.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len() as u64), (1, count - 1), "winners {won:?}");
        for error in lost.into_iter().filter_map(Result::err) {
            assert!(matches!(error.kind(), ErrorKind::InUse { .. }), "{error}");
        }
        won.into_iter().flatten().sum()
    }

    /// Keeps these members alive until the guard is dropped. Members that claim are renewed more often than others.
    pub(crate) fn keep_alive(&self, members: &[&Registration]) -> KeptAlive {
        let (backend, members) = (Arc::clone(&self.backend), members.iter().map(|&member| member.clone()).collect::<Vec<_>>());
        let least = members.iter().map(|member| member.ttl).min().unwrap_or(self.ttl);
        KeptAlive(tokio::spawn(async move {
            loop {
                for member in &members {
                    // As a worker does: a renewal without an answer is repeated.
                    while let Err(error) = backend.renew(&member.record_id(), member.ttl).await {
                        assert!(error.is_retryable(), "renewing {:?}: {error}", member.record_id());
                        tokio::time::sleep(least / 100).await;
                    }
                }
                tokio::time::sleep(least / 8).await;
            }
        }))
    }

    /// The TTL of a member that is left to expire once something has been seen of it, which may take a busy machine its time.
    pub(crate) fn unhurried(&self) -> Duration {
        self.ttl.max(UNHURRIED)
    }

    /// The longest time in which a silent member with this TTL must be gone: TTL plus margin, plus slack for a busy machine, on which an
    /// observer that looks late begins to count anew.
    pub fn gone_within(&self, ttl: Duration) -> Duration {
        ttl + self.backend.capabilities().margin + BUSY
    }
}

/// The ids of a view.
pub fn ids(view: &View) -> Vec<String> {
    view.members().iter().map(|m| m.instance_id.as_str().to_owned()).collect()
}

/// Reads a watch until `wanted` accepts a view, for at most `within`; errors on the way are allowed, the stream's end is not.
pub async fn view_where(stream: &mut WatchStream, within: Duration, what: &str, wanted: impl Fn(&View) -> bool) -> Arc<View> {
    let wanted = |event| match event {
        Ok(WatchEvent::View(snapshot)) if wanted(&snapshot.view) => Some(snapshot.view),
        _ => None,
    };
    read_until(stream, within, what, wanted).await
}

/// Reads a watch until it yields an error, for at most `within`.
pub async fn next_error(stream: &mut WatchStream, within: Duration) -> Error {
    read_until(stream, within, "an error", Result::err).await
}

async fn read_until<E, T>(
    stream: &mut BoxStream<'static, Result<E>>,
    within: Duration,
    what: &str,
    mut wanted: impl FnMut(Result<E>) -> Option<T>,
) -> T {
    let read = async {
        loop {
            let Some(event) = stream.next().await else { panic!("the watch ended while waiting for {what}") };
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    };
    tokio::time::timeout(within, read).await.unwrap_or_else(|_| panic!("no event with {what} within {within:?}"))
}

/// Renews until it is dropped, and fails the case then if a renewal was refused.
pub(crate) struct KeptAlive(JoinHandle<()>);

impl Drop for KeptAlive {
    fn drop(&mut self) {
        // Before the abort, which ends the task as well.
        let refused = self.0.is_finished();
        self.0.abort();
        assert!(std::thread::panicking() || !refused, "a member could not be kept alive");
    }
}

/// Makes one `#[tokio::test]` of each case. The argument is an expression that makes a [`Fixture`]; a second argument goes into the
/// attribute, such as `start_paused = true`.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:expr) => { $crate::conformance_tests!($fixture; flavor = "multi_thread", worker_threads = 2); };
    ($fixture:expr; $($attribute:tt)*) => {
        $crate::conformance_tests!(@cases $fixture; [$($attribute)*];
            clause_01_one_record_per_member
            clause_01_a_renewed_member_stays
            clause_02_a_silent_member_leaves_within_its_ttl_and_margin
            clause_02_an_update_does_not_prolong_the_record
            clause_03_a_grant_counts_from_the_start_of_its_request
            clause_04_the_first_view_is_full
            clause_04_no_change_is_lost_between_list_and_watch
            clause_04_views_never_go_back
            clause_05_silence_is_proven
            clause_06_an_empty_group_is_an_empty_view
            clause_07_draining_is_seen_before_gone
            clause_08_another_incarnation_touches_nothing
            clause_08_an_id_in_use_is_named_and_its_stamp_moves
            clause_08_a_silent_holder_is_waited_out
            clause_08_of_many_racing_for_one_id_one_wins
            clause_08_the_same_incarnation_registers_again
            clause_08_an_update_that_was_given_up_undoes_no_later_one
            clause_09_after_expiry_renewals_and_updates_are_lost
            clause_10_errors_name_their_operation
            clause_11_any_name_goes
            clause_11_groups_do_not_see_each_other
            clause_12_an_away_member_keeps_its_place_for_the_rejoin_grace
            clause_12_stepping_away_and_returning_are_one_step
            clause_12_of_many_that_return_one_wins
            clause_12_a_member_that_returned_and_died_is_gone
            clause_12_only_a_living_record_steps_away
            clause_12_an_away_member_can_be_removed
            clause_12_the_replacement_of_an_away_member_has_joined_last
            what_is_registered_is_what_is_seen
            calls_that_were_given_up_and_made_again_are_harmless
            later_joins_have_higher_numbers
            fifty_members_join_and_leave_at_once
        );
        $crate::conformance_tests!(@case $fixture; quiet_scope; [$($attribute)*]; clause_04_two_watchers_see_the_same_end);
        $crate::conformance_tests!(@case $fixture; quiet_scope; [$($attribute)*]; clause_05_renewals_are_not_reported);
    };
    (@cases $fixture:expr; $attribute:tt; $($case:ident)*) => {
        $( $crate::conformance_tests!(@case $fixture; scope; $attribute; $case); )*
    };
    (@case $fixture:expr; $scope:ident; [$($attribute:tt)*]; $case:ident) => {
        #[tokio::test($($attribute)*)]
        async fn $case() {
            let scope = $crate::conformance::Fixture::$scope(&$fixture).await;
            $crate::conformance::$case(&scope).await;
        }
    };
}
