//! Running user code under ownership.

mod daemons;
mod enter;
mod guards;
mod named;
mod names;
mod note;
mod run;
mod run_owned;
mod singleton;
mod slots;
mod timer;

pub use daemons::{DAEMONS_MAX, DaemonCount, Daemons};
pub use enter::Guard;
pub(crate) use guards::Guards;
pub use named::Tenure;
pub(crate) use names::OfferedNames;
pub(crate) use note::NoteBook;
pub use run::Run;
pub use run_owned::OwnedRun;
pub use singleton::Singleton;
pub use timer::{PERIOD_LEAST, PERIOD_MOST, Period, Timer};
