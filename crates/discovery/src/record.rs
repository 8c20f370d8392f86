//! A member's record as text, the same in every backend that stores text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardwise_core::{Address, Fingerprint, Incarnation, InstanceId, Loss, Member, MemberState, Serves, Weight, WorkerHealth};

use crate::ErrorKind;

/// The schema number written into each record. Readers take any record whose fields they can read and ignore fields they do not know.
pub const RECORD_SCHEMA: u32 = 1;
/// The most bytes that a member's metadata may have, keys and values together.
pub const METADATA_BYTES_MAX: usize = 4_096;
/// The most fingerprints of a record that count. A member lists one, or two during a change of policy; of more than these the first count
/// and the rest is left out, so that one bad record costs the fleet neither its view nor much time.
pub const FINGERPRINTS_MAX: usize = 8;

/// Why a text is not a record.
#[derive(Debug, thiserror::Error)]
#[error("not a member record: {0}")]
pub struct RecordError(#[from] serde_json::Error);

/// Why a member's record cannot be written, in words for the user.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{why}")]
pub struct RecordWriteError {
    kind: ErrorKind,
    why: String,
}

impl RecordWriteError {
    /// What the backend's error is then.
    pub fn kind(&self) -> ErrorKind {
        self.kind.clone()
    }
}

/// A member's record, in JSON. The backend keeps the id and the number of joining separately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    schema: u32,
    incarnation: Incarnation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<Address>,
    #[serde(default)]
    weight: Weight,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    state: MemberState,
    /// A newer version's health is no reason to lose the member: it counts as working.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_health")]
    worker: Option<WorkerHealth>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<Loss>,
    #[serde(default, skip_serializing_if = "is_zero")]
    reclaims: u64,
    #[serde(default)]
    fingerprints: Vec<Fingerprint>,
    /// `keys`, or the id of an outbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    serves: Option<String>,
    /// The outbox's name, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outbox: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl Record {
    /// The record's JSON, if the metadata has at most [`METADATA_BYTES_MAX`] bytes and the whole of it `bytes_max`.
    ///
    /// # Errors
    /// It is larger, which is [`ErrorKind::TooLarge`], or has no JSON.
    pub fn encode_within(bytes_max: usize, member: &Member) -> Result<String, RecordWriteError> {
        let id = &member.instance_id;
        let fits = |what: &str, bytes: usize, max: usize| {
            let why = || format!("{what} of {id:?} has {bytes} bytes, at most {max} are allowed; make it smaller");
            if bytes <= max { Ok(()) } else { Err(RecordWriteError { kind: ErrorKind::TooLarge, why: why() }) }
        };
        fits("the metadata", member.metadata.iter().map(|(key, value)| key.len() + value.len()).sum(), METADATA_BYTES_MAX)?;
        let no_json =
            |error| RecordWriteError { kind: ErrorKind::Misconfigured, why: format!("cannot write the record of {id:?}: {error}") };
        let record = Self::encode(member).map_err(no_json)?;
        fits("the record", record.len(), bytes_max)?;
        Ok(record)
    }

    /// The record's JSON.
    pub fn encode(member: &Member) -> Result<String, RecordError> {
        let Member { incarnation, address, weight, zone, version, state, worker, loss, reclaims, fingerprints, serves, metadata, .. } =
            member.clone();
        let outbox = serves.as_ref().and_then(Serves::outbox).map(ToOwned::to_owned);
        let serves = serves.as_ref().map(|serves| serves.id().to_owned());
        let schema = RECORD_SCHEMA;
        Ok(serde_json::to_string(&Self {
            schema,
            incarnation,
            address,
            weight,
            zone,
            version,
            state,
            worker,
            loss,
            reclaims,
            fingerprints,
            serves,
            outbox,
            metadata,
        })?)
    }

    /// The member that a record describes, with at most [`FINGERPRINTS_MAX`] fingerprints.
    pub fn decode(instance_id: InstanceId, joined: u64, json: &str) -> Result<Member, RecordError> {
        let record: Self = serde_json::from_str(json)?;
        let Self { incarnation, address, weight, zone, version, state, worker, loss, reclaims, mut fingerprints, metadata, .. } = record;
        let (serves, outbox) = (record.serves, record.outbox);
        let serves = serves.map(|id| Serves::from_parts(id, outbox));
        fingerprints.truncate(FINGERPRINTS_MAX);
        fingerprints.shrink_to_fit();
        Ok(Member {
            instance_id,
            incarnation,
            joined,
            address,
            weight,
            zone,
            version,
            state,
            worker,
            loss,
            reclaims,
            fingerprints,
            serves,
            metadata,
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn known_health<'de, D: serde::Deserializer<'de>>(json: D) -> Result<Option<WorkerHealth>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(json)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_health_is_read_back_and_an_unknown_one_is_none() {
        let id = || InstanceId::new("a").unwrap();
        for worker in [None, Some(WorkerHealth::Absent), Some(WorkerHealth::Failing(7))] {
            let json = Record::encode(&Member { worker, ..Member::named(id()) }).unwrap();
            assert_eq!(Record::decode(id(), 3, &json).unwrap().worker, worker, "{json}");
        }
        let newer = r#"{"schema":1,"incarnation":"00000000000000ff","state":"active","worker":{"tired":1}}"#;
        assert_eq!(Record::decode(id(), 3, newer).unwrap().worker, None);
    }

    #[test]
    fn how_often_a_member_asked_for_its_share_is_read_back_and_left_out_if_never() {
        let id = || InstanceId::new("a").unwrap();
        for reclaims in [0, 1, 9] {
            let json = Record::encode(&Member { reclaims, ..Member::named(id()) }).unwrap();
            assert_eq!(json.contains("reclaims"), reclaims > 0, "{json}");
            assert_eq!(Record::decode(id(), 3, &json).unwrap().reclaims, reclaims, "{json}");
        }
    }

    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_have_defaults() {
        let json = r#"{"schema":9,"incarnation":"00000000000000ff","state":"active","colour":"red"}"#;
        let member = Record::decode(InstanceId::new("a").unwrap(), 3, json).unwrap();
        assert_eq!((member.incarnation.get(), member.weight, member.joined), (255, Weight::ONE, 3));
    }

    #[test]
    fn what_a_member_serves_is_read_back_and_may_be_missing() {
        let id = || InstanceId::new("a").unwrap();
        let outbox = Serves::from_parts("5eed".into(), Some("orders".into()));
        for serves in [None, Some(Serves::Keys), Some(outbox)] {
            let json = Record::encode(&Member { serves: serves.clone(), ..Member::named(id()) }).unwrap();
            assert_eq!(Record::decode(id(), 3, &json).unwrap().serves, serves, "{json}");
        }
        let keys = Record::encode(&Member { serves: Some(Serves::Keys), ..Member::named(id()) }).unwrap();
        assert!(keys.contains(r#""serves":"keys""#) && !keys.contains("outbox"), "{keys}");
    }

    #[test]
    fn of_a_long_list_of_fingerprints_the_first_count() {
        let listed: Vec<_> = (0..40_000u32).map(|i| Fingerprint::of(&i.to_string())).collect();
        for count in [0, FINGERPRINTS_MAX, FINGERPRINTS_MAX + 1, listed.len()] {
            let id = InstanceId::new("a").unwrap();
            let json = Record::encode(&Member { fingerprints: listed[..count].to_vec(), ..Member::named(id.clone()) }).unwrap();
            let member = Record::decode(id, 3, &json).unwrap();
            assert_eq!(member.fingerprints, listed[..count.min(FINGERPRINTS_MAX)]);
        }
    }

    #[test]
    fn what_is_too_large_is_named() {
        let with = |key: &str, bytes: usize| {
            let mut member = Member::named(InstanceId::new("a").unwrap());
            member.metadata.insert(key.to_owned(), "x".repeat(bytes));
            member
        };
        assert!(Record::encode_within(5_000, &with("key", METADATA_BYTES_MAX - 3)).is_ok());
        let said = |member: &Member, max| Record::encode_within(max, member).map_err(|refused| (refused.kind(), refused.to_string()));
        let expected = "the metadata of \"a\" has 4097 bytes, at most 4096 are allowed; make it smaller";
        assert_eq!(said(&with("key", METADATA_BYTES_MAX - 2), 5_000), Err((ErrorKind::TooLarge, expected.to_owned())));
        let bytes = Record::encode(&with("k", 9)).unwrap().len();
        assert!(said(&with("k", 9), bytes).is_ok());
        let expected = format!("the record of \"a\" has {bytes} bytes, at most {} are allowed; make it smaller", bytes - 1);
        assert_eq!(said(&with("k", 9), bytes - 1), Err((ErrorKind::TooLarge, expected)));
    }

    #[test]
    fn nonsense_is_an_error() {
        for json in
            ["", "{}", r#"{"schema":1,"incarnation":"1","state":"active"}"#, r#"{"schema":1,"incarnation":"00000000000000ff","state":"x"}"#]
        {
            assert!(Record::decode(InstanceId::new("a").unwrap(), 0, json).is_err(), "{json}");
        }
        let heavy = r#"{"schema":1,"incarnation":"00000000000000ff","state":"active","weight":101}"#;
        assert!(Record::decode(InstanceId::new("a").unwrap(), 0, heavy).is_err());
    }
}
