//! Claims and their store after changes by hand: each has a defined outcome, or is an error that names the key.

use std::time::Duration;

use crate::common::{
    ByHand, ClaimsFollower, backend, claimant, config, expect_error, granted, group, open, registration, slots, store, with_user,
};
use shardwise_core::{ClaimName, Resource};
use shardwise_discovery::{AcquireOutcome, Claims, Discovery, ErrorKind, Registration};
use shardwise_testkit::{Etcd, EtcdOptions, KeyAccess};

const SLOT_1: &str = "/shardwise/v1/claims/workers/slots/1";
const STORE: &str = "/shardwise/v1/claim-stores/workers";

/// It has no holder: the former holder learns of the loss, no member is granted it, and no other claim changes, until the key is deleted.
#[tokio::test]
async fn a_claim_that_cannot_be_read_waits_and_touches_no_other() {
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&here, "b", 2).await);
    let held = granted(&here, &a, &slots(0..3)).await;
    let mut watch = ClaimsFollower::of(&here);
    watch.until_held(&slots(0..3)).await;
    for damage in ["", "nonsense", "{}", r#"{"instance_id":"a"}"#] {
        etcd.put(SLOT_1, damage).await;
        watch.until_held(&[Resource::Slot(0), Resource::Slot(2)]).await;
        for record_id in [&a, &b] {
            let answers = here.acquire(record_id, &store(&here).await, &slots(1..2)).await.unwrap();
            assert_eq!(answers, [(Resource::Slot(1), AcquireOutcome::Held)], "{damage:?}");
        }
        here.release(&a, &held[1..2]).await.unwrap();
        assert_eq!(etcd.get(SLOT_1).await.unwrap_or_default(), damage, "not even its former holder touches it");
        // Who looks for the first time sees the same.
        ClaimsFollower::of(&backend(&[server.address()])).until_held(&[Resource::Slot(0), Resource::Slot(2)]).await;
        etcd.delete(SLOT_1).await;
        let again = granted(&here, &b, &slots(1..2)).await;
        assert!(again[0].1 > held[1].1);
        watch.until_held(&slots(0..3)).await;
    }
}

#[tokio::test]
async fn keys_that_are_no_claims_are_left_out() {
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let a = claimant(&here, "a", 1).await;
    granted(&here, &a, &slots(1..2)).await;
    let value = etcd.get(SLOT_1).await.unwrap();
    let mut watch = ClaimsFollower::of(&here);
    for name in ["slots/01", "slots/65536", "slots/x", "slots/1/2", "names/", "names/a/b", "other", "names/%41"] {
        etcd.put(&format!("/shardwise/v1/claims/workers/{name}"), &value).await;
    }
    // What comes after them is seen.
    let name = Resource::Name(ClaimName::new("leader").unwrap());
    granted(&here, &a, std::slice::from_ref(&name)).await;
    watch.until_held(&[Resource::Slot(1), name.clone()]).await;
    ClaimsFollower::of(&backend(&[server.address()])).until_held(&[Resource::Slot(1), name]).await;
    etcd.delete("/shardwise/v1/claims/workers/slots/x").await;
    here.deregister(&a).await.unwrap();
    watch.until_held(&[]).await;
}

/// The key was written again by hand, so that it does not end with its holder's lease: the holder keeps it and can release it.
#[tokio::test]
async fn a_claim_without_a_lease_is_its_holders_until_that_one_releases_it() {
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&here, "b", 2).await);
    let held = granted(&here, &a, &slots(1..2)).await;
    etcd.put(SLOT_1, &etcd.get(SLOT_1).await.unwrap()).await;
    let mut watch = ClaimsFollower::of(&here);
    watch.until_held(&slots(1..2)).await;
    assert_eq!((&watch.claims[&Resource::Slot(1)].holder.instance_id, watch.claims[&Resource::Slot(1)].epoch), (&a.instance_id, held[0].1));
    assert!(granted(&here, &b, &slots(1..2)).await.is_empty());
    here.release(&a, &held).await.unwrap();
    watch.until_held(&[]).await;
    assert_eq!(granted(&here, &b, &slots(1..2)).await.len(), 1);
}

/// What ends at another time than the holder's record is not granted with it.
#[tokio::test]
async fn a_claim_under_another_lease_is_not_granted_again() {
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let a = claimant(&here, "a", 1).await;
    let held = granted(&here, &a, &slots(0..3)).await;
    etcd.put_under(SLOT_1, &etcd.get(SLOT_1).await.unwrap(), etcd.lease().await).await;
    let again = granted(&here, &a, &slots(0..3)).await;
    assert_eq!(again, [held[0].clone(), held[2].clone()]);
}

