//! A listener of this member, for messages or for requests.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::context::OwnershipContext;
use crate::error::{Error, ErrorKind, Result};

/// Opened at the first use; ends when this is dropped, or when a test's fleet kills the worker.
pub(crate) struct MemberListener {
    address: Mutex<Option<SocketAddr>>,
    closed: CancellationToken,
    _close: DropGuard,
}

impl MemberListener {
    pub(crate) fn of(context: &OwnershipContext) -> Self {
        let closed = context.gone.child_token();
        Self { address: Mutex::default(), _close: closed.clone().drop_guard(), closed }
    }

    /// Listens for `what` at `wanted`, the value of the setting `key`, unless it listens already. `begin` publishes the address and returns
    /// the future that accepts connections; dropping it ends them all.
    pub(crate) async fn open<S: Future<Output = ()> + Send + 'static>(
        &self,
        (what, key, wanted): (&str, &str, SocketAddr),
        begin: impl FnOnce(TcpListener, SocketAddr) -> Result<S>,
    ) -> Result<SocketAddr> {
        let mut address = self.address.lock().await;
        if let Some(address) = *address {
            return Ok(address);
        }
        // A worker that a test's fleet has killed publishes nothing more.
        if self.closed.is_cancelled() {
            return Ok(wanted);
        }
        let failed = |error| {
            let message = format!("cannot listen for {what} on {wanted}: {error}; change {key}, or end what listens there");
            Error::new(ErrorKind::Settings, message)
        };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (closed, accepting) = (self.closed.clone(), begin(listener, bound)?);
        tokio::spawn(async move { closed.run_until_cancelled(accepting).await });
        *address = Some(bound);
        Ok(bound)
    }
}
