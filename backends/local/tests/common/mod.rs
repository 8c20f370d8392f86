//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardwise_backend_local::{LocalBackend, LocalConfig};
use shardwise_core::{GroupName, Incarnation, InstanceId, Member, View};
use shardwise_discovery::{Clock, Error, ErrorKind, Registration, WatchStream, conformance};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

/// Long enough for the busiest machine; a test that waits this long fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `condition` gives something, for at most [`PATIENCE`].
pub(crate) async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A directory that goes away, and a path in it.
pub(crate) struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory().join("members.db")
    }

    pub(crate) fn backend(&self) -> LocalBackend {
        backend(&self.path())
    }

    pub(crate) async fn sql(&self) -> SqliteConnection {
        sql(&self.path()).await
    }
}

pub(crate) fn backend(path: &Path) -> LocalBackend {
    with_clock(path, Clock::system())
}

pub(crate) fn with_clock(path: &Path, clock: Clock) -> LocalBackend {
    LocalBackend::open(LocalConfig { path: path.to_owned() }, clock).unwrap()
}

/// A connection of somebody else's to the file.
pub(crate) async fn sql(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true).busy_timeout(PATIENCE);
    options.connect().await.unwrap()
}

/// Runs statements of somebody else's on the file and lets go of it.
pub(crate) async fn run_sql(path: &Path, statements: &'static str) {
    let mut connection = sql(path).await;
    sqlx::raw_sql(statements).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

pub(crate) fn group() -> GroupName {
    GroupName::new("workers").unwrap()
}

pub(crate) fn registration(id: &str, incarnation: u64, ttl: Duration) -> Registration {
    let member = Member { incarnation: Incarnation::new(incarnation), ..Member::named(InstanceId::new(id).unwrap()) };
    Registration { group: group(), member, ttl, claims: false }
}

pub(crate) fn ids(view: &View) -> Vec<&str> {
    view.members().iter().map(|member| member.instance_id.as_str()).collect()
}

/// The next view that has exactly these members.
pub(crate) async fn view_of(stream: &mut WatchStream, expected: &[&str]) -> Arc<View> {
    conformance::view_where(stream, PATIENCE, &format!("{expected:?}"), |view| ids(view) == expected).await
}

/// The next error.
pub(crate) async fn next_error(stream: &mut WatchStream) -> Error {
    conformance::next_error(stream, PATIENCE).await
}

/// Checks kind, whether it may pass, and the whole text.
pub(crate) fn expect_error(error: &Error, kind: &ErrorKind, text: &str) {
    assert_eq!(error.to_string(), text);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(!text.contains('\n'));
}
