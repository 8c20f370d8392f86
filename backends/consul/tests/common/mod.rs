//! What the tests share: backends of real servers, and waiting.

#![allow(dead_code, reason = "each test file uses its part")]

use std::future::Future;
use std::time::{Duration, Instant};

use shardwise_backend_consul::{ConsulBackend, ConsulConfig};
use shardwise_core::{GroupName, Incarnation, InstanceId, Member};
use shardwise_discovery::{Clock, Registration};
use shardwise_testkit::Consul;

pub(crate) fn open(address: &str) -> ConsulBackend {
    backend(ConsulConfig { address: address.to_owned(), ..ConsulConfig::default() })
}

pub(crate) fn backend(config: ConsulConfig) -> ConsulBackend {
    ConsulBackend::open(&config, Clock::system()).unwrap()
}

/// With this token.
pub(crate) fn with_token(consul: &Consul, token: &str) -> ConsulBackend {
    backend(ConsulConfig { address: consul.address(), token: Some(token.into()), ..ConsulConfig::default() })
}

pub(crate) fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

pub(crate) fn registration(group_name: &str, id: &str, incarnation: u64, ttl: Duration) -> Registration {
    let member = Member { incarnation: Incarnation::new(incarnation), ..Member::named(InstanceId::new(id).unwrap()) };
    Registration { group: group(group_name), member, ttl }
}

/// Asks again and again until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, within: Duration, mut ask: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < within, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
