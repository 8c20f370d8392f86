//! One line at the bottom of a terminal that shows how things stand and is redrawn in place. What else the process writes goes above it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shardwise_outbox::one_line;

/// What is drawn; empty if nothing is.
static DRAWN: Mutex<String> = Mutex::new(String::new());

/// Back to the left edge, and the line is empty.
const CLEAR: &str = "\r\u{1b}[2K";
/// A line that is longer than the terminal is wide is cut, so that it stays one line.
const WRAP_OFF: &str = "\u{1b}[?7l";
const WRAP_ON: &str = "\u{1b}[?7h";

fn drawn() -> MutexGuard<'static, String> {
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there is a terminal to draw on: stderr is one, and it understands more than lines.
pub(crate) fn is_possible() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Draws the line in place of the one before.
pub(crate) fn draw(line: &str) {
    let line = one_line(line, usize::MAX);
    let mut drawn = drawn();
    if *drawn != line {
        write(&format!("{CLEAR}{WRAP_OFF}{line}{WRAP_ON}"));
        *drawn = line;
    }
}

/// Runs `print`, which writes whole lines, with the line out of the way.
pub(crate) fn above<T>(print: impl FnOnce() -> T) -> T {
    let drawn = drawn();
    if drawn.is_empty() {
        // A write to a pipe may take long: it keeps nobody from drawing.
        drop(drawn);
        return print();
    }
    write(CLEAR);
    let printed = print();
    write(&format!("{WRAP_OFF}{drawn}{WRAP_ON}"));
    printed
}

/// Ends the drawing: the line stays as it is, and the next output begins below it.
pub(crate) fn end() {
    if !std::mem::take(&mut *drawn()).is_empty() {
        write("\n");
    }
}

fn write(text: &str) {
    // With stderr gone there is no terminal to draw on.
    let _ = io::stderr().write_all(text.as_bytes());
}
