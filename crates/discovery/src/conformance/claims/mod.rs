//! The cases of [`Claims`](crate::Claims): made into tests by [`claims_conformance_tests!`](crate::claims_conformance_tests).

mod ending;
mod holding;
mod watching;

use std::collections::BTreeMap;
use std::time::Duration;

use shardwise_core::{Claim, ClaimName, ClaimStore, Epoch, Resource};

use super::{LASTING, SOON, Scope, read_until};
use crate::{AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Discovery, RecordId, Registration};

pub use ending::*;
pub use holding::*;
pub use watching::*;

/// The slots of a range as resources.
fn slots(range: std::ops::Range<u32>) -> Vec<Resource> {
    range.map(Resource::Slot).collect()
}

fn name(name: &str) -> Resource {
    Resource::Name(ClaimName::new(name).expect("the case uses valid names"))
}

fn claims(backend: &dyn Discovery) -> &dyn Claims {
    backend.as_claims().expect("a backend under this suite has claims")
}

impl Scope {
    /// Registers a member that claims and does not expire while a case runs.
    pub async fn claimant(&self, id: &str, incarnation: u64) -> Registration {
        self.claimant_for(id, incarnation, LASTING.max(self.ttl)).await
    }

    /// Registers a member that claims, with this TTL.
    pub async fn claimant_for(&self, id: &str, incarnation: u64, ttl: Duration) -> Registration {
        let registration = Registration { claims: true, ..self.registration_for(id, incarnation, ttl) };
        self.backend.register(&registration).await.unwrap_or_else(|e| panic!("registering {id}: {e}"));
        registration
    }

    /// A TTL in which one can claim before it ends, on a busy machine too, and for whose end a case can wait. Members that claim may have
    /// less than it says until their first renewal (Consul: half).
    fn soon_enough(&self) -> Duration {
        self.unhurried() * 2
    }

    async fn store(&self) -> ClaimStore {
        claims(&*self.backend).claim_store(&self.group, 0).await.expect("claim_store")
    }

    /// Asks once, and returns what was granted.
    async fn granted(&self, record_id: &RecordId, wanted: &[Resource]) -> BTreeMap<Resource, Epoch> {
        let answers = claims(&*self.backend).acquire(record_id, &self.store().await, wanted).await.expect("acquire");
        let asked: std::collections::BTreeSet<_> = wanted.iter().collect();
        let answered: std::collections::BTreeSet<_> = answers.iter().map(|(resource, _)| resource).collect();
        assert_eq!(answered, asked, "each resource is answered");
        assert_eq!(answers.len(), answered.len(), "each resource is answered once");
        granted(answers)
    }

    /// Asks over and over until all of it is granted. Who asks later than `within` has to get it.
    async fn all_granted(&self, record_id: &RecordId, wanted: &[Resource], within: Duration) -> BTreeMap<Resource, Epoch> {
        let started = self.clock.now();
        loop {
            let asked = self.clock.now().since(started);
            let granted = self.granted(record_id, wanted).await;
            if granted.len() == wanted.len() {
                return granted;
            }
            assert!(asked < within, "{} of {} are granted within {within:?}", granted.len(), wanted.len());
            tokio::time::sleep(within / 100).await;
        }
    }

    async fn release(&self, record_id: &RecordId, held: &BTreeMap<Resource, Epoch>) {
        let held: Vec<_> = held.iter().map(|(resource, epoch)| (resource.clone(), *epoch)).collect();
        claims(&*self.backend).release(record_id, &held).await.expect("release");
    }

    /// The claims as the other connection reads them now.
    async fn read(&self) -> BTreeMap<Resource, Claim> {
        let mut stream = claims(&*self.peer).watch_claims(&self.group, self.ttl / 2);
        let mut table = ReaderTable::default();
        table.until(&mut stream, SOON, "any news", |_| true).await;
        table.claims
    }
}

fn granted(answers: Vec<(Resource, AcquireOutcome)>) -> BTreeMap<Resource, Epoch> {
    let epoch = |acquired| if let AcquireOutcome::Granted(epoch) = acquired { Some(epoch) } else { None };
    answers.into_iter().filter_map(|(resource, acquired)| Some((resource, epoch(acquired)?))).collect()
}

/// The epochs under which resources are held.
fn epochs(claims: BTreeMap<Resource, Claim>) -> BTreeMap<Resource, Epoch> {
    claims.into_iter().map(|(resource, claim)| (resource, claim.epoch)).collect()
}

/// What a reader of the watch knows.
#[derive(Default)]
struct ReaderTable {
    claims: BTreeMap<Resource, Claim>,
    begun: bool,
}

impl ReaderTable {
    fn take(&mut self, event: ClaimsEvent) {
        match event {
            ClaimsEvent::All { claims, .. } => {
                let count = claims.len();
                (self.claims, self.begun) = (claims.into_iter().collect(), true);
                assert_eq!(self.claims.len(), count, "each resource is told once");
            }
            ClaimsEvent::Changed { changes, .. } => {
                assert!(self.begun, "changes before everything was told");
                for change in changes {
                    match change.claim {
                        Some(claim) => self.claims.insert(change.resource, claim),
                        None => self.claims.remove(&change.resource),
                    };
                }
            }
            ClaimsEvent::Proven(_) => assert!(self.begun, "a proof before everything was told"),
        }
    }

    /// Reads until `wanted`, for at most `within`; errors on the way are allowed, the stream's end is not.
    async fn until(
        &mut self,
        stream: &mut ClaimsStream,
        within: Duration,
        what: &str,
        wanted: impl Fn(&BTreeMap<Resource, Claim>) -> bool,
    ) {
        let wanted = |news| {
            if let Ok(event) = news {
                self.take(event);
            }
            (self.begun && wanted(&self.claims)).then_some(())
        };
        read_until(stream, within, what, wanted).await;
    }
}

/// Makes one `#[tokio::test]` of each case of [`Claims`](crate::Claims), as [`conformance_tests!`](crate::conformance_tests) does for
/// [`Discovery`](crate::Discovery).
#[macro_export]
macro_rules! claims_conformance_tests {
    ($fixture:expr) => { $crate::claims_conformance_tests!($fixture; flavor = "multi_thread", worker_threads = 2); };
    ($fixture:expr; $($attribute:tt)*) => {
        $crate::conformance_tests!(@cases $fixture; [$($attribute)*];
            claims_01_a_free_resource_is_granted_once
            claims_01_of_many_that_ask_at_once_one_gets_each
            claims_02_epochs_rise_over_resources_and_members
            claims_02_epochs_rise_over_releases_and_deaths
            claims_03_only_a_living_record_claims
            claims_03_asking_again_keeps_what_is_held
            claims_04_renewing_keeps_claims
            claims_04_a_silent_members_claims_come_free
            claims_04_deregistering_frees
            claims_04_stepping_away_frees
            claims_04_a_new_life_does_not_hold_what_the_former_held
            claims_05_what_is_released_is_free_at_once
            claims_05_no_member_releases_what_is_not_theirs
            claims_06_the_watch_begins_with_everything
            claims_06_no_change_is_lost
            claims_06_a_death_is_news
            claims_06_silence_is_proven
            claims_07_the_store_is_one_and_the_same
            claims_07_a_floor_lifts_epochs_and_never_falls
            claims_08_thousands_in_one_call
            claims_08_one_that_is_held_does_not_keep_the_others
            claims_names_may_be_anything
            claims_of_groups_are_apart
        );
    };
}
