//! The cases of [`Claims`](crate::Claims): made into tests by [`claims_conformance_tests!`](crate::claims_conformance_tests).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use shardwise_core::{Claim, ClaimName, ClaimStore, Epoch, GroupName, Resource, StoreId};

use super::{LASTING, SOON, Scope, read_until};
use crate::{AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Discovery, ErrorKind, RecordId, Registration};

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
        let asked: BTreeSet<_> = wanted.iter().collect();
        let answered: BTreeSet<_> = answers.iter().map(|(resource, _)| resource).collect();
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
        table.until(&mut stream, SOON, "any event", |_| true).await;
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
                assert_eq!(self.claims.len(), count, "each resource is reported once");
            }
            ClaimsEvent::Changed { changes, .. } => {
                assert!(self.begun, "changes before everything was reported");
                for change in changes {
                    match change.claim {
                        Some(claim) => self.claims.insert(change.resource, claim),
                        None => self.claims.remove(&change.resource),
                    };
                }
            }
            ClaimsEvent::Proven(_) => assert!(self.begun, "a proof before everything was reported"),
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
        let wanted = |event| {
            if let Ok(event) = event {
                self.take(event);
            }
            (self.begun && wanted(&self.claims)).then_some(())
        };
        read_until(stream, within, what, wanted).await;
    }
}

/// A free resource is granted to the first member that asks, who keeps what others ask for, under its epoch.
pub async fn claims_01_a_free_resource_is_granted_once(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(3..5)).await;
    assert_eq!(held.len(), 2);
    for backend in [&scope.peer, &scope.backend, &scope.peer] {
        let answers = claims(&**backend).acquire(&b.record_id(), &scope.store().await, &slots(3..5)).await.expect("acquire");
        assert!(answers.iter().all(|(_, acquired)| *acquired == AcquireOutcome::Held), "a holds both: {answers:?}");
    }
    let read = scope.read().await;
    assert!(read.values().all(|claim| claim.holder.instance_id == a.member.instance_id), "{read:?}");
    assert_eq!(epochs(read), held);
}

/// Two connections ask for the same hundreds of slots at the same time, in different orders.
pub async fn claims_01_of_many_that_ask_at_once_one_gets_each(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let store = scope.store().await;
    let (forwards, backwards) = (slots(0..300), slots(0..300).into_iter().rev().collect::<Vec<_>>());
    let _alive = scope.keep_alive(&[&a, &b]);
    let (record_a, record_b) = (a.record_id(), b.record_id());
    let (of_a, of_b) = tokio::join!(
        claims(&*scope.backend).acquire(&record_a, &store, &forwards),
        claims(&*scope.peer).acquire(&record_b, &store, &backwards),
    );
    let (of_a, of_b) = (granted(of_a.expect("acquire")), granted(of_b.expect("acquire")));
    let both: Vec<_> = of_a.keys().filter(|resource| of_b.contains_key(*resource)).collect();
    assert!(both.is_empty(), "granted twice: {both:?}");
    assert_eq!(of_a.len() + of_b.len(), 300, "every slot was free, so one of them is granted it");
    let read = scope.read().await;
    for (resource, claim) in &read {
        let held = if claim.holder.instance_id == a.member.instance_id { &of_a } else { &of_b };
        assert!(held.contains_key(resource), "{resource}: the record says {claim:?}");
    }
    assert_eq!(read.len(), 300);
}

/// Each later grant's epoch is above all earlier ones: for any resource and any member, and for a slot that goes from hand to hand, by
/// release and by death.
pub async fn claims_02_epochs_rise(scope: &Scope) {
    let (a, b) = (scope.claimant_for("a", 1, scope.unhurried()).await, scope.claimant("b", 2).await);
    let slot = slots(7..8);
    let mut highest = 0;
    let mut rise = |granted: &BTreeMap<Resource, Epoch>| {
        let epochs: Vec<_> = granted.values().map(|epoch| epoch.get()).collect();
        assert!(epochs.iter().all(|epoch| *epoch > highest), "{epochs:?} after {highest}");
        highest = epochs.into_iter().max().expect("something is granted");
    };
    let alive = scope.keep_alive(&[&a, &b]);
    for round in 1..7u32 {
        let record_id = if round % 2 == 0 { a.record_id() } else { b.record_id() };
        let wanted = if round % 3 == 0 { vec![name(&format!("n{round}"))] } else { slots(round * 10..round * 10 + 3) };
        let others = scope.granted(&record_id, &wanted).await;
        assert_eq!(others.len(), wanted.len());
        rise(&others);
        let held = scope.all_granted(&record_id, &slot, SOON).await;
        rise(&held);
        scope.release(&record_id, &held).await;
    }
    rise(&scope.all_granted(&a.record_id(), &slot, SOON).await);
    drop(alive);
    let _heir = scope.keep_alive(&[&b]);
    rise(&scope.all_granted(&b.record_id(), &slot, scope.gone_within(a.ttl)).await);
}

