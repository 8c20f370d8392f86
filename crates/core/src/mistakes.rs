//! Known mistakes, to be put back on purpose: a proof that finds none of them proves nothing. Builds without the feature `mistakes`, which
//! only tests turn on, know of none, and what asks here is a constant for them.

use crate::Moment;

/// A mistake that is easily made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// The deadline is counted from the answer to a renewal, and not from the request.
    DeadlineFromAnswer,
    /// A claim is given back while work under it is in flight.
    ReleaseBeforeDrain,
    /// A member has one epoch, that of its first claim, and not one for each acquisition.
    EpochPerMember,
    /// A renewal that came too late is undone by deleting the member's record, also one that was registered after it.
    UndoByIncarnation,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::DeadlineFromAnswer, Self::ReleaseBeforeDrain, Self::EpochPerMember, Self::UndoByIncarnation];

    /// As it is called on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeadlineFromAnswer => "deadline-from-answer",
            Self::ReleaseBeforeDrain => "release-before-drain",
            Self::EpochPerMember => "epoch-per-member",
            Self::UndoByIncarnation => "undo-by-incarnation",
        }
    }
}

#[cfg(any(test, feature = "mistakes"))]
thread_local! {
    static MADE: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

#[cfg(any(test, feature = "mistakes"))]
static MADE_EVERYWHERE: std::sync::OnceLock<Mistake> = std::sync::OnceLock::new();

/// From now on this thread makes that mistake, or none.
#[cfg(any(test, feature = "mistakes"))]
pub fn make(mistake: Option<Mistake>) {
    MADE.set(mistake);
}

/// From now on every thread of this process makes that mistake; the first word counts.
#[cfg(any(test, feature = "mistakes"))]
pub fn make_everywhere(mistake: Mistake) {
    MADE_EVERYWHERE.get_or_init(|| mistake);
}

/// Whether this mistake is made.
#[cfg(any(test, feature = "mistakes"))]
pub(crate) fn made(mistake: Mistake) -> bool {
    MADE.get() == Some(mistake) || MADE_EVERYWHERE.get() == Some(&mistake)
}

/// Whether this mistake is made.
#[cfg(not(any(test, feature = "mistakes")))]
pub(crate) const fn made(_: Mistake) -> bool {
    false
}

/// From when a lease counts that was asked for at `asked` and granted at `answered`.
pub(crate) fn lease_begins(asked: Moment, answered: Moment) -> Moment {
    if made(Mistake::DeadlineFromAnswer) { answered } else { asked }
}

/// Whether a backend undoes a renewal that came too late by its incarnation, and not by the very row that was renewed.
pub fn undoes_by_incarnation() -> bool {
    made(Mistake::UndoByIncarnation)
}
