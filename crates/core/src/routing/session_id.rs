//! Ids of sessions, which name the member that opened them.

use std::fmt;
use std::str::FromStr;

use crate::Incarnation;

const VERSION: u8 = 1;
/// The version, the incarnation in big-endian order, and 128 random bits.
const BYTES: usize = 1 + 8 + 16;
/// The characters of an id: six bits each, and four bits that are zero at the end.
const CHARS: usize = (BYTES * 8).div_ceil(6);
/// RFC 4648, section 5.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The id of a session. It names the incarnation that opened the session, so no lookup is needed, and no record outlives the member.
///
/// As text it is base64url without padding, 34 characters: a version byte, the incarnation, and 128 random bits. An id is all that is
/// needed to use the session, so `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId([u8; BYTES]);

/// Why a text is not the id of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionIdError {
    /// It does not have the form of an id.
    #[error("this is not the id of a session: an id has {CHARS} letters, digits, \"-\" and \"_\"")]
    Malformed,
    /// It is of another version.
    #[error("the session's id has version {0}, and this worker knows version {VERSION}: upgrade the older worker")]
    Version(u8),
}

impl SessionId {
    /// The id of a new session of `minter`. `random` must come from a cryptographic generator.
    pub fn new(minter: Incarnation, random: [u8; 16]) -> Self {
        let mut bytes = [VERSION; BYTES];
        bytes[1..9].copy_from_slice(&minter.get().to_be_bytes());
        bytes[9..].copy_from_slice(&random);
        Self(bytes)
    }

    /// The incarnation that opened the session.
    pub fn minter(&self) -> Incarnation {
        let mut number = [0; 8];
        number.copy_from_slice(&self.0[1..9]);
        Incarnation::new(u64::from_be_bytes(number))
    }

    /// The bits of the character at that position.
    fn sextet(&self, position: usize) -> u8 {
        let (byte, bit) = (position * 6 / 8, position * 6 % 8);
        let pair = [self.0[byte], self.0.get(byte + 1).copied().unwrap_or(0)];
        let [_, bits] = (u16::from_be_bytes(pair) >> (10 - bit)).to_be_bytes();
        bits & 0x3f
    }
}

/// The bits that a character stands for.
fn bits_of(character: u8) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character - b'A'),
        b'a'..=b'z' => Some(character - b'a' + 26),
        b'0'..=b'9' => Some(character - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}

impl FromStr for SessionId {
    type Err = SessionIdError;

    fn from_str(text: &str) -> Result<Self, SessionIdError> {
        if text.len() != CHARS {
            return Err(SessionIdError::Malformed);
        }
        let mut bytes = [0; BYTES];
        let (mut pending, mut bits, mut filled) = (0_u16, 0_u32, bytes.iter_mut());
        for character in text.bytes() {
            // At most six bits wait, so twelve are enough.
            pending = (pending << 6) | u16::from(bits_of(character).ok_or(SessionIdError::Malformed)?);
            bits += 6;
            if bits >= 8 {
                bits -= 8;
                let [_, complete] = (pending >> bits).to_be_bytes();
                if let Some(byte) = filled.next() {
                    *byte = complete;
                }
                pending &= (1 << bits) - 1;
            }
        }
        // One text for each id: the bits that are left over are zero.
        if pending != 0 {
            return Err(SessionIdError::Malformed);
        }
        if bytes[0] != VERSION {
            return Err(SessionIdError::Version(bytes[0]));
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..CHARS).try_for_each(|position| fmt::Write::write_char(f, char::from(ALPHABET[usize::from(self.sextet(position))])))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId(of {})", self.minter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: [(u64, [u8; 16], &str); 3] = [
        (0x0123_4567_89ab_cdef, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "AQEjRWeJq83vAAECAwQFBgcICQoLDA0ODw"),
        (0, [0; 16], "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        (u64::MAX, [0xff; 16], "Af_______________________________w"),
    ];

    #[test]
    fn an_id_is_base64url_of_its_bytes() {
        for (minter, random, text) in KNOWN {
            let id = SessionId::new(Incarnation::new(minter), random);
            assert_eq!((id.to_string().as_str(), text.parse()), (text, Ok(id)));
            assert_eq!(id.minter().get(), minter);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let good = KNOWN[0].2;
        let texts = [
            "",
            "A",
            &good[1..],
            &format!("{good}A"),
            &format!("{}=", &good[1..]),
            &format!("{}+", &good[..33]),
            &format!("{}é", &good[2..]),
        ];
        for text in texts {
            assert_eq!(text.parse::<SessionId>(), Err(SessionIdError::Malformed), "{text:?}");
        }
        let left_over = format!("{}B", &good[..33]);
        assert_eq!(left_over.parse::<SessionId>(), Err(SessionIdError::Malformed), "the last four bits are zero");
        let version_2 = format!("Ag{}", "A".repeat(32));
        assert_eq!(version_2.parse::<SessionId>(), Err(SessionIdError::Version(2)));
        assert_eq!(
            version_2.parse::<SessionId>().unwrap_err().to_string(),
            "the session's id has version 2, and this worker knows version 1: upgrade the older worker"
        );
    }

    #[test]
    fn debug_does_not_show_the_random_part() {
        let id = SessionId::new(Incarnation::new(0xab), [0xcd; 16]);
        assert_eq!(format!("{id:?}"), "SessionId(of 00000000000000ab)");
    }

    proptest! {
        #[test]
        fn every_id_is_read_as_it_was_written(minter in any::<u64>(), random in any::<[u8; 16]>()) {
            let id = SessionId::new(Incarnation::new(minter), random);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.minter(), Incarnation::new(minter));
        }

        #[test]
        fn no_two_texts_are_one_id(text in "[A-Za-z0-9_-]{34}") {
            if let Ok(id) = text.parse::<SessionId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            prop_assert!(text.parse::<SessionId>().is_ok_and(|id| id.to_string() == text) || text.parse::<SessionId>().is_err());
        }
    }
}
