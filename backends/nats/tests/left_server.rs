//! A server that is cut off from its cluster answers pings and no requests: members leave it for another one of their settings.

mod common;

use common::{backend, bucket, config, durable, eventually, group, ids, lasting, open};
use shardwise_discovery::Discovery;
use shardwise_testkit::{NatsCluster, NatsOptions};

/// Each begins with a server of its own choice: that all begin with the sound one happens once in 256 runs.
const MEMBERS: u64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_pings_and_no_requests_is_left() {
    let lame = NatsCluster::start(3, NatsOptions::default().newest().durable()).await.unwrap();
    for server in &lame.servers()[1..] {
        server.kill().unwrap();
    }
    let (sound, bucket) = (durable().await, bucket());
    let urls = [lame.addresses()[0].clone(), sound.address()];
    let backends: Vec<_> = (0..MEMBERS).map(|_| open(&config(&urls, &bucket))).collect();
    let joining = (0..MEMBERS).zip(&backends).map(|(number, backend)| {
        let member = lasting(&format!("m{number}"), number + 1);
        async move { eventually("it registers", async || backend.register(&member).await.ok()).await }
    });
    futures::future::join_all(joining).await;
    let seen = backend(&sound.address(), &bucket).members(&group()).await.unwrap();
    assert_eq!(ids(&seen.view).len(), backends.len());
    // Over the same connections as they registered, or others: what is read there is the same group.
    for backend in &backends {
        let view = eventually("it sees all", async || backend.members(&group()).await.ok()).await.view;
        assert_eq!(ids(&view).len(), backends.len());
    }
}
