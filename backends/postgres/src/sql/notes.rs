//! Statements of notes: a row each, whose version rises with each write.

use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::Note;
use sqlx::Row;

use super::literal::text;
use super::{BEGIN, Schema, signed, unsigned};
use crate::answers::Answers;

/// The note of that name. A row always comes back; without a note its version is NULL.
pub(crate) fn read(schema: &Schema, group: &GroupName, name: &ClaimName) -> String {
    let (group, name) = (text(group.as_str()), text(name.as_str()));
    format!(
        "SELECT pg_is_in_recovery() AS is_replica, n.version, n.text
        FROM {schema}.store AS s LEFT JOIN {schema}.note AS n ON n.group_name = {group} AND n.name = {name}
        WHERE s.one"
    )
}

/// Writes the note if the present one has the version `expected`; 0: if there is none. Then reads it.
pub(crate) fn write(schema: &Schema, group: &GroupName, name: &ClaimName, expected: u64, value: &str) -> String {
    let read = read(schema, group, name);
    let (group, name, value, expected) = (text(group.as_str()), text(name.as_str()), text(value), signed(expected));
    let write = if expected == 0 {
        format!(
            "INSERT INTO {schema}.note AS n (group_name, name, version, text) VALUES ({group}, {name}, 1, {value})
            ON CONFLICT DO NOTHING RETURNING n.version"
        )
    } else {
        format!(
            "UPDATE {schema}.note AS n SET version = n.version + 1, text = {value}
            WHERE n.group_name = {group} AND n.name = {name} AND n.version = {expected} RETURNING n.version"
        )
    };
    format!("{BEGIN} {write}; {read}")
}

/// The version that was written, if any was.
pub(crate) fn read_written(answers: &Answers) -> sqlx::Result<Option<u64>> {
    answers.before_last(1).first().map(|row| unsigned(row, "version")).transpose()
}

/// The note, and whether a replica said so.
pub(crate) fn read_note(answers: &Answers) -> sqlx::Result<(Option<Note>, bool)> {
    let Some(row) = answers.last().first() else { return Ok((None, false)) };
    let version: Option<i64> = row.try_get("version")?;
    let note = match version {
        Some(version) => Some(Note { text: row.try_get("text")?, version: version.unsigned_abs() }),
        None => None,
    };
    Ok((note, row.try_get("is_replica")?))
}
