//! SIGTERM and Ctrl-C: the first requests a graceful stop, the second exits at once.

use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{CliFailure, Result};
use crate::{output, status_line};

/// Two signals within this time count as one: wrappers such as `timeout` send each signal to the process and to its group.
const DOUBLED: Duration = Duration::from_millis(200);
/// The exit code that shells report for a program ended by SIGINT.
const INTERRUPTED: i32 = 130;

/// A token that is cancelled at the first signal.
pub(crate) fn shutdown() -> Result<CancellationToken> {
    let failed = |error: std::io::Error| CliFailure::io("listen for signals", &error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let mut asked: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            match asked {
                None => cancelled.cancel(),
                Some(first) if first.elapsed() < DOUBLED => continue,
                Some(_) => break,
            }
            asked = Some(Instant::now());
        }
        status_line::end();
        output::note("stopped at once; others take over when the lease expires");
        std::process::exit(INTERRUPTED);
    });
    Ok(token)
}
