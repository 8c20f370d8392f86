//! Numbers that are written as sixteen hexadecimal digits.

/// Parses sixteen hexadecimal digits. Rejects a sign, which the standard library would accept.
pub(crate) fn sixteen_digits(hex: &str) -> Option<u64> {
    let digits = hex.len() == 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

/// A number that is displayed, parsed and stored as sixteen hexadecimal digits.
macro_rules! hex_number {
    ($($name:ident),*) => {$(
        impl $name {
            /// Reads the sixteen hexadecimal digits that `Display` writes.
            pub fn from_hex(hex: &str) -> Option<Self> {
                $crate::hex::sixteen_digits(hex).map(Self)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let hex = <String as serde::Deserialize>::deserialize(deserializer)?;
                let wrong = || serde::de::Error::custom(concat!(stringify!($name), ": sixteen hexadecimal digits are needed"));
                Self::from_hex(&hex).ok_or_else(wrong)
            }
        }
    )*};
}
pub(crate) use hex_number;
