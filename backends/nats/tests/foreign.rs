//! Workers of another fleet, which keeps a key for each in a status bucket, are foreign instances of a group.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, StorageType};
use common::{PACE, PATIENCE, assert_message, bucket, config, group, lasting, next_error, open, shared};
use shardwise_backend_nats::NatsBackendConfig;
use shardwise_core::InstanceId;
use shardwise_discovery::{Discovery, ErrorKind, WatchStream, conformance};

/// The status keys of another fleet.
struct OtherFleet {
    context: Context,
    bucket: String,
}

impl OtherFleet {
    /// A bucket whose keys expire after that time; `None`: never.
    async fn start(url: &str, lasts: Option<Duration>) -> Self {
        let context = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
        let bucket = format!("status-{}", bucket());
        let config = Config {
            name: format!("KV_{bucket}"),
            subjects: vec![format!("$KV.{bucket}.>")],
            max_messages_per_subject: 1,
            max_age: lasts.unwrap_or_default(),
            storage: StorageType::Memory,
            ..Config::default()
        };
        context.create_stream(config).await.unwrap();
        Self { context, bucket }
    }

    async fn put(&self, key: &str) {
        let subject = format!("$KV.{}.{key}", self.bucket);
        self.context.publish(subject, "{\"state\":\"up\"}".into()).await.unwrap().await.unwrap();
    }

    async fn delete(&self, key: &str) {
        let mut headers = HeaderMap::new();
        headers.insert("KV-Operation", "DEL");
        let subject = format!("$KV.{}.{key}", self.bucket);
        self.context.publish_with_headers(subject, headers, "".into()).await.unwrap().await.unwrap();
    }

    fn followed(&self, url: &str) -> NatsBackendConfig {
        NatsBackendConfig { status_bucket: Some(self.bucket.clone()), ..config(&[url.to_owned()], &bucket()) }
    }
}

/// Waits for a view with these members and these foreign instances.
async fn shows(watch: &mut WatchStream, members: &[&str], foreign: &[&str]) {
    let what = format!("{members:?} beside {foreign:?}");
    conformance::view_where(watch, PATIENCE, &what, |view| {
        common::ids(view) == members && view.foreign().iter().map(InstanceId::as_str).eq(foreign.iter().copied())
    })
    .await;
}

#[tokio::test]
async fn workers_of_the_other_fleet_come_and_go_with_their_keys() {
    let server = shared().await;
    let fleet = OtherFleet::start(&server.address(), None).await;
    fleet.put("workers.eu.b").await;
    fleet.put("leader").await;
    let settings = NatsBackendConfig { status_keys: "workers.>".into(), ..fleet.followed(&server.address()) };
    let ours = open(&settings);
    let registration = lasting("ours", 1);
    ours.register(&registration).await.unwrap();
    let mut watch = ours.watch(&group(), PACE);
    shows(&mut watch, &["ours"], &["b"]).await;
    fleet.put("workers.us.a").await;
    shows(&mut watch, &["ours"], &["a", "b"]).await;
    fleet.put("workers.us.ours").await;
    fleet.delete("workers.eu.b").await;
    shows(&mut watch, &["ours"], &["a"]).await;
    let read = ours.members(&group()).await.unwrap().view;
    assert_eq!((common::ids(&read), read.foreign().len()), (vec!["ours"], 1), "one that is ours counts once");
    ours.deregister(&registration.record_id()).await.unwrap();
    shows(&mut watch, &[], &["a", "ours"]).await;
}

#[tokio::test]
async fn a_key_that_expires_is_a_worker_that_is_gone() {
    // Long enough to be seen on a busy machine.
    const LASTS: Duration = Duration::from_secs(6);
    let server = shared().await;
    let fleet = OtherFleet::start(&server.address(), Some(LASTS)).await;
    let ours = open(&fleet.followed(&server.address()));
    ours.register(&lasting("ours", 1)).await.unwrap();
    fleet.put("stays").await;
    fleet.put("dies").await;
    let mut watch = ours.watch(&group(), PACE);
    shows(&mut watch, &["ours"], &["dies", "stays"]).await;
    let beats = tokio::spawn(async move {
        loop {
            fleet.put("stays").await;
            tokio::time::sleep(LASTS / 8).await;
        }
    });
    shows(&mut watch, &["ours"], &["stays"]).await;
    beats.abort();
    shows(&mut watch, &["ours"], &[]).await;
}

#[tokio::test]
async fn a_status_bucket_that_is_not_there_is_named() {
    let server = shared().await;
    let settings = NatsBackendConfig { status_bucket: Some("nowhere".into()), ..config(&[server.address()], &bucket()) };
    let (ours, begun) = (open(&settings), Instant::now());
    let error = ours.members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["discovery.nats.status_bucket", "nowhere"]);
    assert_eq!(*next_error(&mut ours.watch(&group(), PACE)).await.kind(), ErrorKind::Misconfigured, "a watch says so too");
}
