//! Follows the delivered file while it grows.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use shardwise_outbox::sink::{ReadEvent, parse_line};

/// Reads whole lines as they appear; an incomplete last line waits.
pub(super) struct FileTail {
    path: PathBuf,
    file: Option<BufReader<File>>,
    line: Vec<u8>,
}

impl FileTail {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path, file: None, line: Vec::new() }
    }

    /// Passes every event since the last call to `each`.
    pub(super) fn read(&mut self, mut each: impl FnMut(ReadEvent)) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match File::open(&self.path) {
                Ok(file) => self.file.insert(BufReader::new(file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        while file.read_until(b'\n', &mut self.line)? > 0 && self.line.ends_with(b"\n") {
            // A killed publisher may have left part of a line.
            parse_line(&self.line).into_iter().for_each(&mut each);
            self.line.clear();
        }
        Ok(())
    }
}