/// No record, no claim: never registered, another incarnation's, deregistered, expired.
pub async fn claims_03_only_a_living_record_claims(scope: &Scope) {
    let store = scope.store().await;
    let lost = async |registration: &Registration, why: &str| {
        let error = claims(&*scope.backend).acquire(&registration.record_id(), &store, &slots(0..3)).await.expect_err(why);
        assert_eq!(*error.kind(), ErrorKind::Lost, "{why}: {error}");
    };
    lost(&scope.registration("nobody", 1), "it never registered").await;
    let a = scope.claimant("a", 1).await;
    lost(&scope.registration("a", 2), "it is another incarnation").await;
    scope.backend.deregister(&a.record_id()).await.expect("deregister");
    lost(&a, "it has left").await;
    let b = scope.claimant_for("b", 3, scope.ttl).await;
    scope.expect_ids(&[], scope.gone_within(scope.ttl)).await;
    lost(&b, "it has expired").await;
    assert!(scope.read().await.is_empty());
}

/// A repeated call, after an answer that was lost, grants the same again and never a lower epoch.
pub async fn claims_03_asking_again_keeps_what_is_held(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let _alive = scope.keep_alive(&[&a]);
    let first = scope.granted(&a.record_id(), &slots(0..5)).await;
    let again = scope.granted(&a.record_id(), &slots(0..8)).await;
    assert_eq!(again.len(), 8);
    assert!(first.iter().all(|(resource, epoch)| again[resource] >= *epoch), "{first:?}, then {again:?}");
    assert_eq!(epochs(scope.read().await), again);
}

/// A member that waits for a slot gets it right after the release.
pub async fn claims_05_what_is_released_is_free_at_once(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(0..200)).await;
    scope.release(&a.record_id(), &held).await;
    assert_eq!(scope.granted(&b.record_id(), &slots(0..200)).await.len(), 200, "no delay after a release");
    scope.release(&a.record_id(), &held).await;
    assert_eq!(scope.read().await.len(), 200, "a release that is repeated changes nothing");
}

/// A release in another member's or another incarnation's name, or under the epoch of a former acquisition, changes nothing and is no
/// error.
pub async fn claims_05_no_member_releases_what_is_not_theirs(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let former = scope.granted(&a.record_id(), &slots(0..3)).await;
    scope.release(&a.record_id(), &former).await;
    let held = scope.all_granted(&a.record_id(), &slots(0..3), SOON).await;
    scope.release(&a.record_id(), &former).await;
    scope.release(&b.record_id(), &held).await;
    scope.release(&scope.registration("a", 9).record_id(), &held).await;
    assert_eq!(epochs(scope.read().await), held);
    assert!(scope.granted(&b.record_id(), &slots(0..3)).await.is_empty());
}

/// All members see the same store, at once and later. A higher floor applies to all, and grants are above it; a lower one changes nothing.
/// A member that names another store, or the former floor, gets an error and holds nothing by it.
pub async fn claims_07_the_store_is_one_and_a_floor_lifts_its_epochs(scope: &Scope) {
    let (before, same) =
        tokio::join!(claims(&*scope.backend).claim_store(&scope.group, 0), claims(&*scope.peer).claim_store(&scope.group, 0));
    let before = before.expect("claim_store");
    assert_eq!(before, same.expect("claim_store"));
    let a = scope.claimant("a", 1).await;
    assert_eq!(scope.store().await, before);
    let floor = 1 << 40;
    let _alive = scope.keep_alive(&[&a]);
    let low = scope.granted(&a.record_id(), &slots(0..1)).await;
    let raised = claims(&*scope.peer).claim_store(&scope.group, floor).await.expect("claim_store");
    assert_eq!(raised, ClaimStore { floor, ..before });
    assert_eq!(scope.store().await, raised, "a lower floor changes nothing");
    let other = ClaimStore { id: StoreId::new(!raised.id.get()), ..raised };
    for (store, why) in [(before, "the floor was raised"), (other, "it is another store")] {
        let error = claims(&*scope.backend).acquire(&a.record_id(), &store, &slots(1..2)).await.expect_err(why);
        assert_eq!(*error.kind(), ErrorKind::OtherStore, "{why}: {error}");
        assert_eq!(scope.read().await.len(), 1, "{why}");
    }
    let high = scope.granted(&a.record_id(), &slots(1..2)).await;
    assert!(low.values().all(|epoch| epoch.get() < floor) && high.values().all(|epoch| epoch.get() > floor), "{low:?} {high:?}");
}

