//! Calls against each other on a real server: of a renewal and two burials of one beat, one write is carried out.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, Incarnation, InstanceId, Member};
use shardwise_discovery::silence::Burial;
use shardwise_discovery::{Clock, Discovery, ErrorKind, Registration};
use shardwise_testkit::{Nats, NatsOptions};

use crate::burials::bury;
use crate::messages::StoredBeat;
use crate::{NatsBackend, NatsBackendConfig};

/// Longer than all rounds take, so that no member is buried because it is silent.
const TTL: Duration = Duration::from_hours(1);
/// `SHARDWISE_RACES` asks for another number.
const ROUNDS: u64 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_renewal_and_two_burials_one_wins() {
    let rounds = std::env::var("SHARDWISE_RACES").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let server = Nats::start(NatsOptions::default().newest()).await.unwrap();
    let config = NatsBackendConfig { urls: vec![server.address()], ..NatsBackendConfig::default() };
    let [holder, one, other] = [(); 3].map(|()| NatsBackend::open(&config, Clock::system()).unwrap());
    let (mut renewed, mut buried) = (0_u64, 0_u64);
    for round in 0..rounds {
        let member = Member { incarnation: Incarnation::new(round), ..Member::named(InstanceId::new("a").unwrap()) };
        let registration = Registration { group: GroupName::new("race").unwrap(), member, ttl: TTL, claims: false };
        let record = registration.record_id();
        holder.register(&registration).await.unwrap();
        let there = holder.handle.stored_beat(&record.group, &record.instance_id).await.unwrap();
        let seen = there.as_ref().map(StoredBeat::sequence);
        let bury_by = |backend: &NatsBackend| bury(Arc::clone(&backend.handle), Burial { record: record.clone(), seen });
        // The one that asks first wins more often.
        let (renewal, first, second) = if round % 2 == 0 {
            tokio::join!(holder.renew(&record, TTL), bury_by(&one), bury_by(&other))
        } else {
            let (first, second, renewal) = tokio::join!(bury_by(&one), bury_by(&other), holder.renew(&record, TTL));
            (renewal, first, second)
        };
        let burials = [first, second].into_iter().filter(|outcome| outcome.as_ref().unwrap().is_buried).count();
        if let Err(error) = renewal {
            assert_eq!((error.kind(), burials), (&ErrorKind::Lost, 1), "round {round}: {error}");
            buried += 1;
        } else {
            assert_eq!(burials, 0, "round {round}: it was renewed");
            holder.deregister(&record).await.unwrap();
            renewed += 1;
        }
    }
    println!("renewed {renewed}, buried {buried}");
    assert!(renewed > 0 && buried > 0, "the rounds were different: {renewed}, {buried}");
}
