//! The shared secret of members, for requests and for messages.

use secrecy::{ExposeSecret, SecretString};
use shardwise_settings::{Error, ResolvedValue, SettingsTable};

/// The minimum length in bytes: an attacker who has recorded a proof can search for shorter ones.
const BYTES_MIN: usize = 16;
/// The maximum length in bytes.
const BYTES_MAX: usize = 1_024;
const WANTED: &str = "a token is 16 to 1024 bytes of printable ASCII without blanks; 32 random hexadecimal digits would be one";

/// The error in a token; `None` if it is valid or there is none.
pub(super) fn mistake(token: Option<&SecretString>) -> Option<&'static str> {
    let text = token?.expose_secret();
    let is_one = (BYTES_MIN..=BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_one).then_some(WANTED)
}

/// The token in the file that `found` names.
pub(super) fn read(table: &SettingsTable<'_>, found: &ResolvedValue) -> Result<SecretString, Error> {
    let token = table.take_secret(found)?;
    mistake(Some(&token)).map_or(Ok(token), |mistake| Err(found.refuse(mistake)))
}
