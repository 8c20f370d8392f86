//! Wrappers: any backend in, the same contract out.

mod faults;
mod retry;
mod timeout;
mod traced;

pub use faults::{FaultRates, Faults};
pub use retry::Retry;
pub use timeout::Timeout;
pub use traced::Traced;
