//! Lines at the end of the terminal that are redrawn in place, such as bars and a status.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

/// Lines are drawn at most this often.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// The size of a terminal that does not report one, in columns and rows.
const SIZE: (usize, usize) = (80, 24);

/// Lines at the end of stderr. Output printed above them stays; the lines disappear when this is dropped.
#[derive(Default)]
pub(crate) struct RedrawnLines {
    lines: Vec<String>,
    /// How many lines are on the terminal now, and since when.
    drawn: usize,
    drawn_at: Option<Instant>,
}

impl RedrawnLines {
    /// `None` unless stderr is a terminal that can move its cursor.
    pub(crate) fn on_terminal() -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        (io::stderr().is_terminal() && !is_dumb).then(Self::default)
    }

    pub(crate) fn show(&mut self, lines: Vec<String>) {
        self.lines = lines;
        if self.drawn_at.is_none_or(|at| at.elapsed() >= DRAW_EVERY) {
            self.draw("");
        }
    }

    /// Prints a line above them that stays.
    pub(crate) fn print(&mut self, line: &str) {
        self.draw(line);
    }

    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.draw("");
    }

    fn draw(&mut self, above: &str) {
        let size = tcgetwinsize(io::stderr()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (columns, rows) = size.map_or(SIZE, |size| (size.ws_col.into(), size.ws_row.into()));
        // The last row is for the cursor.
        let lines = self.lines.get(..self.lines.len().min(rows - 1)).unwrap_or_default();
        let text = frame(self.drawn, above, lines, columns);
        (self.drawn, self.drawn_at) = (lines.len(), Some(Instant::now()));
        // If stderr is closed, nothing can be shown.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

impl Drop for RedrawnLines {
    fn drop(&mut self) {
        if self.drawn > 0 {
            self.clear();
        }
    }
}

/// The text that replaces the `drawn` lines above the cursor: `above` unless it is empty, then `lines`, cut to the terminal's width,
/// because a wrapped line would take two rows.
fn frame(drawn: usize, above: &str, lines: &[String], columns: usize) -> String {
    const TO_LINE_END: &str = "\x1b[K\n";
    let mut text = String::from("\r");
    if drawn > 0 {
        // Writing to a String does not fail.
        let _ = write!(text, "\x1b[{drawn}A");
    }
    if !above.is_empty() {
        text.extend([above, TO_LINE_END]);
    }
    for line in lines {
        text.extend(line.chars().take(columns));
        text.push_str(TO_LINE_END);
    }
    text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_replace_those_drawn_before() {
        let lines = ["one".to_owned(), "größer".to_owned()];
        assert_eq!(frame(0, "", &lines, 80), "\rone\x1b[K\ngrößer\x1b[K\n\x1b[J");
        assert_eq!(frame(2, "said", &lines, 4), "\r\x1b[2Asaid\x1b[K\none\x1b[K\ngröß\x1b[K\n\x1b[J");
        assert_eq!(frame(2, "", &[], 80), "\r\x1b[2A\x1b[J");
    }
}
