//! The conformance cases of notes over two members of a real cluster, with a password and only the rights required; and a note changed
//! by hand.

use std::time::Duration;

use crate::common::{backend, group, members_with_passwords, scope_of, waited_for};
use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use shardwise_core::ClaimName;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_discovery::{ErrorKind, Notes, WriteOutcome};
use shardwise_testkit::Etcd;

struct OneCluster;

#[async_trait]
impl Fixture for OneCluster {
    async fn scope(&self) -> Scope {
        scope_of(waited_for(members_with_passwords()), Duration::from_secs(3))
    }
}

shardwise_discovery::notes_conformance_tests!(OneCluster);

#[tokio::test]
async fn a_note_that_is_no_text_is_an_error_that_names_the_key_until_it_is_corrected() {
    let server = Etcd::single().await.expect("an etcd server");
    let (here, name) = (backend(&[server.address()]), ClaimName::new("a b").expect("a valid name"));
    let first = here.write_note(&group(), &name, 0, "3").await.expect("write_note");
    let WriteOutcome::Written(first) = first else { unreachable!("nothing was there: {first:?}") };
    let key = BASE64_STANDARD.encode("/shardwise/v1/notes/workers/a%20b");
    let put = json!({ "key": key, "value": BASE64_STANDARD.encode([0xff]) });
    server.api("/v3/kv/put", &put).await.expect("put by hand");
    for error in [here.note(&group(), &name).await.map(drop), here.write_note(&group(), &name, first, "4").await.map(drop)] {
        let error = error.expect_err("no text");
        assert_eq!(*error.kind(), ErrorKind::Misconfigured);
        assert!(error.to_string().contains("\"/shardwise/v1/notes/workers/a%20b\" in etcd is not text"), "{error}");
    }
    server.api("/v3/kv/deleterange", &json!({ "key": key })).await.expect("deleted by hand");
    assert_eq!(
        here.write_note(&group(), &name, first, "4").await.expect("write_note"),
        WriteOutcome::Other(None),
        "its version went with it"
    );
    let again = here.write_note(&group(), &name, 0, "4").await.expect("write_note");
    assert!(matches!(again, WriteOutcome::Written(version) if version > first), "{again:?}");
}
