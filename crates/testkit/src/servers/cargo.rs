//! Servers that are compiled from their package on crates.io when they are first used, because no package has them: that takes many
//! minutes.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use crate::command::run;
use crate::error::{Error, Result};

const ADVICE: &str = "this server is compiled from crates.io, which needs a network and a C compiler";

/// A package whose program has its name.
pub(crate) struct CompiledServer {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    features: &'static str,
}

/// A broker that speaks Kafka's protocol and keeps everything in a file. Up to 0.6 it was called Tansu, and refused the second login on a
/// connection, which librdkafka tries after 54 s. Later versions need Rust 1.96. They have TLS; here `--cert` has no effect.
pub(crate) const NISSHI: CompiledServer = CompiledServer { package: "nisshi", version: "0.7.0-pre.2", features: "libsql" };

impl CompiledServer {
    /// Its program, compiled if it is not there yet. Of several calls at once one compiles, the others wait for it.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        let servers = super::folder();
        std::fs::create_dir_all(&servers).map_err(Error::io(servers.display()))?;
        let servers = servers.canonicalize().map_err(Error::io(servers.display()))?;
        let home = servers.join(format!("{}-{}", self.package, self.version));
        let program = home.join("bin").join(self.package);
        if program.is_file() {
            return Ok(program);
        }
        let lock = File::create(servers.join("cargo-lock")).map_err(Error::io(servers.display()))?;
        lock.lock().map_err(Error::io("the lock of the compiled servers"))?;
        // Another process may have compiled it while we waited for the lock, which ends with the file.
        if program.is_file() {
            return Ok(program);
        }
        let (unfinished, built) = (servers.join("cargo-unfinished"), servers.join("cargo-built"));
        crate::folder::empty(&unfinished)?;
        let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        install.args(["install", self.package, "--version", self.version, "--locked", "--features", self.features]);
        // Outside of the checkout, whose configuration is for the checkout.
        install.arg("--root").arg(&unfinished).arg("--target-dir").arg(&built).current_dir("/");
        run(&mut install, ADVICE)?;
        if home.exists() {
            std::fs::remove_dir_all(&home).map_err(Error::io(home.display()))?;
        }
        std::fs::rename(&unfinished, &home).map_err(Error::io(home.display()))?;
        std::fs::remove_dir_all(&built).map_err(Error::io(built.display()))?;
        Ok(program)
    }
}
