//! Nothing secret is ever logged, at any level, by us or by anything below us. Alone in its file: the log is the process's.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io;
use std::sync::{Arc, Mutex};

use common::{TTL, group, next_error, next_proof, open, registration, with_user};
use shardwise_backend_etcd::EtcdConfig;
use shardwise_discovery::Discovery;
use shardwise_testkit::{Authority, Etcd, EtcdOptions, KeyAccess};
use tracing::Level;

const PASSWORD: &str = "hush-3f9c1b7e";
const WRONG: &str = "wrong-5d2a8e40";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// etcd's simple tokens: sixteen letters, a dot, a number.
fn token(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let at = (0..bytes.len().saturating_sub(17)).find(|&at| {
        let clear = at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
        clear && bytes[at..at + 16].iter().all(u8::is_ascii_alphabetic) && bytes[at + 16] == b'.' && bytes[at + 17].is_ascii_digit()
    })?;
    text.get(at..at + 18)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_and_tokens_are_in_no_log() {
    assert_eq!(token("x token=AbcdefghijklmnOp.12 y"), Some("AbcdefghijklmnOp.1"), "the look finds what it looks for");
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false).with_writer(move || writer.clone()).init();

    let authority = Authority::new().unwrap();
    let options = EtcdOptions::default().with_auth().with_tls(&authority.server().unwrap());
    let server = Etcd::start(options).await.unwrap();
    server.add_user("worker", PASSWORD, &[(KeyAccess::ReadWrite, "/shardwise/")]).await.unwrap();
    let config = |password| EtcdConfig { ca_file: Some(authority.file()), ..with_user(&[server.address()], "worker", password) };
    let backend = open(&config(PASSWORD));
    let a = registration("a", 1);
    let mut watch = backend.watch(&group(), TTL / 4);
    backend.register(&a).await.unwrap();
    next_proof(&mut watch).await;
    // The token of the open connection is void now, and a new one is asked for with the password.
    server.api("/v3/auth/user/changepw", &serde_json::json!({ "name": "worker", "password": PASSWORD })).await.unwrap();
    backend.renew(&a.record_id(), TTL).await.unwrap();
    next_proof(&mut watch).await;
    server.kill().unwrap();
    let error = next_error(&mut watch).await;
    server.restart(true).await.unwrap();
    next_proof(&mut watch).await;
    let denied = open(&config(WRONG)).members(&group()).await.unwrap_err();

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("h2::") && text.contains("TRACE"), "the log has what lies below us: {} bytes", text.len());
    let all = format!("{text}\n{backend:?}\n{:?}\n{error:?}\n{error}\n{denied:?}\n{denied}", config(PASSWORD));
    for secret in [PASSWORD, WRONG] {
        let line = all.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{line:?}");
    }
    let line = all.lines().find(|line| token(line).is_some());
    assert!(line.is_none(), "a token is in {line:?}");
}
