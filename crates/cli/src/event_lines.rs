//! Parses events from JSON lines. It does not depend on the rest of the command: the fuzz targets include this file directly, because a
//! binary has no library.

use std::io::{self, BufRead, Read};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use shardwise_outbox::{NewEvent, PAYLOAD_BYTES_MAX, Payload, one_line};

/// The most bytes of one line: the largest payload with its escapes, and the other fields.
const LINE_BYTES_MAX: u64 = 2 * PAYLOAD_BYTES_MAX as u64 + 256 * 1_024;

/// One line: its number from 1, and the event or the reason why it has none.
pub(crate) struct EventLine {
    pub(crate) number: u64,
    pub(crate) event: std::result::Result<NewEvent, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    aggregatetype: String,
    aggregateid: String,
    #[serde(rename = "type")]
    event_type: String,
    #[serde(borrow)]
    payload: &'a RawValue,
    id: Option<String>,
    headers: Option<serde_json::Map<String, Value>>,
}

/// The fields that must be texts.
const TEXTS: [&str; 3] = ["aggregatetype", "aggregateid", "type"];
/// The most characters of a wrong value in a message.
const VALUE_CHARS_MAX: usize = 40;

/// The lines of a reader, without blank ones.
pub(crate) struct EventLines<R> {
    reader: R,
    number: u64,
    bytes: Vec<u8>,
}

impl<R: BufRead> EventLines<R> {
    pub(crate) const fn of(reader: R) -> Self {
        Self { reader, number: 0, bytes: Vec::new() }
    }

    pub(crate) fn next_line(&mut self) -> io::Result<Option<EventLine>> {
        loop {
            self.bytes.clear();
            // One byte more for the line feed.
            if self.reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut self.bytes)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let line = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes);
            let event = if line.len() as u64 > LINE_BYTES_MAX {
                self.reader.skip_until(b'\n')?;
                Err(format!("the line has more than {LINE_BYTES_MAX} bytes"))
            } else if line.trim_ascii().is_empty() {
                continue;
            } else {
                parse(line)
            };
            return Ok(Some(EventLine { number: self.number, event }));
        }
    }
}

/// Without the parser's position: it counts lines from each event anew, and its column helps only where the text is no JSON.
fn unreadable(text: &str, error: &serde_json::Error) -> String {
    let said = error.to_string();
    let what = said.rsplit_once(" at line ").map_or(said.as_str(), |(what, _)| what);
    if error.is_data() {
        return wrong_value(text).unwrap_or_else(|| what.to_owned());
    }
    let what = match what {
        _ if error.is_eof() => "the line ends too early",
        "expected ident" | "expected value" => "unexpected character",
        what => what,
    };
    format!("this is not JSON: {what} at column {}", error.column())
}

/// The value that is wrong, with its field, which the parser does not name; `None` if the values are right.
fn wrong_value(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    let Value::Object(fields) = value else { return Some("this is JSON, but not an object: write {\"aggregatetype\": …}".to_owned()) };
    let advice = |name: &str, value: &Value| match value {
        Value::Null if matches!(name, "id" | "headers") => None,
        Value::Object(_) if name == "headers" => None,
        _ if name == "headers" => Some("write an object"),
        Value::String(_) => None,
        Value::Number(_) | Value::Bool(_) => Some("write it in quotes"),
        _ => Some("write a text in quotes"),
    };
    TEXTS.iter().chain(&["id", "headers"]).find_map(|name| {
        let value = fields.get(*name)?;
        let what = advice(name, value)?;
        Some(format!("{name} is {}: {what}", one_line(&value.to_string(), VALUE_CHARS_MAX)))
    })
}

