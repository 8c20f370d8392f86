//! Instructions instead of seconds: the same work on a busy machine and on an idle one. `benches/instructions` is the work, callgrind
//! counts, and `benches/instructions/counts.txt` says what it may take (docs/adr/0012).

use std::collections::BTreeMap;
use std::path::Path;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::files;
use crate::pass::StepPass;
use crate::report::say;
use crate::run::StepLog;

const PACKAGE: &str = "shardwise-instructions";
const COUNTS: &str = "benches/instructions/counts.txt";
/// Other versions of the compiler and of the C library count a little differently.
const TOLERANCE: f64 = 0.10;
const ARCHITECTURE: &str = "x86_64";
const HEAD: &str = "# Instructions for each thing that a case of this package works on, counted by callgrind on x86_64.\n\
                    # Written by `cargo xtask instructions`; more than a tenth above fails the step `instructions`.\n";

/// The step: counts, and fails where a case takes more than it may.
pub(crate) fn check(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    if std::env::consts::ARCH != ARCHITECTURE {
        let why = format!("the counts are of {ARCHITECTURE}, this machine is {}", std::env::consts::ARCH);
        return Ok(StepPass::not_checked(why));
    }
    if log.context.command("valgrind", &["--version"]).output().is_err() {
        let note = "valgrind is missing: install it (Debian's package is valgrind)";
        // On a developer's machine the rest still counts; what decides about a change must have it.
        return if std::env::var_os("CI").is_some() { Err(TaskFailure::new(note)) } else { Ok(StepPass::not_checked(note.into())) };
    }
    let allowed = read(&log.context.root().join(COUNTS))?;
    let counted = count(log)?;
    let (wrong, cheaper) = compare(&allowed, &counted);
    if !wrong.is_empty() {
        say(&format!("    {}", wrong.join("\n    ")));
        let why =
            format!("{} of {} cases; if it has to be so, write the counts anew with cargo xtask instructions", wrong.len(), counted.len());
        return Err(TaskFailure::new(why));
    }
    let note = (!cheaper.is_empty()).then(|| format!("cheaper than {COUNTS} says: {}", cheaper.join("; ")));
    Ok(StepPass::noting(counted.len() as u64, note))
}

/// `cargo xtask instructions`: counts, and writes the file that the step compares with.
pub(crate) fn write(context: &TaskContext) -> Result<(), TaskFailure> {
    let counted = count(&StepLog::begin(context, "instructions")?)?;
    let mut text = HEAD.to_owned();
    for (case, count) in &counted {
        text.extend([&*format!("{count:.1}\t{case}"), "\n"]);
        say(&format!("{count:>12.1}  {case}"));
    }
    files::write(&context.root().join(COUNTS), &text)
}

/// What is wrong, and what has become cheaper by more than the tolerance, which would leave room for a later loss.
fn compare(allowed: &BTreeMap<String, f64>, counted: &BTreeMap<String, f64>) -> (Vec<String>, Vec<String>) {
    let (mut wrong, mut cheaper) = (Vec::new(), Vec::new());
    for (case, count) in counted {
        match allowed.get(case) {
            None => wrong.push(format!("{case} is not in {COUNTS}")),
            Some(may) if *count > may * (1.0 + TOLERANCE) => {
                wrong.push(format!("{case}: {count:.1} instructions, {:.0} % more than {may:.1}", (count / may - 1.0) * 100.0));
            }
            Some(may) if *count < may * (1.0 - TOLERANCE) => cheaper.push(format!("{case}, {count:.1} instead of {may:.1}")),
            Some(_) => {}
        }
    }
    let uncounted = allowed.keys().filter(|case| !counted.contains_key(*case));
    wrong.extend(uncounted.map(|case| format!("{case} is in {COUNTS} and was not counted")));
    (wrong, cheaper)
}

fn read(path: &Path) -> Result<BTreeMap<String, f64>, TaskFailure> {
    let text = files::read(path)?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let counts = lines.map(|line| line.split_once('\t').and_then(|(count, case)| Some((case.to_owned(), count.parse().ok()?))));
    counts.collect::<Option<_>>().ok_or_else(|| TaskFailure::new(format!("{COUNTS}: every line is a count, a tab and a case")))
}

fn count(log: &StepLog<'_>) -> Result<BTreeMap<String, f64>, TaskFailure> {
    let mut build = log.context.cargo(&["build", "--release", "--package", PACKAGE]);
    // Clippy's driver does not optimise MIR, and less is inlined across crates.
    build.env_remove("RUSTC_WORKSPACE_WRAPPER");
    log.run(build)?;
    let program = log.context.target().join("release").join(PACKAGE);
    let list = log.run(log.context.command(&program.to_string_lossy(), &[]))?;
    let cases =
        list.lines().filter_map(|line| line.split_once('\t')).filter_map(|(things, case)| Some((case, things.parse::<u32>().ok()?)));
    let mut counted = BTreeMap::new();
    for (case, things) in cases {
        // The first rounds warm up what is allocated once.
        let [few, many] = [2_u32, 12].map(|rounds| instructions(log, &program, case, rounds));
        counted.insert(case.to_owned(), (many? - few?) / 10.0 / f64::from(things));
    }
    if counted.is_empty() { Err(TaskFailure::new(format!("{PACKAGE} listed no case"))) } else { Ok(counted) }
}

fn instructions(log: &StepLog<'_>, program: &Path, case: &str, rounds: u32) -> Result<f64, TaskFailure> {
    let profile = format!("--callgrind-out-file={}", log.context.scratch("callgrind.out").display());
    let arguments = ["--tool=callgrind", &profile, &program.to_string_lossy(), case, &rounds.to_string()];
    let output = log.run(log.context.command("valgrind", &arguments))?;
    let collected = output.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    collected.ok_or_else(|| TaskFailure::new(format!("{case}: callgrind did not say what it collected")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_tenth_is_wrong_and_less_is_not() {
        let counts = |pairs: &[(&str, f64)]| pairs.iter().map(|(case, count)| ((*case).to_owned(), *count)).collect::<BTreeMap<_, _>>();
        let allowed = counts(&[("a", 100.0), ("b", 100.0), ("c", 100.0), ("gone", 1.0)]);
        let (wrong, cheaper) = compare(&allowed, &counts(&[("a", 109.9), ("b", 110.1), ("c", 89.9), ("new", 1.0)]));
        assert_eq!((wrong.len(), &cheaper[..]), (3, &["c, 89.9 instead of 100.0".to_owned()][..]), "{wrong:?}");
        assert!(wrong[0].starts_with("b: 110.1 instructions, 10 % more"), "{wrong:?}");
    }
}
