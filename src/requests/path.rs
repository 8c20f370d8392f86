//! The address of a request: a path that names its member, so that another member that listens there by now can refuse it.

use std::fmt::Write as _;

use shardwise_core::{GroupName, Incarnation, InstanceId};

/// The most bytes of the path under which a handler is registered.
pub const PATH_BYTES_MAX: usize = 256;

/// Whether `path` is valid for a handler: parts of ASCII letters, digits and `-._~`, separated by single slashes, none of them consisting
/// only of dots, and nothing that needs decoding.
pub fn is_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(is_plain) && !part.bytes().all(|byte| byte == b'.');
    path.len() <= PATH_BYTES_MAX && path.split('/').all(is_part)
}

/// The path of requests to a member: `/v1/peers/`, its group, its id, its incarnation and a last slash. A handler's path follows.
pub fn path_to(group: &GroupName, instance_id: &InstanceId, incarnation: Incarnation) -> String {
    format!("/v1/peers/{}/{}/{incarnation}/", encoded(group.as_str()), encoded(instance_id.as_str()))
}

/// A name as one part of a path or as a header: everything except ASCII letters, digits and `-_~` percent-encoded.
pub fn encoded(name: &str) -> String {
    name.bytes().fold(String::with_capacity(name.len()), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            text.push(byte.into());
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_plain() {
        let longest = "a".repeat(PATH_BYTES_MAX);
        for path in ["status", "cache/flush", "v1.2/a-b_c~d", "...x", longest.as_str()] {
            assert!(is_path(path), "{path}");
        }
        let longer = "a".repeat(PATH_BYTES_MAX + 1);
        let tricks = [
            "", "/", "/a", "a/", "a//b", ".", "..", "...", "a/../b", "a/./b", "%2e%2e", "a%2Fb", "a b", "a\0b", "a?b", "a#b", "a\\b", "é",
            "http://x", &longer,
        ];
        for path in tricks {
            assert!(!is_path(path), "{path:?}");
        }
    }

    #[test]
    fn a_members_path_has_its_names_each_as_one_part() {
        let (group, id) = (GroupName::new("größe/..").unwrap(), InstanceId::new("a/b c").unwrap());
        assert_eq!(path_to(&group, &id, Incarnation::new(10)), "/v1/peers/gr%C3%B6%C3%9Fe%2F%2E%2E/a%2Fb%20c/000000000000000a/");
    }
}
