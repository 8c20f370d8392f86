//! Redis and Valkey streams.
//!
//! Order: a script adds an aggregate's events one after the other and stops at the first that the stream refuses, so the accepted part of
//! a batch is an ordered prefix.

mod config;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

pub use self::config::RedisConfig;
use super::connection::{ANSWER_WITHIN, Connection, words};
use super::message::BrokerMessage;
use super::{Acceptance, Mode, Refusal, Sink, SinkLimits, tls};
use crate::{Delivery, Error, ErrorKind, Result};

const SCRIPT: &str = include_str!("add.lua");
/// The most events in one call of the script: the server does nothing else meanwhile.
const SCRIPT_EVENTS_MAX: usize = 200;
/// The most fields of one entry: Lua calls a function with at most a few thousand arguments.
const FIELDS_MAX: usize = 1_000;
/// The size limit of an event: the server closes the connection when one exceeds its `proto-max-bulk-len`.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Adds events to streams of Redis or Valkey, as `CloudEvents`.
#[derive(Debug)]
pub struct RedisSink {
    config: RedisConfig,
    name: String,
    connection: Connection<RedisConnection>,
}

#[derive(Debug)]
struct RedisConnection {
    redis: MultiplexedConnection,
    /// Set by a call that timed out or found the connection closed: the next call opens a new one.
    broken: AtomicBool,
    driver: AbortOnDropHandle<()>,
}

impl RedisConnection {
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed) || self.driver.is_finished()
    }
}

impl RedisSink {
    /// Creates a sink that connects when it is used.
    pub fn new(config: RedisConfig) -> Self {
        Self { name: format!("redis {}", config.address.place()), config, connection: Connection::default() }
    }

    async fn open(&self) -> Result<RedisConnection> {
        match timeout(2 * ANSWER_WITHIN, self.connect()).await {
            Ok(opened) => opened,
            Err(_) => Err(self.unavailable("does not answer")),
        }
    }