/// More than fits into one transaction of any backend.
pub async fn claims_08_thousands_in_one_call(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(0..2_000)).await;
    assert_eq!(held.len(), 2_000);
    assert_eq!(scope.read().await.len(), 2_000);
    scope.release(&a.record_id(), &held).await;
    assert_eq!(scope.all_granted(&b.record_id(), &slots(0..2_000), SOON).await.len(), 2_000);
}

/// Held and free ones in one call, as neighbours.
pub async fn claims_08_one_that_is_held_does_not_keep_the_others(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let odd: Vec<_> = slots(0..300).into_iter().skip(1).step_by(2).collect();
    scope.granted(&a.record_id(), &odd).await;
    let of_b = scope.granted(&b.record_id(), &slots(0..300)).await;
    assert_eq!(of_b.len(), 150);
    assert!(odd.iter().all(|resource| !of_b.contains_key(resource)));
}

/// Names are kept as they are and do not collide with slots or with each other. The same slot of two groups has two holders, and their
/// watches are apart.
pub async fn claims_of_any_name_and_group_are_apart(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let group = GroupName::new(format!("{}/2", scope.group)).expect("a valid name");
    let other = Registration { group: group.clone(), claims: true, ..scope.registration("a", 1) };
    scope.backend.register(&other).await.expect("register");
    let _alive = scope.keep_alive(&[&a, &other]);
    let mut wanted = vec![name("7"), name("slot/7"), name("a b"), name("ünï/🦀"), name("%2F"), name(&"x".repeat(255)), name("s 7")];
    wanted.extend(slots(7..8));
    assert_eq!(scope.granted(&a.record_id(), &wanted).await.len(), wanted.len());
    let backend = claims(&*scope.backend);
    let store = backend.claim_store(&group, 0).await.expect("claim_store");
    let answers = backend.acquire(&other.record_id(), &store, &slots(5..10)).await.expect("acquire");
    assert_eq!(granted(answers).len(), 5);
    wanted.sort_unstable();
    assert_eq!(scope.read().await.into_keys().collect::<Vec<_>>(), wanted);
}

/// Beyond the TTL, with renewals and nothing else.
pub async fn claims_04_renewing_keeps_claims(scope: &Scope) {
    let (a, b) = (scope.claimant_for("a", 1, scope.soon_enough()).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(0..4)).await;
    tokio::time::sleep(a.ttl * 2).await;
    assert!(scope.granted(&b.record_id(), &slots(0..4)).await.is_empty());
    assert_eq!(epochs(scope.read().await), held);
}

/// No other member is granted them while the member's lease may still be in force. That is 99 % of its TTL: a holder leaves out the last
/// 1 %, because no two clocks run alike. (Consul takes the time of a session's end when it begins to free its locks, and shows the
/// session until it has done so: some milliseconds.) Then they come free within TTL plus margin.
pub async fn claims_04_a_silent_members_claims_come_free(scope: &Scope) {
    let b = scope.claimant("b", 2).await;
    let _alive = scope.keep_alive(&[&b]);
    let a = scope.claimant_for("a", 1, scope.soon_enough()).await;
    scope.granted(&a.record_id(), &slots(0..100)).await;
    let grant = scope.backend.renew(&a.record_id(), a.ttl).await.expect("renew");
    let ends = grant.started.plus(grant.ttl * 99 / 100);
    let first = loop {
        let asked = scope.clock.now().since(grant.started);
        let granted = scope.granted(&b.record_id(), &slots(0..1)).await;
        if !granted.is_empty() {
            break scope.clock.now();
        }
        assert!(asked < scope.gone_within(a.ttl), "still held long after the lease's end");
        tokio::time::sleep(scope.ttl / 100).await;
    };
    assert!(first >= ends, "granted {:?} before the lease's end", ends.since(first));
    scope.all_granted(&b.record_id(), &slots(0..100), a.ttl / 2).await;
}

/// A member that leaves for a while without having released, and comes back: while it is away it holds nothing and claims nothing. Then it
/// leaves for good.
pub async fn claims_04_leaving_frees(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let c = scope.claimant("c", 4).await;
    let _alive = scope.keep_alive(&[&b]);
    scope.granted(&c.record_id(), &slots(20..30)).await;
    scope.backend.deregister(&c.record_id()).await.expect("deregister");
    scope.all_granted(&b.record_id(), &slots(20..30), SOON).await;
    let old = scope.granted(&a.record_id(), &slots(0..10)).await;
    scope.backend.step_away(&a, SOON * 6).await.expect("stepping away");
    scope.all_granted(&b.record_id(), &slots(0..5), SOON).await;
    let error = claims(&*scope.backend).acquire(&a.record_id(), &scope.store().await, &slots(10..11)).await.expect_err("it is away");
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    let back = scope.claimant("a", 3).await;
    let held = scope.all_granted(&back.record_id(), &slots(5..10), SOON).await;
    assert!(held.iter().all(|(resource, epoch)| *epoch > old[resource]), "{old:?}, then {held:?}");
    scope.backend.deregister(&back.record_id()).await.expect("deregister");
    scope.all_granted(&b.record_id(), &slots(0..10), SOON).await;
}

