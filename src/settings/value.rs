//! Values: as they were written, and what they must look like.

use std::fmt;
use std::time::Duration;

use secrecy::SecretString;
use shardwise_core::{ClaimStore, LoadMargin, MaxLoss, format_duration, parse_duration};
use shardwise_discovery::settings::{MASK, without_user};
use toml::de::DeValue;

/// The most characters of somebody's text that a message repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// A value as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Raw {
    /// An environment variable's or a default's text: the key decides how it is read.
    Bare(String),
    Text(String),
    /// A number as it stands in the file, because a float would not keep its decimals.
    Number(String),
    Flag(bool),
    /// An array of texts.
    Texts(Vec<String>),
    /// Something that no key takes: another array, a table, a date.
    Other(&'static str),
}

impl From<&DeValue<'_>> for Raw {
    fn from(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.to_string()),
            // Hexadecimal and the like become decimal; what does not fit stays as written and is refused by every range.
            DeValue::Integer(n) => {
                Self::Number(i128::from_str_radix(n.as_str(), n.radix()).map_or_else(|_| n.to_string(), |n| n.to_string()))
            }
            DeValue::Float(number) => Self::Number(number.as_str().to_owned()),
            DeValue::Boolean(flag) => Self::Flag(*flag),
            DeValue::Datetime(_) => Self::Other("a date"),
            DeValue::Array(items) => {
                let texts = items.iter().map(|item| item.get_ref().as_str().map(ToOwned::to_owned)).collect::<Option<Vec<_>>>();
                texts.map_or(Self::Other("an array"), Self::Texts)
            }
            DeValue::Table(_) => Self::Other("a table"),
        }
    }
}

impl fmt::Display for Raw {
    /// One line, shortened: the way messages repeat a value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare(text) | Self::Text(text) => f.write_str(&shown(text)),
            Self::Number(number) => f.write_str(&shortened(number)),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Texts(texts) => write!(f, "[{}]", shortened(&texts.iter().map(|text| shown(text)).collect::<Vec<_>>().join(", "))),
            Self::Other(what) => f.write_str(what),
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Somebody's text in quotes, on one line, not too long, and without the user and password of a URL.
pub(super) fn shown(text: &str) -> String {
    format!("{:?}", shortened(&without_user(text)))
}

/// What a key's value must look like.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    Flag,
    Text,
    /// At least one text, none of them empty; separated by commas where there are no brackets.
    Texts,
    /// A text that is never shown.
    Secret,
    OneOf {
        built: &'static [&'static str],
        later: &'static [&'static str],
    },
    Whole {
        min: u32,
        max: u32,
    },
    /// A number below which no epoch may be.
    EpochFloor,
    Time {
        min: Duration,
        max: Duration,
    },
    Margin,
    /// A whole percentage from 1% to 99%.
    Percent,
}

/// A value that fits its key.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    Secret(SecretString),
    Whole(u32),
    EpochFloor(u64),
    Time(Duration),
    Margin(LoadMargin),
    Percent(MaxLoss),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(text),
            Self::Texts(texts) => f.write_str(&texts.join(",")),
            Self::Secret(_) => f.write_str(MASK),
            Self::Whole(number) => write!(f, "{number}"),
            Self::EpochFloor(number) => write!(f, "{number}"),
            Self::Time(duration) => f.write_str(&format_duration(*duration)),
            Self::Margin(margin) => write!(f, "{margin}"),
            Self::Percent(percent) => write!(f, "{percent}"),
        }
    }
}

impl Shape {
    /// Reads a value; the error says what is allowed.
    pub(super) fn read(self, raw: &Raw) -> Result<Value, String> {
        match self {
            Self::Flag => read_flag(raw),
            Self::Text => read_text(raw).map(|text| Value::Text(text.to_owned())),
            Self::Texts => read_texts(raw),
            Self::Secret => secret_of(read_text(raw)?).map(Value::Secret),
            Self::OneOf { built, later } => read_choice(raw, built, later),
            Self::Whole { min, max } => read_whole(raw, u64::from(min), u64::from(max))
                .and_then(|number| u32::try_from(number).map(Value::Whole).map_err(|error| error.to_string())),
            Self::EpochFloor => read_whole(raw, 0, ClaimStore::FLOOR_MAX).map(Value::EpochFloor),
            Self::Time { min, max } => read_time(raw, min, max),
            Self::Margin => read_margin(raw),
            Self::Percent => read_percent(raw),
        }
    }
}

