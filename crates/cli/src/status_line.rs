//! A status line at the bottom of a terminal, redrawn in place. Other output of the process goes above it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shardwise_outbox::one_line;

/// The line on the terminal; empty if there is none.
static DRAWN: Mutex<String> = Mutex::new(String::new());

/// Moves to the left edge and clears the line.
const CLEAR: &str = "\r\u{1b}[2K";
/// Keeps one line of a line that is wider than the terminal all the same: wide characters, or a window made narrower.
const WRAP_OFF: &str = "\u{1b}[?7l";
const WRAP_ON: &str = "\u{1b}[?7h";

fn drawn() -> MutexGuard<'static, String> {
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether stderr is a terminal that can move its cursor.
pub(crate) fn is_possible() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The columns of the terminal, which cuts a longer line with an ellipsis. A terminal without a size cuts nothing.
fn columns() -> usize {
    let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
    if columns == 0 { usize::MAX } else { columns.into() }
}

/// Draws the line in place of the previous one.
pub(crate) fn draw(line: &str) {
    let line = one_line(line, columns());
    let mut drawn = drawn();
    if *drawn != line {
        write(&format!("{CLEAR}{WRAP_OFF}{line}{WRAP_ON}"));
        *drawn = line;
    }
}

/// Runs `print`, which writes whole lines, while the status line is removed.
pub(crate) fn above<T>(print: impl FnOnce() -> T) -> T {
    let drawn = drawn();
    if drawn.is_empty() {
        // A write to a pipe may take long and must not block drawing.
        drop(drawn);
        return print();
    }
    write(CLEAR);
    let printed = print();
    write(&format!("{WRAP_OFF}{drawn}{WRAP_ON}"));
    printed
}

/// Ends the drawing: the line stays, and the next output begins below it.
pub(crate) fn end() {
    if !std::mem::take(&mut *drawn()).is_empty() {
        write("\n");
    }
}

fn write(text: &str) {
    // If stderr is closed, there is no terminal to draw on.
    let _ = io::stderr().write_all(text.as_bytes());
}
