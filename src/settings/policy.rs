//! `[default.resilience.sharding.policies.<name>]` and the discovery of each policy.

use shardwise_core::holdings::OnDrainTimeout;
use shardwise_core::{BackendLoss, GroupName, OwnershipMode, Policy, PolicyError, PolicyName, Timing, VersionRule, format_duration};
use shardwise_discovery::settings::{BackendKind, BackendSettings, BackendValue};
use shardwise_settings::{Error, Origin, ResolvedValue, SettingsTable, refused};

use super::peers::{self, PeersSettings};
use super::requests::{self, RequestSettings};
use super::{keys, options, placement};
use crate::backend;
use crate::error::{self, ErrorKind};

/// What [`keys::BACKEND`] says where publishers meet in the database of their outbox.
const IN_OUTBOX: &str = "outbox";

/// A policy with everything that a service needs to run it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicySettings {
    /// The group, its placement and its kind of ownership.
    pub policy: Policy,
    /// The timing of leases.
    pub timing: Timing,
    /// Where its members meet.
    pub discovery: DiscoverySettings,
    /// Requests and messages between its members.
    pub peers: PeersSettings,
    /// How its requests are spread, and how many are in progress at once.
    pub requests: RequestSettings,
}

impl PolicySettings {
    /// A policy created in code, with the default timing and discovery; assign the fields to change them.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            timing: Timing::default(),
            discovery: DiscoverySettings::default(),
            peers: PeersSettings::default(),
            requests: RequestSettings::default(),
        }
    }

    /// Whether members under both are in one group: of one name, in one backend.
    pub fn meets(&self, other: &Self) -> bool {
        self.policy.group == other.policy.group && self.discovery == other.discovery
    }
}

/// Where workers meet. Equal if backend and options are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DiscoverySettings {
    /// The backend's name. The factory checks it, since a program may add backends to a factory.
    pub backend: String,
    /// The backend's options, such as `path` for `local`: see its documentation. Relative paths in the settings file are already joined
    /// to the file's directory.
    pub options: BackendSettings,
    /// The setting that names the backend, if it was read from settings.
    written: Option<ResolvedValue>,
}

impl PartialEq for DiscoverySettings {
    fn eq(&self, other: &Self) -> bool {
        self.backend == other.backend && self.options == other.options
    }
}

impl Eq for DiscoverySettings {}

impl DiscoverySettings {
    /// The backend of that name with its defaults.
    pub fn new(backend: impl Into<String>) -> Self {
        let backend = backend.into();
        let options = backend::find(&backend).map_or_else(BackendSettings::new, options::defaults);
        Self { backend, options, written: None }
    }

    /// The backend's kind; the error says where its name is written.
    pub(crate) fn kind(&self) -> error::Result<&'static BackendKind> {
        backend::find(&self.backend).ok_or_else(|| {
            let allowed = backend::available(&self.backend);
            match &self.written {
                Some(found) if found.text() == self.backend => found.refuse(allowed).into(),
                _ => error::Error::new(ErrorKind::Settings, format!("discovery.backend is {:?}: {allowed}", self.backend)),
            }
        })
    }

    /// Whether the settings say `backend = "outbox"`: members meet in the PostgreSQL database of the outbox that names their policy. Then
    /// `backend` is `postgres`, with the address and the password of the outbox's store.
    pub fn is_in_outbox(&self) -> bool {
        self.written.as_ref().is_some_and(|backend| backend.text() == IN_OUTBOX)
    }

    /// Sets one of the backend's keys.
    #[must_use]
    pub fn with(self, key: &str, value: BackendValue) -> Self {
        Self { options: self.options.with(key, value), ..self }
    }
}

impl Default for DiscoverySettings {
    /// The backend `local` on `shardwise.db` in the working directory.
    fn default() -> Self {
        Self::new("local")
    }
}

