//! The table of backends: a name in the settings to a constructor. Adding a backend is one line here, one feature, one folder.

use std::sync::Arc;

use shardwise_discovery::{Clock, Discovery, MemoryBackend};

use crate::settings::DiscoverySettings;
use crate::{Error, ErrorKind, Result};

/// Makes a backend from its settings. Cheap: nothing is contacted before the first call.
type Constructor = fn(&DiscoverySettings, &Clock) -> Result<Arc<dyn Discovery>>;

const BACKENDS: &[(&str, Constructor)] = &[
    ("memory", |_, clock| Ok(Arc::new(MemoryBackend::new(clock.clone())))),
    #[cfg(feature = "local")]
    ("local", |settings, clock| {
        let config = shardwise_backend_local::LocalConfig { path: settings.local_path.clone() };
        Ok(Arc::new(shardwise_backend_local::LocalBackend::open(config, clock.clone())?))
    }),
];

/// An error unless there is a backend of that name.
pub(crate) fn check(name: &str) -> Result<()> {
    if BACKENDS.iter().any(|(known, _)| *known == name) { Ok(()) } else { Err(unknown(name)) }
}

/// Makes the backend that the settings name.
pub(crate) fn open(settings: &DiscoverySettings, clock: &Clock) -> Result<Arc<dyn Discovery>> {
    let found = BACKENDS.iter().find(|(name, _)| *name == settings.backend);
    let (_, constructor) = found.ok_or_else(|| unknown(&settings.backend))?;
    constructor(settings, clock)
}

fn unknown(name: &str) -> Error {
    let known: Vec<_> = BACKENDS.iter().map(|(name, _)| *name).collect();
    let hint = match name {
        "local" => "; build shardwise with its feature \"local\"",
        _ => "; hand your own to ShardingFactory::builder().backend(name, ..)",
    };
    Error::new(ErrorKind::Settings, format!("discovery.backend is {name:?}: this program has {}{hint}", known.join(", ")))
}
