//! Reads events as JSON lines from a file or stdin, on a separate thread.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

pub(crate) use crate::event_lines::EventLine;
use crate::event_lines::EventLines;
use crate::exit::{CliFailure, Result};
use crate::output;

const LINES_AHEAD: usize = 1_024;

/// Opens a file, or stdin for `-`.
pub(crate) fn open(from: &Path) -> Result<mpsc::Receiver<io::Result<EventLine>>> {
    let reader: Box<dyn BufRead + Send> = if from == Path::new("-") {
        output::waits_for_lines();
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file = std::fs::File::open(from).map_err(|error| unreadable(from, &error))?;
        Box::new(BufReader::new(file))
    };
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut lines = EventLines::of(reader);
        while let Some(line) = lines.next_line().transpose() {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}

pub(crate) fn unreadable(from: &Path, error: &io::Error) -> CliFailure {
    let name = if from == Path::new("-") { PathBuf::from("stdin") } else { from.into() };
    CliFailure::io(format_args!("read {}", name.display()), error)
}
