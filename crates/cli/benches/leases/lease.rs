//! The lease of the worker whose keys are entered.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::client::{Client, request};
use crate::common::served::path;

const TTL_MS: u64 = 5_000;
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Longer than it takes until everything is granted, even on a busy machine.
const GRANTED_WITHIN: Duration = Duration::from_mins(1);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A lease on the policy; renewed until it is dropped.
pub(crate) struct Lease {
    pub(crate) id: String,
    /// The thread that renews ends with it.
    _renewed: Sender<()>,
}

impl Lease {
    /// Opens it, and waits until every slot is granted.
    pub(crate) fn open(at: SocketAddr) -> Self {
        let mut client = Client::connect(at);
        let (status, body) = client.ask(&request(at, "POST", &path("leases"), None, Some(&json!({"ttl_ms": TTL_MS})))).unwrap();
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
        let opened: Value = serde_json::from_slice(&body).unwrap();
        let id = opened["id"].as_str().unwrap().to_owned();
        let (renewed, stopped) = mpsc::channel();
        let renewed_id = id.clone();
        std::thread::spawn(move || renew(at, &renewed_id, &stopped));
        wait_for_every_slot(&mut client, at, &id);
        Self { id, _renewed: renewed }
    }
}

/// Renews it until the other end is dropped. A renewal that fails is the last one: then `enter` fails too, and that is counted.
fn renew(at: SocketAddr, id: &str, stopped: &Receiver<()>) {
    // A renewal says which version of the grants is processed. This worker does nothing with them, so it names the latest one.
    let (mut client, mut seen) = (Client::connect(at), json!(0));
    while stopped.recv_timeout(RENEW_EVERY) == Err(RecvTimeoutError::Timeout) {
        let renewal = request(at, "PUT", &path(&format!("leases/{id}")), None, Some(&json!({"seen": seen})));
        let Ok((200, body)) = client.ask(&renewal) else { return };
        let renewed: Value = serde_json::from_slice(&body).unwrap();
        seen = renewed["version"].clone();
    }
}

fn wait_for_every_slot(client: &mut Client, at: SocketAddr, id: &str) {
    let (begun, grants) = (Instant::now(), request(at, "GET", &path("grants?wait=0"), Some(id), None));
    loop {
        let (status, body) = client.ask(&grants).unwrap();
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        let table: Value = serde_json::from_slice(&body).unwrap();
        let granted = table["grants"].as_array().unwrap().len();
        if table["slots"] == granted {
            return;
        }
        assert!(begun.elapsed() < GRANTED_WITHIN, "{granted} slots are granted of {}", table["slots"]);
        std::thread::sleep(POLL_EVERY);
    }
}
