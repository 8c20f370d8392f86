//! Routes of a member among a thousand: how many in a second, by one thread.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use shardwise::discovery::{Clock, Discovery as _, MemoryBackend, Registration};
use shardwise::requests::To;
use shardwise::settings::PolicySettings;
use shardwise::{GroupName, Incarnation, InstanceId, Member, Policy, PolicyName, Serves, ShardingFactory, Timing};

use super::group::until;
use super::print_figure;

const MEMBERS: u64 = 1_000;
const KEYS: usize = 10_000;
/// The clock is read once in so many routes.
const BATCH: usize = 1_000;
const LEASE: Duration = Duration::from_hours(1);

pub(crate) async fn measure(rounds: usize, turn: Duration) {
    let clock = Clock::system();
    let store = MemoryBackend::new(clock.clone());
    let policy = Policy::new(PolicyName::new("workers").unwrap(), GroupName::new("workers").unwrap());
    for number in 1..MEMBERS {
        let member = Member {
            incarnation: Incarnation::new(number),
            fingerprints: policy.fingerprints(),
            serves: Some(Serves::Keys),
            ..Member::named(InstanceId::new(format!("worker-{number}")).unwrap())
        };
        store.register(&Registration { group: policy.group.clone(), member, ttl: LEASE, claims: false }).await.unwrap();
    }
    let mut settings = PolicySettings::new(policy);
    settings.discovery.backend = "bench".into();
    settings.timing = Timing::new(Duration::from_secs(10), None, Duration::from_millis(100)).unwrap();
    let builder = ShardingFactory::builder().policy(settings).backend("bench", Arc::new(store.link())).clock(clock);
    let service = builder.instance_id(InstanceId::new("asker").unwrap()).build().unwrap().create("workers").unwrap();
    service.register_self().await.unwrap();
    until("all members are seen and have shares", || {
        service.members().members().len() as u64 == MEMBERS && service.route(&To::owner("key")).is_ok()
    })
    .await;
    let keys: Vec<String> = (0..KEYS).map(|key| format!("tenant-{key:08}")).collect();
    for _ in 0..rounds {
        let (mut routed, begun) = (0_usize, Instant::now());
        for batch in keys.chunks(BATCH).cycle() {
            for key in batch {
                let _ = black_box(service.route(&To::owner(key)).unwrap());
            }
            routed += batch.len();
            if begun.elapsed() >= turn {
                break;
            }
        }
        print_figure(&json!({ "figure": "route", "members": MEMBERS, "rate": routed as f64 / begun.elapsed().as_secs_f64() }));
    }
    service.deregister_self().await.unwrap();
}
