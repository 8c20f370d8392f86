//! Messages to singletons between workers with certificates.

use std::sync::Arc;
use std::time::Duration;

use shardwise::requests::ADDRESS_KEY;
use shardwise::settings::{PeersSettings, PolicySettings};
use shardwise::{InstanceId, MessageError, OwnershipMode, ShardingFactory, ShardingService, SingletonHandle, Timing};
use shardwise_testkit::{Authority, CertIdentity};

use crate::channel::LONG;
use crate::common::{World, policy};

async fn joined(world: &World, id: &str, ca: &Authority, own: &CertIdentity) -> ShardingService {
    let (mut policy, mut peers) = (policy(), PeersSettings::default());
    (policy.ownership, policy.placement.slots) = (OwnershipMode::Exclusive, 16);
    let certificates = &mut peers.certificates;
    (certificates.ca_file, certificates.cert_file, certificates.key_file) = (Some(ca.file()), Some(own.certificate()), Some(own.key()));
    let mut settings = PolicySettings::new(policy);
    (settings.discovery.backend, settings.peers) = ("test".into(), peers);
    settings.timing = Timing::new(world.ttl, None, Duration::from_millis(100)).unwrap();
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(world.store.link())).clock(world.clock.clone());
    let service = builder.instance_id(InstanceId::new(id).unwrap()).build().unwrap().create("workers").unwrap();
    service.register_self().await.unwrap();
    service
}

fn handle(service: &ShardingService) -> SingletonHandle<u32, u32> {
    service.singleton("boss").unwrap().handle()
}

#[tokio::test]
async fn members_with_certificates_of_one_authority_bring_each_other_messages() {
    let world = World::new();
    let (ours, theirs) = (Authority::new().unwrap(), Authority::new().unwrap());
    let own = ours.server().unwrap();
    let (a, b) = (joined(&world, "a", &ours, &own).await, joined(&world, "b", &ours, &own).await);
    let _run = a.singleton("boss").unwrap().run(|tenure| async move {
        let mut inbox = tenure.messages::<u32, u32>().await?;
        while let Some(message) = inbox.recv().await {
            message.reply.send(2 * message.body);
        }
        Ok::<(), shardwise::Error>(())
    });
    assert_eq!(handle(&b).send_within(21, LONG).await, Ok(42));
    let holder = b.members().member(&InstanceId::new("a").unwrap()).cloned().unwrap();
    assert!(holder.metadata[ADDRESS_KEY].starts_with("tls://"), "{:?}", holder.metadata);
    // What another authority has signed is not believed, and a message waits for the right holder.
    let c = joined(&world, "c", &theirs, &theirs.server().unwrap()).await;
    let error = handle(&c).send_within(21, Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(&error, MessageError::NoLeader { why, .. } if why.contains("certificate")), "{error:?}");
}
