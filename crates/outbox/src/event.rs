//! An event as it is written, and as it is delivered.

use std::borrow::Cow;

use crate::{Error, ErrorKind, Result};

/// The default of the largest payload, in bytes (1 MiB); the store's own `payload_bytes_max` decides.
pub const PAYLOAD_BYTES_MAX: usize = 1_048_576;
/// The most bytes of `aggregatetype`, of `type` and of `id`.
pub const NAME_BYTES_MAX: usize = 255;
/// The most bytes of `aggregateid`.
pub const AGGREGATE_ID_BYTES_MAX: usize = 1_024;
/// The most bytes of an event's headers, written as JSON.
pub const HEADERS_BYTES_MAX: usize = 65_536;

/// What an event carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// No payload: the event's type is enough.
    None,
    /// Text; JSON if it parses as JSON.
    Text(String),
    /// Bytes, or text that is not UTF-8.
    Binary(Vec<u8>),
}

impl Payload {
    /// The size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
        }
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<String> for Payload {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Payload {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

/// An event to write; its fields are the columns of the `outbox` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Column `aggregatetype`: 1 to 255 bytes.
    pub aggregate_type: String,
    /// Column `aggregateid`: 1 to 1,024 bytes. Events of one aggregate are delivered in the order of their commits.
    pub aggregate_id: String,
    /// Column `type`: 1 to 255 bytes.
    pub event_type: String,
    /// Column `payload`: at most [`PAYLOAD_BYTES_MAX`] unless the store has another limit.
    pub payload: Payload,
    /// Column `id`: unique in the outbox; `None` generates a UUID.
    pub id: Option<String>,
    /// Column `headers`: carried as `CloudEvents` attributes.
    pub headers: Option<serde_json::Map<String, serde_json::Value>>,
}

impl NewEvent {
    /// An event without headers and with a generated id.
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
        payload: impl Into<Payload>,
    ) -> Self {
        Self {
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
            payload: payload.into(),
            id: None,
            headers: None,
        }
    }

    /// The same event with an id chosen by the writer, so that writing it twice fails instead of sending it twice.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..self }
    }

    /// The same event with one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.headers.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// The key that decides the slot: `aggregatetype + "/" + aggregateid`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.aggregate_id)
    }

    /// Checks the table's constraints and names the field in the error. The store checks its own payload limit.
    pub fn validated(&self) -> Result<()> {
        check("aggregatetype", &self.aggregate_type, NAME_BYTES_MAX)?;
        check("aggregateid", &self.aggregate_id, AGGREGATE_ID_BYTES_MAX)?;
        check("type", &self.event_type, NAME_BYTES_MAX)?;
        self.id.as_deref().map_or(Ok(()), |id| check("id", id, NAME_BYTES_MAX))
    }
}

fn check(column: &str, value: &str, bytes_max: usize) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorKind::Event, format!("{column} {what}")));
    match value.len() {
        0 => wrong("is empty: give it at least one character".into()),
        bytes if bytes > bytes_max => wrong(format!("has {bytes} bytes; at most {bytes_max} are allowed")),
        _ if value.contains('\0') => wrong("contains a NUL character: remove it".into()),
        _ => Ok(()),
    }
}

/// The store's number for an aggregate.
pub type AggregateId = i64;

/// An event on its way to a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The id; the same for every repetition and replay, so that a consumer can drop duplicates.
    pub id: String,
    /// Column `aggregatetype`.
    pub aggregate_type: String,
    /// Column `aggregateid`.
    pub aggregate_id: String,
    /// Column `type`.
    pub event_type: String,
    /// Column `payload`.
    pub payload: Payload,
    /// Column `headers`: a JSON object as text.
    pub headers: Option<String>,
    /// When it was written, in milliseconds since 1970 by the writer's clock.
    pub created_at_unix_ms: i64,
    /// The place in the aggregate's commit order, 1 or more: it rises from event to event and never repeats, so a consumer can drop older
    /// events. It may jump, so a missing number says nothing; on PostgreSQL the whole outbox draws from one sequence object.
    pub sequence: u64,
    /// The original sequence, if an operator sends the event again: it then arrives late and with a new sequence.
    pub replayed: Option<u64>,
    /// The slot of its aggregate.
    pub slot: u32,
    /// The epoch under which the sending publisher holds the slot.
    pub epoch: u64,
    /// The aggregate in the store.
    pub aggregate: AggregateId,
}

impl Delivery {
    /// The aggregate's key: `aggregatetype + "/" + aggregateid`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.aggregate_id)
    }

    /// The message id by which a destination recognizes repetitions: the event's id, the same for every repetition. A replay requested by
    /// an operator must not be taken for a repetition, so its message id is the id followed by `.r` and the new sequence.
    pub fn message_id(&self) -> Cow<'_, str> {
        match self.replayed {
            None => Cow::Borrowed(&self.id),
            Some(_) => Cow::Owned(format!("{}.r{}", self.id, self.sequence)),
        }
    }

    /// The approximate size in bytes, in memory and on the wire.
    pub fn bytes(&self) -> usize {
        let names = self.id.len() + self.aggregate_type.len() + self.aggregate_id.len() + self.event_type.len();
        names + self.payload.len() + self.headers.as_ref().map_or(0, String::len)
    }
}
