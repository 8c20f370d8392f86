//! A user's program, as a package outside the workspace: it joins over TLS, and the TLS provider of its process stays unchanged.

use std::path::{Path, PathBuf};

use shardwise_testkit::{Authority, Consul, ConsulOptions, Etcd, EtcdOptions};

use crate::context::TaskContext;
use crate::report::say;
use crate::run::{StepLog, TaskFailure};
use crate::servers;
use crate::steps::StepPass;

/// Features it is built with, and the default providers it is started with: none, one that is of no use to anybody, and aws-lc. With
/// both libraries in it and no default, rustls itself would not know which one to take.
const BUILDS: [(&[&str], [&str; 2]); 2] = [(&[], ["none", "unusable"]), (&["--features", "aws-lc"], ["none", "aws-lc"])];

/// What the program is built from. The versions of aws-lc are fixed here because our Cargo.lock has none.
const MANIFEST: &str = r#"[workspace]

[package]
name = "outside"
version = "0.0.0"
edition = "2024"
publish = false

[features]
aws-lc = ["rustls/aws_lc_rs", "dep:aws-lc-rs", "dep:aws-lc-sys"]

[dependencies]
aws-lc-rs = { version = "=1.19.0", default-features = false, optional = true }
aws-lc-sys = { version = "=0.47.0", default-features = false, optional = true }
rustls = { version = "0.23", default-features = false, features = ["std", "ring"] }
shardwise = { path = CHECKOUT, features = ["consul", "etcd"] }
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[profile.dev]
debug = false
"#;

const PROGRAM: &str = include_str!("../outside/program.rs");

/// Builds the program both ways and runs it beside a Consul and an etcd that speak TLS only.
pub(crate) fn tls(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let folder = package(log.context)?;
    let authority = Authority::new().map_err(servers::failed)?;
    let identity = authority.server().map_err(servers::failed)?;
    let (consul, etcd) = servers::drive(async {
        let consul = Consul::start(ConsulOptions::default().with_tls(&identity)).await.map_err(servers::failed)?;
        let etcd = Etcd::start(EtcdOptions::default().with_tls(&identity)).await.map_err(servers::failed)?;
        Ok((consul, etcd))
    })?;
    let settings = folder.join("settings.toml");
    write(&settings, &settings_for(&consul.address(), &etcd.address(), &authority.file()))?;

    let (manifest, target) = (folder.join("Cargo.toml"), log.context.scratch("outside-target"));
    let (manifest, target) = (manifest.to_string_lossy(), target.to_string_lossy());
    for (features, defaults) in BUILDS {
        let arguments = [&["build", "--manifest-path", &manifest, "--target-dir", &target], features].concat();
        log.run(log.context.cargo(&arguments))?;
        for default in defaults {
            say(&format!("    {} default provider: {default}", features.last().unwrap_or(&"ring alone,")));
            let mut program = servers::user(log.context, &format!("{target}/debug/outside"));
            program.arg(&settings).arg(default);
            log.run(program)?;
        }
    }
    Ok(StepPass::many(BUILDS.iter().map(|(_, defaults)| defaults.len() as u64).sum()))
}

/// Writes the package, with the versions that everything else was tested with.
fn package(context: &TaskContext) -> Result<PathBuf, TaskFailure> {
    let folder = context.scratch("outside");
    std::fs::create_dir_all(folder.join("src")).map_err(|error| failed(&folder, &error))?;
    let checkout = format!("{:?}", context.root().to_string_lossy());
    write(&folder.join("Cargo.toml"), &MANIFEST.replace("CHECKOUT", &checkout))?;
    write(&folder.join("src/main.rs"), PROGRAM)?;
    let (ours, copy) = (context.root().join("Cargo.lock"), folder.join("workspace.lock"));
    let lock = std::fs::read_to_string(&ours).map_err(|error| failed(&ours, &error))?;
    // Cargo adds aws-lc to its copy, for which it needs the network; so a copy that is still good stays.
    if std::fs::read_to_string(&copy).ok().as_ref() != Some(&lock) {
        write(&folder.join("Cargo.lock"), &lock)?;
        write(&copy, &lock)?;
    }
    Ok(folder)
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

fn write(path: &Path, text: &str) -> Result<(), TaskFailure> {
    std::fs::write(path, text).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> TaskFailure {
    TaskFailure::new(format!("{}: {error}", path.display()))
}
