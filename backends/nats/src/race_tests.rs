//! Calls against each other on a real server: of a renewal and two evictions of one beat, one write is carried out.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, Incarnation, InstanceId, Member};
use shardwise_discovery::silence::Eviction;
use shardwise_discovery::{Clock, Discovery, ErrorKind, Registration};
use shardwise_testkit::{Nats, NatsOptions};

use crate::evictions::evict;
use crate::messages::StoredBeat;
use crate::{NatsBackend, NatsBackendConfig};

/// Longer than all rounds take, so that no member is evicted because it is silent.
const TTL: Duration = Duration::from_hours(1);
/// `SHARDWISE_RACES` asks for another number.
const ROUNDS: u64 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_renewal_and_two_evictions_one_wins() {
    let rounds = std::env::var("SHARDWISE_RACES").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let server = Nats::start(NatsOptions::default().newest()).await.unwrap();
    let config = NatsBackendConfig { urls: vec![server.address()], ..NatsBackendConfig::default() };
    let [holder, one, other] = [(); 3].map(|()| NatsBackend::open(&config, Clock::system()).unwrap());
    let (mut renewed, mut evicted) = (0_u64, 0_u64);
    for round in 0..rounds {
        let member = Member { incarnation: Incarnation::new(round), ..Member::named(InstanceId::new("a").unwrap()) };
        let registration = Registration { group: GroupName::new("race").unwrap(), member, ttl: TTL, claims: false };
        let record = registration.record_id();
        holder.register(&registration).await.unwrap();
        let there = holder.handle.stored_beat(&record.group, &record.instance_id).await.unwrap();
        let seen = there.as_ref().map(StoredBeat::sequence);
        let evict_by = |backend: &NatsBackend| evict(Arc::clone(&backend.handle), Eviction { record: record.clone(), seen });
        // The one that asks first wins more often.
        let (renewal, first, second) = if round % 2 == 0 {
            tokio::join!(holder.renew(&record, TTL), evict_by(&one), evict_by(&other))
        } else {
            let (first, second, renewal) = tokio::join!(evict_by(&one), evict_by(&other), holder.renew(&record, TTL));
            (renewal, first, second)
        };
        let evictions = [first, second].into_iter().filter(|outcome| outcome.as_ref().unwrap().is_evicted).count();
        if let Err(error) = renewal {
            assert_eq!((error.kind(), evictions), (&ErrorKind::Lost, 1), "round {round}: {error}");
            evicted += 1;
        } else {
            assert_eq!(evictions, 0, "round {round}: it was renewed");
            holder.deregister(&record).await.unwrap();
            renewed += 1;
        }
    }
    println!("renewed {renewed}, evicted {evicted}");
    assert!(renewed > 0 && evicted > 0, "the rounds were different: {renewed}, {evicted}");
}
