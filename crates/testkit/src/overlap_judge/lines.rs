//! The lines that a worker process writes: one JSON object a line, in one write each, so that no line of a killed process is lost.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// A moment of the machine's boot clock, in nanoseconds: the same for all processes.
pub type At = u64;

/// One line. A singleton and a timer have numbers behind those of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the text of each variant explains its fields")]
pub enum Line {
    /// Work began: at that moment the slot was held under the epoch, and would be until the deadline.
    Enter { slot: u32, epoch: u64, at: At, until: At },
    /// Looked at again: still held without a gap, until this deadline now.
    Held { slot: u32, epoch: u64, at: At, until: At },
    /// The work ends in good order; it is held up to here.
    Leave { slot: u32, epoch: u64, at: At },
    /// The work, which still runs, finds that the slot is not held any more; and whether the service says that it is, all the same.
    Lost { slot: u32, epoch: u64, at: At, owns: bool },
    /// The work wrote into the fenced table: asked at `at`, answered at `done`.
    Wrote { slot: u32, epoch: u64, at: At, done: At, passed: bool },
    /// A job of a timer begins, for the period of that number.
    Fired { slot: u32, epoch: u64, at: At, period: u64 },
}

impl Line {
    fn to_json(self) -> Value {
        match self {
            Self::Enter { slot, epoch, at, until } => json!({ "line": "enter", "slot": slot, "epoch": epoch, "at": at, "until": until }),
            Self::Held { slot, epoch, at, until } => json!({ "line": "held", "slot": slot, "epoch": epoch, "at": at, "until": until }),
            Self::Leave { slot, epoch, at } => json!({ "line": "leave", "slot": slot, "epoch": epoch, "at": at }),
            Self::Lost { slot, epoch, at, owns } => json!({ "line": "lost", "slot": slot, "epoch": epoch, "at": at, "owns": owns }),
            Self::Wrote { slot, epoch, at, done, passed } => {
                json!({ "line": "wrote", "slot": slot, "epoch": epoch, "at": at, "done": done, "passed": passed })
            }
            Self::Fired { slot, epoch, at, period } => json!({ "line": "fired", "slot": slot, "epoch": epoch, "at": at, "period": period }),
        }
    }

    fn from_json(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let number = |field: &str| line[field].as_u64();
        let (slot, epoch, at) = (u32::try_from(number("slot")?).ok()?, number("epoch")?, number("at")?);
        Some(match line["line"].as_str()? {
            "enter" => Self::Enter { slot, epoch, at, until: number("until")? },
            "held" => Self::Held { slot, epoch, at, until: number("until")? },
            "leave" => Self::Leave { slot, epoch, at },
            "lost" => Self::Lost { slot, epoch, at, owns: line["owns"].as_bool()? },
            "wrote" => Self::Wrote { slot, epoch, at, done: number("done")?, passed: line["passed"].as_bool()? },
            "fired" => Self::Fired { slot, epoch, at, period: number("period")? },
            _ => return None,
        })
    }
}

/// Where a worker process writes its lines.
#[derive(Debug)]
pub struct StayLog {
    file: Mutex<File>,
    path: PathBuf,
}

impl StayLog {
    /// Appends to that file, which is created if it does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path).map_err(Error::io(path.display()))?;
        Ok(Self { file: Mutex::new(file), path: path.to_owned() })
    }

    /// Writes one line.
    pub fn write(&self, line: Line) -> Result<()> {
        self.append(format!("{}\n", line.to_json()).as_bytes())
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(bytes).map_err(Error::io(self.path.display()))
    }
}

/// Reads the lines of a worker process while it writes them.
#[derive(Debug)]
pub struct StayLogReader {
    file: File,
    path: PathBuf,
    rest: String,
}

impl StayLogReader {
    /// Of a process that may not have begun yet.
    pub fn open(path: &Path) -> Result<Self> {
        drop(StayLog::open(path)?);
        let file = File::open(path).map_err(Error::io(path.display()))?;
        Ok(Self { file, path: path.to_owned(), rest: String::new() })
    }

    /// The lines that are new. The last one of a killed process may have no end, and is never returned.
    pub fn new_lines(&mut self) -> Result<Vec<Line>> {
        self.file.read_to_string(&mut self.rest).map_err(Error::io(self.path.display()))?;
        let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
        let unread = |line: &str| Error::new(format!("{}: not a line of a worker: {line}", self.path.display()));
        let lines = self.rest[..whole].lines().map(|line| Line::from_json(line).ok_or_else(|| unread(line))).collect::<Result<_>>()?;
        self.rest.drain(..whole);
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_half_a_line_is_waited_for() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("lines");
        let (mut reader, log) = (StayLogReader::open(&path).unwrap(), StayLog::open(&path).unwrap());
        let (slot, epoch, at) = (7, 9, 11);
        let lines = [
            Line::Enter { slot, epoch, at, until: 20 },
            Line::Held { slot, epoch, at, until: 30 },
            Line::Leave { slot, epoch, at },
            Line::Lost { slot, epoch, at, owns: false },
            Line::Wrote { slot, epoch, at, done: 12, passed: true },
            Line::Fired { slot, epoch, at, period: 1_800_000_000 },
        ];
        for line in lines {
            log.write(line).unwrap();
        }
        log.append(br#"{"line":"leave","slot":7,"#).unwrap();
        assert_eq!(reader.new_lines().unwrap(), lines);
        log.append(b"\"epoch\":9,\"at\":11}\n").unwrap();
        assert_eq!(reader.new_lines().unwrap(), [lines[2]]);
        log.append(b"no line\n").unwrap();
        assert!(reader.new_lines().unwrap_err().to_string().ends_with("not a line of a worker: no line"));
    }
}
