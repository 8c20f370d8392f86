//! Makes untrusted text safe to display.

use std::fmt::{self, Write};

/// Shows a name or another short text on one line and safely for a terminal: control characters, and invisible ones that change the
/// direction of writing, appear as escapes such as `\n` and `\u{1b}`. Everything else is unchanged.
///
/// ```
/// use shardwise_core::Escaped;
///
/// assert_eq!(Escaped("a\nb\u{1b}[2J größe").to_string(), r"a\nb\u{1b}[2J größe");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_terminal_control(*c)) {
            write!(f, "{}{}", &rest[..at], c.escape_default())?;
            rest = &rest[at + c.len_utf8()..];
        }
        f.write_str(rest)
    }
}

/// Text on one line and safe for a terminal: white space becomes single spaces, and [`Escaped`] applies. Beyond `chars_max` it ends in `…`.
///
/// ```
/// assert_eq!(shardwise_core::one_line("it broke:\r\n  \u{1b}[31mred", 100), r"it broke: \u{1b}[31mred");
/// assert_eq!(shardwise_core::one_line("a long story", 7), "a long…");
/// ```
pub fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        // Writing to a `String` does not fail.
        let _ = write!(line, "{}", Escaped(word));
        // Enough for the cut: the rest need not be read.
        if line.len() > chars_max.saturating_mul(4) {
            break;
        }
    }
    if let Some((cut, _)) = line.char_indices().nth(chars_max) {
        let last = line[..cut].char_indices().next_back().map_or(0, |(last, _)| last);
        line.truncate(last);
        line.truncate(line.trim_end().len());
        line.push('…');
    }
    line
}

/// Whether a terminal acts on `c` instead of showing it: control characters, and invisible ones that change how their neighbours appear.
/// Those that join letters and emoji are not included.
pub fn is_terminal_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        let text = "\0a\u{1b}]0;title\u{7}\u{9b}31m\u{7f}\u{202e}evil\u{2066}\n\t b\u{2028}c";
        assert_eq!(one_line(text, 1_000), r"\u{0}a\u{1b}]0;title\u{7}\u{9b}31m\u{7f}\u{202e}evil\u{2066} b c");
        assert_eq!(one_line("ü 👩\u{200d}💻 \"quoted\" \\ back", 1_000), "ü 👩\u{200d}💻 \"quoted\" \\ back");
    }

    #[test]
    fn what_is_long_is_cut_at_a_character() {
        assert_eq!(one_line("üüü", 3), "üüü");
        assert_eq!(one_line("üüüü", 3), "üü…");
        assert_eq!(one_line("ab cd", 4), "ab…");
        assert_eq!(one_line("abc", 1), "…");
        assert_eq!(one_line("", 0), "");
        assert_eq!(one_line(&"x".repeat(1 << 20), 10).chars().count(), 10);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_one_bounded_safe_line(text in any::<String>(), chars_max in 1usize..50) {
            let line = one_line(&text, chars_max);
            prop_assert!(line.chars().count() <= chars_max, "{line:?}");
            prop_assert!(!line.chars().any(is_terminal_control), "{line:?}");
        }
    }
}
