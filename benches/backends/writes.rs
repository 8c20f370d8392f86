//! The backend's compare-and-set writes into NATS JetStream beside bare ones of the same client, by turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream;
use serde_json::json;
use shardwise_backend_nats::{BUCKET_DEFAULT, NatsBackend};
use shardwise_core::{GroupName, Resource};
use shardwise_discovery::{Discovery, RecordId};
use shardwise_testkit::{Nats, NatsOptions};
use tokio::task::JoinHandle;

use crate::{LASTING, claims, print_figure, register, server};

/// How many writes are under way at a time; of claims the backend decides that.
const WINDOW: u32 = 256;
const EXPECTED_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
/// About as long as a renewal or a claim.
const PAYLOAD: &str = r#"{"holder":"m100","incarnation":"0123456789abcdef","life":12345,"floor":0,"ttl_ms":10000}"#;

/// In each round `each` times [`WINDOW`] writes of each kind.
pub(crate) async fn compare(rounds: u32, each: u32) {
    // Without flushes, which would hide what the backend adds.
    let server = Nats::start(NatsOptions::default().newest()).await.unwrap();
    let backend = Arc::new(server::nats(&server));
    let bare = jetstream::new(async_nats::connect(server.address()).await.unwrap());
    let (group, mut members) = (GroupName::new("renewals").unwrap(), Vec::new());
    for number in 0..WINDOW {
        members.push(register(&*backend, &group, &format!("m{number:03}"), LASTING).await.record_id());
    }
    for round in 0..rounds {
        let renewals = in_turn(round, renew(&backend, &members, each), rewrite(&bare, round, each)).await;
        let group = GroupName::new(format!("claims {round}")).unwrap();
        let holder = register(&*backend, &group, "a", LASTING).await.record_id();
        let claims = in_turn(round, claim(&backend, &holder, WINDOW * each), create(&bare, round, WINDOW * each)).await;
        backend.deregister(&holder).await.unwrap();
        for (what, took) in [("renewals", renewals), ("claims", claims)] {
            let [ours, bare] = took.map(|took| f64::from(WINDOW * each) / took.as_secs_f64());
            print_figure(&json!({ "figure": format!("nats: {what}"), "round": round, "ours": ours, "bare": bare }));
        }
    }
}

/// Each of the two is the first in every other round.
async fn in_turn(round: u32, ours: impl Future<Output = Duration>, bare: impl Future<Output = Duration>) -> [Duration; 2] {
    if round.is_multiple_of(2) {
        let ours = ours.await;
        [ours, bare.await]
    } else {
        let bare = bare.await;
        [ours.await, bare]
    }
}

/// All members renew at the same time, `each` times one after the other.
async fn renew(backend: &Arc<NatsBackend>, members: &[RecordId], each: u32) -> Duration {
    let begun = Instant::now();
    let renewing = members.iter().cloned().map(|member| {
        let backend = Arc::clone(backend);
        tokio::spawn(async move {
            for _ in 0..each {
                backend.renew(&member, LASTING).await.unwrap();
            }
        })
    });
    ended(begun, renewing).await
}

/// The same without the backend: as many subjects, each written `each` times.
async fn rewrite(bare: &Context, round: u32, each: u32) -> Duration {
    let begun = Instant::now();
    let writing = (0..WINDOW).map(|number| {
        let (bare, subject) = (bare.clone(), format!("$KV.{BUCKET_DEFAULT}.bare.rewritten.{round}.{number}"));
        tokio::spawn(async move {
            let mut last = 0;
            for _ in 0..each {
                last = publish(&bare, subject.clone(), last).await;
            }
        })
    });
    ended(begun, writing).await
}

async fn ended(begun: Instant, tasks: impl Iterator<Item = JoinHandle<()>>) -> Duration {
    join_all(tasks).await.into_iter().for_each(Result::unwrap);
    begun.elapsed()
}

/// Acquires `count` claims in one call.
async fn claim(backend: &NatsBackend, holder: &RecordId, count: u32) -> Duration {
    let slots: Vec<_> = (0..count).map(Resource::Slot).collect();
    claims::acquire(backend, holder, &slots).await.0
}

/// The same without the backend: as many new subjects.
async fn create(bare: &Context, round: u32, count: u32) -> Duration {
    let begun = Instant::now();
    let writing = (0..count).map(|number| publish(bare, format!("$KV.{BUCKET_DEFAULT}.bare.new.{round}.{number}"), 0));
    let written = stream::iter(writing).buffer_unordered(WINDOW as usize).count().await;
    assert_eq!(written, count as usize);
    begun.elapsed()
}

/// Writes if the last message of the subject has the expected sequence; returns the sequence of the new one.
async fn publish(bare: &Context, subject: String, expected: u64) -> u64 {
    let mut headers = HeaderMap::new();
    headers.insert(EXPECTED_SEQUENCE, expected.to_string());
    let sent = bare.publish_with_headers(subject, headers, PAYLOAD.into()).await.unwrap();
    sent.await.unwrap().sequence
}
