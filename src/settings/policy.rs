//! `[default.resilience.sharding.policies.<name>]` and the discovery each of them uses.

use std::time::Duration;

use shardwise_core::holdings::OnDrainTimeout;
use shardwise_core::{
    BackendLoss, GroupName, OwnershipMode, PlacementKind, PlacementParams, Policy, PolicyError, PolicyName, SLOTS_OUTBOX, Timing,
    VersionRule,
};

use shardwise_discovery::settings::{BackendSettings, BackendValue};

use super::files::BaseDirectory;
use super::messages::{self, MessagesSettings};
use super::origin::Path;
use super::peers::{self, PeersSettings};
use super::read::{Reader, ResolvedValue, SettingsTable, refused};
use super::{keys, next, options, tree};
use crate::{Error, backend};

/// How long the last view is kept where it is kept and nothing says how long.
const KEEP_FOR_DEFAULT: Duration = Duration::from_mins(5);

/// A policy with everything that a service needs to run it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicySettings {
    /// The group, how keys are placed, how ownership is guarded.
    pub policy: Policy,
    /// How its members stay alive.
    pub timing: Timing,
    /// Where its members meet.
    pub discovery: DiscoverySettings,
    /// Where messages to its singletons arrive.
    pub messages: MessagesSettings,
    /// Requests between its members.
    pub peers: PeersSettings,
}

impl PolicySettings {
    /// Whether members under both are in one group: of one name, in one place.
    pub fn meets(&self, other: &Self) -> bool {
        self.policy.group == other.policy.group && self.discovery == other.discovery
    }
}

/// Where workers meet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiscoverySettings {
    /// The backend's name; whether there is one of that name is for the factory to say, which may have been given others.
    pub backend: String,
    /// What the backend is told, such as `path` for `local`: see its documentation. Relative paths in the settings file have been joined
    /// to the file's directory.
    pub options: BackendSettings,
}

impl DiscoverySettings {
    /// The backend of that name with its defaults.
    pub fn new(backend: impl Into<String>) -> Self {
        let backend = backend.into();
        let options = backend::find(&backend).map(options::defaults).unwrap_or_default();
        Self { backend, options }
    }

    /// With this value for one of the backend's keys.
    #[must_use]
    pub fn with(self, key: &str, value: BackendValue) -> Self {
        Self { options: self.options.with(key, value), ..self }
    }
}

impl PolicySettings {
    /// A policy made in code, with the default timing and discovery; assign the fields to change them.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            timing: Timing::default(),
            discovery: DiscoverySettings::default(),
            messages: MessagesSettings::default(),
            peers: PeersSettings::default(),
        }
    }
}

impl Default for DiscoverySettings {
    /// The backend `local` on `shardwise.db` in the working directory.
    fn default() -> Self {
        Self::new("local")
    }
}

/// Reads the discovery at `place`, of members with this ownership.
pub(super) fn discovery(
    reader: &Reader,
    place: &SettingsTable,
    base: &BaseDirectory,
    ownership: OwnershipMode,
) -> Result<(DiscoverySettings, Timing), Error> {
    let backend = reader.take(place, &keys::BACKEND)?;
    match backend.text()? {
        "" => return Err(backend.refuse("write the backend's name, such as \"local\"")),
        name if tree::BACKENDS_LATER.contains(&name) => return Err(backend.refuse("this is not built yet; write \"local\"")),
        _ => {}
    }
    let name = backend.text()?.to_owned();
    let timing = timing(reader, place, |timing| backend::check_lease(&name, timing, ownership))?;
    let options = match backend::find(&name) {
        Some(kind) => options::read(reader, place, kind, base)?,
        None => BackendSettings::new(),
    };
    Ok((DiscoverySettings { backend: name, options }, timing))
}

