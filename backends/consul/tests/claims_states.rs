//! What happens to claims in exceptional cases: members die or leave, keys are edited by hand, Consul is wiped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{claimant, group, open, registration, settle, until};
use futures::StreamExt;
use serde_json::{Value, json};
use shardwise_backend_consul::ConsulBackend;
use shardwise_core::{Claim, ClaimStore, Epoch, Resource};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Clock, Discovery, Error, ErrorKind, RecordId, Registration};
use shardwise_testkit::{Consul, ConsulCluster, ConsulOptions, Direction, Lag, TcpProxy};

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_mins(1);
const PATIENCE: Duration = Duration::from_secs(30);
const KEYS: &str = "/v1/kv/shardwise/claims/g";

fn slots(range: std::ops::Range<u32>) -> Vec<Resource> {
    range.map(Resource::Slot).collect()
}

/// One server, and two members on its agent, each with its own backend.
struct Pair {
    consul: Consul,
    one: ConsulBackend,
    two: ConsulBackend,
    a: Registration,
    b: Registration,
    store: ClaimStore,
}

impl Pair {
    async fn with(ttl_of_a: Duration) -> Self {
        let consul = Consul::single().await.unwrap();
        if ttl_of_a < LONG {
            settle(&consul).await;
        }
        let (one, two) = (open(&consul.address()), open(&consul.address()));
        let (a, b) = (claimant("g", "a", 1, ttl_of_a), claimant("g", "b", 2, LONG));
        one.register(&a).await.unwrap();
        two.register(&b).await.unwrap();
        let store = one.claim_store(&group("g"), 0).await.unwrap();
        Self { consul, one, two, a, b, store }
    }

    async fn ask(&self, backend: &ConsulBackend, record_id: &RecordId, wanted: &[Resource]) -> Vec<AcquireOutcome> {
        backend.acquire(record_id, &self.store, wanted).await.unwrap().into_iter().map(|(_, acquired)| acquired).collect()
    }

    async fn a_holds(&self, wanted: &[Resource]) -> Epoch {
        match *self.ask(&self.one, &self.a.record_id(), wanted).await {
            [AcquireOutcome::Granted(epoch), ..] => epoch,
            ref other => panic!("{other:?}"),
        }
    }

    async fn edit(&self, method: &str, key: &str, body: Option<&Value>) {
        self.consul.api(method, &format!("{KEYS}/{key}"), body).await.unwrap();
    }
}

async fn next_event(watch: &mut ClaimsStream) -> Result<ClaimsEvent, Error> {
    tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap()
}

