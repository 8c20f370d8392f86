//! Reads events as JSON lines from a file or stdin, on a separate thread.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use tokio::sync::mpsc;

pub(crate) use crate::event_lines::EventLine;
use crate::event_lines::EventLines;
use crate::exit::{CliFailure, Result};
use crate::output;

const LINES_AHEAD: usize = 1_024;

/// Opens a file, or stdin for `-`.
pub(crate) fn open(from: &Path) -> Result<mpsc::Receiver<Result<EventLine>>> {
    let is_stdin = from == Path::new("-");
    let name = if is_stdin { "stdin".to_owned() } else { from.display().to_string() };
    let unreadable = move |error: io::Error| CliFailure::io(format_args!("read {name}"), &error);
    let reader: Box<dyn BufRead + Send> = if is_stdin {
        output::waits_for_lines();
        Box::new(BufReader::new(io::stdin()))
    } else {
        Box::new(BufReader::new(File::open(from).map_err(&unreadable)?))
    };
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut lines = EventLines::of(reader);
        while let Some(line) = lines.next_line().map_err(&unreadable).transpose() {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}
