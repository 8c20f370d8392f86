//! Where another fleet keeps one key for each of its workers.

use shardwise_core::InstanceId;

use crate::error::{Failure, ValkeyResult};

/// The most bytes of the beginning that the keys share.
const BEGINNING_BYTES_MAX: usize = 255;

/// What the keys of the other fleet's workers begin with; the rest of a key is the worker's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberKeys(String);

impl MemberKeys {
    /// `own` is the beginning of shardwise's own keys.
    pub(crate) fn new(beginning: &str, own: &str) -> ValkeyResult<Self> {
        let refused = |why: &str| Err(Failure::Setting { setting: "member_keys", why: format!("is {beginning:?}: {why}") });
        match beginning {
            "" => refused("write what the other fleet's keys begin with, such as \"fleet:member:\""),
            _ if beginning.len() > BEGINNING_BYTES_MAX => refused("at most 255 bytes are allowed"),
            _ if own.starts_with(beginning) => refused("the keys of discovery.valkey.prefix begin so too, and they are not workers"),
            _ => Ok(Self(beginning.to_owned())),
        }
    }

    /// As a pattern of SCAN.
    pub(crate) fn pattern(&self) -> String {
        let mut pattern = String::with_capacity(self.0.len() + 1);
        for character in self.0.chars() {
            if "*?[]\\^".contains(character) {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern.push('*');
        pattern
    }

    pub(crate) fn id(&self, key: &[u8]) -> Option<InstanceId> {
        let id = key.strip_prefix(self.0.as_bytes())?;
        InstanceId::new(std::str::from_utf8(id).ok()?).ok()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_beginning_is_the_id() {
        let keys = MemberKeys::new("fleet:[a]*:", "shardwise:").unwrap();
        assert_eq!(keys.pattern(), "fleet:\\[a\\]\\*:*");
        assert_eq!(keys.id(b"fleet:[a]*:eu:1").unwrap().as_str(), "eu:1");
        for other in [&b"fleet:[a]*:"[..], b"fleet:a:1", b"", b"fleet:[a]*:\xff"] {
            assert_eq!(keys.id(other), None);
        }
        for wrong in ["", "shard", "shardwise:", &"x".repeat(256)] {
            let said = MemberKeys::new(wrong, "shardwise:").unwrap_err().to_string();
            assert!(said.starts_with("discovery.valkey.member_keys is "), "{said}");
        }
    }
}
