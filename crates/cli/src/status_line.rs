//! Lines at the bottom of a terminal that are redrawn in place: a status, or bars. Other output of the process goes above them.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::tcgetwinsize;
use shardwise::core::Escaped;

/// The lines on the terminal.
static DRAWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Moves to the left edge and clears the line.
const CLEAR: &str = "\r\u{1b}[2K";
const UP: &str = "\u{1b}[1A";
/// Keeps one row of a line that is wider than the terminal all the same: wide characters, or a window made narrower.
const WRAP_OFF: &str = "\u{1b}[?7l";
const WRAP_ON: &str = "\u{1b}[?7h";

fn drawn() -> MutexGuard<'static, Vec<String>> {
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether stderr is a terminal that can move its cursor.
pub(crate) fn is_possible() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Draws the lines in place of the previous ones, as many as fit on the terminal; a line that is too long is cut with an ellipsis. A
/// terminal without a size cuts nothing.
pub(crate) fn draw(lines: &[String]) {
    let (columns, rows) = tcgetwinsize(io::stderr()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let most = |size: u16| if size == 0 { usize::MAX } else { size.into() };
    let lines: Vec<_> = lines.iter().take(most(rows)).map(|line| cut(line, most(columns))).collect();
    let mut drawn = drawn();
    if *drawn != lines {
        write(&(erased(&drawn) + &shown(&lines)));
        *drawn = lines;
    }
}

/// Runs `print`, which writes whole lines, while the drawn lines are removed.
pub(crate) fn above<T>(print: impl FnOnce() -> T) -> T {
    let drawn = drawn();
    if drawn.is_empty() {
        // A write to a pipe may take long and must not block drawing.
        drop(drawn);
        return print();
    }
    write(&erased(&drawn));
    let printed = print();
    write(&shown(&drawn));
    printed
}

/// Ends the drawing: the lines stay, and the next output begins below them.
pub(crate) fn end() {
    if !std::mem::take(&mut *drawn()).is_empty() {
        write("\n");
    }
}

fn cut(line: &str, columns: usize) -> String {
    let line = Escaped(line).to_string();
    if line.chars().count() <= columns { line } else { line.chars().take(columns - 1).chain(['…']).collect() }
}

/// What removes these lines and leaves the cursor at the first one.
fn erased(lines: &[String]) -> String {
    CLEAR.to_owned() + &format!("{UP}{CLEAR}").repeat(lines.len().saturating_sub(1))
}

fn shown(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("{WRAP_OFF}{}{WRAP_ON}", lines.join("\n")) }
}

fn write(text: &str) {
    // If stderr is closed, there is no terminal to draw on.
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_replace_those_drawn_before() {
        let lines = ["one".to_owned(), "größer".to_owned()];
        assert_eq!(shown(&lines), "\x1b[?7lone\ngrößer\x1b[?7h");
        assert_eq!(erased(&lines), "\r\x1b[2K\x1b[1A\r\x1b[2K");
        assert_eq!((cut(&lines[1], 6), cut(&lines[1], 4)), ("größer".to_owned(), "grö…".to_owned()));
        assert_eq!((erased(&[]), shown(&[])), ("\r\x1b[2K".to_owned(), String::new()));
    }
}
