//! The second reading of the placement protocol, `docs/reference/placement_check.py`, and the third, which is the Python in
//! `docs/reference/protocol.md`; in a virtual environment of our own.

use std::path::PathBuf;

use crate::run::{StepLog, TaskFailure};
use crate::steps::StepPass;

pub(crate) fn replay(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let python = environment(log, "venv", &[("xxhash", "xxhash")])?;
    let mut passed = 0;
    for program in ["docs/reference/placement_check.py", "docs/reference/protocol_check.py"] {
        let output = log.run(log.context.command(&python.to_string_lossy(), &["-B", program]))?;
        let count: Option<u64> = output.lines().find_map(|line| line.split_once(" vectors passed")?.0.parse().ok());
        passed += count.ok_or_else(|| TaskFailure::new(format!("{program} did not say how many vectors passed")))?;
    }
    Ok(StepPass::many(passed))
}

/// The Python of an environment of our own in that folder, with these packages, each with the name that it is imported by; made once.
pub(crate) fn environment(log: &StepLog<'_>, folder: &str, packages: &[(&str, &str)]) -> Result<PathBuf, TaskFailure> {
    let folder = log.context.scratch(folder);
    let python = if cfg!(windows) { folder.join("Scripts/python.exe") } else { folder.join("bin/python") };
    let ours = python.to_string_lossy();
    let imports: Vec<_> = packages.iter().map(|(_, module)| *module).collect();
    let import = format!("import {}", imports.join(", "));
    if python.exists() && log.context.command(&ours, &["-c", &import]).output().is_ok_and(|output| output.status.success()) {
        return Ok(python);
    }
    let system = if cfg!(windows) { "python" } else { "python3" };
    if log.context.command(system, &["--version"]).output().is_err() {
        return Err(TaskFailure::new(format!("{system} is missing: install Python 3.9 or newer with its venv module")));
    }
    log.run(log.context.command(system, &["-m", "venv", "--clear", &folder.to_string_lossy()]))?;
    let mut install = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    install.extend(packages.iter().map(|(package, _)| *package));
    log.run(log.context.command(&ours, &install))?;
    Ok(python)
}
