//! Shows the load, the wide keys and the open sessions of a member in metrics, once a second.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::widths::KeyWidths;
use crate::membership::OwnershipContext;
use crate::requests::handlers::RequestHandlers;
use crate::requests::sessions::Sessions;

const POLL_EVERY: Duration = Duration::from_secs(1);

/// Whether a task does it.
#[derive(Default)]
struct Shown(OnceLock<()>);

/// Shows them from the first call inside a tokio runtime on, as long as the member lives.
pub(in crate::requests) fn show(context: &Arc<OwnershipContext>) {
    if Handle::try_current().is_err() {
        return;
    }
    context.extensions.get_or_make(Shown::default).0.get_or_init(|| {
        tokio::spawn(sample_gauges(Arc::downgrade(context)));
    });
}

async fn sample_gauges(context: Weak<OwnershipContext>) {
    while let Some(context) = context.upgrade() {
        let handlers = RequestHandlers::of(&context);
        let (wide, sessions) = (KeyWidths::of(&context).wide(), Sessions::of(&context).len());
        handlers.meters().sample(handlers.load(), wide, sessions);
        let gone = context.gone.clone();
        drop((context, handlers));
        tokio::select! {
            () = sleep(POLL_EVERY) => {}
            () = gone.cancelled() => return,
        }
    }
}
