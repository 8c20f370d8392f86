//! What stands in the bucket, as JSON. An empty message says that what stood there is gone: a marker, as `nats kv del` writes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use shardwise_core::{ClaimStore, Epoch, EpochError, Incarnation, InstanceId, Member};
use shardwise_discovery::{Note, Record, decode_claim_store};

/// A beat: it says that a life of a member was alive when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LifeBeat {
    pub(crate) incarnation: Incarnation,
    /// The sequence of the life's first beat.
    pub(crate) life: u64,
    /// The granted TTL; of one that is away, its rejoin grace.
    pub(crate) ttl: Duration,
    pub(crate) is_away: bool,
}

#[derive(Serialize, Deserialize)]
struct BeatMessage {
    incarnation: Incarnation,
    /// Missing in the first beat of a life, which has its sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    life: Option<u64>,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    away: bool,
}

/// What stands at the subject of a member's beats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredBeat {
    Living {
        sequence: u64,
        beat: LifeBeat,
    },
    /// A tombstone: all lives that began before it have ended.
    Evicted {
        sequence: u64,
    },
}

impl StoredBeat {
    pub(crate) fn read(sequence: u64, payload: &[u8]) -> Result<Self, String> {
        if payload.is_empty() {
            return Ok(Self::Evicted { sequence });
        }
        let BeatMessage { incarnation, life, ttl_ms, away } = json(payload)?;
        let beat = LifeBeat { incarnation, life: life.unwrap_or(sequence), ttl: Duration::from_millis(ttl_ms), is_away: away };
        Ok(Self::Living { sequence, beat })
    }

    pub(crate) const fn sequence(&self) -> u64 {
        match self {
            Self::Living { sequence, .. } | Self::Evicted { sequence } => *sequence,
        }
    }

    /// Whether it shows that this life has ended. A life that has ended never comes back, so this stays true.
    pub(crate) const fn has_ended(&self, life: u64) -> bool {
        match self {
            Self::Living { beat, .. } => beat.life > life || (beat.life == life && beat.is_away),
            Self::Evicted { sequence } => *sequence > life,
        }
    }

    /// The beat of a life that renews.
    pub(crate) const fn renewing(&self) -> Option<&LifeBeat> {
        match self {
            Self::Living { beat, .. } if !beat.is_away => Some(beat),
            _ => None,
        }
    }
}

/// The first beat of a life, whose number is not known yet.
pub(crate) fn first_beat(incarnation: Incarnation, ttl: Duration) -> Vec<u8> {
    bytes(&BeatMessage { incarnation, life: None, ttl_ms: millis(ttl), away: false })
}

pub(crate) fn beat(beat: &LifeBeat) -> Vec<u8> {
    let LifeBeat { incarnation, life, ttl, is_away } = *beat;
    bytes(&BeatMessage { incarnation, life: Some(life), ttl_ms: millis(ttl), away: is_away })
}

#[derive(Serialize, Deserialize)]
struct MemberMessage<'a> {
    life: u64,
    ttl_ms: u64,
    #[serde(borrow)]
    record: &'a RawValue,
}

/// A member's record, and the life that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredMember {
    pub(crate) sequence: u64,
    pub(crate) life: u64,
    pub(crate) ttl: Duration,
    pub(crate) member: Member,
}

/// A record as text: of which life, and the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordText<'a> {
    pub(crate) life: u64,
    pub(crate) record: &'a str,
}

impl<'a> RecordText<'a> {
    /// Reads no more than that, so that it works with records of other versions.
    pub(crate) fn read(payload: &'a [u8]) -> Result<Self, String> {
        let MemberMessage { life, record, .. } = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        Ok(Self { life, record: record.get() })
    }
}

impl StoredMember {
    pub(crate) fn read(instance_id: InstanceId, sequence: u64, payload: &[u8]) -> Result<Self, String> {
        let MemberMessage { life, ttl_ms, record } = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        let member = Record::decode(instance_id, life, record.get()).map_err(|error| error.to_string())?;
        Ok(Self { sequence, life, ttl: Duration::from_millis(ttl_ms), member })
    }
}

/// A record to write. `record` is JSON.
pub(crate) fn member(life: u64, ttl: Duration, record: &str) -> Result<Vec<u8>, String> {
    let record: &RawValue = serde_json::from_str(record).map_err(|error| error.to_string())?;
    Ok(bytes(&MemberMessage { life, ttl_ms: millis(ttl), record }))
}

/// A claim: it is held for as long as this life of its holder lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimMessage {
    pub(crate) holder: InstanceId,
    pub(crate) incarnation: Incarnation,
    pub(crate) life: u64,
    /// The floor of the store that it was granted under: its epoch is that and its sequence.
    pub(crate) floor: u64,
    /// The holder's TTL, for a reader that finds no trace of the holder.
    pub(crate) ttl_ms: u64,
}

