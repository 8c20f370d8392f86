//! What is logged while a test runs.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::{Arc, Mutex, Once};

use tracing::subscriber::DefaultGuard;

/// Text logged on this thread.
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
        static ELSEWHERE: Once = Once::new();
        // A thread without any subscriber could switch the same line off for the others: it registers the line as unwanted.
        ELSEWHERE.call_once(|| {
            let nowhere = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
            tracing::subscriber::set_global_default(nowhere).expect("the first of the process");
        });
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
