//! Which server is asked. All calls of a backend share one connection to one server; when it fails them, the next server gets its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shardwise_discovery::{AbandonedCall, SharedConnection};
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

pub(crate) struct ServerPool {
    servers: Vec<PooledServer>,
    /// The server that answered last.
    current: AtomicUsize,
    access: ConnectParams,
    turn_limit: Duration,
}

struct PooledServer {
    endpoint: Endpoint,
    connection: SharedConnection<EtcdConnection, Failure>,
}

impl ServerPool {
    pub(crate) fn new(endpoints: Vec<Endpoint>, access: ConnectParams) -> Self {
        let turn_limit = if endpoints.len() > 1 { TURN_LIMIT } else { ONLY_LIMIT };
        let server = |endpoint| PooledServer { endpoint, connection: SharedConnection::new(|_| true) };
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
        let used = server.connection.present();
        let mut may_be_dead = used.is_some();
        let call = AbandonedCall::begin(|| {
            if let Some(connection) = &used {
                server.connection.forget(connection);
            }
            self.pass_on(number);
        });
        let answer = loop {
            let open = || EtcdConnection::open(&server.endpoint, &self.access, self.turn_limit);
            let connection = match server.connection.get(open).await {
                Ok(connection) => connection,
                Err(failure) => break Err(failure),
            };
            let answer = timeout(self.turn_limit, operation(Arc::clone(&connection))).await;
            let answer = answer.unwrap_or_else(|_| Err(late(&server.endpoint, self.turn_limit)));
            if answer.as_ref().is_err_and(Failure::is_of_endpoint) {
                server.connection.forget(&connection);
            }
            if !may_be_dead || !matches!(answer, Err(Failure::Broken { .. })) {
                break answer;
            }
            may_be_dead = false;
        };
        call.answered();
        answer
    }

    /// Marks a connection as failed; the next server gets its turn.
    pub(crate) fn blame(&self, connection: &Arc<EtcdConnection>) {
        if let Some(number) = self.servers.iter().position(|server| server.connection.forget(connection)) {
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