fn timing(reader: &Reader, place: &SettingsTable, check: impl Fn(&Timing) -> Result<(), PolicyError>) -> Result<Timing, Error> {
    let ttl = reader.take(place, &keys::TTL)?;
    let renew_every = reader.take_if_set(place, &keys::RENEW_EVERY)?;
    let stop_margin = reader.take(place, &keys::STOP_MARGIN)?;
    let renewal = renew_every.as_ref().map(ResolvedValue::time).transpose()?;
    let timing = Timing::new(ttl.time()?, renewal, stop_margin.time()?).and_then(|timing| check(&timing).map(|()| timing));
    let timing = timing.map_err(|error| {
        let related: Vec<_> = std::iter::once(&ttl).chain(&renew_every).chain(std::iter::once(&stop_margin)).collect();
        refused(&error, &place.path, &related)
    })?;
    if renew_every.is_none() {
        reader.note_computed(place, &keys::RENEW_EVERY, shardwise_core::format_duration(timing.renew_every));
    }
    Ok(timing)
}

/// Reads the policy `name` at `place`, whose discovery lies over the common one.
pub(super) fn policy(
    reader: &Reader,
    place: &SettingsTable,
    name: PolicyName,
    common: &Path,
    drives_outbox: bool,
    base: &BaseDirectory,
) -> Result<PolicySettings, Error> {
    let group = reader.take(place, &keys::GROUP_NAME)?;
    let group = GroupName::new(group.text()?).map_err(|error| group.refuse(error))?;
    let mut policy = Policy::new(name, group);
    let ownership = reader.take(place, &keys::OWNERSHIP)?;
    // The table of keys lets none through that has no name.
    policy.ownership = OwnershipMode::named(ownership.text()?).unwrap_or_default();
    let fewer_slots = drives_outbox || policy.ownership == OwnershipMode::Exclusive;
    policy.placement = placement(reader, place, drives_outbox, fewer_slots)?;
    claims(reader, place, &mut policy)?;
    policy.min_members = reader.take(place, &keys::MIN_MEMBERS)?.whole()?;
    policy.drain_timeout = reader.take(place, &keys::DRAIN_TIMEOUT)?.time()?;
    let rejoin_grace = reader.take(place, &keys::REJOIN_GRACE)?;
    policy.rejoin_grace = rejoin_grace.time()?;
    policy.on_backend_loss = backend_loss(reader, place)?;
    let max_loss = reader.take_if_set(place, &keys::MAX_LOSS)?;
    policy.max_loss = max_loss.as_ref().map(ResolvedValue::percent).transpose()?;
    policy.next = next::read(reader, place, &policy, drives_outbox)?;
    let related: Vec<_> = max_loss.iter().chain([&ownership, &rejoin_grace]).collect();
    let policy = policy.validated().map_err(|error| refused(&error, &place.path, &related))?;

    let peers = peers::read(reader, place, base)?;
    let messages = messages::read(reader, place, &policy, base, &peers.networks)?;
    let meeting = SettingsTable { path: place.path.join("discovery"), inherits: Some(common.clone()), origin: place.origin.clone() };
    let (discovery, timing) = discovery(reader, &meeting, base, policy.ownership)?;
    Ok(PolicySettings { policy, timing, discovery, messages, peers })
}

/// Reads how keys are placed.
fn placement(reader: &Reader, place: &SettingsTable, drives_outbox: bool, fewer_slots: bool) -> Result<PlacementParams, Error> {
    let mut params = PlacementParams { kind: kind(&reader.take(place, &keys::PLACEMENT)?, drives_outbox)?, ..PlacementParams::default() };
    let [slots_key, virtual_nodes, load_margin] = [&keys::SLOTS, &keys::VIRTUAL_NODES, &keys::LOAD_MARGIN];
    refuse_unused(reader, place, params.kind, [slots_key, virtual_nodes, load_margin])?;
    if params.kind.by_key().is_none() {
        params.slots = slots(reader, place, fewer_slots)?;
        params.load_margin = reader.take(place, load_margin)?.margin()?;
    }
    if params.kind.uses_virtual_nodes() {
        params.virtual_nodes = reader.take(place, virtual_nodes)?.whole()?;
    }
    Ok(params)
}

