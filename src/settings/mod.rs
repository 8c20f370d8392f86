//! Layered settings, read into validated policies before a backend is contacted.
//!
//! # Where settings come from
//!
//! The file is [`LoadOptions::file`], else the one named by the environment variable `SHARDWISE_SETTINGS`, else `settings.toml` in the
//! working directory. Each layer overrides the one before it, key by key:
//!
//! 1. the defaults; for some keys of a backend other tools' variables override them, such as `CONSUL_HTTP_ADDR`;
//! 2. the file's section `[default]`;
//! 3. the file's section for the environment, such as `[production]`, chosen by `SHARDWISE_ENV`;
//! 4. environment variables: `SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__SLOTS=64` is
//!    `resilience.sharding.policies.workers.slots`. All capitals, two underscores for each dot.
//!
//! Only `resilience.sharding` and `outbox` are read in a section, and every name in them must be known. Other tables belong to the
//! application, except one whose name is at most two letters off one of these and that has contents of ours: it is refused as a
//! misspelling. The file `settings.toml` of this crate has every key with its default and purpose. A secret can be in a file, which the
//! same key with the suffix `_file` names; output shows it as `***`.
//!
//! A relative path in the file, and the default of `discovery.local.path`, starts at the file's directory, so that all workers that read
//! one file meet, wherever they were started; one in an environment variable starts at the working directory. The default is
//! `shardwise.db` in the same directory: a user who may write there controls the settings anyway, while any user could join, or keep the
//! workers out, by a predictable name in a shared directory.
//!
//! ```
//! # fn main() -> shardwise::Result<()> {
//! let settings = shardwise::settings::Settings::from_toml_str(r#"
//!     [default.resilience.sharding.policies.workers]
//!     group_name = "order-workers"
//!     discovery.ttl = "5s"
//! "#)?;
//! assert_eq!(settings.policy("workers")?.timing.ttl.as_secs(), 5);
//! # Ok(())
//! # }
//! ```

mod instance;
#[rustfmt::skip]
mod keys;
mod load;
mod options;
mod peers;
mod placement;
mod policy;
mod requests;
mod schema;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use shardwise_core::{OwnershipMode, PolicyName};
use shardwise_settings::{Reader, Sources, listed, nearest, shown};

pub(crate) use instance::CHANNEL_ADDRESS;
pub use instance::{ADDRESS_AUTO, InstanceSettings};
pub use load::{FILE_BYTES_MAX, LoadOptions};
pub(crate) use peers::token_mistake;
pub use peers::{Network, PeerCertificates, PeersSettings};
pub use policy::{DiscoverySettings, PolicySettings};
pub use requests::RequestSettings;
pub use shardwise_settings::{Fallback, Origin, ResolvedValue, Setting, SettingKey, SettingsTable, Shape};

use crate::error::{Error, ErrorKind, Result};

/// The path of the library's own tables.
const SHARDING: &str = "resilience.sharding";

/// The validated configuration, ready to run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// `false`: no coordination; this worker owns everything.
    pub enabled: bool,
    /// How this worker describes itself.
    pub instance: InstanceSettings,
    /// The policies by name.
    pub policies: BTreeMap<PolicyName, PolicySettings>,
    /// The outboxes by name, each with the policy by which publishers share it. The outbox's crate reads the rest of its settings.
    pub outboxes: BTreeMap<PolicyName, PolicyName>,
    /// The file they were read from, if any.
    pub file: Option<PathBuf>,
    in_force: Vec<Setting>,
}

/// The table of an outbox, passed to its crate by [`Settings::load_with_outboxes`].
#[derive(Debug)]
#[non_exhaustive]
pub struct OutboxTable<'r> {
    /// The outbox's name.
    pub name: &'r PolicyName,
    /// The policy by which publishers share it.
    pub policy: &'r PolicyName,
    /// All policies.
    pub policies: &'r BTreeMap<PolicyName, PolicySettings>,
    /// The values.
    pub table: SettingsTable<'r>,
}

