//! Running user code under ownership.

mod enter;
mod guards;
mod named;
mod names;
mod run;
mod run_owned;
mod singleton;
mod slots;

pub use enter::Guard;
pub(crate) use guards::Guards;
pub use named::Tenure;
pub(crate) use names::Names;
pub use run::Run;
pub use run_owned::OwnedRun;
pub use singleton::Singleton;
