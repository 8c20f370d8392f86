//! The conformance suites over a third party's backend, and a program that uses it by its settings.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use author::{BACKEND, FolderBackend};
use shardwise::{Settings, ShardingFactory, add_backend};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};

struct Folder;

/// A folder of the test's own, below the target folder.
fn folder() -> std::path::PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[async_trait]
impl Fixture for Folder {
    async fn scope(&self) -> Scope {
        let (folder, clock) = (folder(), Clock::system());
        let backend = || Arc::new(FolderBackend::new(&folder, clock.clone()));
        Scope {
            backend: backend(),
            peer: backend(),
            group: GroupName::new("conformance").expect("a valid name"),
            ttl: Duration::from_secs(1),
            clock: clock.clone(),
            guard: Box::new(()),
        }
    }
}

shardwise_discovery::conformance_tests!(Folder);
shardwise_discovery::notes_conformance_tests!(Folder);

fn settings(line: &str) -> shardwise::Result<Settings> {
    add_backend(&BACKEND)?;
    Settings::from_toml_str(&format!(
        "[default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\n[default.resilience.sharding.discovery]\n\
         backend = \"folder\"\n[default.resilience.sharding.discovery.folder]\n{line}"
    ))
}

#[tokio::test]
async fn a_program_names_it_in_its_settings() {
    let line = format!("path = {:?}", folder().display().to_string());
    let sharding =
        ShardingFactory::from_settings(settings(&line).expect("settings")).expect("a factory").create("workers").expect("a service");
    sharding.register_self().await.expect("it joins");
    assert!(sharding.owns("any key"), "alone in its group");
    sharding.deregister_self().await.expect("it leaves");
}

#[test]
fn its_keys_are_checked_like_those_of_the_built_in_backends() {
    let said = settings("pth = \"x\"").expect_err("no such key").to_string();
    assert!(said.contains("settings line ") && said.contains("pth") && said.contains("path"), "{said}");
}
