//! A group as this process knows it. Pure: it takes lists and changes, and shows the members.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardwise_core::{InstanceId, MEMBERS_MAX, Member, View};

use crate::error::{Failure, ValkeyResult};
use crate::records::decode;

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeOutcome {
    /// The mirror has changed.
    Applied,
    /// It was known already.
    Known,
    /// Something before it is missing, or the store is another one: the group must be read anew.
    Missed,
}

/// All members as of one revision.
#[derive(Debug, Default)]
pub(crate) struct MemberMirror {
    era: String,
    revision: u64,
    members: BTreeMap<InstanceId, Member>,
}

impl MemberMirror {
    /// From a list.
    pub(crate) fn of_list(era: String, revision: u64, records: &[(Vec<u8>, Vec<u8>)]) -> ValkeyResult<Self> {
        if records.len() > MEMBERS_MAX as usize {
            return Err(Failure::TooManyMembers);
        }
        let member = |(id, record): &(Vec<u8>, Vec<u8>)| decode(id, record).map(|member| (member.instance_id.clone(), member));
        Ok(Self { era, revision, members: records.iter().map(member).collect::<ValkeyResult<_>>()? })
    }

    pub(crate) const fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether everything that the store had at that revision is here.
    pub(crate) fn has_reached(&self, era: &str, revision: u64) -> bool {
        self.era == era && self.revision >= revision
    }

    /// Takes a message: era and revision, then ids and records by turns; an empty record is one that has ended.
    pub(crate) fn apply(&mut self, message: &[u8]) -> ValkeyResult<ChangeOutcome> {
        let mut parts = message.split(|byte| *byte == 0);
        let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse::<u64>().ok();
        let (Some(era), Some(revision)) = (parts.next(), parts.next().and_then(number)) else { return Ok(ChangeOutcome::Missed) };
        if era != self.era.as_bytes() || revision > self.revision + 1 {
            return Ok(ChangeOutcome::Missed);
        }
        if revision <= self.revision {
            return Ok(ChangeOutcome::Known);
        }
        while let (Some(id), Some(record)) = (parts.next(), parts.next()) {
            if record.is_empty() {
                if let Some(id) = std::str::from_utf8(id).ok().and_then(|id| InstanceId::new(id).ok()) {
                    self.members.remove(&id);
                }
            } else {
                let member = decode(id, record)?;
                self.members.insert(member.instance_id.clone(), member);
            }
        }
        self.revision = revision;
        Ok(ChangeOutcome::Applied)
    }

    pub(crate) fn view(&self, foreign: &[InstanceId]) -> Arc<View> {
        Arc::new(View::new(self.revision, self.members.values().cloned().collect()).with_foreign(foreign.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"schema":1,"incarnation":"00000000000000ff","state":"active"}"#;

    fn record(joined: u64) -> String {
        format!("{joined} 00000000000000ff live 0a 7 3000000 0b {JSON}")
    }

    fn ids(mirror: &MemberMirror) -> Vec<String> {
        mirror.view(&[]).members().iter().map(|member| member.instance_id.to_string()).collect()
    }

    fn changed_by(mirror: &mut MemberMirror, parts: &[&str]) -> ChangeOutcome {
        mirror.apply(parts.join("\0").as_bytes()).unwrap()
    }

    #[test]
    fn changes_follow_each_other_without_a_gap() {
        let mut mirror = MemberMirror::of_list("e".into(), 4, &[(b"a".to_vec(), record(1).into_bytes())]).unwrap();
        assert_eq!(changed_by(&mut mirror, &["e", "4", "a", ""]), ChangeOutcome::Known);
        assert_eq!(changed_by(&mut mirror, &["e", "5", "b", &record(5), "a", ""]), ChangeOutcome::Applied);
        assert_eq!((ids(&mirror), mirror.revision()), (vec!["b".to_owned()], 5));
        assert_eq!(changed_by(&mut mirror, &["e", "6", "b", "", "b", &record(6)]), ChangeOutcome::Applied);
        assert_eq!(ids(&mirror), ["b"], "one that ended and came back in one step");
        for missed in [&["e", "8", "b", ""][..], &["f", "7"], &["e"], &["e", "x"], &[""]] {
            assert_eq!(changed_by(&mut mirror, missed), ChangeOutcome::Missed, "{missed:?}");
        }
        assert!(mirror.has_reached("e", 6) && !mirror.has_reached("e", 7) && !mirror.has_reached("f", 6));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error_and_costs_nobody_the_place() {
        let mut mirror = MemberMirror::of_list("e".into(), 4, &[(b"a".to_vec(), record(1).into_bytes())]).unwrap();
        assert!(mirror.apply(b"e\x005\0b\0nonsense").is_err());
        assert!(!mirror.has_reached("e", 5) && ids(&mirror) == ["a"]);
        assert!(MemberMirror::of_list("e".into(), 4, &[(b"a".to_vec(), b"nonsense".to_vec())]).is_err());
    }
}
