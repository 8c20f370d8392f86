//! Events as `CloudEvents` 1.0 in the JSON format, one line each.
//!
//! | attribute | value |
//! |---|---|
//! | `id`, `type`, `source`, `time` | the event's id, its type, the sink's source, when it was written |
//! | `subject`, `partitionkey` | the aggregate's key, `aggregatetype/aggregateid` |
//! | `sequence` | the place in the aggregate's order, as text: it rises and may jump |
//! | `replayed` | on an event that an operator sends again: its original sequence, as text |
//! | `shardslot`, `shardepoch` | the slot and the epoch under which it was sent |
//! | `datacontenttype`, `data` | JSON payloads unchanged; other text as a string, `text/plain` |
//! | | JSON that many readers refuse (nested more than 100 deep, a lone surrogate, a number beyond a double): a string, `text/plain` |
//! | `data_base64` | bytes that are not JSON, `application/octet-stream` |
//! | a header with a name of up to 20 characters `a-z0-9` and a value of text, a 32-bit integer or a boolean | an attribute of that name |
//! | `outboxheaders` | all other headers: a JSON object as text |
//!
//! The headers `datacontenttype` and `dataschema` have their `CloudEvents` meaning. No header can replace an attribute of the table.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::json::is_json;
use crate::{Delivery, Payload};

const RESERVED: [&str; 16] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "data",
    "data_base64",
    "datacontenttype",
    "partitionkey",
    "sequence",
    "shardslot",
    "shardepoch",
    "replayed",
    "outboxheaders",
    "headers",
];
const ATTRIBUTE_BYTES_MAX: usize = 20;

/// An event's headers, and their text if it is nested too deeply to be read; that text is then carried unchanged.
pub(super) fn headers_of(event: &Delivery) -> (Map<String, Value>, Option<&str>) {
    match event.headers.as_deref().map(|text| (text, serde_json::from_str::<Map<String, Value>>(text))) {
        None => (Map::new(), None),
        Some((_, Ok(headers))) => (headers, None),
        Some((text, Err(_))) => (Map::new(), Some(text)),
    }
}

/// Writes one event as one line: a newline at its end and none within.
pub fn encode(event: &Delivery, source: &str, line: &mut Vec<u8>) {
    let headers = headers_of(event);
    line.extend_from_slice(b"{\"specversion\":\"1.0\"");
    attributes(event, source, &headers, |name, value, is_text| {
        if is_text {
            attribute(line, name, value);
        } else {
            raw(line, name, value);
        }
    });
    data(line, &event.payload, headers.0.get("datacontenttype").and_then(Value::as_str));
    line.extend_from_slice(b"}\n");
}

fn attribute(line: &mut Vec<u8>, name: &str, value: &str) {
    raw(line, name, "");
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(line, value);
}

fn raw(line: &mut Vec<u8>, name: &str, json: &str) {
    for part in [",\"", name, "\":", json] {
        line.extend_from_slice(part.as_bytes());
    }
}

/// Calls `put` for each attribute of an event except `specversion` and `datacontenttype`, with its name, its value, and whether the value
/// is text in JSON, rather than a number or a boolean.
pub(super) fn attributes(
    event: &Delivery,
    source: &str,
    (headers, unread): &(Map<String, Value>, Option<&str>),
    mut put: impl FnMut(&str, &str, bool),
) {
    let key = event.key();
    put("id", &event.id, true);
    put("source", source, true);
    put("type", &event.event_type, true);
    put("subject", &key, true);
    put("time", &rfc3339(event.created_at_unix_ms), true);
    put("partitionkey", &key, true);
    put("sequence", &event.sequence.to_string(), true);
    if let Some(first) = event.replayed {
        put("replayed", &first.to_string(), true);
    }
    put("shardslot", &event.slot.to_string(), false);
    put("shardepoch", &event.epoch.to_string(), false);
    let mut others = Map::new();
    for (name, value) in headers {
        match value {
            Value::String(_) if name == "datacontenttype" => {}
            Value::String(text) if is_attribute_name(name) => put(name, text, true),
            Value::Bool(_) if is_attribute_name(name) => put(name, &value.to_string(), false),
            Value::Number(number) if is_attribute_name(name) && number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {
                put(name, &value.to_string(), false);
            }
            _ => drop(others.insert(name.clone(), value.clone())),
        }
    }
    let others = (!others.is_empty()).then(|| Value::Object(others).to_string());
    if let Some(others) = others.as_deref().or(*unread) {
        put("outboxheaders", others, true);
    }
}

