//! Where everything stands in the bucket (the table in `docs.md`). Nothing else knows how a subject is written.
//!
//! A name is one token of a subject. One with other characters than letters, digits, `_` and `-` is written as `=` and its base64url, and
//! no other name begins with `=`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use shardwise_core::{ClaimName, GroupName, InstanceId, Resource, SLOTS_MAX};

use crate::error::{Failure, NatsResult};

/// The most characters of a bucket's name.
const BUCKET_MAX: usize = 64;
/// How many subjects all probes of a group share, so that processes that are gone leave no more than these.
const PROBE_SUBJECTS: u32 = 256;

/// The key-value bucket with everything: a stream and the beginning of its subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    name: String,
    stream: String,
}

impl Bucket {
    pub(crate) fn new(name: &str) -> NatsResult<Self> {
        Self::of_setting("bucket", name)
    }

    /// The bucket that this setting names.
    pub(crate) fn of_setting(setting: &'static str, name: &str) -> NatsResult<Self> {
        if name.is_empty() || name.len() > BUCKET_MAX || !name.bytes().all(is_plain) {
            let why = format!("is {name:?}; use 1 to {BUCKET_MAX} letters, digits, - and _");
            return Err(Failure::Setting { setting, why });
        }
        Ok(Self { name: name.to_owned(), stream: format!("KV_{name}") })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The stream of the bucket.
    pub(crate) fn stream(&self) -> &str {
        &self.stream
    }

    /// All subjects of the bucket.
    pub(crate) fn subjects(&self) -> String {
        format!("$KV.{}.>", self.name)
    }

    pub(crate) fn group(&self, group: &GroupName) -> GroupSubjects {
        GroupSubjects(format!("$KV.{}.{}.", self.name, token(group.as_str())))
    }
}

/// The subjects of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupSubjects(String);

/// What stands at a subject of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SubjectPart {
    Beat(InstanceId),
    Member(InstanceId),
    Claim(Resource),
    Note(ClaimName),
    /// A probe, or what this version does not know.
    Other,
}

impl GroupSubjects {
    pub(crate) fn beat(&self, id: &InstanceId) -> String {
        format!("{}b.{}", self.0, token(id.as_str()))
    }

    pub(crate) fn member(&self, id: &InstanceId) -> String {
        format!("{}m.{}", self.0, token(id.as_str()))
    }

    pub(crate) fn claim(&self, resource: &Resource) -> String {
        match resource {
            Resource::Slot(slot) => format!("{}c.slot.{slot}", self.0),
            Resource::Name(name) => format!("{}c.name.{}", self.0, token(name.as_str())),
        }
    }

    pub(crate) fn note(&self, name: &ClaimName) -> String {
        format!("{}n.{}", self.0, token(name.as_str()))
    }

    pub(crate) fn claim_store(&self) -> String {
        format!("{}s", self.0)
    }

    pub(crate) fn probe(&self, process: u32) -> String {
        format!("{}p.{}", self.0, process % PROBE_SUBJECTS)
    }

    /// Every beat.
    pub(crate) fn beats(&self) -> String {
        format!("{}b.*", self.0)
    }

    pub(crate) fn members(&self) -> String {
        format!("{}m.*", self.0)
    }

    pub(crate) fn claims(&self) -> String {
        format!("{}c.>", self.0)
    }

    pub(crate) fn notes(&self) -> String {
        format!("{}n.*", self.0)
    }

