//! The public suites, run on the crate's stores and sinks.

use std::sync::Arc;

use crate::common::Outbox;
use async_trait::async_trait;
use shardwise_outbox::exercise::{self, ScriptedSink, SinkHarness};
use shardwise_outbox::sink::read_events;
use shardwise_outbox::{FileSink, Sink, StdoutSink};
use tempfile::TempDir;

#[tokio::test]
async fn sqlite_is_a_store() {
    exercise::store(Outbox::stopped).await;
}

struct File(TempDir);

#[async_trait]
impl SinkHarness for File {
    async fn open(&self) -> Arc<dyn Sink> {
        Arc::new(FileSink::new(self.0.path().join("events.jsonl"), "/outbox/test"))
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        let events = read_events(self.0.path().join("events.jsonl")).unwrap().map(Result::unwrap);
        events.map(|event| (event.key, event.sequence, event.id)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_a_sink() {
    exercise::sink(|| async { File(tempfile::tempdir().unwrap()) }).await;
}

/// New files with events are readable by this user only, and opening a file that every user can read logs a warning.
#[cfg(unix)]
#[tokio::test]
async fn files_with_events_are_for_this_user_only() {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    store.enqueue_all(crate::common::events("a", 1..=2)).await.unwrap();
    let path = outbox.dir.path().join("events.jsonl");
    let sink = FileSink::new(&path, "/outbox/test");
    sink.deliver(exercise::deliveries("a", 1, 1).into()).await;
    let files = ["app.db", "app.db-wal", "app.db-shm", "events.jsonl"].map(|name| outbox.dir.path().join(name));
    for file in &files {
        assert_eq!(metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    let (said, _log) = crate::common::Said::start();
    sink.check().await.unwrap();
    outbox.store().await;
    assert_eq!(said.lines(), Vec::<String>::new(), "nobody else may read them");
    set_permissions(outbox.dir.path(), Permissions::from_mode(0o755)).unwrap();
    for file in &files {
        set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    sink.check().await.unwrap();
    outbox.store().await;
    let said = said.lines();
    for file in &files {
        let path = format!("path={} mode=\"0644\"", file.display());
        let tells = |line: &&String| line.contains("WARN") && line.contains("every user of this machine may read") && line.contains(&path);
        assert_eq!(said.iter().filter(tells).count(), 1, "{path}: {said:?}");
    }
}

struct Stream(TempDir, Arc<dyn Sink>);

#[async_trait]
impl SinkHarness for Stream {
    async fn open(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.1)
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        let events = read_events(self.0.path().join("out")).unwrap().map(Result::unwrap);
        events.map(|event| (event.key, event.sequence, event.id)).collect()
    }
}

/// Standard output belongs to one process, so there is only one.
#[tokio::test]
async fn a_stream_is_a_sink() {
    let fresh = || async {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("out")).unwrap();
        Stream(dir, Arc::new(StdoutSink::to(file, "/outbox/test")))
    };
    exercise::sink(fresh).await;
}

struct Scripted(ScriptedSink);

#[async_trait]
impl SinkHarness for Scripted {
    async fn open(&self) -> Arc<dyn Sink> {
        Arc::new(self.0.clone())
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        self.0.arrived().into_iter().map(|event| (event.key(), event.sequence, event.id)).collect()
    }
}

#[tokio::test]
async fn the_scripted_sink_is_a_sink() {
    exercise::sink(|| async { Scripted(ScriptedSink::accepting()) }).await;
}

#[tokio::test]
async fn a_full_disk_is_a_refusal_and_a_torn_line_is_skipped() {
    let full = FileSink::new("/dev/full", "/outbox/test").deliver(exercise::deliveries("a", 1, 3).into()).await;
    let refusal = full.refusal.unwrap();
    assert_eq!((full.events, refusal.permanent), (0, false));
    assert_eq!(refusal.message, "file /dev/full: the disk is full: free some space");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let sink = FileSink::new(&path, "/outbox/test");
    sink.deliver(exercise::deliveries("a", 1, 2).into()).await;
    let whole = std::fs::read(&path).unwrap();
    // The remains of another process that was killed in the middle of its write.
    std::fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    sink.deliver(exercise::deliveries("a", 2, 2).into()).await;
    let sequences: Vec<_> = read_events(&path).unwrap().map(|event| event.unwrap().sequence).collect();
    assert_eq!(sequences, [1, 2, 3]);
    let missing = FileSink::new(dir.path().join("no/events.jsonl"), "/outbox/test").deliver(exercise::deliveries("a", 1, 1).into()).await;
    assert!(missing.refusal.unwrap().message.ends_with("its directory does not exist: create it"));
}

/// Regression: a file that cannot be written was noticed with the first event, and not at the start.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_cannot_be_written_is_reported_by_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let checked = async |path: &std::path::Path| FileSink::new(path, "/outbox/test").check().await;
    let missing = checked(&dir.path().join("no/events.jsonl")).await.unwrap_err();
    assert!(missing.is_retryable() && missing.to_string().ends_with("its directory does not exist: create it"), "{missing}");
    for (path, why) in [
        (std::path::Path::new("/proc/none.jsonl"), "it cannot be created in that directory"),
        (dir.path(), "this is a directory: name a file"),
    ] {
        let refused = checked(path).await.unwrap_err();
        assert!(!refused.is_retryable() && refused.to_string().contains(why), "{refused}");
    }
    checked(&dir.path().join("events.jsonl")).await.unwrap();
    checked(std::path::Path::new("/dev/full")).await.unwrap();
}
