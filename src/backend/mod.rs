//! The table of backends, and those that this process has opened.
//!
//! Adding a backend takes one line here, one feature and one folder, which defines its name, its settings and its constructor.

use std::sync::{Arc, Mutex, Weak};

use shardwise_core::{OwnershipMode, PolicyError, Timing};
use shardwise_discovery::settings::{BackendKind, BackendSettings};
use shardwise_discovery::{Capabilities, Clock, Discovery, MemoryBackend};
use shardwise_settings::{listed, nearest};
use tokio::runtime::{Handle, Id};

use crate::error::{Error, ErrorKind, Result, locked};

pub(crate) struct KnownBackend {
    /// Its name in the settings, which is also the name of its feature.
    pub(crate) name: &'static str,
    /// `None`: this program was built without the feature.
    pub(crate) kind: Option<&'static BackendKind>,
}

/// One line per backend: its feature and its crate.
macro_rules! backends {
    ($($name:literal => $krate:ident),* $(,)?) => {
        pub(crate) const BACKENDS: &[KnownBackend] = &[
            KnownBackend { name: MEMORY.name, kind: Some(&MEMORY) },
            $(
                #[cfg(feature = $name)]
                KnownBackend { name: $name, kind: Some(&$krate::BACKEND) },
                #[cfg(not(feature = $name))]
                KnownBackend { name: $name, kind: None },
            )*
        ];
    };
}

backends! {
    "local" => shardwise_backend_local,
    "consul" => shardwise_backend_consul,
    "etcd" => shardwise_backend_etcd,
    "nats" => shardwise_backend_nats,
    "postgres" => shardwise_backend_postgres,
    "valkey" => shardwise_backend_valkey,
}

/// Workers of one process, for tests: always available.
const MEMORY: BackendKind = BackendKind {
    name: "memory",
    keys: &[],
    claims_share: 1,
    open: |_, clock| Ok(Arc::new(MemoryBackend::new(clock.clone()))),
    init: None,
};

/// The backends that the program has added.
static ADDED: Mutex<Vec<&'static BackendKind>> = Mutex::new(Vec::new());

/// What stands beside the backends' tables in `discovery`, and what `backend` may be besides a backend's name.
const RESERVED: [&str; 5] = ["backend", "ttl", "renew_every", "stop_margin", "outbox"];

/// Adds a third party's backend to this process, before the settings are loaded: `discovery.backend` may name it, and its keys below
/// `discovery.NAME` are read, checked, explained and masked like those of the built-in ones. Adding the same one again does nothing.
///
/// A backend that needs no keys can be passed to [`ShardingFactoryBuilder::backend`](crate::ShardingFactoryBuilder::backend) instead.
///
/// # Errors
/// [`ErrorKind::Settings`]: the name or a key is not made of lower-case letters, digits and underscores, a key is there twice, or another
/// backend has the name.
pub fn add_backend(kind: &'static BackendKind) -> Result<()> {
    let refused = |why: String| Err(Error::new(ErrorKind::Settings, format!("the backend {:?} cannot be added: {why}", kind.name)));
    let twins = kind.keys.iter().filter_map(|key| key.file_twin).map(|twin| twin.name);
    let keys: Vec<&str> = kind.keys.iter().map(|key| key.name).chain(twins).collect();
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if let Some(name) = std::iter::once(&kind.name).chain(&keys).find(|name| !is_name(name)) {
        return refused(format!("{name:?} is not a name; use lower-case letters, digits and underscores"));
    }
    if let Some((_, twice)) = keys.iter().enumerate().find(|(at, key)| keys[..*at].contains(key)) {
        return refused(format!("it has the key {twice} twice"));
    }
    if RESERVED.contains(&kind.name) || BACKENDS.iter().any(|known| known.name == kind.name) {
        return refused("the name is taken".to_owned());
    }
    let mut added = locked(&ADDED);
    match added.iter().find(|known| known.name == kind.name) {
        Some(known) if known.keys == kind.keys => Ok(()),
        Some(_) => refused("another backend of this name was added".to_owned()),
        None => {
            added.push(kind);
            Ok(())
        }
    }
}

/// The backends that the program has added.
pub(crate) fn added() -> Vec<&'static BackendKind> {
    locked(&ADDED).clone()
}