/// A record that is written again by registering is under a new lease: what was claimed under the old one ends.
#[tokio::test]
async fn registering_again_begins_without_claims() {
    let server = Etcd::single().await.unwrap();
    let here = backend(&[server.address()]);
    let a = claimant(&here, "a", 1).await;
    let held = granted(&here, &a, &slots(0..200)).await;
    let mut watch = ClaimsFollower::of(&here);
    watch.until_held(&slots(0..200)).await;
    assert_eq!(claimant(&here, "a", 1).await, a);
    watch.until_held(&[]).await;
    let again = granted(&here, &a, &slots(0..200)).await;
    assert_eq!(again.len(), 200);
    assert!(again[0].1 > held[199].1);
}

#[tokio::test]
async fn a_member_whose_record_was_written_by_hand_claims_nothing() {
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let (a, members) = (claimant(&here, "a", 1).await, "/shardwise/v1/members/workers/a");
    let record = etcd.get(members).await.unwrap();
    etcd.put(members, &record).await;
    let text = "acquire: \"a\" has no living record here; register again";
    expect_error(here.acquire(&a, &store(&here).await, &slots(0..3)).await, &ErrorKind::Lost, text);
    etcd.delete(members).await;
    expect_error(here.acquire(&a, &store(&here).await, &slots(0..3)).await, &ErrorKind::Lost, text);
    assert_eq!(etcd.get("/shardwise/v1/claims/workers/slots/0").await, None);
}

#[tokio::test]
async fn a_store_that_cannot_be_read_is_named_and_a_deleted_one_is_another() {
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let a = claimant(&here, "a", 1).await;
    let before = store(&here).await;
    etcd.put(STORE, r#"{"id":"7","floor":0}"#).await;
    let why = "the store of claims \"/shardwise/v1/claim-stores/workers\" in etcd cannot be read: its id is not sixteen hexadecimal digits; \
               delete that key, and set epoch_floor above the highest epoch used";
    expect_error(here.claim_store(&group(), 0).await, &ErrorKind::Misconfigured, &format!("claim_store: {why}"));
    expect_error(here.acquire(&a, &before, &slots(0..1)).await, &ErrorKind::Misconfigured, &format!("acquire: {why}"));
    etcd.delete(STORE).await;
    let why = format!("acquire: the store of claims is gone now, it was {} with floor 0; ask for it again", before.id);
    expect_error(here.acquire(&a, &before, &slots(0..1)).await, &ErrorKind::OtherStore, &why);
    let after = here.claim_store(&group(), 1_000).await.unwrap();
    assert_ne!(after.id, before.id);
    let why =
        format!("acquire: the store of claims is {} with floor 1000 now, it was {} with floor 0; ask for it again", after.id, before.id);
    expect_error(here.acquire(&a, &before, &slots(0..1)).await, &ErrorKind::OtherStore, &why);
    assert!(granted(&here, &a, &slots(0..1)).await[0].1.get() > 1_000);
}

#[tokio::test]
async fn who_may_not_write_learns_it_and_how_to_change_it() {
    let server = Etcd::start(EtcdOptions::default().with_auth()).await.unwrap();
    server.add_user("reader", "r", &[(KeyAccess::Read, "/shardwise/")]).await.unwrap();
    server.add_user("stranger", "s", &[]).await.unwrap();
    let reader = open(&with_user(&[server.address()], "reader", "r"));
    let forbidden = |user: &str| {
        format!(
            "user \"{user}\" may not read and write below \"/shardwise\" in etcd; grant it: `etcdctl role grant-permission ROLE \
             --prefix=true readwrite /shardwise/`, or check discovery.etcd.username and discovery.etcd.prefix"
        )
    };
    expect_error(reader.claim_store(&group(), 0).await, &ErrorKind::Denied, &format!("claim_store: {}", forbidden("reader")));
    let stranger = open(&with_user(&[server.address()], "stranger", "s"));
    let error = ClaimsFollower::of(&stranger).next_error().await;
    assert_eq!(error.to_string(), format!("watch_claims: {}", forbidden("stranger")));
    assert_eq!(*error.kind(), ErrorKind::Denied);
    let nobody = Registration { claims: true, ttl: Duration::from_mins(1), ..registration("a", 1) };
    assert!(open(&config(&[server.address()])).release(&nobody.record_id(), &[]).await.is_ok(), "nothing to release, nobody to ask");
}
