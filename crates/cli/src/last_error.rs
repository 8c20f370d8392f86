//! The latest error in the log, for a command that waits: the note about the wait names the cause.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

static LATEST: Mutex<Option<String>> = Mutex::new(None);

fn set(latest: Option<String>) {
    *LATEST.lock().unwrap_or_else(PoisonError::into_inner) = latest;
}

/// Forgets the latest error: it does not explain a wait that begins now.
pub(crate) fn forget() {
    set(None);
}

/// The message and the error of the latest event that had one.
pub(crate) fn latest() -> Option<String> {
    LATEST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Remembers the latest event with a field `error`.
pub(crate) struct LastErrorLayer;

impl<S: Subscriber> Layer<S> for LastErrorLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        if let EventFields { message: Some(message), error: Some(error) } = fields {
            set(Some(format!("{message}: {error}")));
        }
    }
}

#[derive(Default)]
struct EventFields {
    message: Option<String>,
    error: Option<String>,
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = Some(format!("{value:?}")),
            "error" => self.error = Some(format!("{value:?}")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn only_an_event_with_an_error_is_remembered_and_not_for_longer_than_the_wait() {
        let log = tracing_subscriber::registry().with(LastErrorLayer);
        tracing::subscriber::with_default(log, || {
            let error = "cannot reach Consul";
            tracing::warn!(%error, retryable = true, "the group cannot be seen just now");
            tracing::warn!("something else");
        });
        assert_eq!(latest().as_deref(), Some("the group cannot be seen just now: cannot reach Consul"));
        forget();
        assert_eq!(latest(), None);
    }
}
