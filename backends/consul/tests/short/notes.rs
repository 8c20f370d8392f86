//! The conformance cases of notes over real agents, and a note changed by hand.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{group, open};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use shardwise_core::ClaimName;
use shardwise_discovery::conformance::{self, Scope};
use shardwise_discovery::{Clock, ErrorKind, Notes, WriteOutcome};
use shardwise_testkit::{Consul, ConsulCluster, ConsulOptions};

const KEY: &str = "shardwise/notes/g/a%20b";

type Case = for<'a> fn(&'a Scope) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! cases {
    ($($case:ident)*) => { [$((stringify!($case), |scope| Box::pin(conformance::$case(scope)))),*] };
}

/// All of them, as in `notes_conformance_tests!`: a server for each case would take minutes.
const CASES: [(&str, Case); 7] = cases!(
    notes_01_what_was_written_is_read_by_all
    notes_02_what_is_not_as_expected_stays_and_is_reported
    notes_02_of_many_that_write_at_once_one_does
    notes_03_the_same_text_again_is_another_version
    notes_04_they_outlive_the_members
    notes_05_a_text_that_is_too_long_is_refused
    notes_06_any_name_goes_and_none_meets_another
);

/// Members of two machines, each through its local agent, in front of three servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_it_on_three_servers_with_client_agents() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default()).await.unwrap();
    let (left, right) = (cluster.agent("left").await.unwrap(), cluster.agent("right").await.unwrap());
    let (backend, peer) = (Arc::new(open(&left.address())), Arc::new(open(&right.address())));
    stream::iter(CASES)
        .for_each_concurrent(4, async |(name, case)| {
            let (backend, peer) = (backend.clone(), peer.clone());
            case(&Scope { backend, peer, group: group(name), ttl: Duration::from_secs(3), clock: Clock::system(), guard: Box::new(()) })
                .await;
        })
        .await;
}

#[tokio::test]
async fn a_note_that_is_no_text_is_an_error_that_names_the_key_until_it_is_corrected() {
    let consul = Consul::single().await.unwrap();
    let (here, name) = (open(&consul.address()), ClaimName::new("a b").unwrap());
    let first = here.write_note(&group("g"), &name, 0, "3").await.unwrap();
    let WriteOutcome::Written(first) = first else { unreachable!("nothing was there: {first:?}") };
    let by_hand = async |kv: Value| consul.api("PUT", "/v1/txn", Some(&json!([{ "KV": kv }]))).await.unwrap();
    by_hand(json!({ "Verb": "set", "Key": KEY, "Value": "/w==" })).await;
    for error in [here.note(&group("g"), &name).await.map(drop), here.write_note(&group("g"), &name, first, "4").await.map(drop)] {
        let error = error.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Misconfigured);
        assert!(error.to_string().contains("the key \"shardwise/notes/g/a%20b\" in Consul cannot be read"), "{error}");
    }
    by_hand(json!({ "Verb": "delete", "Key": KEY })).await;
    assert_eq!(here.write_note(&group("g"), &name, first, "4").await.unwrap(), WriteOutcome::Other(None), "its version went with it");
    let again = here.write_note(&group("g"), &name, 0, "4").await.unwrap();
    assert!(matches!(again, WriteOutcome::Written(version) if version > first), "{again:?}");
}
