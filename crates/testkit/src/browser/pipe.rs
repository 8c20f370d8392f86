//! Chromium's debugging protocol over two pipes: JSON, each message ended by a zero byte. Calls wait for their answers; events are kept.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::sys::stat::Mode;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::process::PATIENCE;

/// Bytes from the browser that were not consumed yet.
#[derive(Debug, Default)]
struct PipeInbox {
    answers: HashMap<u64, Value>,
    events: Vec<Value>,
}

#[derive(Debug, Default)]
struct PipeShared {
    inbox: Mutex<PipeInbox>,
    arrived: Condvar,
}

impl PipeShared {
    fn inbox(&self) -> MutexGuard<'_, PipeInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct Pipe {
    to: Mutex<File>,
    next: AtomicU64,
    shared: Arc<PipeShared>,
    /// Kept open on our side too, so that we can end the reader.
    from: File,
}

impl Pipe {
    /// Makes the two pipes, before the browser is started.
    pub(super) fn make(to: &Path, from: &Path) -> Result<Self> {
        for path in [to, from] {
            nix::unistd::mkfifo(path, Mode::S_IRWXU).map_err(|error| Error::new(format!("{}: {error}", path.display())))?;
        }
        // Opened for reading and writing, so that neither side blocks on the other.
        let open = |path: &Path| File::options().read(true).write(true).open(path).map_err(Error::io(path.display()));
        let (to, from) = (open(to)?, open(from)?);
        let shared = Arc::<PipeShared>::default();
        let (reading, shared_reader) = (from.try_clone().map_err(Error::io("a pipe"))?, Arc::clone(&shared));
        std::thread::spawn(move || read(BufReader::new(reading), &shared_reader));
        Ok(Self { to: Mutex::new(to), next: AtomicU64::new(1), shared, from })
    }

    /// Calls a method, of a tab where `session` names one, and waits for the answer.
    pub(super) fn call(&self, session: Option<&str>, method: &str, params: &Value) -> Result<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let bytes = [message.to_string().as_bytes(), &[0]].concat();
        self.to.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes).map_err(Error::io("the browser's pipe"))?;
        let begun = Instant::now();
        let mut inbox = self.shared.inbox();
        loop {
            if let Some(mut answer) = inbox.answers.remove(&id) {
                return match answer.get("error") {
                    Some(error) => Err(Error::new(format!("{method}: {error}"))),
                    None => Ok(answer["result"].take()),
                };
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Error::new(format!("the browser has not answered {method} within {PATIENCE:?}")));
            }
            inbox = self.shared.arrived.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The events of this name in a tab so far, as their parameters.
    pub(super) fn events(&self, session: &str, method: &str) -> Vec<Value> {
        let wanted = |event: &&Value| event["sessionId"] == session && event["method"] == method;
        self.shared.inbox().events.iter().filter(wanted).map(|event| event["params"].clone()).collect()
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // If it fails, the reader has gone.
        let _ = self.from.write_all(b"null\0");
    }
}

/// Takes in messages until one that is none.
fn read(mut from: BufReader<File>, shared: &PipeShared) {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if from.read_until(0, &mut bytes).is_err() {
            return;
        }
        let message: Value = serde_json::from_slice(bytes.strip_suffix(&[0]).unwrap_or(&bytes)).unwrap_or_default();
        if message.is_null() {
            return;
        }
        let mut inbox = shared.inbox();
        match message["id"].as_u64() {
            Some(id) => drop(inbox.answers.insert(id, message)),
            None => inbox.events.push(message),
        }
        shared.arrived.notify_all();
    }
}
