//! The one public error.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwise_core::machine::MemberRefusal;
use shardwise_core::write_with_causes;

/// The result of every fallible function in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is missing, unknown or not allowed, and nothing was contacted; or the group's weights do not fit the placement, or the
    /// lease that the backend grants does not fit `stop_margin`.
    Settings,
    /// No policy has that name; the message lists the known ones.
    UnknownPolicy,
    /// The backend cannot be reached or does not answer in time; a retry may succeed.
    Unavailable,
    /// The backend refuses: wrong credentials, missing rights, an incompatible or damaged store.
    Backend,
    /// A living member has the same instance id.
    InstanceIdInUse,
    /// The group agrees on other constants than this worker's policy, or serves something else: another outbox, or keys.
    OtherPolicy,
    /// The service was dropped or has left during the wait.
    Closed,
    /// The call needs a tokio runtime and was made outside one. Nothing was contacted.
    NoRuntime,
    /// The group has no member with that id; the message lists the members.
    UnknownInstance,
    /// Another writer changed it after it was read; the message has the present state. Read it and decide again.
    Conflict,
}

/// A failure: its kind, and one line that says what happened and what to do.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn caused_by(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }

    /// The kind of failure.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without any other change.
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    // Derived, it would be the `Arc`, which no caller can downcast to the cause.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

/// Fails outside a tokio runtime with [`ErrorKind::NoRuntime`].
pub(crate) fn inside_runtime() -> Result<()> {
    let outside = |_| {
        let message = "this call needs a tokio runtime, and there is none here: await it inside one (#[tokio::main], Runtime::block_on)";
        Error::new(ErrorKind::NoRuntime, message)
    };
    tokio::runtime::Handle::try_current().map(drop).map_err(outside)
}

/// Locks, also after a panic under the lock: ours guard single assignments, insertions and removals, the ranking of a view and the opening
/// of a backend, and no code of the user runs there.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Error {
    /// Like [`Display`](fmt::Display), with the causes: `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl From<shardwise_discovery::Error> for Error {
    /// Without the backend's operation: the caller has called another function, and an operator none.
    fn from(error: shardwise_discovery::Error) -> Self {
        let kind = match error.kind() {
            _ if error.is_retryable() => ErrorKind::Unavailable,
            shardwise_discovery::ErrorKind::InUse { .. } => ErrorKind::InstanceIdInUse,
            _ => ErrorKind::Backend,
        };
        Self::new(kind, error.context()).caused_by(error)
    }
}

impl From<&MemberRefusal> for Error {
    fn from(refusal: &MemberRefusal) -> Self {
        let kind = match refusal {
            MemberRefusal::InUse { .. } => ErrorKind::InstanceIdInUse,
            MemberRefusal::OtherPolicy { .. } | MemberRefusal::OtherWork(_) => ErrorKind::OtherPolicy,
            MemberRefusal::TooManyPoints(_) | MemberRefusal::Lease(_) => ErrorKind::Settings,
            _ => ErrorKind::Backend,
        };
        Self::new(kind, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_shows_what_happened_and_why() {
        let cause = std::io::Error::other("no such file");
        assert_eq!(
            format!("{:?}", Error::new(ErrorKind::Settings, "cannot read a.toml").caused_by(cause)),
            "cannot read a.toml; cause: no such file"
        );
        assert_eq!(format!("{:#?}", Error::new(ErrorKind::Settings, "no policy")), "no policy");
    }
}
