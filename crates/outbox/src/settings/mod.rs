//! The settings of outboxes: `[default.outbox.<name>]` says where events are, where they go, and what happens when they cannot be
//! delivered.
//!
//! The library reads the file, its layers and each outbox's `policy`; this crate has the table of the other keys.
//!
//! ```
//! use shardwise::settings::LoadOptions;
//! use shardwise_outbox::settings::LoadedSettings;
//!
//! # fn main() -> shardwise::Result<()> {
//! let text = "[default.resilience.sharding.policies.publishers]\ngroup_name = \"publishers\"\n\
//!             [default.outbox.orders]\npolicy = \"publishers\"\nstore = \"sqlite:outbox.db\"\nsink = \"stdout\"";
//! let loaded = LoadedSettings::load(&LoadOptions::default().with_text(text))?;
//! assert_eq!(loaded.outbox("orders")?.store.to_string(), "sqlite:outbox.db");
//! # Ok(())
//! # }
//! ```

#[rustfmt::skip]
mod keys;
mod sink;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use shardwise::discovery::settings::BackendValue;
use shardwise::settings::{
    DiscoverySettings, LoadOptions, OutboxTable, PolicySettings, ResolvedValue, SettingKey, Settings, SettingsTable,
};
use shardwise::{PolicyName, Result};

pub use sink::{RemoteSink, SinkKind, SinkSettings};

use crate::{Poison, PublisherOptions};

const STORES: &str = "write sqlite: and a path, such as \"sqlite:outbox.db\", or postgres://USER@HOST:PORT/DATABASE";

/// One outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxSettings {
    /// The policy by which publishers share the outbox; one of the policies in the settings.
    pub policy: PolicyName,
    /// Where the events are stored.
    pub store: StoreSettings,
    /// Where the events go.
    pub sink: SinkSettings,
    /// How the publishers work. `drain_timeout` comes from the policy.
    pub options: PublisherOptions,
    /// Whether publishers on PostgreSQL are notified of commits, instead of finding them at their next check.
    pub listen: bool,
}

/// Where an outbox's events are stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreSettings {
    /// `sqlite:PATH`. A relative path in the settings file has been joined to the file's directory.
    Sqlite {
        /// The database file.
        path: PathBuf,
    },
    /// `postgres://USER@HOST:PORT/DATABASE?PARAMETERS`.
    Postgres {
        /// The address, without a password.
        url: String,
        /// A file with the password. A relative path in the settings file has been joined to the file's directory.
        password_file: Option<PathBuf>,
    },
}

impl fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite { path } => write!(f, "sqlite:{}", path.display()),
            Self::Postgres { url, .. } => f.write_str(url),
        }
    }
}

/// Settings including their outboxes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoadedSettings {
    /// The library's settings.
    pub settings: Settings,
    /// The outboxes by name.
    pub outboxes: BTreeMap<PolicyName, OutboxSettings>,
}

impl LoadedSettings {
    /// Reads the settings file, applies the environment to it as [`Settings::load`] does, and reads the outboxes in it.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn load(options: &LoadOptions) -> Result<Self> {
        let mut outboxes = BTreeMap::new();
        let settings = Settings::load_with_outboxes(options, keys::OUTBOX, |found| {
            let outbox = outbox(&found)?;
            refuse_shared_store(&found.table, &outbox.store, &outboxes, found.policies)?;
            outboxes.insert(found.name.clone(), outbox);
            Ok(())
        })?;
        Ok(Self { settings, outboxes })
    }

    /// The outbox of that name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](shardwise::ErrorKind::Settings); the message lists the known ones.
    pub fn outbox(&self, name: &str) -> Result<&OutboxSettings> {
        shardwise::settings::outbox_named(&self.outboxes, name)
    }
}

/// Every key that a settings file may contain, with its full name; `*` stands for a name chosen by the user.
pub fn known_keys() -> Vec<(String, SettingKey)> {
    shardwise::settings::known_keys(keys::OUTBOX)
}

