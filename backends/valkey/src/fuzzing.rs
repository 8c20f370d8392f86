//! What must hold for any bytes that come out of a server or out of the settings, for the package `fuzz`. No part of the interface.

use redis::Value;

use crate::address::parse;
use crate::dial::ServerFacts;
use crate::error::ServerContext;
use crate::foreign::ScanPage;
use crate::mirror::{ChangeOutcome, MemberMirror};
use crate::records::{decode, encode};
use crate::scripts::GroupAnswer;

/// Samples for `addresses`.
pub const ADDRESSES: &[&[u8]] = &[
    b"redis://127.0.0.1:6379",
    b"rediss://[::1]:6379/",
    b"valkey://h",
    b"redis://h/0",
    b"redis://me:pass@h:1",
    b"redis://[h]]:1",
    b"redis://h:",
    b"h:1?x",
];

/// Samples for `changes`: what a message says behind era and revision, with NULs between the parts.
pub const CHANGES: &[&[u8]] = &[
    b"a\0",
    b"b\x005 00000000000000ff live 0a 7 3000000 0b {\"schema\":1,\"incarnation\":\"00000000000000ff\",\"state\":\"active\"}\0a\0",
    b"b\0nonsense",
    b"\xff\0\0\0",
];

/// Samples for `records`.
pub const RECORDS: &[&[u8]] = &[
    b"12 00000000000000ff live 0a 7 3000000 0b {\"schema\":1,\"incarnation\":\"00000000000000ff\",\"state\":\"active\",\"zone\":\"a b\"}",
    b"18446744073709551615 00000000000000ff away 0a 7 3000000 0b {\"schema\":1,\"incarnation\":\"0000000000000001\",\"state\":\"away\"}",
    b"12 ff live 0a 7 3000000 0b {}",
    b"x",
];

/// Samples for `answers`: the parts of an answer, or the lines of INFO.
pub const ANSWERS: &[&[u8]] = &[
    b"0a\n7\nff\n1500\nOK\na\n1 2",
    b"0a\n18446744073709551616\nff\n-1\nOK",
    b"0\na\nb",
    b"# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nmaster_replid:0a1b\r\nmaxmemory:1\r\nmaxmemory_policy:allkeys-lru\r\n",
    b"valkey_version:8.1.0\nserver_mode:cluster\nrole:slave",
];

const HELD: &[u8] = b"1 00000000000000ff live 0a 7 3000000 0b {\"schema\":1,\"incarnation\":\"00000000000000ff\",\"state\":\"active\"}";

/// Addresses of the settings: one that is taken is taken again as it is shown, and what stands before an @ is never shown.
pub fn addresses(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(address) = parse(text, 6379) {
        let scheme = if address.tls { "rediss" } else { "redis" };
        assert_eq!(parse(&format!("{scheme}://{address}"), 1), Ok(address), "{text:?}");
    }
    if !text.contains("hush") {
        let refused = parse(&format!("redis://me:hush@{text}"), 6379);
        assert!(refused.as_ref().is_err_and(|why| !why.contains("hush")), "{refused:?}");
    }
}

/// Messages of a group: only the next one changes anything, and one that cannot be read leaves the revision.
pub fn changes(input: &[u8]) {
    let mirror = || MemberMirror::of_list("e".into(), 4, &[(b"a".to_vec(), HELD.to_vec())]).ok();
    for (begin, is_next) in [("e\x005\0", true), ("e\x004\0", false), ("e\x006\0", false), ("f\x005\0", false), ("", false)] {
        let Some(mut mirror) = mirror() else { return };
        let before = mirror.view(&[]);
        let outcome = mirror.apply(&[begin.as_bytes(), input].concat());
        match outcome {
            Ok(ChangeOutcome::Applied) => assert_eq!(mirror.revision(), 5),
            Ok(ChangeOutcome::Known | ChangeOutcome::Missed) => assert_eq!(mirror.view(&[]), before),
            Err(_) => assert_eq!(mirror.revision(), 4),
        }
        // The input alone may have an era and a revision of its own.
        assert!(is_next || begin.is_empty() || mirror.revision() == 4, "{begin:?}");
    }
}

/// Members as they are stored: what is read is written so that it is read again.
pub fn records(input: &[u8]) {
    let Ok(member) = decode(b"a", input) else { return };
    let written = encode(&member).ok().map(|json| format!("{} 1 2 3 4 5 6 {json}", member.joined));
    let again = written.and_then(|stored| decode(b"a", stored.as_bytes()).ok());
    // One that is as large as a record may be can grow by what was left out.
    assert!(again.is_none_or(|again| again == member));
}

/// Answers of scripts, of SCAN and of INFO: anything is read or refused.
pub fn answers(input: &[u8]) {
    let parts = || input.split(|byte| *byte == b'\n').map(|part| Value::BulkString(part.to_vec())).collect::<Vec<_>>();
    let listed = [parts(), vec![Value::Array(parts())]].concat();
    for answer in [Value::Array(parts()), Value::Array(listed), Value::BulkString(input.to_vec())] {
        if let Ok(answer) = GroupAnswer::read("h:1", answer) {
            drop(answer.records());
        }
    }
    let page = ScanPage::read(Value::Array(vec![Value::BulkString(input.to_vec()), Value::Array(parts())]));
    assert!(page.is_some_and(|page| page.keys.len() == parts().len()));
    let Ok(text) = std::str::from_utf8(input) else { return };
    let facts = ServerFacts::read(text);
    let context = ServerContext {
        place: "h:1".into(),
        setting: "discovery.valkey.url",
        of: "",
        username: None,
        prefix: "shardwise".into(),
        has_sentinels: false,
    };
    assert!(facts.check(&context).is_err() || !facts.origin.is_empty(), "a server without a history was taken");
}
