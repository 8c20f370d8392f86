//! Known mistakes that tests insert on purpose: a check that finds none of them proves nothing. Without the feature `mistakes`, which
//! only tests enable, none can be made, and the checks below are constants.

use crate::Moment;

/// A mistake that is easily made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// The deadline counts from the answer to a renewal instead of from the request.
    DeadlineFromAnswer,
    /// A claim is released while work under it is in flight.
    ReleaseBeforeDrain,
    /// A member has one epoch, that of its first claim, instead of one for each acquisition.
    EpochPerMember,
    /// A late renewal is undone by deleting the member's record, even one registered after it.
    UndoByIncarnation,
    /// A member that was fenced reads the group once, and not again if that fails.
    ReadOnce,
    /// A member never asks for what others hold in its place.
    NeverReclaims,
    /// An observer counts a member's silence from the server's time of its renewal instead of from when it saw the renewal.
    ServerTimestamps,
    /// An observer evicts a record as soon as it is absent.
    AbsenceIsEviction,
    /// An observer counts silence through the time in which it could not write itself.
    SilenceInOutage,
    /// The owner of a hot key never narrows it again.
    WidthNeverNarrows,
    /// A load that a member reported once counts for ever.
    LoadNeverAges,
    /// A member that failed counts like any other.
    FailureForgotten,
    /// A member that refused a request as busy counts like any other.
    RefusalForgotten,
    /// A hint to another member is followed however many were followed before.
    HintsWithoutEnd,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::DeadlineFromAnswer,
        Self::ReleaseBeforeDrain,
        Self::EpochPerMember,
        Self::UndoByIncarnation,
        Self::ReadOnce,
        Self::NeverReclaims,
        Self::ServerTimestamps,
        Self::AbsenceIsEviction,
        Self::SilenceInOutage,
        Self::WidthNeverNarrows,
        Self::LoadNeverAges,
        Self::FailureForgotten,
        Self::RefusalForgotten,
        Self::HintsWithoutEnd,
    ];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeadlineFromAnswer => "deadline-from-answer",
            Self::ReleaseBeforeDrain => "release-before-drain",
            Self::EpochPerMember => "epoch-per-member",
            Self::UndoByIncarnation => "undo-by-incarnation",
            Self::ReadOnce => "read-once",
            Self::NeverReclaims => "never-reclaims",
            Self::ServerTimestamps => "server-timestamps",
            Self::AbsenceIsEviction => "absence-is-eviction",
            Self::SilenceInOutage => "silence-in-outage",
            Self::WidthNeverNarrows => "width-never-narrows",
            Self::LoadNeverAges => "load-never-ages",
            Self::FailureForgotten => "failure-forgotten",
            Self::RefusalForgotten => "refusal-forgotten",
            Self::HintsWithoutEnd => "hints-without-end",
        }
    }
}

#[cfg(any(test, feature = "mistakes"))]
thread_local! {
    static MADE: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

#[cfg(any(test, feature = "mistakes"))]
static MADE_EVERYWHERE: std::sync::OnceLock<Mistake> = std::sync::OnceLock::new();

/// Makes this thread make that mistake, or none.
#[cfg(any(test, feature = "mistakes"))]
pub fn make(mistake: Option<Mistake>) {
    MADE.set(mistake);
}

/// Makes every thread of this process make that mistake; the first call counts.
#[cfg(any(test, feature = "mistakes"))]
pub fn make_everywhere(mistake: Mistake) {
    MADE_EVERYWHERE.get_or_init(|| mistake);
}

/// Whether this mistake is made.
#[cfg(any(test, feature = "mistakes"))]
pub(crate) fn made(mistake: Mistake) -> bool {
    MADE.get() == Some(mistake) || MADE_EVERYWHERE.get() == Some(&mistake)
}

#[cfg(not(any(test, feature = "mistakes")))]
pub(crate) const fn made(_: Mistake) -> bool {
    false
}

/// The start of a lease that was requested at `asked` and granted at `answered`.
pub(crate) fn lease_begins(asked: Moment, answered: Moment) -> Moment {
    if made(Mistake::DeadlineFromAnswer) { answered } else { asked }
}

/// Whether a backend undoes a late renewal by its incarnation instead of by the very row that was renewed.
pub fn undoes_by_incarnation() -> bool {
    made(Mistake::UndoByIncarnation)
}

/// Whether an observer counts silence from the server's time of a renewal.
pub fn trusts_server_time() -> bool {
    made(Mistake::ServerTimestamps)
}

/// Whether an observer evicts a record as soon as it is absent.
pub fn takes_absence_for_eviction() -> bool {
    made(Mistake::AbsenceIsEviction)
}

/// Whether an observer counts silence through the time in which it could not write itself.
pub fn counts_silence_in_outages() -> bool {
    made(Mistake::SilenceInOutage)
}
