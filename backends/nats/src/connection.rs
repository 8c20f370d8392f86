//! One connection to NATS. The client's automatic reconnection is not used: it would send requests that had waited on the broken
//! connection, long after their callers gave them up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{
    Auth, Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, Request, RequestError, RequestErrorKind,
    ServerError, Subscriber,
};
use bytes::Bytes;
use secrecy::ExposeSecret as _;
use shardwise_discovery::nats::connect_once;
use shardwise_discovery::one_line;
use shardwise_discovery::tls::{ConnectFailure, SystemTrust};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::answers::AnswerLog;
use crate::api_errors::says_unready;
use crate::certificates;
use crate::dial::DialSettings;
use crate::error::{Failure, NatsResult};
use crate::refusals::{AwaitedRefusal, RefusalLog};

/// How long an answer may take. An election of a stream's leader takes 4 to 9 s, and is a failure that passes.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long one server may take to greet, so that one that is stopped costs little.
const GREETING_LIMIT: Duration = Duration::from_secs(2);
/// How often an idle connection is tried. Three tries without an answer end it.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How many messages may wait for one reader. Flow control stops the server long before; what does not fit is missed and listed anew.
const WAITING_MESSAGES_MAX: usize = 16_384;
/// The oldest server that is supported.
const SERVER_MIN: ServerVersion = ServerVersion(2, 10, 0);

/// A server's version: major, minor and patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerVersion(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl ServerVersion {
    /// Such as `2.12.3` or `2.15.0-RC.1`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().ok());
        Some(Self(parts.next()??, parts.next()??, parts.next()??))
    }

    /// One that this backend works with.
    fn supported(text: &str) -> NatsResult<Self> {
        let old = || Failure::OldServer { version: one_line(text) };
        Self::read(text).filter(|version| *version >= SERVER_MIN).ok_or_else(old)
    }
}

/// The bucket as it was described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BucketState {
    /// When its stream was made.
    pub(crate) created: String,
    pub(crate) is_clustered: bool,
}

/// A connection that works, or has worked.
#[derive(Debug)]
pub(crate) struct BucketConnection {
    client: Client,
    lost: Arc<watch::Sender<bool>>,
    broken: watch::Receiver<bool>,
    refusals: watch::Receiver<RefusalLog>,
    answers: AnswerLog,
    pub(crate) version: ServerVersion,
    /// The server says that it is part of a cluster.
    pub(crate) is_clustered: bool,
    pub(crate) has_jetstream: bool,
    /// The bucket as it was described over this connection; `None` if that has to be asked again.
    pub(crate) bucket: tokio::sync::Mutex<Option<Arc<BucketState>>>,
}

