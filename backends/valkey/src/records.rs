//! Members as the server keeps them, and back.

use std::time::Duration;

use shardwise_core::{InstanceId, Member};
use shardwise_discovery::Record;

use crate::error::{Failure, ValkeyResult};

/// The most bytes one record may have as JSON.
pub const RECORD_BYTES_MAX: usize = 65_536;
/// The shortest TTL; shorter requests get this one.
pub const TTL_MIN: Duration = Duration::from_secs(1);
/// How many words stand before a record's JSON: see `lua/group.lua`.
const WORDS: usize = 7;

pub(crate) fn encode(member: &Member) -> ValkeyResult<String> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(Failure::Unwritable)
}

/// The member of that id, from what is stored of it.
pub(crate) fn decode(id: &[u8], stored: &[u8]) -> ValkeyResult<Member> {
    let shown = String::from_utf8_lossy(id);
    let unreadable = |why: String| Failure::Unreadable { instance_id: shown.clone().into_owned(), why };
    let id = std::str::from_utf8(id).map_err(|error| unreadable(error.to_string()))?;
    let instance_id = InstanceId::new(id).map_err(|error| unreadable(error.to_string()))?;
    let stored = std::str::from_utf8(stored).map_err(|error| unreadable(error.to_string()))?;
    let mut words = stored.splitn(WORDS + 1, ' ');
    let joined = words.next().and_then(|joined| joined.parse().ok());
    let (Some(joined), Some(json)) = (joined, words.nth(WORDS - 1)) else {
        return Err(unreadable("it was not written by shardwise".into()));
    };
    Record::decode(instance_id, joined, json).map_err(|error| unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_behind_its_seven_words() {
        let member = Member { zone: Some("a b".into()), ..Member::named(InstanceId::new("a b").unwrap()) };
        let stored = format!("12 00000000000000ff live 0a 7 3000000 0b {}", encode(&member).unwrap());
        let read = decode(b"a b", stored.as_bytes()).unwrap();
        assert_eq!((read.joined, read.zone.as_deref()), (12, Some("a b")));
        for stored in ["", "12", "x y", "12 ff live 0a 7 3000000", "12 ff live 0a 7 3000000 0b {}"] {
            assert!(decode(b"a", stored.as_bytes()).is_err(), "{stored}");
        }
        assert!(decode(b"\xff", stored.as_bytes()).is_err() && decode(b"a", b"\xff").is_err());
    }
}
