//! Claims when etcd has a bad day, and when many are asked for.

mod common;

use common::{
    ByHand, ClaimsFollower, Fleet, PACE, TTL, backend, claimant, eventually, expect_error, granted, group, only_granted, registration,
    slots, store, url,
};
use shardwise_core::ClaimStore;
use shardwise_discovery::{Claims, Discovery, ErrorKind};
use shardwise_testkit::{Etcd, EtcdCluster, EtcdOptions, TcpProxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_store_and_claims_and_epochs_go_on_rising() {
    let server = Etcd::single().await.unwrap();
    let here = backend(&[server.address()]);
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&here, "b", 2).await);
    let (before, held) = (store(&here).await, granted(&here, &a, &slots(0..300)).await);
    let mut watch = ClaimsFollower::of(&here);
    watch.until_held(&slots(0..300)).await;
    server.restart(true).await.unwrap();
    let after = eventually("the store", async || here.claim_store(&group(), 0).await.ok()).await;
    assert_eq!(after, before);
    assert!(granted(&here, &b, &slots(0..300)).await.is_empty(), "they are still held");
    assert_eq!(granted(&here, &a, &slots(0..300)).await, held, "under the same epochs");
    here.release(&a, &held).await.unwrap();
    let taken = granted(&here, &b, &slots(0..300)).await;
    let highest = held.iter().map(|(_, epoch)| *epoch).max().unwrap();
    assert!(taken.len() == 300 && taken.iter().all(|(_, epoch)| *epoch > highest));
    watch
        .until("the new holder", |claims| claims.len() == 300 && claims.values().all(|claim| claim.holder.instance_id == b.instance_id))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_etcd_is_another_store_and_a_floor_goes_on_above() {
    let server = Etcd::single().await.unwrap();
    let here = backend(&[server.address()]);
    let a = claimant(&here, "a", 1).await;
    let before = store(&here).await;
    let mut highest = 0;
    for n in 0..20 {
        let held = granted(&here, &a, &slots(n..n + 5)).await;
        highest = held[0].1.get();
        here.release(&a, &held).await.unwrap();
    }
    granted(&here, &a, &slots(0..3)).await;
    let mut watch = ClaimsFollower::of(&here);
    watch.until_held(&slots(0..3)).await;
    server.restart(false).await.unwrap();
    watch.until_held(&[]).await;
    let error = eventually("an answer", async || here.acquire(&a, &before, &slots(0..3)).await.err().filter(|e| !e.is_retryable())).await;
    assert_eq!(*error.kind(), ErrorKind::Lost, "its record is gone: {error}");
    claimant(&here, "a", 1).await;
    let error = here.acquire(&a, &before, &slots(0..3)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OtherStore, "{error}");
    assert_ne!(store(&here).await.id, before.id);
    let raised = here.claim_store(&group(), highest + 100).await.unwrap();
    let again = only_granted(here.acquire(&a, &raised, &slots(0..3)).await.unwrap());
    assert!(again.len() == 3 && again.iter().all(|(_, epoch)| epoch.get() > highest + 100), "{again:?} after {highest}");
}

/// An older copy has the same store, but revisions that were used already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_restored_from_a_backup_grants_nothing_before_its_floor_is_raised() {
    const STORE: &str = "/shardwise/v1/claim-stores/workers";
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let a = claimant(&here, "a", 1).await;
    let before = store(&here).await;
    let mut highest = 0;
    for _ in 0..20 {
        let held = granted(&here, &a, &slots(0..5)).await;
        highest = held[0].1.get();
        here.release(&a, &held).await.unwrap();
    }
    let backup = etcd.get(STORE).await.unwrap();
    server.restart(false).await.unwrap();
    etcd.put(STORE, &backup).await;
    eventually("a registration", async || here.register(&registration("a", 1)).await.ok()).await;
    assert_eq!(store(&here).await, before);
    let why = format!(
        "acquire: etcd's data was replaced by older data, so the store of claims {} would give epochs that were given before; \
         set epoch_floor above the highest epoch used",
        before.id
    );
    expect_error(here.acquire(&a, &before, &slots(0..3)).await, &ErrorKind::OtherStore, &why);
    let raised = here.claim_store(&group(), highest).await.unwrap();
    assert_eq!(raised, ClaimStore { floor: highest, ..before });
    assert!(only_granted(here.acquire(&a, &raised, &slots(0..3)).await.unwrap()).iter().all(|(_, epoch)| epoch.get() > highest));
}