impl Settings {
    /// Reads the settings file and applies the environment; contacts nothing. Of an outbox it reads only the policy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`], one line with the origin, the key, its value and what is allowed.
    pub fn load(options: &LoadOptions) -> Result<Self> {
        Self::parse(options, None, |_| Ok(()))
    }

    /// Like [`Settings::load`], for a program that also runs outboxes: besides `policy` an outbox has exactly these keys, and `read` is
    /// called with the table of each. The values that `read` takes from it are recorded as in force.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`], and the errors of `read`.
    pub fn load_with_outboxes(options: &LoadOptions, keys: &[SettingKey], read: impl FnMut(OutboxTable<'_>) -> Result<()>) -> Result<Self> {
        Self::parse(options, Some(keys), read)
    }

    /// [`Settings::load`] of this text ([`LoadOptions::with_text`]), only its section `[default]` and without any environment: for tests
    /// and for programs that build their settings.
    pub fn from_toml_str(text: &str) -> Result<Self> {
        Self::load(&LoadOptions::default().with_text(text))
    }

    /// The policy with that name; [`ErrorKind::UnknownPolicy`], which lists the known ones, if there is none.
    pub fn policy(&self, name: &str) -> Result<&PolicySettings> {
        named(&self.policies, name).map_err(|known| Error::new(ErrorKind::UnknownPolicy, format!("there is no policy {known}")))
    }

    /// Every value in force with its origin, in the order of `settings.toml`. Optional keys that are not set are omitted.
    pub fn in_force(&self) -> &[Setting] {
        &self.in_force
    }

    fn parse(options: &LoadOptions, keys: Option<&[SettingKey]>, mut read: impl FnMut(OutboxTable<'_>) -> Result<()>) -> Result<Self> {
        let (text, file) = options.read()?;
        let name = file.as_deref().map_or_else(|| "settings".to_owned(), |file| file.display().to_string());
        let base = file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let (environment, variables) = (options.environment()?, &options.variables);
        let reader = Reader::new(&Sources { name: &name, text: &text, environment, variables, base }, &schema::root(keys))?;
        let sharding = reader.table(SHARDING);
        let enabled = sharding.take(&keys::ENABLED)?.flag()?;
        let instance = instance::read(&sharding.table("instance"))?;
        let common = sharding.table("discovery");
        // Settings of claims are checked for each policy that uses them.
        policy::discovery(&common, OwnershipMode::Eventual, None)?;

        let outbox_tables = tables(&reader.table("outbox"), &keys::POLICY)?;
        let with_outbox = outbox_tables.iter().map(|(_, table)| table.written(&keys::POLICY)).collect::<Result<Vec<_>, _>>()?;
        let mut policies = BTreeMap::new();
        for (name, table) in tables(&sharding.table("policies"), &keys::GROUP_NAME)? {
            let drives = |found: &Option<ResolvedValue>| found.as_ref().is_some_and(|policy| policy.text() == name.as_str());
            let outbox = outbox_tables.iter().zip(&with_outbox).find(|(_, policy)| drives(policy)).map(|((_, table), _)| table);
            policies.insert(name.clone(), policy::policy(&table, name, common.path(), outbox)?);
        }
        let mut outboxes = BTreeMap::new();
        for (name, table) in outbox_tables {
            let found = table.take(&keys::POLICY)?;
            let policy = found.parse(|given| known_policy(given, &policies))?;
            read(OutboxTable { name: &name, policy: &policy, policies: &policies, table })?;
            if let Some(mistake) = shared_policy(&policy, &outboxes, &policies) {
                return Err(found.refuse(mistake).into());
            }
            outboxes.insert(name, policy);
        }
        Ok(Self { enabled, instance, policies, outboxes, file, in_force: reader.into_in_force() })
    }
}

/// The entry of `outboxes` with that name; [`ErrorKind::Settings`], which lists the known ones, if there is none.
pub fn outbox_named<'m, T>(outboxes: &'m BTreeMap<PolicyName, T>, name: &str) -> Result<&'m T> {
    named(outboxes, name).map_err(|known| fail(format_args!("there is no outbox {known}")))
}

