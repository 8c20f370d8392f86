//! Where things stand in etcd (the table in `docs.md`). Nothing else knows how a key is written.
//!
//! Names are percent-encoded where they need it, so that a group's keys are exactly those that begin with its folder.

use shardwise_core::{ClaimName, GroupName, InstanceId, Resource, SLOTS_MAX};
use shardwise_discovery::{RecordId, percent_encoded};

use crate::error::Failure;

/// The two keys of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) member: Vec<u8>,
    pub(crate) knock: Vec<u8>,
}

/// The records or the claims of one group: all keys that begin with this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder(Vec<u8>);

/// The place of all keys: begins with `/`, does not end with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefix(String);

impl Prefix {
    pub(crate) fn new(prefix: &str) -> Result<Self, Failure> {
        let refused = |why: &str| Err(Failure::Setting { setting: "prefix", why: format!("is {prefix:?}: {why}") });
        let trimmed = prefix.trim_end_matches('/');
        match trimmed {
            "" => refused("it needs a name, such as \"/shardwise\""),
            _ if !trimmed.starts_with('/') => refused("it begins with a slash, such as \"/shardwise\""),
            _ if trimmed.len() > PREFIX_BYTES_MAX => refused("at most 255 bytes are allowed"),
            _ if trimmed.contains(char::is_control) => refused("it must not contain control characters"),
            _ => Ok(Self(trimmed.to_owned())),
        }
    }

    pub(crate) fn members(&self, group: &GroupName) -> Folder {
        self.folder("members", group)
    }

    pub(crate) fn claims(&self, group: &GroupName) -> Folder {
        self.folder("claims", group)
    }

    fn folder(&self, kind: &str, group: &GroupName) -> Folder {
        Folder(format!("{}/v1/{kind}/{}/", self.0, encoded(group.as_str())).into_bytes())
    }

    pub(crate) fn claim_store(&self, group: &GroupName) -> Vec<u8> {
        format!("{}/v1/claim-stores/{}", self.0, encoded(group.as_str())).into_bytes()
    }

    pub(crate) fn note(&self, group: &GroupName, name: &ClaimName) -> Vec<u8> {
        format!("{}/v1/notes/{}/{}", self.0, encoded(group.as_str()), encoded(name.as_str())).into_bytes()
    }

