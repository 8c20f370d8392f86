//! What does not end well: a worker that does not come back, one that dies, one whose backend fails as it leaves, and what is refused.

use std::sync::Arc;
use std::time::Duration;

use shardwise::discovery::{Discovery, ErrorKind as BackendError};
use shardwise::settings::PolicySettings;
use shardwise::{ErrorKind, MemberState, OwnershipMode, ServiceState, ShardingFactory};

use crate::common::{World, eventually};
use crate::scripted::{How, Scripted};
use crate::{AWAY_FOR, REJOIN_GRACE, joined, owned, policy, settled};

const TTL: Duration = Duration::from_secs(3);

/// The states in which `who` sees `id`.
fn state_of(who: &shardwise::ShardingService, id: &str) -> Option<MemberState> {
    who.members().members().iter().find(|member| member.instance_id.as_str() == id).map(|member| member.state)
}

#[tokio::test(start_paused = true)]
async fn an_away_member_that_does_not_return_is_replaced_when_the_rejoin_grace_is_over() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let world = World::new();
        let (a, b) =
            (joined(&world, "a", policy(ownership, REJOIN_GRACE)).await, joined(&world, "b", policy(ownership, REJOIN_GRACE)).await);
        eventually("they share", || settled([&a, &b]) && !owned(&b).is_empty()).await;
        let mine = owned(&a);
        let left = world.clock.now();
        b.deregister_self().await.expect("leaves");
        eventually("b is seen away", || state_of(&a, "b") == Some(MemberState::Away)).await;
        while world.clock.now().since(left) < REJOIN_GRACE {
            assert_eq!(owned(&a), mine, "after {:?}", world.clock.now().since(left));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        eventually("the other has everything", || settled([&a])).await;
        let took = world.clock.now().since(left);
        assert!(took >= REJOIN_GRACE && took < REJOIN_GRACE + TTL, "{took:?}");
        assert_eq!(state_of(&a, "b"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_dies_is_not_away() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let world = World::new();
        let a = joined(&world, "a", policy(ownership, REJOIN_GRACE)).await;
        let cut = world.store.link();
        let dying = world.factory_of("b", Arc::new(cut.clone()), policy(ownership, REJOIN_GRACE)).create("workers").expect("known");
        dying.register_self().await.expect("joins");
        eventually("they share", || settled([&a, &dying]) && !owned(&dying).is_empty()).await;
        let mut snapshots = a.snapshots();
        cut.set_reachable(false);
        let died = world.clock.now();
        eventually("the other has everything", || settled([&a])).await;
        assert!(world.clock.now().since(died) <= TTL + Duration::from_secs(1), "a death takes a TTL, not a rejoin grace");
        while let Ok(Some(snapshot)) = tokio::time::timeout(Duration::ZERO, snapshots.recv()).await {
            assert!(snapshot.view().members().iter().all(|member| member.state == MemberState::Active), "{:?}", snapshot.view());
        }
        // It wants to leave in good order once it is cut off, and cannot: its record is gone, and none comes.
        let _ = dying.deregister_self().await;
        cut.set_reachable(true);
        tokio::time::sleep(AWAY_FOR).await;
        assert_eq!(state_of(&a, "b"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_that_cannot_be_kept_is_given_up() {
    // What becomes of stepping away and of deregistering; how long the others wait at most for the slots.
    let soon = Duration::from_millis(500);
    for (away, gone, within) in [
        (How::Fails as fn(BackendError) -> How, How::Fails as fn(BackendError) -> How, TTL + soon),
        (How::Fails, |_| How::Now, soon),
        (|_| How::Never, |_| How::Now, Duration::from_secs(2) + soon),
        (|_| How::After(Duration::from_secs(9)), |_| How::Never, Duration::from_secs(3) + TTL + soon),
    ] {
        let world = World::new();
        let a = joined(&world, "a", policy(OwnershipMode::Eventual, REJOIN_GRACE)).await;
        let script = move |(operation, _): crate::scripted::Call<'_>| match operation {
            "step_away" => away(BackendError::Unavailable),
            "deregister" => gone(BackendError::Unavailable),
            _ => How::Now,
        };
        let backend: Arc<dyn Discovery> = Arc::new(Scripted::new(world.store.link(), script));
        let b = world.factory_of("b", backend, policy(OwnershipMode::Eventual, REJOIN_GRACE)).create("workers").expect("known");
        b.register_self().await.expect("joins");
        eventually("they share", || settled([&a, &b])).await;
        let left = world.clock.now();
        b.deregister_self().await.expect("leaves all the same");
        assert_eq!(b.state(), ServiceState::Left);
        assert!(world.clock.now().since(left) <= Duration::from_secs(3) + soon, "leaving takes no longer, whatever the backend does");
        eventually("the other has everything", || settled([&a])).await;
        assert!(world.clock.now().since(left) <= within, "{:?} of {within:?}", world.clock.now().since(left));
    }
}

#[tokio::test(start_paused = true)]
async fn an_away_member_does_not_count_for_min_members() {
    let world = World::new();
    let patient = || {
        let mut policy = policy(OwnershipMode::Eventual, REJOIN_GRACE);
        policy.min_members = 2;
        policy
    };
    let (a, b) = (joined(&world, "a", patient()).await, joined(&world, "b", patient()).await);
    eventually("they share", || settled([&a, &b])).await;
    b.deregister_self().await.expect("leaves");
    eventually("nobody owns", || owned(&a).is_empty()).await;
    let b = joined(&world, "b", patient()).await;
    eventually("they share again", || settled([&a, &b])).await;
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_away_members() {
    let world = World::new();
    let patient = || policy(OwnershipMode::Eventual, REJOIN_GRACE);
    let (a, b) = (joined(&world, "a", patient()).await, joined(&world, "b", patient()).await);
    let observer = world.factory_of("o", Arc::new(world.store.link()), patient()).observe("workers").await.expect("it sees the group");
    eventually("both are seen", || observer.members().active() == 2).await;
    let owners = observer.owners().expect("one policy");
    a.deregister_self().await.expect("leaves");
    eventually("a is away", || observer.members().members().iter().any(|member| member.state == MemberState::Away)).await;
    assert_eq!(observer.owners().expect("one policy"), owners, "whose place is kept");
    drop(b);
}

#[tokio::test(start_paused = true)]
async fn how_long_a_member_is_still_away_is_reported() {
    let world = World::new();
    let patient = || policy(OwnershipMode::Eventual, REJOIN_GRACE);
    let (a, b) = (joined(&world, "a", patient()).await, joined(&world, "b", patient()).await);
    let observe =
        async |id| world.factory_of(id, Arc::new(world.store.link()), patient()).observe("workers").await.expect("it sees the group");
    let early = observe("early").await;
    eventually("they share", || settled([&a, &b]) && early.members().active() == 2).await;
    assert!(a.absences().is_empty() && early.absences().is_empty());
    b.deregister_self().await.expect("leaves");
    eventually("b is seen away", || !a.absences().is_empty() && !early.absences().is_empty()).await;
    tokio::time::sleep(AWAY_FOR).await;
    let late = observe("late").await;
    eventually("the late one sees it too", || !late.absences().is_empty()).await;
    let soon = Duration::from_millis(500);
    for (absences, passed) in [(a.absences(), AWAY_FOR), (early.absences(), AWAY_FOR), (late.absences(), Duration::ZERO)] {
        let [absence] = &absences[..] else { panic!("{absences:?}") };
        assert_eq!(absence.instance_id, *b.instance_id());
        assert!(absence.within + passed <= REJOIN_GRACE && absence.within + passed + soon > REJOIN_GRACE, "{absence:?} after {passed:?}");
    }
    let b = joined(&world, "b", patient()).await;
    eventually("it is back", || settled([&a, &b]) && a.absences().is_empty()).await;
    b.deregister_self().await.expect("leaves");
    eventually("b is away anew", || a.absences().first().is_some_and(|absence| absence.within + soon > REJOIN_GRACE)).await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_for_good_is_replaced_at_once_before_it_goes_and_after() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        for is_away in [false, true] {
            let world = World::new();
            let (a, b) =
                (joined(&world, "a", policy(ownership, REJOIN_GRACE)).await, joined(&world, "b", policy(ownership, REJOIN_GRACE)).await);
            eventually("they share", || settled([&a, &b]) && !owned(&b).is_empty()).await;
            if is_away {
                b.deregister_self().await.expect("leaves");
                eventually("b is seen away", || state_of(&a, "b") == Some(MemberState::Away)).await;
                tokio::time::sleep(AWAY_FOR).await;
                assert!(!settled([&a]), "its place is kept");
            }
            let asked = world.clock.now();
            b.deregister_self_for_good().await.expect("leaves");
            assert_eq!(b.state(), ServiceState::Left);
            eventually("the other has everything", || settled([&a])).await;
            assert!(world.clock.now().since(asked) < Duration::from_secs(1), "{:?}", world.clock.now().since(asked));
            assert_eq!(state_of(&a, "b"), None);
            b.register_self().await.expect("it may join again");
            eventually("they share again", || settled([&a, &b]) && !owned(&b).is_empty()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_ends_an_absence_and_nothing_else() {
    let world = World::new();
    let patient = || policy(OwnershipMode::Exclusive, REJOIN_GRACE);
    let (a, b) = (joined(&world, "a", patient()).await, joined(&world, "b", patient()).await);
    eventually("they share", || settled([&a, &b]) && !owned(&b).is_empty()).await;
    let operator = world.factory_of("o", Arc::new(world.store.link()), patient());
    let error = operator.end_absence("workers", b.instance_id()).await.expect_err("it is there");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Conflict, false), "{error}");
    assert_eq!(error.to_string(), "\"b\" is not away but active; to remove it, stop that worker");
    b.deregister_self().await.expect("leaves");
    assert!(operator.end_absence("workers", b.instance_id()).await.expect("it is away"));
    eventually("the other has everything", || settled([&a])).await;
    assert!(!operator.end_absence("workers", b.instance_id()).await.expect("nobody"));
}

/// Between the reading and what follows from it the member comes back: its living record stays, and what it has claimed.
#[tokio::test(start_paused = true)]
async fn a_member_that_returns_while_an_operator_ends_its_absence_loses_nothing() {
    let world = World::new();
    let patient = || policy(OwnershipMode::Exclusive, REJOIN_GRACE);
    let (a, b) = (joined(&world, "a", patient()).await, joined(&world, "b", patient()).await);
    eventually("they share", || settled([&a, &b]) && !owned(&b).is_empty()).await;
    b.deregister_self().await.expect("leaves");
    let late = Scripted::new(world.store.link(), |_| How::After(Duration::from_secs(1)));
    let operator = world.factory_of("o", Arc::new(late), patient());
    let (ended, joined) = tokio::join!(operator.end_absence("workers", b.instance_id()), async {
        b.register_self().await.expect("it comes back");
        eventually("they share", || settled([&a, &b]) && !owned(&b).is_empty()).await;
        (owned(&a), owned(&b))
    });
    let error = ended.expect_err("it is back");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Conflict, false), "{error}");
    tokio::time::sleep(2 * TTL).await;
    assert_eq!((owned(&a), owned(&b)), joined, "neither a slot nor an epoch has changed");
    assert!(operator.end_absence("workers", a.instance_id()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn members_must_agree_on_it_and_by_default_there_is_none() {
    let world = World::new();
    let a = joined(&world, "a", policy(OwnershipMode::Eventual, REJOIN_GRACE)).await;
    let other = world.factory("b").create("workers").expect("known");
    let error = other.register_self().await.expect_err("the group has a rejoin grace");
    assert!(error.kind() == ErrorKind::OtherPolicy && error.to_string().contains("rejoin_grace"), "{error}");
    drop((a, other));

    let world = World::new();
    let (a, b) = (world.joined("a").await, world.joined("b").await);
    let mut snapshots = a.snapshots();
    b.deregister_self().await.expect("leaves");
    eventually("b is gone", || state_of(&a, "b").is_none()).await;
    while let Ok(Some(snapshot)) = tokio::time::timeout(Duration::ZERO, snapshots.recv()).await {
        assert!(snapshot.view().members().iter().all(|member| !member.state.rests()), "{:?}", snapshot.view());
    }
}

#[test]
fn without_an_id_of_its_own_or_a_backend_that_can_it_is_refused() {
    let refused = |id: Option<&str>, backend: Option<Arc<dyn Discovery>>| {
        let mut settings = PolicySettings::new(policy(OwnershipMode::Eventual, REJOIN_GRACE));
        settings.discovery.backend = if backend.is_some() { "own".into() } else { "memory".into() };
        let mut builder = ShardingFactory::builder().policy(settings);
        if let Some(backend) = backend {
            builder = builder.backend("own", backend);
        }
        if let Some(id) = id {
            builder = builder.instance_id(shardwise::InstanceId::new(id).expect("valid"));
        }
        let error = builder.build().expect("the policy is valid").create("workers").err()?;
        assert_eq!(error.kind(), ErrorKind::Settings);
        Some(error.to_string())
    };
    assert_eq!(refused(Some("a"), None), None);
    assert_eq!(
        refused(None, None).expect("refused"),
        "policy workers: rejoin_grace is 30s: it needs instance.id, a name that this worker keeps over restarts and no other one has: set \
         instance.id, or remove rejoin_grace"
    );
    let plain: Arc<dyn Discovery> = Arc::new(crate::plain::Plain(World::new().store));
    assert_eq!(
        refused(Some("a"), Some(plain)).expect("refused"),
        "policy workers: rejoin_grace is 30s: it needs a backend that can keep a place, and plain cannot: use \"local\", \"consul\", \"etcd\", \
         \"nats\", \"postgres\" or \"valkey\", or remove rejoin_grace"
    );
}
