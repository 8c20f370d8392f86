//! The public suites, run on what comes with the crate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use common::Outbox;
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

/// One process, as standard output is one process's.
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