/// The same id under another incarnation begins with nothing, and the former life is not heard any more.
pub async fn claims_04_a_new_life_does_not_hold_what_the_former_held(scope: &Scope) {
    let former = scope.claimant_for("a", 1, scope.soon_enough()).await;
    let old = scope.granted(&former.record_id(), &slots(0..3)).await;
    scope.expect_ids(&[], scope.gone_within(former.ttl)).await;
    let next = scope.claimant("a", 2).await;
    let _alive = scope.keep_alive(&[&next]);
    let held = scope.all_granted(&next.record_id(), &slots(0..3), scope.gone_within(former.ttl)).await;
    assert!(held.iter().all(|(resource, epoch)| *epoch > old[resource]), "{old:?}, then {held:?}");
    scope.release(&former.record_id(), &old).await;
    let error = claims(&*scope.backend).acquire(&former.record_id(), &scope.store().await, &slots(3..4)).await.expect_err("it is dead");
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(scope.read().await.len(), 3);
}

/// A new follower learns of every claim, and of nothing else.
pub async fn claims_06_the_watch_begins_with_everything(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    assert!(scope.read().await.is_empty(), "nothing is held yet, and the watch says so");
    scope.granted(&a.record_id(), &slots(0..150)).await;
    let gone = scope.granted(&b.record_id(), &slots(150..300)).await;
    scope.release(&b.record_id(), &gone).await;
    assert_eq!(scope.read().await.into_keys().collect::<Vec<_>>(), slots(0..150));
}

/// Slots go to and fro while a follower watches: in the end it knows the present state.
pub async fn claims_06_no_change_is_lost(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let mut stream = claims(&*scope.peer).watch_claims(&scope.group, scope.ttl / 2);
    let mut table = ReaderTable::default();
    let _alive = scope.keep_alive(&[&a, &b]);
    // The watch has begun, so what follows is reported as changes.
    let before = scope.granted(&a.record_id(), &slots(100..101)).await;
    table.until(&mut stream, SOON, "the first slot", |held| held.len() == 1).await;
    scope.release(&a.record_id(), &before).await;
    for round in 0..10u32 {
        let (giver, taker) = if round % 2 == 0 { (a.record_id(), b.record_id()) } else { (b.record_id(), a.record_id()) };
        let held = scope.all_granted(&giver, &slots(round..round + 20), SOON).await;
        scope.release(&giver, &held).await;
        let last = scope.all_granted(&taker, &slots(round..round + 10), SOON).await;
        if round < 9 {
            scope.release(&taker, &last).await;
        }
    }
    let wanted = slots(9..19);
    table.until(&mut stream, SOON, "the last ten slots", |held| held.keys().eq(&wanted)).await;
    assert!(table.claims.values().all(|claim| claim.holder.instance_id == a.member.instance_id), "{:?}", table.claims);
}

/// A watch reports the claims of a dead member as free.
pub async fn claims_06_a_death_is_reported(scope: &Scope) {
    let ttl = scope.soon_enough();
    let b = scope.claimant("b", 2).await;
    let mut stream = claims(&*scope.peer).watch_claims(&scope.group, scope.ttl / 2);
    let mut table = ReaderTable::default();
    let _alive = scope.keep_alive(&[&b]);
    scope.granted(&b.record_id(), &slots(10..12)).await;
    let a = scope.claimant_for("a", 1, ttl).await;
    scope.granted(&a.record_id(), &slots(0..10)).await;
    table.until(&mut stream, ttl, "all twelve", |held| held.len() == 12).await;
    let wanted = slots(10..12);
    table.until(&mut stream, scope.gone_within(ttl), "the living member's only", |held| held.keys().eq(&wanted)).await;
}

/// Where nothing changes, the watch says that this is so.
pub async fn claims_06_silence_is_proven(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let _alive = scope.keep_alive(&[&a]);
    scope.granted(&a.record_id(), &slots(0..3)).await;
    let ttl = scope.unhurried();
    let mut stream = claims(&*scope.peer).watch_claims(&scope.group, ttl / 2);
    let mut proofs = Vec::new();
    let read = async {
        while proofs.len() < 3 {
            let event = stream.next().await.expect("the watch goes on").expect("nothing is wrong");
            proofs.push(match event {
                ClaimsEvent::All { proven, .. } | ClaimsEvent::Changed { proven, .. } | ClaimsEvent::Proven(proven) => proven,
            });
        }
    };
    tokio::time::timeout(ttl * 3, read).await.expect("a proof every half TTL");
    assert!(proofs.is_sorted_by(|a, b| a <= b) && proofs[2] <= scope.clock.now(), "{proofs:?}");
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
    };
}
