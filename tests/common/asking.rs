//! Workers that ask each other over real sockets, in one process and over the memory backend.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use shardwise::requests::{Addressee, Answer, Attempt, MemberEndpoint, Request, Undelivered};
use shardwise::settings::{PeersSettings, PolicySettings, RequestSettings};
use shardwise::{InstanceId, ShardingFactory, ShardingService, Timing};
use tokio::time::Instant;

use crate::channel::LONG;
use crate::common::{World, policy};

pub(crate) const TOKEN: &str = "correct-horse-battery-staple";

pub(crate) fn body(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("no JSON ({error}): {answer:?}"))
}

/// An empty `POST`.
pub(crate) fn post(path: &str) -> Request {
    Request::post(path, "text/plain", "")
}

pub(crate) fn to(addressee: Addressee, mut request: Request) -> Request {
    request.to = addressee;
    request
}

/// A worker with a token or without one.
pub(crate) fn worker(world: &World, id: &str, token: Option<&str>) -> ShardingService {
    worker_with(world, id, with_token(token))
}

pub(crate) fn with_token(token: Option<&str>) -> PeersSettings {
    let mut peers = PeersSettings::default();
    peers.token = token.map(Into::into);
    peers
}

pub(crate) fn worker_with(world: &World, id: &str, peers: PeersSettings) -> ShardingService {
    worker_of(world, id, peers, RequestSettings::default())
}

/// With a token, and with so many requests at once.
pub(crate) fn wide_worker(world: &World, id: &str, at_once: u32) -> ShardingService {
    let mut requests = RequestSettings::default();
    requests.at_once = at_once;
    worker_of(world, id, with_token(Some(TOKEN)), requests)
}

fn worker_of(world: &World, id: &str, peers: PeersSettings, requests: RequestSettings) -> ShardingService {
    let mut settings = PolicySettings::new(policy());
    settings.discovery.backend = "test".into();
    settings.timing = Timing::new(world.ttl, None, Duration::from_millis(100)).unwrap();
    settings.peers = peers;
    settings.requests = requests;
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(world.store.link())).clock(world.clock.clone());
    builder.instance_id(InstanceId::new(id).unwrap()).build().unwrap().create("workers").unwrap()
}

/// Where that worker takes requests.
pub(crate) fn endpoint(service: &ShardingService, at: SocketAddr) -> MemberEndpoint {
    MemberEndpoint { instance_id: service.instance_id().clone(), incarnation: service.incarnation(), address: format!("tcp://{at}") }
}

/// What comes of a request of `by` there.
pub(crate) async fn brings(by: &ShardingService, endpoint: &MemberEndpoint, request: &Request) -> Result<Answer, Undelivered> {
    by.connections().bring(endpoint, request, &Attempt::until(Instant::now() + LONG)).await
}

/// A handler at that path that counts its calls.
pub(crate) fn counts(service: &ShardingService, path: &str) -> Arc<AtomicUsize> {
    let done = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&done);
    let handler = move |_: Request| {
        count.fetch_add(1, Ordering::Relaxed);
        async { "done" }
    };
    service.on_request(path, handler).unwrap();
    done
}

/// A handler at that path that never answers, and how many of its calls have not ended.
pub(crate) fn hangs(service: &ShardingService, path: &str) -> Arc<AtomicUsize> {
    struct Call(Arc<AtomicUsize>);
    impl Drop for Call {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let running = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&running);
    let handler = move |_: Request| {
        counted.fetch_add(1, Ordering::Relaxed);
        let call = Call(Arc::clone(&counted));
        async move {
            let _call = call;
            std::future::pending::<String>().await
        }
    };
    service.on_request(path, handler).unwrap();
    running
}
