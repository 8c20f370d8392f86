//! How names travel: into Consul's names, into paths and into filter expressions.
//!
//! Consul takes any text as the name or the id of a service, but its HTTP interface cannot ask for every text again. What it can hold stays
//! as it is; the rest is escaped (`docs.md`). The rules are a wire format: every version of every worker must escape alike.

use std::fmt::Write as _;

use shardwise_core::{GroupName, InstanceId, hash_bytes};
use shardwise_discovery::RecordId;

/// Names that begin like this are always escaped, so that no escaped name can be anybody's real one.
const ESCAPED: &str = "shardwise:";

/// Non-ASCII letters and signs that every version of Consul from 1.8 on prints, and so takes in a path. Fixed for ever.
const PRINTABLE: [(char, char); 16] = [
    ('\u{a1}', '\u{ac}'),
    ('\u{ae}', '\u{2af}'),
    ('\u{386}', '\u{386}'),
    ('\u{388}', '\u{38a}'),
    ('\u{38e}', '\u{3a1}'),
    ('\u{3a3}', '\u{3ce}'),
    ('\u{400}', '\u{481}'),
    ('\u{5d0}', '\u{5ea}'),
    ('\u{620}', '\u{64a}'),
    ('\u{e01}', '\u{e30}'),
    ('\u{3041}', '\u{3096}'),
    ('\u{30a1}', '\u{30fa}'),
    ('\u{4e00}', '\u{9fa5}'),
    ('\u{ac00}', '\u{d7a3}'),
    ('\u{1f300}', '\u{1f579}'),
    ('\u{1f980}', '\u{1f984}'),
];

/// The name of the group's service: the group's own name where Consul can be asked for it.
pub(crate) fn service_name(group: &GroupName) -> String {
    let name = group.as_str();
    if is_addressable(name) { name.to_owned() } else { format!("{ESCAPED}{}", escape(name)) }
}

/// The id of the member's service, where Consul can be asked for it.
pub(crate) fn service_id(instance_id: &InstanceId) -> Option<String> {
    let id = instance_id.as_str();
    is_addressable(id).then(|| id.to_owned())
}

/// The id of the member's service where the usual one is not available: unique on every agent, even if letters differ only in case.
pub(crate) fn other_service_id(group: &GroupName, instance_id: &InstanceId) -> String {
    format!("{ESCAPED}{}:{}", escape(instance_id.as_str()), escape(group.as_str()))
}

/// How the ids of all checks begin that this incarnation of the member makes. Short, since they are written into metadata.
pub(crate) fn check_prefix(record_id: &RecordId) -> String {
    let who = hash_bytes(format!("{}\0{}", record_id.group, record_id.instance_id).as_bytes());
    format!("{ESCAPED}{who:016x}:{}:", record_id.incarnation)
}

/// The registration lock's key. One for all groups, since an agent has one service of an id; one for both cases of a letter.
pub(crate) fn lock_key(instance_id: &InstanceId) -> String {
    format!("shardwise/guard/{}", escape(&instance_id.as_str().to_lowercase()))
}

/// The holder of a registration lock. Groups share a lock, and their members' incarnations need not differ.
pub(crate) fn lock_holder(record_id: &RecordId) -> u64 {
    hash_bytes(check_prefix(record_id).as_bytes())
}

/// Whether Consul can store the name unchanged and answer queries for it. It cannot for `consul`: its servers register a service of
/// that name, which an instance with that id or name would replace.
fn is_addressable(name: &str) -> bool {
    let printable = |c: char| matches!(c, ' '..='~') || PRINTABLE.iter().any(|&(first, last)| (first..=last).contains(&c));
    let whole = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
    let segments = name.strip_suffix('/').unwrap_or(name);
    let own = name.eq_ignore_ascii_case("consul");
    !own && !name.starts_with(ESCAPED) && name.chars().all(printable) && segments.split('/').all(whole)
}

/// Only small letters, digits and `-_.` stay, so that two texts which differ in case only stay different.
fn escape(text: &str) -> String {
    percent(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte))
}