/// Reads until the watch shows this state of slot 1.
async fn until_seen(watch: &mut ClaimsStream, what: &str, wanted: impl Fn(Option<&Claim>) -> bool) {
    let of = Resource::Slot(1);
    loop {
        match next_event(watch).await {
            Ok(ClaimsEvent::All { claims, .. }) if wanted(claims.iter().find(|(on, _)| *on == of).map(|(_, claim)| claim)) => return,
            Ok(ClaimsEvent::Changed { changes, .. })
                if changes.iter().any(|change| change.resource == of && wanted(change.claim.as_ref())) =>
            {
                return;
            }
            Ok(_) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

/// First its session expires, then its lock delay, together within the TTL; the watch reports the slot as free before it can be acquired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_member_held_is_held_back_and_then_free() {
    let ttl = TTL * 2;
    let pair = Pair::with(ttl).await;
    let grant = pair.one.renew(&pair.a.record_id(), ttl).await.unwrap();
    assert_eq!(grant.ttl, ttl / 2, "the other half is the lock delay");
    pair.a_holds(&slots(0..200)).await;
    let (lag, clock) = (Lag::begin(), Clock::system());
    let (mut seen, mut last, mut longest) = (Vec::new(), clock.now(), Duration::ZERO);
    let freed = loop {
        let begun = clock.now();
        let answers = pair.ask(&pair.two, &pair.b.record_id(), &slots(0..200)).await;
        // From the beginning of one reading to the end of the next: no longer time is without a reading.
        longest = longest.max(clock.now().since(last));
        last = begun;
        let kinds: BTreeSet<_> = answers.iter().map(|acquired| format!("{acquired:?}").split('(').next().unwrap().to_owned()).collect();
        seen.extend(kinds.clone());
        if kinds.len() == 1 && kinds.contains("Granted") {
            break clock.now();
        }
        let waited = clock.now().since(grant.started);
        assert!(waited < ttl + Duration::from_secs(1) + lag.allowance(), "after {waited:?} they are {kinds:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    seen.dedup();
    assert!(freed.since(grant.started) >= grant.ttl, "before the holder's deadline");
    assert_eq!(seen.first().map(String::as_str), Some("Held"), "{seen:?}");
    // On a busy machine no reading may fall into the lock delay.
    assert!(
        seen.iter().any(|kind| kind == "NotYet") || longest >= ttl.saturating_sub(grant.ttl),
        "{seen:?}, readings are at most {longest:?} apart"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leaving_member_still_holds_is_free_at_once() {
    let pair = Pair::with(LONG).await;
    pair.a_holds(&slots(0..200)).await;
    pair.one.deregister(&pair.a.record_id()).await.unwrap();
    let answers = pair.ask(&pair.two, &pair.b.record_id(), &slots(0..200)).await;
    assert!(answers.iter().all(|acquired| matches!(acquired, AcquireOutcome::Granted(_))), "{answers:?}");
}

/// It is a registration of the service anew, and the session hangs on one of its checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_the_record_keeps_claims() {
    let pair = Pair::with(LONG).await;
    let epoch = pair.a_holds(&slots(1..2)).await;
    for n in 0..3 {
        let mut changed = pair.a.clone();
        changed.member.zone = Some(format!("zone {n}"));
        pair.one.update(&changed).await.unwrap();
        pair.one.renew(&pair.a.record_id(), LONG).await.unwrap();
    }
    assert_eq!(pair.ask(&pair.two, &pair.b.record_id(), &slots(1..2)).await, [AcquireOutcome::Held]);
    assert_eq!(pair.a_holds(&slots(1..2)).await, epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_deleted_by_hand_is_reported_as_free_and_its_next_epoch_is_higher() {
    let pair = Pair::with(LONG).await;
    let epoch = pair.a_holds(&slots(1..2)).await;
    let mut watch = pair.one.watch_claims(&group("g"), LONG / 4);
    until_seen(&mut watch, "held", |claim| claim.is_some()).await;
    pair.edit("DELETE", "slot/1", None).await;
    until_seen(&mut watch, "free", |claim| claim.is_none()).await;
    let answers = pair.ask(&pair.two, &pair.b.record_id(), &slots(1..2)).await;
    assert!(matches!(*answers, [AcquireOutcome::Granted(next)] if next > epoch), "{answers:?} after {epoch}");
    pair.one.release(&pair.a.record_id(), &[(Resource::Slot(1), epoch)]).await.unwrap();
    until_seen(&mut watch, "b's", |claim| claim.is_some_and(|claim| claim.holder.instance_id.as_str() == "b")).await;
    assert_eq!(pair.ask(&pair.one, &pair.a.record_id(), &slots(1..2)).await, [AcquireOutcome::Held]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_overwritten_by_hand_is_free_until_its_holder_writes_it_again_and_touches_no_other() {
    let pair = Pair::with(LONG).await;
    let epoch = pair.a_holds(&slots(1..2)).await;
    let mut watch = pair.two.watch_claims(&group("g"), LONG / 4);
    until_seen(&mut watch, "held", |claim| claim.is_some()).await;
    pair.edit("PUT", "slot/1", Some(&json!("nonsense"))).await;
    until_seen(&mut watch, "nobody's", |claim| claim.is_none()).await;
    assert_eq!(pair.ask(&pair.two, &pair.b.record_id(), &slots(1..2)).await, [AcquireOutcome::Held], "locked it is all the same");
    assert!(matches!(*pair.ask(&pair.two, &pair.b.record_id(), &slots(2..3)).await, [AcquireOutcome::Granted(_)]), "the others can be had");
    let mut others = pair.two.watch_claims(&group("g"), LONG / 4);
    let first = next_event(&mut others).await.unwrap();
    assert!(matches!(&first, ClaimsEvent::All { claims, .. } if claims.len() == 1), "and are told: {first:?}");
    assert!(pair.a_holds(&slots(1..2)).await > epoch);
    until_seen(&mut watch, "a's again", |claim| claim.is_some_and(|claim| claim.holder.instance_id.as_str() == "a")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_without_a_holder_are_passed_over() {
    let pair = Pair::with(LONG).await;
    for key in ["slot/1", "slot/007", "slot/99999", "name/%", "other"] {
        pair.edit("PUT", &key.replace('%', "%25"), Some(&json!("nonsense"))).await;
    }
    let mut watch = pair.two.watch_claims(&group("g"), LONG / 4);
    assert!(matches!(next_event(&mut watch).await.unwrap(), ClaimsEvent::All { claims, .. } if claims.is_empty()));
    pair.a_holds(&slots(1..2)).await;
    until_seen(&mut watch, "a's", |claim| claim.is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_edited_by_hand_is_an_error_and_deleted_it_is_another_one() {
    let pair = Pair::with(LONG).await;
    pair.a_holds(&slots(1..2)).await;
    // The same, in other words, is the same.
    let Value::String(was) = json!(pair.store.id.to_string()) else { unreachable!() };
    pair.edit("PUT", "store", Some(&json!({ "floor": 0, "id": was, "more": 1 }))).await;
    pair.a_holds(&slots(2..3)).await;
    for nonsense in [json!("nonsense"), json!({ "id": "x", "floor": 0 }), json!({ "id": was, "floor": u64::MAX })] {
        pair.edit("PUT", "store", Some(&nonsense)).await;
        for error in [
            pair.one.claim_store(&group("g"), 0).await.unwrap_err(),
            pair.one.acquire(&pair.a.record_id(), &pair.store, &slots(3..4)).await.unwrap_err(),
        ] {
            assert!(*error.kind() == ErrorKind::Misconfigured && error.to_string().contains("shardwise/claims/g/store"), "{error}");
        }
    }
    pair.edit("DELETE", "store", None).await;
    let error = pair.one.acquire(&pair.a.record_id(), &pair.store, &slots(3..4)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OtherStore, "{error}");
    assert_ne!(pair.one.claim_store(&group("g"), 0).await.unwrap().id, pair.store.id);
    let error = pair.one.acquire(&pair.a.record_id(), &pair.store, &slots(3..4)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OtherStore, "{error}");
}

/// Its indexes begin again, so that a store could stand at the very index of the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_consul_grants_nothing_under_the_store_before() {
    let pair = Pair::with(LONG).await;
    pair.a_holds(&slots(0..10)).await;
    pair.consul.restart(false).await.unwrap();
    let lost = until("the loss is noticed", PATIENCE, async || {
        let error = pair.one.acquire(&pair.a.record_id(), &pair.store, &slots(10..11)).await.unwrap_err();
        (!error.is_retryable()).then_some(error)
    })
    .await;
    assert!(matches!(lost.kind(), ErrorKind::OtherStore | ErrorKind::Lost), "{lost}");
    until("registered again", PATIENCE, async || pair.one.register(&pair.a).await.ok()).await;
    let error = pair.one.acquire(&pair.a.record_id(), &pair.store, &slots(10..11)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OtherStore, "{error}");
    let next = pair.one.claim_store(&group("g"), 1_000_000).await.unwrap();
    assert_ne!(next.id, pair.store.id);
    let error = pair.one.acquire(&pair.a.record_id(), &pair.store, &slots(10..11)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OtherStore, "{error}");
    let granted = pair.one.acquire(&pair.a.record_id(), &next, &slots(10..11)).await.unwrap();
    assert!(matches!(*granted, [(_, AcquireOutcome::Granted(epoch))] if epoch.get() > 1_000_000), "{granted:?}");
}

/// After Consul has restarted with lower indexes, a watch reports the current claims and none from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_over_a_wiped_consul() {
    let pair = Pair::with(LONG).await;
    pair.a_holds(&slots(1..2)).await;
    let mut watch = pair.two.watch_claims(&group("g"), TTL);
    until_seen(&mut watch, "held", |claim| claim.is_some()).await;
    pair.consul.restart(false).await.unwrap();
    let free = async {
        loop {
            if let Ok(ClaimsEvent::Changed { changes, .. }) = next_event(&mut watch).await {
                break changes;
            }
        }
    };
    let changes = tokio::time::timeout(PATIENCE, free).await.unwrap();
    assert!(matches!(&*changes, [change] if change.claim.is_none()), "{changes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_not_registered_as_one_that_claims_is_refused() {
    let pair = Pair::with(LONG).await;
    let plain = registration("g", "plain", 3, LONG);
    pair.one.register(&plain).await.unwrap();
    let error = pair.one.acquire(&plain.record_id(), &pair.store, &slots(0..1)).await.unwrap_err();
    assert!(*error.kind() == ErrorKind::Misconfigured && error.to_string().contains("\"plain\""), "{error}");
}

#[tokio::test]
async fn a_ttl_beyond_consuls_lock_delay_is_refused_before_anything_is_contacted() {
    let backend = open("http://127.0.0.1:9");
    let error = backend.register(&claimant("g", "a", 1, Duration::from_millis(120_001))).await.unwrap_err();
    assert!(*error.kind() == ErrorKind::Misconfigured && error.to_string().contains("ttl is 120001ms"), "{error}");
    let error = backend.register(&claimant("g", "a", 1, Duration::from_mins(2))).await.unwrap_err();
    assert!(error.is_retryable(), "that one is only out of reach: {error}");
}

/// Renewals do not count without the servers' word on the session, and once it comes it is of when it was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_counts_from_when_the_session_was_asked_for() {
    let consul = Consul::single().await.unwrap();
    let proxy = TcpProxy::start(consul.socket_addr()).await.unwrap();
    let backend = open(&format!("http://{}", proxy.address()));
    let a = claimant("g", "a", 1, Duration::from_secs(20));
    backend.register(&a).await.unwrap();
    backend.renew(&a.record_id(), LONG).await.unwrap();
    let clock = Clock::system();
    let begun = clock.now();
    proxy.delay(Direction::ToClient, Duration::from_millis(400));
    let grant = backend.renew(&a.record_id(), LONG).await.unwrap();
    let waited = grant.started.since(begun);
    assert!(waited >= Duration::from_millis(350) && clock.now().since(grant.started) >= Duration::from_millis(350), "{waited:?}");
    proxy.delay(Direction::ToClient, Duration::ZERO);
    let sessions = consul.api("GET", "/v1/session/list", None).await.unwrap();
    assert_eq!(sessions[0]["LockDelay"], json!(10_000_000_000_u64), "{sessions}");
    let id = sessions[0]["ID"].as_str().unwrap();
    consul.api("PUT", &format!("/v1/session/destroy/{id}"), None).await.unwrap();
    let error = backend.renew(&a.record_id(), LONG).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "without its session: {error}");
    assert!(backend.members(&group("g")).await.unwrap().view.members().is_empty(), "and so it is no longer a member");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_loses_no_claim_and_epochs_go_on_rising() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default()).await.unwrap();
    let agent = cluster.agent("worker-agent").await.unwrap();
    let (one, two) = (open(&agent.address()), open(&agent.address()));
    let (a, b) = (claimant("g", "a", 1, LONG), claimant("g", "b", 2, LONG));
    one.register(&a).await.unwrap();
    two.register(&b).await.unwrap();
    let store = one.claim_store(&group("g"), 0).await.unwrap();
    let before = one.acquire(&a.record_id(), &store, &slots(0..100)).await.unwrap();
    let highest =
        before.iter().map(|(_, acquired)| if let AcquireOutcome::Granted(epoch) = acquired { epoch.get() } else { 0 }).max().unwrap();
    let mut watch = two.watch_claims(&group("g"), TTL);
    until_seen(&mut watch, "held", |claim| claim.is_some()).await;
    let leader = cluster.leader().await.unwrap();
    cluster.servers()[leader].kill().unwrap();
    let answers =
        until("b is answered under the new leader", PATIENCE, async || match two.acquire(&b.record_id(), &store, &slots(50..150)).await {
            Ok(answers) => Some(answers),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                None
            }
        })
        .await;
    for (resource, acquired) in answers {
        match acquired {
            AcquireOutcome::Held => assert!(resource < Resource::Slot(100), "{resource} was free"),
            AcquireOutcome::Granted(epoch) => assert!(resource >= Resource::Slot(100) && epoch.get() > highest, "{resource} under {epoch}"),
            AcquireOutcome::NotYet => panic!("{resource} is held back though nobody has died"),
        }
    }
    until("a renews", PATIENCE, async || one.renew(&a.record_id(), LONG).await.ok()).await;
    let next_event = async {
        loop {
            if let Ok(ClaimsEvent::Changed { changes, .. }) = next_event(&mut watch).await {
                assert!(changes.iter().all(|change| change.claim.is_some()), "an election frees nothing: {changes:?}");
                if changes.iter().any(|change| change.resource == Resource::Slot(149)) {
                    return;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, next_event).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_keeps_claims_and_goes_on_above_their_epochs() {
    let pair = Pair::with(LONG).await;
    // An agent remembers a renewal over its restart.
    pair.one.renew(&pair.a.record_id(), LONG).await.unwrap();
    pair.two.renew(&pair.b.record_id(), LONG).await.unwrap();
    let epoch = pair.a_holds(&slots(1..2)).await;
    pair.consul.restart(true).await.unwrap();
    let answers =
        until("b is answered", PATIENCE, async || pair.two.acquire(&pair.b.record_id(), &pair.store, &slots(1..3)).await.ok()).await;
    let answers: Vec<_> = answers.into_iter().map(|(_, acquired)| acquired).collect();
    assert!(answers.contains(&AcquireOutcome::Held), "{answers:?}");
    assert!(answers.iter().any(|acquired| matches!(acquired, AcquireOutcome::Granted(next) if *next > epoch)), "{answers:?} after {epoch}");
    until("a renews", PATIENCE, async || pair.one.renew(&pair.a.record_id(), LONG).await.ok()).await;
}
