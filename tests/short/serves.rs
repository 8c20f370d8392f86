//! Two kinds of work never share the slots of one group: who may join, who is refused, and what is said about it.

use std::sync::Arc;

use crate::common::{World, eventually, policy};
use crate::log::Log;
use shardwise::discovery::{Discovery, Registration};
use shardwise::{
    ErrorKind, Incarnation, InstanceId, Member, Policy, Serves, ServiceState, Settings, Sharding, ShardingFactory, ShardingService,
};

fn outbox(id: &str, name: &str) -> Serves {
    Serves::Outbox { id: id.into(), name: name.into() }
}

fn worker(world: &World, id: &str, serves: Serves) -> ShardingService {
    let factory = world.factory_of(id, Arc::new(world.store.link()), policy());
    factory.create_serving("workers", serves).expect("a known policy")
}

async fn joined(world: &World, id: &str, serves: Serves) -> ShardingService {
    let service = worker(world, id, serves);
    service.register_self().await.expect("it joins");
    service
}

#[tokio::test(start_paused = true)]
async fn a_member_that_works_for_something_else_is_refused_by_name_and_the_group_keeps_every_slot() {
    let world = World::new();
    let first = joined(&world, "first", outbox("0rder5", "orders")).await;
    let all = first.ownership().slots().len();
    // Another machine, with its own file for an outbox of that name; an outbox of another name; a worker for keys.
    for other in [outbox("n0t5ame", "orders"), outbox("n0t1ce5", "notices"), Serves::Keys] {
        let stranger = worker(&world, "stranger", other.clone());
        let refused = stranger.register_self().await.expect_err("the group works for something else");
        assert_eq!(refused.kind(), ErrorKind::OtherPolicy);
        let said = refused.to_string();
        for part in [&other.to_string(), r#"outbox "orders" (store id "0rder5")"#, r#"member "first""#, "with its own group_name"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!((stranger.state(), stranger.ownership().slots().len()), (ServiceState::Left, 0));
        eventually("its record is gone", || first.members().members().len() == 1).await;
        assert_eq!(first.ownership().slots().len(), all, "{other} has taken nothing");
    }
    let renamed = joined(&world, "second", outbox("0rder5", "orders_eu")).await;
    eventually("they share", || first.ownership().slots().len() + renamed.ownership().slots().len() == all).await;
    assert!(!renamed.ownership().slots().is_empty(), "the id counts, not the name");
}

/// While it is in the view it has no share: the others do not wait for its end.
#[tokio::test(start_paused = true)]
async fn a_record_of_something_else_in_the_view_has_no_share() {
    let world = World::new();
    let first = world.joined("first").await;
    let all = first.ownership().slots().len();
    register(&world, "stranger", Some(outbox("0rder5", "orders"))).await;
    eventually("it is seen", || first.members().members().len() == 2).await;
    assert_eq!((first.ownership().slots().len(), first.members().active()), (all, 1));
}

async fn register(world: &World, id: &str, serves: Option<Serves>) -> Registration {
    let policy: Policy = policy();
    let member = Member {
        incarnation: Incarnation::new(5),
        fingerprints: policy.fingerprints(),
        serves,
        ..Member::named(InstanceId::new(id).expect("valid"))
    };
    let registration = Registration { group: policy.group, member, ttl: world.ttl * 100, claims: false };
    world.store.link().register(&registration).await.expect("it is registered");
    registration
}

#[tokio::test(start_paused = true)]
async fn a_member_of_a_version_that_does_not_say_is_let_stay_with_one_warning() {
    let (log, _logging) = Log::start();
    let world = World::new();
    register(&world, "older", None).await;
    let new = joined(&world, "newer", outbox("0rder5", "orders")).await;
    eventually("they share", || new.members().members().len() == 2 && !new.ownership().slots().is_empty()).await;
    let share = new.ownership().slots().len();
    assert!(share < new.ownership().slots().slots(), "the older one has its share");
    let third = joined(&world, "third", outbox("0rder5", "orders")).await;
    eventually("they share", || third.members().members().len() == 3).await;
    let warning = "does not say yet whether it serves keys or which outbox";
    assert_eq!(log.lines_with(warning), 2, "once for each worker here, whatever changes");
    let refused = worker(&world, "stranger", Serves::Keys).register_self().await.expect_err("the newer ones say what they serve");
    assert_eq!(refused.kind(), ErrorKind::OtherPolicy);
}

#[test]
fn a_factory_makes_no_worker_for_keys_under_the_policy_of_an_outbox() {
    let settings = Settings::from_toml_str(
        "[default.resilience.sharding]\ndiscovery.backend = \"memory\"\npolicies.publishers.group_name = \"g\"\n\
         policies.workers.group_name = \"g\"\npolicies.others.group_name = \"others\"\n\
         [default.outbox.orders]\npolicy = \"publishers\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\"",
    );
    let factory = ShardingFactory::from_settings(settings.expect("valid settings")).expect("a factory");
    // By another name of a policy it is the same group.
    for policy in ["publishers", "workers"] {
        let refused = factory.create(policy).expect_err("it is an outbox's");
        assert_eq!(refused.kind(), ErrorKind::Settings);
        assert!(refused.to_string().contains(&format!("the group of policy {policy} is that of outbox orders")), "{refused}");
    }
    factory.create("others").expect("its own group");
    let service = factory.create_serving("publishers", outbox("0rder5", "orders")).expect("its publisher");
    assert_eq!(service.serves(), Some(outbox("0rder5", "orders")));
    assert!(factory.create_serving("publishers", outbox("0rder5", "renamed")).is_ok(), "the same one");
    let refused = factory.create_serving("publishers", outbox("0ther", "orders")).expect_err("one service serves one outbox");
    assert!(refused.to_string().contains("in this process"), "{refused}");
}

/// Its record is lost while a worker for keys is there: it owns nothing from then on, and the log says so at its default level.
#[tokio::test(start_paused = true)]
async fn a_publisher_that_comes_back_to_a_group_that_serves_keys_says_so_and_goes_on_once_that_is_over() {
    let (log, _logging) = Log::start();
    let world = World::new();
    let first = joined(&world, "first", outbox("0rder5", "orders")).await;
    let stranger = register(&world, "stranger", Some(Serves::Keys)).await;
    let member = first.members().member(first.instance_id()).expect("it is there").clone();
    let own = Registration { group: policy().group, member, ttl: world.ttl, claims: false };
    world.store.link().deregister(&own.record_id()).await.expect("its record is gone");
    eventually("it is refused", || first.state() == ServiceState::Refused).await;
    assert!(first.ownership().slots().is_empty());
    assert_eq!(log.lines_with("refused: this worker owns nothing"), 1);
    assert_eq!(log.lines_with(r#"the group "group" serves keys, as member "stranger" does"#), 1);
    world.store.link().deregister(&stranger.record_id()).await.expect("it leaves");
    eventually("it is active again", || first.state() == ServiceState::Active && !first.ownership().slots().is_empty()).await;
}
