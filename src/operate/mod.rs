//! Operators' actions on a group from outside: observe it, drain members, confirm a loss, end an absence.

mod claims;
mod confirm_loss;
mod drain;
mod end_absence;
mod observer;

pub(crate) use confirm_loss::confirm_loss;
pub(crate) use drain::{drained_within, unknown_member, view_of};
pub(crate) use end_absence::end_absence;
pub use observer::Observer;