fn outbox(found: &OutboxTable<'_>) -> Result<OutboxSettings> {
    let table = &found.table;
    let store = store(table)?;
    let sink = sink::sink(table)?;
    let drain_timeout = found.policies.get(found.policy).map(|policy| policy.policy.drain_timeout);
    let defaults = PublisherOptions::default();
    let options = PublisherOptions {
        batch: table.take(&keys::BATCH)?.parse(str::parse)?,
        max_attempts: table.take(&keys::MAX_ATTEMPTS)?.parse(str::parse)?,
        backoff: table.take(&keys::BACKOFF)?.time()?,
        poison: poison(&table.take(&keys::POISON)?),
        outage_limit: table.take(&keys::OUTAGE_LIMIT)?.time()?,
        poll: table.take(&keys::POLL)?.time()?,
        retention: table.take(&keys::RETENTION)?.time()?,
        parked_retention: table.take(&keys::PARKED_RETENTION)?.time()?,
        drain_timeout: drain_timeout.unwrap_or(defaults.drain_timeout),
        ..defaults
    };
    Ok(OutboxSettings { policy: found.policy.clone(), listen: listen(table, &store)?, store, sink, options })
}

fn listen(table: &SettingsTable<'_>, store: &StoreSettings) -> Result<bool> {
    let found = table.take(&keys::LISTEN)?;
    let listen = found.flag()?;
    if listen && matches!(store, StoreSettings::Sqlite { .. }) {
        let why = "a SQLite store cannot notify; it is polled every 25 to 100 ms; remove this key";
        return Err(found.refuse(why).into());
    }
    Ok(listen)
}

fn poison(found: &ResolvedValue) -> Poison {
    match found.text() {
        "park" => Poison::Park,
        "discard" => Poison::Discard,
        _ => Poison::Block,
    }
}

fn store(table: &SettingsTable<'_>) -> Result<StoreSettings> {
    let found = table.require(&keys::STORE)?;
    let text = found.text();
    let store = match text.split_once(':') {
        Some(("sqlite", ":memory:" | "//:memory:")) => {
            return Err(found.refuse("publishers must be able to share the store; write sqlite: and the path of a file").into());
        }
        Some(("sqlite", path)) if path.contains('?') => return Err(found.refuse("write the path alone, without ? and parameters").into()),
        Some(("sqlite", path)) => StoreSettings::Sqlite { path: table.resolve(&found, path.strip_prefix("//").unwrap_or(path))? },
        Some(("postgres" | "postgresql", address)) => postgres(table, &found, address)?,
        _ => return Err(found.refuse(STORES).into()),
    };
    if let (StoreSettings::Sqlite { .. }, Some(password)) = (&store, table.find(&keys::STORE_PASSWORD_FILE)?) {
        return Err(password.refuse("the store is a file; only a PostgreSQL store has a password").into());
    }
    table.note(&found, &store);
    Ok(store)
}

/// Checks only what keeps a password out; the rest of the address is checked when the store is opened.
fn postgres(table: &SettingsTable<'_>, found: &ResolvedValue, address: &str) -> Result<StoreSettings> {
    let Some(rest) = address.strip_prefix("//").filter(|rest| !rest.is_empty()) else { return Err(found.refuse(STORES).into()) };
    let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let has_password = place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
        || parameters.split('&').any(|parameter| parameter.starts_with("password="));
    if has_password {
        let instead = "leave the password out, and put it into a file that store_password_file names, or into PGPASSWORD or ~/.pgpass";
        return Err(found.refuse_masked(instead).into());
    }
    Ok(StoreSettings::Postgres { url: found.text().to_owned(), password_file: table.take_path(&keys::STORE_PASSWORD_FILE)? })
}

/// Refuses two outboxes in one store, because an event can be delivered by one outbox only, and a store in the workers' membership file,
/// which has another schema.
fn refuse_shared_store(
    table: &SettingsTable<'_>,
    store: &StoreSettings,
    others: &BTreeMap<PolicyName, OutboxSettings>,
    policies: &BTreeMap<PolicyName, PolicySettings>,
) -> Result<()> {
    let found = table.require(&keys::STORE)?;
    if let Some((other, _)) = others.iter().find(|(_, other)| other.store.to_string() == store.to_string()) {
        return Err(found.refuse(format_args!("outbox.{other} has the same store; give each outbox its own")).into());
    }
    let StoreSettings::Sqlite { path } = store else { return Ok(()) };
    let meets_there = |discovery: &DiscoverySettings| {
        let key = discovery.options.iter().find(|(_, value)| matches!(value, BackendValue::Path(other) if other == path));
        key.map(|(key, _)| format!("discovery.{}.{key}", discovery.backend))
    };
    if let Some(key) = policies.values().find_map(|policy| meets_there(&policy.discovery)) {
        return Err(found.refuse(format_args!("{key} is the same file; give the outbox its own")).into());
    }
    Ok(())
}
