//! Three servers: the leader of the stream is killed, paused and brought back, over and over. No member that renews is lost, claims have
//! one holder each, and epochs rise.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{PACE, PATIENCE, config, eventually, group, ids, lasting, only_granted, open, slots, store, view_of};
use futures::StreamExt;
use shardwise_backend_nats::NatsBackend;
use shardwise_core::{Epoch, Resource};
use shardwise_discovery::{Claims, Discovery, ErrorKind, RecordId, Registration, WatchEvent};
use shardwise_testkit::{NatsCluster, NatsOptions};

const BUCKET: &str = "cluster";
/// Longer than an election.
const TTL: Duration = Duration::from_secs(20);
/// How often each member asks for claims at least, however slow the machine is.
const TURNS: u32 = 11;

async fn cluster() -> NatsCluster {
    NatsCluster::start(3, NatsOptions::default().newest().durable()).await.unwrap()
}

/// Renews like a service, and fails if its record is lost.
fn alive(backend: &Arc<NatsBackend>, record_id: RecordId) -> tokio::task::JoinHandle<()> {
    let backend = Arc::clone(backend);
    tokio::spawn(async move {
        loop {
            match backend.renew(&record_id, TTL).await {
                Ok(_) => tokio::time::sleep(TTL / 10).await,
                Err(error) => {
                    assert_ne!(*error.kind(), ErrorKind::Lost, "{record_id:?}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_the_leader_costs_no_member_and_no_view_goes_back() {
    let cluster = cluster().await;
    let backends: Vec<_> = (0..3).map(|_| open(&config(&cluster.addresses(), BUCKET))).collect();
    let mut living = Vec::new();
    for (incarnation, (id, backend)) in (1..).zip(["a", "b", "c"].into_iter().zip(&backends)) {
        let member = Registration { ttl: TTL, ..lasting(id, incarnation) };
        // A bucket that was just created has no leader for a moment.
        eventually("it is registered", async || backend.register(&member).await.ok()).await;
        living.push(alive(backend, member.record_id()));
    }
    let mut watch = backends[0].watch(&group(), PACE);
    view_of(&mut watch, &["a", "b", "c"]).await;
    let watching = tokio::spawn(async move {
        let mut revision = 0;
        while let Some(event) = watch.next().await {
            if let Ok(WatchEvent::View(snapshot)) = event {
                assert_eq!(ids(&snapshot.view), ["a", "b", "c"]);
                assert!(snapshot.view.revision() >= revision);
                revision = snapshot.view.revision();
            }
        }
    });
    for round in 0..4 {
        let leader = cluster.leader_of(&format!("KV_{BUCKET}")).await.unwrap();
        let server = &cluster.servers()[leader];
        if round % 2 == 0 {
            server.kill().unwrap();
        } else {
            server.pause().unwrap();
        }
        eventually("another leader answers", async || backends[1].members(&group()).await.ok()).await;
        if round % 2 == 0 {
            server.restart().await.unwrap();
        } else {
            server.resume().unwrap();
        }
        eventually("all is well", async || backends[2].members(&group()).await.ok()).await;
    }
    assert!(living.iter().all(|task| !task.is_finished()) && !watching.is_finished());
    living.iter().for_each(tokio::task::JoinHandle::abort);
    watching.abort();
}

/// What each member has been granted and not given back, and the highest epoch of each slot.
#[derive(Default)]
struct Ledger {
    held: BTreeMap<Resource, (usize, Epoch)>,
    highest: BTreeMap<Resource, Epoch>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_have_one_holder_each_while_leaders_die() {
    let cluster = Arc::new(cluster().await);
    let backends: Vec<_> = (0..3).map(|_| open(&config(&cluster.addresses(), BUCKET))).collect();
    let mut members = Vec::new();
    let mut living = Vec::new();
    for (incarnation, (id, backend)) in (1..).zip(["a", "b", "c"].into_iter().zip(&backends)) {
        let member = Registration { ttl: TTL, claims: true, ..lasting(id, incarnation) };
        backend.register(&member).await.unwrap();
        living.push(alive(backend, member.record_id()));
        members.push(member.record_id());
    }
    let known = store(&backends[0]).await;
    let (ledger, is_over) = (Arc::new(std::sync::Mutex::new(Ledger::default())), Arc::new(AtomicBool::new(false)));
    let claiming: Vec<_> = (0..3)
        .map(|index| {
            let (backend, member, ledger, is_over) =
                (Arc::clone(&backends[index]), members[index].clone(), Arc::clone(&ledger), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut rounds = 0_u32;
                while !is_over.load(Ordering::Relaxed) || rounds < TURNS {
                    let wanted = slots(rounds % 4 * 4..rounds % 4 * 4 + 4);
                    rounds += 1;
                    let Ok(answers) = backend.acquire(&member, &known, &wanted).await else { continue };
                    let granted = only_granted(answers);
                    {
                        let mut ledger = ledger.lock().unwrap();
                        for (resource, epoch) in &granted {
                            let before = ledger.held.insert(resource.clone(), (index, *epoch));
                            assert!(
                                before.is_none_or(|(holder, _)| holder == index),
                                "{resource:?} has two holders: {before:?} and {index}"
                            );
                            let highest = ledger.highest.entry(resource.clone()).or_insert(*epoch);
                            assert!(*epoch >= *highest, "{resource:?}: {epoch} after {highest}");
                            *highest = *epoch;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    // Given back in the ledger first: from then on another member may hold it.
                    for (resource, _) in &granted {
                        ledger.lock().unwrap().held.remove(resource);
                    }
                    while backend.release(&member, &granted).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                rounds
            })
        })
        .collect();
    for round in 0..4 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let leader = cluster.leader_of(&format!("KV_{BUCKET}")).await.unwrap();
        let server = &cluster.servers()[leader];
        if round % 2 == 0 {
            server.kill().unwrap();
        } else {
            server.pause().unwrap();
        }
        eventually("another leader answers", async || backends[1].members(&group()).await.ok()).await;
        if round % 2 == 0 {
            server.restart().await.unwrap();
        } else {
            server.resume().unwrap();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for task in claiming {
        let rounds = tokio::time::timeout(PATIENCE, task).await;
        assert!(matches!(rounds, Ok(Ok(TURNS..))), "each has had its turns: {rounds:?}");
    }
    living.iter().for_each(tokio::task::JoinHandle::abort);
}
