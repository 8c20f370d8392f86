//! Running user code under ownership.

mod run_owned;

pub use run_owned::OwnedRun;
