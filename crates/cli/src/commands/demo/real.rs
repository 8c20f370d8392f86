//! Real events for the demo, from a file or stdin. They are read completely before the demo begins, so that invalid ones cannot interrupt
//! it.

use std::collections::HashSet;
use std::path::Path;

use shardwise_outbox::{HEADERS_BYTES_MAX, NewEvent, PAYLOAD_BYTES_MAX};

use crate::events::{self, EventLine};
use crate::exit::{CliFailure, Result};
use crate::output::{count, note};

const EVENTS_MAX: usize = 1_000_000;
/// The most bytes of all payloads and headers together.
const BYTES_MAX: usize = 512 * 1_024 * 1_024;
/// The most refused lines that are printed; all are counted.
const REFUSED_PRINTED_MAX: u64 = 20;

/// All events of `from`, each with a unique id, and the number of lines that are not an event, or one that the store would refuse.
pub(super) async fn read(from: &Path) -> Result<(Vec<NewEvent>, u64)> {
    let mut lines = events::open(from)?;
    let (mut events, mut refused) = (Vec::new(), 0);
    let (mut ids, mut bytes) = (HashSet::new(), 0);
    while let Some(line) = lines.recv().await {
        let EventLine { number, event } = line?;
        match event.and_then(|event| checked(event, number, &mut ids)) {
            Ok((event, its_bytes)) => {
                events.push(event);
                bytes += its_bytes;
            }
            Err(why) => {
                refused += 1;
                if refused <= REFUSED_PRINTED_MAX {
                    note(format_args!("line {number}: {why}"));
                }
            }
        }
        if events.len() > EVENTS_MAX || bytes > BYTES_MAX {
            let most = format!("--from has more than {EVENTS_MAX} events or {BYTES_MAX} bytes; give it fewer, such as with head -n");
            return Err(CliFailure::usage(most));
        }
    }
    if refused > REFUSED_PRINTED_MAX {
        note(format_args!("{} more refused", count(refused - REFUSED_PRINTED_MAX, "line")));
    }
    if events.is_empty() {
        let line = "{\"aggregatetype\":…,\"aggregateid\":…,\"type\":…,\"payload\":…}";
        return Err(CliFailure::usage(format!("--from has no event; each line is {line}")));
    }
    Ok((events, refused))
}

/// Refuses an event that the store would refuse during the demo, and assigns an id to one without. Returns the bytes of payload and
/// headers.
fn checked(mut event: NewEvent, number: u64, ids: &mut HashSet<String>) -> std::result::Result<(NewEvent, usize), String> {
    let payload = event.payload.len();
    let headers = event.headers.as_ref().map_or(0, |headers| serde_json::to_vec(headers).map_or(usize::MAX, |json| json.len()));
    if payload > PAYLOAD_BYTES_MAX {
        return Err(format!("the payload has {payload} bytes; at most {PAYLOAD_BYTES_MAX} are allowed"));
    }
    if headers > HEADERS_BYTES_MAX {
        return Err(format!("the headers have {headers} bytes; at most {HEADERS_BYTES_MAX} are allowed"));
    }
    let id = event.id.get_or_insert_with(|| format!("line-{number}"));
    if !ids.insert(id.clone()) {
        return Err(format!("an earlier line has the id {id:?} too"));
    }
    Ok((event, payload + headers))
}