    fn unavailable(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("Redis at {} {what}", self.config.address.place()))
    }

    async fn connect(&self) -> Result<RedisConnection> {
        let address = &self.config.address;
        let unreachable = |error: std::io::Error| self.unavailable(&format!("cannot be reached: {}", words(&error)));
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        if !address.tls {
            return self.greet(stream).await;
        }
        let name = ServerName::try_from(address.host.clone())
            .map_err(|_| Error::new(ErrorKind::Settings, format!("{} is no name of a server", address.host)))?;
        let connector = TlsConnector::from(Arc::new(tls::client_config(&self.config.tls, true)?));
        let stream = connector.connect(name, stream).await.map_err(|error| {
            let text = format!("TLS with Redis at {} fails: {}", address.place(), words(&error));
            let kind = if error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some() {
                ErrorKind::Denied
            } else {
                ErrorKind::Unavailable
            };
            Error::new(kind, text)
        })?;
        self.greet(stream).await
    }

    async fn greet<S>(&self, stream: S) -> Result<RedisConnection>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let mut info = RedisConnectionInfo::default().set_db(self.config.database).set_lib_name("shardwise", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.config.address.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.config.password {
            info = info.set_password(password.expose_secret());
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
        let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (mut redis, driver) = opened.map_err(|error| self.refused(&error))?;
        let driver = AbortOnDropHandle::new(tokio::spawn(driver));
        // Without a password nothing has been sent yet, and the server may require one.
        let asked: std::result::Result<String, _> = redis::cmd("PING").query_async(&mut redis).await;
        let live = RedisConnection { redis, broken: AtomicBool::new(false), driver };
        asked.map(|_| live).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &RedisError) -> Error {
        let place = self.config.address.place();
        if is_about_credentials(error) {
            let text = format!("Redis at {place} does not accept this user and password: correct the address and the password's file");
            return Error::new(ErrorKind::Denied, text);
        }
        self.unavailable(&format!("cannot be used: {}", words(error)))
    }

    /// Adds the events of one aggregate, which go to one stream or, if the template distinguishes events, to several.
    async fn add(&self, live: &RedisConnection, events: &[&Delivery]) -> (usize, Option<Refusal>) {
        let mut done = 0;
        let mut rest = events;
        while let Some(first) = rest.first() {
            let stream = self.config.stream.render(first);
            let same = rest.iter().take(SCRIPT_EVENTS_MAX).take_while(|event| self.config.stream.render(event) == stream).count();
            let (now, later) = rest.split_at(same);
            let (taken, refusal) = self.add_to(live, stream, now).await;
            done += taken;
            if refusal.is_some() || taken < now.len() {
                return (done, refusal);
            }
            rest = later;
        }
        (done, None)
    }

    async fn add_to(&self, live: &RedisConnection, stream: String, events: &[&Delivery]) -> (usize, Option<Refusal>) {
        let mut script = redis::cmd("EVAL");
        script.arg(SCRIPT).arg(1).arg(&stream).arg(self.config.length_max.unwrap_or(0));
        let mut fitting = 0;
        let mut too_large = None;
        for event in events {
            let fields = self.fields(event);
            too_large = self.too_large(&fields);
            if too_large.is_some() {
                break;
            }
            script.arg(self.place(event)).arg(&event.id).arg(2 * fields.len());
            for (name, value) in &fields {
                script.arg(name).arg(value);
            }
            fitting += 1;
        }
        if fitting == 0 {
            return (0, too_large);
        }
        let answer: std::result::Result<(usize, String), _> = script.query_async(&mut live.redis.clone()).await;
        match answer {
            Ok((taken, why)) if why.is_empty() => (taken, too_large),
            Ok((taken, why)) => (taken, Some(self.not_taken(&why, &stream))),
            Err(error) => {
                if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() {
                    live.broken.store(true, Ordering::Relaxed);
                }
                let code = if is_about_credentials(&error) { "NOPERM" } else { error.code().unwrap_or_default() };
                (0, Some(Refusal::retryable(format!("{}: {}{}", self.name, words(&error), advice(code)))))
            }
        }
    }

    /// The refusal of an event that is too large to be sent.
    fn too_large(&self, fields: &[(String, Vec<u8>)]) -> Option<Refusal> {
        let refused = |what: String| Some(Refusal::permanent(format!("{}: the event has {what} are allowed", self.name)));
        let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > EVENT_BYTES_MAX {
            return refused(format!("{bytes} bytes, and {EVENT_BYTES_MAX}"));
        }
        if fields.len() > FIELDS_MAX {
            return refused(format!("headers that make {} fields of an entry, and {FIELDS_MAX}", fields.len()));
        }
        None
    }

    /// The refusal for the script's reason why an event is not in the stream.
    fn not_taken(&self, why: &str, stream: &str) -> Refusal {
        let name = &self.name;
        match why {
            "NEWER" => Refusal::retryable(format!("{name}: a publisher with a newer epoch has added to {stream}")),
            "PAST" => Refusal::permanent(format!(
                "{name}: {stream} has later events but not this one, and its ids cannot go back: it was trimmed, or this is \
                 an old event replayed"
            )),
            "OTHER" => Refusal::permanent(format!(
                "{name}: {stream} has another event at this place: it is another outbox's, or this outbox was recreated; use another stream"
            )),
            why => {
                let code = why.split(' ').next().unwrap_or_default();
                Refusal::retryable(format!("{name}: {stream}: {}{}", words(&why), advice(code)))
            }
        }
    }

    /// The entry's id in the stream.
    fn place(&self, event: &Delivery) -> String {
        if self.config.stream.is_per_aggregate() {
            format!("{}-0", event.sequence)
        } else if self.config.stream.is_per_slot() {
            format!("{}-*", event.epoch)
        } else {
            "*".to_owned()
        }
    }

    fn fields(&self, event: &Delivery) -> Vec<(String, Vec<u8>)> {
        let message = BrokerMessage::new(event, &self.config.source, self.config.mode);
        if self.config.mode == Mode::Structured {
            return vec![("id".into(), event.id.clone().into_bytes()), ("event".into(), message.body)];
        }
        let attributes = message.attributes.into_iter().map(|(name, value)| (name, value.into_bytes()));
        let content_type = message.content_type.map(|content_type| ("datacontenttype".to_owned(), content_type.into_bytes()));
        attributes.chain(content_type).chain([("data".to_owned(), message.body)]).collect()
    }
}

/// What to do about an error with this code.
fn advice(code: &str) -> &'static str {
    match code {
        "NOPERM" => ": correct the user, its password or its rights (EVAL, XADD, XRANGE on the streams)",
        "OOM" => ": give it more memory, or trim the streams",
        _ => "",
    }
}

fn is_about_credentials(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
}

#[async_trait]
impl Sink for RedisSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_events: 2_000, concurrency: 2, ..SinkLimits::default() }
    }

    fn destination(&self, event: &Delivery) -> Option<String> {
        self.config.stream.destination(event)
    }

    async fn check(&self) -> Result<()> {
        self.connection.get(RedisConnection::is_broken, self.open()).await.map(drop)
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let live = match self.connection.get(RedisConnection::is_broken, self.open()).await {
            Ok(live) => live,
            Err(error) => return Acceptance::up_to(0, Refusal::retryable(error.to_string())),
        };
        let mut aggregates: BTreeMap<_, Vec<&Delivery>> = BTreeMap::new();
        for event in batch.iter() {
            aggregates.entry(event.aggregate).or_default().push(event);
        }
        let live = &live;
        let adds = aggregates.iter().map(|(aggregate, events)| async move {
            let (done, refusal) = self.add(live, events).await;
            (done < events.len()).then_some((*aggregate, (done, refusal)))
        });
        let apart = join_all(adds).await.into_iter().flatten().collect();
        Acceptance::all_but(&batch, apart)
    }
}
