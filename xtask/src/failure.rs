//! Why a task stopped.

use std::fmt;

/// Why a task stopped, and how to see it again.
#[derive(Debug)]
pub(crate) struct TaskFailure {
    why: String,
    /// The command to repeat, as one would type it.
    repeat: Option<String>,
    /// Tests that failed, if they were counted; a failure counts at least one.
    pub(crate) failed: u64,
    pub(crate) passed: u64,
}

impl TaskFailure {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), repeat: None, failed: 1, passed: 0 }
    }

    pub(crate) fn counted(why: impl Into<String>, passed: u64, failed: u64) -> Self {
        Self { failed, passed, ..Self::new(why) }
    }

    /// What could not be done with this file, folder or program.
    pub(crate) fn at<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |error| Self::new(format!("{what}: {error}"))
    }

    /// The same failure, repeated by another command.
    pub(crate) fn repeated_by(self, command: String) -> Self {
        Self { repeat: Some(command), ..self }
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.repeat {
            Some(repeat) => write!(f, "{}; repeat with: {repeat}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl From<shardwise_testkit::Error> for TaskFailure {
    fn from(error: shardwise_testkit::Error) -> Self {
        Self::new(error.to_string())
    }
}