impl BucketConnection {
    /// Tries the servers one after the other, from that one on.
    pub(crate) async fn open(dial: &DialSettings, first: usize) -> NatsResult<Self> {
        let (lost, broken) = watch::channel(false);
        let lost = Arc::new(lost);
        let (refused, refusals) = watch::channel(RefusalLog::default());
        let established = Arc::new(AtomicBool::new(false));
        let trust = if dial.needs_tls { SystemTrust::Required } else { SystemTrust::IfAny };
        let tls = dial.tls.client_config(trust).map_err(Failure::TlsFile)?;
        let options = connect_once(auth(dial), dial.credentials()?, Arc::clone(&established));
        let options = with_events(options, Arc::clone(&lost), refused)
            .name("shardwise")
            .connection_timeout(GREETING_LIMIT)
            .request_timeout(Some(ANSWER_LIMIT))
            .ping_interval(PING_EVERY)
            .subscription_capacity(WAITING_MESSAGES_MAX)
            .max_reconnects(dial.servers.len())
            .retain_servers_order()
            .ignore_discovered_servers()
            .require_tls(dial.needs_tls)
            .tls_client_config(tls);
        let servers = u32::try_from(dial.servers.len()).unwrap_or(u32::MAX);
        let limit = GREETING_LIMIT.saturating_mul(servers.saturating_add(1)).min(ANSWER_LIMIT * 2);
        let client = match timeout(limit, options.connect(dial.servers_from(first))).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let refusal = if certificates::may_be_refused(&error) { certificates::refusal(dial, first).await } else { None };
                return Err(refusal.map_or_else(|| unconnected(&error), |why| Failure::ClientCertificate { why }));
            }
            Err(_) => return Err(Failure::TimedOut { after: limit }),
        };
        established.store(true, Ordering::Relaxed);
        let info = client.server_info();
        let version = ServerVersion::supported(&info.version)?;
        let is_clustered = info.cluster.is_some_and(|name| !name.is_empty());
        let (has_jetstream, bucket) = (info.jetstream, tokio::sync::Mutex::new(None));
        Ok(Self { client, lost, broken, refusals, answers: AnswerLog::default(), version, is_clustered, has_jetstream, bucket })
    }

    pub(crate) fn is_broken(&self) -> bool {
        *self.broken.borrow()
    }

    /// Whether its server leaves every request without an answer, though the connection stands.
    pub(crate) fn is_useless(&self) -> bool {
        self.answers.is_useless()
    }

    /// Ends it for all who use it.
    pub(crate) fn leave(&self) {
        self.lost.send_replace(true);
    }

    /// Ends when the connection does.
    pub(crate) async fn broke(&self) {
        let mut broken = self.broken.clone();
        let _ = broken.wait_for(|broken| *broken).await;
    }

    /// Sends a request and waits for its answer. A right that is missing is noticed at once, because the server says so apart.
    pub(crate) async fn request(&self, subject: String, headers: Option<HeaderMap>, payload: Bytes) -> NatsResult<Message> {
        let refusal = self.refusals.borrow().awaited(&subject);
        let request = Request::new().payload(payload).timeout(Some(ANSWER_LIMIT));
        let request = match headers {
            Some(headers) => request.headers(headers),
            None => request,
        };
        let awaited = self.answers.asked();
        // In this order: a refusal says more than a connection that was given up because of one.
        let answer = tokio::select! {
            biased;
            answer = self.client.send_request(subject, request) => answer.map_err(|error| unanswered(&error)),
            failure = self.refused(&refusal) => Err(failure),
            () = self.broke() => Err(Failure::Broken),
        };
        match &answer {
            Err(Failure::Broken) => awaited.void(),
            Err(Failure::TimedOut { .. } | Failure::NotReady { .. }) => awaited.unanswered(),
            Ok(message) if says_unready(&message.payload) => awaited.unanswered(),
            _ => awaited.answered(),
        }
        answer
    }

    /// Ends if that is refused, or the inbox that its answer would come to.
    pub(crate) async fn refused(&self, refusal: &AwaitedRefusal) -> Failure {
        let mut refusals = self.refusals.clone();
        loop {
            let found = refusals.borrow_and_update().find(refusal);
            if let Some(found) = found {
                if found.is_of_inbox {
                    // The next call connects anew, and finds out whether the right was given.
                    self.leave();
                }
                return Failure::Forbidden { why: found.why };
            }
            if refusals.changed().await.is_err() {
                // The connection has ended, which is noticed apart.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Sends without waiting for anything; answers what a refusal will be found by.
    pub(crate) async fn send(&self, subject: String) -> NatsResult<AwaitedRefusal> {
        let refusal = self.refusals.borrow().awaited(&subject);
        self.client.publish(subject, Bytes::new()).await.map_err(|_| Failure::Broken)?;
        Ok(refusal)
    }

    /// A subject where nothing arrives but what is sent there for this subscription.
    pub(crate) async fn inbox(&self) -> NatsResult<(String, Subscriber)> {
        let inbox = self.client.new_inbox();
        let subscriber = self.client.subscribe(inbox.clone()).await.map_err(|_| Failure::Broken)?;
        Ok((inbox, subscriber))
    }
}

fn auth(dial: &DialSettings) -> Auth {
    let mut auth = Auth::new();
    auth.username.clone_from(&dial.username);
    auth.password = dial.password.as_ref().map(|password| password.expose_secret().to_owned());
    auth.token = dial.token.as_ref().map(|token| token.expose_secret().to_owned());
    auth
}

fn with_events(options: ConnectOptions, lost: Arc<watch::Sender<bool>>, refused: watch::Sender<RefusalLog>) -> ConnectOptions {
    let refused = Arc::new(refused);
    options.event_callback(move |event| {
        let (lost, refused) = (Arc::clone(&lost), Arc::clone(&refused));
        async move {
            match event {
                Event::Disconnected | Event::Closed => {
                    lost.send_replace(true);
                }
                Event::ServerError(ServerError::Other(text)) if text.contains("Permissions Violation") => {
                    refused.send_modify(|log| log.add(&text));
                }
                _ => {}
            }
        }
    })
}

fn unconnected(error: &ConnectError) -> Failure {
    let why = one_line(&error.to_string());
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => Failure::Credentials,
        ConnectErrorKind::Tls => Failure::Tls { why },
        // What rustls refuses arrives as an error of the connection.
        ConnectErrorKind::Io => match certificates::io_of(error).map(|io| (io.kind(), ConnectFailure::of_io(io))) {
            Some((_, ConnectFailure::ClientCertificate(why))) => Failure::ClientCertificate { why },
            Some((io::ErrorKind::InvalidData, _)) => Failure::Tls { why },
            _ => Failure::Unreachable { why },
        },
        _ => Failure::Unreachable { why },
    }
}

fn unanswered(error: &RequestError) -> Failure {
    match error.kind() {
        RequestErrorKind::TimedOut => Failure::TimedOut { after: ANSWER_LIMIT },
        RequestErrorKind::NoResponders => Failure::NotReady { why: "nothing answers there: the stream has no leader, or is gone".into() },
        RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => Failure::Refused { why: one_line(&error.to_string()) },
        RequestErrorKind::Other => Failure::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        for (text, version) in
            [("2.10.27", ServerVersion(2, 10, 27)), ("2.15.0-RC.1", ServerVersion(2, 15, 0)), ("2.9.3", ServerVersion(2, 9, 3))]
        {
            assert_eq!(ServerVersion::read(text), Some(version), "{text}");
        }
        assert!(ServerVersion::supported("2.10.0").is_ok() && ServerVersion::supported("2.12.3").is_ok());
        let refused = ServerVersion::supported("2.9.25").unwrap_err().to_string();
        assert!(
            ["2.9.25", "NATS 2.10 or newer", "upgrade it", "discovery.nats.urls"].iter().all(|part| refused.contains(part)),
            "{refused}"
        );
        assert_eq!((ServerVersion::read("2.x"), ServerVersion::read("")), (None, None));
    }
}
