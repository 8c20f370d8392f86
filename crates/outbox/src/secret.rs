//! Secrets from files.

use std::path::Path;

use crate::{Error, ErrorKind, Result};

/// The text of a file without its last newline; `what` describes the file in errors, such as "the file with the outbox's password".
pub(crate) fn in_file(path: &Path, what: &str) -> Result<String> {
    let wrong = |why: String| Error::new(ErrorKind::Settings, format!("{what}, {}, {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let secret = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if secret.is_empty() || secret.contains(['\n', '\0']) {
        return Err(wrong("must have one line and nothing else".into()));
    }
    Ok(secret.to_owned())
}
