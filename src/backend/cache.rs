//! Shares backends, and with them connections and watches, between the factories of one process with equal settings, per runtime.

use std::sync::{Arc, Mutex, Weak};

use shardwise_discovery::Discovery;
use shardwise_discovery::settings::BackendSettings;
use tokio::runtime::{Handle, Id};

use crate::error::{Result, locked};

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