/// Reads the table `discovery` of members with this ownership. `outbox` is the table of the outbox that names their policy.
pub(super) fn discovery(
    table: &SettingsTable<'_>,
    ownership: OwnershipMode,
    outbox: Option<&SettingsTable<'_>>,
) -> Result<(DiscoverySettings, Timing), Error> {
    let backend = table.take(&keys::BACKEND)?;
    if backend.text().is_empty() {
        return Err(backend.refuse("write the backend's name, such as \"local\""));
    }
    let store = if backend.text() == IN_OUTBOX { store_of(&backend, outbox)? } else { Vec::new() };
    let name = if store.is_empty() { backend.text() } else { "postgres" }.to_owned();
    let timing = timing(table, |timing| backend::check_lease(&name, timing, ownership))?;
    let options = backend::find(&name).map_or_else(|| Ok(BackendSettings::new()), |kind| options::read(table, kind))?;
    let options = store.into_iter().fold(options, |options, (key, value)| options.with(key, value));
    Ok((DiscoverySettings { backend: name, options, written: Some(backend) }, timing))
}

/// Refuses the table of a backend where no `backend` is written: workers of several machines would meet in `local`, each machine by itself,
/// and each of them would own everything.
fn refuse_forgotten(discovery: &SettingsTable<'_>) -> Result<(), Error> {
    if discovery.written(&keys::BACKEND)?.is_some() {
        return Ok(());
    }
    let unset = DiscoverySettings::default().backend;
    for name in backend::names().into_iter().filter(|name| *name != unset) {
        if let Some((table, origin)) = discovery.set_in(name) {
            return Err(origin.fail(format_args!(
                "{table} is set, but discovery.backend is not, and without it workers meet in {unset:?}, each machine by itself: write \
                 backend = {name:?} beside it, or {unset:?} if you mean that"
            )));
        }
    }
    Ok(())
}

/// The options of the backend `postgres` that say where an outbox's events are.
fn store_of(backend: &ResolvedValue, outbox: Option<&SettingsTable<'_>>) -> Result<Vec<(&'static str, BackendValue)>, Error> {
    let Some(outbox) = outbox else {
        return Err(backend.refuse("only the policy that an outbox names can meet in it; write this below that policy, or another backend"));
    };
    let store = outbox.require(&keys::STORE)?;
    if !["postgres://", "postgresql://"].iter().any(|scheme| store.text().starts_with(scheme)) {
        let why = format!("the store of {} is not in PostgreSQL; write \"local\" if all publishers are on one machine", outbox.path());
        return Err(backend.refuse(why));
    }
    let mut options = vec![("url", BackendValue::Text(without_search_path(store.text())))];
    if let Some(file) = outbox.find(&keys::STORE_PASSWORD_FILE)? {
        options.push(("password", BackendValue::Secret(outbox.read_secret(&file)?)));
    }
    Ok(options)
}

/// The address without the schema of the outbox's tables: the backend has its own, and asks for nothing that a pooler refuses.
fn without_search_path(address: &str) -> String {
    let Some((place, parameters)) = address.split_once('?') else { return address.to_owned() };
    let is_other = |parameter: &&str| !parameter.starts_with("options[") && !parameter.starts_with("options%5B");
    let rest = parameters.split('&').filter(is_other).collect::<Vec<_>>().join("&");
    if rest.is_empty() { place.to_owned() } else { format!("{place}?{rest}") }
}

fn timing(table: &SettingsTable<'_>, check: impl Fn(&Timing) -> Result<(), PolicyError>) -> Result<Timing, Error> {
    let ttl = table.take(&keys::TTL)?;
    let renew_every = table.take_if_set(&keys::RENEW_EVERY)?;
    let stop_margin = table.take(&keys::STOP_MARGIN)?;
    let renewal = renew_every.as_ref().map(ResolvedValue::time).transpose()?;
    let timing = Timing::new(ttl.time()?, renewal, stop_margin.time()?).and_then(|timing| check(&timing).map(|()| timing));
    let timing = timing.map_err(|error| {
        let related: Vec<_> = std::iter::once(&ttl).chain(&renew_every).chain(std::iter::once(&stop_margin)).collect();
        refused(&error, table.path(), &related)
    })?;
    if renew_every.is_none() {
        table.note_from(&keys::RENEW_EVERY, format_duration(timing.renew_every), Origin::Default);
    }
    Ok(timing)
}

