//! Through PgBouncer in transaction mode, where no notification arrives and each transaction may have another connection: the conformance
//! suites, and what is said in the log.

mod common;

use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use common::{PACE, backend, eventually, group, lasting, prepared, scope_of, shared, view_of, waited_for};
use shardwise_discovery::Discovery;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::PgBouncer;
use tokio::sync::OnceCell;
use tracing::Level;

struct OnePooler;

/// The address of a database through a pooler that all cases share.
async fn pooled() -> &'static str {
    static SHARED: OnceCell<(PgBouncer, String)> = OnceCell::const_new();
    let start = async || {
        let (server, database) = (shared().await, prepared(&shared().await).await);
        let pooler = PgBouncer::start(&server).await.unwrap_or_else(|error| unreachable!("{error}"));
        let url = pooler.url(&database);
        (pooler, url)
    };
    &SHARED.get_or_init(start).await.1
}

#[async_trait]
impl Fixture for OnePooler {
    async fn scope(&self) -> Scope {
        scope_of(waited_for(pooled()))
    }
}

shardwise_discovery::conformance_tests!(OnePooler);
shardwise_discovery::claims_conformance_tests!(OnePooler);
shardwise_discovery::notes_conformance_tests!(OnePooler);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A change is seen within a poll, and the log says once why not at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_found_by_polling_and_that_is_said_once() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::INFO).with_ansi(false).with_writer(move || writer.clone()).finish();
    // The other cases of this program may log as well: only this backend has the database's name in the line.
    let _installed = tracing::subscriber::set_global_default(subscriber);
    let url = pooled().await;
    let (here, there) = (backend(url), backend(url));
    let mut watch = there.watch(&group(), PACE);
    view_of(&mut watch, &[]).await;
    let a = lasting("a", 1);
    here.register(&a).await.unwrap_or_else(|error| unreachable!("{error}"));
    view_of(&mut watch, &["a"]).await;
    here.deregister(&a.record_id()).await.unwrap_or_else(|error| unreachable!("{error}"));
    view_of(&mut watch, &[]).await;
    let said = || String::from_utf8_lossy(&log.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)).into_owned();
    eventually("the line in the log", async || said().contains("a pooler is in front of PostgreSQL").then_some(())).await;
}
