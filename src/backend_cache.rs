//! Which factories of this process share a backend, and with it connections and watches: those whose settings name the same place, inside
//! one runtime.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use shardwise_discovery::Discovery;
use tokio::runtime::{Handle, Id};

use crate::Result;
use crate::settings::DiscoverySettings;

struct CachedBackend {
    settings: DiscoverySettings,
    /// What a backend keeps going ends with its runtime.
    runtime: Id,
    backend: Weak<dyn Discovery>,
}

/// Kept by the process, because members that share a group in one process (a host of many tenants) have a factory each, and a server
/// takes so many connections and no more. It holds nothing alive.
static KNOWN: Mutex<Vec<CachedBackend>> = Mutex::new(Vec::new());

/// The backend of that place, as long as anybody of this runtime holds it, else the one that `open` makes. Outside of a runtime everybody
/// has one of their own.
pub(crate) fn backend(settings: &DiscoverySettings, open: impl FnOnce() -> Result<Arc<dyn Discovery>>) -> Result<Arc<dyn Discovery>> {
    let Ok(runtime) = Handle::try_current() else { return open() };
    // Opening contacts nobody, and nothing in here leaves the list half changed.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|place| place.backend.strong_count() > 0);
    let mut here = known.iter().filter(|place| place.runtime == runtime.id() && place.settings == *settings);
    if let Some(backend) = here.find_map(|place| place.backend.upgrade()) {
        return Ok(backend);
    }
    let backend = open()?;
    known.push(CachedBackend { settings: settings.clone(), runtime: runtime.id(), backend: Arc::downgrade(&backend) });
    Ok(backend)
}
