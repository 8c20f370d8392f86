//! What the real Consul will not say on demand: indexes that fall, empty lists, no leader, stale and filtered and late answers.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use common::fake::{Fake, Said, instance};
use common::{group, open};
use futures::StreamExt;
use shardwise_discovery::conformance::{ids, view_where};
use shardwise_discovery::{Clock, Discovery, ErrorKind, WatchEvent};

const PATIENCE: Duration = Duration::from_secs(10);
const PROVE_EVERY: Duration = Duration::from_millis(200);

/// A whole list, as opposed to a blocking query for an instance that does not exist.
fn is_full(request: &str) -> bool {
    request.starts_with("GET /v1/health/service/g?passing&consistent") && !request.contains("filter=")
}

fn is_blocking(request: &str) -> bool {
    request.contains("index=")
}

fn both() -> String {
    format!("[{},{}]", instance("a", 1), instance("b", 2))
}

fn pausing(said: Said) -> Said {
    Said { after: Duration::from_millis(50), ..said }
}

#[tokio::test]
async fn an_index_that_falls_is_read_anew_and_revisions_go_on_above() {
    let index = Arc::new(AtomicU64::new(1_000));
    let now = Arc::clone(&index);
    let fake = Fake::start(move |request| {
        let said = Said::list(now.load(Ordering::SeqCst), if is_full(request) { both() } else { "[]".into() });
        if is_blocking(request) { pausing(said) } else { said }
    })
    .await;
    let mut watch = open(&fake.address).watch(&group("g"), PROVE_EVERY);
    let before = view_where(&mut watch, PATIENCE, "both", |view| view.members().len() == 2).await.revision();
    index.store(7, Ordering::SeqCst);
    let after = view_where(&mut watch, PATIENCE, "a view above", |view| view.revision() > before).await;
    assert_eq!(ids(&after), ["a", "b"]);
    let restarted = fake.asked("index=7&");
    common::until("the next query waits on the new index", PATIENCE, async || (fake.asked("index=7&") > restarted).then_some(())).await;
}

#[tokio::test]
async fn an_index_of_zero_does_not_make_the_watch_spin() {
    let fake = Fake::start(|request| {
        let said = Said::list(0, if is_full(request) { both() } else { "[]".into() });
        if is_blocking(request) { pausing(said) } else { said }
    })
    .await;
    let mut watch = open(&fake.address).watch(&group("g"), PROVE_EVERY);
    view_where(&mut watch, PATIENCE, "both", |view| view.members().len() == 2).await;
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Proven(_)))));
    assert_eq!(fake.asked("index=0"), 0, "a query with index 0 does not wait");
}

#[tokio::test]
async fn one_empty_list_is_not_a_view() {
    let lists = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lists);
    let fake = Fake::start(move |request| {
        let n = if is_full(request) { count.fetch_add(1, Ordering::SeqCst) } else { 1 };
        if is_blocking(request) {
            // Each return looks like a change, so that the group is read again and again.
            return pausing(Said::list(10 + n as u64 + count.load(Ordering::SeqCst) as u64, "[]"));
        }
        // Every other list is empty.
        Said::list(10 + n as u64, if n % 2 == 0 { "[]".into() } else { both() })
    })
    .await;
    let backend = open(&fake.address);
    let mut watch = backend.watch(&group("g"), PROVE_EVERY);
    for _ in 0..5 {
        let view = view_where(&mut watch, PATIENCE, "any view", |_| true).await;
        assert_eq!(ids(&view), ["a", "b"], "an empty list that the next one does not confirm shows nothing");
    }
    assert!(lists.load(Ordering::SeqCst) >= 10, "each empty list was asked for again");
}

#[tokio::test]
async fn an_empty_list_for_lack_of_rights_is_denied_and_not_a_view() {
    for (rights, missing) in [("false,true", "service:read"), ("true,false", "node:read")] {
        let (service, node) = rights.split_once(',').unwrap();
        let body = format!(r#"[{{"Allow":{service}}},{{"Allow":{node}}}]"#);
        let fake = Fake::start(move |request| {
            let authorize = request.contains("/v1/internal/acl/authorize");
            Said::list(5, if authorize { body.clone() } else { "[]".into() })
        })
        .await;
        let error = open(&fake.address).members(&group("g")).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(missing), "{error}");
    }
}

