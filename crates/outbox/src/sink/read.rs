//! Reading back what [`super::FileSink`] wrote.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::Payload;

/// An event as a consumer sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadEvent {
    /// The event's id.
    pub id: String,
    /// The event's type.
    pub event_type: String,
    /// The aggregate's key.
    pub key: String,
    /// The place in the aggregate's order: it rises and may jump.
    pub sequence: u64,
    /// The slot for which it was sent.
    pub slot: u32,
    /// The epoch under which it was sent.
    pub epoch: u64,
    /// The payload; JSON is text.
    pub payload: Payload,
    /// Every attribute as written, without the data.
    pub attributes: Map<String, Value>,
}

/// Reads the events of a file in order and skips empty and torn lines. For several files, or a file that grows, call it repeatedly.
pub fn read_events(path: impl AsRef<Path>) -> io::Result<impl Iterator<Item = io::Result<ReadEvent>>> {
    let lines = BufReader::new(File::open(path)?).split(b'\n');
    Ok(lines.filter_map(|line| line.map(|line| parse_line(&line)).transpose()))
}

/// The event of one line; `None` for a line that is empty, torn or something else.
pub fn parse_line(line: &[u8]) -> Option<ReadEvent> {
    let mut attributes: Map<String, Value> = serde_json::from_slice(line).ok()?;
    let text = |name: &str| attributes.get(name).and_then(Value::as_str).map(str::to_owned);
    let (id, event_type, key) = (text("id")?, text("type")?, text("subject")?);
    let sequence = text("sequence")?.parse().ok()?;
    let slot = attributes.get("shardslot").and_then(Value::as_u64)?.try_into().ok()?;
    let epoch = attributes.get("shardepoch").and_then(Value::as_u64)?;
    let is_text = text("datacontenttype").is_some_and(|kind| !kind.contains("json"));
    let payload = match (attributes.remove("data"), attributes.remove("data_base64")) {
        (Some(Value::String(text)), _) if is_text => Payload::Text(text),
        (Some(json), _) => Payload::Text(json.to_string()),
        (None, Some(base64)) => Payload::Binary(STANDARD.decode(base64.as_str()?).ok()?),
        (None, None) => Payload::None,
    };
    Some(ReadEvent { id, event_type, key, sequence, slot, epoch, payload, attributes })
}