fn read_flag(raw: &Raw) -> Result<Value, String> {
    match raw {
        Raw::Flag(flag) => Ok(Value::Flag(*flag)),
        Raw::Bare(text) if text.eq_ignore_ascii_case("true") || text == "1" => Ok(Value::Flag(true)),
        Raw::Bare(text) if text.eq_ignore_ascii_case("false") || text == "0" => Ok(Value::Flag(false)),
        Raw::Text(_) => Err("write true or false, without quotes".into()),
        _ => Err("write true or false".into()),
    }
}

fn read_text(raw: &Raw) -> Result<&str, String> {
    match raw {
        Raw::Bare(text) | Raw::Text(text) => Ok(text),
        _ => Err("write a text in quotes".into()),
    }
}

fn read_texts(raw: &Raw) -> Result<Value, String> {
    let texts: Vec<String> = match raw {
        Raw::Bare(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        Raw::Texts(texts) => texts.clone(),
        _ => return Err("write a list of texts, such as [\"a\", \"b\"]".into()),
    };
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err("at least one is needed, and none may be empty".into());
    }
    Ok(Value::Texts(texts))
}

/// A secret from its text; the error does not repeat it.
pub(super) fn secret_of(text: &str) -> Result<SecretString, String> {
    if text.is_empty() {
        return Err("a secret that is empty is none; leave the key out".into());
    }
    if text.chars().any(char::is_control) {
        return Err("a secret has no line breaks and no other control characters".into());
    }
    Ok(text.into())
}

fn read_choice(raw: &Raw, built: &[&str], later: &[&str]) -> Result<Value, String> {
    let quoted = |texts: &[&str]| texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(" or ");
    match read_text(raw) {
        Ok(text) if built.contains(&text) => Ok(Value::Text(text.to_owned())),
        Ok(text) if later.contains(&text) => Err(format!("this is not built yet; write {}", quoted(built))),
        _ => Err(format!("write {}", quoted(built))),
    }
}

fn read_whole(raw: &Raw, min: u64, max: u64) -> Result<u64, String> {
    let number = match raw {
        Raw::Bare(text) | Raw::Number(text) => text.parse().ok(),
        _ => None,
    };
    let quotes = if matches!(raw, Raw::Text(_)) { ", without quotes" } else { "" };
    number.filter(|number| (min..=max).contains(number)).ok_or_else(|| format!("a whole number from {min} to {max} is allowed{quotes}"))
}

fn read_time(raw: &Raw, min: Duration, max: Duration) -> Result<Value, String> {
    let duration = read_text(raw).ok().and_then(|text| parse_duration(text).ok());
    let Some(duration) = duration else {
        let quotes = if read_text(raw).is_ok() { "" } else { " in quotes" };
        return Err(format!("write a whole number and a unit of ms, s, m, h or d{quotes}, such as \"5s\" or \"100ms\""));
    };
    if (min..=max).contains(&duration) {
        return Ok(Value::Time(duration));
    }
    Err(format!("between {} and {} is allowed", format_duration(min), format_duration(max)))
}

fn read_percent(raw: &Raw) -> Result<Value, String> {
    let number = read_text(raw).ok().and_then(|text| text.strip_suffix('%')).and_then(|number| number.parse().ok());
    let percent = number.and_then(MaxLoss::percent).map(Value::Percent);
    percent.ok_or_else(|| "write a whole percentage from \"1%\" to \"99%\", such as \"50%\"".into())
}

fn read_margin(raw: &Raw) -> Result<Value, String> {
    let text = match raw {
        Raw::Bare(text) | Raw::Number(text) => text.as_str(),
        Raw::Text(text) if text == "none" => text,
        _ => "",
    };
    LoadMargin::parse(text).map(Value::Margin).map_err(|error| error.allowed)
}
