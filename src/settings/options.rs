//! What a backend can be told: the keys that it brings, read like all others and handed to it ready to use.

use std::io::Read;
use std::path::Path as FilePath;

use secrecy::SecretString;
use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, BackendValue};

use super::files::BaseDirectory;
use super::keys::{Fallback, SettingKey};
use super::read::{Reader, ResolvedValue, SettingsTable};
use super::value::{Shape, Value};
use crate::Error;

/// The most bytes that a file with a secret may have.
const SECRET_BYTES_MAX: u64 = 65_536;

/// The keys that may be written for `key`: the key, and for a secret its twin that names a file.
pub(super) fn keys_of(key: &BackendKey) -> impl Iterator<Item = SettingKey> {
    [Some(key_of(key)), twin_of(key)].into_iter().flatten()
}

fn key_of(key: &BackendKey) -> SettingKey {
    let shape = match key.shape {
        BackendShape::Flag => Shape::Flag,
        BackendShape::Texts => Shape::Texts,
        BackendShape::Secret => Shape::Secret,
        _ => Shape::Text,
    };
    SettingKey {
        name: key.name,
        shape,
        fallback: key.default.map_or(Fallback::Unset, Fallback::Text),
        why: key.why,
        variable: key.variable,
    }
}

fn twin_of(key: &BackendKey) -> Option<SettingKey> {
    let twin = key.file_twin?;
    Some(SettingKey { name: twin.name, shape: Shape::Text, fallback: Fallback::Unset, why: twin.why, variable: twin.variable })
}

/// What holds for a backend where nobody has written anything.
pub(super) fn defaults(kind: &BackendKind) -> BackendSettings {
    let with = |settings: BackendSettings, key: &BackendKey| match key.default {
        Some(text) => settings.with(key.name, by_default(key.shape, text)),
        None => settings,
    };
    kind.keys.iter().fold(BackendSettings::new(), with)
}

fn by_default(shape: BackendShape, text: &str) -> BackendValue {
    match shape {
        BackendShape::Flag => BackendValue::Flag(text == "true"),
        BackendShape::Texts => BackendValue::Texts(text.split(',').map(ToOwned::to_owned).collect()),
        BackendShape::Path => BackendValue::Path(text.into()),
        BackendShape::Secret => BackendValue::Secret(text.into()),
        _ => BackendValue::Text(text.to_owned()),
    }
}

/// Reads the keys of `kind` at `place`, the table `discovery`.
pub(super) fn read(reader: &Reader, place: &SettingsTable, kind: &BackendKind, base: &BaseDirectory) -> Result<BackendSettings, Error> {
    let place = SettingsTable {
        path: place.path.join(kind.name),
        inherits: place.inherits.as_ref().map(|common| common.join(kind.name)),
        origin: place.origin.clone(),
    };
    let mut settings = BackendSettings::new();
    for key in kind.keys {
        let value = match key.shape {
            BackendShape::Secret => secret(reader, &place, key, base)?,
            BackendShape::Path => path(reader, &place, &key_of(key), base)?,
            _ => reader.optional(&place, &key_of(key))?.map(|found| taken(reader, &found)),
        };
        if let Some(value) = value {
            settings = settings.with(key.name, value);
        }
    }
    Ok(settings)
}

fn plain(value: Value) -> BackendValue {
    match value {
        Value::Flag(flag) => BackendValue::Flag(flag),
        Value::Texts(texts) => BackendValue::Texts(texts),
        Value::Secret(secret) => BackendValue::Secret(secret),
        other => BackendValue::Text(other.to_string()),
    }
}

fn path(reader: &Reader, place: &SettingsTable, key: &SettingKey, base: &BaseDirectory) -> Result<Option<BackendValue>, Error> {
    let Some(found) = reader.optional(place, key)? else { return Ok(None) };
    let path = base.resolve(&found, found.text()?)?;
    reader.note(&found, path.display());
    Ok(Some(BackendValue::Path(path)))
}

/// The secret itself or the file that has it, whichever was written nearer: for this policy rather than for all, in a later layer rather
/// than in an earlier one.
fn secret(reader: &Reader, place: &SettingsTable, key: &BackendKey, base: &BaseDirectory) -> Result<Option<BackendValue>, Error> {
    let written = reader.optional(place, &key_of(key))?;
    let Some(twin) = twin_of(key) else { return Ok(take_secret(reader, written)) };
    let named = reader.optional(place, &twin)?;
    match (written, named) {
        (written, None) => Ok(take_secret(reader, written)),
        (None, Some(file)) => from_file(reader, &file, base).map(Some),
        (Some(written), Some(file)) => match written.nearness().cmp(&file.nearness()) {
            std::cmp::Ordering::Greater => Ok(take_secret(reader, Some(written))),
            std::cmp::Ordering::Less => from_file(reader, &file, base).map(Some),
            std::cmp::Ordering::Equal => Err(file.refuse(format_args!("{} is written too; remove one of them", key.name))),
        },
    }
}

fn take_secret(reader: &Reader, written: Option<ResolvedValue>) -> Option<BackendValue> {
    written.map(|found| taken(reader, &found))
}

/// The value, noted as it may be shown.
fn taken(reader: &Reader, found: &ResolvedValue) -> BackendValue {
    let value = plain(found.value.clone());
    reader.note(found, &value);
    value
}

fn from_file(reader: &Reader, found: &ResolvedValue, base: &BaseDirectory) -> Result<BackendValue, Error> {
    secret_from_file(reader, found, base).map(BackendValue::Secret)
}

/// The secret in the file that is named there.
pub(super) fn secret_from_file(reader: &Reader, found: &ResolvedValue, base: &BaseDirectory) -> Result<SecretString, Error> {
    let path = base.resolve(found, found.text()?)?;
    let secret = read_secret(&path).map_err(|why| found.refuse(why))?;
    reader.note(found, path.display());
    Ok(secret)
}

/// The file's text without its last newline. Messages never repeat any of it.
fn read_secret(path: &FilePath) -> Result<SecretString, String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| format!("the file cannot be read: {error}"))?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(format!("the file has more than {SECRET_BYTES_MAX} bytes: is it the right file?"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    super::value::secret_of(text).map_err(|why| format!("the file's text is not right: {why}"))
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
