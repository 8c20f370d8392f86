//! The connection of a sink that keeps one open.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::{Result, one_line};

/// The timeout of one answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A message of the server or the client, on one line.
pub(super) fn words(error: &impl Display) -> String {
    one_line(&error.to_string(), 300)
}

/// The single connection of a sink, opened when it is needed and reopened when it is broken. One call opens it while others wait.
#[derive(Debug)]
pub(super) struct Connection<L>(Mutex<Option<Arc<L>>>);

impl<L> Default for Connection<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<L> Connection<L> {
    pub(super) async fn get(&self, is_broken: impl Fn(&L) -> bool + Send, open: impl Future<Output = Result<L>> + Send) -> Result<Arc<L>> {
        let mut live = self.0.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !is_broken(live)) {
            return Ok(Arc::clone(live));
        }
        // The old connection is dropped before the new one opens, and with it everything that waited to be sent.
        *live = None;
        let opened = Arc::new(open.await?);
        *live = Some(Arc::clone(&opened));
        Ok(opened)
    }
}
