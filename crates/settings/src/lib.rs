//! Settings by a table of keys, on the crate `config`.
//!
//! A [`SchemaNode`] tree describes what may be written where. A [`Reader`] checks a TOML file and environment variables against it and
//! lets `config` merge them, with the file, the section and the line, or the variable, for each value. A [`SettingsTable`] reads values
//! by their [`SettingKey`] and records what is in force. Every error is one line with the place, the key, its value and what is allowed.
//!
//! This crate knows no policy, backend or outbox; `shardwise` and `shardwise-outbox` define their keys.

mod advice;
mod file;
mod known_names;
mod layered;
mod origin;
mod quote;
mod reader;
mod schema;
mod similar;
mod table;
mod value;
mod variables;

use std::fmt;

use shardwise_core::write_with_causes;

pub use origin::{Origin, Setting};
pub use quote::shown;
pub use reader::{Reader, Sources};
pub use schema::{Fallback, SchemaNode, SettingKey, known_keys};
pub use similar::{listed, nearest};
pub use table::{ResolvedValue, SettingsTable, refused};
pub use value::Shape;
pub use variables::customary_variables;

/// The result of every fallible function in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a setting: one line, even if names in it contain line breaks.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    /// An error without an origin; see [`Origin::fail`] and [`ResolvedValue::refuse`] for those with one.
    pub fn new(message: impl fmt::Display) -> Self {
        let mut line = String::new();
        for c in message.to_string().chars() {
            if c.is_control() { line.extend(c.escape_debug()) } else { line.push(c) }
        }
        Self(line)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Error {
    /// Like [`Display`](fmt::Display): `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl std::error::Error for Error {}
