//! The members of the benchmark.

use std::path::Path;
use std::time::{Duration, Instant};

use shardwise::{Settings, ShardingFactory, ShardingService};

pub(crate) const TOKEN: &str = "members-know-this-one-alone";
/// Longer than anything takes that is waited for, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
const POLL_EVERY: Duration = Duration::from_millis(10);

/// A member that meets others in that folder, which has a token if they have one.
pub(crate) fn service(folder: &Path, id: &str) -> ShardingService {
    let token = folder.join("token");
    let proves = if token.exists() { format!("peer_token_file = {:?}", token.display().to_string()) } else { String::new() };
    let table = "[default.resilience.sharding";
    // More handlers than requests in flight: a place is free only once an answer is on its way.
    let text = format!(
        "{table}.policies.workers]\ngroup_name = \"workers\"\nrequests_at_once = 256\n{proves}\n{table}.instance]\nid = \"{id}\"\n\
         {table}.discovery]\nbackend = \"local\"\n{table}.discovery.local]\npath = {:?}\n",
        folder.join("workers.db").display().to_string()
    );
    ShardingFactory::from_settings(Settings::from_toml_str(&text).unwrap()).unwrap().create("workers").unwrap()
}

pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(POLL_EVERY).await;
    }
}
