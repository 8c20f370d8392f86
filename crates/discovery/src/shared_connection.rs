//! One connection for all calls of a backend.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A caller that gives up after so long, having heard nothing, has found a server that does not answer.
const SUSPICIOUS_AFTER: Duration = Duration::from_millis(250);

/// The connection to a server that all calls use, and opened again after it was forgotten. `F` is why it could not be opened.
#[derive(Debug)]
pub struct SharedConnection<C, F> {
    current: Mutex<Option<Arc<C>>>,
    is_usable: fn(&C) -> bool,
    /// One connection is made at a time. Inside: when the last failed attempt began, and why it failed.
    opening: tokio::sync::Mutex<Option<(Instant, F)>>,
}

impl<C, F: Clone> SharedConnection<C, F> {
    /// None yet. One that is not usable any more is replaced.
    pub fn new(is_usable: fn(&C) -> bool) -> Self {
        Self { current: Mutex::default(), is_usable, opening: tokio::sync::Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<C>>> {
        // Nothing under this lock can panic halfway through a change.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is one.
    pub fn present(&self) -> Option<Arc<C>> {
        self.held().clone().filter(|connection| (self.is_usable)(connection))
    }

    /// Takes it out of use. Returns whether it was this connection: another task may have opened another one since.
    pub fn forget(&self, connection: &Arc<C>) -> bool {
        let mut held = self.held();
        let is_same = held.as_ref().is_some_and(|known| Arc::ptr_eq(known, connection));
        if is_same {
            *held = None;
        }
        is_same
    }

    /// The connection, opened if there is none. Of several callers at once one opens it, and the others share the result.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub async fn get<O>(&self, open: impl FnOnce() -> O + Send) -> Result<Arc<C>, F>
    where
        O: Future<Output = Result<C, F>> + Send,
    {
        let wanted = Instant::now();
        if let Some(connection) = self.present() {
            return Ok(connection);
        }
        let mut last = self.opening.lock().await;
        if let Some(connection) = self.present() {
            return Ok(connection);
        }
        if let Some((began, failure)) = &*last
            && *began >= wanted
        {
            return Err(failure.clone());
        }
        let began = Instant::now();
        match open().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *self.held() = Some(Arc::clone(&connection));
                *last = None;
                Ok(connection)
            }
            Err(failure) => {
                *last = Some((began, failure.clone()));
                Err(failure)
            }
        }
    }
}

/// Notices a caller that gives up before there is an answer, and then blames what the call has used.
pub struct AbandonedCall<B: Fn()> {
    blame: B,
    since: Instant,
    is_answered: bool,
}

impl<B: Fn()> AbandonedCall<B> {
    /// A call that begins now.
    pub fn begin(blame: B) -> Self {
        Self { blame, since: Instant::now(), is_answered: false }
    }

    /// There is an answer, or a failure.
    pub fn answered(mut self) {
        self.is_answered = true;
    }
}

impl<B: Fn()> Drop for AbandonedCall<B> {
    fn drop(&mut self) {
        if !self.is_answered && self.since.elapsed() >= SUSPICIOUS_AFTER {
            (self.blame)();
        }
    }
}
