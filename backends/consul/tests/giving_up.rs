//! Callers that give up, as a worker does after its TTL: what they began must not pile up, and must not leave a member that owns nothing.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::fake::{Fake, Said};
use common::{open, registration, until};
use futures::future::join_all;
use shardwise_discovery::{Discovery, ErrorKind};
use shardwise_testkit::{Consul, Direction, TcpProxy};
use tokio::time::timeout;

/// Far beyond what a test takes, so that nothing ends by itself.
const TTL: Duration = Duration::from_mins(1);

#[tokio::test]
async fn registrations_that_were_given_up_before_they_began_are_never_sent() {
    let fake = Fake::start(|_| Said::refusal(500, "No cluster leader")).await;
    let proxy = TcpProxy::start(fake.address.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap();
    let backend = open(&format!("http://{}", proxy.address()));
    // However slow the machine is, no caller gets an answer before all have given up.
    proxy.cut(Direction::ToClient);
    let tries = join_all((0..40).map(async |n| {
        let registration = registration("g", &format!("m{n}"), n, TTL);
        timeout(Duration::from_millis(200), backend.register(&registration)).await
    }));
    assert!(tries.await.iter().all(Result::is_err), "all give up");
    proxy.heal().await.unwrap();
    // Its turn comes after whatever waits.
    backend.register(&registration("g", "last", 99, TTL)).await.unwrap_err();
    let sent = fake.asked("PUT /v1/txn");
    assert!(sent <= 9, "eight were under way, and then the last: {sent}");
}

/// Each request takes long, and the callers give up after one request, after two, and so on; the last one does not.
#[tokio::test]
async fn a_registration_that_was_given_up_leaves_no_member_however_far_it_came() {
    let consul = Consul::single().await.unwrap();
    let proxy = TcpProxy::start(consul.socket_addr()).await.unwrap();
    let backend = open(&format!("http://{}", proxy.address()));
    let slowness = Duration::from_millis(200);
    proxy.delay(Direction::ToServer, slowness);
    let given_up = join_all((1..=12).map(async |n| {
        let registration = registration("g", &format!("m{n}"), 1, TTL);
        let limit = if n == 12 { Duration::from_secs(10) } else { slowness * n + slowness / 2 };
        timeout(limit, backend.register(&registration)).await.is_err().then_some(n)
    }));
    let given_up: Vec<_> = given_up.await.into_iter().flatten().collect();
    assert!(given_up.len() >= 5 && given_up.len() < 12, "some give up, some do not: {given_up:?}");
    proxy.delay(Direction::ToServer, Duration::ZERO);
    for n in given_up {
        // Another one of this id waits for its turn behind the first, and then finds the id free.
        let other = registration("g", &format!("m{n}"), 2, TTL);
        until(&format!("the id of the one that gave up after {n} requests is free"), TTL / 10, async || {
            match backend.register(&other).await {
                Ok(_) => Some(()),
                Err(error) if matches!(error.kind(), ErrorKind::InUse { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_guard_that_slips_away_at_each_try_is_given_up() {
    let fake = Fake::start(|request| if request.contains("/v1/kv/") { Said::refusal(404, "") } else { Said::refusal(409, "") }).await;
    let backend = open(&fake.address);
    let registration = registration("g", "a", 1, TTL);
    let answer = timeout(Duration::from_secs(10), backend.register(&registration)).await;
    let error = answer.unwrap_or_else(|_| panic!("no answer after {} tries", fake.asked("/v1/txn"))).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("another process is changing"), "{error}");
}