    /// What stands at a subject; `None` if it is none of this group.
    pub(crate) fn part(&self, subject: &str) -> Option<SubjectPart> {
        let mut tokens = subject.strip_prefix(&self.0)?.split('.');
        let (kind, first, second, more) = (tokens.next()?, tokens.next(), tokens.next(), tokens.next());
        let id = |encoded: &str| InstanceId::new(name(encoded)?).ok();
        let part = match (kind, first, second, more) {
            ("b", Some(encoded), None, None) => id(encoded).map(SubjectPart::Beat),
            ("m", Some(encoded), None, None) => id(encoded).map(SubjectPart::Member),
            ("c", Some("slot"), Some(slot), None) => slot_of(slot).map(SubjectPart::Claim),
            ("c", Some("name"), Some(encoded), None) => claim_name(encoded).map(|name| SubjectPart::Claim(Resource::Name(name))),
            ("n", Some(encoded), None, None) => claim_name(encoded).map(SubjectPart::Note),
            _ => None,
        };
        Some(part.unwrap_or(SubjectPart::Other))
    }
}

fn slot_of(text: &str) -> Option<Resource> {
    let slot: u32 = text.parse().ok().filter(|slot| *slot < SLOTS_MAX)?;
    // One way of writing for each.
    (slot.to_string() == text).then_some(Resource::Slot(slot))
}

fn claim_name(encoded: &str) -> Option<ClaimName> {
    ClaimName::new(name(encoded)?).ok()
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn token(name: &str) -> String {
    if !name.is_empty() && name.bytes().all(is_plain) { name.to_owned() } else { format!("={}", URL_SAFE_NO_PAD.encode(name)) }
}

/// The name that a token stands for. Each name has one token: what is written in another way is none of ours.
fn name(token: &str) -> Option<String> {
    let name = match token.strip_prefix('=') {
        Some(encoded) => String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?,
        None => token.to_owned(),
    };
    (self::token(&name) == token).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(group: &str) -> GroupSubjects {
        Bucket::new("b").unwrap().group(&GroupName::new(group).unwrap())
    }

    #[test]
    fn every_name_is_one_token_and_comes_back() {
        let longest = "ü".repeat(127);
        for text in ["a", "a b", "a.b", "*", ">", "$", "=", "=YQ", "🦀", "A", "a\nb", "..", &longest] {
            let id = InstanceId::new(text).unwrap();
            let subjects = subjects(text);
            for (subject, part) in
                [(subjects.beat(&id), SubjectPart::Beat(id.clone())), (subjects.member(&id), SubjectPart::Member(id.clone()))]
            {
                assert_eq!(subject.split('.').count(), 5, "{subject}");
                assert!(subject.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'*' | b'>')), "{subject}");
                assert_eq!(subjects.part(&subject), Some(part));
            }
            let note = ClaimName::new(text).unwrap();
            assert_eq!(subjects.part(&subjects.note(&note)), Some(SubjectPart::Note(note.clone())));
            let name = Resource::Name(note);
            assert_eq!(subjects.part(&subjects.claim(&name)), Some(SubjectPart::Claim(name)));
        }
        let slot = Resource::Slot(7);
        assert_eq!(subjects("g").part(&subjects("g").claim(&slot)), Some(SubjectPart::Claim(slot)));
    }

    #[test]
    fn groups_do_not_see_each_other_and_what_is_unknown_is_left_alone() {
        let id = InstanceId::new("x").unwrap();
        for other in ["ga", "g a", "G", "=g"] {
            assert_eq!(subjects("g").part(&subjects(other).beat(&id)), None, "{other}");
        }
        for rest in ["p.3", "s", "z.1", "c.slot.07", "c.slot.99999999", "b.=%", "b.=YQ", "b.a$b", "b.a.b", "c.name"] {
            assert_eq!(subjects("g").part(&format!("$KV.b.g.{rest}")), Some(SubjectPart::Other), "{rest}");
        }
    }

    #[test]
    fn a_bucket_has_a_plain_name() {
        assert_eq!(Bucket::new("share-d_1").unwrap().stream(), "KV_share-d_1");
        for wrong in ["", "a.b", "a b", "ü", &"x".repeat(65)] {
            let said = Bucket::new(wrong).unwrap_err().to_string();
            assert!(said.starts_with("discovery.nats.bucket is "), "{said}");
        }
    }
}