/// The watch of claims misses changes that are compacted before it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compacted_while_the_watch_is_cut() {
    let server = Etcd::single().await.unwrap();
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (worker, outside) = (backend(&[url(proxy.address())]), backend(&[server.address()]));
    let (a, b) = (claimant(&outside, "a", 1).await, claimant(&outside, "b", 2).await);
    let mut watch = ClaimsFollower::of(&worker);
    for round in 0..4u32 {
        let (giver, taker) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let held = granted(&outside, giver, &slots(0..200)).await;
        watch.until_held(&slots(0..200)).await;
        proxy.cut_both();
        outside.release(giver, &held[50..]).await.unwrap();
        granted(&outside, taker, &slots(50..100)).await;
        ByHand(&server).compact().await;
        // Once the old connection goes on, once it breaks.
        if round >= 2 {
            proxy.reset();
        }
        proxy.heal().await.unwrap();
        watch.until_held(&slots(0..100)).await;
        for (slot, claim) in slots(0..100).iter().map(|slot| (slot, &watch.claims[slot])) {
            let holder = if slots(0..50).contains(slot) { giver } else { taker };
            assert_eq!(claim.holder.instance_id, holder.instance_id, "{slot}");
        }
        for record_id in [&a, &b] {
            let held: Vec<_> = watch.claims.iter().map(|(slot, claim)| (slot.clone(), claim.epoch)).collect();
            outside.release(record_id, &held).await.unwrap();
        }
        watch.until_held(&[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_dies_and_claims_stay() {
    let cluster = EtcdCluster::start(3, EtcdOptions::default()).await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let mut addresses = cluster.addresses();
    addresses.rotate_left(leader);
    let here = backend(&addresses);
    let mut fleet = Fleet::new(here.clone());
    fleet.join("a", 1).await;
    fleet.join("b", 2).await;
    let (a, b) = (registration("a", 1).record_id(), registration("b", 2).record_id());
    let held = granted(&here, &a, &slots(0..300)).await;
    let mut watch = ClaimsFollower::of(&here);
    watch.until_held(&slots(0..300)).await;
    cluster.members()[leader].kill().unwrap();
    eventually("an answer", async || here.claim_store(&group(), 0).await.ok()).await;
    tokio::time::sleep(TTL).await;
    let kept = eventually("an answer", async || here.acquire(&a, &store(&here).await, &slots(0..300)).await.ok()).await;
    assert_eq!(only_granted(kept), held, "renewed in time, and under the same epochs");
    eventually("a release", async || here.release(&a, &held).await.ok()).await;
    let taken = granted(&here, &b, &slots(0..300)).await;
    assert!(taken.len() == 300 && taken[0].1 > held[299].1);
    watch
        .until("the new holder", |claims| claims.len() == 300 && claims.values().all(|claim| claim.holder.instance_id == b.instance_id))
        .await;
}

/// As many as fit into a transaction, one more, and twice that.
#[tokio::test]
async fn any_number_at_once() {
    let server = Etcd::single().await.unwrap();
    let here = backend(&[server.address()]);
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&here, "b", 2).await);
    for count in [0, 1, 126, 127, 128, 254, 255, 1_000] {
        let mut wanted = slots(0..count);
        wanted.extend_from_slice(&slots(0..count / 2));
        let answers = here.acquire(&a, &store(&here).await, &wanted).await.unwrap();
        let held = only_granted(answers);
        assert_eq!(held.len(), count as usize, "each once, however often it is asked for");
        assert!(granted(&here, &b, &slots(0..count)).await.is_empty());
        here.release(&a, &[held.clone(), held].concat()).await.unwrap();
        ClaimsFollower::of(&here).until_held(&[]).await;
    }
}

/// Held, watched and renewed: nothing is written.
#[tokio::test]
async fn nothing_is_written_while_nothing_changes() {
    let server = Etcd::single().await.unwrap();
    let here = backend(&[server.address()]);
    let mut fleet = Fleet::new(here.clone());
    fleet.join("a", 1).await;
    granted(&here, &registration("a", 1).record_id(), &slots(0..300)).await;
    let mut watch = ClaimsFollower::of(&here);
    watch.until_held(&slots(0..300)).await;
    let before = ByHand(&server).revision().await;
    let reading = tokio::time::timeout(PACE * 4, watch.until("nothing", |_| false)).await;
    assert!(reading.is_err());
    assert_eq!(ByHand(&server).revision().await, before);
    assert_eq!(watch.claims.len(), 300);
}
