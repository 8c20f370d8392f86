//! Follows the delivered file while it grows.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use shardwise_outbox::sink::{ReadEvent, parse_line};

const CHUNK_BYTES: usize = 256 * 1_024;

/// Reads whole lines as they appear; an incomplete last line waits.
pub(super) struct FileTail {
    path: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
    /// Lines that are not an event.
    pub(super) torn: u64,
}

impl FileTail {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path, file: None, rest: Vec::new(), torn: 0 }
    }

    /// Passes every event since the last call to `each`.
    pub(super) fn read(&mut self, mut each: impl FnMut(ReadEvent)) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match File::open(&self.path) {
                Ok(file) => self.file.insert(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = file.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            self.rest.extend_from_slice(&chunk[..read]);
            let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { continue };
            for line in self.rest[..end].split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
                match parse_line(line) {
                    Some(event) => each(event),
                    None => self.torn += 1,
                }
            }
            self.rest.drain(..=end);
        }
    }
}
