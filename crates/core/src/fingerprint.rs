//! A short hash of everything that members must agree on.

use crate::hash_bytes;
use crate::hex::hex_number;

/// XXH3-64 of a canonical text, shown as sixteen hexadecimal digits. Two members with equal fingerprints compute equal placements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a canonical text.
    pub fn of(canonical: &str) -> Self {
        Self(hash_bytes(canonical.as_bytes()))
    }
}

hex_number!(Fingerprint);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixteen_digits_are_read() {
        let fingerprint = Fingerprint::of("anything");
        assert_eq!(Fingerprint::from_hex(&fingerprint.to_string()), Some(fingerprint));
        for text in
            ["", "0123456789abcde", "0123456789abcdef0", "+123456789abcdef", "-123456789abcdef", "0123456789abcdeg", "012345678 abcdef"]
        {
            assert_eq!(Fingerprint::from_hex(text), None, "{text:?}");
            assert_eq!(crate::Incarnation::from_hex(text), None, "{text:?}");
        }
    }
}
