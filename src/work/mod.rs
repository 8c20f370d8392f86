//! User code that runs under ownership: guards, tasks for keys and slots, singletons, daemons and timers.

mod daemon_count;
mod daemons;
mod enter;
mod named;
mod run;
mod run_owned;
mod singleton;
mod slots;
mod timer;

pub(crate) use daemon_count::DaemonCounter;
pub use daemon_count::{DAEMONS_MAX, DaemonCount};
pub use daemons::Daemons;
pub use enter::Guard;
#[cfg(feature = "requests")]
pub(crate) use enter::{enter, enter_claim};
pub use named::Tenure;
pub use run::Run;
pub use run_owned::OwnedRun;
pub use singleton::Singleton;
pub use timer::{PERIOD_MAX, PERIOD_MIN, Period, Timer};
