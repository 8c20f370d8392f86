//! Values as written, and the shapes that they must have.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use config::{Value, ValueKind};
use secrecy::SecretString;
use shardwise_core::{LoadMargin, MaxLoss, format_duration, parse_duration};

use crate::origin::Origin;
use crate::quote::{shortened, shown};

/// The most bytes of a file with a secret.
const FILE_BYTES_MAX: u64 = 65_536;

#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) kind: ValueKind,
    /// From an environment variable or a default: always text, which the key's shape parses.
    pub(crate) is_bare: bool,
}

impl Written {
    pub(crate) fn of(value: &Value) -> Self {
        Self { kind: value.kind.clone(), is_bare: matches!(Origin::of(value), Origin::Variable { .. }) }
    }
}

impl fmt::Display for Written {
    /// One line, shortened, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match &self.kind {
            ValueKind::String(text) => shown(text),
            ValueKind::Array(items) => match texts_in(items) {
                Some(texts) => format!("[{}]", shortened(&texts.into_iter().map(shown).collect::<Vec<_>>().join(", "))),
                None => "an array".to_owned(),
            },
            ValueKind::Table(_) => "a table".to_owned(),
            ValueKind::Nil => "a date".to_owned(),
            other => shortened(&number_or_flag(other)),
        };
        f.write_str(&text)
    }
}

fn texts_in<'v>(items: &'v [Value]) -> Option<Vec<&'v str>> {
    let text = |item: &'v Value| if let ValueKind::String(text) = &item.kind { Some(text.as_str()) } else { None };
    items.iter().map(text).collect()
}

/// A number or flag as TOML writes it: a float keeps its point, so that 64.0 is not a whole number.
fn number_or_flag(kind: &ValueKind) -> String {
    if let ValueKind::Float(number) = kind { format!("{number:?}").to_lowercase() } else { kind.to_string() }
}

/// The shape of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// `true` or `false`.
    Flag,
    /// A text.
    Text,
    /// At least one text, none empty; without brackets, separated by commas.
    Texts,
    /// A text that is never displayed.
    Secret,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A whole number: the smallest and the largest allowed.
    Whole(u64, u64),
    /// A duration, in whole milliseconds: the shortest and the longest allowed.
    Time(Duration, Duration),
    /// A load margin: `none`, or a number with at most three decimals.
    Margin,
    /// A whole percentage from 1% to 99%.
    Percent,
}

impl Shape {
    /// A whole number from `min` to `max`.
    pub const fn whole(min: u64, max: u64) -> Self {
        Self::Whole(min, max)
    }

    /// A duration from `min` to `max`.
    pub const fn time(min: Duration, max: Duration) -> Self {
        Self::Time(min, max)
    }

    /// Validates a text from an environment variable or a default, and returns it in its canonical form; the error says what is allowed.
    pub fn check(self, text: &str) -> Result<String, String> {
        self.read(&Written { kind: ValueKind::String(text.to_owned()), is_bare: true })
    }

    /// Validates a value and returns it as canonical text; the error says what is allowed.
    pub(crate) fn read(self, written: &Written) -> Result<String, String> {
        match self {
            Self::Flag => read_flag(written),
            Self::Text => read_text(written).map(ToOwned::to_owned),
            Self::Texts => read_texts(written),
            Self::Secret => read_text(written).and_then(|text| secret(text).map(|_| text.to_owned())),
            Self::OneOf(known) => read_choice(written, known),
            Self::Whole(min, max) => read_whole(written, min, max),
            Self::Time(min, max) => read_time(written, min, max),
            Self::Margin => read_margin(written),
            Self::Percent => read_percent(written),
        }
    }
}

fn read_flag(written: &Written) -> Result<String, String> {
    match &written.kind {
        ValueKind::Boolean(flag) => Ok(flag.to_string()),
        ValueKind::String(_) if !written.is_bare => Err("write true or false, without quotes".into()),
        ValueKind::String(text) if text.eq_ignore_ascii_case("true") || text == "1" => Ok("true".into()),
        ValueKind::String(text) if text.eq_ignore_ascii_case("false") || text == "0" => Ok("false".into()),
        _ => Err("write true or false".into()),
    }
}

