//! Credentials files: a server that knows its users by the JWTs of an operator.

mod common;

use std::time::Instant;

use common::{assert_message, config, group, ids, lasting, open};
use shardwise_backend_nats::NatsBackendConfig;
use shardwise_discovery::{Discovery, ErrorKind};
use shardwise_testkit::{Nats, NatsOperator, NatsOptions};

#[tokio::test]
async fn a_user_is_known_by_its_jwt_and_its_key() {
    let operator = NatsOperator::new();
    let (user, other) = (operator.user(None).unwrap(), operator.user(None).unwrap());
    let server = Nats::start(operator.server(NatsOptions::default().newest()).unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker.creds");
    let ours = open(&NatsBackendConfig { creds_file: Some(file.clone()), ..config(&[server.address()], "b") });

    let begun = Instant::now();
    let missing = ours.members(&group()).await.unwrap_err();
    assert_message(&missing, &ErrorKind::Misconfigured, begun, &["discovery.nats.creds_file", "worker.creds", "cannot be read"]);
    user.write_with_key_of(&other, &file).unwrap();
    let begun = Instant::now();
    let refused = ours.members(&group()).await.unwrap_err();
    assert_message(&refused, &ErrorKind::Denied, begun, &["refuses the credentials", "discovery.nats.creds_file"]);
    // The file is read for each connection.
    user.write(&file).unwrap();
    ours.register(&lasting("a", 1)).await.unwrap();
    assert_eq!(ids(&ours.members(&group()).await.unwrap().view), ["a"]);
}
