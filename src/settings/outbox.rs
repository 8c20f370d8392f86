//! `[default.outbox.<name>]`: which events go where, and what happens when they do not.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use shardwise_core::PolicyName;
use shardwise_discovery::settings::BackendValue;

use super::files::BaseDirectory;
use super::keys;
use super::policy::{DiscoverySettings, PolicySettings};
use super::read::{Reader, ResolvedValue, SettingsTable};
use super::sink::{self, SinkSettings};
use super::suggest::listed;
use crate::Error;

/// What a store may be.
const STORES: &str = "write sqlite: and a path, such as \"sqlite:outbox.db\", or postgres://USER@HOST:PORT/DATABASE";

/// One outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxSettings {
    /// The policy by which publishers share it; it is among the settings' policies.
    pub policy: PolicyName,
    /// Where the events are.
    pub store: StoreSettings,
    /// Where they go.
    pub sink: SinkSettings,
    /// The most events fetched, sent and marked at once, 1 to 10,000.
    pub batch: u32,
    /// Failed attempts that make an event poison, 1 to 1,000.
    pub max_attempts: u32,
    /// The wait after an event's first failed attempt, 1 ms to 1 h; it doubles with each further one, up to five minutes.
    pub backoff: Duration,
    /// What a poison event does.
    pub poison: PoisonPolicy,
    /// When the sink has accepted nothing for this long, failed attempts count after all; 1 s to 30 days.
    pub outage_limit: Duration,
    /// The longest time between two looks into an idle outbox, 25 ms to 1 min.
    pub poll: Duration,
    /// Whether publishers on PostgreSQL are told of commits, instead of finding them at their next look.
    pub listen: bool,
    /// How long delivered events stay in the store, counted from their writing, 0 to 3,650 days; 0 deletes them at once.
    pub retention: Duration,
    /// How long parked events stay in the store, counted from when they were parked, 1 s to 3,650 days.
    pub parked_retention: Duration,
}

/// What a poison event does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PoisonPolicy {
    /// It stays at the head of its aggregate, which waits until somebody helps.
    #[default]
    Block,
    /// It is set aside, and the aggregate's later events pass.
    Park,
    /// It is given up for good, with a line in the outbox's record, and the aggregate's later events pass.
    Discard,
}

impl PoisonPolicy {
    /// The name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Park => "park",
            Self::Discard => "discard",
        }
    }
}

/// Where an outbox's events are.
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

/// Which policy the outbox at `place` names. `None` if it names none; the error for that comes from [`outbox`].
pub(super) fn policy_of(reader: &Reader, place: &SettingsTable) -> Result<Option<String>, Error> {
    reader.find(place, &keys::POLICY, None)?.map(|found| found.text().map(ToOwned::to_owned)).transpose()
}

/// Reads the outbox at `place`; `policies` are the known ones.
pub(super) fn outbox(
    reader: &Reader,
    place: &SettingsTable,
    policies: &[PolicyName],
    base: &BaseDirectory,
) -> Result<OutboxSettings, Error> {
    let store = store(reader, place, base)?;
    Ok(OutboxSettings {
        policy: known_policy(&reader.take(place, &keys::POLICY)?, policies)?,
        sink: sink::sink(reader, place, base)?,
        batch: reader.take(place, &keys::BATCH)?.whole()?,
        max_attempts: reader.take(place, &keys::MAX_ATTEMPTS)?.whole()?,
        backoff: reader.take(place, &keys::BACKOFF)?.time()?,
        poison: poison(reader, place)?,
        outage_limit: reader.take(place, &keys::OUTAGE_LIMIT)?.time()?,
        poll: reader.take(place, &keys::POLL)?.time()?,
        listen: listen(reader, place, &store)?,
        retention: reader.take(place, &keys::RETENTION)?.time()?,
        parked_retention: reader.take(place, &keys::PARKED_RETENTION)?.time()?,
        store,
    })
}

fn listen(reader: &Reader, place: &SettingsTable, store: &StoreSettings) -> Result<bool, Error> {
    let found = reader.take(place, &keys::LISTEN)?;
    let listen = found.flag()?;
    if listen && matches!(store, StoreSettings::Sqlite { .. }) {
        return Err(
            found.refuse("the store is a file, which is looked at every 25 ms to 100 ms for next to nothing; only PostgreSQL can tell")
        );
    }
    Ok(listen)
}

fn poison(reader: &Reader, place: &SettingsTable) -> Result<PoisonPolicy, Error> {
    let found = reader.take(place, &keys::POISON)?;
    let given = found.text()?;
    Ok([PoisonPolicy::Park, PoisonPolicy::Discard].into_iter().find(|poison| poison.as_str() == given).unwrap_or_default())
}

fn known_policy(found: &ResolvedValue, policies: &[PolicyName]) -> Result<PolicyName, Error> {
    let given = found.text()?;
    policies.iter().find(|name| name.as_str() == given).cloned().ok_or_else(|| {
        let names: Vec<&str> = policies.iter().map(PolicyName::as_str).collect();
        let add = if names.is_empty() { "; add [default.resilience.sharding.policies.NAME]" } else { "" };
        found.refuse(format_args!("there is no such policy; known policies: {}{add}", listed(given, &names)))
    })
}

