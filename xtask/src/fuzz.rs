//! `cargo xtask fuzz`: the targets of the package `fuzz` under libFuzzer, which follows what an input reaches. It needs a C++ compiler and
//! no nightly: the compiler's own pass counts edges (docs/adr/0013).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::pass::StepPass;
use crate::report::say;
use crate::run::StepLog;
use crate::{files, parallel};

/// A target ends in the step with the first of these. The number is 25 times what the tests try; the time is for the slow ones.
const BRIEFLY: u32 = 1;
const BRIEF_RUNS: u32 = 50_000;
/// The step compiles without optimisation what [`MANIFEST`] does not name, such as the clients of the servers: they take most of the
/// compiler's time, and a target spends none in them.
const BRIEF_BUILD: &[&str] = &["--config", "profile.dev.package.\"*\".opt-level=0"];
/// A target is one thread.
const AT_ONCE: usize = 2;
/// Beyond the time that libFuzzer was given: it ends after the input at hand.
const GRACE: Duration = Duration::from_mins(2);
/// For reading what is on this machine; another cargo may hold its lock.
const OFFLINE_WITHIN: Duration = Duration::from_mins(2);

/// Not a member of the workspace, because libFuzzer is C++ under a different licence and everything in it is built with the pass.
const MANIFEST: &str = r#"[workspace]

[package]
name = "libfuzzer"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
libfuzzer-sys = "=0.4.13"
# What it needs and the workspace's lock does not have.
arbitrary = "=1.5.0"
jobserver = "=0.1.35"
shardwise-fuzz = { path = "CHECKOUT/fuzz" }

[profile.dev]
opt-level = 1
debug = false

# What the targets spend their time in is optimised in the brief build of the step too.
[profile.dev.package]
config.opt-level = 1
md-5.opt-level = 1
serde.opt-level = 1
serde_core.opt-level = 1
serde_json.opt-level = 1
shardwise.opt-level = 1
shardwise-core.opt-level = 1
shardwise-settings.opt-level = 1
siphasher.opt-level = 1
toml.opt-level = 1
toml_parser.opt-level = 1
twox-hash.opt-level = 1
winnow.opt-level = 1
"#;

const PROGRAM: &str = r#"#![no_main]
//! One target under libFuzzer, named by the variable SHARDWISE_FUZZ_TARGET. With SHARDWISE_FUZZ_SAMPLES, the name of a folder, it writes
//! every target's samples there instead, lists the targets and ends.

use std::path::Path;
use std::sync::LazyLock;

use shardwise_fuzz::{FuzzTarget, TARGETS};

static TARGET: LazyLock<&FuzzTarget> = LazyLock::new(|| {
    let name = std::env::var("SHARDWISE_FUZZ_TARGET").expect("SHARDWISE_FUZZ_TARGET names the target");
    TARGETS.iter().find(|target| target.name == name).expect("a known target")
});

fn write_samples(folder: &Path) {
    for target in TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        for (number, sample) in target.samples.iter().enumerate() {
            std::fs::write(folder.join(format!("sample-{number}")), sample).expect("the sample can be written");
        }
        println!("target {}", target.name);
    }
}

libfuzzer_sys::fuzz_target!(
    init: if let Some(folder) = std::env::var_os("SHARDWISE_FUZZ_SAMPLES") {
        write_samples(Path::new(&folder));
        std::process::exit(0);
    },
    |input: &[u8]| (TARGET.run)(input)
);
"#;

/// Additional flags for rustc: count edges as libFuzzer expects them, and stop on overflow.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 \
                     -Cdebug-assertions";

pub(crate) fn step(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let targets = all(log, None, BRIEFLY, Some(BRIEF_RUNS))?;
    Ok(StepPass::noting(targets, Some(format!("{BRIEF_RUNS} runs each, or {BRIEFLY} s"))))
}

pub(crate) fn run(context: &TaskContext, name: Option<&str>, seconds: u32) -> Result<(), TaskFailure> {
    all(&StepLog::begin(context, "fuzz")?, name, seconds, None).map(drop)
}