impl ClaimMessage {
    /// `None`: it was released.
    pub(crate) fn read(payload: &[u8]) -> Result<Option<Self>, String> {
        if payload.is_empty() { Ok(None) } else { json(payload).map(Some) }
    }

    pub(crate) fn epoch(&self, sequence: u64) -> Result<Epoch, EpochError> {
        Epoch::new(self.floor.saturating_add(sequence))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        bytes(self)
    }
}

/// The store of a group's claims, and when the stream was made in which its epochs are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredClaimStore {
    pub(crate) store: ClaimStore,
    pub(crate) stream_created: String,
}

impl StoredClaimStore {
    pub(crate) fn read(payload: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Created {
            stream_created: String,
        }
        let Created { stream_created } = json(payload)?;
        Ok(Self { store: decode_claim_store(payload)?, stream_created })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { store: ClaimStore { id, floor }, stream_created } = self;
        serde_json::json!({ "id": id.to_string(), "floor": floor, "stream_created": stream_created }).to_string().into_bytes()
    }
}

/// A note's text, in quotes: so it is never empty.
pub(crate) fn note_text(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}

/// `None`: the note was deleted by hand.
pub(crate) fn read_note(sequence: u64, payload: &[u8]) -> Result<Option<Note>, String> {
    if payload.is_empty() {
        return Ok(None);
    }
    json(payload).map(|text| Some(Note { text, version: sequence }))
}

fn json<T: for<'a> Deserialize<'a>>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}

/// These are structs of numbers and texts, which always have a JSON.
fn bytes<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// Whole milliseconds, never shortened.
pub(crate) fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use shardwise_core::StoreId;

    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn living(sequence: u64, payload: &[u8]) -> LifeBeat {
        match StoredBeat::read(sequence, payload) {
            Ok(StoredBeat::Living { beat, .. }) => beat,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn the_first_beat_of_a_life_is_its_number() {
        let first = living(7, &first_beat(Incarnation::new(1), TTL));
        assert_eq!((first.life, first.ttl, first.is_away), (7, TTL, false));
        assert_eq!(living(9, &beat(&first)), first);
        let away = LifeBeat { is_away: true, ..first };
        assert_eq!(living(9, &beat(&away)), away);
    }

    #[test]
    fn a_life_has_ended_by_a_tombstone_a_newer_life_or_by_stepping_away() {
        let of = |life, is_away| LifeBeat { incarnation: Incarnation::new(1), life, ttl: TTL, is_away };
        let living = |life, is_away| StoredBeat::Living { sequence: 20, beat: of(life, is_away) };
        assert!(!living(7, false).has_ended(7) && living(7, true).has_ended(7) && living(8, false).has_ended(7));
        assert!(!living(7, true).has_ended(8), "an answer that is out of date says nothing of a newer life");
        assert!(StoredBeat::Evicted { sequence: 8 }.has_ended(7) && !StoredBeat::Evicted { sequence: 6 }.has_ended(7));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let record = Record::encode(&Member::named(InstanceId::new("a b").unwrap())).unwrap();
        let payload = member(7, TTL, &record).unwrap();
        let read = StoredMember::read(InstanceId::new("a b").unwrap(), 9, &payload).unwrap();
        assert_eq!((read.life, read.member.joined, read.sequence, read.ttl), (7, 7, 9, TTL));
        assert_eq!(RecordText::read(&payload), Ok(RecordText { life: 7, record: &record }));
        let store = StoredClaimStore { store: ClaimStore { id: StoreId::new(5), floor: 9 }, stream_created: "2026".into() };
        assert_eq!(StoredClaimStore::read(&store.bytes()), Ok(store));
        for text in ["", "1", "\"{}\"\n🦀\0"] {
            assert_eq!(read_note(3, &note_text(text)), Ok(Some(Note { text: text.into(), version: 3 })));
        }
        assert_eq!((read_note(3, b""), ClaimMessage::read(b"")), (Ok(None), Ok(None)));
    }

    #[test]
    fn a_ttl_is_never_shortened_and_nonsense_is_an_error() {
        for (nanos, ms) in [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(millis(Duration::from_nanos(nanos)), ms, "{nanos} ns");
        }
        for nonsense in [&b"x"[..], b"{}", b"[]", b"{\"life\":1}", b"\xff"] {
            assert!(StoredBeat::read(1, nonsense).is_err() && ClaimMessage::read(nonsense).is_err());
            assert!(StoredClaimStore::read(nonsense).is_err() && RecordText::read(nonsense).is_err());
        }
    }
}
