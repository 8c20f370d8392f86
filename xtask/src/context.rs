//! Where the workspace is and what is in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand, Package, TargetKind};

use crate::failure::TaskFailure;

pub(crate) struct TaskContext {
    metadata: Metadata,
    /// Show output while commands run, instead of only when they fail.
    pub(crate) verbose: bool,
    /// Whether cargo compiles this workspace with clippy.
    lints: bool,
}

impl TaskContext {
    /// Reads the workspace's metadata; no dependency is resolved, so this works without a network.
    pub(crate) fn load(verbose: bool, lints: bool) -> Result<Self, TaskFailure> {
        let metadata = MetadataCommand::new().no_deps().exec().map_err(|e| TaskFailure::new(format!("cargo metadata: {e}")))?;
        Ok(Self { metadata, verbose, lints })
    }

    pub(crate) fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    pub(crate) fn target(&self) -> &Path {
        self.metadata.target_directory.as_std_path()
    }

    /// A folder or file of our own below the target folder.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.target().join("xtask").join(name)
    }

    pub(crate) fn packages(&self) -> Vec<&Package> {
        let mut packages = self.metadata.workspace_packages();
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        packages
    }

    /// All targets of that kind, such as examples, in the order of packages and names: the names of the package and of the target.
    pub(crate) fn targets(&self, kind: &TargetKind) -> Vec<(&str, &str)> {
        let mut targets = Vec::new();
        for package in self.packages() {
            let of_kind = package.targets.iter().filter(|target| target.kind.contains(kind));
            targets.extend(of_kind.map(|target| (package.name.as_str(), target.name.as_str())));
        }
        targets
    }

    /// `cargo` with these arguments, the very one that runs us.
    ///
    /// The tests are built by clippy's driver, which is the compiler with more lints. `cargo clippy` would check each package, and each
    /// dependency, a second time: that took longer than all tests.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        self.compiling(self.command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), arguments))
    }

    /// The same for a program that runs cargo: what is built already would be built again.
    pub(crate) fn compiling(&self, mut program: Command) -> Command {
        if self.lints {
            program.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
        }
        program
    }

    /// A program, run in the workspace's folder, without colours and without the environment variables that `cargo run` sets.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.root());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name.as_ref());
            }
        }
        if !self.verbose {
            command.env("CARGO_TERM_COLOR", "never").env("CARGO_TERM_PROGRESS_WHEN", "never").env("NO_COLOR", "1");
        }
        command
    }
}