/// A text as one part of a key. Dots are not in it, since paths of Consul's interface cannot have parts of dots only.
pub(crate) fn key_part(text: &str) -> String {
    percent(text, |byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// The text of which [`key_part`] made this, if it can be one.
pub(crate) fn key_text(part: &str) -> Option<String> {
    let mut bytes = part.bytes();
    let mut text = Vec::with_capacity(part.len());
    while let Some(byte) = bytes.next() {
        let digit = |digit: Option<u8>| char::from(digit?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        text.push(if byte == b'%' { digit(bytes.next())? << 4 | digit(bytes.next())? } else { byte });
    }
    String::from_utf8(text).ok()
}

/// One segment of a path, or one value of a query.
pub(crate) fn segment(text: &str) -> String {
    percent(text, |byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte))
}

fn percent(text: &str, keep: impl Fn(u8) -> bool) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if keep(byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// A string in a filter expression, every character of it escaped but letters and digits.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.chars().fold(String::from('"'), |mut out, c| {
        if c.is_ascii_alphanumeric() {
            out.push(c);
        } else {
            let _ = write!(out, "\\U{:08x}", u32::from(c));
        }
        out
    });
    quoted + "\""
}

/// A regular expression, as a string in a filter expression, that finds the text in either case.
pub(crate) fn any_case(text: &str) -> String {
    let pattern = text.chars().fold(String::from("\"(?i)^"), |mut out, c| {
        let _ = write!(out, "\\\\x{{{:x}}}", u32::from(c));
        out
    });
    pattern + "$\""
}

#[cfg(test)]
mod tests {
    use shardwise_core::Incarnation;

    use super::*;

    fn group(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    #[test]
    fn what_consul_can_be_asked_for_stays_as_it_is() {
        for name in ["outbox_publishers", "A b", "rack/1", "x/", "🦀", "ünïcode", "%2F", "*", "'; --", "a?b#c", "漢字", "consul-1"] {
            assert_eq!(service_name(&group(name)), name);
            assert_eq!(service_id(&id(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_consul_cannot_be_asked_for_is_escaped() {
        for (name, escaped) in [
            ("/", "shardwise:%2F"),
            ("/a", "shardwise:%2Fa"),
            ("a//b", "shardwise:a%2F%2Fb"),
            (".", "shardwise:."),
            ("a/../B", "shardwise:a%2F..%2F%42"),
            ("a\nb", "shardwise:a%0Ab"),
            ("\u{202e}", "shardwise:%E2%80%AE"),
            ("shardwise:%2F", "shardwise:shardwise%3A%252%46"),
            ("consul", "shardwise:consul"),
            ("Consul", "shardwise:%43onsul"),
        ] {
            assert_eq!(service_name(&group(name)), escaped);
            assert_eq!(service_id(&id(name)), None);
        }
    }

    #[test]
    fn ids_of_checks_and_escaped_services_differ_in_more_than_case() {
        let lower = |text: String| text.to_lowercase();
        assert_ne!(lower(other_service_id(&group("g"), &id("A"))), lower(other_service_id(&group("g"), &id("a"))));
        let check = |name: &str| check_prefix(&RecordId { group: group(name), instance_id: id("a"), incarnation: Incarnation::new(255) });
        assert_ne!(lower(check("G")), lower(check("g")));
        assert!(check("g").ends_with(":00000000000000ff:") && check("g").len() < 64);
        assert_ne!(other_service_id(&group("b:c"), &id("a")), other_service_id(&group("c"), &id("a:b")));
        assert_eq!(lock_key(&id("Ä/b")), lock_key(&id("ä/B")));
    }

    #[test]
    fn nothing_breaks_out_of_a_path_or_an_expression() {
        assert_eq!(segment("a/b ?#%é"), "a%2Fb%20%3F%23%25%C3%A9");
        assert_eq!(literal("a\" or 1\n🦀"), "\"a\\U00000022\\U00000020or\\U000000201\\U0000000a\\U0001f980\"");
        assert_eq!(any_case("a\"."), "\"(?i)^\\\\x{61}\\\\x{22}\\\\x{2e}$\"");
    }
}
