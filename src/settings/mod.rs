//! Layered settings, read into validated policies before anything is contacted.
//!
//! # Where settings come from
//!
//! The file is the one named in [`LoadOptions::file`], else in the environment variable `SHARDWISE_SETTINGS`, else `settings.toml` in
//! the working directory. Each layer lies over the one before it, key by key:
//!
//! 1. the defaults; for some keys of a backend other tools' variables go before them, such as `CONSUL_HTTP_ADDR`;
//! 2. the file's section `[default]`;
//! 3. the file's section for the environment, such as `[production]`, chosen by `SHARDWISE_ENV`;
//! 4. environment variables: `SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__SLOTS=64` is
//!    `resilience.sharding.policies.workers.slots`. All capitals, two underscores for each dot.
//!
//! In a section only `resilience.sharding` and `outbox` are read, and there every name must be known. Other tables belong to the
//! application. The file `settings.toml` of this crate has every key with its default and one line why.
//!
//! A secret, such as a token, can be kept out of the file: its twin with `_file` behind the name names a file that has it. Wherever
//! settings are shown, a secret is `***`.
//!
//! A relative path in the file, and the default of `discovery.local.path`, is taken from the file's directory, so that all workers
//! that read one file meet, wherever they were started. The default is `shardwise.db` in that directory: whoever may write there
//! decides about the settings anyway, while a predictable name in a directory that all users share would let any of them join, or
//! keep the workers out. A relative path in an environment variable is taken from the working directory.
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

mod file;
mod files;
mod instance;
mod keys;
mod layers;
mod messages;
mod next;
mod options;
mod origin;
mod outbox;
mod peers;
mod policy;
mod read;
mod sink;
mod sources;
mod suggest;
#[cfg(test)]
mod tests;
mod token;
mod tree;
mod value;
mod variables;

use std::collections::BTreeMap;
use std::path::PathBuf;

use shardwise_core::{OwnershipMode, PolicyName};

pub use instance::InstanceSettings;
pub(crate) use instance::{MESSAGES_ADDRESS, REQUESTS_ADDRESS};
pub use messages::MessagesSettings;
pub use origin::{Origin, Setting};
pub use outbox::{OutboxSettings, PoisonPolicy, StoreSettings};
pub use peers::{Network, PeersSettings};
pub use policy::{DiscoverySettings, PolicySettings};
pub use sink::{RemoteSink, SinkFormat, SinkKind, SinkSettings};
pub use sources::{FILE_BYTES_MAX, LoadOptions};

use crate::{Error, ErrorKind};
use files::BaseDirectory;
use layers::Layers;
use origin::{Path, fail};
use read::{Reader, SettingsTable};
use suggest::{listed, meant};

/// Everything that was configured, checked: what is in here can be run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// `false`: no coordination; this worker owns everything.
    pub enabled: bool,
    /// What this worker says of itself.
    pub instance: InstanceSettings,
    /// The policies by name.
    pub policies: BTreeMap<PolicyName, PolicySettings>,
    /// The outboxes by name.
    pub outboxes: BTreeMap<PolicyName, OutboxSettings>,
    /// The file they came from, if they came from one.
    pub file: Option<PathBuf>,
    in_force: Vec<Setting>,
}

impl Settings {
    /// Reads the settings file and lays the environment over it. Reads nothing but that one file and contacts nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`], one line that names the place, the key, its value and what is allowed.
    pub fn load(options: &LoadOptions) -> Result<Self, Error> {
        let path = options.path();
        let text = sources::read(&path, options)?;
        let base = BaseDirectory::new(path.parent().map(Into::into).unwrap_or_default());
        let settings = Self::parse(&path.display().to_string(), &text, options, &base)?;
        Ok(Self { file: Some(path), ..settings })
    }

