//! What is logged while a test runs.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

/// Text logged on this thread. If one test of a file has one, all tests of that file need one: a thread without it could switch the same
/// line off for the others (it registers the line as unwanted).
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let to_log = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to_log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn lines_with(&self, part: &str) -> usize {
        self.lines_where(|line| line.contains(part))
    }

    pub(crate) fn lines_where(&self, is_counted: impl Fn(&str) -> bool) -> usize {
        String::from_utf8_lossy(&self.0.lock().expect("not poisoned")).lines().filter(|line| is_counted(line)).count()
    }
}
