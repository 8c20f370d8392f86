//! A member that is in the view and does not claim what is its own: the next in line takes it.

use std::sync::Arc;
use std::time::Duration;

use shardwise::core::{ClaimStore, Epoch, Resource};
use shardwise::discovery::{
    AcquireOutcome, Capabilities, Claims, ClaimsStream, Discovery, Error, ErrorKind, Grant, MemoryBackend, RecordId, Registration,
    ViewSnapshot, WatchStream,
};
use shardwise::{GroupName, ServiceState};

use super::{SLOTS, World, eventually, held, joined, key_in, policy, share};

/// The backend of a user with too few rights: he may be a member, read everything and open the store, and claims nothing.
struct MayNotClaim(MemoryBackend);

#[async_trait::async_trait]
impl Discovery for MayNotClaim {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant, Error> {
        self.0.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant, Error> {
        self.0.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<(), Error> {
        self.0.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<(), Error> {
        self.0.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot, Error> {
        self.0.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.0.watch(group, prove_every)
    }
    fn as_claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl Claims for MayNotClaim {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore, Error> {
        self.0.claim_store(group, floor).await
    }
    async fn acquire(&self, _: &RecordId, _: &ClaimStore, _: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>, Error> {
        Err(Error::new(ErrorKind::Denied, "acquire", "this user may not write claims"))
    }
    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<(), Error> {
        self.0.release(record_id, held).await
    }
    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.0.watch_claims(group, prove_every)
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_member_may_not_claim_is_the_next_ones_after_a_ttl_until_the_group_changes() {
    let world = World::new();
    let (a, c) = (joined(&world, "a").await, joined(&world, "c").await);
    eventually("two share", || share(&[&a, &c])).await;
    let unable = world.factory_of("b", Arc::new(MayNotClaim(world.store.link())), policy()).create("workers").expect("known");
    unable.register_self().await.expect("it is a member");
    let count = || held(&a).len() + held(&c).len();
    eventually("what is to be its own is given back", || count() < SLOTS as usize).await;
    let free = world.clock.now();
    let line = |slot: u32| a.owners(&key_in(slot), 2);
    let its_own: Vec<u32> = (0..SLOTS).filter(|slot| line(*slot)[0] == *unable.instance_id()).collect();
    eventually("all of that is", || count() == SLOTS as usize - its_own.len()).await;
    eventually("somebody has it", || share(&[&a, &c])).await;
    let took = world.clock.now().since(free);
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(5), "a TTL is 3 s, took {took:?}");
    for slot in its_own {
        let next = line(slot)[1].clone();
        let holder = [&a, &c].into_iter().find(|service| held(service).contains_key(&slot)).expect("held");
        assert_eq!(*holder.instance_id(), next, "slot {slot} is held by who comes after its owner");
    }
    assert_eq!((unable.state(), held(&unable).len()), (ServiceState::Active, 0));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(share(&[&a, &c]), "and kept");
    unable.deregister_self().await.expect("leaves");
    let able = joined(&world, "b").await;
    let is_its_owners = |slot: u32| held(&able).contains_key(&slot) == (line(slot)[0] == *able.instance_id());
    eventually("each is its owner's again", || share(&[&a, &c, &able]) && (0..SLOTS).all(is_its_owners)).await;
}
