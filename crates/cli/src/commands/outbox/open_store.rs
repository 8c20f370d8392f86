//! Opens the store in the settings.

use std::sync::Arc;

use shardwise::Serves;
use shardwise_outbox::settings::{OutboxSettings, StoreSettings};
use shardwise_outbox::{DeadLetters, NewEvent, SqliteStore, Store};
#[cfg(feature = "postgres")]
use shardwise_outbox::{PostgresConfig, PostgresStore};

use crate::exit::{CliFailure, Code, Result};
use crate::features;

pub(super) enum OpenedStore {
    Sqlite(SqliteStore),
    #[cfg(feature = "postgres")]
    Postgres(PostgresStore),
}

impl OpenedStore {
    pub(super) async fn open(outbox: &OutboxSettings) -> Result<Self> {
        match &outbox.store {
            StoreSettings::Sqlite { path } => Ok(Self::Sqlite(SqliteStore::open(path.clone()).await?)),
            #[cfg(feature = "postgres")]
            StoreSettings::Postgres { .. } => Ok(Self::Postgres(PostgresStore::open(config(outbox)?).await?)),
            other => Err(unknown(other)),
        }
    }

    /// Creates the tables, or brings them up to date.
    pub(super) async fn init(outbox: &OutboxSettings) -> Result<Self> {
        match &outbox.store {
            StoreSettings::Sqlite { path } => Ok(Self::Sqlite(SqliteStore::init(path.clone()).await?)),
            #[cfg(feature = "postgres")]
            StoreSettings::Postgres { .. } => Ok(Self::Postgres(PostgresStore::init(config(outbox)?).await?)),
            other => Err(unknown(other)),
        }
    }

    pub(super) fn shared(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => Arc::new(store.clone()),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Arc::new(store.clone()),
        }
    }

    /// The work that its publishers serve.
    pub(super) async fn serves(&self, name: &str) -> Result<Serves> {
        Ok(shardwise_outbox::serves(&*self.shared(), name).await?)
    }

    pub(super) fn dead_letters(&self) -> Arc<dyn DeadLetters> {
        match self {
            Self::Sqlite(store) => Arc::new(store.clone()),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Arc::new(store.clone()),
        }
    }

    /// Writes events in one transaction, and returns for each whether it was refused.
    pub(super) async fn enqueue_each(&self, events: Vec<NewEvent>) -> shardwise_outbox::Result<Vec<shardwise_outbox::Result<String>>> {
        match self {
            Self::Sqlite(store) => store.enqueue_each(events).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.enqueue_each(events).await,
        }
    }

    /// Its location, for messages.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Sqlite(store) => store.path().display().to_string(),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.place(),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.close().await,
        }
    }
}

#[cfg(feature = "postgres")]
fn config(outbox: &OutboxSettings) -> Result<PostgresConfig> {
    let StoreSettings::Postgres { url, password_file } = &outbox.store else { return Err(unknown(&outbox.store)) };
    let config = PostgresConfig::from_url(url)?.listen(outbox.listen);
    Ok(match password_file {
        Some(path) => config.password_file(path)?,
        None => config,
    })
}

fn unknown(store: &StoreSettings) -> CliFailure {
    let missing = if matches!(store, StoreSettings::Postgres { .. }) { features::missing("postgres") } else { None };
    CliFailure::new(
        Code::Usage,
        format!("the outbox's store is {store}: {}", missing.as_deref().unwrap_or("this program has no such store")),
    )
}