/// Tries the targets for so long, or with at most so many inputs each, and returns how many targets there were.
fn all(log: &StepLog<'_>, name: Option<&str>, seconds: u32, runs: Option<u32>) -> Result<u64, TaskFailure> {
    let program = build(log, if runs.is_some() { BRIEF_BUILD } else { &[] })?;
    let corpus = log.context.scratch("fuzz-corpus");
    let found = log.context.scratch("fuzz-found");
    std::fs::create_dir_all(&found).map_err(TaskFailure::at(found.display()))?;
    let mut list = log.context.command(&program.to_string_lossy(), &[]);
    list.env("SHARDWISE_FUZZ_SAMPLES", &corpus);
    let listed = log.run(list)?;
    let known: Vec<_> = listed.lines().filter_map(|line| line.strip_prefix("target ")).collect();
    let chosen: VecDeque<&str> = known.iter().copied().filter(|known| name.is_none_or(|name| name == *known)).collect();
    if chosen.is_empty() {
        return Err(TaskFailure::new(format!("no target is called {}; there are: {}", name.unwrap_or_default(), known.join(", "))));
    }
    let one = |target: &str| {
        say(&format!("    {target}"));
        // What libFuzzer finds worth keeping joins the samples for the next run on this machine.
        let inputs = corpus.join(target);
        let artifacts = format!("-artifact_prefix={}/{target}-", found.display());
        let time = format!("-max_total_time={seconds}");
        let arguments = [&*inputs.to_string_lossy(), &*time, "-max_len=4096", "-timeout=20", "-print_final_stats=1", &*artifacts];
        let mut command = log.context.command(&program.to_string_lossy(), &arguments);
        command.args(runs.map(|runs| format!("-runs={runs}")));
        command.env("SHARDWISE_FUZZ_TARGET", target);
        let limit = Duration::from_secs(seconds.into()) + GRACE;
        let log = StepLog::begin(log.context, &format!("fuzz-{target}"))?;
        log.run_for(command, limit).map_err(|failure| failure.repeated_by(format!("cargo xtask fuzz {target}")))
    };
    // All of them are tried, so that one find does not hide the next.
    parallel::all_passed(parallel::each(chosen, AT_ONCE, one))
}

fn build(log: &StepLog<'_>, more: &[&str]) -> Result<PathBuf, TaskFailure> {
    let folder = log.context.scratch("fuzz");
    // What is missing in our lock the manifest names, so cargo has nothing to choose.
    let manifest = files::write_manifest(log.context, &folder, MANIFEST)?;
    files::write(&folder.join("src/main.rs"), PROGRAM)?;
    // The workspace's own: what runs while building is there already. What is counted is in the folder of the target that is named.
    let target = log.context.target();
    let (manifest, target_dir, host) = (manifest.to_string_lossy(), target.to_string_lossy(), host(log)?);
    // The registry is asked only if something is not on this machine.
    let fetch = ["fetch", "--manifest-path", &manifest, "--target", &host];
    let mut offline = log.context.cargo(&fetch);
    offline.arg("--offline");
    if log.quietly(offline, OFFLINE_WITHIN).is_err() {
        log.run(log.context.cargo(&fetch))?;
    }
    let arguments = ["build", "--offline", "--manifest-path", &manifest, "--target-dir", &target_dir, "--target", &host];
    let mut command = log.context.cargo(&[&arguments[..], more].concat());
    // With a target named, what runs while building is left without the pass.
    command.env("RUSTFLAGS", FLAGS);
    log.run(command)?;
    Ok(target.join(host).join("debug/libfuzzer"))
}

fn host(log: &StepLog<'_>) -> Result<String, TaskFailure> {
    let output = log.run(log.context.command("rustc", &["-vV"]))?;
    let host = output.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned);
    host.ok_or_else(|| TaskFailure::new("rustc -vV names no host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_named_exactly() {
        let dependencies = MANIFEST.split("[dependencies]\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
        let lines: Vec<_> = dependencies.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.len() > 1);
        for line in lines {
            assert!(line.contains(" = \"=") || line.ends_with("{ path = \"CHECKOUT/fuzz\" }"), "{line}");
        }
    }
}