fn read_text(written: &Written) -> Result<&str, String> {
    match &written.kind {
        ValueKind::String(text) => Ok(text),
        _ => Err("write a text in quotes".into()),
    }
}

fn read_texts(written: &Written) -> Result<String, String> {
    let texts: Option<Vec<&str>> = match &written.kind {
        ValueKind::String(text) if written.is_bare => Some(text.split(',').map(str::trim).collect()),
        ValueKind::Array(items) => texts_in(items),
        _ => None,
    };
    let texts = texts.ok_or("write a list of texts, such as [\"a\", \"b\"]")?;
    if texts.is_empty() || texts.iter().any(|text| text.is_empty()) {
        return Err("at least one is needed, and none may be empty".into());
    }
    if !written.is_bare && texts.iter().any(|text| text.contains(',')) {
        return Err("write each text in its own quotes, without commas".into());
    }
    Ok(texts.join(","))
}

/// The secret in a file: its text without the last newline; the error does not quote it.
pub(crate) fn secret_in(path: &Path) -> Result<SecretString, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| format!("the file cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("the file has more than {FILE_BYTES_MAX} bytes: is it the right file?"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    secret(text).map_err(|why| format!("the file's text is not right: {why}"))
}

/// A secret from its text; the error does not quote it.
fn secret(text: &str) -> Result<SecretString, String> {
    if text.is_empty() {
        return Err("a secret that is empty is none; leave the key out".into());
    }
    if text.chars().any(char::is_control) {
        return Err("a secret has no line breaks and no other control characters".into());
    }
    Ok(text.into())
}

fn read_choice(written: &Written, known: &[&str]) -> Result<String, String> {
    let chosen = read_text(written).ok().filter(|text| known.contains(text));
    chosen.map(ToOwned::to_owned).ok_or_else(|| {
        let quoted: Vec<_> = known.iter().map(|text| format!("\"{text}\"")).collect();
        format!("write {}", quoted.join(" or "))
    })
}

fn read_whole(written: &Written, min: u64, max: u64) -> Result<String, String> {
    let number: Option<u64> = match &written.kind {
        ValueKind::String(text) if written.is_bare => text.parse().ok(),
        ValueKind::I128(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let quotes = if !written.is_bare && read_text(written).is_ok() { ", without quotes" } else { "" };
    let number = number.filter(|number| (min..=max).contains(number));
    number.map(|number| number.to_string()).ok_or_else(|| format!("a whole number from {min} to {max} is allowed{quotes}"))
}

fn read_time(written: &Written, min: Duration, max: Duration) -> Result<String, String> {
    let duration = read_text(written).ok().and_then(|text| parse_duration(text).ok());
    let Some(duration) = duration else {
        let quotes = if read_text(written).is_ok() { "" } else { " in quotes" };
        return Err(format!("write a whole number and a unit of ms, s, m, h or d{quotes}, such as \"5s\" or \"100ms\""));
    };
    if (min..=max).contains(&duration) {
        return Ok(format_duration(duration));
    }
    Err(format!("between {} and {} is allowed", format_duration(min), format_duration(max)))
}

fn read_percent(written: &Written) -> Result<String, String> {
    let percent = read_text(written).ok().and_then(percent).map(|percent| percent.to_string());
    percent.ok_or_else(|| "write a whole percentage from \"1%\" to \"99%\", such as \"50%\"".into())
}

pub(crate) fn percent(text: &str) -> Option<MaxLoss> {
    text.strip_suffix('%').and_then(|number| number.parse().ok()).and_then(MaxLoss::percent)
}

fn read_margin(written: &Written) -> Result<String, String> {
    let text = match &written.kind {
        ValueKind::String(text) if written.is_bare || text == "none" => text.clone(),
        ValueKind::I128(_) | ValueKind::Float(_) => number_or_flag(&written.kind),
        _ => String::new(),
    };
    LoadMargin::parse(&text).map(|margin| margin.to_string()).map_err(|error| error.allowed)
}
