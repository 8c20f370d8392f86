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
}

#[cfg(feature = "mistakes")]
thread_local! {
    static MADE: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread makes that mistake, or none.
#[cfg(feature = "mistakes")]
pub fn make(mistake: Option<Mistake>) {
    MADE.set(mistake);
}

/// Whether this mistake is made.
#[cfg(feature = "mistakes")]
pub(crate) fn made(mistake: Mistake) -> bool {
    MADE.get() == Some(mistake)
}

/// Whether this mistake is made.
#[cfg(not(feature = "mistakes"))]
pub(crate) const fn made(_: Mistake) -> bool {
    false
}

/// From when a lease counts that was asked for at `asked` and granted at `answered`.
pub(crate) fn lease_begins(asked: Moment, answered: Moment) -> Moment {
    if made(Mistake::DeadlineFromAnswer) { answered } else { asked }
}
