//! The backend in the table of settings: its key, and how it is opened from it.

use std::path::Path;
use std::sync::Arc;

use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape};
use shardwise_discovery::{Clock, Discovery};

use crate::backend::LocalBackend;
use crate::config::LocalConfig;

const PATH_DEFAULT: &str = "shardwise.db";

/// What the settings can say: `discovery.backend = "local"`, `discovery.local.path`.
pub const BACKEND: BackendKind = BackendKind {
    name: "local",
    keys: &[BackendKey::new("path", BackendShape::Path, "the SQLite file where the workers of this machine meet").or(PATH_DEFAULT)],
    claims_share: 1,
    open,
    init: None,
};

fn open(settings: &BackendSettings, clock: &Clock) -> shardwise_discovery::Result<Arc<dyn Discovery>> {
    let path = settings.path("path").unwrap_or_else(|| Path::new(PATH_DEFAULT)).to_owned();
    Ok(Arc::new(LocalBackend::open(LocalConfig { path }, clock.clone())?))
}
