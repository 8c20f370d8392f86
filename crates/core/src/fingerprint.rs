//! A short name for everything that members must agree on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hash_bytes;

/// XXH3-64 of a canonical text, shown as sixteen hexadecimal digits. Two members with equal fingerprints compute equal placements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a canonical text.
    pub fn of(canonical: &str) -> Self {
        Self(hash_bytes(canonical.as_bytes()))
    }

    /// Reads the sixteen hexadecimal digits that `Display` writes.
    pub fn from_hex(hex: &str) -> Option<Self> {
        (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok()).flatten().map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(deserializer)?;
        Self::from_hex(&hex).ok_or_else(|| serde::de::Error::custom("a fingerprint has sixteen hexadecimal digits"))
    }
}