/// Reads the policy `name`, whose discovery overrides the one at the full key `common`. `outbox` is the table of the outbox that names it.
pub(super) fn policy(
    table: &SettingsTable<'_>,
    name: PolicyName,
    common: &str,
    outbox: Option<&SettingsTable<'_>>,
) -> Result<PolicySettings, Error> {
    let drives_outbox = outbox.is_some();
    let group = table.take(&keys::GROUP_NAME)?.parse(|text| GroupName::new(text))?;
    let mut policy = Policy::new(name, group);
    let ownership = table.take(&keys::OWNERSHIP)?;
    // The table of keys accepts only known names.
    policy.ownership = OwnershipMode::named(ownership.text()).unwrap_or_default();
    let fewer_slots = drives_outbox || policy.ownership == OwnershipMode::Exclusive;
    policy.placement = placement::read(table, drives_outbox, fewer_slots)?;
    claims(table, &mut policy)?;
    policy.min_members = table.take(&keys::MIN_MEMBERS)?.parse(str::parse)?;
    policy.drain_timeout = table.take(&keys::DRAIN_TIMEOUT)?.time()?;
    let rejoin_grace = table.take(&keys::REJOIN_GRACE)?;
    policy.rejoin_grace = rejoin_grace.time()?;
    policy.on_backend_loss = backend_loss(table)?;
    let max_loss = table.take_if_set(&keys::MAX_LOSS)?;
    policy.max_loss = max_loss.as_ref().map(ResolvedValue::percent).transpose()?;
    policy.next = placement::next(table, &policy, drives_outbox)?;
    let related: Vec<_> = max_loss.iter().chain([&ownership, &rejoin_grace]).collect();
    let policy = policy.validated().map_err(|error| refused(&error, table.path(), &related))?;

    let peers = peers::read(table)?;
    let requests = requests::read(table, policy.ownership)?;
    let meeting = table.table("discovery").inheriting(common);
    refuse_forgotten(&meeting)?;
    let (discovery, timing) = discovery(&meeting, policy.ownership, outbox)?;
    Ok(PolicySettings { policy, timing, discovery, peers, requests })
}

fn backend_loss(table: &SettingsTable<'_>) -> Result<BackendLoss, Error> {
    let chosen = table.take(&keys::ON_BACKEND_LOSS)?;
    if chosen.text() == "keep" {
        return Ok(BackendLoss::Keep { keep_for: table.take(&keys::KEEP_FOR)?.time()? });
    }
    match table.written(&keys::KEEP_FOR)? {
        Some(found) => Err(found.refuse("it says for how long the last view is kept: write on_backend_loss = \"keep\" too")),
        None => Ok(BackendLoss::Stop),
    }
}

/// Reads the settings that apply only to exclusive ownership.
fn claims(table: &SettingsTable<'_>, policy: &mut Policy) -> Result<(), Error> {
    if policy.ownership != OwnershipMode::Exclusive {
        for key in [&keys::ON_DRAIN_TIMEOUT, &keys::EPOCH_FLOOR, &keys::VERSION_RULE] {
            if let Some(found) = table.written(key)? {
                return Err(found.refuse("it is about claims: write ownership = \"exclusive\" too, or remove it"));
            }
        }
        return Ok(());
    }
    if table.take(&keys::ON_DRAIN_TIMEOUT)?.text() == "release" {
        policy.on_drain_timeout = OnDrainTimeout::Release;
    }
    policy.epoch_floor = table.take_if_set(&keys::EPOCH_FLOOR)?.map_or(Ok(0), |found| found.parse(str::parse))?;
    // The table of keys accepts only known names.
    policy.version_rule = VersionRule::named(table.take(&keys::VERSION_RULE)?.text()).unwrap_or_default();
    Ok(())
}
