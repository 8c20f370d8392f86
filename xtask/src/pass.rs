//! What a step has checked, and in which lane.

pub(crate) struct StepPass {
    /// How many tests, vectors or examples passed; 1 for a step that is one check.
    pub(crate) checks: u64,
    pub(crate) note: Option<String>,
    pub(crate) not_checked: Option<String>,
}

impl StepPass {
    pub(crate) fn many(checks: u64) -> Self {
        Self { checks, note: None, not_checked: None }
    }

    pub(crate) fn noting(checks: u64, note: Option<String>) -> Self {
        Self { note, ..Self::many(checks) }
    }

    pub(crate) fn not_checked(why: String) -> Self {
        Self { not_checked: Some(why), ..Self::noting(0, Some("NOT CHECKED".into())) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestLane {
    /// Before every commit: `cargo xtask test`.
    First,
    /// Before every merge as well: `cargo xtask test --all`.
    Second,
}