    pub(crate) fn keys(&self, record_id: &RecordId) -> Keys {
        let name = format!("{}/{}", encoded(record_id.group.as_str()), encoded(record_id.instance_id.as_str()));
        let key = |folder| format!("{}/v1/{folder}/{name}", self.0).into_bytes();
        Keys { member: key("members"), knock: key("knocks") }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The most bytes a prefix may have.
const PREFIX_BYTES_MAX: usize = 255;

impl Folder {
    pub(crate) fn key(&self) -> Vec<u8> {
        self.0.clone()
    }

    /// The first key after the folder's. Its last byte is a slash, which has a successor.
    pub(crate) fn end(&self) -> Vec<u8> {
        let mut end = self.0.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }

    /// Whose key it is.
    pub(crate) fn member(&self, key: &[u8]) -> Result<InstanceId, String> {
        let rest = key.strip_prefix(self.0.as_slice()).ok_or("its key is of another group")?;
        let name = decoded(rest).ok_or("its key is not one of ours")?;
        InstanceId::new(name).map_err(|error| error.to_string())
    }

    pub(crate) fn claim(&self, resource: &Resource) -> Vec<u8> {
        let name = match resource {
            Resource::Slot(slot) => format!("slots/{slot}"),
            Resource::Name(name) => format!("names/{}", encoded(name.as_str())),
        };
        [self.0.as_slice(), name.as_bytes()].concat()
    }

    /// What the claim with this key is on; nothing for a key that `claim` never gives.
    pub(crate) fn resource(&self, key: &[u8]) -> Option<Resource> {
        let rest = key.strip_prefix(self.0.as_slice())?;
        let resource = if let Some(slot) = rest.strip_prefix(b"slots/") {
            let slot = std::str::from_utf8(slot).ok()?.parse().ok()?;
            (slot < SLOTS_MAX).then_some(Resource::Slot(slot))
        } else {
            ClaimName::new(decoded(rest.strip_prefix(b"names/")?)?).ok().map(Resource::Name)
        };
        resource.filter(|resource| self.claim(resource) == key)
    }
}

/// The name without what would end it in a key.
fn encoded(name: &str) -> String {
    percent_encoded(name, &['/'])
}

/// The name that was encoded; nothing for what `encoded` never writes.
fn decoded(text: &[u8]) -> Option<String> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.iter());
    while let Some(&byte) = rest.next() {
        bytes.push(if byte == b'%' { digit(rest.next())? << 4 | digit(rest.next())? } else { byte });
    }
    let name = String::from_utf8(bytes).ok()?;
    (encoded(&name).as_bytes() == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(group: &str) -> Folder {
        Prefix::new("/p").unwrap().members(&GroupName::new(group).unwrap())
    }

    fn claims(group: &str) -> Folder {
        Prefix::new("/p").unwrap().claims(&GroupName::new(group).unwrap())
    }

    #[test]
    fn every_claim_comes_back_and_nothing_else_is_one() {
        let names = ["a", "a/b", "slots/1", "%", "1", "🦀", "a b"];
        let names = names.map(|name| Resource::Name(ClaimName::new(name).unwrap()));
        for resource in [0, 7, SLOTS_MAX - 1].map(Resource::Slot).into_iter().chain(names) {
            assert_eq!(claims("g").resource(&claims("g").claim(&resource)), Some(resource));
        }
        for key in
            ["", "a", "slots", "slots/", "slots/-1", "slots/+1", "slots/01", "slots/65536", "slots/1/2", "names/", "names/a/b", "names/%2f"]
        {
            let key = [claims("g").key(), key.as_bytes().to_vec()].concat();
            assert_eq!(claims("g").resource(&key), None, "{key:?}");
        }
        assert_eq!(claims("g").resource(&claims("h").claim(&Resource::Slot(1))), None, "another group's");
    }

    #[test]
    fn every_name_comes_back() {
        for name in ["a", "a b", "a/b", "/", "%2F", "🦀", "a\nb", "%", "~", "\u{7f}", ".."] {
            let record_id = RecordId {
                group: GroupName::new(name).unwrap(),
                instance_id: InstanceId::new(name).unwrap(),
                incarnation: shardwise_core::Incarnation::new(1),
            };
            let key = Prefix::new("/p").unwrap().keys(&record_id).member;
            assert_eq!(folder(name).member(&key).unwrap().as_str(), name);
            assert!(key.iter().all(|byte| *byte > b' ' && *byte != 0x7f), "{key:?} can be typed");
        }
    }

    #[test]
    fn no_folder_is_inside_another() {
        let names = ["a", "a/", "a/a", "aa", "A", "a ", "a%", "a%2F"];
        for one in names {
            for other in names {
                let inside = folder(other).key().starts_with(&folder(one).key());
                assert_eq!(inside, one == other, "{other:?} in {one:?}");
            }
        }
        assert_eq!(folder("a").end(), b"/p/v1/members/a0");
    }

    #[test]
    fn what_shardwise_did_not_write_is_no_name() {
        for key in ["", "a/b", "%2f", "%41", "%", "%4", "%FF"] {
            let key = [folder("g").key(), key.as_bytes().to_vec()].concat();
            assert!(folder("g").member(&key).is_err(), "{key:?}");
        }
    }

    #[test]
    fn a_prefix_is_a_path() {
        assert_eq!(Prefix::new("/a/b//").unwrap().as_str(), "/a/b");
        for (prefix, why) in [("", "needs a name"), ("///", "needs a name"), ("a", "begins with a slash"), ("/a\n", "control")] {
            let said = Prefix::new(prefix).unwrap_err().to_string();
            assert!(said.starts_with("discovery.etcd.prefix is") && said.contains(why) && !said.contains('\n'), "{said}");
        }
    }
}
