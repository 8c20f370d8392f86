//! What a real Consul answers about claims on bad days only, from a scripted one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::fake::{Fake, Said};
use crate::common::{group, open};
use futures::StreamExt;
use shardwise_discovery::{Claims, ClaimsEvent, ClaimsStream, ErrorKind, Result};

const PROVE_EVERY: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(10);

/// Slots that a holds, each at its index.
fn table(held: &[(u32, u64)]) -> String {
    let key = |(slot, index): &(u32, u64)| {
        // {"id":"a","floor":0}
        format!(
            r#"{{"Key":"shardwise/claims/g/slot/{slot}","Flags":1,"Value":"eyJpZCI6ImEiLCJmbG9vciI6MH0=","Session":"s","LockIndex":1,"CreateIndex":1,"ModifyIndex":{index}}}"#
        )
    };
    format!("[{}]", held.iter().map(key).collect::<Vec<_>>().join(","))
}

fn is_table(request: &str) -> bool {
    request.contains("recurse")
}

/// A poll that waits.
fn poll(index: u64) -> Said {
    Said { after: Duration::from_millis(30), ..Said::list(index, r#"["shardwise/claims/g/slot/"]"#) }
}

fn none(index: u64) -> Said {
    Said { status: 404, ..Said::list(index, "") }
}

fn watch(fake: &Fake) -> ClaimsStream {
    open(&fake.address).watch_claims(&group("g"), PROVE_EVERY)
}

async fn next_event(watch: &mut ClaimsStream) -> Result<String> {
    let event = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap()?;
    Ok(match event {
        ClaimsEvent::All { claims, .. } => {
            claims.iter().fold("all".to_owned(), |all, (on, claim)| format!("{all}, {on} {}:{}", claim.holder.instance_id, claim.epoch))
        }
        ClaimsEvent::Changed { changes, .. } => changes.iter().fold("changed".to_owned(), |all, change| {
            format!("{all}, {} {}", change.resource, change.claim.as_ref().map_or("free".to_owned(), |claim| claim.epoch.to_string()))
        }),
        ClaimsEvent::Proven(_) => "proven".to_owned(),
        other => panic!("{other:?}"),
    })
}

#[tokio::test]
async fn while_nothing_changes_the_claims_are_read_once() {
    let fake = Fake::start(|request| if is_table(request) { Said::list(10, table(&[(1, 7)])) } else { poll(10) }).await;
    let mut watch = watch(&fake);
    assert_eq!(next_event(&mut watch).await.unwrap(), "all, slot 1 a:7");
    for _ in 0..3 {
        assert_eq!(next_event(&mut watch).await.unwrap(), "proven");
    }
    assert!(fake.asked("recurse") == 1 && fake.asked("index=10&") >= 3, "{} reads of all", fake.asked("recurse"));
    assert_eq!(fake.asked("/v1/kv/"), fake.asked("consistent"), "nothing that a server has to itself counts");
}

#[tokio::test]
async fn an_index_that_falls_is_a_reason_to_read_all() {
    let tables = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tables);
    let fake = Fake::start(move |request| match (is_table(request), count.load(Ordering::SeqCst)) {
        (true, 0) => {
            count.fetch_add(1, Ordering::SeqCst);
            Said::list(1_000, table(&[(1, 900), (2, 900)]))
        }
        (true, _) => Said::list(7, table(&[(2, 7)])),
        (false, _) => poll(7),
    })
    .await;
    let mut watch = watch(&fake);
    assert_eq!(next_event(&mut watch).await.unwrap(), "all, slot 1 a:900, slot 2 a:900");
    assert_eq!(next_event(&mut watch).await.unwrap(), "changed, slot 1 free, slot 2 7");
    assert_eq!(next_event(&mut watch).await.unwrap(), "proven");
    assert!(fake.asked("index=7&") > 0, "the next poll waits on the new index");
}

#[tokio::test]
async fn one_answer_without_claims_frees_nothing() {
    let tables = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tables);
    let fake = Fake::start(move |request| match request {
        _ if request.contains("authorize") => Said::refusal(401, "ACL support disabled"),
        _ if !is_table(request) => poll(20 + count.load(Ordering::SeqCst) as u64),
        // Every other one.
        _ => match count.fetch_add(1, Ordering::SeqCst) {
            n if n % 2 == 1 => none(20 + n as u64),
            n => Said::list(20 + n as u64, table(&[(1, 7)])),
        },
    })
    .await;
    let mut watch = watch(&fake);
    assert_eq!(next_event(&mut watch).await.unwrap(), "all, slot 1 a:7");
    while tables.load(Ordering::SeqCst) < 9 {
        assert_eq!(next_event(&mut watch).await.unwrap(), "proven");
    }
}

#[tokio::test]
async fn answers_without_a_leader_or_of_an_old_server_prove_nothing() {
    let full = Said::list(5, table(&[(1, 7)]));
    let stale = Said { last_contact: 60_000, ..full.clone() };
    let leaderless = Said { known_leader: false, ..full };
    for said in [stale, leaderless, none(5), Said::refusal(500, "No cluster leader")] {
        let empty = said.status == 404;
        let fake =
            Fake::start(move |request| if request.contains("authorize") { Said::list(5, r#"[{"Allow":false}]"#) } else { said.clone() })
                .await;
        let error = next_event(&mut watch(&fake)).await.unwrap_err();
        assert_eq!(*error.kind(), if empty { ErrorKind::Denied } else { ErrorKind::Unavailable }, "{error}");
    }
}