fn is_attribute_name(name: &str) -> bool {
    (1..=ATTRIBUTE_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && !RESERVED.contains(&name)
}

/// A payload by its kind and media type.
pub(super) enum EventData<'a> {
    Nothing,
    Json(&'a str),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// Determines the kind of a payload; `stated` is the header `datacontenttype`.
pub(super) fn datum<'a>(payload: &'a Payload, stated: Option<&'a str>) -> (EventData<'a>, Option<&'a str>) {
    let stated_json = stated.is_none_or(is_json_type);
    match payload {
        Payload::None => (EventData::Nothing, stated),
        Payload::Text(text) if stated_json && is_json(text) => (EventData::Json(text), Some(stated.unwrap_or("application/json"))),
        // Text with a JSON media type that is not JSON would be read as a JSON string, so it is labelled as text.
        Payload::Text(text) => (EventData::Text(text), Some(stated.filter(|stated| !is_json_type(stated)).unwrap_or("text/plain"))),
        Payload::Binary(bytes) => match std::str::from_utf8(bytes) {
            // A number or a word in bytes is ambiguous; an object or an array that parses is JSON.
            Ok(text) if stated_json && text.starts_with(['{', '[']) && is_json(text) => {
                (EventData::Json(text), Some(stated.unwrap_or("application/json")))
            }
            _ => (EventData::Bytes(bytes), Some(stated.unwrap_or("application/octet-stream"))),
        },
    }
}

fn data(line: &mut Vec<u8>, payload: &Payload, stated: Option<&str>) {
    let (datum, media_type) = datum(payload, stated);
    if let Some(media_type) = media_type {
        attribute(line, "datacontenttype", media_type);
    }
    match datum {
        EventData::Nothing => {}
        EventData::Json(json) => {
            raw(line, "data", "");
            // In valid JSON an unescaped line break occurs only between tokens, where a space means the same.
            line.extend(json.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        }
        EventData::Text(text) => attribute(line, "data", text),
        EventData::Bytes(bytes) => {
            attribute(line, "data_base64", &STANDARD.encode(bytes));
        }
    }
}

fn is_json_type(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.ends_with("/json") || essence.ends_with("+json")
}

/// Milliseconds since 1970 as `2026-01-02T03:04:05.678Z`.
fn rfc3339(unix_ms: i64) -> String {
    let (days, ms) = (unix_ms.div_euclid(86_400_000), unix_ms.rem_euclid(86_400_000));
    let (year, month, day) = civil(days);
    let (hour, minute, second, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60, ms % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The Gregorian date of a day since 1970-01-01: years begin in March, so that the leap day comes last, in eras of 400.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn delivery(payload: Payload, headers: Option<&str>) -> Delivery {
        Delivery {
            id: "e-1".into(),
            aggregate_type: "order".into(),
            aggregate_id: "42".into(),
            event_type: "OrderPlaced".into(),
            payload,
            headers: headers.map(Into::into),
            created_at_unix_ms: 1_767_323_045_678,
            sequence: 7,
            replayed: None,
            slot: 3,
            epoch: 9,
            aggregate: 1,
        }
    }

    fn written(payload: impl Into<Payload>, headers: Option<&str>) -> Value {
        let mut line = Vec::new();
        encode(&delivery(payload.into(), headers), "/outbox/orders", &mut line);
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1), "one line");
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn json_is_carried_as_it_is_on_one_line() {
        let expected = json!({
            "specversion": "1.0", "id": "e-1", "source": "/outbox/orders", "type": "OrderPlaced", "subject": "order/42",
            "time": "2026-01-02T03:04:05.678Z", "partitionkey": "order/42", "sequence": "7", "shardslot": 3, "shardepoch": 9,
            "datacontenttype": "application/json", "data": {"total": 12},
        });
        assert_eq!(written("{\n  \"total\":\r\n12}", None), expected);
        assert_eq!(written(br#"{"total":12}"#.to_vec(), None), expected);
    }

    #[test]
    fn what_is_sent_again_says_so() {
        let mut line = Vec::new();
        encode(&Delivery { replayed: Some(3), ..delivery(Payload::None, None) }, "/outbox/orders", &mut line);
        let event: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&event["sequence"], &event["replayed"]), (&json!("7"), &json!("3")));
        assert!(written("{}", Some(r#"{"replayed":"forged"}"#)).get("replayed").is_none(), "no header can say so");
    }

    #[test]
    fn what_is_not_json_is_text_or_base64() {
        let text = written("not {json", None);
        assert_eq!((&text["datacontenttype"], &text["data"]), (&json!("text/plain"), &json!("not {json")));
        let bytes = written(vec![0u8, 0xff, b'\n'], None);
        assert_eq!((&bytes["datacontenttype"], &bytes["data_base64"]), (&json!("application/octet-stream"), &json!("AP8K")));
        assert_eq!(written(b"42".to_vec(), None)["data_base64"], json!("NDI="));
        assert_eq!(written("a\0b", None)["data"], json!("a\0b"));
        let nothing = written(Payload::None, None);
        assert!(nothing.get("data").is_none() && nothing.get("datacontenttype").is_none());
    }

    /// A reader rejects a line that is nested too deeply, and would take it for a torn one.
    #[test]
    fn what_is_nested_too_deeply_for_a_reader_is_text() {
        for depth in [1, 100, 120, 126, 127, 128, 129, 1_000, 100_000] {
            for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
                let json = format!("{}1{}", open.repeat(depth), close.repeat(depth));
                for payload in [Payload::Text(json.clone()), Payload::Binary(json.clone().into_bytes())] {
                    let mut line = Vec::new();
                    encode(&delivery(payload.clone(), None), "/outbox/orders", &mut line);
                    let read = crate::sink::parse_line(&line).unwrap_or_else(|| panic!("{depth} deep: no event to a reader"));
                    let bytes = match read.payload {
                        Payload::Text(text) => text.into_bytes(),
                        Payload::Binary(bytes) => bytes,
                        Payload::None => Vec::new(),
                    };
                    assert_eq!(bytes, json.as_bytes(), "{depth} deep");
                }
            }
        }
        let brackets_in_text = format!("[\"{}\\\"{}\"]", "[".repeat(500), "{".repeat(500));
        assert!(written(brackets_in_text, None)["data"].is_array(), "brackets in a text do not nest");
    }

    /// The same for half of a surrogate pair, which is not valid UTF-8 text, and for numbers that readers reject.
    #[test]
    fn json_that_no_reader_takes_is_text() {
        for json in [r#"{"a":"\ud800"}"#, r#"["\udc00\ud800"]"#, r#"{"\ud800":1}"#, r#""\ud83dx""#, "1e999", r#"{"a":[-1e999]}"#] {
            let event = written(json, None);
            assert_eq!((&event["datacontenttype"], &event["data"]), (&json!("text/plain"), &json!(json)));
            let bytes = written(json.as_bytes().to_vec(), None);
            assert_eq!(
                (&bytes["datacontenttype"], &bytes["data_base64"]),
                (&json!("application/octet-stream"), &json!(STANDARD.encode(json)))
            );
        }
        for json in [r#"{"a":"\ud83d\ude00\u0000"}"#, "[1e308,18446744073709551616,-0.0]", "null", r#""\\ud800""#] {
            assert_eq!(written(json, None)["datacontenttype"], json!("application/json"), "{json}");
        }
    }

    #[test]
    fn headers_become_attributes_and_none_is_lost() {
        let headers = r#"{"traceparent":"00-1-2-01","retries":2,"big":9007199254740993,"X-Tenant":"a","id":"forged","datacontenttype":"text/csv","ok":true}"#;
        let event = written("a,b", Some(headers));
        assert_eq!((&event["traceparent"], &event["retries"], &event["ok"]), (&json!("00-1-2-01"), &json!(2), &json!(true)));
        assert_eq!((&event["id"], &event["datacontenttype"], &event["data"]), (&json!("e-1"), &json!("text/csv"), &json!("a,b")));
        let others: Value = serde_json::from_str(event["outboxheaders"].as_str().unwrap()).unwrap();
        assert_eq!(others, json!({"X-Tenant": "a", "big": 9_007_199_254_740_993_u64, "id": "forged"}));
        // The store accepts JSON that is nested up to 1,000 deep.
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        assert_eq!(written("{}", Some(&deep))["outboxheaders"], json!(deep));
    }

    #[test]
    fn dates_are_gregorian() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_102_444_800_000, "2100-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
    }
}