fn parse(line: &[u8]) -> std::result::Result<NewEvent, String> {
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8 after byte {}", error.valid_up_to()))?;
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| unreadable(text, &error))?;
    let mut event = NewEvent::new(fields.aggregatetype, fields.aggregateid, fields.event_type, Payload::Text(fields.payload.get().into()));
    (event.id, event.headers) = (fields.id, fields.headers);
    event.validated().map_err(|error| error.to_string())?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(u64, std::result::Result<NewEvent, String>)> {
        let mut lines = EventLines::of(bytes);
        std::iter::from_fn(|| lines.next_line().unwrap()).map(|line| (line.number, line.event)).collect()
    }

    const GOOD: &str = r#"{"aggregatetype":"order","aggregateid":"4 2/🦀","type":"Placed","payload":{"n": 1.10}}"#;

    #[test]
    fn payloads_are_kept_as_they_were_written() {
        let read = lines(format!("\n{GOOD}\n\n{GOOD}").as_bytes());
        assert_eq!(read.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(read[0].1.as_ref().unwrap().payload, Payload::Text(r#"{"n": 1.10}"#.into()));
    }

    #[test]
    fn bad_lines_are_named_and_good_ones_kept() {
        let nul = GOOD.replace("order", "or\\u0000der");
        let empty = GOOD.replace("order", "");
        let mut bytes = format!("{GOOD}\n{{}}\n{nul}\n{empty}\nnonsense\n").into_bytes();
        bytes.extend_from_slice(b"{\"aggregatetype\":\"\xff\"}\n");
        bytes.extend(std::iter::repeat_n(b'x', usize::try_from(LINE_BYTES_MAX).unwrap() + 1));
        bytes.extend_from_slice(format!("\n{GOOD}\n").as_bytes());
        let read = lines(&bytes);
        let refused: Vec<_> = read.iter().filter_map(|(number, event)| event.as_ref().err().map(|why| (*number, why.as_str()))).collect();
        let expected = [
            (2, "missing field"),
            (3, "aggregatetype contains a NUL"),
            (4, "aggregatetype is empty"),
            (5, "this is not JSON: unexpected character at column 2"),
            (6, "not UTF-8 after byte 18"),
            (7, "more than"),
        ];
        assert_eq!(refused.len(), expected.len(), "{refused:?}");
        for ((number, why), (at, part)) in refused.iter().zip(expected) {
            assert!(*number == at && why.contains(part) && !why.contains("line 1"), "line {number}: {why}, expected {at}: {part}");
        }
        assert_eq!(read.last().map(|(number, event)| (*number, event.is_ok())), Some((8, true)));
    }

    /// Regression: the parser's words named no field.
    #[test]
    fn a_wrong_value_is_named_with_its_field_and_what_to_write() {
        let cases = [
            (GOOD.replace("\"4 2/🦀\"", "42"), "aggregateid is 42: write it in quotes"),
            (GOOD.replace("\"Placed\"", "null"), "type is null: write a text in quotes"),
            (GOOD.replace("\"payload\"", "\"id\":[1],\"payload\""), "id is [1]: write a text in quotes"),
            (GOOD.replace("\"payload\"", "\"headers\":true,\"payload\""), "headers is true: write an object"),
            ("[1]".to_owned(), "this is JSON, but not an object: write {\"aggregatetype\": …}"),
            (GOOD.replace("\"payload\"", "\"payloads\""), "unknown field `payloads`"),
            (GOOD.trim_end_matches('}').to_owned(), "this is not JSON: the line ends too early at column"),
        ];
        for (line, why) in cases {
            let refused = lines(line.as_bytes()).remove(0).1.unwrap_err();
            assert!(refused.starts_with(why), "{line}: {refused}");
        }
        let nulls = GOOD.replace("\"payload\"", "\"id\":null,\"headers\":null,\"payload\"");
        assert!(lines(nulls.as_bytes()).remove(0).1.is_ok());
        let long = lines(GOOD.replace("\"order\"", &format!("[{}1]", "1,".repeat(999))).as_bytes()).remove(0).1.unwrap_err();
        assert!(long.starts_with("aggregatetype is [1,1,") && long.len() < 100, "{long}");
    }
}
