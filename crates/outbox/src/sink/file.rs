//! A file of `CloudEvents`, one JSON line each, that several publishers append to at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::{Acceptance, Refusal, Sink, Turns, encode};
use crate::private_file::{for_this_user, warn_if_public};
use crate::{Delivery, Error, ErrorKind, Result};

/// Appends events to a file.
///
/// A batch is one write in append mode, so processes need no lock. Each write begins with a newline, so that a line torn by a crash or a
/// full disk never joins with the next. Readers skip empty and torn lines, as [`super::read_events`] does. The batch is flushed to the
/// disk before it counts as accepted. The file is opened for each batch: after a rename a new file is created.
#[derive(Debug, Clone)]
pub struct FileSink {
    path: PathBuf,
    name: String,
    source: String,
    turns: Turns,
}

impl FileSink {
    /// Appends to the file at `path`, created for this user only if it does not exist; `source` is the `CloudEvents` attribute, such as
    /// `/outbox/orders`.
    pub fn new(path: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        let path = path.into();
        Self { name: format!("file {}", path.display()), path, source: source.into(), turns: Turns::default() }
    }

    fn append(&self, batch: &[Delivery]) -> Acceptance {
        let refuse = |events, error: &io::Error| Acceptance::up_to(events, Refusal::retryable(self.failure(error).to_string()));
        let (lines, ends) = self.lines(batch);
        let written = self.open().and_then(|mut file| append_once(&mut file, &lines).and_then(|bytes| file.sync_data().map(|()| bytes)));
        match written {
            Ok(bytes) if bytes == lines.len() => Acceptance::all(batch),
            // A short write: its whole lines are on the disk, in order; readers skip the torn one.
            Ok(bytes) => refuse(ends.partition_point(|end| *end <= bytes), &io::ErrorKind::StorageFull.into()),
            Err(error) => refuse(0, &error),
        }
    }

    /// A newline and the batch, and the end position of each event's line.
    fn lines(&self, batch: &[Delivery]) -> (Vec<u8>, Vec<usize>) {
        let bytes: usize = batch.iter().map(|event| event.bytes() + 300).sum();
        let mut lines = Vec::with_capacity(bytes);
        lines.push(b'\n');
        let ends = batch.iter().map(|event| {
            encode(event, &self.source, &mut lines);
            lines.len()
        });
        let ends = ends.collect();
        (lines, ends)
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        match options.append(true).open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let file = for_this_user(&mut options).create(true).open(&self.path)?;
        // A new file's name is durable only once its directory is synced.
        File::open(self.directory())?.sync_all()?;
        Ok(file)
    }

    fn directory(&self) -> &Path {
        self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Opens the file as a delivery does. A pipe is not opened, because that waits for a reader.
    fn check_file(&self) -> Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
            _ => self.open().map(drop).map_err(|error| self.failure(&error)),
        }
    }

    /// What prevents a write, and what to do. It is retryable if it may pass, or be corrected while the publisher runs.
    fn failure(&self, error: &io::Error) -> Error {
        use io::ErrorKind as Io;
        let (kind, what) = match error.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Unavailable, "the disk is full: free some space".to_owned()),
            Io::NotFound if self.directory().is_dir() => {
                (ErrorKind::Denied, "it cannot be created in that directory: name another path".to_owned())
            }
            Io::NotFound => (ErrorKind::Unavailable, "its directory does not exist: create it".to_owned()),
            Io::PermissionDenied => (ErrorKind::Denied, "permission denied: let this user write the file, or name another path".to_owned()),
            Io::IsADirectory => (ErrorKind::Denied, "this is a directory: name a file".to_owned()),
            Io::NotADirectory | Io::ReadOnlyFilesystem => (ErrorKind::Denied, format!("{error}: name another path")),
            _ => (ErrorKind::Unavailable, error.to_string()),
        };
        Error::new(kind, format!("{}: {what}", self.name))
    }
}

/// Makes one write and returns how much was written; never a second write, since another process may have appended in between.
fn append_once(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            written => return written,
        }
    }
}

#[async_trait]
impl Sink for FileSink {
    fn name(&self) -> &str {
        &self.name
    }

    async fn check(&self) -> Result<()> {
        let sink = self.clone();
        let checked = tokio::task::spawn_blocking(move || sink.check_file()).await;
        warn_if_public(&self.path);
        // A check that did not finish decides nothing; a delivery reports the same.
        checked.unwrap_or(Ok(()))
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let sink = self.clone();
        self.turns.write(&self.name, move || sink.append(&batch)).await
    }
}
