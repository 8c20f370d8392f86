//! The connection of a sink that keeps one.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::Result;

/// The one connection of a sink: made when it is needed, and anew when it is broken. One call makes it, others wait.
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
        // The old one goes before the new one comes, and with it what waited to be sent.
        *live = None;
        let opened = Arc::new(open.await?);
        *live = Some(Arc::clone(&opened));
        Ok(opened)
    }
}
