//! Where things stand on the server (the table in `docs.md`). Nothing else knows how a key is written.
//!
//! All keys of a group have its name in braces: one hash tag. Names are percent-encoded where they need it, so that the braces end where
//! the name does, and every key can be typed.

use shardwise_core::GroupName;
use shardwise_discovery::{RecordId, percent_encoded};

use crate::error::{Failure, ValkeyResult};

/// The most bytes a prefix may have.
const PREFIX_BYTES_MAX: usize = 255;

/// The beginning of all keys and channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyPrefix(String);

impl KeyPrefix {
    pub(crate) fn new(prefix: &str) -> ValkeyResult<Self> {
        let refused = |why: &str| Err(Failure::Setting { setting: "prefix", why: format!("is {prefix:?}: {why}") });
        match prefix {
            "" => refused("it needs a name, such as \"shardwise\""),
            _ if prefix.len() > PREFIX_BYTES_MAX => refused("at most 255 bytes are allowed"),
            // Patterns of ACLs have a meaning for the latter, and spaces separate their rules.
            _ if prefix.contains(|c: char| c.is_control() || " {}*?[]\\".contains(c)) => {
                refused("it must not contain spaces, control characters or any of { } * ? [ ] \\")
            }
            _ => Ok(Self(prefix.to_owned())),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn key(&self, group: &GroupName, what: &str) -> String {
        format!("{}:v1:{{{}}}:{what}", self.0, encoded(group.as_str()))
    }

    /// The keys that every script of the group is called with.
    pub(crate) fn group(&self, group: &GroupName) -> Vec<String> {
        ["group", "members", "deadlines"].map(|what| self.key(group, what)).into()
    }

    /// Where a life of this member that has deregistered is remembered for a while.
    pub(crate) fn farewell(&self, record_id: &RecordId) -> String {
        self.key(&record_id.group, &format!("left:{}", encoded(record_id.instance_id.as_str())))
    }

    pub(crate) fn notes(&self, group: &GroupName) -> String {
        self.key(group, "notes")
    }

    /// The channel of the group's changes. Channels are common to all databases of a server.
    pub(crate) fn channel(&self, group: &GroupName, database: u16) -> String {
        self.key(group, &format!("news:{database}"))
    }
}

/// The name without what would end the hash tag.
fn encoded(name: &str) -> String {
    percent_encoded(name, &['{', '}'])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shardwise_core::{Incarnation, InstanceId};

    use super::*;

    fn prefix() -> KeyPrefix {
        KeyPrefix::new("p").unwrap()
    }

    #[test]
    fn no_two_names_share_a_key_and_all_can_be_typed() {
        let names = ["a", "A", "a b", "a%20b", "{a}", "a}", "}", "{", "a:v1", "%", "%25", "🦀", "a\nb", "\u{7f}", "a:left:b", "notes"];
        let (mut keys, mut count) = (BTreeSet::new(), 0);
        for name in names {
            let group = GroupName::new(name).unwrap();
            let mut of_group = prefix().group(&group);
            of_group.extend([prefix().notes(&group), prefix().channel(&group, 0), prefix().channel(&group, 7)]);
            for id in names {
                let (instance_id, incarnation) = (InstanceId::new(id).unwrap(), Incarnation::new(1));
                of_group.push(prefix().farewell(&RecordId { group: group.clone(), instance_id, incarnation }));
            }
            for key in of_group {
                let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag.to_owned());
                assert_eq!(tag, Some(encoded(name)), "{key}: the name is the hash tag");
                assert!(key.bytes().all(|byte| byte > b' ' && byte != 0x7f), "{key:?}");
                keys.insert(key);
                count += 1;
            }
        }
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn a_prefix_has_no_pattern_in_it() {
        for (prefix, why) in [("", "needs a name"), ("a*", "must not contain"), ("a{b}", "must not contain"), ("a b", "must not contain")] {
            let said = KeyPrefix::new(prefix).unwrap_err().to_string();
            assert!(said.starts_with("discovery.valkey.prefix is") && said.contains(why), "{said}");
        }
        assert!(KeyPrefix::new(&"x".repeat(256)).is_err());
    }
}