#[tokio::test]
async fn a_consul_that_cannot_be_asked_for_rights_is_judged_by_its_nodes() {
    for (nodes, empty_is_a_view) in [("[{}]", true), ("[]", false)] {
        let fake = Fake::start(move |request| match request {
            _ if request.contains("/authorize") => Said::refusal(404, "no such thing"),
            _ if request.contains("/v1/catalog/nodes") => Said::list(5, nodes),
            _ => Said::list(5, "[]"),
        })
        .await;
        assert_eq!(open(&fake.address).members(&group("g")).await.is_ok(), empty_is_a_view);
    }
}

#[tokio::test]
async fn answers_without_a_leader_or_of_an_old_server_prove_nothing() {
    let stale = Said { last_contact: 60_000, ..Said::list(5, both()) };
    let leaderless = Said { known_leader: false, ..Said::list(5, both()) };
    for said in [stale, leaderless, Said::refusal(500, "No cluster leader"), Said::refusal(500, "rpc error making call: EOF")] {
        let fake = Fake::start(move |_| said.clone()).await;
        let backend = open(&fake.address);
        let error = backend.members(&group("g")).await.unwrap_err();
        assert!(*error.kind() == ErrorKind::Unavailable && error.is_retryable(), "{error}");
        assert!(backend.watch(&group("g"), PROVE_EVERY).next().await.unwrap().is_err(), "{error}");
    }
}

#[tokio::test]
async fn a_watch_comes_back_by_itself_after_an_election() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let fake = Fake::start(move |request| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        if (3..8).contains(&n) {
            return Said::refusal(500, "No cluster leader");
        }
        let said = Said::list(9, if is_full(request) { both() } else { "[]".into() });
        if is_blocking(request) { pausing(said) } else { said }
    })
    .await;
    let mut watch = open(&fake.address).watch(&group("g"), PROVE_EVERY);
    view_where(&mut watch, PATIENCE, "both", |view| view.members().len() == 2).await;
    let (mut failed, mut recovered) = (false, false);
    while !(failed && recovered) {
        match tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap() {
            Err(error) => failed |= error.is_retryable(),
            Ok(_) => recovered = failed,
        }
    }
}

#[tokio::test]
async fn an_answer_that_takes_seconds_is_given_up_and_proves_nothing() {
    let fake = Fake::start(|_| Said { after: Duration::from_secs(5), ..Said::list(5, both()) }).await;
    let backend = open(&fake.address);
    let begun = Clock::system().now();
    let error = backend.members(&group("g")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(Clock::system().now().since(begun) < Duration::from_secs(4));
}

#[tokio::test]
async fn what_is_not_consul_is_misconfigured() {
    let web = Said { index: None, ..Said::list(0, "<html>") };
    for said in [web, Said::refusal(404, "not found"), Said::refusal(301, "moved"), Said::list(5, "{\"not\": \"a list\"}")] {
        let fake = Fake::start(move |_| said.clone()).await;
        let error = open(&fake.address).members(&group("g")).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("discovery.consul.address"), "{error}");
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_an_error_and_no_member_is_gone() {
    let fake = Fake::start(|_| Said::list(5, format!("[{}]", instance("a", 1).replace("active", "nonsense")))).await;
    let error = open(&fake.address).members(&group("g")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("\"a\""), "{error}");
}

#[tokio::test]
async fn a_busy_index_is_looked_at_in_steps() {
    let index = AtomicU64::new(1);
    let fake =
        Fake::start(move |request| Said::list(index.fetch_add(1, Ordering::SeqCst), if is_full(request) { both() } else { "[]".into() }))
            .await;
    let mut watch = open(&fake.address).watch(&group("g"), PROVE_EVERY);
    let second = tokio::time::timeout(Duration::from_secs(1), async { while watch.next().await.is_some() {} }).await;
    assert!(second.is_err(), "the watch goes on");
    let polls = fake.asked("index=");
    assert!((10..=130).contains(&polls), "{polls} polls in a second");
}
