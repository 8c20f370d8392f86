//! SIGTERM and Ctrl-C: the first asks to finish, the second ends at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, Result};
use crate::output;

/// What shells report for a program ended by SIGINT.
const INTERRUPTED: i32 = 130;

/// A token that is cancelled at the first signal.
pub(crate) fn shutdown() -> Result<CancellationToken> {
    let failed = |error: std::io::Error| Failure::io("listen for signals", &error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        for already_asked in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if already_asked {
                output::note("stopped at once; others take over when the lease runs out");
                std::process::exit(INTERRUPTED);
            }
            cancelled.cancel();
        }
    });
    Ok(token)
}
