//! Credentials files: a server that knows its users by the JWTs of an operator.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::{assert_message, config, group, ids, lasting, open};
use nkeys::KeyPair;
use serde_json::{Value, json};
use shardwise_backend_nats::NatsBackendConfig;
use shardwise_discovery::{Discovery, ErrorKind};
use shardwise_testkit::{Nats, NatsOptions};

/// A JWT of `issuer` about the key `subject`.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (issuer_key, subject_key) = (issuer.public_key(), subject.public_key());
    let claims = json!({ "jti": subject_key, "iat": now, "iss": issuer_key, "name": "tests", "sub": subject_key, "nats": nats });
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })), part(&claims));
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

fn account_claims(storage: i64) -> Value {
    json!({
        "limits": {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
            "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
        },
        "type": "account", "version": 2,
    })
}

fn write(path: &Path, jwt: &str, key: &KeyPair) {
    let seed = key.seed().unwrap();
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn a_user_is_known_by_its_jwt_and_its_key() {
    let (operator, system, account) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let (user, other) = (KeyPair::new_user(), KeyPair::new_user());
    let preload: Vec<_> = [(&system, 0), (&account, -1)]
        .map(|(key, storage)| format!("{}: {}", key.public_key(), jwt(&operator, key, &account_claims(storage))))
        .into();
    let options = NatsOptions::default()
        .newest()
        .with_setting(format!("operator: {}", jwt(&operator, &operator, &json!({ "type": "operator", "version": 2 }))))
        .with_setting(format!("system_account: {}", system.public_key()))
        .with_setting("resolver: MEMORY")
        .with_setting(format!("resolver_preload: {{\n{}\n}}", preload.join("\n")));
    let server = Nats::start(options).await.unwrap();
    let rights = json!({ "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2 });
    let token = jwt(&account, &user, &rights);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker.creds");
    let ours = open(&NatsBackendConfig { creds_file: Some(file.clone()), ..config(&[server.address()], "b") });

    let begun = Instant::now();
    let missing = ours.members(&group()).await.unwrap_err();
    assert_message(&missing, &ErrorKind::Misconfigured, begun, &["discovery.nats.creds_file", "worker.creds", "cannot be read"]);
    write(&file, &token, &other);
    let begun = Instant::now();
    let refused = ours.members(&group()).await.unwrap_err();
    assert_message(&refused, &ErrorKind::Denied, begun, &["refuses the credentials", "discovery.nats.creds_file"]);
    // The file is read for each connection.
    write(&file, &token, &user);
    ours.register(&lasting("a", 1)).await.unwrap();
    assert_eq!(ids(&ours.members(&group()).await.unwrap().view), ["a"]);
}
