//! Lines of an event file as a consumer reads them back: any line at all, since a file may be torn or foreign. Also lines of new events
//! as `shardwise outbox write` takes them.

use shardwise_outbox::Payload;
use shardwise_outbox::sink::parse_line;

#[path = "../../crates/cli/src/event_lines.rs"]
mod lines;

pub(crate) const EVENTS: &[&[u8]] = &[
    br#"{"specversion":"1.0","id":"1","type":"placed","subject":"order/7","sequence":"1","shardslot":3,"shardepoch":9,"data":{"a":[1,null]}}"#,
    br#"{"id":"1","type":"t","subject":"k","sequence":"2","shardslot":0,"shardepoch":1,"datacontenttype":"text/plain","data":"text"}"#,
    br#"{"id":"1","type":"t","subject":"k","sequence":"18446744073709551615","shardslot":4294967295,"shardepoch":0,"data_base64":"AP8="}"#,
    br#"{"id":"1","type":"t","subject":"k","sequence":"-1","shardslot":1e9,"shardepoch":1.5}"#,
    br#"{"id":"1","type":"t","subject":"k","sequence":"1","shardslot":4294967296,"shardepoch":1,"data_base64":"?"}"#,
];

/// An event is what the line's attributes say, and no part of its line is one.
pub(crate) fn events(input: &[u8]) {
    let Some(event) = parse_line(input) else { return };
    let text = |name: &str| event.attributes.get(name)?.as_str();
    assert_eq!((text("id"), text("type")), (Some(&*event.id), Some(&*event.event_type)));
    assert_eq!((text("subject"), text("sequence").map(str::parse)), (Some(&*event.key), Some(Ok(event.sequence))));
    let number = |name: &str| event.attributes.get(name)?.as_u64();
    assert_eq!((number("shardslot"), number("shardepoch")), (Some(event.slot.into()), Some(event.epoch)));
    assert!(!event.attributes.contains_key("data") && !event.attributes.contains_key("data_base64"));
    let line = input.trim_ascii();
    for end in [line.len() / 2, line.len() - 1] {
        assert_eq!(parse_line(&line[..end]), None, "a torn line");
    }
}

pub(crate) const NEW_EVENTS: &[&[u8]] = &[
    br#"{"aggregatetype":"order","aggregateid":"4 2/\u00e9","type":"Placed","payload":{"n": 1.10},"id":"7","headers":{"a":[null]}}"#,
    b"\n{\"aggregatetype\":\"a\",\"aggregateid\":\"b\",\"type\":\"c\",\"payload\":null}\r\n \n{}",
    br#"{"aggregatetype":"","aggregateid":"b\u0000","type":"c","payload":1e999}"#,
    b"{\"aggregatetype\":\"\xff\"}\nnonsense",
];

/// Every line that is not blank is reported once, in order, as a valid event or with its error.
pub(crate) fn new_events(input: &[u8]) {
    let mut lines = lines::EventLines::of(input);
    let mut outcomes = Vec::new();
    while let Ok(Some(line)) = lines.next_line() {
        outcomes.push(line.number);
        match line.event {
            Ok(event) => {
                assert!(event.validated().is_ok(), "{event:?}");
                let Payload::Text(json) = &event.payload else { unreachable!("a line is text") };
                assert!(serde_json::from_str::<&serde_json::value::RawValue>(json).is_ok(), "{json:?}");
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
    let blank = |line: &&[u8]| line.trim_ascii().is_empty();
    let expected: Vec<_> =
        (1..).zip(input.split(|byte| *byte == b'\n')).filter(|(_, line)| !blank(line)).map(|(number, _)| number).collect();
    assert_eq!(outcomes, expected);
}