fn store(reader: &Reader, place: &SettingsTable, base: &BaseDirectory) -> Result<StoreSettings, Error> {
    let found = reader.require(place, &keys::STORE)?;
    let text = found.text()?;
    let store = match text.split_once(':') {
        Some(("sqlite", ":memory:" | "//:memory:")) => {
            return Err(found.refuse("publishers must be able to share the store; write sqlite: and the path of a file"));
        }
        Some(("sqlite", path)) if path.contains('?') => return Err(found.refuse("write the path alone, without ? and parameters")),
        Some(("sqlite", path)) => StoreSettings::Sqlite { path: base.resolve(&found, path.strip_prefix("//").unwrap_or(path))? },
        Some(("postgres" | "postgresql", address)) => postgres(reader, place, base, &found, address)?,
        _ => return Err(found.refuse(STORES)),
    };
    if let (StoreSettings::Sqlite { .. }, Some(password)) = (&store, reader.optional(place, &keys::STORE_PASSWORD_FILE)?) {
        return Err(password.refuse("the store is a file; only a PostgreSQL store has a password"));
    }
    reader.note(&found, &store);
    Ok(store)
}

/// What is wrong with the rest of the address, its reader says when the store is opened; a password must not get that far.
fn postgres(
    reader: &Reader,
    place: &SettingsTable,
    base: &BaseDirectory,
    found: &ResolvedValue,
    address: &str,
) -> Result<StoreSettings, Error> {
    let Some(rest) = address.strip_prefix("//").filter(|rest| !rest.is_empty()) else { return Err(found.refuse(STORES)) };
    let (place_in_it, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let has_password = place_in_it.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
        || parameters.split('&').any(|parameter| parameter.starts_with("password="));
    if has_password {
        let instead = "leave the password out, and put it into a file that store_password_file names, or into PGPASSWORD or ~/.pgpass";
        return Err(found.refuse_masked(instead));
    }
    let password_file = match reader.optional(place, &keys::STORE_PASSWORD_FILE)? {
        Some(file) => {
            let path = base.resolve(&file, file.text()?)?;
            reader.note(&file, path.display());
            Some(path)
        }
        None => None,
    };
    Ok(StoreSettings::Postgres { url: found.text()?.to_owned(), password_file })
}

/// Publishers of two outboxes in one group would each own slots of the other and never publish what is in them.
pub(super) fn refuse_shared_policy(
    reader: &Reader,
    place: &SettingsTable,
    outbox: &OutboxSettings,
    others: &BTreeMap<PolicyName, OutboxSettings>,
    policies: &BTreeMap<PolicyName, PolicySettings>,
) -> Result<(), Error> {
    let found = reader.require(place, &keys::POLICY)?;
    if let Some((other, _)) = others.iter().find(|(_, other)| other.policy == outbox.policy) {
        return Err(found.refuse(format_args!(
            "outbox.{other} has the same policy, and publishers of two outboxes must not share slots; give each outbox its own policy, with its own \
             group_name"
        )));
    }
    let meets =
        |other: &OutboxSettings| policies.get(&other.policy).zip(policies.get(&outbox.policy)).is_some_and(|(one, two)| one.meets(two));
    if let Some((other, same)) = others.iter().find(|(_, other)| meets(other)) {
        return Err(found.refuse(format_args!(
            "its group is also that of policy {}, which outbox.{other} has, and publishers of two outboxes must not share slots; give each policy its own \
             group_name",
            same.policy
        )));
    }
    Ok(())
}

/// An event can be delivered by one outbox only, and the workers' meeting file has a schema of its own.
pub(super) fn refuse_shared_store(
    reader: &Reader,
    place: &SettingsTable,
    outbox: &OutboxSettings,
    others: &BTreeMap<PolicyName, OutboxSettings>,
    policies: &BTreeMap<PolicyName, PolicySettings>,
) -> Result<(), Error> {
    let found = reader.require(place, &keys::STORE)?;
    if let Some((other, _)) = others.iter().find(|(_, other)| other.store.to_string() == outbox.store.to_string()) {
        return Err(found.refuse(format_args!("outbox.{other} has the same store; give each outbox its own")));
    }
    let StoreSettings::Sqlite { path } = &outbox.store else { return Ok(()) };
    let meets_there = |discovery: &DiscoverySettings| {
        let key = discovery.options.iter().find(|(_, value)| matches!(value, BackendValue::Path(other) if other == path));
        key.map(|(key, _)| format!("discovery.{}.{key}", discovery.backend))
    };
    if let Some(key) = policies.values().find_map(|policy| meets_there(&policy.discovery)) {
        return Err(found.refuse(format_args!("{key} is the same file; give the outbox its own")));
    }
    Ok(())
}