/// The backend of that name, if this program has it.
pub(crate) fn find(name: &str) -> Option<&'static BackendKind> {
    let built_in = BACKENDS.iter().find(|known| known.name == name).and_then(|known| known.kind);
    built_in.or_else(|| added().into_iter().find(|kind| kind.name == name))
}

/// The names of all backends, also of those that this program was built without.
pub(crate) fn names() -> Vec<&'static str> {
    BACKENDS.iter().map(|known| known.name).chain(added().into_iter().map(|kind| kind.name)).collect()
}

pub(crate) fn open(kind: &BackendKind, options: &BackendSettings, clock: &Clock) -> Result<Arc<dyn Discovery>> {
    // It contacts no server, so any error is in the settings.
    (kind.open)(options, clock).map_err(|error| Error::new(ErrorKind::Settings, error.context()).caused_by(error))
}

/// Checks that, with the TTL that the backend grants, a member of this policy owns something from one renewal to the next.
pub(crate) fn check_lease(name: &str, timing: &Timing, ownership: OwnershipMode) -> Result<(), PolicyError> {
    let share = find(name).filter(|_| ownership == OwnershipMode::Exclusive).map_or(1, |kind| kind.claims_share);
    timing.check_lease(timing.ttl / share)
}

/// That a backend cannot hold claims, why, and what to use instead, as the end of a sentence.
pub(crate) fn cannot_claim(capabilities: &Capabilities) -> String {
    match capabilities.no_claims {
        "" => format!("{} cannot; use \"local\", \"consul\", \"etcd\", \"nats\" or \"postgres\"", capabilities.name),
        why => format!("{} cannot: {why}", capabilities.name),
    }
}

/// Whether it is the backend that connects only members of one factory.
pub(crate) fn is_memory(name: &str) -> bool {
    name == MEMORY.name
}

/// What to write instead of a name that this program has no backend for.
pub(crate) fn available(name: &str) -> String {
    let built_in = BACKENDS.iter().filter(|known| known.kind.is_some()).map(|known| known.name);
    let have: Vec<_> = built_in.chain(added().into_iter().map(|kind| kind.name)).collect();
    if BACKENDS.iter().any(|known| known.name == name) {
        return format!(
            "this program has {}; build it with the feature {name:?}: cargo add shardwise --features {name}, or for the command, in \
             a checkout, cargo install --locked --path crates/cli --no-default-features --features {name}",
            have.join(", ")
        );
    }
    if let Some(meant) = nearest(name, BACKENDS.iter().map(|known| known.name)).filter(|meant| !have.contains(meant)) {
        return format!("did you mean {meant:?}? {}", available(meant));
    }
    // The author of a program gets the hint, and not an operator who has misspelled a name.
    let is_slip = nearest(name, have.iter().copied()).is_some();
    let own = if is_slip { "" } else { "; a program adds its own backend with ShardingFactory::builder().backend(name, ..)" };
    format!("this program has {}{own}", listed(name, &have))
}

struct CachedBackend {
    name: String,
    options: BackendSettings,
    /// The backend's tasks end with its runtime.
    runtime: Id,
    backend: Weak<dyn Discovery>,
}

/// One table for the process: members that share a group in one process (a host of many tenants) have a factory each, and a server
/// accepts a limited number of connections. It keeps no backend alive.
static KNOWN: Mutex<Vec<CachedBackend>> = Mutex::new(Vec::new());

/// The open backend of that name with these options in this runtime, or the one that `open` creates. Outside a runtime it is always new.
pub(crate) fn cached(
    name: &str,
    options: &BackendSettings,
    open: impl FnOnce() -> Result<Arc<dyn Discovery>>,
) -> Result<Arc<dyn Discovery>> {
    let Ok(runtime) = Handle::try_current() else { return open() };
    // Opening contacts no server.
    let mut known = locked(&KNOWN);
    known.retain(|cached| cached.backend.strong_count() > 0);
    let mut here = known.iter().filter(|cached| cached.runtime == runtime.id() && cached.name == name && cached.options == *options);
    if let Some(backend) = here.find_map(|cached| cached.backend.upgrade()) {
        return Ok(backend);
    }
    let backend = open()?;
    known.push(CachedBackend { name: name.to_owned(), options: options.clone(), runtime: runtime.id(), backend: Arc::downgrade(&backend) });
    Ok(backend)
}
