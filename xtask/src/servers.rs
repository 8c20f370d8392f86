//! `cargo xtask servers`: the real servers that the tests run against, unpacked into `target/servers`.

use shardwise_testkit::servers::{self, SERVERS};

use crate::report::say;
use crate::run::{Failure, Log};
use crate::steps::Passed;

/// Fetches what is missing and says what is there.
pub(crate) fn run() -> Result<(), Failure> {
    let fetched = fetch()?;
    for server in SERVERS {
        let new = fetched.contains(&server.package);
        say(&format!("{} {}: {}", server.package, server.version, if new { "fetched" } else { "was there" }));
    }
    Ok(())
}

/// The same as a step of `cargo xtask test`.
pub(crate) fn step(_log: &Log<'_>) -> Result<Passed, Failure> {
    let fetched = fetch()?;
    let note = (!fetched.is_empty()).then(|| format!("fetched {}", fetched.join(", ")));
    Ok(Passed { checks: SERVERS.len() as u64, note })
}

fn fetch() -> Result<Vec<&'static str>, Failure> {
    let fetched = servers::fetch().map_err(|error| Failure::new(error.to_string()).repeated_by("cargo xtask servers".into()))?;
    Ok(fetched.iter().map(|server| server.package).collect())
}
