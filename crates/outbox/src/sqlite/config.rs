//! Where the database file is and how to open it.

use std::path::PathBuf;
use std::time::Duration;

use shardwise::discovery::Clock;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

/// Where the database file is and how it is used.
#[derive(Debug, Clone)]
pub struct SqliteConfig {
    pub(super) path: PathBuf,
    pub(super) busy_timeout: Duration,
    pages_max: Option<u32>,
    pub(super) clock: Clock,
    pub(super) boot_id: String,
}

impl SqliteConfig {
    /// The file at `path`, waiting at most 5 s for a lock.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            busy_timeout: Duration::from_secs(5),
            pages_max: None,
            clock: Clock::system(),
            boot_id: machine_boot_id(),
        }
    }

    /// How long a call waits while another process holds the file's write lock.
    #[must_use]
    pub fn busy_timeout(self, busy_timeout: Duration) -> Self {
        Self { busy_timeout, ..self }
    }

    /// The most pages (4 KiB each unless the file has another size) to which this store may grow the file.
    #[must_use]
    pub fn pages_max(self, pages_max: u32) -> Self {
        Self { pages_max: Some(pages_max), ..self }
    }

    /// Replaces the machine's clock and boot id, for tests. Processes that share a file must share both.
    #[must_use]
    pub fn clock(self, clock: Clock, boot_id: impl Into<String>) -> Self {
        Self { clock, boot_id: boot_id.into(), ..self }
    }

    pub(super) fn connect_options(&self, create: bool) -> SqliteConnectOptions {
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(create)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(self.busy_timeout)
            .row_buffer_size(512);
        match self.pages_max {
            Some(pages) => options.pragma("max_page_count", pages.to_string()),
            None => options,
        }
    }
}

impl<P: Into<PathBuf>> From<P> for SqliteConfig {
    fn from(path: P) -> Self {
        Self::new(path)
    }
}

/// The kernel's id of this boot. Systems other than Linux have none; a time from another boot is then recognized only if it lies in the
/// future. The SQL of the fence knows this placeholder.
fn machine_boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
}
