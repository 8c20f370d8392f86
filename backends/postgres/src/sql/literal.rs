//! Values as SQL writes them.

use std::fmt;

/// A value that can stand in a statement as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Literal(String);

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text. It is written as libpq's `PQescapeLiteral` does, so it does not depend on `standard_conforming_strings`.
pub(crate) fn text(value: &str) -> Literal {
    let mut quoted = String::with_capacity(value.len() + 4);
    quoted.push_str(if value.contains('\\') { " E'" } else { "'" });
    for character in value.chars() {
        match character {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            // It would end the message to the server. Names have none, JSON escapes it, and notes with one are refused.
            '\0' => quoted.push('\u{fffd}'),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    Literal(quoted)
}

/// An array of texts.
pub(crate) fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> Literal {
    let values: Vec<_> = values.into_iter().map(|value| text(value).0).collect();
    Literal(format!("ARRAY[{}]::text[]", values.join(",")))
}

/// An array of numbers. As one constant, so that the planner knows its length.
pub(crate) fn numbers(values: impl IntoIterator<Item = i64>) -> Literal {
    Literal(format!("'{{{}}}'::bigint[]", joined(values)))
}

/// The numbers with commas between them.
pub(crate) fn joined(values: impl IntoIterator<Item = i64>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

/// Reads a literal as the server does; `None` if something is left behind its end.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_back(literal: &str) -> Option<String> {
    let (escapes, rest) = match literal.strip_prefix(" E'") {
        Some(rest) => (true, rest),
        None => (false, literal.strip_prefix('\'')?),
    };
    let (mut value, mut rest) = (String::new(), rest.chars());
    loop {
        match rest.next()? {
            '\'' => match rest.next() {
                Some('\'') => value.push('\''),
                Some(_) => return None,
                None => return Some(value),
            },
            '\\' if escapes => value.push(rest.next()?),
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_where_it_ends() {
        for (value, expected) in [
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", "'it''s'"),
            ("'; --", "'''; --'"),
            ("\\", " E'\\\\'"),
            ("\\'", " E'\\\\'''"),
            ("a\nb🦀", "'a\nb🦀'"),
            ("a\0b", "'a\u{fffd}b'"),
        ] {
            assert_eq!(text(value).to_string(), expected);
        }
    }

    #[test]
    fn whatever_a_text_has_is_read_back() {
        let parts = ["'", "\\", "''", "\\'", "E'", "a", "\n", "é", "--", ";", "$$", "\u{202e}"];
        for one in parts {
            for two in parts {
                for three in parts {
                    let value = [one, two, three].concat();
                    assert_eq!(read_back(&text(&value).to_string()), Some(value));
                }
            }
        }
    }

    #[test]
    fn lists_may_be_empty() {
        assert_eq!(texts([]).to_string(), "ARRAY[]::text[]");
        assert_eq!(texts(["a", "b'c"]).to_string(), "ARRAY['a','b''c']::text[]");
        assert_eq!(numbers([]).to_string(), "'{}'::bigint[]");
        assert_eq!(numbers([1, -2]).to_string(), "'{1,-2}'::bigint[]");
    }
}
