//! Durations in settings: one whole number and one unit, such as `"5s"` or `"100ms"`.

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a duration: write a whole number and a unit of ms, s, m, h or d, such as \"5s\" or \"100ms\"")]
pub struct DurationError {
    /// The text as it was given.
    pub given: String,
}

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads `"250ms"`, `"5s"`, `"10m"`, `"6h"` or `"7d"`; `"0"` needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let wrong = || DurationError { given: text.to_owned() };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = text[digits..].trim_start();
    let millis_per_unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    number.checked_mul(millis_per_unit).map(Duration::from_millis).ok_or_else(wrong)
}

/// Writes a duration in the largest unit that is exact, readable by [`parse_duration`]; whole milliseconds.
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (name, size) = UNITS.iter().rev().find(|(_, size)| millis != 0 && millis % size == 0).unwrap_or(&UNITS[1]);
    format!("{}{name}", millis / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for (text, millis) in [("100ms", 100), ("5s", 5_000), ("90s", 90_000), ("2m", 120_000), ("6h", 21_600_000), ("7d", 604_800_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
            assert_eq!(parse_duration(&format_duration(Duration::from_millis(millis))), Ok(Duration::from_millis(millis)));
        }
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }

    #[test]
    fn other_texts_are_refused_and_named() {
        for text in ["", "5", "s", "-5s", "1.5s", "5 weeks", "99999999999999999999s", "18446744073709551615d", "é"] {
            assert_eq!(parse_duration(text).map_err(|e| e.given), Err(text.to_owned()));
        }
    }
}
