//! Secrets in files.

use std::io::Read;
use std::path::Path;

use secrecy::SecretString;

use crate::Result;
use crate::table::{ResolvedValue, SettingsTable};
use crate::value::secret;

const FILE_BYTES_MAX: u64 = 65_536;

impl SettingsTable<'_> {
    /// The secret in the file that `found` names; records the path as in force. Messages never quote the file.
    pub fn take_secret(&self, found: &ResolvedValue) -> Result<SecretString> {
        let path = self.resolve(found, found.text())?;
        let secret = read(&path).map_err(|why| found.refuse(why))?;
        self.note(found, path.display());
        Ok(secret)
    }
}

/// The file's text without its last newline.
fn read(path: &Path) -> Result<SecretString, String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| format!("the file cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("the file has more than {FILE_BYTES_MAX} bytes: is it the right file?"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    secret(text).map_err(|why| format!("the file's text is not right: {why}"))
}
