//! A secret that members prove to each other that they know: of requests and of messages.

use secrecy::{ExposeSecret, SecretString};
use shardwise_settings::{Error, ResolvedValue, SettingsTable};

/// The fewest bytes: an attacker who has heard a proof can try out shorter ones.
const BYTES_MIN: usize = 16;
/// The most.
const BYTES_MAX: usize = 1_024;
const WANTED: &str = "a token is 16 to 1024 bytes of printable ASCII without blanks; 32 random hexadecimal digits would be one";

/// What is wrong with a token; `None` if nothing is, or there is none.
pub(super) fn mistake(token: Option<&SecretString>) -> Option<&'static str> {
    let text = token?.expose_secret();
    let is_one = (BYTES_MIN..=BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_one).then_some(WANTED)
}

/// The token in the file that is named there.
pub(super) fn read(table: &SettingsTable<'_>, found: &ResolvedValue) -> Result<SecretString, Error> {
    let token = table.take_secret(found)?;
    mistake(Some(&token)).map_or(Ok(token), |mistake| Err(found.refuse(mistake)))
}
