//! The lean build of the command, which `cargo demo` runs, and builds with two or three of its features.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::failure::TaskFailure;
use crate::files;
use crate::pass::StepPass;
use crate::report::say;
use crate::run::StepLog;
use crate::servers;

const PACKAGE: &str = "shardwise-cli";
/// `cargo demo` compiles at most this many packages (docs/adr/0042).
const PACKAGES_MAX: usize = 200;
/// Each feature of the command, and packages that only come with it; one that several features bring stands with each.
const FEATURES: [(&str, &[&str]); 11] = [
    ("consul", &["shardwise-backend-consul", "reqwest"]),
    ("etcd", &["shardwise-backend-etcd", "etcd-client", "tonic"]),
    ("http", &["reqwest"]),
    ("kafka", &["rdkafka", "rdkafka-sys", "openssl-sys"]),
    ("nats", &["shardwise-backend-nats", "async-nats"]),
    ("otel", &["opentelemetry", "opentelemetry-http", "opentelemetry-otlp", "opentelemetry_sdk", "reqwest", "tracing-opentelemetry"]),
    ("postgres", &["shardwise-backend-postgres", "sqlx-postgres"]),
    ("prometheus", &["metrics-exporter-prometheus"]),
    ("rabbitmq", &["lapin"]),
    ("redis", &["redis"]),
    ("valkey", &["shardwise-backend-valkey", "redis"]),
];
/// What is compiled together: a backend, a sink and an exporter, whose code has nothing to do with each other. Each alone would take CI
/// minutes more and find the same: what is used without its feature, and what nothing uses. `redis` and `valkey` share a client, so they
/// are apart.
const TOGETHER: [&[&str]; 4] =
    [&["consul", "kafka", "redis"], &["etcd", "rabbitmq", "valkey"], &["nats", "http", "prometheus"], &["postgres", "otel"]];
/// What Cargo starts instead of rustc for the crates of the workspace.
const STRICT_RUSTC: &str = "#!/bin/sh\nexec \"$@\" -D warnings\n";
const SERVE: &str = "serve --policy workers --listen 127.0.0.1:0";
const PUBLISH: &str = "outbox run";
const SQLITE: &str = "sqlite:orders.db";
/// What asks the lean build for what it lacks: the features that must be named, the command line, and a backend, a store and a sink.
const REFUSED: [(&[&str], &str, [&str; 3]); 11] = [
    (&["consul", "otel", "prometheus"], SERVE, ["consul", SQLITE, "stdout"]),
    (&["etcd", "otel", "prometheus"], SERVE, ["etcd", SQLITE, "stdout"]),
    (&["nats", "otel", "prometheus"], SERVE, ["nats", SQLITE, "stdout"]),
    (&["postgres", "otel", "prometheus"], SERVE, ["postgres", SQLITE, "stdout"]),
    (&["valkey", "otel", "prometheus"], SERVE, ["valkey", SQLITE, "stdout"]),
    (&["postgres"], "outbox init", ["local", "postgres://127.0.0.1/orders", "stdout"]),
    (&["nats", "otel"], PUBLISH, ["local", SQLITE, "nats://127.0.0.1:4222"]),
    (&["redis", "otel"], PUBLISH, ["local", SQLITE, "redis://127.0.0.1:6379"]),
    (&["rabbitmq", "otel"], PUBLISH, ["local", SQLITE, "amqp://127.0.0.1:5672"]),
    (&["kafka", "otel"], PUBLISH, ["local", SQLITE, "kafka://127.0.0.1:9092"]),
    (&["http", "otel"], PUBLISH, ["local", SQLITE, "http://127.0.0.1:8080/events"]),
];

/// Counts packages, checks what each feature brings, compiles with few of them, and runs the lean build: the demo, and settings that ask
/// for what it lacks.
pub(crate) fn step(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let bare = packages(log, "")?;
    if bare.len() > PACKAGES_MAX {
        return Err(TaskFailure::new(format!(
            "the lean build has {} packages, {PACKAGES_MAX} are allowed: see cargo tree --package {PACKAGE} --no-default-features",
            bare.len()
        )));
    }
    check_names(log)?;
    check_packages("no feature", &[], &bare)?;
    say("    cargo demo");
    log.run(strict(log, &["demo", "--json", "--events", "2000"])?)?;
    let mut command = lean(log);
    command.arg("--version");
    let (version, lacks) = (output(command)?, FEATURES.map(|(feature, _)| feature).join(", "));
    if !version.contains(&format!("built without: {lacks}\n")) {
        return Err(TaskFailure::new(format!("shardwise --version says: {version}")));
    }
    for (feature, brings) in FEATURES {
        check_packages(feature, brings, &packages(log, feature)?)?;
    }
    for features in TOGETHER {
        let features = features.join(",");
        say(&format!("    {features}"));
        check(log, &features)?;
    }
    for (index, (features, arguments, places)) in REFUSED.into_iter().enumerate() {
        check_refused(log, &format!("lean-{index}"), features, arguments, places)?;
    }
    Ok(StepPass::noting((FEATURES.len() + TOGETHER.len() + REFUSED.len() + 3) as u64, Some(format!("{} packages", bare.len()))))
}