    /// Reads settings from text, its section `[default]` alone, without any environment: for tests and for programs that bring their
    /// own. Relative paths are taken from the working directory.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn from_toml_str(text: &str) -> Result<Self, Error> {
        Self::from_toml_str_with(text, &LoadOptions::default())
    }

    /// Reads settings from text and lays the environment of `options` over it; the file named there is not read.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn from_toml_str_with(text: &str, options: &LoadOptions) -> Result<Self, Error> {
        Self::parse("settings", text, options, &BaseDirectory::default())
    }

    /// The policy of that name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownPolicy`]; the message lists the known ones.
    pub fn policy(&self, name: &str) -> Result<&PolicySettings, Error> {
        named(&self.policies, name).map_err(|known| Error::new(ErrorKind::UnknownPolicy, format!("there is no policy {known}")))
    }

    /// The outbox of that name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]; the message lists the known ones.
    pub fn outbox(&self, name: &str) -> Result<&OutboxSettings, Error> {
        named(&self.outboxes, name).map_err(|known| fail(format_args!("there is no outbox {known}")))
    }

    /// Every value in force and where it came from, in the order of `settings.toml`: what `shardwise settings` prints. Optional keys
    /// that nobody has written are left out.
    pub fn in_force(&self) -> &[Setting] {
        &self.in_force
    }

    fn parse(name: &str, text: &str, options: &LoadOptions, base: &BaseDirectory) -> Result<Self, Error> {
        let mut layers = Layers::default();
        file::File::parse(name, text)?.collect(options.environment()?, &mut layers)?;
        variables::collect(&options.variables, &mut layers)?;
        variables::collect_customary(&options.variables, &mut layers)?;
        Self::check(Reader::new(layers), base)
    }

    fn check(reader: Reader, base: &BaseDirectory) -> Result<Self, Error> {
        let sharding = Path::of(&["resilience", "sharding"]);
        let enabled = reader.take(&SettingsTable::at(sharding.clone()), &keys::ENABLED)?.flag()?;
        let instance = instance::read(&reader, &SettingsTable::at(sharding.join("instance")))?;
        let common = sharding.join("discovery");
        // What goes with claims is looked at where a policy uses it.
        policy::discovery(&reader, &SettingsTable::at(common.clone()), base, OwnershipMode::Eventual)?;

        let outbox_places = places(&reader, &Path::of(&["outbox"]), &keys::POLICY)?;
        let drive_outboxes: Vec<String> =
            outbox_places.iter().filter_map(|(_, place)| outbox::policy_of(&reader, place).transpose()).collect::<Result<_, _>>()?;
        let mut policies = BTreeMap::new();
        for (name, place) in places(&reader, &sharding.join("policies"), &keys::GROUP_NAME)? {
            let drives = drive_outboxes.iter().any(|driving| driving == name.as_str());
            policies.insert(name.clone(), policy::policy(&reader, &place, name, &common, drives, base)?);
        }
        let known: Vec<PolicyName> = policies.keys().cloned().collect();
        let mut outboxes = BTreeMap::new();
        for (name, place) in outbox_places {
            let read = outbox::outbox(&reader, &place, &known, base)?;
            outbox::refuse_shared_store(&reader, &place, &read, &outboxes, &policies)?;
            outbox::refuse_shared_policy(&reader, &place, &read, &outboxes, &policies)?;
            outboxes.insert(name, read);
        }
        Ok(Self { enabled, instance, policies, outboxes, file: None, in_force: reader.into_in_force() })
    }
}

/// The tables in `table` that the user has named. One that only an environment variable names, and that lacks what it must have, is a
/// slip in the variable's name.
fn places(reader: &Reader, table: &Path, must_have: &keys::SettingKey) -> Result<Vec<(PolicyName, SettingsTable)>, Error> {
    let names: Vec<&str> = reader.layers().named_in(table).map(|(name, _)| name).collect();
    let mut places = Vec::with_capacity(names.len());
    for (given, origin) in reader.layers().named_in(table) {
        let name = PolicyName::new(given).map_err(|error| origin.fail(error))?;
        let place = SettingsTable { path: table.join(given), inherits: None, origin: origin.clone() };
        if matches!(origin, Origin::Variable { .. }) && reader.find(&place, must_have, None)?.is_none() {
            let meant =
                meant(given, names.iter().copied().filter(|other| *other != given)).replace("did you mean", "did you mean to override");
            return Err(origin.fail(format_args!("{} is nowhere else, and {} is missing{meant}", place.path, must_have.name)));
        }
        places.push((name, place));
    }
    Ok(places)
}

/// The entry of that name, or the rest of a message: the name, and the known ones.
fn named<'m, T>(map: &'m BTreeMap<PolicyName, T>, name: &str) -> Result<&'m T, String> {
    let found = map.iter().find(|(known, _)| known.as_str() == name).map(|(_, value)| value);
    found.ok_or_else(|| {
        let names: Vec<&str> = map.keys().map(PolicyName::as_str).collect();
        format!("{}; known: {}", value::shown(name), listed(name, &names))
    })
}
