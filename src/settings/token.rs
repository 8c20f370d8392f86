//! A secret that members prove to each other that they know: of requests and of messages.

use secrecy::{ExposeSecret, SecretString};

use super::files::BaseDirectory;
use super::options::secret_from_file;
use super::read::{Reader, ResolvedValue};
use crate::Error;

/// The fewest bytes: an attacker who has heard a proof can try out shorter ones.
const BYTES_LEAST: usize = 16;
/// The most.
const BYTES_MAX: usize = 1_024;
const WANTED: &str = "a token is 16 to 1024 bytes of printable ASCII without blanks; 32 random hexadecimal digits would be one";

/// What is wrong with it; `None` if nothing is, or there is none.
pub(super) fn mistake(token: Option<&SecretString>) -> Option<&'static str> {
    let text = token?.expose_secret();
    let is_one = (BYTES_LEAST..=BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_one).then_some(WANTED)
}

/// The token in the file that is named there.
pub(super) fn read(reader: &Reader, found: &ResolvedValue, base: &BaseDirectory) -> Result<SecretString, Error> {
    let secret = secret_from_file(reader, found, base)?;
    match mistake(Some(&secret)) {
        Some(mistake) => Err(found.refuse(mistake)),
        None => Ok(secret),
    }
}
