//! The rights in docs.md: they are enough, and one that is missing is named.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Instant;

use common::{PACE, TTL, assert_message, bucket, config, group, lasting, registration, slots};
use futures::StreamExt;
use shardwise_backend_nats::{NatsBackend, NatsBackendConfig};
use shardwise_core::ClaimName;
use shardwise_discovery::{Claims, ClaimsEvent, Discovery, Error, ErrorKind, Notes, Registration, WatchEvent};
use shardwise_testkit::{Nats, NatsOptions};

const CREATE: &str = "$JS.API.STREAM.CREATE.KV_shardwise";

/// The subjects of docs.md to which workers may publish.
fn documented() -> Vec<String> {
    let subject = |line: &str| line.trim().strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).map(ToOwned::to_owned);
    include_str!("../docs.md").lines().filter_map(subject).filter(|subject| subject.starts_with('$')).collect()
}

/// A server whose user `worker` may publish to these subjects of that bucket, and whose user `admin` may do everything.
async fn server(subjects: &[String], bucket: &str) -> Nats {
    let subjects: Vec<_> = subjects.iter().map(|subject| format!("{:?}", subject.replace("shardwise", bucket))).collect();
    let worker = format!(
        "{{ user: worker, password: w, permissions: {{ publish: {{ allow: [{}] }}, subscribe: {{ allow: [\"_INBOX.>\"] }} }} }}",
        subjects.join(", ")
    );
    let users = format!("authorization {{ users: [{worker}, {{ user: admin, password: a }}] }}");
    Nats::start(NatsOptions::default().newest().durable().with_setting(users)).await.unwrap()
}

fn of(server: &Nats, bucket: &str, user: &str, password: &str) -> NatsBackendConfig {
    let base = config(&[server.address()], bucket);
    NatsBackendConfig { username: Some(user.into()), password: Some(password.into()), ..base }
}

/// Everything that a worker does; the first refusal.
async fn everything(backend: &NatsBackend) -> Result<(), Error> {
    let name = ClaimName::new("note").unwrap();
    let mut watch = backend.watch(&group(), PACE);
    let mut claims_watch = backend.watch_claims(&group(), PACE);
    let a = Registration { claims: true, ..registration("a", 1) };
    backend.register(&a).await?;
    backend.renew(&a.record_id(), TTL).await?;
    backend.update(&a).await?;
    let store = backend.claim_store(&group(), 0).await?;
    let granted = common::only_granted(backend.acquire(&a.record_id(), &store, &slots(0..3)).await?);
    backend.release(&a.record_id(), &granted).await?;
    backend.note(&group(), &name).await?;
    backend.write_note(&group(), &name, 0, "1").await?;
    backend.members(&group()).await?;
    assert!(matches!(watch.next().await.unwrap()?, WatchEvent::View(_)));
    assert!(matches!(claims_watch.next().await.unwrap()?, ClaimsEvent::All { .. }));
    backend.step_away(&a, TTL).await?;
    backend.deregister(&a.record_id()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough_for_everything() {
    let (bucket, subjects) = (bucket(), documented());
    assert_eq!(subjects.len(), 7, "{subjects:?}");
    let server = server(&subjects, &bucket).await;
    NatsBackend::init(&of(&server, &bucket, "admin", "a")).await.unwrap();
    let worker = common::open(&of(&server, &bucket, "worker", "w"));
    everything(&worker).await.unwrap();
    worker.register(&Registration { ttl: TTL / 3, ..lasting("silent", 2) }).await.unwrap();
    let mut watch = worker.watch(&group(), PACE);
    common::view_of(&mut watch, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_that_is_missing_is_named() {
    let all = documented();
    // Without a purge nothing is swept, and without a deletion a consumer ends by itself; without flow control a long list may be missed.
    let spared = ["PURGE", "CONSUMER.DELETE", "$JS.FC"];
    for missing in all.iter().filter(|subject| !spared.iter().any(|spared| subject.contains(spared))) {
        let bucket = bucket();
        let rest: Vec<_> = all.iter().filter(|subject| *subject != missing).cloned().collect();
        let server = server(&rest, &bucket).await;
        NatsBackend::init(&of(&server, &bucket, "admin", "a")).await.unwrap();
        let (begun, worker) = (Instant::now(), common::open(&of(&server, &bucket, "worker", "w")));
        let error = everything(&worker).await.expect_err(missing);
        let named = missing.replace("shardwise", &bucket).replace(".>", ".");
        assert_message(&error, &ErrorKind::Denied, begun, &["Permissions Violation", &named, "Least rights"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_may_not_make_the_bucket_says_so() {
    let bucket = bucket();
    let server = server(&documented(), &bucket).await;
    let (begun, worker) = (Instant::now(), common::open(&of(&server, &bucket, "worker", "w")));
    let error = worker.register(&registration("a", 1)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &[&CREATE.replace("shardwise", &bucket)]);
}