/// The full name of every known key, in the order of `settings.toml`; `*` stands for a name chosen by the user. `outbox` are the keys of
/// an outbox besides `policy`.
pub fn known_keys(outbox: &[SettingKey]) -> Vec<(String, SettingKey)> {
    shardwise_settings::known_keys(&schema::root(Some(outbox)))
}

fn fail(message: impl fmt::Display) -> Error {
    shardwise_settings::Error::new(message).into()
}

impl From<shardwise_settings::Error> for Error {
    fn from(error: shardwise_settings::Error) -> Self {
        Self::new(ErrorKind::Settings, error.to_string())
    }
}

fn known_policy(given: &str, policies: &BTreeMap<PolicyName, PolicySettings>) -> Result<PolicyName, String> {
    policies.keys().find(|name| name.as_str() == given).cloned().ok_or_else(|| {
        let names: Vec<&str> = policies.keys().map(PolicyName::as_str).collect();
        let add = if names.is_empty() { "; add [default.resilience.sharding.policies.NAME]" } else { "" };
        format!("there is no such policy; known policies: {}{add}", listed(given, &names))
    })
}

/// The error if another outbox has the same policy or group: publishers of either would own slots of the other without publishing their
/// events.
fn shared_policy(
    policy: &PolicyName,
    outboxes: &BTreeMap<PolicyName, PolicyName>,
    policies: &BTreeMap<PolicyName, PolicySettings>,
) -> Option<String> {
    if let Some((other, _)) = outboxes.iter().find(|(_, other)| *other == policy) {
        return Some(format!(
            "outbox.{other} has the same policy, and publishers of two outboxes must not share slots; give each outbox its own policy, with its own \
             group_name"
        ));
    }
    let meets = |other: &PolicyName| policies.get(other).zip(policies.get(policy)).is_some_and(|(one, two)| one.meets(two));
    let (other, same) = outboxes.iter().find(|(_, other)| meets(other))?;
    Some(format!(
        "its group is also that of policy {same}, which outbox.{other} has, and publishers of two outboxes must not share slots; give each policy its own \
         group_name"
    ))
}

/// The subtables of `parent`. If only an environment variable names one and a required key is missing, its name probably has a typo.
fn tables<'r>(parent: &SettingsTable<'r>, must_have: &SettingKey) -> Result<Vec<(PolicyName, SettingsTable<'r>)>> {
    let found = parent.tables();
    let mut tables = Vec::with_capacity(found.len());
    for (given, table) in &found {
        let name = PolicyName::new(given).map_err(|error| table.origin().fail(error))?;
        if matches!(table.origin(), Origin::Variable { .. }) && table.written(must_have)?.is_none() {
            let others = found.iter().map(|(other, _)| *other).filter(|other| other != given);
            let meant = nearest(given, others).and_then(|name| table.origin().variable_with(parent.table(name).path(), table.path()));
            let meant = meant.map(|variable| format!(" (did you mean {variable}?)")).unwrap_or_default();
            let message = format!("{} is nowhere else, and {} is missing{meant}", table.path(), must_have.name);
            return Err(table.origin().fail(message).into());
        }
        tables.push((name, table.clone()));
    }
    Ok(tables)
}

/// The entry with that name, or the rest of a message: the name, and the known ones.
fn named<'m, T>(map: &'m BTreeMap<PolicyName, T>, name: &str) -> Result<&'m T, String> {
    let found = map.iter().find(|(known, _)| known.as_str() == name).map(|(_, value)| value);
    found.ok_or_else(|| {
        let names: Vec<&str> = map.keys().map(PolicyName::as_str).collect();
        format!("{}; known: {}", shown(name), listed(name, &names))
    })
}
