//! Running user code under ownership.

mod enter;
mod guards;
mod names;
mod run_owned;
mod singleton;
mod slots;

pub use enter::Guard;
pub(crate) use guards::Guards;
pub(crate) use names::Names;
pub use run_owned::OwnedRun;
pub use singleton::{Singleton, SingletonContext, SingletonRun};
pub use slots::SlotsRun;
