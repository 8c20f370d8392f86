//! Which server is asked. All calls of a backend share one connection to one server; when it fails them, the next server gets its turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use crate::client::{ConnectParams, EtcdConnection};
use crate::config::Endpoint;
use crate::error::Failure;

/// How long one call may take in total. A registering worker gets the cause before its own limit.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// How long one server may take to answer while there are others.
const TURN_LIMIT: Duration = Duration::from_secs(2);
/// The same where there is no other.
const ONLY_LIMIT: Duration = Duration::from_secs(5);
/// A caller that gives up after so long, having heard nothing, has found a server that does not answer.
const SUSPICIOUS_AFTER: Duration = Duration::from_millis(250);

pub(crate) struct ServerPool {
    servers: Vec<PooledServer>,
    /// The server that answered last.
    current: AtomicUsize,
    access: ConnectParams,
    turn_limit: Duration,
}

struct PooledServer {
    endpoint: Endpoint,
    connection: Mutex<Option<Arc<EtcdConnection>>>,
    /// One connection is made at a time. Inside: when the last failed attempt began, and why it failed.
    opening: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

impl ServerPool {
    pub(crate) fn new(endpoints: Vec<Endpoint>, access: ConnectParams) -> Self {
        let turn_limit = if endpoints.len() > 1 { TURN_LIMIT } else { ONLY_LIMIT };
        let server = |endpoint| PooledServer { endpoint, connection: Mutex::default(), opening: tokio::sync::Mutex::default() };
        Self { servers: endpoints.into_iter().map(server).collect(), current: AtomicUsize::new(0), access, turn_limit }
    }

    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.servers.iter().map(|server| &server.endpoint)
    }

    /// Carries out `operation`, at the next server if one fails it. It may be carried out twice.
    pub(crate) async fn call<T, F>(&self, operation: impl Fn(Arc<EtcdConnection>) -> F + Send + Sync) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let (first, mut begun) = (self.current.load(Ordering::Relaxed), Instant::now());
        let until = begun + CALL_LIMIT;
        let mut reported: Option<Failure> = None;
        for number in (first..self.servers.len()).chain(0..first) {
            let answer = timeout_at(until, self.turn(number, &operation)).await;
            let over = answer.is_err();
            match answer.unwrap_or_else(|_| Err(late(&self.servers[number].endpoint, until - begun))) {
                // What may pass by itself decides: then it is worth trying again.
                Err(failure) if failure.is_of_endpoint() => {
                    reported = reported.filter(|known| known.may_pass() || !failure.may_pass()).or(Some(failure));
                    // The next call goes on here where this one has no time for all.
                    self.pass_on(number);
                }
                other => {
                    self.current.store(number, Ordering::Relaxed);
                    return other;
                }
            }
            if over {
                break;
            }
            begun = Instant::now();
        }
        Err(reported.unwrap_or(Failure::Setting { setting: "endpoints", why: "is empty".into() }))
    }

    /// One server's turn. A connection that was there already may have been dead for a while, which says nothing about the server.
    async fn turn<T, F>(&self, number: usize, operation: &(impl Fn(Arc<EtcdConnection>) -> F + Send + Sync)) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let server = &self.servers[number];
        let used = server.connection();
        let mut suspicion = AbandonedCallGuard { pool: self, number, connection: used.clone(), since: Instant::now(), answered: false };
        let mut may_be_dead = used.is_some();
        let answer = loop {
            let connection = match server.connected(&self.access, self.turn_limit).await {
                Ok(connection) => connection,
                Err(failure) => break Err(failure),
            };
            let answer = timeout(self.turn_limit, operation(Arc::clone(&connection))).await;
            let answer = answer.unwrap_or_else(|_| Err(late(&server.endpoint, self.turn_limit)));
            if answer.as_ref().is_err_and(Failure::is_of_endpoint) {
                server.forget(&connection);
            }
            if !may_be_dead || !matches!(answer, Err(Failure::Broken { .. })) {
                break answer;
            }
            may_be_dead = false;
        };
        suspicion.answered = true;
        answer
    }

    /// Marks a connection as failed; the next server gets its turn.
    pub(crate) fn blame(&self, connection: &Arc<EtcdConnection>) {
        if let Some(number) = self.servers.iter().position(|server| server.forget(connection)) {
            self.pass_on(number);
        }
    }

    fn pass_on(&self, number: usize) {
        let next = (number + 1) % self.servers.len();
        // Another task may have advanced it already.
        let _ = self.current.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn late(endpoint: &Endpoint, after: Duration) -> Failure {
    Failure::TimedOut { endpoint: endpoint.to_string(), after }
}

impl PooledServer {
    fn held(&self) -> MutexGuard<'_, Option<Arc<EtcdConnection>>> {
        // Nothing under this lock can panic halfway through a change.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> Option<Arc<EtcdConnection>> {
        self.held().clone()
    }

    /// Whether it was this connection that is forgotten now.
    fn forget(&self, connection: &Arc<EtcdConnection>) -> bool {
        let mut held = self.held();
        let same = held.as_ref().is_some_and(|known| Arc::ptr_eq(known, connection));
        if same {
            *held = None;
        }
        same
    }

    /// The connection, opened if there is none. Of several callers at once one opens it, and the others share the result.
    async fn connected(&self, access: &ConnectParams, within: Duration) -> Result<Arc<EtcdConnection>, Failure> {
        let wanted = Instant::now();
        if let Some(connection) = self.connection() {
            return Ok(connection);
        }
        let mut last = self.opening.lock().await;
        if let Some(connection) = self.connection() {
            return Ok(connection);
        }
        if let Some((began, failure)) = &*last
            && *began >= wanted
        {
            return Err(failure.clone());
        }
        let began = Instant::now();
        match EtcdConnection::open(&self.endpoint, access, within).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *self.held() = Some(Arc::clone(&connection));
                *last = None;
                Ok(connection)
            }
            Err(failure) => {
                *last = Some((began, failure.clone()));
                Err(failure)
            }
        }
    }
}

/// Notices a caller that gives up before there is an answer.
struct AbandonedCallGuard<'a> {
    pool: &'a ServerPool,
    number: usize,
    /// The connection that was there when it began to ask.
    connection: Option<Arc<EtcdConnection>>,
    since: Instant,
    answered: bool,
}

impl Drop for AbandonedCallGuard<'_> {
    fn drop(&mut self) {
        if !self.answered && self.since.elapsed() >= SUSPICIOUS_AFTER {
            // Another task may have opened a connection since.
            if let Some(connection) = &self.connection {
                self.pool.servers[self.number].forget(connection);
            }
            self.pool.pass_on(self.number);
        }
    }
}
