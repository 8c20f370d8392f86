//! Programs of crates.io that tasks need: the machine's own, or one under `target/tools`, installed at its first use.

use crate::failure::TaskFailure;
use crate::report::say;
use crate::run::StepLog;

pub(crate) struct InstalledTool {
    pub(crate) name: &'static str,
    /// The version that is installed where none is found.
    pub(crate) version: &'static str,
    pub(crate) arguments: &'static [&'static str],
}

impl InstalledTool {
    pub(crate) fn path(&self, log: &StepLog<'_>) -> Result<String, TaskFailure> {
        let Self { name, version, arguments } = self;
        let root = log.context.target().join("tools");
        let own = root.join("bin").join(format!("{name}{}", std::env::consts::EXE_SUFFIX)).to_string_lossy().into_owned();
        let runs = |tool: &str| log.context.command(tool, &["--version"]).output().is_ok_and(|output| output.status.success());
        if let Some(found) = [*name, own.as_str()].into_iter().find(|tool| runs(tool)) {
            return Ok(found.into());
        }
        say(&format!("    installing {name} {version} under target/tools, once"));
        // Unoptimised it is built in a quarter of the time, and its work takes seconds either way.
        let root = root.to_string_lossy();
        let install = ["install", name, "--version", version, "--locked", "--debug", "--root", &root];
        let mut install = log.context.cargo(&[&install, *arguments].concat());
        install.env("CARGO_PROFILE_DEV_DEBUG", "0");
        log.run(install)?;
        Ok(own)
    }
}
