//! The scripts' texts, their names on the server, and their answers.

use redis::Value;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use shardwise_discovery::one_line;

use crate::error::{Failure, ValkeyResult};

/// A script, as EVAL and EVALSHA take it.
#[derive(Debug)]
pub(crate) struct LuaScript {
    pub(crate) text: String,
    pub(crate) sha: String,
}

/// With this line the server refuses the script on a replica, without memory and where it cannot write, before it runs.
const SHEBANG: &str = "#!lua\n";
const GROUP: &str = include_str!("lua/group.lua");

impl LuaScript {
    fn alone(body: &str) -> Self {
        let text = format!("{SHEBANG}{body}");
        // The protocol names scripts by this digest; nothing is secret here.
        let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        let sha = digest.as_ref().iter().fold(String::new(), |sha, byte| sha + &format!("{byte:02x}"));
        Self { text, sha }
    }

    fn of_group(body: &str) -> Self {
        Self::alone(&format!("{GROUP}\n{body}"))
    }
}

/// All scripts.
#[derive(Debug)]
pub(crate) struct ScriptSet {
    pub(crate) register: LuaScript,
    pub(crate) renew: LuaScript,
    pub(crate) update: LuaScript,
    pub(crate) step_away: LuaScript,
    pub(crate) deregister: LuaScript,
    pub(crate) list: LuaScript,
    pub(crate) poll: LuaScript,
    pub(crate) note: LuaScript,
    pub(crate) write_note: LuaScript,
}

impl ScriptSet {
    pub(crate) fn new() -> Self {
        Self {
            register: LuaScript::of_group(include_str!("lua/register.lua")),
            renew: LuaScript::of_group(include_str!("lua/renew.lua")),
            update: LuaScript::of_group(include_str!("lua/update.lua")),
            step_away: LuaScript::of_group(include_str!("lua/step_away.lua")),
            deregister: LuaScript::of_group(include_str!("lua/deregister.lua")),
            list: LuaScript::of_group(include_str!("lua/list.lua")),
            poll: LuaScript::of_group(include_str!("lua/poll.lua")),
            note: LuaScript::alone(include_str!("lua/note.lua")),
            write_note: LuaScript::alone(include_str!("lua/write_note.lua")),
        }
    }
}

/// What a script of a group answers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GroupAnswer {
    /// Of which store, and since which failover or restart of it. Empty: there is no such group.
    pub(crate) era: String,
    pub(crate) revision: u64,
    /// The history of the server's data.
    pub(crate) origin: String,
    /// In how many microseconds the next record is due.
    pub(crate) due_us: Option<u64>,
    pub(crate) status: String,
    /// What else the script has to say.
    pub(crate) rest: Vec<Value>,
}

impl GroupAnswer {
    pub(crate) fn read(place: &str, answer: Value) -> ValkeyResult<Self> {
        let strange = |what: &str| Failure::Refused { place: place.to_owned(), why: format!("a script's answer has {what}") };
        let Value::Array(parts) = answer else { return Err(strange("no parts")) };
        let mut parts = parts.into_iter();
        let mut next = |what: &str| parts.next().and_then(text).ok_or_else(|| strange(what));
        let (era, revision, origin) = (next("no era")?, next("no revision")?, next("no origin")?);
        let (due, status) = (next("no time")?, next("no status")?);
        let revision = revision.parse().map_err(|_| strange("a revision that is not a number"))?;
        Ok(Self { era, revision, origin, due_us: due.parse().ok(), status, rest: parts.collect() })
    }

    /// The ids and records that a list consists of.
    pub(crate) fn records(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Some(Value::Array(all)) = self.rest.into_iter().next() else { return Vec::new() };
        let mut all = all.into_iter().filter_map(bytes);
        let mut records = Vec::new();
        while let (Some(id), Some(record)) = (all.next(), all.next()) {
            records.push((id, record));
        }
        records
    }
}

pub(crate) fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

/// A value as text; what is none is shown on one line.
pub(crate) fn text(value: Value) -> Option<String> {
    let bytes = bytes(value)?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| one_line(&String::from_utf8_lossy(error.as_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_script_is_named_by_the_digest_of_its_text() {
        // As `printf '#!lua\nreturn 1' | sha1sum` says.
        assert_eq!(LuaScript::alone("return 1").sha, "cb70127618f0b0be70c53cf6bfcfa54a29d9b0c0");
        let scripts = ScriptSet::new();
        assert!(scripts.renew.text.starts_with("#!lua\n-- What the scripts of a group begin with."));
        assert_ne!(scripts.renew.sha, scripts.poll.sha);
    }

    #[test]
    fn an_answer_has_five_parts_and_what_the_script_adds() {
        let head = || ["0a", "7", "ff", "1500", "OK"].map(bulk).to_vec();
        let answer = GroupAnswer::read("h:1", Value::Array(head())).unwrap();
        assert_eq!((answer.era.as_str(), answer.revision, answer.due_us, answer.rest.len()), ("0a", 7, Some(1_500), 0));
        let mut listed = head();
        listed.push(Value::Array(["a", "1 2", "b", "3 4"].map(bulk).to_vec()));
        let records = GroupAnswer::read("h:1", Value::Array(listed)).unwrap().records();
        assert_eq!(records, [(b"a".to_vec(), b"1 2".to_vec()), (b"b".to_vec(), b"3 4".to_vec())]);
        let mut nobody = head();
        nobody[3] = bulk("-1");
        assert_eq!(GroupAnswer::read("h:1", Value::Array(nobody)).unwrap().due_us, None);
        assert!(GroupAnswer::read("h:1", Value::Array(vec![bulk("0a")])).is_err());
        assert!(GroupAnswer::read("h:1", Value::Nil).is_err());
    }
}
