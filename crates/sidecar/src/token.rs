//! Tokens of operators, members, workers and callers.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use secrecy::{ExposeSecret, SecretSlice, SecretString};
use subtle::ConstantTimeEq;

use crate::error::Error;

/// The fewest bytes of a token: a shorter one could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// The most bytes of a file with a token.
const TOKEN_BYTES_MAX: u64 = 4_096;

/// A secret that is compared in constant time and never shown.
#[derive(Debug, Clone)]
pub struct Token(SecretSlice<u8>);

impl Token {
    /// Reads the token from a file, without its last line feed.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the file cannot be read, or contains no valid token.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::File(path.to_owned(), error);
        let refused = |why: String| Err(Error::Options(format!("{}: {why}", path.display())));
        let mut bytes = Vec::new();
        File::open(path).map_err(failed)?.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > TOKEN_BYTES_MAX {
            return refused(format!("it has more than {TOKEN_BYTES_MAX} bytes: is it the right file?"));
        }
        let token = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let token = token.strip_suffix(b"\r").unwrap_or(token);
        if token.len() < TOKEN_BYTES_MIN {
            return refused(format!("a token has at least {TOKEN_BYTES_MIN} bytes; 32 random hexadecimal digits would be one"));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return refused("a token is printable ASCII without blanks".into());
        }
        Ok(Self::of(token))
    }

    pub(crate) fn of(token: &[u8]) -> Self {
        Self(token.to_vec().into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.expose_secret()
    }

    /// The same as text, which printable ASCII is.
    pub(crate) fn to_text(&self) -> SecretString {
        String::from_utf8_lossy(self.bytes()).into_owned().into()
    }

    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        self.bytes().ct_eq(shown).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown_and_only_itself() {
        let folder = std::env::temp_dir().join(format!("shardwise-token-{}", std::process::id()));
        let token = |text: &str| {
            std::fs::write(&folder, text).unwrap();
            Token::from_file(&folder)
        };
        let secret = "0123456789abcdef0123";
        let kept = token(&format!("{secret}\n")).unwrap();
        assert!(kept.is(secret.as_bytes()) && !kept.is(b"0123456789abcdef0124") && !kept.is(b"") && !kept.is(&secret.as_bytes()[1..]));
        assert!(!format!("{kept:?}").contains("0123"), "{kept:?}");
        for bad in ["", "short", "with blanks in it, alas", &"x".repeat(5_000)] {
            assert!(token(bad).is_err(), "{bad}");
        }
        std::fs::remove_file(&folder).unwrap();
    }
}
