//! The path of a request, and names in paths and headers.

use std::fmt::Write as _;

/// The most bytes of the path under which a handler is registered.
pub const PATH_BYTES_MAX: usize = 256;

/// Whether `path` is valid for a handler: parts of ASCII letters, digits and `-._~`, separated by single slashes, none of them consisting
/// only of dots, and nothing that needs decoding.
pub fn is_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(is_plain) && !part.bytes().all(|byte| byte == b'.');
    path.len() <= PATH_BYTES_MAX && path.split('/').all(is_part)
}

/// A name or a key as one part of a path or as a header: everything except ASCII letters, digits and `-_~` percent-encoded.
pub fn encoded(name: impl AsRef<[u8]>) -> String {
    let name = name.as_ref();
    name.iter().fold(String::with_capacity(name.len()), |mut text, &byte| {
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
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(encoded("größe/.."), "gr%C3%B6%C3%9Fe%2F%2E%2E");
        assert_eq!(encoded("a/b c~-_9"), "a%2Fb%20c~-_9");
    }
}
