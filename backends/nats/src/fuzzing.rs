//! What must hold for any bytes that come out of NATS, for the package `fuzz`. No part of the interface.

use shardwise_core::{ClaimName, GroupName, InstanceId, Resource};
use shardwise_discovery::Record;

use crate::connection::ServerVersion;
use crate::consumer::DeliveryPlace;
use crate::jetstream::{self, CasOutcome, PresentSubjects, StreamInfo};
use crate::messages::{self, ClaimMessage, RecordText, StoredBeat, StoredClaimStore, StoredMember, read_note};
use crate::names::{Bucket, SubjectPart};

/// Samples for `subjects`.
pub const SUBJECTS: &[&[u8]] = &[
    b"b.worker-1",
    b"m.=YSBi",
    b"m.=YQ",
    b"c.slot.0",
    b"c.slot.65535",
    b"c.slot.65536",
    b"c.slot.007",
    b"c.name.=c2luZ2xldG9uL2E",
    b"n.drained",
    b"p.255",
    b"s",
    b"b.a.b",
    "Größe 🦀".as_bytes(),
];

/// Samples for `messages`.
pub const MESSAGES: &[&[u8]] = &[
    b"",
    br#"{"incarnation":"00000000000000ff","ttl_ms":3000}"#,
    br#"{"incarnation":"00000000000000ff","life":18446744073709551615,"ttl_ms":18446744073709551615,"away":true}"#,
    br#"{"life":7,"ttl_ms":3000,"record":{"schema":1,"incarnation":"00000000000000ff","state":"active","weight":2}}"#,
    br#"{"holder":"a b","incarnation":"00000000000000ff","life":7,"floor":9007199254740991,"ttl_ms":3000}"#,
    br#"{"id":"000000000000004d","floor":7,"stream_created":"2026-11-27T00:00:00Z"}"#,
    br#""{\"n\":3}""#,
];

/// Samples for `answers`.
pub const ANSWERS: &[&[u8]] = &[
    b"$JS.ACK.KV_b.c.1.50.9.1700000000000000000.3",
    b"$JS.ACK.hub.hash.KV_b.c.1.50.9.1700000000000000000.3.rand",
    br#"{"stream":"KV_b","seq":7}"#,
    br#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"KV_b","seq":0}"#,
    br#"{"config":{"subjects":["$KV.b.>"],"storage":"file","num_replicas":3,"max_age":0},"created":"x","cluster":{"name":"c"}}"#,
    br#"{"messages":2,"last_seq":7,"num_subjects":1,"subjects":{"$KV.s.a":1}}"#,
    b"2.15.0-RC.1",
];

/// Subjects: what one is read as is written as the same subject, any name is read back, and groups do not see each other.
pub fn subjects(input: &[u8]) {
    let (Ok(text), Ok(bucket), Ok(group)) = (std::str::from_utf8(input), Bucket::new("b"), GroupName::new("a group.*")) else { return };
    let subjects = bucket.group(&group);
    let subject = format!("{}{text}", subjects.claim_store().trim_end_matches('s'));
    let again = match subjects.part(&subject) {
        Some(SubjectPart::Beat(id)) => subjects.beat(&id),
        Some(SubjectPart::Member(id)) => subjects.member(&id),
        Some(SubjectPart::Claim(resource)) => subjects.claim(&resource),
        Some(SubjectPart::Note(name)) => subjects.note(&name),
        Some(SubjectPart::Other) | None => subject.clone(),
    };
    assert_eq!(again, subject);
    if let Ok(id) = InstanceId::new(text) {
        assert_eq!(subjects.part(&subjects.member(&id)), Some(SubjectPart::Member(id)));
    }
    if let Ok(name) = ClaimName::new(text) {
        let resource = Resource::Name(name);
        assert_eq!(subjects.part(&subjects.claim(&resource)), Some(SubjectPart::Claim(resource)));
    }
    if let (Ok(other), Ok(id)) = (GroupName::new(text), InstanceId::new("x")) {
        let part = subjects.part(&bucket.group(&other).beat(&id));
        assert_eq!(part.is_some(), other == group, "{text:?}");
    }
}

/// Beats, records, claims, stores of claims and notes: what is read is written so that it is read again.
pub fn messages(input: &[u8]) {
    if let Ok(StoredBeat::Living { beat, .. }) = StoredBeat::read(7, input) {
        assert_eq!(StoredBeat::read(9, &messages::beat(&beat)), Ok(StoredBeat::Living { sequence: 9, beat }));
    }
    let Ok(id) = InstanceId::new("a") else { return };
    if let Ok(stored) = StoredMember::read(id.clone(), 9, input) {
        assert_eq!(RecordText::read(input).map(|text| text.life), Ok(stored.life));
        let written = Record::encode(&stored.member).ok().and_then(|json| messages::member(stored.life, stored.ttl, &json).ok());
        assert_eq!(written.and_then(|payload| StoredMember::read(id, 9, &payload).ok()), Some(stored));
    }
    if let Ok(Some(claim)) = ClaimMessage::read(input) {
        assert_eq!(ClaimMessage::read(&claim.bytes()), Ok(Some(claim.clone())));
        for sequence in [0, 7, u64::MAX] {
            let _ = claim.epoch(sequence);
        }
    }
    if let Ok(store) = StoredClaimStore::read(input) {
        assert_eq!(StoredClaimStore::read(&store.bytes()), Ok(store));
    }
    if let Ok(Some(note)) = read_note(3, input) {
        assert_eq!(read_note(3, &messages::note_text(&note.text)), Ok(Some(note)));
    }
}

/// What servers answer, and the place of a message in its stream: anything is read or refused.
pub fn answers(input: &[u8]) {
    if let Ok(outcome) = jetstream::acknowledged(input) {
        assert_ne!(outcome, CasOutcome::Written(0));
    }
    drop(serde_json::from_slice::<StreamInfo>(input));
    drop(serde_json::from_slice::<PresentSubjects>(input));
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = (DeliveryPlace::read(text), ServerVersion::read(text));
}
