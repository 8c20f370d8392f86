//! The rights in docs.md: they are enough, and each one that is missing is named.

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

/// Without them everything works: what is gone is kept for ever, and consumers end by themselves.
const SPARED: [&str; 2] = ["STREAM.PURGE", "CONSUMER.DELETE"];
/// Is used for long lists only.
const FLOW_CONTROL: &str = "$JS.FC";
/// The bucket of another fleet, and how docs.md calls it.
const STATUS_BUCKET: &str = "worker-status";
/// So many texts of so many bytes are more than a server sends to a consumer without an answer, which is 1 to 2 MB.
const LONG_LIST: u64 = 600;
const LONG_TEXT: usize = 4_096;

/// The subjects of docs.md to which workers may publish for that bucket.
fn documented_for(bucket: &str) -> Vec<String> {
    let subject = |line: &str| line.trim().strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).map(ToOwned::to_owned);
    include_str!("../docs.md").lines().filter_map(subject).filter(|subject| subject.starts_with('$') && subject.contains(bucket)).collect()
}

fn documented() -> Vec<String> {
    documented_for("shardwise")
}

/// All but one.
fn without(missing: &str, all: &[String]) -> Vec<String> {
    all.iter().filter(|subject| *subject != missing).cloned().collect()
}

/// A server whose user `worker` may publish to these subjects of that bucket, and whose user `admin` may do everything.
async fn server(subjects: &[String], bucket: &str) -> Nats {
    server_with(subjects, bucket, "allow: [\"_INBOX.>\"]").await
}

async fn server_with(subjects: &[String], bucket: &str, subscribe: &str) -> Nats {
    let subjects: Vec<_> = subjects.iter().map(|subject| format!("{:?}", subject.replace("shardwise", bucket))).collect();
    let worker = format!(
        "{{ user: worker, password: w, permissions: {{ publish: {{ allow: [{}] }}, subscribe: {{ {subscribe} }} }} }}",
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
    for missing in &all {
        let bucket = bucket();
        let server = server(&without(missing, &all), &bucket).await;
        NatsBackend::init(&of(&server, &bucket, "admin", "a")).await.unwrap();
        if missing.starts_with(FLOW_CONTROL) {
            let (admin, texts) = (common::open(&of(&server, &bucket, "admin", "a")), "n".repeat(LONG_TEXT));
            for number in 0..LONG_LIST {
                let name = ClaimName::new(format!("long {number}")).unwrap();
                admin.write_note(&group(), &name, 0, &texts).await.unwrap();
            }
        }
        let (begun, worker) = (Instant::now(), common::open(&of(&server, &bucket, "worker", "w")));
        let ran = everything(&worker).await;
        if SPARED.iter().any(|spared| missing.contains(spared)) {
            ran.unwrap();
        } else {
            let named = missing.replace("shardwise", &bucket).replace(".>", ".");
            assert_message(&ran.expect_err(missing), &ErrorKind::Denied, begun, &["Permissions Violation", &named, "Least rights"]);
        }
    }
}

/// The server says it once for each connection: later calls waited for an answer in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_without_the_right_to_its_answers_names_it() {
    let bucket = bucket();
    let server = server_with(&documented(), &bucket, "deny: [\">\"]").await;
    NatsBackend::init(&of(&server, &bucket, "admin", "a")).await.unwrap();
    let worker = common::open(&of(&server, &bucket, "worker", "w"));
    let names = ["Permissions Violation", "Subscription to \"_INBOX.", "Least rights"];
    for incarnation in 1..4 {
        let begun = Instant::now();
        assert_message(&everything(&worker).await.expect_err("no inbox"), &ErrorKind::Denied, begun, &names);
        let begun = Instant::now();
        assert_message(&worker.register(&registration("a", incarnation)).await.unwrap_err(), &ErrorKind::Denied, begun, &names);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_to_the_bucket_of_another_fleet_that_is_missing_is_named() {
    let (ours, theirs) = (documented(), documented_for(STATUS_BUCKET));
    assert_eq!(theirs.len(), 4, "{theirs:?}");
    for missing in theirs.iter().map(Some).chain([None]) {
        let (bucket, mut subjects) = (bucket(), ours.clone());
        subjects.extend(missing.map_or_else(|| theirs.clone(), |missing| without(missing, &theirs)));
        let server = server(&subjects, &bucket).await;
        NatsBackend::init(&of(&server, &bucket, "admin", "a")).await.unwrap();
        let keys = if missing.is_some_and(|missing| missing.starts_with(FLOW_CONTROL)) { LONG_LIST } else { 1 };
        make_status_bucket(&server, keys).await;
        let followed = NatsBackendConfig { status_bucket: Some(STATUS_BUCKET.into()), ..of(&server, &bucket, "worker", "w") };
        let (begun, worker) = (Instant::now(), common::open(&followed));
        let first = worker.watch(&group(), PACE).next().await.unwrap();
        match missing.filter(|missing| SPARED.iter().all(|spared| !missing.contains(spared))) {
            Some(missing) => {
                let named = missing.replace(".>", ".");
                let error = first.expect_err(missing);
                assert_message(&error, &ErrorKind::Denied, begun, &["Permissions Violation", &named, "Least rights"]);
            }
            None => assert!(matches!(first.unwrap(), WatchEvent::View(_)), "{missing:?}"),
        }
    }
}

/// The bucket of another fleet, with so many keys.
async fn make_status_bucket(server: &Nats, keys: u64) {
    let admin = async_nats::ConnectOptions::with_user_and_password("admin".into(), "a".into());
    let context = async_nats::jetstream::new(admin.connect(server.address()).await.unwrap());
    let stream = async_nats::jetstream::stream::Config {
        name: format!("KV_{STATUS_BUCKET}"),
        subjects: vec![format!("$KV.{STATUS_BUCKET}.>")],
        max_messages_per_subject: 1,
        storage: async_nats::jetstream::stream::StorageType::Memory,
        ..Default::default()
    };
    context.create_stream(stream).await.unwrap();
    for number in 0..keys {
        let text = "s".repeat(LONG_TEXT).into();
        context.publish(format!("$KV.{STATUS_BUCKET}.{number}"), text).await.unwrap().await.unwrap();
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
