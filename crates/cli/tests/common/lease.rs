//! A worker that leases from a sidecar over HTTP, as a client in any language would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::PATIENCE;

/// Sends a request to a sidecar; returns the status and the body, null if it is empty.
pub(crate) fn request(at: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> (u16, Value) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = body.map(Value::to_string);
    let kind = if body.is_some() { "Content-Type: application/json\r\n" } else { "" };
    let body = body.unwrap_or_default();
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Length: {length}\r\n{kind}{headers}\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer to {method} {path}: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() })
}

/// A lease on the policy `workers`, kept alive by a thread that reads the grants.
pub(crate) struct Lease {
    at: SocketAddr,
    pub(crate) id: String,
    bearer: String,
    /// Whether it answers `finished` at once.
    finishes: Arc<AtomicBool>,
    stops: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Lease {
    pub(crate) fn path(rest: &str) -> String {
        format!("/v1/policies/workers/{rest}")
    }

    /// Opens a lease without renewing it.
    pub(crate) fn once(at: SocketAddr, ttl_ms: u64) -> Self {
        Self::opened(at, ttl_ms, "")
    }

    /// Asks for a lease; returns the status and the body.
    pub(crate) fn asked(at: SocketAddr, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
        request(at, "POST", &Self::path("leases"), headers, Some(body))
    }

    fn opened(at: SocketAddr, ttl_ms: u64, token: &str) -> Self {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        // Under exclusive ownership `health` makes no difference.
        let (status, opened) = Self::asked(at, &headers, &json!({"ttl_ms": ttl_ms, "health": true}));
        assert_eq!(status, 201, "{opened}");
        let id = opened["id"].as_str().unwrap().to_owned();
        Self { at, id, bearer, finishes: Arc::new(AtomicBool::new(true)), stops: Arc::default(), keeper: None }
    }

    /// Opens a lease and keeps it until it is dropped.
    pub(crate) fn kept(at: SocketAddr, ttl_ms: u64) -> Self {
        Self::kept_with(at, ttl_ms, "")
    }

    /// The same where a token is needed.
    pub(crate) fn kept_with(at: SocketAddr, ttl_ms: u64, token: &str) -> Self {
        let mut lease = Self::opened(at, ttl_ms, token);
        let (id, bearer, finishes, stops) = (lease.id.clone(), lease.bearer.clone(), Arc::clone(&lease.finishes), Arc::clone(&lease.stops));
        lease.keeper = Some(std::thread::spawn(move || {
            let headers = [("shardwise-lease", id.as_str()), ("Authorization", bearer.as_str())];
            let mut seen = 0;
            while !stops.load(Ordering::SeqCst) {
                let (status, table) = request(at, "GET", &Self::path(&format!("grants?wait=200&after={seen}")), &headers, None);
                if status != 200 {
                    return;
                }
                seen = table["version"].as_u64().unwrap();
                let asked = table["grants"].as_array().unwrap().iter().filter(|grant| grant["finish"] == true).map(|grant| &grant["grant"]);
                let asked: Vec<&Value> = asked.chain(table["lost"].as_array().into_iter().flatten()).collect();
                if finishes.load(Ordering::SeqCst) && !asked.is_empty() {
                    request(at, "POST", &Self::path("grants/finished"), &headers, Some(&json!({"grants": asked})));
                }
                request(at, "PUT", &Self::path(&format!("leases/{id}")), &headers, Some(&json!({"seen": seen})));
            }
        }));
        lease
    }

    /// From now on it answers `finished` at once, or not at all.
    pub(crate) fn finishes(&self, finishes: bool) {
        self.finishes.store(finishes, Ordering::SeqCst);
    }

    pub(crate) fn asks(&self, method: &str, rest: &str, body: Option<&Value>) -> (u16, Value) {
        request(self.at, method, &Self::path(rest), &[("shardwise-lease", &self.id), ("Authorization", &self.bearer)], body)
    }

    /// The list of the grants.
    pub(crate) fn table(&self) -> Value {
        let (status, table) = self.asks("GET", "grants?wait=0", None);
        assert_eq!(status, 200, "{table}");
        table
    }

    /// The numbers of grants that are lost, and of which it has not confirmed that its work has stopped.
    pub(crate) fn lost(&self) -> Vec<u64> {
        self.table()["lost"].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    }

    /// The slots that are granted, each with its epoch, and those among them that are to go.
    pub(crate) fn slots(&self) -> (Vec<(u64, u64)>, Vec<u64>) {
        let table = self.table();
        let grants = table["grants"].as_array().unwrap().iter().filter(|grant| grant["slot"].is_u64());
        let slot = |grant: &Value| (grant["slot"].as_u64().unwrap(), grant["epoch"].as_u64().unwrap());
        let (go, stay): (Vec<&Value>, Vec<&Value>) = grants.partition(|grant| grant["finish"] == true);
        (stay.into_iter().map(slot).collect(), go.into_iter().map(|grant| slot(grant).0).collect())
    }

    /// The process of the worker ends without a word.
    pub(crate) fn dies(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop();
    }
}
