//! Redis and Valkey streams.
//!
//! Order: a script adds an aggregate's events one after the other and stops at the first that the stream refuses, so the accepted part of
//! a batch is an ordered prefix.

mod config;
mod connection;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use futures::future::join_all;

pub use self::config::RedisConfig;
use self::connection::{RedisConnection, is_about_credentials};
use super::connection::{Connection, words};
use super::message::BrokerMessage;
use super::{Acceptance, Mode, Refusal, Sink, SinkLimits};
use crate::{Delivery, Result};

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
    /// How often the Sentinels were asked: if they are divided, they decide in turn.
    sentinel_turn: AtomicUsize,
}

impl RedisSink {
    /// Creates a sink that connects when it is used.
    pub fn new(config: RedisConfig) -> Self {
        let name = format!("redis {}", config.target.places());
        Self { config, name, connection: Connection::default(), sentinel_turn: AtomicUsize::new(0) }
    }

    async fn live(&self) -> Result<Arc<RedisConnection>> {
        self.connection.get(RedisConnection::is_broken, RedisConnection::open(&self.config, &self.sentinel_turn)).await
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
            Ok((taken, why)) => {
                if lacks_primary(&why) {
                    live.give_up();
                }
                (taken, Some(self.not_taken(&why, &stream)))
            }
            Err(error) => {
                let text = words(&error);
                let other_primary = lacks_primary(&text) || error.code().is_some_and(lacks_primary);
                if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() || other_primary {
                    live.give_up();
                }
                let code = if is_about_credentials(&error) { "NOPERM" } else { error.code().unwrap_or_default() };
                (0, Some(Refusal::retryable(format!("{}: {text}{}", self.name, advice(code, &text)))))
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
                "{name}: {stream} has later events but not this one, and its ids cannot go back: it was trimmed, a failover \
                 lost it, or this is an old event replayed"
            )),
            "OTHER" => Refusal::permanent(format!(
                "{name}: {stream} has another event at this place: it is another outbox's, or this outbox was recreated; use another stream"
            )),
            why => {
                let code = why.split(' ').next().unwrap_or_default();
                Refusal::retryable(format!("{name}: {stream}: {}{}", words(&why), advice(code, why)))
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

/// Whether the server says that it is a replica, or a primary without the replicas that it must have: another one may be the primary now.
/// Redis has the code inside the text if a script met it.
fn lacks_primary(text: &str) -> bool {
    ["READONLY", "NOREPLICAS", "MASTERDOWN"].iter().any(|code| text.contains(code))
}

/// What to do about an error with this code and text.
fn advice(code: &str, text: &str) -> &'static str {
    match code {
        "NOPERM" => ": correct the user, its password or its rights (EVAL, XADD, XRANGE on the streams)",
        "OOM" => ": give it more memory, or trim the streams",
        _ if code == "READONLY" || text.contains("READONLY") => {
            ": it is a replica; name the primary in sink, or the Sentinels with redis+sentinel://, which name it after a failover"
        }
        _ if code == "NOREPLICAS" || text.contains("NOREPLICAS") => {
            ": it has fewer replicas than its min-replicas-to-write; bring them back"
        }
        "ERR" if text.contains("unknown command") => ": a Sentinel takes no events; write redis+sentinel:// and the primary's name in sink",
        _ => "",
    }
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
        self.live().await.map(drop)
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let live = match self.live().await {
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
