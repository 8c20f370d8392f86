//! Running user code under ownership.

mod enter;
mod guards;
mod run_owned;
mod slots;

pub use enter::Guard;
pub(crate) use guards::Guards;
pub use run_owned::OwnedRun;
pub use slots::SlotsRun;