/// The crates that cargo compiles for this machine with that feature alone, or with none, as `name version`.
fn packages(log: &StepLog<'_>, feature: &str) -> Result<BTreeSet<String>, TaskFailure> {
    let arguments = ["tree", "--locked", "--package", PACKAGE, "--no-default-features", "--features", feature];
    let tree = output(log.context.cargo(&[&arguments[..], &["--edges", "normal,build", "--prefix", "none", "--format", "{p}"]].concat()))?;
    Ok(tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect())
}

/// A feature's own packages are there, and no other feature's.
fn check_packages(feature: &str, brings: &[&str], packages: &BTreeSet<String>) -> Result<(), TaskFailure> {
    let names: BTreeSet<_> = packages.iter().filter_map(|package| package.split(' ').next()).collect();
    for package in FEATURES.iter().flat_map(|(_, brings)| *brings) {
        let (is_there, belongs) = (names.contains(package), brings.contains(package));
        if is_there != belongs {
            let why = if is_there { "brings, and should not," } else { "does not bring" };
            return Err(TaskFailure::new(format!(
                "{PACKAGE} with {feature} alone {why} {package}: see its manifest, or FEATURES of this step"
            )));
        }
    }
    Ok(())
}

/// The default is every feature, so that an install and the images have everything.
fn check_names(log: &StepLog<'_>) -> Result<(), TaskFailure> {
    let packages = log.context.packages();
    let default = packages.iter().find(|package| package.name.as_str() == PACKAGE).and_then(|package| package.features.get("default"));
    let known: Vec<_> = FEATURES.iter().map(|(feature, _)| (*feature).to_owned()).collect();
    match default {
        Some(features) if *features == known => Ok(()),
        _ => Err(TaskFailure::new(format!("{PACKAGE}: `default` is {default:?}, FEATURES of this step are {known:?}"))),
    }
}

/// Compiles the command with these features alone. The compiler's lints find code that is unused without the others; clippy's, which take
/// as long again, are left to the step `clippy`.
fn check(log: &StepLog<'_>, features: &str) -> Result<(), TaskFailure> {
    let mut command = strict(log, &["check", "--package", PACKAGE, "--no-default-features", "--features", features])?;
    // The checkout's own must come before it.
    command.env("PROTOC", "no-such-protoc");
    log.run(command).map(|_| ())
}

/// `cargo` with these arguments, where a warning about one of our crates is an error. With `RUSTFLAGS` it would compile the dependencies
/// anew.
fn strict(log: &StepLog<'_>, arguments: &[&str]) -> Result<Command, TaskFailure> {
    let rustc = log.context.scratch("strict-rustc");
    files::write(&rustc, STRICT_RUSTC)?;
    std::fs::set_permissions(&rustc, Permissions::from_mode(0o755)).map_err(TaskFailure::at(rustc.display()))?;
    let mut command = log.context.cargo(arguments);
    command.env("RUSTC_WORKSPACE_WRAPPER", &rustc);
    Ok(command)
}

fn check_refused(
    log: &StepLog<'_>,
    folder: &str,
    features: &[&str],
    arguments: &str,
    [backend, store, sink]: [&str; 3],
) -> Result<(), TaskFailure> {
    let folder = log.context.scratch(folder);
    let policies = "default.resilience.sharding.policies";
    let settings = format!(
        "[default.resilience.sharding.discovery]\nbackend = {backend:?}\n\n[{policies}.workers]\ngroup_name = \"workers\"\n\n\
         [{policies}.publishers]\ngroup_name = \"publishers\"\n\n\
         [default.outbox.orders]\npolicy = \"publishers\"\nstore = {store:?}\nsink = {sink:?}\n"
    );
    files::write(&folder.join("settings.toml"), &settings)?;
    let mut command = lean(log);
    command
        .args(arguments.split(' '))
        .current_dir(&folder)
        .env("RUST_LOG", "info")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    let ran = command.output().map_err(TaskFailure::at(folder.display()))?;
    let reported = String::from_utf8_lossy(&ran.stderr);
    let silent = features.iter().find(|feature| {
        !reported.contains(&format!("cargo install --locked --path crates/cli --no-default-features --features {feature}"))
    });
    match (ran.status.code(), silent) {
        (Some(2), None) => Ok(()),
        (code, silent) => {
            let silent = silent.map_or_else(String::new, |feature| format!(", and does not say how to get {feature}"));
            Err(TaskFailure::new(format!("the lean build with {} ends with {code:?} instead of 2{silent}: {reported}", folder.display())))
        }
    }
}

fn lean(log: &StepLog<'_>) -> Command {
    servers::user(log.context, &log.context.target().join("debug/shardwise").to_string_lossy())
}

fn output(mut command: Command) -> Result<String, TaskFailure> {
    let ran = command.output().map_err(|error| TaskFailure::new(format!("{command:?}: {error}")))?;
    if ran.status.success() {
        return Ok(String::from_utf8_lossy(&ran.stdout).into_owned());
    }
    Err(TaskFailure::new(format!("{command:?}: {}", String::from_utf8_lossy(&ran.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_compiled_with_few_others() {
        let mut compiled = TOGETHER.concat();
        compiled.sort_unstable();
        assert_eq!(compiled, FEATURES.map(|(feature, _)| feature));
    }
}
