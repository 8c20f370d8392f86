//! What a worker process of the fault test writes down: one JSON object a line, in
//! one write each, so that nothing of a killed process's lines is lost.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Value, json};

/// A moment of the machine's boot clock, in nanoseconds: the same for all processes.
pub(crate) type At = u64;

/// One line. A singleton and a timer have numbers behind those of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
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
pub(crate) struct Book(Mutex<File>);

impl Book {
    pub(crate) fn open(path: &Path) -> Self {
        Self(Mutex::new(File::options().create(true).append(true).open(path).unwrap()))
    }

    pub(crate) fn write(&self, line: Line) {
        self.0.lock().unwrap().write_all(format!("{}\n", line.to_json()).as_bytes()).unwrap();
    }
}

/// Reads the lines of a worker process while it writes them.
pub(crate) struct Reader {
    file: File,
    rest: String,
}

impl Reader {
    /// Of a process that has not begun yet.
    pub(crate) fn open(path: &Path) -> Self {
        drop(Book::open(path));
        Self { file: File::open(path).unwrap(), rest: String::new() }
    }

    /// The lines that are new.
    pub(crate) fn news(&mut self) -> Vec<Line> {
        self.file.read_to_string(&mut self.rest).unwrap();
        let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
        let lines = self.rest[..whole].lines().map(|line| Line::from_json(line).unwrap_or_else(|| panic!("no line of a worker: {line}")));
        let lines = lines.collect();
        self.rest.drain(..whole);
        lines
    }
}

#[test]
fn a_line_is_read_as_it_was_written_and_half_a_line_is_waited_for() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("lines");
    let (mut reader, book) = (Reader::open(&path), Book::open(&path));
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
        book.write(line);
    }
    book.0.lock().unwrap().write_all(br#"{"line":"leave","slot":7,"#).unwrap();
    assert_eq!(reader.news(), lines);
    book.0.lock().unwrap().write_all(b"\"epoch\":9,\"at\":11}\n").unwrap();
    assert_eq!(reader.news(), [lines[2]]);
}
