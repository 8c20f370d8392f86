//! Real events for the demo, from a file or stdin. They are read completely before the demo begins, so that invalid ones cannot interrupt
//! it.

use std::collections::{HashSet, VecDeque};
use std::path::Path;

use shardwise_outbox::{HEADERS_BYTES_MAX, NewEvent, PAYLOAD_BYTES_MAX};

use crate::events;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{count, note};

const EVENTS_MAX: usize = 1_000_000;
/// The most bytes of all payloads and headers together.
const BYTES_MAX: usize = 512 * 1_024 * 1_024;
/// The most refused lines that are printed; all are counted.
const REFUSED_PRINTED_MAX: u64 = 20;

#[derive(Default)]
pub(super) struct RealEvents {
    pub(super) events: VecDeque<NewEvent>,
    /// Lines that are not an event, or an event that the store would refuse.
    pub(super) refused: u64,
    ids: HashSet<String>,
    bytes: usize,
}

/// All events of `from`, each with a unique id.
pub(super) async fn read(from: &Path) -> Result<RealEvents> {
    let mut lines = events::open(from)?;
    let mut real = RealEvents::default();
    while let Some(line) = lines.recv().await {
        let events::EventLine { number, event } = line.map_err(|error| events::unreadable(from, &error))?;
        match event.and_then(|event| real.checked(event, number)) {
            Ok(event) => real.events.push_back(event),
            Err(why) => {
                real.refused += 1;
                if real.refused <= REFUSED_PRINTED_MAX {
                    note(format_args!("line {number}: {why}"));
                }
            }
        }
        if real.events.len() > EVENTS_MAX || real.bytes > BYTES_MAX {
            return Err(CliFailure::new(
                Code::Usage,
                format!("--from has more than {EVENTS_MAX} events or {BYTES_MAX} bytes; give it fewer, such as with head -n"),
            ));
        }
    }
    if real.refused > REFUSED_PRINTED_MAX {
        note(format_args!("{} more refused", count(real.refused - REFUSED_PRINTED_MAX, "line")));
    }
    if real.events.is_empty() {
        return Err(CliFailure::new(
            Code::Usage,
            "--from has no event; each line is {\"aggregatetype\":…,\"aggregateid\":…,\"type\":…,\"payload\":…}",
        ));
    }
    Ok(real)
}

impl RealEvents {
    /// Refuses events that the store would refuse during the demo, and assigns an id to an event without one.
    fn checked(&mut self, mut event: NewEvent, number: u64) -> std::result::Result<NewEvent, String> {
        let payload = event.payload.len();
        let headers = event.headers.as_ref().map_or(0, |headers| serde_json::to_vec(headers).map_or(usize::MAX, |json| json.len()));
        if payload > PAYLOAD_BYTES_MAX {
            return Err(format!("the payload has {payload} bytes; at most {PAYLOAD_BYTES_MAX} are allowed"));
        }
        if headers > HEADERS_BYTES_MAX {
            return Err(format!("the headers have {headers} bytes; at most {HEADERS_BYTES_MAX} are allowed"));
        }
        let id = event.id.get_or_insert_with(|| format!("line-{number}"));
        if !self.ids.insert(id.clone()) {
            return Err(format!("an earlier line has the id {id:?} too"));
        }
        self.bytes += payload + headers;
        Ok(event)
    }
}
