//! Packages outside the workspace: a user's program that joins over TLS, while the TLS provider of its process stays unchanged; and a
//! third-party backend outside the workspace, over which the conformance suites run.

use std::path::Path;

use shardwise_testkit::{Authority, Consul, ConsulOptions, Etcd, EtcdOptions};

use crate::failure::TaskFailure;
use crate::files;
use crate::pass::StepPass;
use crate::report::say;
use crate::run::{StepLog, count_tests};
use crate::servers;

/// The default providers it is started with: none, one that is unusable, and aws-lc. With both libraries in it and no default,
/// rustls itself would not know which one to take; with ring alone it would, so that is the easier case.
const DEFAULTS: [&str; 3] = ["none", "unusable", "aws-lc"];

/// What the program is built from. The versions of aws-lc are fixed here because our Cargo.lock has none.
const MANIFEST: &str = r#"[workspace]

[package]
name = "outside"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
aws-lc-rs = { version = "=1.19.0", default-features = false }
aws-lc-sys = { version = "=0.47.0", default-features = false }
rustls = { version = "0.23", default-features = false, features = ["std", "ring", "aws_lc_rs"] }
shardwise = { path = "CHECKOUT", features = ["consul", "etcd"] }
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[profile.dev]
debug = false
"#;

/// The backend's package.
const AUTHORS_MANIFEST: &str = r#"[workspace]

[package]
name = "author"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
async-trait = "0.1"
serde = { version = "1", features = ["derive"] }
serde_json = "1"
shardwise-core = { path = "CHECKOUT/crates/core" }
shardwise-discovery = { path = "CHECKOUT/crates/discovery" }
tokio = { version = "1", features = ["rt", "time"] }

[dev-dependencies]
shardwise = { path = "CHECKOUT" }
shardwise-discovery = { path = "CHECKOUT/crates/discovery", features = ["conformance"] }
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[profile.dev]
debug = false
"#;

const AUTHORS_FILES: [(&str, &str); 2] = [
    ("src/lib.rs", include_str!("../outside/author/lib.rs")),
    ("tests/conformance.rs", include_str!("../outside/author/tests/conformance.rs")),
];

/// Builds the backend as its author would, and runs the suites over it.
pub(crate) fn author(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let folder = log.context.scratch("author");
    let manifest = files::write_manifest(log.context, &folder, AUTHORS_MANIFEST)?;
    AUTHORS_FILES.iter().try_for_each(|(path, text)| files::write(&folder.join(path), text))?;
    let (manifest, target) = (manifest.to_string_lossy(), log.context.target().to_string_lossy());
    let output = log.run(log.context.cargo(&["test", "--manifest-path", &manifest, "--target-dir", &target]))?;
    match count_tests(&output) {
        (0, ..) => Err(TaskFailure::new("no test of the backend ran")),
        (passed, ..) => Ok(StepPass::many(passed)),
    }
}

const PROGRAM: &str = include_str!("../outside/program.rs");

/// Builds the program and runs it beside a Consul and an etcd that speak TLS only.
pub(crate) fn tls(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let folder = log.context.scratch("outside");
    let manifest = files::write_manifest(log.context, &folder, MANIFEST)?;
    files::write(&folder.join("src/main.rs"), PROGRAM)?;
    let authority = Authority::new()?;
    let identity = authority.server()?;
    let (consul, etcd) = servers::drive(async {
        let consul = Consul::start(ConsulOptions::default().with_tls(&identity)).await?;
        Ok((consul, Etcd::start(EtcdOptions::default().with_tls(&identity)).await?))
    })?;
    let settings = folder.join("settings.toml");
    files::write(&settings, &settings_for(&consul.address(), &etcd.address(), &authority.file()))?;

    let (manifest, target) = (manifest.to_string_lossy(), log.context.target().to_string_lossy());
    log.run(log.context.cargo(&["build", "--manifest-path", &manifest, "--target-dir", &target]))?;
    for default in DEFAULTS {
        say(&format!("    default provider: {default}"));
        let mut program = servers::user(log.context, &format!("{target}/debug/outside"));
        program.arg(&settings).arg(default);
        log.run(program)?;
    }
    Ok(StepPass::many(DEFAULTS.len() as u64))
}

fn settings_for(consul: &str, etcd: &str, ca: &Path) -> String {
    let ca = format!("{:?}", ca.to_string_lossy());
    let policy = |name: &str, place: String| {
        let policy = format!("default.resilience.sharding.policies.at_{name}");
        format!(
            "[{policy}]\ngroup_name = \"outside\"\n\n[{policy}.discovery]\nbackend = \"{name}\"\n\n\
             [{policy}.discovery.{name}]\n{place}\nca_file = {ca}\n\n"
        )
    };
    policy("consul", format!("address = {consul:?}")) + &policy("etcd", format!("endpoints = [{etcd:?}]"))
}
