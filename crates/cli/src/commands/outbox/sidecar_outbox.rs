//! The outbox on the sidecar's page.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryFutureExt as _};
use shardwise_outbox::report_backlog;
use shardwise_outbox::settings::OutboxSettings;
use shardwise_outbox::store::{DeadLetter, Signature, Stuck};
use shardwise_sidecar::{OutboxLetter, OutboxReplay, OutboxStatus, OutboxStuck};
use tokio::sync::OnceCell;

use super::open_store::OpenedStore;
use super::{dead, sink};
use crate::exit::CliFailure;
use crate::output::millis;

const SHOWN: usize = 100;

/// The first request opens the store, and the next one retries after a failure. The sidecar works without the store in every other
/// respect.
pub(crate) struct SidecarOutbox {
    name: String,
    settings: OutboxSettings,
    store: OnceCell<OpenedStore>,
}

impl SidecarOutbox {
    pub(crate) fn new(name: &str, settings: &OutboxSettings) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), settings: settings.clone(), store: OnceCell::new() })
    }

    async fn store(&self) -> Result<&OpenedStore, CliFailure> {
        self.store.get_or_try_init(|| OpenedStore::open(&self.settings)).await
    }

    /// Counts the outbox for `/metrics` as long as it is polled: publishers count it too, but only while one of them is alive.
    pub(crate) async fn report(self: Arc<Self>, ttl: Duration) {
        // The same label as the publishers'. A sidecar may lack the right to read the sink's password.
        let sink = sink::made(&self.settings).map_or_else(|_| "unknown".to_owned(), |sink| sink.name().to_owned());
        let (poll, shown) = (self.settings.options.poll, self);
        let count_backlog = move |most| {
            let shown = Arc::clone(&shown);
            async move { Ok::<_, CliFailure>(shown.store().await?.shared().backlog(most).await?) }
                .map_err(|failure| failure.to_string())
                .boxed()
        };
        report_backlog(count_backlog, &sink, poll, ttl).await;
    }
}

impl shardwise_sidecar::Outbox for SidecarOutbox {
    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> BoxFuture<'_, Result<OutboxStatus, String>> {
        let status = async move {
            let store = self.store().await?;
            let status = store.shared().status().await?;
            let mut dead = store.dead_letters().dead_letters(None, SHOWN + 1).await?;
            let more = dead.len() > SHOWN;
            dead.truncate(SHOWN);
            let stuck = status.stuck(self.settings.options.poll).into_iter();
            Ok::<_, CliFailure>(OutboxStatus {
                outbox: self.name.clone(),
                stuck: stuck.map(|Stuck { cause, detail }| OutboxStuck { cause: cause.as_str().to_owned(), detail }).collect(),
                pending: status.pending,
                oldest_pending_age_ms: status.oldest_pending_age.map(millis),
                blocked_aggregates: status.blocked_aggregates,
                retrying_aggregates: status.retrying.as_ref().map_or(0, |retrying| retrying.aggregates),
                parked: status.parked,
                free_slots: status.free_slots,
                publishers: status.publishers.iter().filter(|publisher| publisher.alive).count(),
                dead: dead.into_iter().map(letter).collect(),
                more,
            })
        };
        status.map_err(|failure| failure.to_string()).boxed()
    }

    fn replay<'a>(&'a self, event: &'a str, who: &'a str, why: &'a str) -> BoxFuture<'a, Result<OutboxReplay, String>> {
        let replay = async move {
            let signature = Signature::new(who, why)?;
            Ok::<_, CliFailure>(dead::replay(&*self.store().await?.dead_letters(), event.to_owned(), &signature).await?)
        };
        replay.map_err(|failure| failure.to_string()).boxed()
    }
}

fn letter(letter: DeadLetter) -> OutboxLetter {
    let DeadLetter { id, key, event_type, sequence, state, dead_for, error, .. } = letter;
    OutboxLetter { id, key, event_type, sequence, state: state.as_str().to_owned(), dead_for_ms: millis(dead_for), error }
}
