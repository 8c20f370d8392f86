//! One server for all tests of a program.

use std::sync::Arc;

use tokio::sync::OnceCell;

use crate::error::Result;

/// A server that is started for the first test that asks for it, and ends with the program. For a `static`.
#[derive(Debug)]
pub struct SharedServer<T>(OnceCell<Arc<T>>);

impl<T> SharedServer<T> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceCell::const_new())
    }

    /// The server. Where it cannot be started, the next one who asks tries again.
    pub async fn get(&self, start: impl AsyncFnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        self.0.get_or_try_init(|| start()).await.cloned()
    }
}

impl<T> Default for SharedServer<T> {
    fn default() -> Self {
        Self::new()
    }
}
