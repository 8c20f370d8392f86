//! Every published crate, as its users get it.

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::files;
use crate::pass::StepPass;
use crate::run::StepLog;

const IN_EVERY_PACKAGE: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
const IN_ONE_PACKAGE: [(&str, &str); 3] = [
    ("shardwise", "README.md"),
    ("shardwise", "CHANGELOG.md"),
    // The golden vectors travel with the code that they hold.
    ("shardwise-core", "testdata/circles.txt"),
];

/// Packs all crates and builds them from their packages alone.
pub(crate) fn package(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let published = published(log.context);
    for name in &published {
        let output = log.run(log.context.cargo(&["package", "--package", name, "--list", "--allow-dirty"]))?;
        let files: Vec<_> = output.lines().map(str::trim).collect();
        let others = IN_ONE_PACKAGE.iter().filter(|(package, _)| package == name).map(|(_, file)| *file);
        if let Some(missing) = IN_EVERY_PACKAGE.into_iter().chain(others).find(|file| !files.contains(file)) {
            return Err(TaskFailure::new(format!("the package {name} would not contain {missing}: add it, or name it in `include`")));
        }
    }
    let mut arguments = vec!["package", "--allow-dirty", "--no-verify"];
    arguments.extend(published.iter().flat_map(|name| ["--package", name]));
    log.run(log.context.cargo(&arguments))?;
    build_from_packages(log, &published)?;
    Ok(StepPass::many(published.len() as u64))
}

/// Unpacks all packages into one workspace where they stand in for the registry, and checks that with all features.
///
/// Cargo's own verification does the same package by package, and builds every dependency anew for each of them.
fn build_from_packages(log: &StepLog<'_>, published: &[&str]) -> Result<(), TaskFailure> {
    let folder = log.context.scratch("packed");
    files::empty(&folder)?;
    let mut manifest = String::from("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n");
    for package in log.context.packages().into_iter().filter(|package| published.contains(&package.name.as_str())) {
        let packed = format!("{}-{}", package.name, package.version);
        let archive = log.context.target().join("package").join(format!("{packed}.crate"));
        // With new times: the archives have one fixed time, and Cargo would take the sources of the last run for unchanged ones.
        log.run(log.context.command("tar", &["-xzmf", &archive.to_string_lossy(), "-C", &folder.to_string_lossy()]))?;
        manifest.extend([package.name.as_str(), " = { path = \"", &packed, "\" }\n"]);
    }
    manifest.extend(["\n", &dev_profile(log.context)?]);
    let manifest = files::write_manifest(log.context, &folder, &manifest)?;
    let (manifest, target) = (manifest.to_string_lossy(), log.context.target().to_string_lossy());
    let arguments = ["check", "--workspace", "--all-features", "--manifest-path", &manifest, "--target-dir", &target];
    log.run(log.context.cargo(&arguments)).map(|_| ())
}

/// The workspace's profile `dev`, with which Cargo has checked the dependencies before.
fn dev_profile(context: &TaskContext) -> Result<String, TaskFailure> {
    let (manifest, mut is_of_dev) = (files::read(&context.root().join("Cargo.toml"))?, false);
    let of_dev = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            is_of_dev = line.starts_with("[profile.dev");
        }
        is_of_dev
    });
    Ok(of_dev.flat_map(|line| [line, "\n"]).collect())
}

/// Our packages that are not kept back by `publish = false`.
fn published(context: &TaskContext) -> Vec<&str> {
    let kept_back = |publish: &Option<Vec<String>>| publish.as_ref().is_some_and(Vec::is_empty);
    context.packages().into_iter().filter(|package| !kept_back(&package.publish)).map(|package| package.name.as_str()).collect()
}