pub(super) fn kind(found: &ResolvedValue, drives_outbox: bool) -> Result<PlacementKind, Error> {
    // The table of keys lets none through that has no name.
    let kind = PlacementKind::named(found.text()?).unwrap_or_default();
    if drives_outbox && kind.by_key().is_some() {
        return Err(
            found.refuse("an outbox uses this policy and fences each slot in its database, and only \"ring\" and \"quota\" have slots; write one of these")
        );
    }
    Ok(kind)
}

/// Refuses the numbers of slots, virtual nodes and the load margin where they are written and mean nothing: whoever wrote them expects
/// something else than what the other fleet does.
pub(super) fn refuse_unused(
    reader: &Reader,
    place: &SettingsTable,
    kind: PlacementKind,
    [slots, virtual_nodes, load_margin]: [&keys::SettingKey; 3],
) -> Result<(), Error> {
    let Some(placement) = kind.by_key() else { return Ok(()) };
    let unused = [Some(slots), Some(load_margin), (!kind.uses_virtual_nodes()).then_some(virtual_nodes)];
    for key in unused.into_iter().flatten() {
        if let Some(found) = reader.take_if_set(place, key)? {
            return Err(found.refuse(format_args!("placement {placement} has no {}; remove it", key.name)));
        }
    }
    Ok(())
}

fn backend_loss(reader: &Reader, place: &SettingsTable) -> Result<BackendLoss, Error> {
    let chosen = reader.take(place, &keys::ON_BACKEND_LOSS)?;
    let keep_for = reader.take_if_set(place, &keys::KEEP_FOR)?;
    match (chosen.text()?, keep_for) {
        ("keep", Some(keep_for)) => Ok(BackendLoss::Keep { keep_for: keep_for.time()? }),
        ("keep", None) => {
            reader.note_computed(place, &keys::KEEP_FOR, shardwise_core::format_duration(KEEP_FOR_DEFAULT));
            Ok(BackendLoss::Keep { keep_for: KEEP_FOR_DEFAULT })
        }
        (_, Some(keep_for)) => {
            Err(keep_for.refuse("it says for how long the last view is kept: write on_backend_loss = \"keep\" beside it"))
        }
        (_, None) => Ok(BackendLoss::Stop),
    }
}

/// Reads what means something under exclusive ownership alone.
fn claims(reader: &Reader, place: &SettingsTable, policy: &mut Policy) -> Result<(), Error> {
    let on_drain_timeout = reader.take_if_set(place, &keys::ON_DRAIN_TIMEOUT)?;
    let epoch_floor = reader.take_if_set(place, &keys::EPOCH_FLOOR)?;
    let version_rule = reader.take_if_set(place, &keys::VERSION_RULE)?;
    if policy.ownership != OwnershipMode::Exclusive {
        let unused = on_drain_timeout.as_ref().or(epoch_floor.as_ref()).or(version_rule.as_ref());
        let refuse = |found: &ResolvedValue| found.refuse("it is about claims: write ownership = \"exclusive\" beside it, or remove it");
        return unused.map_or(Ok(()), |found| Err(refuse(found)));
    }
    match on_drain_timeout.as_ref().map(ResolvedValue::text).transpose()? {
        Some("release") => policy.on_drain_timeout = OnDrainTimeout::Release,
        Some(_) => {}
        None => reader.note_computed(place, &keys::ON_DRAIN_TIMEOUT, "hold"),
    }
    match version_rule.as_ref().map(ResolvedValue::text).transpose()? {
        // The table of keys lets none through that has no name.
        Some(name) => policy.version_rule = VersionRule::named(name).unwrap_or_default(),
        None => reader.note_computed(place, &keys::VERSION_RULE, policy.version_rule.as_str()),
    }
    policy.epoch_floor = epoch_floor.as_ref().map(ResolvedValue::epoch_floor).transpose()?.unwrap_or(0);
    Ok(())
}

fn slots(reader: &Reader, place: &SettingsTable, fewer: bool) -> Result<u32, Error> {
    if !fewer || reader.find(place, &keys::SLOTS, None)?.is_some() {
        return reader.take(place, &keys::SLOTS)?.whole();
    }
    reader.note_computed(place, &keys::SLOTS, SLOTS_OUTBOX);
    Ok(SLOTS_OUTBOX)
}
