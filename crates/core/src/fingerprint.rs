//! A short hash of everything that members must agree on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::routing::KeyHash;
use crate::{Incarnation, StoreId, hash_bytes};

/// XXH3-64 of a canonical text, shown as sixteen hexadecimal digits. Two members with equal fingerprints compute equal placements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a canonical text.
    pub fn of(canonical: &str) -> Self {
        Self(hash_bytes(canonical.as_bytes()))
    }
}

/// Parses sixteen hexadecimal digits. Rejects a sign, which the standard library would accept.
fn sixteen_digits(hex: &str) -> Option<u64> {
    let digits = hex.len() == 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

/// A number that is displayed, parsed and stored as sixteen hexadecimal digits.
macro_rules! hex_number {
    ($($name:ident),*) => {$(
        impl $name {
            /// Reads the sixteen hexadecimal digits that `Display` writes.
            pub fn from_hex(hex: &str) -> Option<Self> {
                sixteen_digits(hex).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let hex = String::deserialize(deserializer)?;
                let wrong = || serde::de::Error::custom(concat!(stringify!($name), ": sixteen hexadecimal digits are needed"));
                Self::from_hex(&hex).ok_or_else(wrong)
            }
        }
    )*};
}
hex_number!(Fingerprint, Incarnation, KeyHash, StoreId);

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
